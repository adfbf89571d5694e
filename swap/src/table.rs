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

use crate::entry::{CLUSTER_PAGES, ClusterNumber, PageIndex};
use crate::latch::{Latch, Parking};
use crate::place::Place;
use crate::slab::Slab;
use crate::sync::atomic::{
    AtomicU32, AtomicU64, AtomicUsize, Ordering::AcqRel, Ordering::Acquire, Ordering::Relaxed,
};
use crate::sync::spin_loop;
use crate::word::{State, Word};
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
/// Looks at a cluster that is held, before a reader waits for it.
const PEEKS: usize = 64;

/// Where a cluster stands in its leaf: neighbours far apart, for threads that work on neighbours would write to the same
/// cache line.
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
    /// Second chance: probation hits say that its pages are hot.
    pub referenced: bool,
    /// Whether pages of it belong to the working set.
    pub workingset: bool,
    /// Whether the cluster stands in the queue for writeback.
    pub pooled: bool,
    /// Whether pages of it were stored in the pool since writeback looked at it.
    pub stored: bool,
    /// Probation hits since the last take-out.
    pub hits: u16,
    /// Pages that the last take-out took.
    pub taken: u16,
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

#[derive(Debug)]
#[repr(align(64))]
struct Pages([AtomicU64; UNIT_PAGES]);

/// In place of a word: the number of what holds the finer words. No [`State`] has this value.
const FINER: u64 = 7;
const FINER_SHIFT: u32 = 8;

fn to_finer(id: u32) -> u64 {
    FINER | u64::from(id) << FINER_SHIFT
}

fn finer(raw: u64) -> Option<u32> {
    (raw & 7 == FINER).then_some((raw >> FINER_SHIFT) as u32)
}

/// Values of a finer level, used again when they were given back. Takes no lock, and no memory but for its own.
#[derive(Debug)]
struct Store<T, const FIRST: usize> {
    values: Slab<T, FIRST>,
    /// The last that was given back, plus one, below a count of changes. Each holds the next in its first word.
    free: AtomicU64,
    used: AtomicU32,
}

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
    parking: Parking,
    bytes: AtomicUsize,
}

/// A cluster's words, as they are read.
struct View<'a> {
    table: &'a Table,
    root: u64,
    units: Option<&'a Units>,
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
    units: Option<&'a Units>,
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
        Self { values: Slab::default(), free: AtomicU64::new(0), used: AtomicU32::new(0) }
    }
}

impl<T: Block, const FIRST: usize> Store<T, FIRST> {
    #[cfg(test)]
    fn held(&self) -> u32 {
        let mut held = self.used.load(Relaxed);
        let mut next = self.free.load(Relaxed) as u32;
        while let Some(id) = next.checked_sub(1) {
            held -= 1;
            next = self.get(id).link().load(Relaxed) as u32;
        }
        held
    }

    fn get(&self, id: u32) -> &T {
        self.values.get(id).expect("an id that was handed out")
    }

    fn take(&self, bytes: &AtomicUsize) -> u32 {
        let mut free = self.free.load(Acquire);
        while let Some(id) = (free as u32).checked_sub(1) {
            // Of one that somebody else takes meanwhile this reads a word, and the count has changed.
            let next = self.get(id).link().load(Relaxed) as u32;
            let changed = (free >> 32).wrapping_add(1) << 32 | u64::from(next);
            match self.free.compare_exchange_weak(free, changed, AcqRel, Acquire) {
                Ok(_) => return id,
                Err(now) => free = now,
            }
        }
        let id = self.used.fetch_add(1, Relaxed);
        self.reserve(id, bytes);
        id
    }

    fn give(&self, id: u32) {
        let link = self.get(id).link();
        let mut free = self.free.load(Relaxed);
        loop {
            link.store(u64::from(free as u32), Relaxed);
            let changed = (free >> 32).wrapping_add(1) << 32 | u64::from(id + 1);
            match self.free.compare_exchange_weak(free, changed, AcqRel, Relaxed) {
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

    /// Makes memory for words that become finer: to free memory must not need any. `clusters` may then be cut, and
    /// `units` of them.
    pub fn reserve(&self, clusters: u32, units: u32) {
        self.units.reserve(self.units.used.load(Relaxed) + clusters, &self.bytes);
        self.pages.reserve(self.pages.used.load(Relaxed) + units, &self.bytes);
    }

    fn cluster(&self, number: ClusterNumber) -> Option<&Cluster> {
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

    fn guard<'a>(&'a self, number: ClusterNumber, cluster: &'a Cluster) -> ClusterGuard<'a> {
        cluster.latch.acquire(&self.parking, number.0 as u32);
        let units = finer(cluster.root.load(Relaxed)).map(|id| self.units.get(id));
        ClusterGuard { table: self, cluster, units, counts: cluster.counts.load(Relaxed), number }
    }

    /// Locks a cluster, if it or a neighbour was ever touched.
    pub fn lock(&self, number: ClusterNumber) -> Option<ClusterGuard<'_>> {
        self.cluster(number).map(|cluster| self.guard(number, cluster))
    }

    /// Locks a cluster.
    ///
    /// # Panics
    /// If the cluster number is beyond 47 bits of address space.
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
    pub fn peek(&self, page: PageIndex) -> Word {
        self.read(page.cluster(), |view| view.word(page.offset())).unwrap_or(Word::HOLE)
    }

    /// What lies at a page's place, and how many pages before and after it lie next to it on the device, in one piece: at
    /// most `max_before` and `max_after`, for 0 nobody looks. `None` if there is nothing: the page is a hole, or in the
    /// program and nothing is kept of it, or lost. A page whose contents are not on the device has no neighbours.
    ///
    /// One look-up a cluster, and one step a word inside it (after FreeBSD's review D20281 of `swap_pager_haspage`).
    pub fn has_page(&self, page: PageIndex, max_before: usize, max_after: usize) -> Option<Run> {
        let (number, offset) = (page.cluster(), page.offset());
        let (place, mut run) = self.read(number, |view| {
            let Some(place) = view.word(offset)?.place() else { return Some(None) };
            let mut run = Run { before: 0, after: 0 };
            if let Place::Device(block) = place {
                run.after = view.after(offset + 1, block + 1, max_after)?;
                run.before = view.before(offset, block, max_before)?;
            }
            Some(Some((place, run)))
        })??;
        let Place::Device(block) = place else { return Some(run) };
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

    /// Reads a cluster without a lock: what `look` found is of one state of it. `look` says `None` if what it sees cannot
    /// be. `None` if nothing was ever touched there.
    fn read<T>(&self, number: ClusterNumber, look: impl Fn(&View<'_>) -> Option<T>) -> Option<T> {
        let cluster = self.cluster(number)?;
        for _ in 0..PEEKS {
            if let Some(version) = cluster.latch.read()
                && let Some(found) = self.view(cluster).and_then(|view| look(&view))
                && cluster.latch.is_still(version)
            {
                return Some(found);
            }
            spin_loop();
        }
        // Its holder takes time.
        look(&self.guard(number, cluster).view())
    }

    fn view(&self, cluster: &Cluster) -> Option<View<'_>> {
        let root = cluster.root.load(Relaxed);
        let units = match finer(root) {
            None => None,
            Some(id) => Some(self.units.values.get(id)?),
        };
        Some(View { table: self, root, units })
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
        let Some(units) = self.units else { return Some(Ok(Word(self.root).nth(at * UNIT_PAGES))) };
        let raw = units.0[at].load(Relaxed);
        Some(match finer(raw) {
            None => Ok(Word(raw)),
            Some(pages) => Err(&self.table.pages.values.get(pages)?.0),
        })
    }

    fn word(&self, offset: usize) -> Option<Word> {
        let nth = offset % UNIT_PAGES;
        Some(match self.unit(offset / UNIT_PAGES)? {
            Ok(whole) => whole.nth(nth),
            Err(pages) => Word(pages[nth].load(Relaxed)),
        })
    }

    /// How many pages from `offset` on, at most `most`, have the blocks from `block` on.
    fn after(&self, offset: usize, block: u64, most: usize) -> Option<usize> {
        let end = (offset + most).min(CLUSTER_PAGES);
        let mut found = offset;
        if self.units.is_none() && offset < end {
            let follows = Word(self.root).nth(offset).is_at_block(block);
            return Some(if follows { end - offset } else { 0 });
        }
        while found < end {
            let (at, nth) = (found / UNIT_PAGES, found % UNIT_PAGES);
            let last = (end - at * UNIT_PAGES).min(UNIT_PAGES);
            let block = block + (found - offset) as u64;
            let count = match self.unit(at)? {
                Ok(whole) if whole.nth(nth).is_at_block(block) => last - nth,
                Ok(_) => 0,
                Err(pages) => pages[nth..last]
                    .iter()
                    .zip(block..)
                    .take_while(|(word, block)| {
                        Word(word.load(Relaxed)).place() == Some(Place::Device(*block))
                    })
                    .count(),
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
        if self.units.is_none() && most > 0 {
            let follows = Word(self.root).nth(offset - 1).is_at_block(block - 1);
            return Some(if follows { most } else { 0 });
        }
        while found > start {
            let (at, nth) = ((found - 1) / UNIT_PAGES, (found - 1) % UNIT_PAGES);
            let first = start.saturating_sub(at * UNIT_PAGES);
            let block = block - (offset - found) as u64 - 1;
            let count = match self.unit(at)? {
                Ok(whole) if whole.nth(nth).is_at_block(block) => nth + 1 - first,
                Ok(_) => 0,
                Err(pages) => (first..=nth)
                    .rev()
                    .zip((0..=block).rev())
                    .take_while(|&(nth, block)| Word(pages[nth].load(Relaxed)).is_at_block(block))
                    .count(),
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

    const FLAGS: u32 = 5;
    const BITS: u32 = 13;
    const MASK: u32 = (1 << Self::BITS) - 1;

    fn to_bits(self) -> u32 {
        let number = |value: u16| u32::from(value).min(Self::MASK);
        u32::from(self.queued)
            | u32::from(self.referenced) << 1
            | u32::from(self.workingset) << 2
            | u32::from(self.pooled) << 3
            | u32::from(self.stored) << 4
            | number(self.hits) << Self::FLAGS
            | number(self.taken) << (Self::FLAGS + Self::BITS)
    }

    fn from_bits(bits: u32) -> Self {
        let number = |shift: u32| (bits >> shift & Self::MASK) as u16;
        Self {
            queued: bits & 1 != 0,
            referenced: bits & 2 != 0,
            workingset: bits & 4 != 0,
            pooled: bits & 8 != 0,
            stored: bits & 16 != 0,
            hits: number(Self::FLAGS),
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
        View { table: self.table, root: self.cluster.root.load(Relaxed), units: self.units }
    }

    /// The word of the page at `offset`.
    pub fn get(&self, offset: usize) -> Word {
        self.view().word(offset).expect("nobody else changes it")
    }

    /// The word of the page at `offset`, and how many pages from it on, at most `most`, are seen at once to have words
    /// that follow from it ([`Word::nth`]): to the end of what one word stands for.
    pub fn stretch(&self, offset: usize, most: usize) -> (Word, usize) {
        let view = self.view();
        let (word, end) = match (self.units, view.unit(offset / UNIT_PAGES).expect("nobody else changes it"))
        {
            (None, Ok(_)) => (Word(view.root).nth(offset), CLUSTER_PAGES),
            (_, Ok(whole)) => (whole.nth(offset % UNIT_PAGES), offset / UNIT_PAGES * UNIT_PAGES + UNIT_PAGES),
            (_, Err(pages)) => (Word(pages[offset % UNIT_PAGES].load(Relaxed)), offset + 1),
        };
        (word, most.min(end - offset))
    }

    /// Changes the word of the page at `offset`.
    pub fn set(&mut self, offset: usize, word: Word) {
        let (at, nth) = (offset / UNIT_PAGES, offset % UNIT_PAGES);
        let whole = match self.units {
            None => Word(self.cluster.root.load(Relaxed)).nth(at * UNIT_PAGES).0,
            Some(units) => units.0[at].load(Relaxed),
        };
        let pages = match finer(whole) {
            Some(id) => self.table.pages.get(id),
            None if Word(whole).nth(nth) == word => return,
            None => self.cut_unit(at),
        };
        let old = Word(pages.0[nth].load(Relaxed));
        pages.0[nth].store(word.0, Relaxed);
        self.counts = self.counts + counts_of(word, 1) - counts_of(old, 1);
        // The ends tell at once, as a rule.
        let first = Word(pages.0[0].load(Relaxed));
        if word == first.nth(nth)
            && Word(pages.0[UNIT_PAGES - 1].load(Relaxed)) == first.nth(UNIT_PAGES - 1)
            && first.spreads()
            && pages.0.iter().enumerate().all(|(nth, page)| Word(page.load(Relaxed)) == first.nth(nth))
        {
            self.set_unit(at, first);
            self.join(at);
        }
    }

    /// The pages of a unit that has been one word, with words of their own.
    #[inline(never)]
    fn cut_unit(&mut self, at: usize) -> &'a Pages {
        let table = self.table;
        let unit = &self.cut().0[at];
        let id = table.pages.take(&table.bytes);
        let pages = table.pages.get(id);
        let whole = Word(unit.load(Relaxed));
        pages.0.iter().enumerate().for_each(|(nth, page)| page.store(whole.nth(nth).0, Relaxed));
        unit.store(to_finer(id), Relaxed);
        pages
    }

    /// Changes the words of the pages in `range`: to those that follow from `word` for its first page.
    pub fn set_run(&mut self, range: Range<usize>, word: Word) {
        if range == (0..CLUSTER_PAGES) && word.spreads() {
            if self.units.is_some() {
                (0..UNITS).for_each(|at| self.set_unit(at, Word::HOLE));
            }
            self.set_root(word);
            return;
        }
        let mut offset = range.start;
        while offset < range.end {
            let word = word.nth(offset - range.start);
            if offset.is_multiple_of(UNIT_PAGES) && offset + UNIT_PAGES <= range.end && word.spreads() {
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

    /// The units, with words of their own.
    fn cut(&mut self) -> &'a Units {
        if self.units.is_none() {
            let id = self.table.units.take(&self.table.bytes);
            let units = self.table.units.get(id);
            let whole = Word(self.cluster.root.load(Relaxed));
            for (at, unit) in units.0.iter().enumerate() {
                unit.store(whole.nth(at * UNIT_PAGES).0, Relaxed);
            }
            self.cluster.root.store(to_finer(id), Relaxed);
            self.units = Some(units);
        }
        self.units.expect("made just now")
    }

    /// One word for a unit. The counts are the caller's.
    fn set_unit(&mut self, at: usize, word: Word) {
        let unit = &self.units.expect("cut by the caller").0[at];
        let before = finer(unit.load(Relaxed));
        unit.store(word.0, Relaxed);
        if let Some(pages) = before {
            self.table.pages.give(pages);
        }
    }

    /// One word for the cluster.
    fn set_root(&mut self, word: Word) {
        let before = finer(self.cluster.root.load(Relaxed));
        self.cluster.root.store(word.0, Relaxed);
        if let Some(units) = before {
            self.table.units.give(units);
        }
        self.units = None;
        self.counts = counts_of(word, CLUSTER_PAGES);
    }

    /// Makes one word of all units, if they agree. Unit `at` has just changed.
    fn join(&mut self, at: usize) {
        let Some(units) = self.units else { return };
        let word = |at: usize| units.0[at].load(Relaxed);
        let first = Word(word(0));
        let follows = |at: usize| finer(word(at)).is_none() && Word(word(at)) == first.nth(at * UNIT_PAGES);
        if first.spreads() && follows(at) && follows(UNITS - 1) && (0..UNITS).all(follows) {
            self.set_root(first);
        }
    }

    fn counted(&self, count: Count) -> usize {
        (self.counts / count.one()) as usize & ((1 << COUNT_BITS) - 1)
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
    fn drop(&mut self) {
        self.cluster.counts.store(self.counts, Relaxed);
        self.cluster.latch.release(&self.table.parking, self.number.0 as u32);
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
        assert_eq!((table.units.held(), table.pages.held()), (6, 6));
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
            prop_assert_eq!((table.units.held(), table.pages.held()), (0, 0));
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
            assert_eq!((table.units.held(), table.pages.held()), (0, 0), "step {step}");
            cluster.set(100, Word::present(None));
            assert_eq!((table.units.held(), table.pages.held()), (1, 1));
            assert_eq!((cluster.present(), cluster.swapped()), (1, 511));
            cluster.set_run(0..CLUSTER_PAGES, Word::HOLE);
            assert_eq!((table.units.held(), table.pages.held()), (0, 0));
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
