//! The swap cache's verbs: swapin, take-out, store, writeback, discard.
//!
//! No verb blocks: each holds one cluster lock for a few word changes (and the pool's for a copy), never
//! across I/O or a codec. What moves bytes between two verbs is the engine's. A *locked* word is a claim:
//! whoever locked it moves the bytes; everybody else leaves it alone, or marks it wanted.
//!
//! | running \ arriving | swapin | take-out | store | writeback | discard |
//! |---|---|---|---|---|---|
//! | swapin (locked) | Pending; the mapping wakes all | cluster skipped | page skipped | page skipped | waits |
//! | take-out (cluster lock) | waits for the lock, then a hit | waits | waits | waits | waits |
//! | store (locked) | wanted; the store's end maps it | page skipped | page skipped | — | waits |
//! | writeback (flag) | reads the pool's copy, clears the flag | — | — | page skipped | clears the flag |

use crate::balance::{Sizes, Totals};
use crate::blocks::Blocks;
use crate::cipher::Cipher;
use crate::config::Config;
use crate::entry::{CLUSTER_PAGES, CLUSTER_SHIFT, ClusterNumber, PAGE_SIZE, PageIndex};
use crate::error::{LoadError, StoreError};
use crate::hash::{HashKey, PageHash};
use crate::held::Held;
use crate::place::{Handle, Place};
use crate::policy::{Policy, SPARED_MAX, Seen};
use crate::reclaim::Queue;
use crate::stats::{Counter, Counters};
use crate::streams::{Readahead, Window};
use crate::sync::{Condvar, Mutex, lock};
use crate::table::{CLUSTERS_MAX, ClusterGuard, History, Table};
use crate::word::{State, Word};
use crate::workingset::{Shadow, Workingset};
use crate::zswap::folios::FOLIO_PAGES;
use crate::zswap::pool::SpanSource;
use crate::zswap::shrinker::{Decay, Pooled, SCAN_RATE, SecondChance, Shrinker};
use crate::zswap::{Scratch, Zswap};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU32, AtomicU64, AtomicUsize, Ordering::Relaxed};

/// Pages that one transfer brings in at most: 256 KiB.
pub const WINDOW_MAX: usize = 64;
/// Kept copies that are dropped under one lock of their cluster.
const DROP_BATCH: usize = 64;
/// After so many pages from the device that did not compress, one of so many is tried.
const FAR_RUN: u32 = 64;
const FAR_SAMPLE: u32 = 16;
/// Clusters that are asked for copies at a time.
const DROP_CLUSTERS: usize = 1024;
/// The pool's entries are moved together when so many pages, and such a part of it, would become free.
const LOOSE_MIN: usize = 64;
const LOOSE_PART: usize = 48;
/// What an entry's age counts, when it is written back, against that of those before it.
const AGE_PART: u64 = 256;
/// Entries that the shrinker's hand passes at once, at least.
const SCAN_BATCH: f64 = 32.0;

/// What must not be known outside the process.
#[derive(Clone, Debug)]
pub struct Keys {
    /// For hashes of pages.
    pub hash: HashKey,
    /// For what goes to the device; `None` to write it as it is.
    pub cipher: Option<Cipher>,
}

/// The swap subsystem of one process.
#[derive(Debug)]
pub struct Swap<S: SpanSource> {
    table: Arc<Table>,
    zswap: Arc<Zswap<S>>,
    blocks: Blocks,
    queue: Arc<Queue>,
    /// Clusters with pages in the pool, in the order in which they are written back.
    pooled: Arc<Queue>,
    keys: Keys,
    config: Config,
    counters: Counters,
    workingset: Workingset,
    policy: Box<dyn Policy>,
    present: AtomicI64,
    cached: AtomicI64,
    swapped: AtomicI64,
    /// Those of them that are a repeated word.
    same: AtomicI64,
    /// Kept copies that turned out to be of older contents.
    copies: AtomicI64,
    copies_stale: AtomicU64,
    /// How many others had left since those did that are written back, of late; and pages from the device that came back
    /// before twice as many had.
    age: AtomicU64,
    near: AtomicU64,
    /// Pages from the pool that came back before as many others had left as are in memory.
    pool_near: AtomicU64,
    /// Pages from the device, one after the other, that did not go into the pool when they left again; and how many
    /// were not tried for that.
    far: AtomicU32,
    tried: AtomicU32,
    /// The page at which the shrinker's hand has stopped amid a cluster; 0 if at an end.
    hand: AtomicU64,
    /// What it should pass and has not, as bits of a float.
    due: AtomicU64,
    second_chance: SecondChance,
    decay: Decay,
    /// One more than the cluster whose entries compaction looks at next; 0 if there is none under way.
    compacting: AtomicU64,
    /// Those who wait for transfers to end.
    waiters: AtomicUsize,
    transfers: Mutex<()>,
    transfer_ended: Condvar,
}

/// What a fault finds.
#[derive(Debug)]
#[expect(
    clippy::large_enum_variant,
    reason = "a transfer lives on the stack: the fault path allocates nothing"
)]
pub enum Swapin {
    /// The page is in the program already: wake whoever waits.
    Present,
    /// Somebody else brings it in or stores it; that one's end answers this fault.
    Pending,
    /// Its contents are lost.
    Poisoned,
    /// This caller moves the bytes, then calls [`Swap::finish_swapin`].
    Inserted(Transfer),
}

/// Where the bytes of a transfer come from. All pages of a transfer have the same source.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Source {
    /// Nowhere: pages never touched, or discarded.
    Hole,
    /// Frames of this staging slot, at the pages' own offsets: on probation.
    Frames {
        /// The slot.
        slot: u16,
    },
    /// Zero pages.
    Zero,
    /// Patterns and pool entries: read by [`Swap::load`], without waiting.
    Memory,
    /// Blocks of the device from this one on.
    Device {
        /// The first block.
        block: u64,
    },
}

/// A run of pages, locked by the caller, all in one cluster.
#[derive(Clone, Copy, Debug)]
pub struct Transfer {
    /// The first page.
    pub first: PageIndex,
    /// How many.
    pub length: usize,
    /// Which of them is waited for.
    pub demand: usize,
    /// Whether none is, for all were asked for ahead.
    pub ahead: bool,
    /// Where their bytes come from.
    pub source: Source,
    words: [Word; WINDOW_MAX],
}

/// Pages that lie one block after the other on the device.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct DeviceRun {
    /// The first block.
    pub block: u64,
    /// The page that is there.
    pub first: PageIndex,
    /// How many.
    pub length: usize,
}

impl DeviceRun {
    /// The pages.
    pub fn pages(&self) -> std::ops::Range<PageIndex> {
        self.first..self.first.plus(self.length as u64)
    }
}

impl Transfer {
    /// The page that is waited for.
    pub fn demanded(&self) -> PageIndex {
        self.first.plus(self.demand as u64)
    }

    /// The pages.
    pub fn pages(&self) -> std::ops::Range<PageIndex> {
        self.first..self.first.plus(self.length as u64)
    }

    /// Cuts the transfer off at `length` and returns the rest, if there are both. Both are the caller's to end.
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
}

/// How a page was stored.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stored {
    /// Its kept copy is proved current: nothing was written.
    Clean(Place),
    /// At a new place.
    New(Place),
    /// The pool will not have it: write it to the device under this hash, or keep it.
    Refused(StoreError, PageHash),
}

impl Stored {
    /// The first page's place, if all are at new places that follow from it.
    pub fn run(pages: &[Self]) -> Option<Place> {
        let Some(&Self::New(first)) = pages.first() else { return None };
        let word = Word::swapped(first, Shadow(0));
        let follows =
            |(nth, page): (usize, &Self)| *page == Self::New(word.nth(nth).place().expect("it has one"));
        (word.spreads() && pages.iter().enumerate().all(follows)).then_some(first)
    }
}

/// Which entries of the pool.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Of {
    /// All.
    All,
    /// Those that no fork shares: only these give memory when they go.
    Own,
}

/// How a page can leave, as its bytes and its kept copy tell.
#[derive(Clone, Copy)]
enum Way {
    /// It is one word, repeated.
    Same(Place),
    /// Its kept copy is current.
    Clean(Place),
    /// So is this one, on the device: in the pool it would be nearer.
    Nearer(Place, PageHash),
    New(PageHash),
}

/// What became of a store.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StoreOutcome {
    /// The page is at its place; its frame is free.
    Swapped,
    /// A fault waits: map it from its frame, then call [`Swap::finish_hit`].
    Wanted,
}

/// What a discard released.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Discarded {
    /// Pages that were in the program.
    pub present: usize,
    /// Pages that were in frames; each frame is free now. Reported to the caller one by one.
    pub cached: usize,
}

/// What stopped a swapin at a page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Met {
    /// A page that is there.
    Page,
    /// No mapping.
    Nothing,
}

/// What a take-out took, in pages.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct TakenOut {
    /// Pages that are in frames now.
    pub taken: usize,
    /// Those of them that the table had not known to be in the program.
    pub adopted: usize,
    /// Pages that the table thought to be in the program, but were not.
    pub dropped: usize,
    /// What those that are taken leave behind.
    pub shadow: Shadow,
    /// Slots that pages were in which the table had not known to be in the program, each with how many: they are
    /// there no more.
    pub left: Vec<(u16, usize)>,
}

impl<S: SpanSource + Clone + 'static> Swap<S> {
    /// An empty swap subsystem, whose pool may take no memory yet.
    pub fn new(source: S, blocks: Blocks, keys: Keys, config: Config, counters: Counters) -> Self {
        Self {
            table: Arc::default(),
            zswap: Arc::new(Zswap::new(source, config.zpool, config.switches)),
            blocks,
            queue: Arc::default(),
            pooled: Arc::default(),
            keys,
            config,
            counters,
            workingset: Workingset::new(config.cap_pages),
            policy: config.reclaim.policy(),
            present: AtomicI64::new(0),
            cached: AtomicI64::new(0),
            swapped: AtomicI64::new(0),
            same: AtomicI64::new(0),
            copies: AtomicI64::new(0),
            copies_stale: AtomicU64::new(0),
            age: AtomicU64::new(0),
            near: AtomicU64::new(0),
            pool_near: AtomicU64::new(0),
            far: AtomicU32::new(0),
            tried: AtomicU32::new(0),
            compacting: AtomicU64::new(0),
            hand: AtomicU64::new(0),
            due: AtomicU64::new(0),
            second_chance: SecondChance::default(),
            decay: Decay::default(),
            waiters: AtomicUsize::new(0),
            transfers: Mutex::new(()),
            transfer_ended: Condvar::new(),
        }
    }
}

impl<S: SpanSource> Swap<S> {
    /// The table, for look-ups that change nothing.
    pub fn table(&self) -> &Table {
        &self.table
    }
    /// The compressed pool.
    pub fn zswap(&self) -> &Zswap<S> {
        &self.zswap
    }
    /// Device space.
    pub fn blocks(&self) -> &Blocks {
        &self.blocks
    }
    /// The counters.
    pub fn counters(&self) -> Counters {
        self.counters
    }
    /// The settings.
    pub fn config(&self) -> &Config {
        &self.config
    }
    /// Clusters in the order in which they are reclaimed.
    pub fn queue(&self) -> &Queue {
        &self.queue
    }
    /// Pages in the program.
    pub fn present(&self) -> i64 {
        self.present.load(Relaxed)
    }
    /// Pages on probation.
    pub fn cached(&self) -> i64 {
        self.cached.load(Relaxed)
    }
    /// Pages at a place.
    pub fn swapped(&self) -> i64 {
        self.swapped.load(Relaxed)
    }
    /// Pages at a place that are a repeated word.
    pub fn same_filled(&self) -> i64 {
        self.same.load(Relaxed)
    }
    /// Kept copies that turned out to be of older contents when their page left again. Those that did not
    /// are counted as `swap_reuse`.
    pub fn copies_stale(&self) -> u64 {
        self.copies_stale.load(Relaxed)
    }
    /// Bytes of the table, the hashes and what leads to the pool's entries.
    pub fn metadata_bytes(&self) -> usize {
        self.table.bytes() + self.blocks.bytes() + self.zswap.bytes()
    }

    /// The same subsystem in a forked child, which inherited all of it copy-on-write: what it holds on
    /// the device is told by `held`, what it counts by `counters`. Nothing may have been under way.
    pub fn for_child(&self, held: Held, counters: Counters) -> Self {
        Self {
            table: Arc::clone(&self.table),
            zswap: Arc::clone(&self.zswap),
            blocks: self.blocks.for_child(held),
            queue: Arc::clone(&self.queue),
            pooled: Arc::clone(&self.pooled),
            keys: self.keys.clone(),
            config: self.config,
            counters,
            workingset: self.workingset.for_child(),
            policy: self.config.reclaim.policy(),
            present: AtomicI64::new(self.present()),
            cached: AtomicI64::new(self.cached()),
            swapped: AtomicI64::new(self.swapped()),
            same: AtomicI64::new(self.same_filled()),
            copies: AtomicI64::new(self.copies()),
            copies_stale: AtomicU64::new(0),
            age: AtomicU64::new(0),
            near: AtomicU64::new(0),
            pool_near: AtomicU64::new(0),
            far: AtomicU32::new(0),
            tried: AtomicU32::new(0),
            compacting: AtomicU64::new(0),
            hand: AtomicU64::new(0),
            due: AtomicU64::new(0),
            second_chance: SecondChance::default(),
            decay: Decay::default(),
            waiters: AtomicUsize::new(0),
            transfers: Mutex::new(()),
            transfer_ended: Condvar::new(),
        }
    }

    /// All word changes go through here, so that the totals agree with the words.
    fn set(&self, cluster: &mut ClusterGuard<'_>, offset: usize, word: Word) {
        self.count(cluster.get(offset), word, 1);
        cluster.set(offset, word);
    }

    /// The same for pages whose words follow from `old`, and are to follow from `new`.
    fn set_run(&self, cluster: &mut ClusterGuard<'_>, range: std::ops::Range<usize>, old: Word, new: Word) {
        self.count(old, new, range.len() as i64);
        cluster.set_run(range, new);
    }

    fn count(&self, old: Word, new: Word, pages: i64) {
        if old.state() != new.state() {
            self.total(old.state(), -pages);
            self.total(new.state(), pages);
        }
        let change = |was: bool, is: bool| (i64::from(is) - i64::from(was)) * pages;
        match change(old.has_pool_copy(), new.has_pool_copy()) {
            0 => {}
            change => _ = self.copies.fetch_add(change, Relaxed),
        }
        match change(old.is_same_filled(), new.is_same_filled()) {
            0 => {}
            change => _ = self.same.fetch_add(change, Relaxed),
        }
    }

    fn total(&self, state: State, change: i64) {
        match state {
            State::Present => self.present.fetch_add(change, Relaxed),
            State::Cached => self.cached.fetch_add(change, Relaxed),
            State::Swapped => self.swapped.fetch_add(change, Relaxed),
            State::Hole | State::Poisoned => 0,
        };
    }

    fn free_place(&self, place: Option<Place>) {
        match place {
            Some(Place::Pool(handle)) => self.zswap.free(handle),
            Some(Place::Device(block)) => self.blocks.free(block),
            Some(Place::Same(_)) | None => {}
        }
    }

    fn enqueue(&self, cluster: &mut ClusterGuard<'_>) {
        let history = cluster.history();
        if !history.queued {
            cluster.set_history(History { queued: true, ..history });
            self.queue.push(cluster.number());
        }
    }

    /// Notes that a page of the cluster is in the pool now.
    fn note_pooled(&self, cluster: &mut ClusterGuard<'_>, place: Option<Place>) {
        let history = cluster.history();
        if matches!(place, Some(Place::Pool(_))) && !history.pooled {
            cluster.set_history(History { pooled: true, ..history });
            self.pooled.push(cluster.number());
        }
    }

    fn notify(&self) {
        if self.waiters.load(Relaxed) > 0 {
            // Taking the lock orders this after a waiter's check.
            drop(lock(&self.transfers));
            self.transfer_ended.notify_all();
        }
    }

    // ---- in -------------------------------------------------------------------------------------

    /// Begins to bring `page` in, and neighbours `within` a range that share its kind of place, as many as the
    /// `window` has at most.
    pub fn swapin(&self, page: PageIndex, within: std::ops::Range<PageIndex>, window: Window) -> Swapin {
        let mut cluster = self.table.lock_or_create(page.cluster());
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

    /// The same for pages all of which are wanted, whatever readahead says: as many from the first on as go together.
    pub fn swapin_run(&self, pages: std::ops::Range<PageIndex>) -> Swapin {
        let cluster = self.table.lock_or_create(pages.start.cluster());
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

    /// Begins to bring back a page that is on probation and that nobody moves. `None` if it is not (any more).
    pub fn swapin_cached(&self, page: PageIndex) -> Option<Transfer> {
        let cluster = self.table.lock(page.cluster())?;
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

    /// What of a window comes in from this source.
    pub fn reach(&self, page: PageIndex, source: Source, window: Window) -> Window {
        let device = 1 << self.config.page_cluster;
        match (self.config.readahead, source) {
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

    /// How many pages after one that is on its way may be on their way too.
    pub fn reach_ahead(&self, window: Window) -> usize {
        match self.config.readahead {
            Readahead::Object => window.at_most(1 << self.config.page_cluster).after,
            Readahead::Cluster | Readahead::None => 0,
        }
    }

    /// Reads page number `nth` of a transfer whose source is memory.
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
                self.zswap.load(handle, out, &self.keys.hash, scratch)?;
            }
            _ => unreachable!("only pages in memory are loaded"),
        }
        Ok(())
    }

    /// The keys, for whoever keeps them from being seen.
    pub fn keys(&self) -> &Keys {
        &self.keys
    }

    /// Prepares a page for `block`, and notes by which hash it will be known.
    pub fn seal(&self, block: u64, hash: PageHash, page: &mut [u8]) {
        self.blocks.set_hash(block, hash);
        if let Some(cipher) = &self.keys.cipher {
            cipher.apply(block, hash, page);
        }
    }

    /// Makes a page of what was read from the device for page number `nth`, and proves it.
    pub fn open(&self, transfer: &Transfer, nth: usize, bytes: &mut [u8]) -> Result<(), LoadError> {
        let Some(Place::Device(block)) = transfer.words[nth].place() else {
            unreachable!("only pages on the device are read from it")
        };
        let hash = self.blocks.hash(block).ok_or(LoadError::Hash)?;
        if let Some(cipher) = &self.keys.cipher {
            cipher.apply(block, hash, bytes);
        }
        if self.keys.hash.hash(bytes) == hash { Ok(()) } else { Err(LoadError::Hash) }
    }

    /// Ends a transfer: its first `mapped` pages are in the program, the others are as they were.
    ///
    /// `keep` says whether stored copies stay, so that the next eviction can prove the page clean.
    /// Returns the pages beyond `mapped` for which a fault waits.
    pub fn finish_swapin(&self, transfer: &Transfer, mapped: usize, keep: bool) -> u64 {
        self.finish_swapin_at(transfer, mapped, keep, None)
    }

    /// The same where the page behind those may have turned out to be in the program already, or its mapping to be gone:
    /// its word says so from now on, and what was stored for it is dropped.
    pub fn finish_swapin_at(&self, transfer: &Transfer, mapped: usize, keep: bool, met: Option<Met>) -> u64 {
        let mut wanted = 0;
        let mut cluster = self.table.lock_or_create(transfer.first.cluster());
        let first = transfer.first.offset();
        let mut nth = 0;
        while nth < mapped {
            let word = transfer.words[nth];
            let follows = |&count: &usize| transfer.words[nth + count] == word.nth(count);
            let count = 1 + (1..mapped - nth).take_while(follows).count();
            let kept = word.place().filter(|place| keep && !matches!(place, Place::Same(_)));
            if kept.is_none() {
                (nth..nth + count).for_each(|nth| self.free_place(transfer.words[nth].place()));
            }
            let locked = word.locked();
            self.set_run(&mut cluster, first + nth..first + nth + count, locked, Word::present(kept));
            nth += count;
        }
        for nth in mapped..transfer.length {
            wanted |= u64::from(cluster.get(first + nth).is_wanted()) << nth;
            let word = transfer.words[nth];
            let after = match met.filter(|_| nth == mapped) {
                None => word.with_writeback(false),
                Some(met) => {
                    self.free_place(word.place());
                    if met == Met::Page { Word::present(None) } else { Word::HOLE }
                }
            };
            self.set(&mut cluster, first + nth, after);
        }
        if met == Some(Met::Page) {
            self.enqueue(&mut cluster);
        }
        if mapped > 0 {
            if matches!(transfer.source, Source::Frames { .. }) {
                let mut history = cluster.history();
                self.policy.hit(&mut history, mapped);
                cluster.set_history(history);
            }
            self.judge(&mut cluster, &transfer.words[..mapped]);
            self.enqueue(&mut cluster);
            self.count_in(transfer, mapped);
        }
        drop(cluster);
        self.notify();
        wanted
    }

    /// Judges pages that have come back from a place.
    fn judge(&self, cluster: &mut ClusterGuard<'_>, words: &[Word]) {
        let (mut activated, mut restored) = (0, 0);
        let present = self.present().max(0) as u64;
        for word in words.iter().filter(|word| word.state() == State::Swapped) {
            let refault = self.workingset.refault(word.shadow(), present);
            activated += u64::from(refault.activate);
            restored += u64::from(refault.restore);
            match word.place() {
                Some(Place::Device(_))
                    if self.workingset.distance(word.shadow()) <= 2 * self.age.load(Relaxed) =>
                {
                    self.near.fetch_add(1, Relaxed);
                }
                Some(Place::Pool(_)) if refault.activate => _ = self.pool_near.fetch_add(1, Relaxed),
                _ => {}
            }
        }
        if activated > 0 {
            let mut history = cluster.history();
            self.policy.refault(&mut history, activated as usize);
            cluster.set_history(history);
            self.counters.add(Counter::workingset_activate_anon, activated);
            self.counters.add(Counter::workingset_restore_anon, restored);
        }
    }

    fn count_in(&self, transfer: &Transfer, mapped: usize) {
        let c = self.counters;
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
                self.decay.note_swapin();
            }
            if matches!(transfer.source, Source::Device { .. }) {
                self.second_chance.note_disk_swapins(count);
            }
        }
    }

    /// Ends a transfer of one page that cannot be read: it is poisoned.
    ///
    /// # Panics
    /// If there are more: which of them cannot be read is told by reading each alone.
    pub fn fail_swapin(&self, transfer: &Transfer) {
        assert_eq!(transfer.length, 1, "one page is poisoned at a time");
        {
            let mut cluster = self.table.lock_or_create(transfer.first.cluster());
            self.free_place(transfer.words[0].place());
            self.set(&mut cluster, transfer.first.offset(), Word::POISONED);
        }
        self.counters.add(Counter::poisoned, 1);
        self.notify();
    }

    /// Runs of pages that lie on the device from `block` on, at most `most`, by their blocks. Copies that are kept there of
    /// pages which are in memory are dropped on the way.
    ///
    /// It goes through the table, a look-up a run ([`Table::has_page`]), and remembers no more than it returns.
    pub fn device_runs(&self, block: u64, most: usize) -> Vec<DeviceRun> {
        let mut lowest = std::collections::BinaryHeap::with_capacity(most + 1);
        for number in self.table.touched(0..CLUSTERS_MAX) {
            let mut kept = false;
            let mut offset = 0;
            while offset < CLUSTER_PAGES {
                let page = number.page(offset);
                let word = self.table.peek(page);
                offset += 1;
                let Some(Place::Device(first)) = word.place() else { continue };
                if word.state() != State::Swapped {
                    kept = true;
                    continue;
                }
                let run = self.table.has_page(page, 0, CLUSTER_PAGES - offset).unwrap_or_default();
                offset += run.after;
                if first >= block {
                    lowest.push(DeviceRun { block: first, first: page, length: run.after + 1 });
                }
                if lowest.len() > most {
                    lowest.pop();
                }
            }
            if kept {
                self.drop_device_copies(number);
            }
        }
        lowest.into_sorted_vec()
    }

    fn drop_device_copies(&self, number: ClusterNumber) {
        let Some(mut cluster) = self.table.lock(number) else { return };
        for offset in 0..CLUSTER_PAGES {
            let word = cluster.get(offset);
            if let Some(place @ Place::Device(_)) = word.place()
                && matches!(word.state(), State::Present | State::Cached)
                && !word.is_locked()
            {
                self.set(&mut cluster, offset, word.without_place());
                self.free_place(Some(place));
            }
        }
    }

    /// Ends a transfer of pages that were stored anew while they stay out: each that has a new place is there, the others
    /// are as they were. Returns those for which a fault waits.
    pub fn finish_move(&self, transfer: &Transfer, places: &[Option<Place>]) -> u64 {
        let mut wanted = 0;
        {
            let mut cluster = self.table.lock_or_create(transfer.first.cluster());
            for (nth, place) in places.iter().enumerate() {
                let (offset, word) = (transfer.first.offset() + nth, transfer.words[nth]);
                wanted |= u64::from(cluster.get(offset).is_wanted()) << nth;
                let moved = |place| word.with_place(place).with_referenced(true);
                let after = place.map_or(word, moved).with_writeback(false);
                self.set(&mut cluster, offset, after);
                if place.is_some() {
                    self.free_place(word.place());
                    self.note_pooled(&mut cluster, *place);
                }
            }
        }
        self.notify();
        wanted
    }

    // ---- out ------------------------------------------------------------------------------------

    /// Locks the next cluster to take out. `None` when the queue holds none that can give anything now.
    ///
    /// A cluster with a transfer under way is passed over: its pages are on the move.
    pub fn victim(&self) -> Option<ClusterGuard<'_>> {
        // All may be as hot as can be.
        for _ in 0..=SPARED_MAX * self.queue.len() {
            let mut cluster = self.table.lock_or_create(self.queue.pop()?);
            let history = cluster.history();
            let history = History { queued: false, ..history };
            cluster.set_history(history);
            if cluster.present() == 0 {
                if cluster.is_empty() {
                    cluster.set_history(history.emptied());
                }
                continue;
            }
            let mut judged = history;
            if cluster.locked() > 0 || self.policy.spares(&mut judged, cluster.present()) {
                cluster.set_history(judged);
                self.enqueue(&mut cluster);
                continue;
            }
            return Some(cluster);
        }
        None
    }

    /// Tells the policy what has come back so far: to be called every few hundredths of a second.
    pub fn observe(&self) {
        self.policy.observe(Seen {
            hits: self.counters.get(Counter::swap_cache_hit),
            refaults: self.counters.get(Counter::workingset_refault_anon),
            cached: self.cached().max(0) as u64,
            swapped: self.swapped().max(0) as u64,
        });
    }

    /// What has come and gone so far, for [`crate::balance`]; pages from the device were waited for so long.
    pub fn totals(&self, device_ns: u64) -> Totals {
        let get = |counter| self.counters.get(counter);
        Totals {
            pool_in: get(Counter::zswpin),
            device_in: get(Counter::pswpin),
            device_near: self.near.load(Relaxed),
            pool_near: self.pool_near.load(Relaxed),
            device_ns,
            hits: get(Counter::swap_cache_hit),
            displaced: get(Counter::pool_limit_hit) + get(Counter::zswpwb),
            incompressible: get(Counter::reject_compress_poor),
            reused: get(Counter::swap_reuse),
            stale: self.copies_stale(),
        }
    }

    /// What is where, for [`crate::balance`].
    pub fn sizes(&self) -> Sizes {
        Sizes {
            stored: self.zswap.stored().0,
            pool: self.zswap.pool_pages() as u64,
            device: self.blocks.used(),
            resident: self.present().max(0) as u64,
            full: !self.zswap.has_room(),
        }
    }

    /// Whether more pages are on probation than should be.
    pub fn is_probation_full(&self) -> bool {
        let cached = self.cached().max(0) as usize;
        cached > self.policy.probation(cached + self.present().max(0) as usize)
    }

    /// Makes the clusters of a range the next victims, hot or not. Returns how many there are.
    pub fn hasten(&self, range: std::ops::Range<PageIndex>) -> usize {
        let numbers = range.start.cluster().0..range.end.0.div_ceil(CLUSTER_PAGES as u64);
        let ids = self.table.touched(numbers).filter_map(|number| {
            let mut cluster = self.table.lock(number)?;
            let history = cluster.history();
            cluster.set_history(History { heat: 0, ..history });
            Some(number)
        });
        self.queue.hasten(&ids.collect())
    }

    /// Puts a victim back that could not be taken out.
    pub fn put_back(&self, mut cluster: ClusterGuard<'_>) {
        self.enqueue(&mut cluster);
    }

    /// Records a take-out of the cluster's pages in `range`: those in `populated` are in frames of `slot`
    /// now; others that were thought present, but are `absent`, had been dropped behind our back.
    pub fn taken_out(
        &self,
        cluster: &mut ClusterGuard<'_>,
        slot: u16,
        range: std::ops::Range<usize>,
        populated: impl Fn(usize) -> bool,
        absent: impl Fn(usize) -> bool,
    ) -> TakenOut {
        let mut out = TakenOut::default();
        let end = range.end;
        let mut offset = range.start;
        while offset < end {
            let (word, count) = cluster.stretch(offset, end - offset);
            debug_assert!(!word.is_locked(), "victims have no transfer under way: {word:?}");
            let present = word.state() == State::Present;
            let fate = |offset| (populated(offset), !populated(offset) && present && absent(offset));
            let (taken, dropped) = fate(offset);
            let run = offset
                ..offset
                    + 1
                    + (offset + 1..offset + count).take_while(|&next| fate(next) == (taken, dropped)).count();
            offset = run.end;
            let free = |run: std::ops::Range<usize>| {
                (0..run.len()).for_each(|nth| self.free_place(word.nth(nth).place()));
            };
            if taken {
                // The page tables have the last word: a page that came there by a call we did not see
                // is the program's, and what the table had for it is stale.
                let kept = if present { word.place() } else { None };
                if !present {
                    free(run.clone());
                }
                out.taken += run.len();
                out.adopted += if present { 0 } else { run.len() };
                if word.state() == State::Cached {
                    out.left.push((word.slot(), run.len()));
                }
                self.set_run(cluster, run, word, Word::cached(slot, kept));
            } else if dropped {
                out.dropped += run.len();
                free(run.clone());
                self.set_run(cluster, run, word, Word::HOLE);
            }
        }
        let history = cluster.history();
        out.shadow = self.workingset.evict(out.taken as u64, history.workingset);
        cluster.set_history(History { heat: 0, taken: out.taken as u16, workingset: false, ..history });
        if cluster.present() > 0 {
            self.enqueue(cluster);
        }
        self.counters.add(Counter::pgsteal, out.taken as u64);
        out
    }

    /// Begins to store the pages of `range` that are still in `slot` and that nobody moves. Tells `begun` of each, with
    /// its kept copy.
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

    /// Finds a place for a page that is out of the program and locked for storing. `poor`: it is known not to compress.
    pub fn store(&self, bytes: &[u8], kept: Option<Place>, poor: bool, scratch: &mut Scratch) -> Stored {
        debug_assert_eq!(bytes.len(), PAGE_SIZE);
        let way = self.way(bytes, kept, scratch);
        self.put(way, |hash| match poor {
            true => Err(StoreError::Incompressible),
            false => self.count_refusal(self.zswap.store(bytes, hash, scratch)),
        })
    }

    /// The same for pages that lie one behind the other, `page(0)` and so on: if all go to the pool, as one entry.
    pub fn store_folio<'a>(
        &self,
        page: impl Fn(usize) -> &'a [u8],
        kept: &[Option<Place>; FOLIO_PAGES],
        scratch: &mut Scratch,
    ) -> [Stored; FOLIO_PAGES] {
        let ways: [Way; FOLIO_PAGES] = std::array::from_fn(|nth| self.way(page(nth), kept[nth], scratch));
        let Some(alone) = go_together(&ways) else {
            return std::array::from_fn(|nth| {
                self.put(ways[nth], |hash| self.count_refusal(self.zswap.store(page(nth), hash, scratch)))
            });
        };
        let hashes = std::array::from_fn(|nth| match ways[nth] {
            Way::New(hash) | Way::Nearer(_, hash) => hash,
            Way::Same(_) | Way::Clean(_) => self.keys.hash.hash(page(nth)),
        });
        let stored = self.zswap.store_folio(page, &hashes, alone, scratch);
        self.put_folio(&ways, |nth| stored[nth])
    }

    fn note_stored(&self, pages: usize) {
        if self.zswap.switches().shrinker == Shrinker::Decay {
            (0..pages).for_each(|_| self.decay.note_store(self.zswap.stored().0));
        }
    }

    /// As [`Swap::store`] and [`Swap::store_folio`], for pages that only a trace knows: all or one of them. `sizes` are
    /// those of their compressed forms, 0 for a repeated word; `hashes` tell their contents apart.
    pub fn store_sized<const PAGES: usize>(
        &self,
        sizes: &[usize; PAGES],
        hashes: &[PageHash; PAGES],
        kept: &[Option<Place>; PAGES],
    ) -> [Stored; PAGES] {
        let ways: [Way; PAGES] = std::array::from_fn(|nth| match sizes[nth] {
            0 => Way::Same(Place::ZERO),
            _ => self.way_of(hashes[nth], kept[nth], |handle| self.zswap.is_of(handle, hashes[nth])),
        });
        if let (Ok(sizes), Ok(hashes)) =
            (<&[usize; FOLIO_PAGES]>::try_from(&sizes[..]), <&[PageHash; FOLIO_PAGES]>::try_from(&hashes[..]))
            && let Some(alone) = go_together(&ways)
        {
            let stored = self.zswap.store_folio_sized(sizes, hashes, alone);
            return self.put_folio(&ways, |nth| stored[nth]);
        }
        std::array::from_fn(|nth| {
            self.put(ways[nth], |hash| self.count_refusal(self.zswap.store_sized(sizes[nth], hash)))
        })
    }

    /// Counts what became of pages that were to be stored together.
    fn put_folio<const PAGES: usize>(
        &self,
        ways: &[Way; PAGES],
        stored: impl Fn(usize) -> Result<Handle, StoreError>,
    ) -> [Stored; PAGES] {
        if (0..PAGES).all(|nth| stored(nth).is_ok()) {
            self.counters.add(Counter::zswpout, PAGES as u64);
            self.note_stored(PAGES);
            return std::array::from_fn(|nth| Stored::New(Place::Pool(stored(nth).expect("all are"))));
        }
        std::array::from_fn(|nth| self.put(ways[nth], |_| self.count_refusal(stored(nth))))
    }

    /// Counts a page that went to the pool, or why it did not.
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
        self.counters.add(counter, 1);
        stored
    }

    fn way(&self, bytes: &[u8], kept: Option<Place>, scratch: &mut Scratch) -> Way {
        if let Some(place) = Place::same_filled(bytes) {
            return Way::Same(place);
        }
        let hash = self.keys.hash.hash(bytes);
        self.way_of(hash, kept, |handle| self.zswap.holds(handle, bytes, hash, scratch))
    }

    /// The way of a page with this hash; `is_at` says whether an entry of the pool holds it.
    fn way_of(&self, hash: PageHash, kept: Option<Place>, is_at: impl FnOnce(Handle) -> bool) -> Way {
        let clean = kept.filter(|&place| match place {
            Place::Pool(handle) => is_at(handle),
            Place::Device(block) => self.blocks.hash(block) == Some(hash),
            Place::Same(_) => false,
        });
        match clean {
            // Read from the device of late, it may be wanted again: the pool is nearer, while it has room.
            Some(place @ Place::Device(_)) if self.zswap.has_room() && self.may_be_nearer() => {
                Way::Nearer(place, hash)
            }
            Some(place) => Way::Clean(place),
            None => {
                self.copies_stale.fetch_add(u64::from(kept.is_some()), Relaxed);
                Way::New(hash)
            }
        }
    }

    fn put(&self, way: Way, store: impl FnOnce(PageHash) -> Result<Handle, StoreError>) -> Stored {
        let c = self.counters;
        match way {
            Way::Same(place) => {
                c.add(Counter::swpout_zero, 1);
                Stored::New(place)
            }
            Way::Clean(place) => {
                c.add(Counter::swap_reuse, 1);
                Stored::Clean(place)
            }
            Way::Nearer(place, hash) => {
                let stored = store(hash);
                let far = if stored.is_ok() { 0 } else { self.far.load(Relaxed).saturating_add(1) };
                self.far.store(far, Relaxed);
                stored.map_or_else(
                    |_| {
                        c.add(Counter::swap_reuse, 1);
                        Stored::Clean(place)
                    },
                    |handle| Stored::New(Place::Pool(handle)),
                )
            }
            Way::New(hash) => match store(hash) {
                Ok(handle) => Stored::New(Place::Pool(handle)),
                Err(error) => Stored::Refused(error, hash),
            },
        }
    }

    /// Whether a page from the device is tried in the pool: where many in a row did not compress, one in some.
    fn may_be_nearer(&self) -> bool {
        self.far.load(Relaxed) < FAR_RUN || self.tried.fetch_add(1, Relaxed).is_multiple_of(FAR_SAMPLE)
    }

    /// Ends the store of `count` pages from `first` on, of one cluster, whose places follow from `place`: if nobody waits
    /// for any of them, and no older copy is to be freed. Else nothing has changed, and each ends alone.
    pub fn finish_store_run(&self, first: PageIndex, count: usize, place: Place, shadow: Shadow) -> bool {
        {
            let mut cluster = self.table.lock_or_create(first.cluster());
            let at = first.offset();
            let (word, found) = cluster.stretch(at, count);
            debug_assert!(word.is_locked() && word.state() == State::Cached, "{word:?}");
            let swapped = Word::swapped(place, shadow).with_referenced(true);
            if found < count || word.is_wanted() || word.place().is_some() || !swapped.spreads() {
                return false;
            }
            self.set_run(&mut cluster, at..at + count, word, swapped);
            self.note_pooled(&mut cluster, Some(place));
        }
        self.notify();
        true
    }

    /// Ends a store. With a fault waiting the page stays locked, for [`Swap::finish_hit`].
    pub fn finish_store(&self, page: PageIndex, place: Place, shadow: Shadow) -> StoreOutcome {
        let outcome = {
            let mut cluster = self.table.lock_or_create(page.cluster());
            let word = cluster.get(page.offset());
            debug_assert!(word.is_locked() && word.state() == State::Cached, "{word:?}");
            if word.place() != Some(place) {
                self.free_place(word.place());
            }
            if word.is_wanted() {
                self.set(&mut cluster, page.offset(), word.with_place(place));
                StoreOutcome::Wanted
            } else {
                let swapped = Word::swapped(place, shadow).with_referenced(true);
                self.set(&mut cluster, page.offset(), swapped);
                self.note_pooled(&mut cluster, Some(place));
                StoreOutcome::Swapped
            }
        };
        if outcome == StoreOutcome::Swapped {
            self.notify();
        }
        outcome
    }

    /// Ends a store that found no place: the page stays in its frame, or is wanted.
    pub fn abandon_store(&self, page: PageIndex) -> StoreOutcome {
        let outcome = {
            let mut cluster = self.table.lock_or_create(page.cluster());
            let word = cluster.get(page.offset());
            if word.is_wanted() {
                StoreOutcome::Wanted
            } else {
                self.set(&mut cluster, page.offset(), word.unlocked());
                StoreOutcome::Swapped
            }
        };
        self.notify();
        outcome
    }

    /// A wanted page was mapped from its frame: it is in the program, its copy (if any) is kept.
    pub fn finish_hit(&self, page: PageIndex) {
        {
            let mut cluster = self.table.lock_or_create(page.cluster());
            let word = cluster.get(page.offset());
            debug_assert!(word.is_locked() && word.state() == State::Cached, "{word:?}");
            let kept = word.place().filter(|place| !matches!(place, Place::Same(_)));
            self.set(&mut cluster, page.offset(), Word::present(kept));
            self.enqueue(&mut cluster);
        }
        self.counters.add(Counter::swap_cache_hit, 1);
        self.counters.add(Counter::pgminfault, 1);
        self.notify();
    }

    /// A wanted page could not be mapped: it is on probation again.
    pub fn release_hit(&self, page: PageIndex) {
        {
            let mut cluster = self.table.lock_or_create(page.cluster());
            let word = cluster.get(page.offset());
            debug_assert!(word.is_locked() && word.state() == State::Cached, "{word:?}");
            self.set(&mut cluster, page.offset(), word.unlocked());
        }
        self.notify();
    }

    // ---- the pool's copies ----------------------------------------------------------------------

    /// Pages in the program of which the pool keeps a copy.
    pub fn copies(&self) -> i64 {
        self.copies.load(Relaxed)
    }

    /// Drops kept copies, about `wanted`, of the pages first that came in last: those leave last, and are the
    /// likeliest to be written until then. Returns how many it dropped.
    pub fn drop_copies(&self, wanted: usize) -> usize {
        let mut dropped = 0;
        let mut nth = 0;
        while dropped < wanted
            && nth < DROP_CLUSTERS
            && self.copies() > 0
            && let Some(id) = self.queue.youngest(nth)
        {
            let found = self.drop_copies_of(id);
            dropped += found;
            nth += usize::from(found < DROP_BATCH);
        }
        self.counters.add(Counter::swap_copy_dropped, dropped as u64);
        dropped
    }

    /// Drops at most [`DROP_BATCH`] copies of a cluster.
    fn drop_copies_of(&self, number: ClusterNumber) -> usize {
        let mut handles = [Handle::page(0); DROP_BATCH];
        let mut count = 0;
        if let Some(mut cluster) = self.table.lock(number)
            && cluster.copies() > 0
        {
            for offset in 0..CLUSTER_PAGES {
                let word = cluster.get(offset);
                if let Some(Place::Pool(handle)) = word.place()
                    && word.has_pool_copy()
                    && !word.is_locked()
                    && count < DROP_BATCH
                {
                    self.set(&mut cluster, offset, word.without_place());
                    handles[count] = handle;
                    count += 1;
                }
            }
        }
        handles[..count].iter().for_each(|&handle| self.zswap.free(handle));
        count
    }

    /// Moves the pool's entries together, if much of it is loose: those of so many clusters at most, each call goes on where
    /// the last one ended. Returns how many it moved.
    pub fn compact(&self, clusters: usize) -> usize {
        let mut from = self.compacting.load(Relaxed);
        if from == 0 {
            let loose = self.zswap.loose_pages();
            if loose < LOOSE_MIN.max(self.zswap.pool_pages() / LOOSE_PART) {
                return 0;
            }
            self.zswap.compact();
            from = 1;
        }
        let mut next = 0;
        let mut moved = 0;
        for (nth, number) in self.table.touched(from - 1..CLUSTERS_MAX).enumerate() {
            if nth == clusters {
                next = number.0 + 1;
                break;
            }
            moved += self.compact_cluster(number);
        }
        self.compacting.store(next, Relaxed);
        moved
    }

    /// Moves all entries of pages that are stored alone, and returns how many: for tests.
    #[cfg(feature = "shuttle")]
    pub fn compact_all(&self) -> usize {
        self.zswap.empty();
        self.table.touched(0..CLUSTERS_MAX).map(|number| self.compact_cluster(number)).sum()
    }

    fn compact_cluster(&self, number: ClusterNumber) -> usize {
        let Some(mut cluster) = self.table.lock(number) else { return 0 };
        let (mut moved, mut offset) = (0, 0);
        while offset < CLUSTER_PAGES {
            let (word, count) = cluster.stretch(offset, CLUSTER_PAGES - offset);
            // Whoever moves bytes, or writes them back, knows the entry by its handle.
            if let Some(Place::Pool(handle)) = word.place()
                && !word.is_locked()
                && !word.is_writeback()
                && let Some(there) = self.zswap.relocate(handle)
            {
                let moved_word = word.with_place(Place::Pool(there)).with_referenced(word.is_referenced());
                self.set(&mut cluster, offset, moved_word);
                self.zswap.vacate(handle);
                moved += 1;
            }
            offset += count;
        }
        moved
    }

    /// Passes the shrinker's hand over `scan` entries of the pool, or fewer if there are not so many. Notes in `into`, up to
    /// `room` in all, those that should be written back, as they lie in the object. Returns how many it passed.
    ///
    /// The hand goes over the clusters in the order in which they came to have entries, and begins anew at the end. With
    /// [`Shrinker::SecondChance`] it spares an entry that was stored or spared since it came by, and takes note.
    pub fn scan(&self, scan: usize, room: usize, of: Of, into: &mut Vec<(PageIndex, Handle)>) -> usize {
        let chances = self.zswap.switches().shrinker == Shrinker::SecondChance;
        let mut scanned = 0;
        // Twice round: all may have been stored of late.
        for _ in 0..2 * self.pooled.len() {
            if scanned >= scan || into.len() >= room {
                break;
            }
            let Some(number) = self.pooled.pop() else { break };
            let mut cluster = self.table.lock_or_create(number);
            let mut offset = self.take_hand(number);
            let mut pooled = offset > 0;
            while offset < CLUSTER_PAGES && scanned < scan && into.len() < room {
                let (word, count) = cluster.stretch(offset, CLUSTER_PAGES - offset);
                let (State::Swapped, Some(Place::Pool(handle))) = (word.state(), word.place()) else {
                    offset += count;
                    continue;
                };
                pooled = true;
                let busy = word.is_locked() || word.is_writeback();
                if busy || (of == Of::Own && self.zswap.is_frozen(handle)) {
                    offset += count;
                    continue;
                }
                let count = count.min(scan - scanned);
                if chances && word.is_referenced() {
                    self.set_run(&mut cluster, offset..offset + count, word, word.with_referenced(false));
                    scanned += count;
                    offset += count;
                    continue;
                }
                let count = count.min(room - into.len());
                into.extend((0..count).map(|nth| (number.page(offset + nth), handle.nth(nth))));
                scanned += count;
                offset += count;
            }
            let history = cluster.history();
            if offset < CLUSTER_PAGES {
                self.hand.store(number.0 << CLUSTER_SHIFT | offset as u64, Relaxed);
                self.pooled.put_back(number);
            } else if pooled {
                self.pooled.push(number);
            } else {
                cluster.set_history(History { pooled, ..history });
            }
        }
        scanned
    }

    /// Where in this cluster the hand stopped: at its start, if that was in another.
    fn take_hand(&self, number: ClusterNumber) -> usize {
        let hand = PageIndex(self.hand.swap(0, Relaxed));
        if hand.cluster() == number { hand.offset() } else { 0 }
    }

    /// `taken` pages have left the program: how many entries of the pool the shrinker's hand should pass for that, where
    /// the pool is pressed `weight` times as hard.
    pub fn pressure(&self, taken: usize, weight: f64) -> usize {
        let pooled = Pooled { stored: self.zswap.stored().0, backing: self.zswap.pool_pages() as u64 };
        let shrinker = self.zswap.switches().shrinker;
        let eligible = match shrinker {
            Shrinker::SecondChance => self.second_chance.eligible(pooled),
            Shrinker::Decay => self.decay.eligible(pooled),
            Shrinker::None => 0,
        } as f64;
        let part = taken as f64 / self.present().max(1) as f64;
        let before = f64::from_bits(self.due.load(Relaxed));
        let due = (before + weight * SCAN_RATE * part * eligible).min(2.0 * eligible);
        let scan = if due < SCAN_BATCH { 0 } else { due as usize };
        self.due.store((due - scan as f64).to_bits(), Relaxed);
        match shrinker {
            Shrinker::Decay if !self.decay.permits(scan as u64, pooled.stored) => 0,
            _ => scan,
        }
    }

    /// Begins to write a pool entry back to the device: its bytes and their hash. The entry can be read
    /// and freed meanwhile; the flag in its word says at the end whether it was.
    pub fn begin_writeback(
        &self,
        owner: PageIndex,
        handle: Handle,
        out: &mut [u8],
        scratch: &mut Scratch,
    ) -> Option<PageHash> {
        // The entry may be freed once that is done, and the handle be another page's: then the flag is gone, or the
        // hashes differ, and the end of the writeback drops what was written.
        if self.claim_writeback(owner, handle) {
            self.zswap.load(handle, out, &self.keys.hash, scratch).ok()
        } else {
            None
        }
    }

    /// Says in the page's word that its entry is being written back, if it has it still. Returns whether it has.
    pub fn claim_writeback(&self, owner: PageIndex, handle: Handle) -> bool {
        let Some(mut cluster) = self.table.lock(owner.cluster()) else { return false };
        let word = cluster.get(owner.offset());
        if word.state() != State::Swapped
            || word.is_locked()
            || word.is_writeback()
            || word.place() != Some(Place::Pool(handle))
        {
            return false;
        }
        self.set(&mut cluster, owner.offset(), word.with_writeback(true));
        true
    }

    /// Ends a writeback. `written` is the block, if the write succeeded. Returns whether the block is the
    /// page's place now.
    pub fn finish_writeback(
        &self,
        owner: PageIndex,
        handle: Handle,
        hash: PageHash,
        written: Option<u64>,
    ) -> bool {
        let Some(mut cluster) = self.table.lock(owner.cluster()) else { return false };
        let word = cluster.get(owner.offset());
        let current = word.is_writeback()
            && !word.is_locked()
            && word.state() == State::Swapped
            && word.place() == Some(Place::Pool(handle))
            && self.zswap.is_of(handle, hash);
        match written {
            Some(block) if current => {
                let (age, old) = (self.workingset.distance(word.shadow()), self.age.load(Relaxed));
                self.age.store(old - old / AGE_PART + age / AGE_PART, Relaxed);
                self.set(&mut cluster, owner.offset(), word.with_place(Place::Device(block)));
                self.zswap.free(handle);
                self.counters.add(Counter::zswpwb, 1);
                true
            }
            _ => {
                if current {
                    self.set(&mut cluster, owner.offset(), word.with_writeback(false));
                }
                false
            }
        }
    }

    // ---- changes by the program -----------------------------------------------------------------

    /// Forgets a cluster's pages in `range`: they read as zeroes, or are gone. Places are freed;
    /// `frame_freed(slot, offset)` is told of every frame. Waits until no transfer is under way there.
    ///
    /// `also` runs under the cluster's lock, after the words have changed: the place for the system call
    /// that drops the program's pages, so that no fault comes between the two.
    pub fn discard(
        &self,
        number: ClusterNumber,
        range: std::ops::Range<usize>,
        mut frame_freed: impl FnMut(u16, usize),
        also: impl FnOnce(),
    ) -> Discarded {
        let mut discarded = Discarded::default();
        let Some(mut cluster) = self.lock_settled(number, range.clone()) else {
            also();
            return discarded;
        };
        for offset in range {
            let word = cluster.get(offset);
            match word.state() {
                State::Hole => continue,
                State::Present => discarded.present += 1,
                State::Cached => {
                    discarded.cached += 1;
                    frame_freed(word.slot(), offset);
                }
                State::Swapped | State::Poisoned => {}
            }
            self.free_place(word.place());
            self.set(&mut cluster, offset, Word::HOLE);
        }
        also();
        if cluster.is_empty() {
            let history = cluster.history();
            cluster.set_history(history.emptied());
        }
        discarded
    }

    /// Locks a cluster when no transfer is under way in `range`.
    pub fn lock_settled(
        &self,
        number: ClusterNumber,
        range: std::ops::Range<usize>,
    ) -> Option<ClusterGuard<'_>> {
        loop {
            let cluster = self.table.lock(number)?;
            let busy = |cluster: &ClusterGuard<'_>| {
                cluster.locked() > 0 && range.clone().any(|offset| cluster.get(offset).is_locked())
            };
            if !busy(&cluster) {
                return Some(cluster);
            }
            drop(cluster);
            self.waiters.fetch_add(1, Relaxed);
            let guard = lock(&self.transfers);
            // Look again with the lock held: an end that came before this is seen, one after notifies.
            let still = self.table.lock(number).is_some_and(|cluster| busy(&cluster));
            if still {
                drop(self.transfer_ended.wait(guard).unwrap_or_else(std::sync::PoisonError::into_inner));
            }
            self.waiters.fetch_sub(1, Relaxed);
        }
    }

    /// Tells the table that pages of an unmanaged past are in the program: a region is registered late.
    pub fn adopt_present(&self, number: ClusterNumber, offsets: impl Iterator<Item = usize>) -> usize {
        let mut cluster = self.table.lock_or_create(number);
        let mut count = 0;
        for offset in offsets {
            if cluster.get(offset).state() == State::Hole {
                self.set(&mut cluster, offset, Word::present(None));
                count += 1;
            }
        }
        if count > 0 {
            self.enqueue(&mut cluster);
        }
        count
    }

    /// A fault says that a page is absent which the table has as present. If `is_absent` confirms that
    /// under the cluster's lock, the page is a hole: a system call that we did not see dropped it.
    pub fn lost(&self, page: PageIndex, is_absent: impl FnOnce() -> bool) -> bool {
        let Some(mut cluster) = self.table.lock(page.cluster()) else { return false };
        let word = cluster.get(page.offset());
        if word.state() != State::Present || word.is_locked() || !is_absent() {
            return false;
        }
        self.free_place(word.place());
        self.set(&mut cluster, page.offset(), Word::HOLE);
        true
    }

    /// Runs `poison` if a page is poisoned, under its cluster's lock: it is not once the program has dropped it.
    pub fn if_poisoned<T>(&self, page: PageIndex, poison: impl FnOnce() -> T) -> Option<T> {
        let cluster = self.table.lock(page.cluster())?;
        (cluster.get(page.offset()).state() == State::Poisoned).then(poison)
    }

    /// Moves one page's word to another index: its mapping moved. The target must be a hole, the page not
    /// cached and not locked.
    pub fn rename(&self, from: PageIndex, to: PageIndex) {
        let take = |cluster: &mut ClusterGuard<'_>| {
            let word = cluster.get(from.offset());
            debug_assert!(!word.is_locked() && word.state() != State::Cached, "{word:?}");
            self.set(cluster, from.offset(), Word::HOLE);
            word.with_writeback(false)
        };
        let put = |cluster: &mut ClusterGuard<'_>, word: Word| {
            debug_assert_eq!(cluster.get(to.offset()), Word::HOLE);
            self.set(cluster, to.offset(), word);
            if word.state() == State::Swapped {
                self.note_pooled(cluster, word.place());
            }
            if word.state() == State::Present {
                self.enqueue(cluster);
            }
        };
        if from.cluster() == to.cluster() {
            let mut cluster = self.table.lock_or_create(from.cluster());
            let word = take(&mut cluster);
            put(&mut cluster, word);
        } else {
            let (mut a, mut b) = self.table.lock_pair(from.cluster(), to.cluster());
            let word = take(&mut a);
            if word != Word::HOLE {
                put(&mut b, word);
            }
        }
    }
}

/// Whether pages are to be one entry of the pool: not if most are repeated words, or one is clean. If so, which of them may
/// be stored alone where that cannot be.
fn go_together(ways: &[Way]) -> Option<u16> {
    let same = ways.iter().filter(|way| matches!(way, Way::Same(_))).count();
    if same > FOLIO_PAGES / 2 || ways.iter().any(|way| matches!(way, Way::Clean(_))) {
        return None;
    }
    Some(ways.iter().enumerate().map(|(nth, way)| u16::from(!matches!(way, Way::Same(_))) << nth).sum())
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

/// Whether `word`, `nth` pages after the one that is waited for, can travel with a transfer from `source`.
fn continues(source: Source, nth: isize, word: Word) -> bool {
    match (source, source_of(word)) {
        (Source::Device { block: first }, Some(Source::Device { block })) => {
            first.checked_add_signed(nth as i64) == Some(block)
        }
        (a, Some(b)) => a == b,
        (_, None) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::walks;
    use crate::zswap::pool::Heap;

    fn empty() -> Swap<Heap> {
        let keys = Keys { hash: HashKey::new([1, 2, 3, 4]), cipher: None };
        let blocks = crate::blocks::tests::space(64);
        Swap::new(Heap, blocks, keys, Config::for_cap(1000), Counters::private())
    }

    /// The way to a page's word is gone once for a fault, wherever the page is: the entry is the object's own, and a page
    /// that was never swapped is known by the same word. And once more to end what the fault began.
    #[test]
    fn a_fault_looks_its_page_up_once() {
        let swap = empty();
        swap.zswap().set_pages_max(1000);
        let pages = PageIndex(512)..PageIndex(1024);
        let text: Vec<u8> = (0..PAGE_SIZE).map(|at| (at / 16) as u8).collect();
        let mut scratch = Scratch::default();
        let Stored::New(pool) = swap.store(&text, None, false, &mut scratch) else { panic!("it compresses") };
        let block = swap.blocks().allocate(1).unwrap().start;
        let words = [
            Word::HOLE,
            Word::present(None),
            Word::present(None).locked(),
            Word::cached(3, None),
            Word::swapped(Place::ZERO, Shadow(1)),
            Word::swapped(pool, Shadow(1)),
            Word::swapped(Place::Device(block), Shadow(1)),
            Word::POISONED,
        ];
        let mut cluster = swap.table.lock_or_create(pages.start.cluster());
        words.iter().enumerate().for_each(|(at, &word)| swap.set(&mut cluster, at, word));
        drop(cluster);
        for (nth, word) in words.into_iter().enumerate() {
            walks::take();
            let found = swap.swapin(pages.start.plus(nth as u64), pages.clone(), Window::NONE);
            assert_eq!(walks::take(), 1, "{word:?}");
            if let Swapin::Inserted(transfer) = found {
                swap.finish_swapin(&transfer, 1, false);
                assert_eq!(walks::take(), 1, "{word:?}");
            }
        }
    }

    #[test]
    fn a_page_that_was_dropped_is_not_poisoned_for_what_it_was() {
        let swap = empty();
        let page = PageIndex(600);
        swap.set(&mut swap.table.lock_or_create(page.cluster()), page.offset(), Word::POISONED);
        assert_eq!(swap.if_poisoned(page, || 7), Some(7));
        swap.discard(page.cluster(), page.offset()..page.offset() + 1, |_, _| {}, || {});
        assert_eq!(swap.if_poisoned(page, || 7), None);
        assert_eq!(swap.if_poisoned(PageIndex(6000), || 7), None);
    }
}
