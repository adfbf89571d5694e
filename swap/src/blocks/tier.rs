//! The space of one tier: where a process looks for free blocks.

use super::{BlockRun, Books, EXTENT_BLOCKS, WORD_BITS};
use crate::frontier::{EXTENT, Frontier};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A process's view of a tier. Its blocks have the numbers that they have on the whole device.
#[derive(Debug)]
pub(super) struct TierSpace {
    /// The first block, at the beginning of an extent.
    start: usize,
    /// It counts from there.
    frontier: Frontier,
    /// The block at which the last search ended.
    cursor: AtomicU64,
    /// Blocks that this process holds.
    used: AtomicU64,
    /// Blocks that this process has given up since it started.
    freed: AtomicU64,
    /// The value of `freed` from which on it is worth to look for a whole run in our own extents again.
    barren_until: AtomicU64,
    /// The value of `freed` from which on it is worth to look for an extent of which no block is taken.
    taken_until: AtomicU64,
    /// One more than the frontier's stamp when nothing at all was free; 0 if something was.
    full: AtomicU64,
    /// Whether nothing is to be taken any more.
    closed: AtomicBool,
    /// Blocks that could not be written to: they are held, and no page is in them.
    parked: Mutex<Vec<BlockRun>>,
}

impl TierSpace {
    pub(super) fn new(start: u64, frontier: Frontier) -> Self {
        Self {
            start: start as usize,
            frontier,
            cursor: AtomicU64::new(start),
            used: AtomicU64::new(0),
            freed: AtomicU64::new(0),
            barren_until: AtomicU64::new(0),
            taken_until: AtomicU64::new(0),
            full: AtomicU64::new(0),
            closed: AtomicBool::new(false),
            parked: Mutex::default(),
        }
    }

    /// Returns the view of a forked child, whose parked blocks are to be given up: it has no use for them.
    pub(super) fn for_child(&self) -> Self {
        Self {
            cursor: AtomicU64::new(self.cursor.load(Relaxed)),
            used: AtomicU64::new(self.used()),
            parked: Mutex::new(self.lock_parked().clone()),
            ..Self::new(self.start(), self.frontier)
        }
    }

    pub(super) fn start(&self) -> u64 {
        self.start as u64
    }

    pub(super) fn used(&self) -> u64 {
        self.used.load(Relaxed)
    }

    pub(super) fn close(&self) {
        self.closed.store(true, Relaxed);
    }

    pub(super) fn is_closed(&self) -> bool {
        self.closed.load(Relaxed)
    }

    pub(super) fn limit(&self) -> u64 {
        if self.is_closed() { 0 } else { self.frontier.allowed().max(self.frontier.open()) }
    }

    /// Notes that this process has given up a block.
    pub(super) fn note_freed(&self) {
        self.used.fetch_sub(1, Relaxed);
        self.freed.fetch_add(1, Relaxed);
    }

    /// Returns the block up to which blocks are open.
    fn open(&self) -> usize {
        self.start + self.frontier.open() as usize
    }

    /// Returns the number of blocks that any process of the run holds.
    pub(super) fn taken(&self, books: &Books) -> u64 {
        (self.start..self.open()).filter(|&block| !books.is_free(block)).count() as u64
    }

    /// Takes up to `wanted` free blocks that lie together.
    pub(super) fn allocate(&self, books: &Books, wanted: usize) -> Option<BlockRun> {
        if self.frontier.total() == 0 {
            return None;
        }
        let stamp = self.frontier.stamp().wrapping_add(1).max(1);
        let run = self
            .in_own_extents(books, wanted)
            .or_else(|| self.new_extent(books, stamp))
            .and_then(|start| self.claim_run(books, start, wanted))
            .or_else(|| self.claim_any(books, wanted, stamp))?;
        self.cursor.store(run.start + run.length as u64, Relaxed);
        self.used.fetch_add(run.length as u64, Relaxed);
        Some(run)
    }

    /// Finds a whole run in the extent of the last search, or in any of this process's. Where there was none, it looks
    /// in the last extent only until as many blocks as an extent has were freed.
    fn in_own_extents(&self, books: &Books, wanted: usize) -> Option<usize> {
        let find = |extent: usize| books.is_own(extent).then(|| self.whole_run(books, extent, wanted))?;
        let freed = self.freed.load(Relaxed);
        if freed < self.barren_until.load(Relaxed) {
            return find(self.last_extent()?);
        }
        let found = self.in_extents(find);
        if found.is_none() {
            self.barren_until.store(freed + EXTENT, Relaxed);
        }
        found
    }

    /// Takes an extent that was given up, or else has the tier grow. Where none was given up, the tier grows first
    /// until as many blocks as an extent has were freed.
    fn new_extent(&self, books: &Books, stamp: u64) -> Option<usize> {
        let freed = self.freed.load(Relaxed);
        let looked = freed < self.taken_until.load(Relaxed);
        let grown = || self.grow(books);
        if looked {
            return grown().or_else(|| self.given_up_extent(books, stamp));
        }
        self.given_up_extent(books, stamp).or_else(|| {
            self.taken_until.store(freed + EXTENT, Relaxed);
            grown()
        })
    }

    fn given_up_extent(&self, books: &Books, stamp: u64) -> Option<usize> {
        (!self.is_full(stamp)).then(|| self.in_extents(|extent| self.take_extent(books, extent)))?
    }

    /// Moves the frontier, unless the disk has just refused what lies below.
    fn grow(&self, books: &Books) -> Option<usize> {
        if self.has_parked() {
            return None;
        }
        self.frontier.advance().map(|extent| books.own(self.start / EXTENT_BLOCKS + extent))
    }

    /// Returns what `find` finds first, in the extents from the cursor's on.
    fn in_extents(&self, find: impl Fn(usize) -> Option<usize>) -> Option<usize> {
        let (first, last) = (self.start / EXTENT_BLOCKS, self.last_extent()?);
        let extents = self.open().div_ceil(EXTENT_BLOCKS) - first;
        (0..extents).find_map(|step| find(first + (last - first + step) % extents))
    }

    fn last_extent(&self) -> Option<usize> {
        let first = self.start / EXTENT_BLOCKS;
        let extents = self.open().div_ceil(EXTENT_BLOCKS) - first;
        let cursor = (self.cursor.load(Relaxed) as usize / EXTENT_BLOCKS).saturating_sub(first);
        cursor.checked_rem(extents).map(|last| first + last)
    }

    fn blocks_of(&self, extent: usize) -> Range<usize> {
        extent * EXTENT_BLOCKS..((extent + 1) * EXTENT_BLOCKS).min(self.open())
    }

    /// Returns the first block of `wanted` free blocks that lie together.
    fn whole_run(&self, books: &Books, extent: usize, wanted: usize) -> Option<usize> {
        let Range { start: mut at, end } = self.blocks_of(extent);
        let mut length = 0;
        while at < end && length < wanted {
            if at.is_multiple_of(WORD_BITS) && books.held.holds_all_from(at) {
                (at, length) = (at + WORD_BITS, 0);
                continue;
            }
            length = if books.is_free(at) { length + 1 } else { 0 };
            at += 1;
        }
        (length == wanted).then(|| at - length)
    }

    /// Makes a free extent this process's own. Two that find it at one time share it.
    fn take_extent(&self, books: &Books, extent: usize) -> Option<usize> {
        self.blocks_of(extent).all(|block| books.is_free(block)).then(|| books.own(extent))
    }

    /// Takes blocks from `start` on, as far as they are free.
    fn claim_run(&self, books: &Books, start: usize, wanted: usize) -> Option<BlockRun> {
        let end = (start + wanted).min(self.open());
        let length = (start..end).take_while(|&block| books.claim(block)).count();
        (length > 0).then_some(BlockRun { start: start as u64, length })
    }

    /// Takes any free blocks, from the cursor on. Where there were none, this process looks again after a block was
    /// freed.
    fn claim_any(&self, books: &Books, wanted: usize, stamp: u64) -> Option<BlockRun> {
        if self.is_full(stamp) {
            return None;
        }
        let open = self.open();
        let first = (self.cursor.load(Relaxed) as usize).clamp(self.start, open);
        let claim = |block: usize| {
            let skip = block.is_multiple_of(WORD_BITS) && books.held.holds_all_from(block);
            if skip { Err(WORD_BITS) } else { self.claim_run(books, block, wanted).ok_or(1) }
        };
        for Range { start: mut block, end } in [first..open, self.start..first] {
            while block < end {
                match claim(block) {
                    Ok(run) => return Some(run),
                    Err(passed) => block += passed,
                }
            }
        }
        self.full.store(stamp, Relaxed);
        None
    }

    fn is_full(&self, stamp: u64) -> bool {
        self.full.load(Relaxed) == stamp
    }

    pub(super) fn park(&self, run: BlockRun) {
        self.used.fetch_sub(run.length as u64, Relaxed);
        self.lock_parked().push(run);
    }

    pub(super) fn has_parked(&self) -> bool {
        !self.lock_parked().is_empty()
    }

    /// Takes the blocks that were set aside, which the caller gives up: they count as held again.
    pub(super) fn unpark(&self) -> Vec<BlockRun> {
        let parked = std::mem::take(&mut *self.lock_parked());
        let blocks: usize = parked.iter().map(|run| run.length).sum();
        self.used.fetch_add(blocks as u64, Relaxed);
        parked
    }

    fn lock_parked(&self) -> MutexGuard<'_, Vec<BlockRun>> {
        self.parked.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
