//! Storing: pages on probation go into the pool, or to the device.

use super::staging::WereStored;
use super::write::{Arrived, Outgoing};
use super::{Engine, Workspace, lock};
use crate::memory::{MapError, Memory, PageSet, StagingSlot};
use pagetide_swap::config::WRITE_BATCH_PAGES;
use pagetide_swap::hash::PageHash;
use pagetide_swap::reclaimer::{Contents, Ending, PARTS_MAX, StoredFolio};
use pagetide_swap::{
    CLUSTER_PAGES, Counter, FOLIO_PAGES, PageIndex, Place, Scratch, Source, StoreError, StoreOutcome, Stored,
};
use std::sync::atomic::Ordering::Relaxed;

/// The one for whom a slot is stored.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum StoreFor {
    /// Reclaim: all of it. Pages for which the device has no time wait on probation.
    Reclaim,
    /// Faults that wait for room: as long as they do, and no more than [`DIRECT_FOLIOS`] for each.
    Faults,
    /// A fork: all of it. Pages for which the device has no time go back to the program.
    Fork,
}

/// The number of folios that a thread which answers faults stores for one that waits, at most: about a third of a
/// millisecond, for which the faults that it has not read wait.
const DIRECT_FOLIOS: usize = 4;
/// Faults that wait beyond so many do not make that more: who faults waits already.
const DIRECT_FAULTS: usize = 4;

/// The pages of a slot that is being stored.
struct Leaving<'a, M: Memory> {
    engine: &'a Engine<M>,
    slot: u16,
    outgoing: &'a mut Outgoing,
    scratch: &'a mut Scratch,
}

impl<M: Memory> Contents for Leaving<'_, M> {
    fn store_folio(
        &mut self,
        first: PageIndex,
        kept: &[Option<Place>; FOLIO_PAGES],
    ) -> [Stored; FOLIO_PAGES] {
        let slot = lock(&self.engine.staging[self.slot]);
        let frame = |nth| slot.frame(first.offset() + nth).expect("a cached page has its frame");
        let stored = self.engine.swap.store_folio(frame, kept, self.scratch);
        drop(slot);
        (0..).zip(stored).for_each(|(nth, stored)| self.engine.note_stored(first.plus(nth), stored));
        stored
    }

    fn store_page(&mut self, page: PageIndex, kept: Option<Place>, poor: bool) -> Stored {
        let slot = lock(&self.engine.staging[self.slot]);
        let bytes = slot.frame(page.offset()).expect("a cached page has its frame");
        let stored = self.engine.swap.store(bytes, kept, poor, self.scratch);
        self.engine.note_stored(page, stored);
        stored
    }

    fn refused(&mut self, page: PageIndex, why: StoreError, hash: PageHash) {
        let Self { engine, slot, outgoing, .. } = self;
        if why == StoreError::PoolLimit && !engine.can_write() {
            engine.count(Counter::reject_reclaim_fail, 1);
        }
        if engine.device.is_none() {
            engine.outage.refused.fetch_add(1, Relaxed);
            outgoing.refused.push(page);
            return;
        }
        let frames = lock(&engine.staging[*slot]);
        outgoing.batch.push(page, hash, frames.frame(page.offset()).expect("a cached page has its frame"));
        drop(frames);
        if outgoing.batch.len() == WRITE_BATCH_PAGES {
            engine.write(*slot, outgoing);
        }
    }
}

impl<M: Memory> Ending for Leaving<'_, M> {
    fn ended(&mut self, page: PageIndex, outcome: StoreOutcome) {
        Arrived { engine: self.engine, slot: self.slot }.ended(page, outcome);
    }

    fn swapped(&mut self, pages: usize) {
        Arrived { engine: self.engine, slot: self.slot }.swapped(pages);
    }
}

impl<M: Memory> Engine<M> {
    /// Stores pages that are still on probation in a slot: all, or as many as faults wait for. Returns the pages that
    /// became free or are on their way to the device.
    pub(super) fn store_slot(&self, slot: u16, whom: StoreFor, work: &mut Workspace) -> usize {
        let probation = self.probation();
        probation.begin_processing(slot);
        if whom != StoreFor::Fork && probation.is_late(slot) && self.is_writing() {
            // Nothing has changed.
            probation.requeue(slot);
            self.unref(slot, 1);
            return 0;
        }
        let number = probation.cluster(slot);
        let populated = lock(&self.staging[slot]).populated();
        let (mut stored, mut folios, mut is_whole) = (0, 0, true);
        // Folios whose frames were given back.
        let mut given = 0;
        let mut outgoing = Outgoing::default();
        for first in (0..CLUSTER_PAGES).step_by(FOLIO_PAGES) {
            let folio = populated.and(PageSet::range(first..first + FOLIO_PAGES));
            if !folio.is_empty() {
                let folio = self.store_folio(slot, number.page(first), folio, &mut outgoing, work);
                stored += folio.placed;
                folios += usize::from(folio.tried > 0);
                self.charge_pool();
                if whom != StoreFor::Faults {
                    self.drop_dead_frames();
                }
                let waiting = self.waiting();
                let most = DIRECT_FOLIOS * waiting.clamp(1, DIRECT_FAULTS);
                // To give frames back interrupts the other processors, and a window that finds room for one page is one
                // fault for each page of it.
                let room = self.budget.free() + ((folios - given) * FOLIO_PAGES) as i64;
                let is_enough = room >= self.parked.wanted() as i64 || folios - given >= most;
                if whom != StoreFor::Fork && waiting > 0 && is_enough {
                    // Nobody waits for the rest of the cluster.
                    given = folios;
                    self.drop_unused(slot, PARTS_MAX, WereStored::some(stored));
                    match whom {
                        // All of them are spare: the next take-out makes room.
                        _ if self.budget.free() <= 0 => {}
                        StoreFor::Faults => self.retry_waiting(work),
                        _ => self.have_waiting_retried(work),
                    }
                }
                if whom == StoreFor::Faults && (self.waiting() == 0 || folios >= most) {
                    is_whole = false;
                    break;
                }
            }
        }
        self.write(slot, &mut outgoing);
        let Outgoing { mut refused, mut deferred, sent, .. } = outgoing;
        if whom == StoreFor::Fork {
            refused.append(&mut deferred);
        }
        self.return_to_program(slot, &refused);
        // Of a part that was stored nothing is known of the rest.
        probation.set_late(slot, is_whole && !deferred.is_empty());
        deferred.iter().for_each(|&page| self.defer_store(page, slot));
        if !deferred.is_empty() {
            probation.requeue(slot);
        } else if !is_whole {
            probation.requeue_first(slot);
        }
        if probation.has_pages(slot) {
            self.drop_unused(slot, PARTS_MAX, WereStored::some(stored));
        }
        self.unref_with(slot, 1, WereStored::some(stored + sent));
        stored + sent
    }

    /// Stores those pages of a folio that are in `populated` and still on probation in a slot.
    fn store_folio(
        &self,
        slot: u16,
        first: PageIndex,
        populated: PageSet,
        outgoing: &mut Outgoing,
        work: &mut Workspace,
    ) -> StoredFolio {
        let started = self.now();
        let mut contents = Leaving { engine: self, slot, outgoing, scratch: &mut work.scratch };
        let folio = self.reclaimer.store_folio(&self.swap, slot, first, populated, &mut contents);
        if folio.new > 0 && folio.new == folio.tried {
            self.note_store_time(started, folio.new);
        }
        folio
    }

    /// Notes what storing a page takes: `pages` took the time since `started`.
    fn note_store_time(&self, started: u64, pages: usize) {
        let each = self.now().saturating_sub(started) / pages as u64;
        let mean = self.meters.store_ns.load(Relaxed);
        // Of two threads that store at a time one may be missed.
        self.meters.store_ns.store(mean - mean / 16 + each / 16, Relaxed);
    }

    /// Pages that found no place go back to the program.
    pub(super) fn return_to_program(&self, slot_id: u16, pages: &[PageIndex]) {
        for &page in pages {
            match self.swap.abandon_store(page) {
                StoreOutcome::Wanted => self.map_wanted(page, slot_id),
                StoreOutcome::Swapped => self.bring_back(page),
            }
        }
    }

    /// Brings a page that is on probation back into the program, unless a fault is faster, or it is being stored.
    pub(super) fn bring_back(&self, page: PageIndex) {
        if let Some(transfer) = self.swap.swapin_cached(page)
            && let Source::Frames { slot } = transfer.source
        {
            self.bring_from_frames(&transfer, slot, true);
        }
    }

    /// Returns the number of pages for which there was no place since the last call.
    pub fn take_refused(&self) -> usize {
        self.outage.refused.swap(0, Relaxed)
    }

    /// Ends the store of a page for which the device has no time: it stays on probation.
    fn defer_store(&self, page: PageIndex, slot: u16) {
        if self.swap.abandon_store(page) == StoreOutcome::Wanted {
            self.map_wanted(page, slot);
        }
    }

    /// Maps a page for which a fault waited until its store had ended.
    pub(super) fn map_wanted(&self, page: PageIndex, slot_id: u16) {
        self.budget.take(1);
        let mapped = {
            let slot = lock(&self.staging[slot_id]);
            self.memory.copy_from(&slot, page.offset(), 1, page)
        };
        let exists = mapped.error == Some(MapError::Exists);
        if mapped.pages == 1 || exists {
            self.swap.finish_hit(page);
            self.memory.wake_late(page, 1);
            self.unref(slot_id, 1);
        } else {
            // No memory, or the mapping is gone: the page stays on probation and the thread looks again.
            self.budget.give(1);
            self.let_go(slot_id, || self.swap.release_hit(page));
        }
        if mapped.pages == 0 {
            self.memory.wake(page, 1);
        }
        self.end_waits(page..page.plus(1));
    }

    /// Stores all pages on probation, or returns them to the program, and gives up free frames: before a fork, when no
    /// other thread of the engine works. Returns false if requests are under way, or staging is not empty yet: call it
    /// again when requests have ended.
    pub fn drain(&self, work: &mut Workspace) -> bool {
        // Each slot once a call: one whose pages could not be put back comes again.
        for _ in 0..self.probation().len() {
            let Some(slot) = self.probation().pop() else { break };
            self.store_slot(slot, StoreFor::Fork, work);
        }
        while self.drop_donor().is_some() {}
        self.drop_spare();
        self.requests() == 0 && self.probation().is_empty()
    }

    /// Gives up the address space of staging, which is empty: in a forked child, which has an engine of its own.
    pub fn abandon_staging(&self) {
        self.staging.iter().for_each(|slot| lock(slot).abandon());
    }
}
