//! Pages on probation are stored: in the pool, or on the device.

use super::requests::Pending;
use super::staging::Staged;
use super::{Engine, Workspace, lock};
use crate::memory::{MapError, Memory, PageSet, StagingSlot};
use pagetide_device::{BLOCK, Buffer, Direction, Request};
use pagetide_swap::blocks::BlockRun;
use pagetide_swap::config::WRITE_BATCH_PAGES;
use pagetide_swap::hash::PageHash;
use pagetide_swap::workingset::Shadow;
use pagetide_swap::{
    CLUSTER_PAGES, ClusterNumber, Counter, FOLIO_PAGES, PageIndex, Place, Source, State, StoreError,
    StoreOutcome, Stored,
};
use std::io::ErrorKind;
use std::sync::atomic::{Ordering::Relaxed, Ordering::SeqCst, fence};

/// Batches on their way to the device at most.
const WRITES: std::ops::RangeInclusive<i64> = 4..=8;

/// Frames of a slot are given back before the last of its pages has left if that takes no more calls.
const PARTS_MAX: usize = 64;

impl<M: Memory> Engine<M> {
    /// Whether pages can go to the device.
    pub fn can_write(&self) -> bool {
        self.device.is_some() && !self.device_failed.load(Relaxed) && !self.is_swapped_off()
    }

    /// Stores every page that is still on probation in a slot. Returns the pages that became free or are
    /// on their way to the device.
    pub(super) fn store_slot(&self, slot_id: u16, busy: Busy, work: &mut Workspace) -> usize {
        let staged = &self.staging[slot_id];
        staged.queued.store(false, SeqCst);
        if busy == Busy::Wait && staged.late.load(Relaxed) && self.is_writing() {
            // Nothing has changed.
            self.requeue(slot_id);
            self.unref(slot_id, 1);
            return 0;
        }
        let number = ClusterNumber(staged.cluster.load(Relaxed));
        let populated = lock(&staged.slot).populated();
        let mut stored = 0;
        let mut outgoing = Outgoing::default();
        for first in (0..CLUSTER_PAGES).step_by(FOLIO_PAGES) {
            let folio = populated.and(PageSet::range(first..first + FOLIO_PAGES));
            if !folio.is_empty() {
                stored += self.store_folio(slot_id, number.page(first), folio, &mut outgoing, work);
                self.charge_pool();
                if self.waiting() > 0 && busy == Busy::Wait {
                    // Nobody waits for the rest of the cluster.
                    self.drop_stored(slot_id, number);
                    self.retry_waiting(work);
                }
            }
        }
        let Outgoing { mut batch, mut unsent } = outgoing;
        stored += self.write(slot_id, &mut batch, &mut unsent);
        if busy == Busy::Refuse {
            unsent.refused.append(&mut unsent.deferred);
        }
        self.return_to_program(slot_id, &unsent.refused);
        staged.late.store(!unsent.deferred.is_empty(), Relaxed);
        unsent.deferred.iter().for_each(|&page| self.end_store(page, slot_id, None));
        if !unsent.deferred.is_empty() {
            self.requeue(slot_id);
        }
        if staged.refs.load(SeqCst) > 1 {
            self.drop_stored(slot_id, number);
        }
        self.unref(slot_id, 1);
        stored
    }

    /// Stores those of the sixteen pages from `first` on that are in `populated` and still on probation in a slot.
    /// Returns how many became free or are on their way to the device.
    fn store_folio(
        &self,
        slot_id: u16,
        first: PageIndex,
        populated: PageSet,
        outgoing: &mut Outgoing,
        work: &mut Workspace,
    ) -> usize {
        let staged = &self.staging[slot_id];
        let mut begun = [(0usize, None::<Place>); FOLIO_PAGES];
        let mut count = 0;
        if let Some(mut cluster) = self.swap.table().lock(first.cluster()) {
            for run in populated.runs() {
                self.swap.begin_store(&mut cluster, slot_id, run, |offset, kept| {
                    begun[count] = (offset, kept);
                    count += 1;
                });
            }
        }
        let started = self.now();
        let poor = *lock(&staged.poor);
        let is_poor = |offset| poor.contains(offset);
        let whole = (count == FOLIO_PAGES && !begun.iter().any(|&(offset, _)| is_poor(offset))).then(|| {
            let slot = lock(&staged.slot);
            let frame = |nth| slot.frame(first.offset() + nth).expect("a cached page has its frame");
            self.swap.store_folio(frame, &begun.map(|(_, kept)| kept), &mut work.scratch)
        });
        if self.recorder.is_some() {
            let outcomes = whole.iter().flatten();
            outcomes.zip(&begun).for_each(|(&stored, &(offset, _))| {
                self.note_stored(first.cluster().page(offset), stored);
            });
        }
        if let Some(place) = whole.as_ref().and_then(|outcomes| Stored::run(outcomes))
            && self.end_store_run(first, slot_id, place)
        {
            self.note_store_time(started, FOLIO_PAGES);
            return FOLIO_PAGES;
        }
        let Outgoing { batch, unsent } = outgoing;
        let (mut stored, mut new) = (0, 0);
        for (nth, &(offset, kept)) in begun[..count].iter().enumerate() {
            let page = first.cluster().page(offset);
            let outcome = {
                let slot = lock(&staged.slot);
                let bytes = slot.frame(offset).expect("a cached page has its frame");
                let outcome = match &whole {
                    Some(outcomes) => outcomes[nth],
                    None => {
                        let stored = self.swap.store(bytes, kept, is_poor(offset), &mut work.scratch);
                        self.note_stored(page, stored);
                        stored
                    }
                };
                if let Stored::Refused(why, hash) = outcome {
                    self.note_refusal(staged, offset, why);
                    if self.device.is_some() {
                        batch.push(page, hash, bytes);
                    }
                }
                outcome
            };
            match outcome {
                Stored::Clean(place) | Stored::New(place) => {
                    stored += 1;
                    new += usize::from(matches!(outcome, Stored::New(_)));
                    self.end_store(page, slot_id, Some(place));
                }
                Stored::Refused(..) if self.device.is_some() => {
                    if batch.pages.len() == WRITE_BATCH_PAGES {
                        stored += self.write(slot_id, batch, unsent);
                    }
                }
                Stored::Refused(..) => {
                    self.refused.fetch_add(1, Relaxed);
                    unsent.refused.push(page);
                }
            }
        }
        if new > 0 && new == count {
            self.note_store_time(started, new);
        }
        stored
    }

    /// Notes why the pool would not have a page.
    fn note_refusal(&self, staged: &Staged<M::Slot>, offset: usize, why: StoreError) {
        match why {
            StoreError::Incompressible => lock(&staged.poor).insert(offset),
            StoreError::PoolLimit if !self.can_write() => self.count(Counter::reject_reclaim_fail, 1),
            _ => {}
        }
    }

    /// Notes what storing a page takes: `pages` took the time since `started`.
    fn note_store_time(&self, started: u64, pages: usize) {
        let each = self.now().saturating_sub(started) / pages as u64;
        let mean = self.store_ns.load(Relaxed);
        // Only reclaim stores, or a fork while reclaim is frozen.
        self.store_ns.store(mean - mean / 16 + each / 16, Relaxed);
    }

    /// Ends the stores of a folio at once. False if they must end one by one.
    fn end_store_run(&self, first: PageIndex, slot_id: u16, place: Place) -> bool {
        let shadow = Shadow(self.staging[slot_id].shadow.load(Relaxed));
        let ended = self.swap.finish_store_run(first, FOLIO_PAGES, place, shadow);
        if ended {
            self.unref(slot_id, FOLIO_PAGES);
        }
        ended
    }

    /// Gives back the frames of pages that have left a slot, while others still wait there for the device.
    /// The caller holds a reference of the slot.
    fn drop_stored(&self, slot_id: u16, number: ClusterNumber) {
        let staged = &self.staging[slot_id];
        let mut kept = lock(&staged.slot).populated();
        if let Some(cluster) = self.swap.table().lock(number) {
            for offset in kept.iter() {
                let word = cluster.get(offset);
                if word.state() != State::Cached || word.slot() != slot_id {
                    kept.remove(offset);
                }
            }
        }
        // No page comes into a slot but by a take-out, for which it must be empty: what has left stays away.
        if kept.runs().count() <= PARTS_MAX {
            self.drop_bytes(&mut lock(&staged.slot), kept);
        }
    }

    /// Pages that found no place go back to the program.
    fn return_to_program(&self, slot_id: u16, pages: &[PageIndex]) {
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

    /// Pages for which there was no place since the last call.
    pub fn take_refused(&self) -> usize {
        self.refused.swap(0, Relaxed)
    }

    fn end_store(&self, page: PageIndex, slot_id: u16, place: Option<Place>) {
        let outcome = match place {
            Some(place) => {
                let shadow = Shadow(self.staging[slot_id].shadow.load(Relaxed));
                self.swap.finish_store(page, place, shadow)
            }
            None => self.swap.abandon_store(page),
        };
        match outcome {
            StoreOutcome::Wanted => self.map_wanted(page, slot_id),
            StoreOutcome::Swapped if place.is_some() => drop(self.unref(slot_id, 1)),
            StoreOutcome::Swapped => {}
        }
    }

    /// Maps a page for which a fault waited until its store had ended.
    fn map_wanted(&self, page: PageIndex, slot_id: u16) {
        self.budget.take(1);
        let mapped = {
            let slot = lock(&self.staging[slot_id].slot);
            self.memory.copy_from(&slot, page.offset(), 1, page)
        };
        let exists = mapped.error == Some(MapError::Exists);
        if mapped.pages == 1 || exists {
            self.swap.finish_hit(page);
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

    /// Whether as many writes are under way as may be: what they write is in memory twice, which must not be a large
    /// part of the memory of one process among many.
    pub(super) fn is_writing(&self) -> bool {
        let most = (self.high.load(Relaxed) / WRITE_BATCH_PAGES as i64).clamp(*WRITES.start(), *WRITES.end());
        self.requests.writes() as i64 >= most
    }

    /// Blocks to write to, while the device is in use.
    pub(super) fn allocate(&self, count: usize) -> Option<BlockRun> {
        if self.full.is_due(self.now()) {
            self.swap.blocks().unpark();
        }
        let Some(run) = self.swap.blocks().allocate(count) else {
            self.full.note(self.now());
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

    /// Sends a batch of refused pages to the device. Returns how many are on their way.
    fn write(&self, slot_id: u16, batch: &mut Batch, unsent: &mut Unsent) -> usize {
        let mut sent = 0;
        while !batch.pages.is_empty() {
            let busy = self.is_writing();
            let room = !busy && self.can_write();
            let run = if room { self.allocate(batch.pages.len()) } else { None };
            let Some(run) = run else {
                // A device that is busy has room later.
                self.refused.fetch_add(if busy { 0 } else { batch.pages.len() }, Relaxed);
                let later = if busy { &mut unsent.deferred } else { &mut unsent.refused };
                later.extend(batch.pages.drain(..).map(|(page, _)| page));
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
            let token = self.requests.begin(Pending::Store { slot: slot_id, pages, block: run.start });
            let request = Request { token, direction: Direction::Write, block: run.start, buffer };
            if self.device.as_ref().expect("checked by the caller").submit(request).is_err() {
                if let (Pending::Store { pages, .. }, _ended) = self.requests.end(token) {
                    unsent.deferred.extend(pages);
                }
                self.free_blocks(run.start, count);
            } else {
                sent += count;
            }
        }
        sent
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
                self.full.end();
                self.count(Counter::pswpout, pages.len());
                let mut nth = 0;
                while let Some(&page) = pages.get(nth) {
                    let place = Place::Device(block + nth as u64);
                    // They ascend.
                    let last = page.plus(FOLIO_PAGES as u64 - 1);
                    let whole = page.offset().is_multiple_of(FOLIO_PAGES)
                        && pages.get(nth + FOLIO_PAGES - 1) == Some(&last);
                    if whole && self.end_store_run(page, slot_id, place) {
                        nth += FOLIO_PAGES;
                    } else {
                        self.end_store(page, slot_id, Some(place));
                        nth += 1;
                    }
                }
            }
            Err(error) => {
                self.refused.fetch_add(pages.len(), Relaxed);
                self.write_failed(&error, BlockRun { start: block, length: pages.len() });
                self.return_to_program(slot_id, pages);
            }
        }
    }

    /// A write to blocks failed, of which nothing is used. Where the disk has no room they are not tried again for a
    /// while.
    pub(super) fn write_failed(&self, error: &std::io::Error, run: BlockRun) {
        if matches!(error.kind(), ErrorKind::StorageFull | ErrorKind::QuotaExceeded) {
            self.count(Counter::write_full, 1);
            self.swap.blocks().park(run);
            self.full.refuse(self.now());
            return;
        }
        self.free_blocks(run.start, run.length);
        self.count(Counter::write_error, 1);
        if !self.device_failed.swap(true, Relaxed) {
            pagetide_sys::task::say(&format!(
                "cannot write to the swap file: {error}; pages stay in memory from now on (--swap-dir, --swap-size)"
            ));
        }
    }

    /// Stores or returns everything that is on probation and gives up free frames: before a fork, when
    /// no other thread of the engine works. False if requests are under way, or staging is not empty yet:
    /// call again when they have ended.
    pub fn drain(&self, work: &mut Workspace) -> bool {
        // Each slot once a call: one whose pages could not be put back comes again.
        for _ in 0..self.staging.on_probation() {
            let Some(slot) = self.staging.take_oldest() else { break };
            self.store_slot(slot, Busy::Refuse, work);
        }
        while self.drop_donor().is_some() {}
        self.requests() == 0 && self.staging.is_empty()
    }

    /// In a forked child, which has its own engine: gives up the address space of staging, which the fork found
    /// empty.
    pub fn abandon_staging(&self) {
        self.staging.iter().for_each(|staged| lock(&staged.slot).abandon());
    }
}

/// What becomes of pages for which the device has no time.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Busy {
    /// They wait on probation.
    Wait,
    /// They go back to the program.
    Refuse,
}

/// Pages that were not sent to the device.
#[derive(Default)]
struct Unsent {
    /// There is no place for them.
    refused: Vec<PageIndex>,
    /// There will be.
    deferred: Vec<PageIndex>,
}

/// Pages gathered for one write.
#[derive(Default)]
struct Batch {
    pages: Vec<(PageIndex, PageHash)>,
    /// Their bytes, in its first pages.
    buffer: Option<Buffer>,
}

/// What does not go to the pool.
#[derive(Default)]
struct Outgoing {
    batch: Batch,
    unsent: Unsent,
}

impl Batch {
    pub(super) fn push(&mut self, page: PageIndex, hash: PageHash, bytes: &[u8]) {
        let buffer = self.buffer.get_or_insert_with(|| Buffer::new(WRITE_BATCH_PAGES));
        buffer[self.pages.len() * BLOCK..][..BLOCK].copy_from_slice(bytes);
        self.pages.push((page, hash));
    }

    /// The bytes of the first `count` pages, which are gone from the list already.
    pub(super) fn split_off(&mut self, count: usize) -> Buffer {
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
