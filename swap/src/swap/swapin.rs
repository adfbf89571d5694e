//! Swapin: every transfer of pages that come in begins here, and ends here.

use super::Swap;
use crate::distances::Tier;
use crate::error::LoadError;
use crate::place::Place;
use crate::stats::Counter;
use crate::streams::{Readahead, Window};
use crate::table::ClusterGuard;
use crate::word::{State, Word};
use crate::workingset::MeanDistance;
use crate::zswap::Scratch;
use crate::zswap::pool::SpanSource;
use pagetide_page::{CLUSTER_PAGES, PageIndex};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// The number of pages that one transfer brings in at most: 256 KiB.
pub const WINDOW_MAX: usize = 64;

/// Counts of pages that a little more memory would have kept.
#[derive(Debug, Default)]
pub(super) struct Nearness {
    /// The mean age of entries at their writeback: the number of pages that had left since the entry's page did.
    pub(super) age: MeanDistance,
    /// The mean distance at which pages came back from pool and device.
    pub(super) reuse: MeanDistance,
    /// Pages from the device that came back before twice as many pages had left.
    pub(super) near: AtomicU64,
    /// Pages from the pool that came back before as many others had left as are in memory.
    pub(super) pool_near: AtomicU64,
    /// Pages from the pool for which a fault waited.
    pub(super) pool_faults: AtomicU64,
}

/// The answer to a fault at a page.
#[derive(Debug)]
#[expect(
    clippy::large_enum_variant,
    reason = "a transfer lives on the stack: the fault path allocates nothing"
)]
pub enum Swapin {
    /// The page is in the program already: wake the threads that wait for it.
    Present,
    /// A transfer of the page is under way; its end answers this fault.
    Pending,
    /// The page's contents are lost.
    Poisoned,
    /// A transfer has begun: the caller moves its bytes, then calls [`Swap::finish_swapin`].
    Inserted(Transfer),
}

/// The source of a transfer's bytes. All pages of a transfer have the same source.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Source {
    /// Nowhere: pages never touched, or discarded.
    Hole,
    /// Frames of this staging slot, at the pages' own offsets: on probation.
    Frames {
        /// The slot.
        slot: u16,
    },
    /// No memory: pages that were swapped, and are all zero.
    Zero,
    /// Patterns and pool entries: read by [`Swap::load`], without waiting.
    Memory,
    /// Blocks of the device from this one on.
    Device {
        /// The first block.
        block: u64,
    },
}

/// A transfer: a run of adjacent pages of one cluster, which the caller has locked and brings in.
#[derive(Clone, Copy, Debug)]
pub struct Transfer {
    /// The first page.
    pub first: PageIndex,
    /// The number of pages.
    pub length: usize,
    /// The place in the run of the page that a fault waits for.
    pub demand: usize,
    /// Whether no fault waits for any page, since all are read ahead.
    pub ahead: bool,
    /// The source of their bytes.
    pub source: Source,
    words: [Word; WINDOW_MAX],
}

impl Transfer {
    /// The words of its pages, as they were before.
    pub(super) fn words(&self) -> &[Word] {
        &self.words[..self.length]
    }

    /// Returns the page that a fault waits for.
    pub fn demanded(&self) -> PageIndex {
        self.first.plus(self.demand as u64)
    }

    /// Returns the pages of the transfer.
    pub fn pages(&self) -> std::ops::Range<PageIndex> {
        self.first..self.first.plus(self.length as u64)
    }

    /// Cuts the transfer off after `length` pages and returns the rest; `None`, and no cut, if one part would be empty.
    /// The caller ends both.
    pub fn split_off(&mut self, length: usize) -> Option<Self> {
        if length == 0 || length >= self.length {
            return None;
        }
        let mut rest = *self;
        rest.first = self.first.plus(length as u64);
        rest.length = self.length - length;
        rest.demand = self.demand.saturating_sub(length);
        rest.words.copy_within(length.., 0);
        if let Source::Device { block } = self.source {
            rest.source = Source::Device { block: block + length as u64 };
        }
        self.length = length;
        Some(rest)
    }

    /// Cuts the transfer down to `pages` pages, the one that is waited for among them, by [`Window::at_most`]. What is
    /// cut off goes to `each`, which ends it.
    pub fn narrow(&mut self, pages: usize, mut each: impl FnMut(&Self)) {
        let whole = Window { before: self.demand, after: self.length - 1 - self.demand };
        let kept = whole.at_most(pages);
        if let Some(rest) = self.split_off(whole.before - kept.before) {
            each(&std::mem::replace(self, rest));
        }
        if let Some(tail) = self.split_off(kept.before + 1 + kept.after) {
            each(&tail);
        }
    }
}

/// The obstacle that stopped a swapin at a page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MapConflict {
    /// A page is mapped there already.
    Page,
    /// Nothing is mapped there any more.
    Nothing,
}

impl<S: SpanSource> Swap<S> {
    /// Begins to bring `page` in, together with neighbours `within` a range that have the same kind of place: at most
    /// as many as the `window` has.
    pub fn swapin(&self, page: PageIndex, within: std::ops::Range<PageIndex>, window: Window) -> Swapin {
        let mut cluster = self.object.table().lock_or_create(page.cluster());
        let at = page.offset();
        let word = cluster.get(at);
        match word.state() {
            State::Present if !word.is_locked() => return Swapin::Present,
            State::Poisoned => return Swapin::Poisoned,
            _ if word.is_locked() => {
                self.set(&mut cluster, at, word.wanted());
                return Swapin::Pending;
            }
            _ => {}
        }
        let source = source_of(word).expect("present and poisoned are answered above");
        let window = self.reach(page, source, window);
        self.claim(cluster, page, source, within, window)
    }

    /// Begins to bring in pages that are all asked for, whatever the rule of readahead: as many from the first on as
    /// have the same kind of place.
    pub fn swapin_run(&self, pages: std::ops::Range<PageIndex>) -> Swapin {
        let cluster = self.object.table().lock_or_create(pages.start.cluster());
        let word = cluster.get(pages.start.offset());
        if word.is_locked() {
            return Swapin::Pending;
        }
        let window = Window::ahead((pages.end.0 - pages.start.0) as usize);
        match source_of(word) {
            Some(source) => self.claim(cluster, pages.start, source, pages, window),
            None if word.state() == State::Poisoned => Swapin::Poisoned,
            None => Swapin::Present,
        }
    }

    /// Begins to bring back a page that is on probation; `None` if it is not there, or a transfer of it is under way.
    pub fn swapin_cached(&self, page: PageIndex) -> Option<Transfer> {
        let cluster = self.object.table().lock(page.cluster())?;
        let word = cluster.get(page.offset());
        let source = source_of(word).filter(|_| word.state() == State::Cached && !word.is_locked())?;
        match self.claim(cluster, page, source, page..page.plus(1), Window::NONE) {
            Swapin::Inserted(transfer) => Some(transfer),
            _ => None,
        }
    }

    fn claim(
        &self,
        mut cluster: ClusterGuard<'_>,
        page: PageIndex,
        source: Source,
        within: std::ops::Range<PageIndex>,
        window: Window,
    ) -> Swapin {
        let at = page.offset();
        let room = Window {
            before: window.before.min((page.0 - within.start.0) as usize).min(at),
            after: window.after.min((within.end.0 - page.0) as usize - 1).min(CLUSTER_PAGES - 1 - at),
        }
        .at_most(WINDOW_MAX);
        let mut end = at + 1;
        while end <= at + room.after {
            let (word, count) = cluster.stretch(end, at + room.after + 1 - end);
            if word.is_locked() || !continues(source, end as isize - at as isize, word) {
                break;
            }
            end += count;
        }
        let follows = |&offset: &usize| {
            let word = cluster.get(offset);
            !word.is_locked() && continues(source, offset as isize - at as isize, word)
        };
        let before = (at - room.before..at).rev().take_while(follows).count();
        let first = at - before;
        let mut words = [Word::HOLE; WINDOW_MAX];
        let mut offset = first;
        while offset < end {
            let (word, count) = cluster.stretch(offset, end - offset);
            for nth in 0..count {
                words[offset - first + nth] = word.nth(nth);
            }
            self.set_run(&mut cluster, offset..offset + count, word, word.locked());
            offset += count;
        }
        let source = match source {
            Source::Device { block } => Source::Device { block: block - before as u64 },
            other => other,
        };
        let (first, length) = (page.cluster().page(first), end - first);
        Swapin::Inserted(Transfer { first, length, demand: before, ahead: false, source, words })
    }

    /// Returns the part of a window around `page` that comes in from this source, by the rule of readahead.
    pub fn reach(&self, page: PageIndex, source: Source, window: Window) -> Window {
        let device = 1 << self.space.config.page_cluster;
        match (self.space.config.readahead, source) {
            (Readahead::None, Source::Device { .. }) => Window::NONE,
            (Readahead::Object, Source::Device { .. }) => window.at_most(device),
            (Readahead::Cluster, Source::Device { .. } | Source::Memory | Source::Zero) => {
                let before = match source {
                    Source::Device { block } => block as usize % device,
                    _ => page.0 as usize % device,
                };
                Window { before, after: device - 1 - before }
            }
            _ => window,
        }
    }

    /// Returns whether windows are followed that tell what comes next: not where the rule looks at the page alone.
    pub fn takes_windows(&self) -> bool {
        self.space.config.readahead != Readahead::Cluster
    }

    /// Returns how many pages may be read behind one that is on its way already, of those in `window`.
    pub fn reach_ahead(&self, window: Window) -> usize {
        match self.space.config.readahead {
            Readahead::Object => window.at_most(1 << self.space.config.page_cluster).after,
            Readahead::Cluster | Readahead::None => 0,
        }
    }

    /// Reads page number `nth` of a transfer whose source is [`Source::Memory`] into `out`.
    ///
    /// # Errors
    /// [`LoadError::Decompress`] or [`LoadError::Hash`] if the entry in the pool is damaged.
    ///
    /// # Panics
    /// If the page is neither a pattern nor in the pool.
    pub fn load(
        &self,
        transfer: &Transfer,
        nth: usize,
        out: &mut [u8],
        scratch: &mut Scratch,
    ) -> Result<(), LoadError> {
        match transfer.words[nth].place() {
            Some(Place::Same(pattern)) => Place::fill(pattern, out),
            Some(Place::Pool(handle)) => {
                self.space.zswap.load(handle, out, &self.space.keys.hash, scratch)?;
            }
            _ => unreachable!("only pages in memory are loaded"),
        }
        Ok(())
    }

    /// Decrypts the bytes that were read from the device for page number `nth` of a transfer, in place, and proves by
    /// their hash that they are the page.
    ///
    /// # Errors
    /// [`LoadError::Hash`] if they are not the bytes that were written for the page.
    ///
    /// # Panics
    /// If the page is not on the device.
    pub fn open(&self, transfer: &Transfer, nth: usize, bytes: &mut [u8]) -> Result<(), LoadError> {
        let Some(Place::Device(block)) = transfer.words[nth].place() else {
            unreachable!("only pages on the device are read from it")
        };
        let hash = self.space.blocks.hash(block).ok_or(LoadError::Hash)?;
        if let Some(cipher) = &self.space.keys.cipher {
            cipher.apply(block, hash, bytes);
        }
        if self.space.keys.hash.hash(bytes) == hash { Ok(()) } else { Err(LoadError::Hash) }
    }

    /// Ends a transfer: its first `mapped` pages are in the program, the others are as they were.
    ///
    /// With `keep` the stored copies stay, so that the next eviction can prove a page clean; those that a fork shares stay
    /// in any case. Returns the pages beyond `mapped` for which a fault waits, a bit for each page of the transfer.
    pub fn finish_swapin(&self, transfer: &Transfer, mapped: usize, keep: bool) -> u64 {
        self.finish_swapin_at(transfer, mapped, keep, None)
    }

    /// Ends a transfer as [`Swap::finish_swapin`] does, where mapping may have `met` an obstacle at the page behind the
    /// mapped ones: that page is present, or a hole, from now on, and its stored contents are dropped.
    pub fn finish_swapin_at(
        &self,
        transfer: &Transfer,
        mapped: usize,
        keep: bool,
        met: Option<MapConflict>,
    ) -> u64 {
        let mut wanted = 0;
        let mut cluster = self.object.table().lock_or_create(transfer.first.cluster());
        let first = transfer.first.offset();
        let mut nth = 0;
        while nth < mapped {
            let word = transfer.words[nth];
            let follows = |&count: &usize| transfer.words[nth + count] == word.nth(count);
            let count = 1 + (1..mapped - nth).take_while(follows).count();
            let kept = word.place().filter(|&place| match place {
                Place::Same(_) => false,
                // To drop it would give nothing.
                Place::Pool(handle) => keep || self.space.zswap.is_frozen(handle),
                Place::Device(_) => keep,
            });
            if kept.is_none() {
                (nth..nth + count).for_each(|nth| self.free_place(transfer.words[nth].place()));
            }
            let locked = word.locked();
            let present = Word::present(kept).with_refaulted(word.state() != State::Hole);
            self.set_run(&mut cluster, first + nth..first + nth + count, locked, present);
            nth += count;
        }
        for nth in mapped..transfer.length {
            wanted |= u64::from(cluster.get(first + nth).is_wanted()) << nth;
            let word = transfer.words[nth];
            let after = match met.filter(|_| nth == mapped) {
                None => word.with_writeback(false),
                Some(met) => {
                    self.free_place(word.place());
                    if met == MapConflict::Page { Word::present(None) } else { Word::HOLE }
                }
            };
            self.set(&mut cluster, first + nth, after);
        }
        if met == Some(MapConflict::Page) {
            self.enqueue(&mut cluster);
        }
        if mapped > 0 {
            if matches!(transfer.source, Source::Frames { .. }) {
                let mut history = cluster.history();
                self.space.policy.hit(&mut history, mapped);
                cluster.set_history(history);
            }
            self.judge(&mut cluster, &transfer.words[..mapped]);
            self.note_distance(transfer, mapped);
            self.enqueue(&mut cluster);
            self.count_in(transfer, mapped);
        }
        drop(cluster);
        self.space.transfers.notify();
        wanted
    }

    /// Judges pages that have come back from a place.
    fn judge(&self, cluster: &mut ClusterGuard<'_>, words: &[Word]) {
        let (mut activated, mut restored) = (0, 0);
        let present = self.present().max(0) as u64;
        for word in words.iter().filter(|word| word.state() == State::Swapped) {
            let distance = self.space.workingset.distance(word.shadow());
            if !word.is_same_filled() {
                self.space.nearness.reuse.note(distance);
            }
            let refault = self.space.workingset.refault(word.shadow(), present);
            activated += u64::from(refault.activate);
            restored += u64::from(refault.restore);
            match word.place() {
                Some(Place::Device(_)) if distance <= 2 * self.space.nearness.age.get().unwrap_or(0) => {
                    self.space.nearness.near.fetch_add(1, Relaxed);
                }
                Some(Place::Pool(_)) if refault.activate => {
                    _ = self.space.nearness.pool_near.fetch_add(1, Relaxed)
                }
                _ => {}
            }
        }
        if activated > 0 {
            let mut history = cluster.history();
            self.space.policy.refault(&mut history, activated as usize);
            cluster.set_history(history);
            self.space.counters.add(Counter::workingset_activate_anon, activated);
            self.space.counters.add(Counter::workingset_restore_anon, restored);
        }
    }

    /// Notes the refault distance of the page that a fault has waited for.
    fn note_distance(&self, transfer: &Transfer, mapped: usize) {
        let tier = match transfer.source {
            Source::Hole | Source::Frames { .. } => return,
            Source::Zero | Source::Memory => Tier::Pool,
            Source::Device { .. } => Tier::Device,
        };
        if transfer.ahead || transfer.demand >= mapped {
            return;
        }
        let distance = self.space.workingset.distance(transfer.words[transfer.demand].shadow());
        self.space.counters.distances().record(tier, distance, self.present().max(0) as u64);
    }

    fn count_in(&self, transfer: &Transfer, mapped: usize) {
        let c = self.space.counters;
        let count = mapped as u64;
        let (counter, major) = match transfer.source {
            Source::Hole => (Counter::pgalloc, false),
            Source::Frames { .. } => (Counter::swap_cache_hit, false),
            Source::Zero => (Counter::swpin_zero, true),
            Source::Memory => (Counter::zswpin, true),
            Source::Device { .. } => (Counter::pswpin, true),
        };
        c.add(counter, count);
        let asked = u64::from(!transfer.ahead);
        c.add(if major { Counter::pgmajfault } else { Counter::pgminfault }, asked);
        if major {
            c.add(Counter::workingset_refault_anon, count);
            c.add(Counter::swap_ra, count - asked);
            if !transfer.ahead {
                self.space.shrinking.decay.note_swapin();
            }
            match transfer.source {
                Source::Memory => _ = self.space.nearness.pool_faults.fetch_add(asked, Relaxed),
                Source::Device { .. } => self.space.shrinking.second_chance.note_disk_swapins(count),
                _ => {}
            }
        }
    }

    /// Ends a transfer of one page that cannot be read: the page is poisoned.
    ///
    /// # Panics
    /// If the transfer has more pages: read each alone to find the one that cannot be read.
    pub fn fail_swapin(&self, transfer: &Transfer) {
        assert_eq!(transfer.length, 1, "one page is poisoned at a time");
        {
            let mut cluster = self.object.table().lock_or_create(transfer.first.cluster());
            self.free_place(transfer.words[0].place());
            self.set(&mut cluster, transfer.first.offset(), Word::POISONED);
        }
        self.space.counters.add(Counter::poisoned, 1);
        self.space.transfers.notify();
    }
}

fn source_of(word: Word) -> Option<Source> {
    Some(match word.state() {
        State::Hole => Source::Hole,
        State::Cached => Source::Frames { slot: word.slot() },
        State::Swapped => match word.place()? {
            Place::ZERO => Source::Zero,
            Place::Same(_) | Place::Pool(_) => Source::Memory,
            Place::Device(block) => Source::Device { block },
        },
        State::Present | State::Poisoned => return None,
    })
}

/// Returns whether the page with `word`, `nth` pages after the demanded one, can come in with a transfer from `source`.
fn continues(source: Source, nth: isize, word: Word) -> bool {
    match (source, source_of(word)) {
        (Source::Device { block: first }, Some(Source::Device { block })) => {
            first.checked_add_signed(nth as i64) == Some(block)
        }
        (a, Some(b)) => a == b,
        (_, None) => false,
    }
}
