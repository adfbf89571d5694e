//! Pages of a replayed process that leave: what [`pagetide_swap::reclaimer`] decides is done by counting.

use super::events::Steps;
use super::setting::Setting;
use super::spans::Spans;
use pagetide::engine::Limits;
use pagetide_page::{CLUSTER_PAGES, ClusterNumber, FOLIO_PAGES, PageIndex, PageSet};
use pagetide_swap::blocks::Blocks;
use pagetide_swap::config::WRITE_BATCH_PAGES;
use pagetide_swap::hash::{HashKey, PageHash};
use pagetide_swap::reclaimer::{
    Contents, Ending, Mover, PARTS_MAX, Progress, Reclaimer, frames_in_use, writes_max,
};
use pagetide_swap::swap::{Keys, Victim, Written};
use pagetide_swap::{Counter, Counters, Handle, Place, State, StoreError, StoreOutcome, Stored, Swap, Word};
use std::cell::RefCell;
use std::ops::Range;
use std::sync::Arc;

/// A write that has not arrived.
enum Write {
    /// Pages of a slot.
    Store { slot: u16, pages: Vec<PageIndex>, block: u64 },
    /// Entries of the pool.
    Writeback { entries: Vec<(PageIndex, Handle, PageHash)>, block: u64 },
}

/// What there is: the subsystem, contents of pages as far as they are known, room.
pub(super) struct World {
    pub(super) swap: Arc<Swap<Spans>>,
    pub(super) limits: Limits,
    /// The page behind the last.
    pub(super) end: PageIndex,
    /// Pages of tables and hashes, at the last look.
    pub(super) metadata: i64,
    /// Whether faults are answered though there is no room.
    pub(super) overdrawn: bool,
    memory: i64,
    has_device: bool,
    /// What each page takes, and which of its contents that is.
    sizes: Vec<u16>,
    versions: Vec<u32>,
    /// Pages of each cluster that were not written, and did not come in, since it was watched.
    unwritten: Vec<PageSet>,
    /// Pages of each cluster that were the kernel's zero page when they came in, and were not written since. Of pages that are
    /// not in the program it says nothing.
    zero: Vec<PageSet>,
    /// The frames of each slot that hold a page, or did.
    frames: Vec<PageSet>,
    /// Those of them that are the zero page.
    zero_frames: Vec<PageSet>,
    /// How many frames take memory.
    frame_count: i64,
    writes: Vec<Write>,
    entries: Vec<(PageIndex, Handle)>,
}

impl World {
    pub(super) fn new(steps: &Steps, setting: &Setting, limits: Limits) -> Self {
        // Room for every page, and as many copies.
        let blocks = if setting.device_ns > 0.0 { 2 * steps.pages as usize + 4096 } else { 0 };
        // Contents are told apart by numbers: there is nothing to hide or to prove.
        let keys = Keys { hash: HashKey::new([0; 4]), cipher: None };
        Self {
            swap: Arc::new(Swap::new(
                Spans::default(),
                Blocks::private(blocks),
                keys,
                setting.config,
                Counters::private(),
            )),
            limits,
            end: PageIndex(steps.pages.into()),
            metadata: 0,
            overdrawn: false,
            memory: setting.memory as i64,
            has_device: blocks > 0,
            sizes: steps.sizes.clone(),
            versions: vec![0; steps.pages as usize],
            unwritten: vec![PageSet::default(); (steps.pages as usize).div_ceil(CLUSTER_PAGES)],
            zero: vec![PageSet::default(); (steps.pages as usize).div_ceil(CLUSTER_PAGES)],
            frames: vec![PageSet::default(); limits.slots().into()],
            zero_frames: vec![PageSet::default(); limits.slots().into()],
            frame_count: 0,
            writes: Vec::new(),
            entries: Vec::new(),
        }
    }

    pub(super) fn has_device(&self) -> bool {
        self.has_device
    }

    /// Pages that are free.
    pub(super) fn free(&self) -> i64 {
        let pool = self.swap.zswap().pool_pages() as i64;
        self.memory - self.swap.present() - self.frame_count - pool - self.metadata
    }

    /// Keeps those frames of a slot that are in `used`.
    pub(super) fn keep_frames(&mut self, slot: u16, used: PageSet) {
        let slot = usize::from(slot);
        let (frames, zero) = (self.frames[slot], self.zero_frames[slot]);
        let dropped = frames.minus(used).minus(zero);
        self.frame_count -= dropped.len() as i64;
        (self.frames[slot], self.zero_frames[slot]) = (frames.and(used), zero.and(used));
    }

    /// Puts pages that were taken out of a cluster into the frames of a slot.
    fn fill_frames(&mut self, slot: u16, number: ClusterNumber, pages: PageSet) {
        let zero = self.zero[number.0 as usize].and(pages);
        self.frames[usize::from(slot)] = pages;
        self.zero_frames[usize::from(slot)] = zero;
        self.frame_count += pages.minus(zero).len() as i64;
    }

    /// Notes that pages have come in, as the zero page or not.
    pub(super) fn note_zero(&mut self, pages: Range<PageIndex>, is_zero: bool) {
        for page in (pages.start.0..pages.end.0).map(PageIndex) {
            let zero = &mut self.zero[page.cluster().0 as usize];
            if is_zero { zero.insert(page.offset()) } else { zero.remove(page.offset()) }
        }
    }

    /// Notes that pages have moved from the frames of a slot to the program.
    pub(super) fn move_from(&mut self, slot: u16, pages: Range<PageIndex>) {
        let first = pages.start.offset();
        let moved = PageSet::range(first..first + (pages.end.0 - pages.start.0) as usize);
        let zero = &mut self.zero[pages.start.cluster().0 as usize];
        *zero = zero.minus(moved).or(self.zero_frames[usize::from(slot)].and(moved));
        self.keep_frames(slot, PageSet::range(0..CLUSTER_PAGES).minus(moved));
    }

    /// Pages of a slot are on probation no more. With the last of them its frames are free.
    pub(super) fn release(&mut self, reclaimer: &Reclaimer, slot: u16, pages: usize) {
        if reclaimer.probation.release(slot, pages) {
            self.keep_frames(slot, PageSet::default());
            reclaimer.probation.add_empty(slot);
        }
    }

    /// Whether there is room for so many pages.
    pub(super) fn has_room(&self, pages: usize) -> bool {
        self.free() >= pages as i64 || (self.overdrawn && pages == 1)
    }

    /// Notes that a page is written to.
    pub(super) fn change(&mut self, page: PageIndex) {
        self.versions[page.0 as usize] += 1;
        self.note_written(page..page.plus(1));
    }

    /// Notes that pages are written, or come in.
    pub(super) fn note_written(&mut self, pages: Range<PageIndex>) {
        for page in pages.start.0..pages.end.0 {
            let page = PageIndex(page);
            self.unwritten[page.cluster().0 as usize].remove(page.offset());
        }
    }

    /// Notes that a page has other contents, which compress to so many bytes.
    pub(super) fn resize(&mut self, page: PageIndex, bytes: u16) {
        self.sizes[page.0 as usize] = bytes;
        self.change(page);
    }

    fn size(&self, page: PageIndex) -> usize {
        self.sizes[page.0 as usize].into()
    }

    /// Stands for a page's contents.
    fn hash(&self, page: PageIndex) -> PageHash {
        [self.versions[page.0 as usize], 1, page.0 as u32]
    }

    fn is_writing(&self) -> bool {
        self.writes.len() >= writes_max(self.limits.high)
    }

    fn allocate(&self, pages: usize) -> Option<pagetide_swap::blocks::BlockRun> {
        if self.has_device { self.swap.blocks().allocate(pages) } else { None }
    }
}

/// Moves pages for one step.
pub(super) struct Counting<'a> {
    reclaimer: &'a Reclaimer,
    world: &'a mut World,
}

impl<'a> Counting<'a> {
    pub(super) fn new(reclaimer: &'a Reclaimer, world: &'a mut World) -> Self {
        Self { reclaimer, world }
    }

    /// Does one step, and lets what it has written arrive.
    pub(super) fn step(mut self) -> Progress {
        let swap = Arc::clone(&self.world.swap);
        let progress = self.reclaimer.step(&swap, &mut self);
        self.complete();
        progress
    }

    fn release(&mut self, slot: u16, pages: usize) {
        self.world.release(self.reclaimer, slot, pages);
    }

    /// What was written has arrived.
    fn complete(&mut self) {
        let swap = Arc::clone(&self.world.swap);
        for write in std::mem::take(&mut self.world.writes) {
            match write {
                Write::Store { slot, pages, block } => {
                    swap.counters().add(Counter::pswpout, pages.len() as u64);
                    let mut arrived = Arrived { counting: self, slot };
                    arrived.counting.reclaimer.end_written(&swap, slot, &pages, block, &mut arrived);
                }
                Write::Writeback { entries, block } => {
                    swap.counters().add(Counter::pswpout, entries.len() as u64);
                    for (&(owner, handle, hash), block) in entries.iter().zip(block..) {
                        if !swap.finish_writeback(owner, handle, hash, Some(block)) {
                            swap.blocks().free(block);
                        }
                    }
                }
            }
        }
    }

    /// A page for which there is no place goes back to the program.
    fn bring_back(&mut self, slot: u16, page: PageIndex) {
        let swap = &self.world.swap;
        swap.abandon_store(page);
        if let Some(transfer) = swap.swapin_cached(page) {
            swap.finish_swapin(&transfer, 1, false);
            self.world.note_written(transfer.pages());
            self.world.move_from(slot, transfer.pages());
            self.release(slot, 1);
        }
    }
}

/// The pages of a cluster that are in the program, by their words.
fn present(word: impl Fn(usize) -> Word) -> PageSet {
    (0..CLUSTER_PAGES).filter(|&offset| word(offset).state() == State::Present).collect()
}

impl Mover for Counting<'_> {
    fn take_out(&mut self) -> Option<usize> {
        let probation = &self.reclaimer.probation;
        let slot = probation.take_empty()?;
        let swap = Arc::clone(&self.world.swap);
        let unwritten = RefCell::new(&mut self.world.unwritten);
        let victim = swap.next_victim(|asked| {
            let (number, watch) = asked.cluster();
            let unwritten = &mut unwritten.borrow_mut()[number.0 as usize];
            let present = match asked {
                Written::Of(cluster) => present(|offset| cluster.get(offset)),
                Written::Watch(number) => present(|offset| swap.table().peek(number.page(offset))),
            };
            let written = present.minus(*unwritten);
            if watch {
                *unwritten = unwritten.or(written);
            }
            Some(written)
        });
        let Some(Victim { mut cluster, hot }) = victim else {
            probation.put_back_empty(slot);
            return None;
        };
        let present = present(|offset| cluster.get(offset)).minus(hot);
        let is_there = |offset| present.contains(offset);
        let out = swap.taken_out(&mut cluster, slot, 0..CLUSTER_PAGES, is_there, |_| false);
        let number = cluster.number();
        probation.begin(slot, number, out.taken, out.shadow);
        drop(cluster);
        probation.push(slot);
        self.world.fill_frames(slot, number, present);
        Some(out.taken)
    }

    fn store(&mut self, slot: u16) -> usize {
        let probation = &self.reclaimer.probation;
        probation.begin_processing(slot);
        if probation.is_late(slot) && self.world.is_writing() {
            probation.requeue(slot);
            self.release(slot, 1);
            return 0;
        }
        let (number, populated) = (probation.cluster(slot), self.world.frames[usize::from(slot)]);
        let swap = Arc::clone(&self.world.swap);
        let reclaimer = self.reclaimer;
        let mut leaving = Leaving { counting: self, slot, outgoing: Outgoing::default() };
        let mut stored = 0;
        for first in (0..CLUSTER_PAGES).step_by(FOLIO_PAGES) {
            let folio = populated.and(PageSet::range(first..first + FOLIO_PAGES));
            if !folio.is_empty() {
                stored += reclaimer.store_folio(&swap, slot, number.page(first), folio, &mut leaving).placed;
            }
        }
        leaving.write();
        let Outgoing { refused, deferred, sent, .. } = leaving.outgoing;
        refused.iter().for_each(|&page| self.bring_back(slot, page));
        probation.set_late(slot, !deferred.is_empty());
        deferred.iter().for_each(|&page| _ = swap.abandon_store(page));
        if !deferred.is_empty() {
            probation.requeue(slot);
        }
        if probation.has_pages(slot) {
            let used = frames_in_use(&swap, slot, number, self.world.frames[usize::from(slot)]);
            if used.runs().count() <= PARTS_MAX {
                self.world.keep_frames(slot, used);
            }
        }
        self.release(slot, 1);
        stored + sent
    }

    fn can_write_back(&self) -> bool {
        self.world.has_device && !self.world.is_writing()
    }

    fn write_back(&mut self, entries: &[(PageIndex, Handle)]) -> usize {
        let mut sent = 0;
        for chunk in entries.chunks(WRITE_BATCH_PAGES) {
            let room = if self.world.is_writing() { None } else { self.world.allocate(chunk.len()) };
            let Some(run) = room else { continue };
            let mut begun = Vec::with_capacity(run.length);
            for &(owner, handle) in chunk {
                if begun.len() < run.length && self.world.swap.claim_writeback(owner, handle) {
                    let hash = self.world.hash(owner);
                    self.world.swap.seal(run.start + begun.len() as u64, hash, &mut []);
                    begun.push((owner, handle, hash));
                }
            }
            let unused = run.start + begun.len() as u64..run.start + run.length as u64;
            unused.for_each(|block| self.world.swap.blocks().free(block));
            sent += begun.len();
            if !begun.is_empty() {
                self.world.writes.push(Write::Writeback { entries: begun, block: run.start });
            }
        }
        sent
    }

    fn is_waited_for(&self) -> bool {
        false
    }

    fn drop_spare_frames(&mut self) -> usize {
        0
    }

    fn pool_changed(&mut self) {}

    fn entries(&mut self) -> &mut Vec<(PageIndex, Handle)> {
        &mut self.world.entries
    }
}

/// Pages of a slot that do not go to the pool.
#[derive(Default)]
struct Outgoing {
    batch: Vec<(PageIndex, PageHash)>,
    refused: Vec<PageIndex>,
    deferred: Vec<PageIndex>,
    sent: usize,
}

/// The pages of a slot that is being stored.
struct Leaving<'a, 'b> {
    counting: &'a mut Counting<'b>,
    slot: u16,
    outgoing: Outgoing,
}

impl Leaving<'_, '_> {
    /// Writes the pages that are gathered to the device.
    fn write(&mut self) {
        let Outgoing { batch, refused, deferred, sent } = &mut self.outgoing;
        let world = &mut *self.counting.world;
        while !batch.is_empty() {
            let busy = world.has_device && world.is_writing();
            let run = if busy { None } else { world.allocate(batch.len()) };
            let Some(run) = run else {
                let unsent = if busy { deferred } else { refused };
                unsent.extend(batch.drain(..).map(|(page, _)| page));
                return;
            };
            let mut pages = Vec::with_capacity(run.length);
            for ((page, hash), block) in batch.drain(..run.length).zip(run.start..) {
                world.swap.seal(block, hash, &mut []);
                pages.push(page);
            }
            *sent += pages.len();
            world.writes.push(Write::Store { slot: self.slot, pages, block: run.start });
        }
    }
}

impl Contents for Leaving<'_, '_> {
    fn store_folio(
        &mut self,
        first: PageIndex,
        kept: &[Option<Place>; FOLIO_PAGES],
    ) -> [Stored; FOLIO_PAGES] {
        let world = &self.counting.world;
        let page = |nth: usize| first.plus(nth as u64);
        let sizes = std::array::from_fn(|nth| world.size(page(nth)));
        let hashes = std::array::from_fn(|nth| world.hash(page(nth)));
        world.swap.store_sized(&sizes, &hashes, kept)
    }

    fn store_page(&mut self, page: PageIndex, kept: Option<Place>, poor: bool) -> Stored {
        let world = &self.counting.world;
        if poor {
            return Stored::Refused(StoreError::Incompressible, world.hash(page));
        }
        let [stored] = world.swap.store_sized(&[world.size(page)], &[world.hash(page)], &[kept]);
        stored
    }

    fn refused(&mut self, page: PageIndex, why: StoreError, hash: PageHash) {
        let world = &self.counting.world;
        if why == StoreError::PoolLimit && !world.has_device {
            world.swap.counters().add(Counter::reject_reclaim_fail, 1);
        }
        self.outgoing.batch.push((page, hash));
        if self.outgoing.batch.len() == WRITE_BATCH_PAGES {
            self.write();
        }
    }
}

impl Ending for Leaving<'_, '_> {
    fn ended(&mut self, page: PageIndex, outcome: StoreOutcome) {
        Arrived { counting: self.counting, slot: self.slot }.ended(page, outcome);
    }

    fn swapped(&mut self, pages: usize) {
        self.counting.release(self.slot, pages);
    }
}

/// Pages of a slot whose stores end.
struct Arrived<'a, 'b> {
    counting: &'a mut Counting<'b>,
    slot: u16,
}

impl Ending for Arrived<'_, '_> {
    fn ended(&mut self, _: PageIndex, outcome: StoreOutcome) {
        debug_assert_eq!(outcome, StoreOutcome::Swapped, "nobody asks meanwhile");
        self.swapped(1);
    }

    fn swapped(&mut self, pages: usize) {
        self.counting.release(self.slot, pages);
    }
}
