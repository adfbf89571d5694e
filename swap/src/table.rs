//! The swap table: a 64-bit word a page where neighbours differ, one for a whole run where they agree.
//!
//! ```text
//! directory          cluster, 2 MiB                32 units, 64 KiB each           16 pages
//! ┌────────┐        ┌───────────────────────┐      ┌────────────────────┐        ┌───────────┐
//! │ number │───────▶│ latch, history        │      │ counts             │   ┌───▶│ word word │
//! └────────┘        │ word for all 512, or ─┼─────▶│ word for all 16, or┼───┘    │ …         │
//!                   └───────────────────────┘      └────────────────────┘        └───────────┘
//! ```
//!
//! A cluster of which half of the units are cut has 512 words in one piece: found sooner, and no larger than the cuts.
//!
//! A word stands for a run if the words of its pages follow from it ([`Word::nth`]): all are holes, or in the same
//! frames, or zero, or on the device one block after the other. It is made finer where a page comes to differ, and
//! coarser again when all agree.
//!
//! The table owns the words and the counts over them. It does not know what places mean.
//!
//! # Concurrency
//! One latch a cluster. Words change only through a [`ClusterGuard`], so a transition without it does not compile;
//! [`Table::peek`] reads without: what it saw is valid if the latch's count is what it was. The directory only grows.
//! Finer words are found by number, no pointers: what was given back and used again holds another's words, not another
//! thing, and the count tells. A forked child may go on using the table if nothing was held.
//!
//! No code holds two clusters, but for [`Table::lock_pair`], which takes them in order of cluster number.

use crate::latch::{Latch, Parking};
use crate::place::Place;
use crate::slab::Slab;
use crate::sync::atomic::{
    AtomicU32, AtomicU64, AtomicUsize, Ordering::AcqRel, Ordering::Acquire, Ordering::Relaxed,
};
use crate::sync::spin_loop;
use crate::word::{State, Word};
use pagetide_page::{CLUSTER_PAGES, ClusterNumber, PageIndex};
use std::ops::Range;
use std::sync::OnceLock;

/// Pages of a unit: 64 KiB.
pub const UNIT_PAGES: usize = 16;
/// Units of a cluster.
const UNITS: usize = CLUSTER_PAGES / UNIT_PAGES;
/// Cluster numbers that one leaf of the directory covers: 512 MiB of addresses.
const LEAF_CLUSTERS: usize = 1 << 8;
/// Leaves of one branch: 256 GiB of addresses.
const BRANCH_LEAVES: usize = 1 << 9;
const BRANCH_CLUSTERS: usize = LEAF_CLUSTERS * BRANCH_LEAVES;
/// Branches: 47 bits of addresses.
const BRANCHES: usize = 1 << 9;
/// Clusters that a table can have.
pub const CLUSTERS_MAX: u64 = (BRANCHES * BRANCH_CLUSTERS) as u64;
/// Looks at a cluster that is held, before a reader waits for it.
const PEEKS: usize = 64;

/// Where a cluster stands in its leaf: neighbours far apart, for threads that work on neighbours would write to the
/// same cache line.
const fn place_in_leaf(number: usize) -> usize {
    const ROWS: usize = 8;
    let nth = number % LEAF_CLUSTERS;
    nth % ROWS * (LEAF_CLUSTERS / ROWS) + nth / ROWS
}

/// What reclaim remembers of a cluster.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct History {
    /// Whether the cluster stands in the reclaim queue.
    pub queued: bool,
    /// Whether pages of it belong to the working set.
    pub workingset: bool,
    /// Whether the cluster stands in the queue for writeback.
    pub pooled: bool,
    /// Pages that came back since the last take-out, as [`crate::policy`] remembers them.
    pub heat: u16,
    /// Pages that the last take-out took.
    pub taken: u16,
}

/// Whether all words follow from the first.
fn follow(words: &[AtomicU64], first: Word) -> bool {
    words.iter().enumerate().all(|(nth, word)| word.load(Relaxed) == first.nth(nth).0)
}

/// How many words from the first on are at `block` and those after it.
#[inline]
fn after(words: &[AtomicU64], block: u64) -> usize {
    words.iter().zip(block..).take_while(|(word, block)| Word(word.load(Relaxed)).is_at_block(*block)).count()
}

/// How many words from the last on, downwards, are at the blocks before `block`.
#[inline]
fn before(words: &[AtomicU64], block: u64) -> usize {
    let blocks = (0..block).rev();
    words
        .iter()
        .rev()
        .zip(blocks)
        .take_while(|(word, block)| Word(word.load(Relaxed)).is_at_block(*block))
        .count()
}

/// How many of a cluster's pages are in which state: a number of ten bits for each [`Count`].
type Counts = u64;
const COUNT_BITS: u32 = 10;
const _: () = assert!(CLUSTER_PAGES < 1 << COUNT_BITS && Count::Last as u32 * COUNT_BITS <= u64::BITS);

#[derive(Clone, Copy)]
enum Count {
    Present,
    Cached,
    Swapped,
    Poisoned,
    Locked,
    Copies,
    Last,
}

impl Count {
    const fn one(self) -> Counts {
        1 << (self as u32 * COUNT_BITS)
    }
}

/// What a page counts, by the last byte of its word, which tells state, flags and kind of place.
const COUNTED: [Counts; 256] = {
    let mut counted = [0; 256];
    let mut byte = 0;
    while byte < counted.len() {
        let word = Word(byte as u64);
        counted[byte] = match word.state() {
            State::Hole => 0,
            State::Present => Count::Present.one(),
            State::Cached => Count::Cached.one(),
            State::Swapped => Count::Swapped.one(),
            State::Poisoned => Count::Poisoned.one(),
        };
        if word.is_locked() {
            counted[byte] += Count::Locked.one();
        }
        if word.has_pool_copy() {
            counted[byte] += Count::Copies.one();
        }
        byte += 1;
    }
    counted
};

/// The counts over `pages` pages whose words follow from `word`.
fn counts_of(word: Word, pages: usize) -> Counts {
    COUNTED[usize::from(word.0 as u8)] * pages as u64
}

#[derive(Debug, Default)]
struct Cluster {
    latch: Latch,
    history: AtomicU32,
    /// The word of the first page, from which all others follow, or the number of its units.
    root: AtomicU64,
    counts: AtomicU64,
}
#[cfg(not(any(loom, feature = "shuttle")))]
const _: () = assert!(size_of::<Cluster>() == 24);

/// Each the word of the first page of a unit, from which the others follow, or the number of its pages.
#[derive(Debug)]
#[repr(align(64))]
struct Units([AtomicU64; UNITS]);

/// The words of a unit.
#[derive(Debug)]
#[repr(align(64))]
struct Pages([AtomicU64; UNIT_PAGES]);

/// The words of a cluster.
#[derive(Debug)]
#[repr(align(64))]
struct Flat([AtomicU64; CLUSTER_PAGES]);

/// In place of a word: where the finer words are. No [`State`] has this value.
const FINER: u64 = 7;
/// In place of a cluster's word, beside that: all its finer words are there.
const FLAT: u64 = 1 << 3;
const FINER_SHIFT: u32 = 8;
/// Beside where a cluster's units are: how many of them have words for their pages.
const CUTS_SHIFT: u32 = 40;

fn to_finer(spot: u32) -> u64 {
    FINER | u64::from(spot) << FINER_SHIFT
}

#[inline]
fn finer(raw: u64) -> Option<u32> {
    (raw & 7 == FINER).then_some((raw >> FINER_SHIFT) as u32)
}

/// How a cluster's words are kept.
#[derive(Clone, Copy)]
enum Level<'a> {
    /// All follow from the first.
    Whole(Word),
    /// By units.
    Units(&'a Units),
    /// Each alone.
    Flat(&'a [AtomicU64; CLUSTER_PAGES]),
}

/// Units that have words for their pages, with which a cluster becomes flat; and with which it is no more.
const FLAT_UNITS: usize = UNITS / 2;
const CUT_UNITS: usize = UNITS / 4;
/// The same, if their pages are entries of the pool, each alone.
const DENSE_UNITS: usize = 2;

/// Values of a finer level, used again when they were given back. Takes no lock, and no memory but for its own.
#[derive(Debug)]
struct Store<T, const FIRST: usize> {
    values: Slab<T, FIRST>,
    free: [Free; LISTS],
    used: AtomicU32,
}

/// Lists of what was given back: by cluster, so that threads which work on neighbours do not hand each other memory
/// that is in the other's cache.
const LISTS: usize = 4;

/// The last that was given back, plus one, below a count of changes. Each holds the next in its first word.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Free(AtomicU64);

trait Block: Default {
    fn link(&self) -> &AtomicU64;
}

type Leaf = Box<[Cluster; LEAF_CLUSTERS]>;
type Branch = Box<[OnceLock<Leaf>; BRANCH_LEAVES]>;

/// The table of one object.
#[derive(Debug)]
pub struct Table {
    branches: Box<[OnceLock<Branch>]>,
    units: Store<Units, 8>,
    pages: Store<Pages, 32>,
    flats: Store<Flat, 1>,
    parking: Parking,
    bytes: AtomicUsize,
}

/// A cluster's words, as they are read.
struct View<'a> {
    table: &'a Table,
    level: Level<'a>,
}

/// Neighbours of a page that lie next to it on the device.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Run {
    /// Pages before it.
    pub before: usize,
    /// Pages after it.
    pub after: usize,
}

/// The only way to change a cluster's words.
pub struct ClusterGuard<'a> {
    table: &'a Table,
    cluster: &'a Cluster,
    level: Level<'a>,
    counts: Counts,
    number: ClusterNumber,
}

impl Default for Units {
    fn default() -> Self {
        Self([const { AtomicU64::new(0) }; UNITS])
    }
}

impl Default for Pages {
    fn default() -> Self {
        Self([const { AtomicU64::new(0) }; UNIT_PAGES])
    }
}

impl Default for Flat {
    fn default() -> Self {
        Self([const { AtomicU64::new(0) }; CLUSTER_PAGES])
    }
}

impl Block for Flat {
    fn link(&self) -> &AtomicU64 {
        &self.0[0]
    }
}

impl Block for Units {
    fn link(&self) -> &AtomicU64 {
        &self.0[0]
    }
}

impl Block for Pages {
    fn link(&self) -> &AtomicU64 {
        &self.0[0]
    }
}

impl<T, const FIRST: usize> Default for Store<T, FIRST> {
    fn default() -> Self {
        Self { values: Slab::default(), free: Default::default(), used: AtomicU32::new(0) }
    }
}

impl<T: Block, const FIRST: usize> Store<T, FIRST> {
    #[cfg(test)]
    fn held(&self) -> u32 {
        let mut held = self.used.load(Relaxed);
        for free in &self.free {
            let mut next = free.0.load(Relaxed) as u32;
            while let Some(spot) = next.checked_sub(1) {
                held -= 1;
                next = self.get(spot).link().load(Relaxed) as u32;
            }
        }
        held
    }

    #[inline]
    fn get(&self, spot: u32) -> &T {
        self.values.at(spot).expect("a spot that was handed out")
    }

    /// A value for a cluster: one that was given back for the same, or for others.
    fn take(&self, number: ClusterNumber, bytes: &AtomicUsize) -> u32 {
        if let Some(spot) = (0..LISTS).find_map(|by| self.pop(&self.free[(number.0 as usize + by) % LISTS].0))
        {
            return spot;
        }
        let id = self.used.fetch_add(1, Relaxed);
        self.reserve(id, bytes);
        Slab::<T, FIRST>::spot(id)
    }

    fn pop(&self, list: &AtomicU64) -> Option<u32> {
        let mut free = list.load(Acquire);
        loop {
            let spot = (free as u32).checked_sub(1)?;
            // Of one that somebody else takes meanwhile this reads a word, and the count has changed.
            let next = self.get(spot).link().load(Relaxed) as u32;
            let changed = (free >> 32).wrapping_add(1) << 32 | u64::from(next);
            match list.compare_exchange_weak(free, changed, AcqRel, Acquire) {
                Ok(_) => return Some(spot),
                Err(now) => free = now,
            }
        }
    }

    fn give(&self, number: ClusterNumber, spot: u32) {
        let link = self.get(spot).link();
        let list = &self.free[number.0 as usize % LISTS].0;
        let mut free = list.load(Relaxed);
        loop {
            link.store(u64::from(free as u32), Relaxed);
            let changed = (free >> 32).wrapping_add(1) << 32 | u64::from(spot + 1);
            match list.compare_exchange_weak(free, changed, AcqRel, Relaxed) {
                Ok(_) => return,
                Err(now) => free = now,
            }
        }
    }

    /// Makes memory for value number `id`.
    fn reserve(&self, id: u32, bytes: &AtomicUsize) {
        if self.values.get(id).is_none() {
            bytes.fetch_add(self.values.make(id, T::default), Relaxed);
        }
    }
}

impl Default for Table {
    fn default() -> Self {
        Self {
            branches: (0..BRANCHES).map(|_| OnceLock::new()).collect(),
            units: Store::default(),
            pages: Store::default(),
            flats: Store::default(),
            parking: Parking::default(),
            bytes: AtomicUsize::new(0),
        }
    }
}

impl Table {
    /// Bytes that clusters and directories take.
    pub fn bytes(&self) -> usize {
        self.bytes.load(Relaxed)
    }

    /// Makes memory for words that become finer: to free memory must not need any. `clusters` may then be cut, `units`
    /// of them, and some become flat.
    pub fn reserve(&self, clusters: u32, units: u32) {
        self.flats.reserve(self.flats.used.load(Relaxed) + units / FLAT_UNITS as u32, &self.bytes);
        self.units.reserve(self.units.used.load(Relaxed) + clusters, &self.bytes);
        self.pages.reserve(self.pages.used.load(Relaxed) + units, &self.bytes);
    }

    #[inline]
    fn cluster(&self, number: ClusterNumber) -> Option<&Cluster> {
        #[cfg(test)]
        walks::note();
        let number = number.0 as usize;
        let branch = self.branches.get(number / BRANCH_CLUSTERS)?.get()?;
        let leaf = branch[number / LEAF_CLUSTERS % BRANCH_LEAVES].get()?;
        Some(&leaf[place_in_leaf(number)])
    }

    /// The same, making the way there.
    #[cold]
    fn make_cluster(&self, number: ClusterNumber) -> &Cluster {
        let number = number.0 as usize;
        let branch = self.branches[number / BRANCH_CLUSTERS].get_or_init(|| {
            self.bytes.fetch_add(size_of::<[OnceLock<Leaf>; BRANCH_LEAVES]>(), Relaxed);
            Box::new([const { OnceLock::new() }; BRANCH_LEAVES])
        });
        let leaf = branch[number / LEAF_CLUSTERS % BRANCH_LEAVES].get_or_init(|| {
            self.bytes.fetch_add(LEAF_CLUSTERS * size_of::<Cluster>(), Relaxed);
            Box::new(std::array::from_fn(|_| Cluster::default()))
        });
        &leaf[place_in_leaf(number)]
    }

    #[inline]
    fn guard<'a>(&'a self, number: ClusterNumber, cluster: &'a Cluster) -> ClusterGuard<'a> {
        cluster.latch.acquire(&self.parking, number.0 as u32);
        let level = self.level(cluster).expect("nobody else changes it");
        ClusterGuard { table: self, cluster, level, counts: cluster.counts.load(Relaxed), number }
    }

    /// Locks a cluster, if it or a neighbour was ever touched.
    #[inline]
    pub fn lock(&self, number: ClusterNumber) -> Option<ClusterGuard<'_>> {
        self.cluster(number).map(|cluster| self.guard(number, cluster))
    }

    /// Locks a cluster.
    ///
    /// # Panics
    /// If the cluster number is beyond 47 bits of address space.
    #[inline]
    pub fn lock_or_create(&self, number: ClusterNumber) -> ClusterGuard<'_> {
        let cluster = self.cluster(number).unwrap_or_else(|| self.make_cluster(number));
        self.guard(number, cluster)
    }

    /// Locks two different clusters, in order of their numbers.
    pub fn lock_pair(
        &self,
        first: ClusterNumber,
        second: ClusterNumber,
    ) -> (ClusterGuard<'_>, ClusterGuard<'_>) {
        assert_ne!(first, second);
        if first < second {
            let a = self.lock_or_create(first);
            (a, self.lock_or_create(second))
        } else {
            let b = self.lock_or_create(second);
            (self.lock_or_create(first), b)
        }
    }

    /// Reads a word without a lock.
    #[inline]
    pub fn peek(&self, page: PageIndex) -> Word {
        self.read(page.cluster(), |view| view.word(page.offset())).unwrap_or(Word::HOLE)
    }

    /// What lies at a page's place, and how many pages before and after it lie next to it on the device, in one piece:
    /// at most `max_before` and `max_after`, for 0 nobody looks. `None` if there is nothing: the page is a hole, or in
    /// the program and nothing is kept of it, or lost. A page whose contents are not on the device has no neighbours.
    ///
    /// One look-up a cluster, and one step a word inside it (after FreeBSD's review D20281 of `swap_pager_haspage`).
    #[inline]
    pub fn has_page(&self, page: PageIndex, max_before: usize, max_after: usize) -> Option<Run> {
        let (number, offset) = (page.cluster(), page.offset());
        let (place, mut run) = self.read(number, |view| {
            let Some(place) = view.word(offset)?.place() else { return Some(None) };
            let run = match (place, view.level) {
                (Place::Device(_), Level::Whole(_)) => {
                    Run { before: max_before.min(offset), after: max_after.min(CLUSTER_PAGES - 1 - offset) }
                }
                (Place::Device(block), _) => Run {
                    before: view.before(offset, block, max_before)?,
                    after: view.after(offset + 1, block + 1, max_after)?,
                },
                _ => Run::default(),
            };
            Some(Some((place, run)))
        })??;
        let Place::Device(block) = place else { return Some(run) };
        if run.before < offset.min(max_before) && run.after < (CLUSTER_PAGES - 1 - offset).min(max_after) {
            return Some(run);
        }
        let mut next = number;
        while run.after < max_after && (offset + run.after + 1).is_multiple_of(CLUSTER_PAGES) {
            next = ClusterNumber(next.0 + 1);
            let (block, most) = (block + run.after as u64 + 1, max_after - run.after);
            match self.read(next, |view| view.after(0, block, most)) {
                None | Some(0) => break,
                Some(more) => run.after += more,
            }
        }
        let mut next = number;
        while run.before < max_before
            && page.0 > run.before as u64
            && (page.0 - run.before as u64).is_multiple_of(CLUSTER_PAGES as u64)
            && let Some(first) = block.checked_sub(run.before as u64)
        {
            next = ClusterNumber(next.0 - 1);
            match self.read(next, |view| view.before(CLUSTER_PAGES, first, max_before - run.before)) {
                None | Some(0) => break,
                Some(more) => run.before += more,
            }
        }
        Some(run)
    }

    /// Reads a cluster without a lock: what `look` found is of one state of it. `look` says `None` if what it sees
    /// cannot be. `None` if nothing was ever touched there.
    #[inline]
    fn read<T>(&self, number: ClusterNumber, look: impl Fn(&View<'_>) -> Option<T>) -> Option<T> {
        let cluster = self.cluster(number)?;
        for _ in 0..PEEKS {
            if let Some(version) = cluster.latch.read()
                && let Some(found) = self.level(cluster).and_then(|level| look(&View { table: self, level }))
                && cluster.latch.is_still(version)
            {
                return Some(found);
            }
            spin_loop();
        }
        // Its holder takes time.
        look(&self.guard(number, cluster).view())
    }

    /// `None` if what is read there cannot be: it changes meanwhile.
    #[inline]
    fn level(&self, cluster: &Cluster) -> Option<Level<'_>> {
        let root = cluster.root.load(Relaxed);
        Some(match finer(root) {
            None => Level::Whole(Word(root)),
            Some(spot) if root & FLAT != 0 => Level::Flat(&self.flats.values.at(spot)?.0),
            Some(spot) => Level::Units(self.units.values.at(spot)?),
        })
    }

    /// The numbers of all clusters in `range` in which not every page is a hole, ascending.
    pub fn touched(&self, range: Range<u64>) -> impl Iterator<Item = ClusterNumber> + '_ {
        let mut number = range.start;
        std::iter::from_fn(move || {
            while number < range.end {
                let Some(branch) =
                    self.branches.get(number as usize / BRANCH_CLUSTERS).and_then(OnceLock::get)
                else {
                    number = (number / BRANCH_CLUSTERS as u64 + 1) * BRANCH_CLUSTERS as u64;
                    continue;
                };
                let Some(leaf) = branch[number as usize / LEAF_CLUSTERS % BRANCH_LEAVES].get() else {
                    number = (number / LEAF_CLUSTERS as u64 + 1) * LEAF_CLUSTERS as u64;
                    continue;
                };
                let root = leaf[place_in_leaf(number as usize)].root.load(Relaxed);
                number += 1;
                if root != Word::HOLE.0 {
                    return Some(ClusterNumber(number - 1));
                }
            }
            None
        })
    }
}

impl View<'_> {
    /// The words of a unit: one for all, or each.
    fn unit(&self, at: usize) -> Option<Result<Word, &[AtomicU64; UNIT_PAGES]>> {
        Some(match self.level {
            Level::Whole(word) => Ok(word.nth(at * UNIT_PAGES)),
            Level::Flat(words) => Err(words[at * UNIT_PAGES..].first_chunk().expect("a unit's words")),
            Level::Units(units) => {
                let raw = units.0[at].load(Relaxed);
                match finer(raw) {
                    None => Ok(Word(raw)),
                    Some(pages) => Err(&self.table.pages.values.at(pages)?.0),
                }
            }
        })
    }

    #[inline]
    fn word(&self, offset: usize) -> Option<Word> {
        Some(match self.level {
            Level::Flat(words) => Word(words[offset].load(Relaxed)),
            _ => match self.unit(offset / UNIT_PAGES)? {
                Ok(whole) => whole.nth(offset % UNIT_PAGES),
                Err(pages) => Word(pages[offset % UNIT_PAGES].load(Relaxed)),
            },
        })
    }

    /// How many pages from `offset` on, at most `most`, have the blocks from `block` on.
    fn after(&self, offset: usize, block: u64, most: usize) -> Option<usize> {
        let end = (offset + most).min(CLUSTER_PAGES);
        let mut found = offset;
        match self.level {
            Level::Whole(word) if offset < end => {
                let follows = word.nth(offset).is_at_block(block);
                return Some(if follows { end - offset } else { 0 });
            }
            Level::Flat(words) => return Some(after(&words[offset..end], block)),
            _ => {}
        }
        while found < end {
            let (at, nth) = (found / UNIT_PAGES, found % UNIT_PAGES);
            let last = (end - at * UNIT_PAGES).min(UNIT_PAGES);
            let block = block + (found - offset) as u64;
            let count = match self.unit(at)? {
                Ok(whole) if whole.nth(nth).is_at_block(block) => last - nth,
                Ok(_) => 0,
                Err(pages) => after(&pages[nth..last], block),
            };
            found += count;
            if nth + count < last {
                break;
            }
        }
        Some(found - offset)
    }

    /// How many pages before `offset`, at most `most`, have the blocks before `block`, downwards.
    fn before(&self, offset: usize, block: u64, most: usize) -> Option<usize> {
        let most = most.min(offset).min(usize::try_from(block).unwrap_or(usize::MAX));
        let start = offset - most;
        let mut found = offset;
        match self.level {
            Level::Whole(word) if most > 0 => {
                let follows = word.nth(offset - 1).is_at_block(block - 1);
                return Some(if follows { most } else { 0 });
            }
            Level::Flat(words) => return Some(before(&words[start..offset], block)),
            _ => {}
        }
        while found > start {
            let (at, nth) = ((found - 1) / UNIT_PAGES, (found - 1) % UNIT_PAGES);
            let first = start.saturating_sub(at * UNIT_PAGES);
            let block = block - (offset - found) as u64 - 1;
            let count = match self.unit(at)? {
                Ok(whole) if whole.nth(nth).is_at_block(block) => nth + 1 - first,
                Ok(_) => 0,
                Err(pages) => before(&pages[first..=nth], block + 1),
            };
            found -= count;
            if count < nth + 1 - first {
                break;
            }
        }
        Some(offset - found)
    }
}

impl History {
    /// What is true of a cluster of which nothing is left: where it stands.
    pub fn emptied(self) -> Self {
        Self { queued: self.queued, pooled: self.pooled, ..Self::default() }
    }

    const FLAGS: u32 = 3;
    const BITS: u32 = 13;
    const MASK: u32 = (1 << Self::BITS) - 1;

    fn to_bits(self) -> u32 {
        let number = |value: u16| u32::from(value).min(Self::MASK);
        u32::from(self.queued)
            | u32::from(self.workingset) << 1
            | u32::from(self.pooled) << 2
            | number(self.heat) << Self::FLAGS
            | number(self.taken) << (Self::FLAGS + Self::BITS)
    }

    fn from_bits(bits: u32) -> Self {
        let number = |shift: u32| (bits >> shift & Self::MASK) as u16;
        Self {
            queued: bits & 1 != 0,
            workingset: bits & 2 != 0,
            pooled: bits & 4 != 0,
            heat: number(Self::FLAGS),
            taken: number(Self::FLAGS + Self::BITS),
        }
    }
}

impl<'a> ClusterGuard<'a> {
    /// The cluster's number.
    pub fn number(&self) -> ClusterNumber {
        self.number
    }

    fn view(&self) -> View<'a> {
        View { table: self.table, level: self.level }
    }

    /// The word of the page at `offset`.
    #[inline]
    pub fn get(&self, offset: usize) -> Word {
        self.view().word(offset).expect("nobody else changes it")
    }

    /// The word of the page at `offset`, and how many pages from it on, at most `most`, are seen at once to have words
    /// that follow from it ([`Word::nth`]): to the end of its unit, or of the cluster if that is one word.
    pub fn stretch(&self, offset: usize, most: usize) -> (Word, usize) {
        if let Level::Whole(word) = self.level {
            return (word.nth(offset), most.min(CLUSTER_PAGES - offset));
        }
        let nth = offset % UNIT_PAGES;
        let most = most.min(UNIT_PAGES - nth);
        match self.view().unit(offset / UNIT_PAGES).expect("nobody else changes it") {
            Ok(whole) => (whole.nth(nth), most),
            Err(pages) => {
                let word = Word(pages[nth].load(Relaxed));
                let follows = |&by: &usize| Word(pages[nth + by].load(Relaxed)) == word.nth(by);
                let more = if word.spreads() { (1..most).take_while(follows).count() } else { 0 };
                (word, 1 + more)
            }
        }
    }

    /// Changes the word of the page at `offset`.
    #[inline]
    pub fn set(&mut self, offset: usize, word: Word) {
        match self.level {
            Level::Flat(words) => {
                self.replace(&words[offset], word);
                self.join_flat(words, word, offset);
            }
            _ => self.set_in_unit(offset, word),
        }
    }

    /// One page's word, and the counts.
    #[inline]
    fn replace(&mut self, at: &AtomicU64, word: Word) {
        let old = Word(at.load(Relaxed));
        at.store(word.0, Relaxed);
        self.counts = self.counts + counts_of(word, 1) - counts_of(old, 1);
    }

    #[inline(never)]
    fn set_in_unit(&mut self, offset: usize, word: Word) {
        let (at, nth) = (offset / UNIT_PAGES, offset % UNIT_PAGES);
        let whole = match self.level {
            Level::Units(units) => units.0[at].load(Relaxed),
            _ => self.view().word(at * UNIT_PAGES).expect("nobody else changes it").0,
        };
        let pages = match finer(whole) {
            Some(spot) => self.table.pages.get(spot),
            None if Word(whole).nth(nth) == word => return,
            None => match self.cut_unit(at, word) {
                Some(pages) => pages,
                None => return self.set(offset, word),
            },
        };
        self.replace(&pages.0[nth], word);
        // The ends tell at once, as a rule.
        let first = Word(pages.0[0].load(Relaxed));
        if word.spreads()
            && word == first.nth(nth)
            && Word(pages.0[UNIT_PAGES - 1].load(Relaxed)) == first.nth(UNIT_PAGES - 1)
            && follow(&pages.0, first)
        {
            self.set_unit(at, first);
            self.join(at);
        }
    }

    /// The pages of a unit that has been one word, with words of their own. `None` if the cluster is flat now.
    #[inline(never)]
    fn cut_unit(&mut self, at: usize, word: Word) -> Option<&'a Pages> {
        let table = self.table;
        let units = self.cut();
        let root = self.cluster.root.load(Relaxed);
        let cuts = (root >> CUTS_SHIFT) as usize;
        // Pages that come one by one and fill what was cut for them: others will follow.
        let dense = || !word.spreads() && cuts >= DENSE_UNITS && self.touched() >= cuts * UNIT_PAGES;
        if cuts >= FLAT_UNITS || dense() {
            self.flatten(units);
            return None;
        }
        self.cluster.root.store(root + (1 << CUTS_SHIFT), Relaxed);
        let spot = table.pages.take(self.number, &table.bytes);
        let pages = table.pages.get(spot);
        let whole = Word(units.0[at].load(Relaxed));
        pages.0.iter().enumerate().for_each(|(nth, page)| page.store(whole.nth(nth).0, Relaxed));
        units.0[at].store(to_finer(spot), Relaxed);
        Some(pages)
    }

    /// A word for each page, in one piece.
    fn flatten(&mut self, units: &'a Units) {
        let table = self.table;
        let spot = table.flats.take(self.number, &table.bytes);
        let words = &table.flats.get(spot).0;
        for (unit, to) in units.0.iter().zip(words.as_chunks::<UNIT_PAGES>().0) {
            let raw = unit.load(Relaxed);
            if let Some(pages) = finer(raw) {
                to.iter()
                    .zip(&table.pages.get(pages).0)
                    .for_each(|(to, word)| to.store(word.load(Relaxed), Relaxed));
                table.pages.give(self.number, pages);
            } else {
                to.iter().enumerate().for_each(|(nth, to)| to.store(Word(raw).nth(nth).0, Relaxed));
            }
        }
        let before = self.cluster.root.load(Relaxed);
        self.cluster.root.store(to_finer(spot) | FLAT, Relaxed);
        self.level = Level::Flat(words);
        table.units.give(self.number, finer(before).expect("it had units"));
    }

    /// A word for each unit in place of one for each page, if most are of that kind.
    fn unflatten(&mut self, words: &'a [AtomicU64; CLUSTER_PAGES]) {
        let (units, _) = words.as_chunks::<UNIT_PAGES>();
        let first = |unit: &[AtomicU64; UNIT_PAGES]| Word(unit[0].load(Relaxed));
        let is_cut = |unit: &&[AtomicU64; UNIT_PAGES]| !first(unit).spreads() || !follow(*unit, first(unit));
        if units.iter().filter(is_cut).take(CUT_UNITS + 1).count() > CUT_UNITS {
            return;
        }
        let table = self.table;
        let spot = table.units.take(self.number, &table.bytes);
        let coarse = table.units.get(spot);
        let mut cuts = 0;
        for (unit, to) in units.iter().zip(&coarse.0) {
            let raw = if is_cut(&unit) {
                cuts += 1;
                let spot = table.pages.take(self.number, &table.bytes);
                for (word, to) in unit.iter().zip(&table.pages.get(spot).0) {
                    to.store(word.load(Relaxed), Relaxed);
                }
                to_finer(spot)
            } else {
                first(unit).0
            };
            to.store(raw, Relaxed);
        }
        let before = self.cluster.root.load(Relaxed);
        self.cluster.root.store(to_finer(spot) | cuts << CUTS_SHIFT, Relaxed);
        self.level = Level::Units(coarse);
        table.flats.give(self.number, finer(before).expect("it was flat"));
    }

    /// Changes the words of the pages in `range`: to those that follow from `word` for its first page.
    pub fn set_run(&mut self, range: Range<usize>, word: Word) {
        if range == (0..CLUSTER_PAGES) && word.spreads() {
            self.set_root(word);
            return;
        }
        if let Level::Flat(words) = self.level {
            for (nth, at) in words[range.clone()].iter().enumerate() {
                self.replace(at, word.nth(nth));
            }
            if !range.is_empty() {
                self.join_flat(words, word, range.start);
            }
            // Whoever goes through a cluster unit by unit has come to its end.
            if range.len() >= UNIT_PAGES
                && range.end == CLUSTER_PAGES
                && let Level::Flat(words) = self.level
            {
                self.unflatten(words);
            }
            return;
        }
        let mut offset = range.start;
        while offset < range.end {
            let word = word.nth(offset - range.start);
            if offset.is_multiple_of(UNIT_PAGES)
                && offset + UNIT_PAGES <= range.end
                && word.spreads()
                && !matches!(self.level, Level::Flat(_))
            {
                let at = offset / UNIT_PAGES;
                self.counts = self.counts + counts_of(word, UNIT_PAGES) - self.unit_counts(at);
                self.cut();
                self.set_unit(at, word);
                self.join(at);
                offset += UNIT_PAGES;
            } else {
                self.set(offset, word);
                offset += 1;
            }
        }
    }

    /// The counts over a unit's pages.
    fn unit_counts(&self, at: usize) -> Counts {
        match self.view().unit(at).expect("nobody else changes it") {
            Ok(whole) => counts_of(whole, UNIT_PAGES),
            Err(pages) => pages.iter().map(|page| counts_of(Word(page.load(Relaxed)), 1)).sum(),
        }
    }

    /// The units of a cluster that is not flat, with words of their own.
    fn cut(&mut self) -> &'a Units {
        let whole = match self.level {
            Level::Units(units) => return units,
            Level::Whole(word) => word,
            Level::Flat(_) => unreachable!("its pages have words of their own"),
        };
        let spot = self.table.units.take(self.number, &self.table.bytes);
        let units = self.table.units.get(spot);
        for (at, unit) in units.0.iter().enumerate() {
            unit.store(whole.nth(at * UNIT_PAGES).0, Relaxed);
        }
        self.cluster.root.store(to_finer(spot), Relaxed);
        self.level = Level::Units(units);
        units
    }

    /// One word for a unit. The counts are the caller's.
    fn set_unit(&mut self, at: usize, word: Word) {
        let Level::Units(units) = self.level else { unreachable!("cut by the caller") };
        let before = finer(units.0[at].load(Relaxed));
        units.0[at].store(word.0, Relaxed);
        if let Some(pages) = before {
            let root = self.cluster.root.load(Relaxed);
            self.cluster.root.store(root - (1 << CUTS_SHIFT), Relaxed);
            self.table.pages.give(self.number, pages);
        }
    }

    /// One word for the cluster.
    fn set_root(&mut self, word: Word) {
        let before = finer(self.cluster.root.load(Relaxed));
        self.cluster.root.store(word.0, Relaxed);
        let table = self.table;
        match (std::mem::replace(&mut self.level, Level::Whole(word)), before) {
            (Level::Units(units), Some(spot)) => {
                let cut = units.0.iter().filter_map(|unit| finer(unit.load(Relaxed)));
                cut.for_each(|spot| table.pages.give(self.number, spot));
                table.units.give(self.number, spot);
            }
            (Level::Flat(_), Some(spot)) => table.flats.give(self.number, spot),
            _ => {}
        }
        self.counts = counts_of(word, CLUSTER_PAGES);
    }

    /// Makes one word of all units, if they agree. Unit `at` has just changed.
    fn join(&mut self, at: usize) {
        let Level::Units(units) = self.level else { return };
        let word = |at: usize| units.0[at].load(Relaxed);
        let first = Word(word(0));
        let follows = |at: usize| finer(word(at)).is_none() && Word(word(at)) == first.nth(at * UNIT_PAGES);
        if first.spreads() && follows(at) && follows(UNITS - 1) && (0..UNITS).all(follows) {
            self.set_root(first);
        }
    }

    /// Makes one word of all pages, if they agree. That at `offset` has just changed to `word`.
    #[inline]
    fn join_flat(&mut self, words: &'a [AtomicU64; CLUSTER_PAGES], word: Word, offset: usize) {
        // As a rule the counts tell at once.
        if self.counts == counts_of(word, CLUSTER_PAGES) && word.spreads() {
            let first = Word(words[0].load(Relaxed));
            if word == first.nth(offset) && follow(words, first) {
                self.set_root(first);
            }
        }
    }

    fn counted(&self, count: Count) -> usize {
        (self.counts / count.one()) as usize & ((1 << COUNT_BITS) - 1)
    }

    /// Pages that are no holes.
    fn touched(&self) -> usize {
        self.present() + self.cached() + self.swapped() + self.poisoned()
    }

    /// Pages in the program.
    pub fn present(&self) -> usize {
        self.counted(Count::Present)
    }

    /// Pages on probation.
    pub fn cached(&self) -> usize {
        self.counted(Count::Cached)
    }

    /// Pages at a place.
    pub fn swapped(&self) -> usize {
        self.counted(Count::Swapped)
    }

    /// Pages that are lost.
    pub fn poisoned(&self) -> usize {
        self.counted(Count::Poisoned)
    }

    /// Pages with a transfer under way.
    pub fn locked(&self) -> usize {
        self.counted(Count::Locked)
    }

    /// Pages in the program of which the pool keeps a copy.
    pub fn copies(&self) -> usize {
        self.counted(Count::Copies)
    }

    /// Whether every page is a hole.
    pub fn is_empty(&self) -> bool {
        self.counts == 0
    }

    /// What reclaim remembers.
    pub fn history(&self) -> History {
        History::from_bits(self.cluster.history.load(Relaxed))
    }

    /// Changes that.
    pub fn set_history(&mut self, history: History) {
        self.cluster.history.store(history.to_bits(), Relaxed);
    }
}

impl Drop for ClusterGuard<'_> {
    #[inline]
    fn drop(&mut self) {
        self.cluster.counts.store(self.counts, Relaxed);
        self.cluster.latch.release(&self.table.parking, self.number.0 as u32);
    }
}

/// How often this thread has looked something up.
#[cfg(test)]
pub(crate) mod walks {
    use std::cell::Cell;

    thread_local!(static COUNT: Cell<usize> = const { Cell::new(0) });

    pub(super) fn note() {
        COUNT.set(COUNT.get() + 1);
    }

    /// Since the last call.
    pub(crate) fn take() -> usize {
        COUNT.take()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::place::Handle;
    use crate::workingset::Shadow;
    use proptest::collection::vec;
    use proptest::prelude::*;

    #[test]
    fn words_are_found_again_and_counted() {
        let table = Table::default();
        let page = PageIndex(0x0007_f001_2345);
        assert_eq!(table.peek(page), Word::HOLE);
        assert!(table.lock(page.cluster()).is_none());
        {
            let mut cluster = table.lock_or_create(page.cluster());
            cluster.set(page.offset(), Word::present(None).locked());
            assert_eq!((cluster.present(), cluster.locked()), (1, 1));
            cluster.set(page.offset(), Word::swapped(Place::ZERO, Shadow(1)));
            assert_eq!((cluster.present(), cluster.locked(), cluster.swapped()), (0, 0, 1));
        }
        assert_eq!(table.peek(page), Word::swapped(Place::ZERO, Shadow(1)));
    }

    #[test]
    fn the_walk_leaves_out_what_is_all_holes() {
        let table = Table::default();
        let numbers = [3, 4, 255, 256, 131_071, 131_072, 50_000_000];
        for number in numbers {
            table.lock_or_create(ClusterNumber(number)).set(7, Word::present(None));
        }
        let found = || table.touched(4..60_000_000).map(|n| n.0).collect::<Vec<_>>();
        assert_eq!(found(), numbers[1..]);
        table.lock_or_create(ClusterNumber(256)).set(7, Word::HOLE);
        table.lock_or_create(ClusterNumber(9)).set(7, Word::HOLE);
        assert_eq!(found(), [4, 255, 131_071, 131_072, 50_000_000]);
        assert_eq!((table.units.held(), table.pages.held(), table.flats.held()), (6, 6, 0));
    }

    /// What a run of pages may be set to: of each state, flags and places that follow from the first page's, or not.
    fn any_word() -> impl Strategy<Value = Word> {
        let place = prop_oneof![
            Just(None),
            Just(Some(Place::ZERO)),
            (0..3u32).prop_map(|pattern| Some(Place::Same(pattern))),
            (0..4000u64).prop_map(|block| Some(Place::Device(block))),
            any::<u32>().prop_map(|number| Some(Place::Pool(Handle::page(number)))),
            (any::<u32>(), 0..16usize)
                .prop_map(|(folio, piece)| Some(Place::Pool(Handle::piece(folio, piece)))),
        ];
        (0..5, place, 0..2u16, any::<bool>()).prop_map(|(state, place, top, locked)| {
            let word = match state {
                0 => Word::HOLE,
                1 => Word::present(place),
                2 => Word::cached(top, place),
                3 => Word::swapped(place.unwrap_or(Place::ZERO), Shadow(top)),
                _ => Word::POISONED,
            };
            if locked && state != 0 { word.locked() } else { word }
        })
    }

    fn any_range() -> impl Strategy<Value = Range<usize>> {
        prop_oneof![
            Just(0..CLUSTER_PAGES),
            (0..UNITS, 1..=4usize)
                .prop_map(|(at, count)| at * UNIT_PAGES..((at + count) * UNIT_PAGES).min(CLUSTER_PAGES)),
            (0..CLUSTER_PAGES, 1..40usize).prop_map(|(at, count)| at..(at + count).min(CLUSTER_PAGES)),
            (0..CLUSTER_PAGES).prop_map(|at| at..at + 1),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(200))]
        #[test]
        fn any_order_of_words_is_a_flat_table(changes in vec((0..3u64, any_range(), any_word(), any::<bool>()), 1..60)) {
            let table = Table::default();
            let mut flat = [[Word::HOLE; CLUSTER_PAGES]; 3];
            for (number, range, word, by_page) in changes {
                let (cluster, flat) = (ClusterNumber(number), &mut flat[number as usize]);
                let mut guard = table.lock_or_create(cluster);
                for offset in range.clone() {
                    flat[offset] = word.nth(offset - range.start);
                    if by_page {
                        guard.set(offset, flat[offset]);
                    }
                }
                if !by_page {
                    guard.set_run(range, word);
                }
                let count = |is: &dyn Fn(&Word) -> bool| flat.iter().filter(|word| is(word)).count();
                prop_assert_eq!(guard.present(), count(&|word| word.state() == State::Present));
                prop_assert_eq!(guard.cached(), count(&|word| word.state() == State::Cached));
                prop_assert_eq!(guard.swapped(), count(&|word| word.state() == State::Swapped));
                prop_assert_eq!(guard.poisoned(), count(&|word| word.state() == State::Poisoned));
                prop_assert_eq!(guard.locked(), count(&|word| word.is_locked()));
                prop_assert_eq!(guard.copies(), count(&|word| word.has_pool_copy()));
                prop_assert_eq!(guard.is_empty(), count(&|&word| word == Word::HOLE) == CLUSTER_PAGES);
                prop_assert!((0..CLUSTER_PAGES).all(|offset| guard.get(offset) == flat[offset]));
                drop(guard);
                prop_assert!((0..CLUSTER_PAGES).all(|offset| table.peek(cluster.page(offset)) == flat[offset]));
                let holes = flat.iter().all(|&word| word == Word::HOLE);
                prop_assert_eq!(table.touched(number..number + 1).next().is_none(), holes);
            }
            for number in 0..3 {
                table.lock_or_create(ClusterNumber(number)).set_run(0..CLUSTER_PAGES, Word::HOLE);
            }
            prop_assert_eq!((table.units.held(), table.pages.held(), table.flats.held()), (0, 0, 0));
        }
    }

    /// Page by page in any order: when all of a unit, and of a cluster, agree, one word is left.
    #[test]
    fn what_agrees_is_one_word_again() {
        let table = Table::default();
        let words = |offset: usize| Word::swapped(Place::Device(700), Shadow(3)).nth(offset);
        for step in [1, 511, 5, 77] {
            let mut cluster = table.lock_or_create(ClusterNumber(9));
            for nth in 0..CLUSTER_PAGES {
                let offset = nth * step % CLUSTER_PAGES;
                cluster.set(offset, words(offset));
            }
            assert_eq!(
                (table.units.held(), table.pages.held(), table.flats.held()),
                (0, 0, 0),
                "step {step}"
            );
            cluster.set(100, Word::present(None));
            assert_eq!((table.units.held(), table.pages.held(), table.flats.held()), (1, 1, 0));
            assert_eq!((cluster.present(), cluster.swapped()), (1, 511));
            cluster.set_run(0..CLUSTER_PAGES, Word::HOLE);
            assert_eq!((table.units.held(), table.pages.held(), table.flats.held()), (0, 0, 0));
        }
    }

    /// Without a lock a reader sees what some order of the changes left, though the levels come and go meanwhile.
    #[test]
    fn readers_see_whole_words_while_the_levels_change() {
        const ROUNDS: u64 = 3000;
        let table = Table::default();
        let (ours, others) = (ClusterNumber(3), ClusterNumber(4));
        let done = std::sync::atomic::AtomicBool::new(false);
        // The word of each page tells the page, and a round that only grows.
        let word =
            |offset: usize, round: u64| Word::swapped(Place::Device(round * 512), Shadow(1)).nth(offset);
        table.lock_or_create(ours).set_run(0..CLUSTER_PAGES, word(0, 0));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for round in 1..=ROUNDS {
                    let mut cluster = table.lock(ours).unwrap();
                    if round % 2 == 0 {
                        cluster.set_run(0..CLUSTER_PAGES, word(0, round));
                    } else {
                        (0..CLUSTER_PAGES)
                            .step_by(3)
                            .for_each(|offset| cluster.set(offset, word(offset, round)));
                    }
                }
                done.store(true, Relaxed);
            });
            // Takes what the first gives back.
            scope.spawn(|| {
                while !done.load(Relaxed) {
                    let mut cluster = table.lock_or_create(others);
                    (0..CLUSTER_PAGES).step_by(5).for_each(|offset| cluster.set(offset, Word::POISONED));
                    cluster.set_run(0..CLUSTER_PAGES, Word::HOLE);
                }
            });
            scope.spawn(|| {
                let mut seen = [0; CLUSTER_PAGES];
                while !done.load(Relaxed) {
                    for offset in [0, 3, 100, 511] {
                        let Some(Place::Device(block)) = table.peek(ours.page(offset)).place() else {
                            panic!("not a word of this cluster")
                        };
                        assert_eq!(block % 512, offset as u64);
                        assert!(block / 512 >= seen[offset]);
                        seen[offset] = block / 512;
                    }
                }
            });
        });
    }

    /// The definition: one look-up a page.
    fn has_page_by_page(table: &Table, page: PageIndex, max_before: usize, max_after: usize) -> Option<Run> {
        let place = table.peek(page).place()?;
        let Place::Device(block) = place else { return Some(Run::default()) };
        let is = |index: Option<u64>, block: Option<u64>| match (index, block) {
            (Some(index), Some(block)) => table.peek(PageIndex(index)).place() == Some(Place::Device(block)),
            _ => false,
        };
        let before = |&by: &u64| is(page.0.checked_sub(by), block.checked_sub(by));
        let after = |&by: &u64| is(page.0.checked_add(by), block.checked_add(by));
        Some(Run {
            before: (1..=max_before as u64).take_while(before).count(),
            after: (1..=max_after as u64).take_while(after).count(),
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(300))]
        #[test]
        fn runs_are_those_of_the_loop_over_pages(
            base in prop_oneof![Just(0u64), Just(77), Just((1u64 << 26) - 3)],
            changes in vec((0..3u64, any_range(), prop_oneof![4 => (0..3000u64).prop_map(Some), 1 => Just(None)], 0..2u16), 1..40),
            looks in vec((0..3 * CLUSTER_PAGES as u64, 0..700usize, 0..700usize), 1..40),
        ) {
            let table = Table::default();
            for (number, range, block, shadow) in changes {
                // As a rule the blocks go on where those of the cluster before end.
                let block = block.map(|block| if block < 1000 { number * 512 + range.start as u64 } else { block });
                let word = block.map_or(Word::HOLE, |block| Word::swapped(Place::Device(block), Shadow(shadow)));
                table.lock_or_create(ClusterNumber(base + number)).set_run(range, word);
            }
            for (index, max_before, max_after) in looks {
                let page = PageIndex(ClusterNumber(base).page(0).0 + index);
                prop_assert_eq!(
                    table.has_page(page, max_before, max_after),
                    has_page_by_page(&table, page, max_before, max_after)
                );
            }
        }
    }
}
