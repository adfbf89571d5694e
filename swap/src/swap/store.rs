//! Storing: a page becomes a pattern, goes into the pool, or is left where its current copy lies.

use super::Swap;
use crate::error::StoreError;
use crate::hash::PageHash;
use crate::in_vain::InVain;
use crate::place::{Handle, Place};
use crate::stats::Counter;
use crate::table::ClusterGuard;
use crate::word::{State, Word};
use crate::workingset::Shadow;
use crate::zswap::Scratch;
use crate::zswap::pool::SpanSource;
use crate::zswap::shrinker::Shrinker;
use pagetide_page::FOLIO_PAGES;
use pagetide_page::{PAGE_SIZE, PageIndex};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Findings of late about pages whose copy is kept.
#[derive(Debug, Default)]
pub(super) struct Admission {
    /// Pages from the device that did not go into the pool when they left again.
    far: InVain,
    /// Kept copies that turned out to be of older contents.
    pub(super) copies_stale: AtomicU64,
}

/// The outcome of storing a page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stored {
    /// The page is at the place of its kept copy, which is proved current: nothing was written.
    Clean(Place),
    /// The page is at this new place.
    New(Place),
    /// The pool refuses the page for this reason: write it to the device under this hash, or keep it in memory.
    Refused(StoreError, PageHash),
}

impl Stored {
    /// Returns the first page's place, if all pages are at new places that follow from it ([`Word::nth`]).
    pub fn run(pages: &[Self]) -> Option<Place> {
        let Some(&Self::New(first)) = pages.first() else { return None };
        let word = Word::swapped(first, Shadow(0));
        let follows =
            |(nth, page): (usize, &Self)| *page == Self::New(word.nth(nth).place().expect("it has one"));
        (word.spreads() && pages.iter().enumerate().all(follows)).then_some(first)
    }
}

/// The way in which a page can leave, as its bytes and its kept copy tell.
#[derive(Clone, Copy)]
enum StoreDecision {
    /// As a pattern: it is one word, repeated.
    Same(Place),
    /// To its kept copy, which is current.
    Clean(Place),
    /// Into the pool under this hash, or to its current copy on the device: the pool is nearer.
    Nearer(Place, PageHash),
    /// Into the pool, or to the device, under this hash.
    New(PageHash),
}

/// The outcome of ending a store.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StoreOutcome {
    /// The page is at its place, or, if it found none, on probation as before; no fault waits for it.
    Swapped,
    /// A fault waits for the page: map it from its frame, then call [`Swap::finish_hit`].
    Wanted,
}

/// How often the shrinker's hand spares an entry whose page was never asked for again since it was new.
const CHANCES_NEW: u8 = 1;
/// How often it spares one whose page was. By replay: for a warm set beside pages that are written once more are better, for
/// one that moves fewer.
const CHANCES_REFAULTED: u8 = 6;

/// Returns how often the shrinker's hand spares the entry of a page on probation.
fn chances(word: Word) -> u8 {
    if word.has_refaulted() { CHANCES_REFAULTED } else { CHANCES_NEW }
}

impl<S: SpanSource> Swap<S> {
    /// Begins to store the pages of `range` that are still in `slot` and of which no transfer is under way. Calls
    /// `begun` with the offset of each and its kept copy.
    pub fn begin_store(
        &self,
        cluster: &mut ClusterGuard<'_>,
        slot: u16,
        range: std::ops::Range<usize>,
        mut begun: impl FnMut(usize, Option<Place>),
    ) {
        let mut offset = range.start;
        while offset < range.end {
            let (word, count) = cluster.stretch(offset, range.end - offset);
            if word.state() == State::Cached && word.slot() == slot && !word.is_locked() {
                (0..count).for_each(|nth| begun(offset + nth, word.nth(nth).place()));
                self.set_run(cluster, offset..offset + count, word, word.locked());
            }
            offset += count;
        }
    }

    /// Finds a place for a page that is out of the program and locked for storing. A page that is `poor` is known not
    /// to compress.
    pub fn store(&self, bytes: &[u8], kept: Option<Place>, poor: bool, scratch: &mut Scratch) -> Stored {
        debug_assert_eq!(bytes.len(), PAGE_SIZE);
        let way = self.way(bytes, kept);
        self.put(way, |hash| match poor {
            true => Err(StoreError::Incompressible),
            false => self.store_alone(bytes, hash, scratch),
        })
    }

    /// Finds places for the sixteen pages of a folio, `page(0)` to `page(15)`. If all go to the pool, they are one
    /// entry there.
    pub fn store_folio<'a>(
        &self,
        page: impl Fn(usize) -> &'a [u8],
        kept: &[Option<Place>; FOLIO_PAGES],
        scratch: &mut Scratch,
    ) -> [Stored; FOLIO_PAGES] {
        let ways: [StoreDecision; FOLIO_PAGES] = std::array::from_fn(|nth| self.way(page(nth), kept[nth]));
        let Some(alone) = go_together(&ways) else {
            return std::array::from_fn(|nth| {
                self.put(ways[nth], |hash| self.store_alone(page(nth), hash, scratch))
            });
        };
        let hashes = std::array::from_fn(|nth| match ways[nth] {
            StoreDecision::New(hash) | StoreDecision::Nearer(_, hash) => hash,
            StoreDecision::Same(_) | StoreDecision::Clean(_) => self.space.keys.hash.hash(page(nth)),
        });
        let stored = self.space.zswap.store_folio(page, &hashes, alone, scratch);
        self.space.counters.add(Counter::recompress, scratch.take_recompressed());
        self.put_folio(&ways, |nth| stored[nth])
    }

    /// Stores a page by itself in the pool.
    fn store_alone(&self, bytes: &[u8], hash: PageHash, scratch: &mut Scratch) -> Result<Handle, StoreError> {
        let stored = self.space.zswap.store(bytes, hash, scratch);
        self.space.counters.add(Counter::recompress, scratch.take_recompressed());
        self.count_refusal(stored)
    }

    fn note_stored(&self, pages: usize) {
        if self.space.zswap.switches().shrinker == Shrinker::Decay {
            (0..pages).for_each(|_| self.space.shrinking.decay.note_store(self.space.zswap.stored().0));
        }
    }

    /// Finds places for one page or a folio of which a trace knows no more than sizes: see [`Swap::store`] and
    /// [`Swap::store_folio`]. `sizes` are the bytes of the compressed forms, 0 for a repeated word; `hashes` tell the
    /// contents apart.
    pub fn store_sized<const PAGES: usize>(
        &self,
        sizes: &[usize; PAGES],
        hashes: &[PageHash; PAGES],
        kept: &[Option<Place>; PAGES],
    ) -> [Stored; PAGES] {
        let ways: [StoreDecision; PAGES] = std::array::from_fn(|nth| match sizes[nth] {
            0 => StoreDecision::Same(Place::ZERO),
            _ => self.way_of(hashes[nth], kept[nth]),
        });
        if let (Ok(sizes), Ok(hashes)) =
            (<&[usize; FOLIO_PAGES]>::try_from(&sizes[..]), <&[PageHash; FOLIO_PAGES]>::try_from(&hashes[..]))
            && let Some(alone) = go_together(&ways)
        {
            let stored = self.space.zswap.store_folio_sized(sizes, hashes, alone);
            return self.put_folio(&ways, |nth| stored[nth]);
        }
        std::array::from_fn(|nth| {
            self.put(ways[nth], |hash| self.count_refusal(self.space.zswap.store_sized(sizes[nth], hash)))
        })
    }

    /// Counts the outcomes of pages that were to be stored together.
    fn put_folio<const PAGES: usize>(
        &self,
        ways: &[StoreDecision; PAGES],
        stored: impl Fn(usize) -> Result<Handle, StoreError>,
    ) -> [Stored; PAGES] {
        if (0..PAGES).all(|nth| stored(nth).is_ok()) {
            self.space.counters.add(Counter::zswpout, PAGES as u64);
            self.note_stored(PAGES);
            return std::array::from_fn(|nth| Stored::New(Place::Pool(stored(nth).expect("all are"))));
        }
        std::array::from_fn(|nth| self.put(ways[nth], |_| self.count_refusal(stored(nth))))
    }

    /// Counts a page that went to the pool, or that the pool refused.
    fn count_refusal(&self, stored: Result<Handle, StoreError>) -> Result<Handle, StoreError> {
        let counter = match stored {
            Ok(_) => {
                self.note_stored(1);
                Counter::zswpout
            }
            Err(StoreError::Incompressible) => Counter::reject_compress_poor,
            Err(StoreError::Compress) => Counter::reject_compress_fail,
            Err(StoreError::NoMemory) => Counter::reject_alloc_fail,
            Err(StoreError::PoolLimit) => Counter::pool_limit_hit,
            Err(StoreError::Disabled) => return stored,
        };
        self.space.counters.add(counter, 1);
        stored
    }

    fn way(&self, bytes: &[u8], kept: Option<Place>) -> StoreDecision {
        if let Some(place) = Place::same_filled(bytes) {
            return StoreDecision::Same(place);
        }
        self.way_of(self.space.keys.hash.hash(bytes), kept)
    }

    /// Returns the way of a page with this hash.
    fn way_of(&self, hash: PageHash, kept: Option<Place>) -> StoreDecision {
        let clean = kept.filter(|&place| match place {
            Place::Pool(handle) => self.space.zswap.is_of(handle, hash),
            Place::Device(block) => self.space.blocks.hash(block) == Some(hash),
            Place::Same(_) => false,
        });
        match clean {
            // Read from the device of late, it may be wanted again: the pool is nearer, while it has room.
            Some(place @ Place::Device(_))
                if self.space.zswap.has_room() && self.space.admission.far.may_try() =>
            {
                StoreDecision::Nearer(place, hash)
            }
            Some(place) => StoreDecision::Clean(place),
            None => {
                self.space.admission.copies_stale.fetch_add(u64::from(kept.is_some()), Relaxed);
                StoreDecision::New(hash)
            }
        }
    }

    fn put(&self, way: StoreDecision, store: impl FnOnce(PageHash) -> Result<Handle, StoreError>) -> Stored {
        let c = self.space.counters;
        match way {
            StoreDecision::Same(place) => {
                c.add(Counter::swpout_zero, 1);
                Stored::New(place)
            }
            StoreDecision::Clean(place) => {
                c.add(Counter::swap_reuse, 1);
                Stored::Clean(place)
            }
            StoreDecision::Nearer(place, hash) => {
                let stored = store(hash);
                self.space.admission.far.note(stored.is_err());
                stored.map_or_else(
                    |_| {
                        c.add(Counter::swap_reuse, 1);
                        Stored::Clean(place)
                    },
                    |handle| Stored::New(Place::Pool(handle)),
                )
            }
            StoreDecision::New(hash) => match store(hash) {
                Ok(handle) => Stored::New(Place::Pool(handle)),
                Err(error) => Stored::Refused(error, hash),
            },
        }
    }

    /// Ends the store of `count` pages of one cluster from `first` on, whose places follow from `place`. Returns false,
    /// and changes nothing, if a fault waits for one of them or an older copy is to be freed: then each ends alone, by
    /// [`Swap::finish_store`].
    pub fn finish_store_run(&self, first: PageIndex, count: usize, place: Place, shadow: Shadow) -> bool {
        {
            let mut cluster = self.object.table().lock_or_create(first.cluster());
            let at = first.offset();
            let (word, found) = cluster.stretch(at, count);
            debug_assert!(word.is_locked() && word.state() == State::Cached, "{word:?}");
            let swapped = Word::swapped(place, shadow).with_chances(chances(word));
            if found < count || word.is_wanted() || word.place().is_some() || !swapped.spreads() {
                return false;
            }
            self.set_run(&mut cluster, at..at + count, word, swapped);
            self.note_pooled(&mut cluster, Some(place));
        }
        self.space.transfers.notify();
        true
    }

    /// Ends the store of a page that has a place. If a fault waits for it the page stays locked, for
    /// [`Swap::finish_hit`].
    pub fn finish_store(&self, page: PageIndex, place: Place, shadow: Shadow) -> StoreOutcome {
        let outcome = {
            let mut cluster = self.object.table().lock_or_create(page.cluster());
            let word = cluster.get(page.offset());
            debug_assert!(word.is_locked() && word.state() == State::Cached, "{word:?}");
            if word.place() != Some(place) {
                self.free_place(word.place());
            }
            if word.is_wanted() {
                self.set(&mut cluster, page.offset(), word.with_place(place));
                StoreOutcome::Wanted
            } else {
                let swapped = Word::swapped(place, shadow).with_chances(chances(word));
                self.set(&mut cluster, page.offset(), swapped);
                self.note_pooled(&mut cluster, Some(place));
                StoreOutcome::Swapped
            }
        };
        if outcome == StoreOutcome::Swapped {
            self.space.transfers.notify();
        }
        outcome
    }

    /// Ends the store of a page that found no place: it is on probation again, unless a fault waits for it.
    pub fn abandon_store(&self, page: PageIndex) -> StoreOutcome {
        let outcome = {
            let mut cluster = self.object.table().lock_or_create(page.cluster());
            let word = cluster.get(page.offset());
            if word.is_wanted() {
                StoreOutcome::Wanted
            } else {
                self.set(&mut cluster, page.offset(), word.unlocked());
                StoreOutcome::Swapped
            }
        };
        self.space.transfers.notify();
        outcome
    }

    /// Ends the store of a wanted page that was mapped from its frame: it is in the program. A copy of it is kept if
    /// there is one.
    pub fn finish_hit(&self, page: PageIndex) {
        {
            let mut cluster = self.object.table().lock_or_create(page.cluster());
            let word = cluster.get(page.offset());
            debug_assert!(word.is_locked() && word.state() == State::Cached, "{word:?}");
            let kept = word.place().filter(|place| !matches!(place, Place::Same(_)));
            self.set(&mut cluster, page.offset(), Word::present(kept).with_refaulted(true));
            self.enqueue(&mut cluster);
        }
        self.space.counters.add(Counter::swap_cache_hit, 1);
        self.space.counters.add(Counter::pgminfault, 1);
        self.space.transfers.notify();
    }

    /// Ends the store of a wanted page that could not be mapped: it is on probation again.
    pub fn release_hit(&self, page: PageIndex) {
        {
            let mut cluster = self.object.table().lock_or_create(page.cluster());
            let word = cluster.get(page.offset());
            debug_assert!(word.is_locked() && word.state() == State::Cached, "{word:?}");
            self.set(&mut cluster, page.offset(), word.unlocked());
        }
        self.space.transfers.notify();
    }

    /// Prepares a page for being written to `block`: notes its hash there, and encrypts it in place if there is a
    /// cipher.
    pub fn seal(&self, block: u64, hash: PageHash, page: &mut [u8]) {
        self.space.blocks.set_hash(block, hash);
        if let Some(cipher) = &self.space.keys.cipher {
            cipher.apply(block, hash, page);
        }
    }
}

/// Decides whether the pages of a folio are to be one entry of the pool: `None` if most are repeated words, or one is
/// clean. Returns the pages, a bit each, that may be stored alone where one entry cannot be had.
fn go_together(ways: &[StoreDecision]) -> Option<u16> {
    let same = ways.iter().filter(|way| matches!(way, StoreDecision::Same(_))).count();
    if same > FOLIO_PAGES / 2 || ways.iter().any(|way| matches!(way, StoreDecision::Clean(_))) {
        return None;
    }
    Some(
        ways.iter()
            .enumerate()
            .map(|(nth, way)| u16::from(!matches!(way, StoreDecision::Same(_))) << nth)
            .sum(),
    )
}
