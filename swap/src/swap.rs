//! The swap cache's verbs: swapin, take-out, store, writeback, discard.
//!
//! Each verb holds one cluster lock for a few word changes (and the pool's for a copy), never across I/O or a codec.
//! Verbs of the program's own calls (`discard`, `lock_settled`) wait until no transfer is under way where they change
//! something; no other verb waits. What moves bytes between two verbs is the engine's. A *locked* word is a claim:
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
mod space;
mod store;
mod swapin;
mod swapoff;
mod takeout;
mod totals;
mod transfers;
mod writeback;

pub use program::Discarded;
pub use space::Keys;
pub use store::{StoreOutcome, Stored};
pub use swapin::{MapConflict, Source, Swapin, Transfer, WINDOW_MAX};
pub use swapoff::DeviceRun;
pub use takeout::{Candidate, TakenOut};
pub use writeback::PoolScope;

use crate::blocks::Blocks;
use crate::config::Config;
use crate::held::Held;
use crate::object::Object;
use crate::place::Place;
use crate::queue::Queue;
use crate::stats::Counters;
use crate::table::{ClusterGuard, History, Table};
use crate::word::Word;
use crate::zswap::Zswap;
use crate::zswap::pool::SpanSource;
use pagetide_page::{ClusterKey, ObjectId};
use space::SwapSpace;

/// The swap subsystem of one process: a space, and the objects in it, of which there is one so far.
#[derive(Debug)]
pub struct Swap<S: SpanSource> {
    space: SwapSpace<S>,
    object: Object,
}

impl<S: SpanSource + Clone + 'static> Swap<S> {
    /// An empty swap subsystem, whose pool may take no memory yet.
    pub fn new(source: S, blocks: Blocks, keys: Keys, config: Config, counters: Counters) -> Self {
        Self {
            space: SwapSpace::new(source, blocks, keys, config, counters),
            object: Object::new(ObjectId::PRIVATE),
        }
    }
}

impl<S: SpanSource> Swap<S> {
    /// The table, for look-ups that change nothing.
    pub fn table(&self) -> &Table {
        self.object.table()
    }
    /// The compressed pool.
    pub fn zswap(&self) -> &Zswap<S> {
        &self.space.zswap
    }
    /// Device space.
    pub fn blocks(&self) -> &Blocks {
        &self.space.blocks
    }
    /// The counters.
    pub fn counters(&self) -> Counters {
        self.space.counters
    }
    /// The settings.
    pub fn config(&self) -> &Config {
        &self.space.config
    }
    /// Clusters in the order in which they are reclaimed.
    pub fn queue(&self) -> &Queue {
        &self.space.queue
    }
    /// Pages in the program.
    pub fn present(&self) -> i64 {
        self.space.totals.present()
    }
    /// Pages on probation.
    pub fn cached(&self) -> i64 {
        self.space.totals.cached()
    }
    /// Pages at a place.
    pub fn swapped(&self) -> i64 {
        self.space.totals.swapped()
    }
    /// Pages at a place that are a repeated word.
    pub fn same_filled(&self) -> i64 {
        self.space.totals.same_filled()
    }
    /// Bytes of the table, the hashes and what leads to the pool's entries.
    pub fn metadata_bytes(&self) -> usize {
        self.object.table().bytes() + self.space.blocks.bytes() + self.space.zswap.bytes()
    }

    /// The same subsystem in a forked child, which inherited all of it copy-on-write: what it holds on
    /// the device is told by `held`, what it counts by `counters`. Nothing may have been under way.
    pub fn for_child(&self, held: Held, counters: Counters) -> Self {
        Self { space: self.space.for_child(held, counters), object: self.object.clone() }
    }

    /// The object of a cluster in a queue.
    fn object_of(&self, key: ClusterKey) -> &Object {
        debug_assert_eq!(key.object, self.object.id(), "there is one object");
        &self.object
    }

    /// All word changes go through here, so that the totals agree with the words.
    fn set(&self, cluster: &mut ClusterGuard<'_>, offset: usize, word: Word) {
        self.space.totals.change(cluster.get(offset), word, 1);
        cluster.set(offset, word);
    }

    /// The same for pages whose words follow from `old`, and are to follow from `new`.
    fn set_run(&self, cluster: &mut ClusterGuard<'_>, range: std::ops::Range<usize>, old: Word, new: Word) {
        self.space.totals.change(old, new, range.len() as i64);
        cluster.set_run(range, new);
    }

    fn free_place(&self, place: Option<Place>) {
        match place {
            Some(Place::Pool(handle)) => self.space.zswap.free(handle),
            Some(Place::Device(block)) => self.space.blocks.free(block),
            Some(Place::Same(_)) | None => {}
        }
    }

    fn enqueue(&self, cluster: &mut ClusterGuard<'_>) {
        let history = cluster.history();
        if !history.queued {
            cluster.set_history(History { queued: true, ..history });
            self.space.queue.push(self.object.id().cluster(cluster.number()));
        }
    }

    /// Notes that a page of the cluster is in the pool now.
    fn note_pooled(&self, cluster: &mut ClusterGuard<'_>, place: Option<Place>) {
        let history = cluster.history();
        if matches!(place, Some(Place::Pool(_))) && !history.pooled {
            cluster.set_history(History { pooled: true, ..history });
            self.space.pooled.push(self.object.id().cluster(cluster.number()));
        }
    }

    /// The keys, for whoever keeps them from being seen.
    pub fn keys(&self) -> &Keys {
        &self.space.keys
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
        let keys = Keys { hash: crate::hash::HashKey::new([1, 2, 3, 4]), cipher: None };
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
        let mut cluster = swap.table().lock_or_create(pages.start.cluster());
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
        swap.set(&mut swap.table().lock_or_create(page.cluster()), page.offset(), Word::POISONED);
        assert_eq!(swap.if_poisoned(page, || 7), Some(7));
        swap.discard(page.cluster(), page.offset()..page.offset() + 1, |_, _| {}, || {});
        assert_eq!(swap.if_poisoned(page, || 7), None);
        assert_eq!(swap.if_poisoned(PageIndex(6000), || 7), None);
    }
}
