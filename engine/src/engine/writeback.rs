//! Entries of the pool go to the device.

use super::requests::Pending;
use super::{Engine, Progress, Workspace};
use crate::memory::Memory;
use pagetide_device::{BLOCK, Buffer, Direction, Request};
use pagetide_swap::blocks::BlockRun;
use pagetide_swap::config::WRITE_BATCH_PAGES;
use pagetide_swap::hash::PageHash;
use pagetide_swap::{CLUSTER_PAGES, Counter, Handle, PageIndex, PoolScope, Scratch};
use std::sync::atomic::Ordering::Relaxed;

/// Entries that one step of reclaim drops or writes back at most to make room in the pool: more than a step
/// stores.
pub const TRIM_ENTRIES: usize = 2 * CLUSTER_PAGES;

/// Entries of the pool that the shrinker's hand passes in one step of that at most.
pub const TRIM_SCAN: usize = 16 * TRIM_ENTRIES;

/// Entries that are on their way to the device count as pages that will be free: so many as one, more or less.
const ENTRIES_A_PAGE: usize = 4;

/// Clusters whose entries in the pool one step of reclaim moves together at most.
pub const COMPACT_CLUSTERS: usize = 32;

impl<M: Memory> Engine<M> {
    /// Does a step of work on memory that the pool could give.
    pub fn reclaim_pool(&self, work: &mut Workspace) -> Progress {
        match self.shrink_pool(work, PoolScope::Own, || true) {
            0 => Progress::Nothing,
            freed => Progress::Freed(freed),
        }
    }

    /// Makes room in a pool that nears its limit. Returns the pages that were freed at once, or will be soon.
    pub(super) fn trim_pool(&self, work: &mut Workspace) -> usize {
        if self.swap.compact(COMPACT_CLUSTERS) > 0 {
            self.charge_pool();
        }
        let is_full = || self.swap.zswap().is_nearly_full();
        if is_full() { self.shrink_pool(work, PoolScope::All, is_full) } else { 0 }
    }

    /// Gives up a part of the pool: kept copies go, and where there are none, the entries under the clock hand are
    /// written to the device while there should be `more`.
    fn shrink_pool(&self, work: &mut Workspace, scope: PoolScope, more: impl Fn() -> bool) -> usize {
        let zswap = self.swap.zswap();
        let pages = || zswap.pool_pages() - if scope == PoolScope::Own { zswap.frozen_pages() } else { 0 };
        let before = pages();
        let mut sent = 0;
        if self.swap.drop_copies(TRIM_ENTRIES) == 0 {
            // Where nothing else can leave, all entries are looked at.
            let scan = if scope == PoolScope::Own { usize::MAX } else { TRIM_SCAN };
            while sent < TRIM_ENTRIES && more() {
                let step = self.write_back_scanned(scan, scope, work);
                if step == 0 {
                    break;
                }
                sent += step;
            }
        }
        self.charge_pool();
        before.saturating_sub(pages()) + sent / ENTRIES_A_PAGE
    }

    /// Passes the shrinker's hand over so many entries of the pool, and writes back what it finds, up to a few batches.
    /// Returns how many are on their way.
    pub(super) fn write_back_scanned(&self, scan: usize, scope: PoolScope, work: &mut Workspace) -> usize {
        if !self.can_write() || self.is_writing() {
            return 0;
        }
        let mut entries = std::mem::take(&mut work.entries);
        entries.clear();
        self.swap.scan(scan, 4 * WRITE_BATCH_PAGES, scope, &mut entries);
        let sent =
            entries.chunks(WRITE_BATCH_PAGES).map(|chunk| self.write_back(chunk, &mut work.scratch)).sum();
        work.entries = entries;
        sent
    }

    /// `taken` pages have left the program: the pool gives its part, if the shrinker has it so. Returns about how many
    /// pages become free.
    pub(super) fn press_pool(&self, taken: usize, work: &mut Workspace) -> usize {
        let weight = f64::from_bits(self.pool_pressure.load(Relaxed));
        if weight <= 0.0 || !self.can_write() || self.is_writing() {
            return 0;
        }
        let scan = self.swap.pressure(taken, weight);
        if scan == 0 { 0 } else { self.write_back_scanned(scan, PoolScope::Own, work) / ENTRIES_A_PAGE }
    }

    /// Sets how hard the pool is pressed to give memory, against the program: 0 not at all.
    pub fn set_pool_pressure(&self, weight: f64) {
        self.pool_pressure.store(weight.to_bits(), Relaxed);
    }

    fn write_back(&self, entries: &[(PageIndex, Handle)], scratch: &mut Scratch) -> usize {
        let Some(device) = &self.device else { return 0 };
        if !self.can_write() || self.is_writing() {
            return 0;
        }
        let Some(run) = self.allocate(entries.len()) else { return 0 };
        let mut buffer = Buffer::new(run.length);
        let mut begun = Vec::with_capacity(run.length);
        for &(owner, handle) in entries {
            if begun.len() == run.length {
                break;
            }
            let bytes = &mut buffer[begun.len() * BLOCK..][..BLOCK];
            if let Some(hash) = self.swap.begin_writeback(owner, handle, bytes, scratch) {
                self.swap.seal(run.start + begun.len() as u64, hash, bytes);
                begun.push((owner, handle, hash));
            }
        }
        let count = begun.len();
        self.free_blocks(run.start + count as u64, run.length - count);
        if count == 0 {
            return 0;
        }
        buffer.truncate(count);
        let token = self.requests.begin(Pending::Writeback { entries: begun, block: run.start });
        let request = Request { token, direction: Direction::Write, block: run.start, buffer };
        if device.submit(request).is_err() {
            if let (Pending::Writeback { entries, block }, _ended) = self.requests.end(token) {
                self.cancel_writeback(&entries);
                self.free_blocks(block, entries.len());
            }
            return 0;
        }
        count
    }

    fn cancel_writeback(&self, entries: &[(PageIndex, Handle, PageHash)]) {
        for &(owner, handle, hash) in entries {
            self.swap.finish_writeback(owner, handle, hash, None);
        }
    }

    pub(super) fn writeback_ended(
        &self,
        entries: &[(PageIndex, Handle, PageHash)],
        block: u64,
        result: std::io::Result<()>,
    ) {
        if let Err(error) = result {
            self.cancel_writeback(entries);
            self.write_failed(&error, BlockRun { start: block, length: entries.len() });
            return;
        }
        self.full.end();
        self.count(Counter::pswpout, entries.len());
        for (&(owner, handle, hash), block) in entries.iter().zip(block..) {
            if !self.swap.finish_writeback(owner, handle, hash, Some(block)) {
                self.swap.blocks().free(block);
            }
        }
    }
}
