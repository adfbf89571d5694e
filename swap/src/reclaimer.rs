//! The reclaimer, which decides what leaves next, step by step, and in which order places are tried.
//!
//! A step decides and moves no byte: its caller moves them, by [`Mover`] and [`Contents`]. The engine does so with a
//! program's memory and a device, a replay by counting.
//!
//! A step has five parts, in this order. A part for which there is no need is left out.
//! 1. *Trim*: a pool that nears its limit drops kept copies, or writes entries back.
//! 2. *Take out*: unless enough is on probation, the next victim leaves the program.
//! 3. *Press*: for what has left the program the pool gives its part, as the shrinker has it.
//! 4. *Store*: if too much is on probation, or nothing could be taken out, the oldest slot is stored.
//! 5. *Shrink*: if nothing else can leave, the pool gives what it can.

use crate::error::StoreError;
use crate::hash::PageHash;
use crate::place::{Handle, Place};
use crate::probation::Probation;
use crate::swap::{PoolScope, StoreOutcome, Stored, Swap};
use crate::word::State;
use crate::zswap::pool::SpanSource;
use pagetide_page::{CLUSTER_PAGES, ClusterNumber, FOLIO_PAGES, PageIndex, PageSet};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Entries that one step drops or writes back at most to make room in the pool: more than a step stores.
pub const TRIM_ENTRIES: usize = 2 * CLUSTER_PAGES;
/// Entries of the pool that the shrinker's hand passes in one step of that at most.
const TRIM_SCAN: usize = 16 * TRIM_ENTRIES;
/// Entries in flight to the device for each page that becomes free by them, about.
const ENTRIES_A_PAGE: usize = 4;
/// Clusters whose entries in the pool one step moves together at most.
const COMPACT_CLUSTERS: usize = 32;
/// Frames of pages that were stored are given back before the last page of their slot has left, if those that stay are in
/// no more parts.
pub const PARTS_MAX: usize = 64;
/// Entries that one scan finds at most: a few batches of writes.
const SCAN_ROOM: usize = 4 * crate::config::WRITE_BATCH_PAGES;

/// Returns the number of batches of writes that are on their way to the device at most, where `high` pages are kept
/// free. Pages under way are in memory twice, which must not be a large part of the memory of one process among many.
pub fn writes_max(high: i64) -> usize {
    (high / crate::config::WRITE_BATCH_PAGES as i64).clamp(4, 8) as usize
}

/// The outcome of one step of reclaim.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Progress {
    /// This many pages became free, or are being written.
    Freed(usize),
    /// Pages moved on, but none is free yet.
    Moved,
    /// Pages that could leave wait for the device, which has as many writes under way as it may.
    Waits,
    /// No page could leave.
    Nothing,
}

/// The hands of the reclaimer: it moves the pages about which a step of reclaim decides.
pub trait Mover {
    /// Takes the next victim ([`Swap::victim`]) out of the program, onto probation. Returns how many pages left;
    /// `None` if there is no victim, or no slot is empty.
    fn take_out(&mut self) -> Option<usize>;

    /// Stores the pages that are still on probation in a slot. Returns how many pages became free or are being written.
    fn store(&mut self, slot: u16) -> usize;

    /// Returns whether entries of the pool can be written to the device just now.
    fn can_write_back(&self) -> bool;

    /// Begins to write entries of the pool to the device. Returns how many are on their way.
    fn write_back(&mut self, entries: &[(PageIndex, Handle)]) -> usize;

    /// Returns whether a fault waits for memory.
    fn is_waited_for(&self) -> bool;

    /// Gives up frames that are kept to save work, if there are any. Returns how many pages became free.
    fn drop_spare_frames(&mut self) -> usize;

    /// Notes that the pool may have grown or shrunk.
    fn pool_changed(&mut self);

    /// Lends memory for a list of entries.
    fn entries(&mut self) -> &mut Vec<(PageIndex, Handle)>;
}

/// The listener to the ends of stores of one slot's pages.
pub trait Ending {
    /// Notes that the store of a page has ended.
    fn ended(&mut self, page: PageIndex, outcome: StoreOutcome);

    /// Notes that `pages` adjacent pages are at their places.
    fn swapped(&mut self, pages: usize);
}

/// The contents of the pages of one slot, while it is stored.
pub trait Contents: Ending {
    /// Finds places for a whole folio, by [`Swap::store_folio`] or [`Swap::store_sized`].
    fn store_folio(&mut self, first: PageIndex, kept: &[Option<Place>; FOLIO_PAGES])
    -> [Stored; FOLIO_PAGES];

    /// Finds a place for one page. If it is `poor`, it is known not to compress.
    fn store_page(&mut self, page: PageIndex, kept: Option<Place>, poor: bool) -> Stored;

    /// Takes a page over that the pool refuses. It is still locked: the callee ends its store.
    fn refused(&mut self, page: PageIndex, why: StoreError, hash: PageHash);
}

/// The outcome of storing the pages of one folio, in pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct StoredFolio {
    /// Pages whose store was begun.
    pub tried: usize,
    /// Pages that have a place.
    pub placed: usize,
    /// Pages of those whose place is new: their kept copy was not current.
    pub new: usize,
}

/// The reclaimer of a process.
#[derive(Debug)]
pub struct Reclaimer {
    /// The slots with pages on probation.
    pub probation: Probation,
    /// The number of slots that have pages on probation at most.
    probation_max: usize,
    /// The pressure on the pool to give memory, as bits of a float.
    pressure: AtomicU64,
}

impl Reclaimer {
    /// Returns a reclaimer with `slots` slots. At most `probation_max` have pages on probation, beside those that are
    /// being stored.
    pub fn new(slots: u16, probation_max: usize) -> Self {
        Self { probation: Probation::new(slots), probation_max, pressure: AtomicU64::new(0) }
    }

    /// Sets how hard the pool is pressed to give memory, from 0 (not at all) to 1 (as hard as the program).
    pub fn set_pressure(&self, weight: f64) {
        self.pressure.store(weight.to_bits(), Relaxed);
    }

    /// Returns whether the oldest slot on probation should be stored. One slot may wait there however many pages it
    /// has.
    pub fn is_probation_full<S: SpanSource>(&self, swap: &Swap<S>) -> bool {
        let slots = self.probation.len();
        slots > self.probation_max || (slots > 1 && swap.is_probation_full())
    }

    /// Takes the oldest slot on probation for direct reclaim. The last one is left to [`Reclaimer::step`]: its pages may
    /// have left the program just now.
    pub fn oldest_of_several(&self) -> Option<u16> {
        self.probation.pop_of_several()
    }

    /// Does one step towards free memory. Its work is bounded.
    pub fn step<S: SpanSource>(&self, swap: &Swap<S>, mover: &mut impl Mover) -> Progress {
        let mut freed = self.trim(swap, mover);
        let taken = if self.is_probation_full(swap) { Some(0) } else { mover.take_out() };
        if let Some(taken @ 1..) = taken {
            freed += self.press(swap, taken, mover);
        }
        // Where somebody waits, a cluster of which nothing would leave is no reason to keep others waiting.
        let stuck = taken.is_none() || (taken == Some(0) && mover.is_waited_for());
        let oldest = if stuck || self.is_probation_full(swap) { self.probation.pop() } else { None };
        let mut waits = false;
        if let Some(slot) = oldest {
            freed += mover.store(slot);
            waits = self.probation.is_late(slot);
        }
        if freed == 0 && mover.is_waited_for() {
            // Frames that were kept to save work are worth more as room.
            freed += mover.drop_spare_frames();
        }
        if freed == 0 && taken.is_none() && oldest.is_none() {
            return self.shrink_pool(swap, mover);
        }
        match (freed, taken, oldest) {
            (1.., _, _) => Progress::Freed(freed),
            (0, None, None) => Progress::Nothing,
            (0, _, _) if waits => Progress::Waits,
            (0, _, _) => Progress::Moved,
        }
    }

    /// Has the pool give memory, however far it is from its limit.
    pub fn shrink_pool<S: SpanSource>(&self, swap: &Swap<S>, mover: &mut impl Mover) -> Progress {
        // Where nothing else can leave, all copies and entries are looked at.
        let copies = |swap: &Swap<S>| swap.drop_copies(TRIM_ENTRIES, PoolScope::Own);
        match self.shrink(swap, copies, usize::MAX, || true, mover) {
            0 => Progress::Nothing,
            freed => Progress::Freed(freed),
        }
    }

    /// Has the pool let go of entries that are shared by fork. Returns how many go: their memory is free when all
    /// processes that share it have let go of it.
    pub fn unshare_pool<S: SpanSource>(&self, swap: &Swap<S>, mover: &mut impl Mover) -> usize {
        let copies = swap.drop_copies(TRIM_ENTRIES, PoolScope::Shared);
        let gone =
            if copies > 0 { copies } else { self.write_back(swap, usize::MAX, PoolScope::Shared, mover) };
        mover.pool_changed();
        gone
    }

    /// Makes room in a pool that nears its limit. Returns the pages that were freed at once, or will be soon.
    fn trim<S: SpanSource>(&self, swap: &Swap<S>, mover: &mut impl Mover) -> usize {
        if swap.compact(COMPACT_CLUSTERS) > 0 {
            mover.pool_changed();
        }
        let is_full = || swap.zswap().is_nearly_full();
        if is_full() {
            self.shrink(swap, |swap| swap.drop_copies_step(TRIM_ENTRIES), TRIM_SCAN, is_full, mover)
        } else {
            0
        }
    }

    /// Has the pool give a part of its memory that no fork shares: kept copies go, and where there are none, the entries
    /// under the clock hand, of `scan` at a time, are written to the device while there should be `more`.
    fn shrink<S: SpanSource>(
        &self,
        swap: &Swap<S>,
        drop_copies: impl Fn(&Swap<S>) -> usize,
        scan: usize,
        more: impl Fn() -> bool,
        mover: &mut impl Mover,
    ) -> usize {
        let before = swap.zswap().own_pages();
        let mut sent = 0;
        if drop_copies(swap) == 0 {
            while sent < TRIM_ENTRIES && more() {
                match self.write_back(swap, scan, PoolScope::Own, mover) {
                    0 => break,
                    step => sent += step,
                }
            }
        }
        mover.pool_changed();
        before.saturating_sub(swap.zswap().own_pages()) + sent / ENTRIES_A_PAGE
    }

    /// Passes the shrinker's hand over `scan` entries of the pool, and writes back those that should leave, up to a few
    /// batches. Returns how many are on their way.
    pub fn write_back<S: SpanSource>(
        &self,
        swap: &Swap<S>,
        scan: usize,
        scope: PoolScope,
        mover: &mut impl Mover,
    ) -> usize {
        if !mover.can_write_back() {
            return 0;
        }
        let mut entries = std::mem::take(mover.entries());
        entries.clear();
        swap.scan(scan, SCAN_ROOM, scope, &mut entries);
        let sent = mover.write_back(&entries);
        *mover.entries() = entries;
        sent
    }

    /// Has the pool give its part for `taken` pages that have left the program, if the shrinker wants it so. Returns
    /// about how many pages become free.
    fn press<S: SpanSource>(&self, swap: &Swap<S>, taken: usize, mover: &mut impl Mover) -> usize {
        let weight = f64::from_bits(self.pressure.load(Relaxed));
        if weight <= 0.0 || !mover.can_write_back() {
            return 0;
        }
        match swap.pressure(taken, weight) {
            0 => 0,
            scan => self.write_back(swap, scan, PoolScope::Own, mover) / ENTRIES_A_PAGE,
        }
    }

    /// Stores those pages of the folio at `first` that are in `populated` and still on probation in a slot.
    pub fn store_folio<S: SpanSource>(
        &self,
        swap: &Swap<S>,
        slot: u16,
        first: PageIndex,
        populated: PageSet,
        contents: &mut impl Contents,
    ) -> StoredFolio {
        let (begun, tried) = begin_folio(swap, slot, first, populated);
        let begun = &begun[..tried];
        let page = |nth: usize| first.cluster().page(begun[nth].0);
        let poor = self.probation.poor(slot);
        let whole = <&[_; FOLIO_PAGES]>::try_from(begun)
            .ok()
            .filter(|folio| !folio.iter().any(|&(offset, _)| poor.contains(offset)))
            .map(|folio| contents.store_folio(first, &folio.map(|(_, kept)| kept)));
        if let Some(place) = whole.as_ref().and_then(|outcomes| Stored::run(outcomes))
            && self.end_folio(swap, slot, first, place, contents)
        {
            return StoredFolio { tried, placed: tried, new: tried };
        }
        let mut folio = StoredFolio { tried, ..StoredFolio::default() };
        for (nth, &(offset, kept)) in begun.iter().enumerate() {
            let stored = match &whole {
                Some(outcomes) => outcomes[nth],
                None => contents.store_page(page(nth), kept, poor.contains(offset)),
            };
            match stored {
                Stored::Clean(place) | Stored::New(place) => {
                    folio.placed += 1;
                    folio.new += usize::from(matches!(stored, Stored::New(_)));
                    self.end_page(swap, slot, page(nth), place, contents);
                }
                Stored::Refused(why, hash) => {
                    if why == StoreError::Incompressible {
                        self.probation.note_poor(slot, offset);
                    }
                    contents.refused(page(nth), why, hash);
                }
            }
        }
        folio
    }

    /// Ends the stores of a slot's `pages`, ascending, which were written to blocks from `block` on.
    pub fn end_written<S: SpanSource>(
        &self,
        swap: &Swap<S>,
        slot: u16,
        pages: &[PageIndex],
        block: u64,
        ending: &mut impl Ending,
    ) {
        let mut nth = 0;
        while let Some(&page) = pages.get(nth) {
            let place = Place::Device(block + nth as u64);
            let last = page.plus(FOLIO_PAGES as u64 - 1);
            let whole =
                page.offset().is_multiple_of(FOLIO_PAGES) && pages.get(nth + FOLIO_PAGES - 1) == Some(&last);
            if whole && self.end_folio(swap, slot, page, place, ending) {
                nth += FOLIO_PAGES;
            } else {
                self.end_page(swap, slot, page, place, ending);
                nth += 1;
            }
        }
    }

    /// Ends the stores of a folio at once. Returns false if they must end one by one.
    fn end_folio<S: SpanSource>(
        &self,
        swap: &Swap<S>,
        slot: u16,
        first: PageIndex,
        place: Place,
        ending: &mut impl Ending,
    ) -> bool {
        let ended = swap.finish_store_run(first, FOLIO_PAGES, place, self.probation.shadow(slot));
        if ended {
            ending.swapped(FOLIO_PAGES);
        }
        ended
    }

    fn end_page<S: SpanSource>(
        &self,
        swap: &Swap<S>,
        slot: u16,
        page: PageIndex,
        place: Place,
        ending: &mut impl Ending,
    ) {
        ending.ended(page, swap.finish_store(page, place, self.probation.shadow(slot)));
    }
}

/// Returns the frames of a slot, among `populated`, that still hold a page on probation. To be called while no page is
/// taken out into the slot.
pub fn frames_in_use<S: SpanSource>(
    swap: &Swap<S>,
    slot: u16,
    cluster: ClusterNumber,
    populated: PageSet,
) -> PageSet {
    let mut used = populated;
    if let Some(cluster) = swap.table().lock(cluster) {
        for offset in populated.iter() {
            let word = cluster.get(offset);
            if word.state() != State::Cached || word.slot() != slot {
                used.remove(offset);
            }
        }
    }
    used
}

/// Claims the pages of a folio for storing. Returns the offset and the kept copy of each, and how many there are.
fn begin_folio<S: SpanSource>(
    swap: &Swap<S>,
    slot: u16,
    first: PageIndex,
    populated: PageSet,
) -> ([(usize, Option<Place>); FOLIO_PAGES], usize) {
    let mut begun = [(0, None); FOLIO_PAGES];
    let mut count = 0;
    if let Some(mut cluster) = swap.table().lock(first.cluster()) {
        for run in populated.runs() {
            swap.begin_store(&mut cluster, slot, run, |offset, kept| {
                begun[count] = (offset, kept);
                count += 1;
            });
        }
    }
    (begun, count)
}
