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

mod compact;
mod copies;
mod program;
mod store;
mod swapin;
mod swapoff;
mod takeout;
mod writeback;

pub use program::Discarded;
pub use store::{StoreOutcome, Stored};
pub use swapin::{MapConflict, Source, Swapin, Transfer, WINDOW_MAX};
pub use swapoff::DeviceRun;
pub use takeout::{Candidate, TakenOut};
pub use writeback::PoolScope;

use crate::blocks::Blocks;
use crate::cipher::Cipher;
use crate::config::Config;
use crate::hash::HashKey;
use crate::held::Held;
use crate::place::Place;
use crate::policy::Policy;
use crate::queue::Queue;
use crate::stats::Counters;
use crate::sync::{Condvar, Mutex, lock};
use crate::table::{ClusterGuard, History, Table};
use crate::word::{State, Word};
use crate::workingset::Workingset;
use crate::zswap::Zswap;
use crate::zswap::pool::SpanSource;
use crate::zswap::shrinker::{Decay, SecondChance};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU32, AtomicU64, AtomicUsize, Ordering::Relaxed};

/// What an entry's age counts, when it is written back, against that of those before it.
const AGE_PART: u64 = 256;

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
    /// How many others had left since those did that are written back, of late; and pages from the device that came
    /// back before twice as many had.
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

    /// The keys, for whoever keeps them from being seen.
    pub fn keys(&self) -> &Keys {
        &self.keys
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::streams::Window;
    use crate::table::walks;
    use crate::workingset::Shadow;
    use crate::zswap::Scratch;
    use crate::zswap::pool::Heap;
    use pagetide_page::{PAGE_SIZE, PageIndex};

    fn empty() -> Swap<Heap> {
        let keys = Keys { hash: HashKey::new([1, 2, 3, 4]), cipher: None };
        let blocks = crate::blocks::tests::space(64);
        Swap::new(Heap, blocks, keys, Config::for_cap(1000), Counters::private())
    }

    /// The way to a page's word is gone once for a fault, wherever the page is: the entry is the object's own, and a
    /// page that was never swapped is known by the same word. And once more to end what the fault began.
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
