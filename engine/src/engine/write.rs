//! Pages are written to the device.

use super::Engine;
use super::requests::Pending;
use super::staging::WereStored;
use crate::memory::Memory;
use pagetide_device::{BLOCK, Buffer, Direction, Request, Told};
use pagetide_swap::blocks::BlockRun;
use pagetide_swap::config::WRITE_BATCH_PAGES;
use pagetide_swap::frontier::TIERS;
use pagetide_swap::hash::PageHash;
use pagetide_swap::reclaimer::{Ending, writes_max};
use pagetide_swap::{Counter, PageIndex, StoreOutcome};
use std::io::ErrorKind;
use std::sync::atomic::{Ordering::Relaxed, Ordering::SeqCst, fence};

/// Pages gathered for one write.
#[derive(Default)]
pub(super) struct Batch {
    pages: Vec<(PageIndex, PageHash)>,
    /// Their bytes, in its first pages.
    buffer: Option<Buffer>,
}

/// Pages of a slot that do not go to the pool.
#[derive(Default)]
pub(super) struct Outgoing {
    /// Pages that wait for others, to be written with them.
    pub(super) batch: Batch,
    /// Pages for which there is no place.
    pub(super) refused: Vec<PageIndex>,
    /// Pages for which there will be a place later.
    pub(super) deferred: Vec<PageIndex>,
    /// The number of pages that are on their way.
    pub(super) sent: usize,
}

impl Batch {
    pub(super) fn len(&self) -> usize {
        self.pages.len()
    }

    pub(super) fn push(&mut self, page: PageIndex, hash: PageHash, bytes: &[u8]) {
        let buffer = self.buffer.get_or_insert_with(|| Buffer::new(WRITE_BATCH_PAGES));
        buffer[self.pages.len() * BLOCK..][..BLOCK].copy_from_slice(bytes);
        self.pages.push((page, hash));
    }

    /// Returns the bytes of the first `count` pages, which are gone from the list already.
    fn split_off(&mut self, count: usize) -> Buffer {
        let mut all = self.buffer.take().expect("there are pages");
        if self.pages.is_empty() {
            all.truncate(count);
            return all;
        }
        let mut first = Buffer::new(count);
        let (head, rest) = (count * BLOCK, self.pages.len() * BLOCK);
        first.copy_from_slice(&all[..head]);
        all.copy_within(head..head + rest, 0);
        self.buffer = Some(all);
        first
    }
}

/// Pages of a slot whose stores end.
pub(super) struct Arrived<'a, M: Memory> {
    pub(super) engine: &'a Engine<M>,
    pub(super) slot: u16,
}

impl<M: Memory> Ending for Arrived<'_, M> {
    fn ended(&mut self, page: PageIndex, outcome: StoreOutcome) {
        match outcome {
            StoreOutcome::Wanted => self.engine.map_wanted(page, self.slot),
            StoreOutcome::Swapped => self.swapped(1),
        }
    }

    fn swapped(&mut self, pages: usize) {
        self.engine.unref_with(self.slot, pages, WereStored::Yes);
    }
}

impl<M: Memory> Engine<M> {
    /// Returns whether pages can go to the device.
    pub fn can_write(&self) -> bool {
        self.device.is_some() && !self.outage.failed.load(Relaxed) && !self.is_swapped_off()
    }

    /// Returns whether as many writes are under way as may be: to the tier that is to take the next (one that stands still
    /// does not hold up those to the other), and twice as many in all, for that tier may be full.
    pub(super) fn is_writing(&self) -> bool {
        let Some(next) = self.swap.blocks().next_tier() else { return false };
        let most = writes_max(self.watermarks.high());
        self.requests.writes_to(next) >= most || self.writes() >= 2 * most
    }

    /// Returns the number of writes under way.
    pub fn writes(&self) -> usize {
        (0..TIERS).map(|tier| self.requests.writes_to(tier)).sum()
    }

    /// Blocks to write to, while the device is in use.
    pub(super) fn allocate(&self, count: usize) -> Option<BlockRun> {
        let now = self.now();
        let is_due = |tier: &usize| self.outage.tiers[*tier].full.is_due(now);
        (0..self.swap.blocks().tiers()).filter(is_due).for_each(|tier| self.swap.blocks().unpark(tier));
        let Some(run) = self.swap.blocks().allocate(count) else {
            self.tier_outages().for_each(|tier| tier.full.note(now));
            return None;
        };
        // Either this is seen, or whoever takes the device out of use sees that blocks are held.
        fence(SeqCst);
        if self.is_swapped_off() {
            self.free_blocks(run.start, run.length);
            return None;
        }
        Some(run)
    }

    pub(super) fn free_blocks(&self, first: u64, count: usize) {
        (first..).take(count).for_each(|block| self.swap.blocks().free(block));
    }

    /// Sends the pages that are gathered to the device.
    pub(super) fn write(&self, slot: u16, outgoing: &mut Outgoing) {
        let Outgoing { batch, refused, deferred, sent } = outgoing;
        while !batch.pages.is_empty() {
            let busy = self.is_writing();
            let room = !busy && self.can_write();
            let run = if room { self.allocate(batch.pages.len()) } else { None };
            let Some(run) = run else {
                // A device that is busy has room later.
                self.outage.refused.fetch_add(if busy { 0 } else { batch.pages.len() }, Relaxed);
                let unsent = if busy { deferred } else { refused };
                unsent.extend(batch.pages.drain(..).map(|(page, _)| page));
                batch.buffer = None;
                break;
            };
            let pages: Vec<_> = batch.pages.drain(..run.length).collect();
            let mut buffer = batch.split_off(run.length);
            for ((block, (_, hash)), page) in (run.start..).zip(&pages).zip(buffer.chunks_exact_mut(BLOCK)) {
                self.swap.seal(block, *hash, page);
            }
            let pages: Vec<PageIndex> = pages.into_iter().map(|(page, _)| page).collect();
            let count = pages.len();
            let token = self.requests.begin(Pending::Store { slot, pages, block: run.start });
            let request = Request { token, direction: Direction::Write, block: run.start, buffer };
            if self.device.as_ref().expect("checked by the caller").submit(request).is_err() {
                if let (Pending::Store { pages, .. }, _ended) = self.requests.end(token) {
                    deferred.extend(pages);
                }
                self.free_blocks(run.start, count);
            } else {
                *sent += count;
            }
        }
    }

    pub(super) fn store_ended(
        &self,
        slot_id: u16,
        pages: &[PageIndex],
        block: u64,
        result: std::io::Result<()>,
    ) {
        match result {
            Ok(()) => {
                self.tier_outage(block).full.end();
                self.count(Counter::pswpout, pages.len());
                let mut arrived = Arrived { engine: self, slot: slot_id };
                self.reclaimer.end_written(&self.swap, slot_id, pages, block, &mut arrived);
            }
            Err(error) => {
                self.outage.refused.fetch_add(pages.len(), Relaxed);
                self.write_failed(&error, BlockRun { start: block, length: pages.len() });
                self.return_to_program(slot_id, pages);
            }
        }
    }

    /// A write to blocks failed, of which nothing is used. Where their tier has no room they are not tried again for a
    /// while.
    pub(super) fn write_failed(&self, error: &std::io::Error, run: BlockRun) {
        let tier = self.swap.blocks().tier_of(run.start);
        if matches!(error.kind(), ErrorKind::StorageFull | ErrorKind::QuotaExceeded) {
            if tier == 0 {
                // What a server refuses that is the second tier its process counts.
                self.count(Counter::write_full, 1);
            }
            self.swap.blocks().park(run);
            if !self.is_full() {
                pagetide_sys::log!(Info, "the device has no room: {error}");
            }
            self.outage.tiers[tier].full.refuse(self.now());
            return;
        }
        self.free_blocks(run.start, run.length);
        self.count(Counter::write_error, 1);
        self.swap.blocks().close(tier);
        if !self.outage.tiers[tier].failed.swap(true, Relaxed) {
            let none = self.tier_outages().all(|tier| tier.failed.load(Relaxed));
            self.outage.failed.store(none, Relaxed);
            let Told { name, options, .. } = self.device.as_ref().expect("it was written to").told(run.start);
            pagetide_sys::log!(Error, "a write to the {name} failed: {error}");
            let then = if none { "stay in memory" } else { "go to the other tier" };
            pagetide_sys::task::say(&format!(
                "cannot write to the {name}: {error}; pages {then} from now on ({options})"
            ));
        }
    }
}
