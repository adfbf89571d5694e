//! The swap cache's verbs: swapin, take-out, store, writeback, discard.
//!
//! Each verb holds one cluster lock for a few word changes (and the pool's for a copy), never across I/O or a codec.
//! Verbs of the program's own calls (`discard`, `lock_settled`) wait until no transfer is under way where they change
//! something; no other verb waits. Between two verbs the engine moves the bytes. A *locked* word is a claim: the thread
//! that locked it moves the bytes; every other thread leaves it alone, or marks it wanted.
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
pub use takeout::{Candidate, TakenOut, Victim, Written};
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
///
/// A page goes out, into the pool, and comes back:
///
/// ```
/// use pagetide_swap::blocks::Blocks;
/// use pagetide_swap::hash::HashKey;
/// use pagetide_swap::swap::Keys;
/// use pagetide_swap::zswap::pool::Heap;
/// use pagetide_swap::{
///     Config, Counters, PageIndex, Scratch, State, StoreOutcome, Stored, Swap, Swapin, Window,
/// };
///
/// let keys = Keys { hash: HashKey::new([1, 2, 3, 4]), cipher: None };
/// let swap = Swap::new(Heap, Blocks::none(), keys, Config::for_cap(1000), Counters::private());
/// swap.zswap().set_pages_max(100);
/// let page = PageIndex(512);
/// let alone = page..page.plus(1);
/// let bytes: Vec<u8> = (0..4096).map(|at| (at / 16) as u8).collect();
///
/// // The program touches it for the first time.
/// let Swapin::Inserted(transfer) = swap.swapin(page, alone.clone(), Window::NONE) else { panic!() };
/// swap.finish_swapin(&transfer, 1, false);
/// assert_eq!(swap.present(), 1);
///
/// // It is taken out into a frame of slot 0: it is on probation.
/// let mut cluster = swap.victim().expect("it is the oldest");
/// let out = swap.taken_out(&mut cluster, 0, 0..512, |offset| offset == 0, |_| false);
/// assert_eq!((out.taken, swap.cached()), (1, 1));
///
/// // It is stored.
/// swap.begin_store(&mut cluster, 0, 0..1, |_, kept| assert_eq!(kept, None));
/// drop(cluster);
/// let mut scratch = Scratch::default();
/// let Stored::New(place) = swap.store(&bytes, None, false, &mut scratch) else { panic!() };
/// assert_eq!(swap.finish_store(page, place, out.shadow), StoreOutcome::Swapped);
/// assert_eq!(swap.table().peek(page).state(), State::Swapped);
///
/// // A fault brings it back.
/// let Swapin::Inserted(transfer) = swap.swapin(page, alone, Window::NONE) else { panic!() };
/// let mut back = [0; 4096];
/// swap.load(&transfer, 0, &mut back, &mut scratch)?;
/// swap.finish_swapin(&transfer, 1, false);
/// assert!(back == bytes[..] && swap.swapped() == 0);
/// # Ok::<(), pagetide_swap::LoadError>(())
/// ```
#[derive(Debug)]
pub struct Swap<S: SpanSource> {
    space: SwapSpace<S>,
    object: Object,
}

impl<S: SpanSource + Clone + 'static> Swap<S> {
    /// Returns an empty swap subsystem. Its pool takes memory from `source`, but not before [`Zswap::set_pages_max`]
    /// has allowed some.
    pub fn new(source: S, blocks: Blocks, keys: Keys, config: Config, counters: Counters) -> Self {
        Self {
            space: SwapSpace::new(source, blocks, keys, config, counters),
            object: Object::new(ObjectId::PRIVATE),
        }
    }
}

impl<S: SpanSource> Swap<S> {
    /// Returns the table of the object, for look-ups that change nothing.
    pub fn table(&self) -> &Table {
        self.object.table()
    }
    /// Returns the compressed pool.
    pub fn zswap(&self) -> &Zswap<S> {
        &self.space.zswap
    }
    /// Returns the process's view of the device's space.
    pub fn blocks(&self) -> &Blocks {
        &self.space.blocks
    }
    /// Returns the process's counters.
    pub fn counters(&self) -> Counters {
        self.space.counters
    }
    /// Returns the settings.
    pub fn config(&self) -> &Config {
        &self.space.config
    }
    /// Returns the queue of clusters with pages in the program, in the order in which they are reclaimed.
    pub fn queue(&self) -> &Queue {
        &self.space.queue
    }
    /// Returns the number of pages in the program.
    pub fn present(&self) -> i64 {
        self.space.totals.present()
    }
    /// Returns the number of pages on probation.
    pub fn cached(&self) -> i64 {
        self.space.totals.cached()
    }
    /// Returns the number of swapped pages: those at a place.
    pub fn swapped(&self) -> i64 {
        self.space.totals.swapped()
    }
    /// Returns the number of swapped pages that are one word, repeated.
    pub fn same_filled(&self) -> i64 {
        self.space.totals.same_filled()
    }
    /// Returns the bytes of memory that the table, the hashes and the pool's index take.
    pub fn metadata_bytes(&self) -> usize {
        self.object.table().bytes() + self.space.blocks.bytes() + self.space.zswap.bytes()
    }

    /// Returns the subsystem of a forked child, which inherited all of the parent's copy-on-write. It holds blocks by
    /// its own bitmap `held`, and counts in its own `counters`. Nothing may have been under way at the fork.
    pub fn for_child(&self, held: Held, counters: Counters) -> Self {
        Self { space: self.space.for_child(held, counters), object: self.object.clone() }
    }

    /// Returns the object of a cluster in a queue.
    fn object_of(&self, key: ClusterKey) -> &Object {
        debug_assert_eq!(key.object, self.object.id(), "there is one object");
        &self.object
    }

    /// Changes a word. All changes of words go through here, so that the totals agree with them.
    fn set(&self, cluster: &mut ClusterGuard<'_>, offset: usize, word: Word) {
        self.space.totals.change(cluster.get(offset), word, 1);
        cluster.set(offset, word);
    }

    /// Changes the words of pages that follow from `old` to those that follow from `new`.
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

    /// Returns the keys, so that their memory can be kept out of core dumps.
    pub fn keys(&self) -> &Keys {
        &self.space.keys
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::SPARED_MAX;
    use crate::stats::Counter;
    use crate::streams::Window;
    use crate::table::walks;
    use crate::workingset::Shadow;
    use crate::zswap::Scratch;
    use crate::zswap::pool::Heap;
    use pagetide_page::{CLUSTER_PAGES, PAGE_SIZE, PageIndex, PageSet};

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

    /// Takes the next victim out into a slot, whole.
    fn take_out(swap: &Swap<Heap>, slot: u16) -> usize {
        let mut cluster = swap.victim().expect("something is in the program");
        swap.taken_out(&mut cluster, slot, 0..CLUSTER_PAGES, |_| true, |_| false).taken
    }

    #[test]
    fn pages_of_a_cluster_that_gets_a_second_chance_are_counted_each_round() {
        let swap = empty();
        let activated = || swap.counters().get(Counter::pgactivate);
        let pages = PageIndex(512)..PageIndex(512 + CLUSTER_PAGES as u64);
        {
            let mut cluster = swap.table().lock_or_create(pages.start.cluster());
            swap.set_run(&mut cluster, 0..CLUSTER_PAGES, Word::HOLE, Word::present(None));
            swap.enqueue(&mut cluster);
        }
        assert_eq!(
            (take_out(&swap, 1), activated()),
            (CLUSTER_PAGES, 0),
            "what never came back leaves at once"
        );
        for page in (0..CLUSTER_PAGES as u64).map(|nth| pages.start.plus(nth)) {
            let Swapin::Inserted(hit) = swap.swapin(page, pages.clone(), Window::NONE) else {
                panic!("{page:?}")
            };
            swap.finish_swapin(&hit, 1, false);
        }
        assert_eq!(take_out(&swap, 2), CLUSTER_PAGES);
        assert_eq!(activated(), (SPARED_MAX * CLUSTER_PAGES) as u64, "all of it came back");
    }

    #[test]
    fn a_page_has_refaulted_from_when_it_was_asked_for_again_until_it_is_new() {
        let swap = empty();
        let page = PageIndex(512);
        let pages = page..PageIndex(512 + CLUSTER_PAGES as u64);
        let word = || swap.table().peek(page);
        let fault = || {
            let Swapin::Inserted(transfer) = swap.swapin(page, pages.clone(), Window::NONE) else {
                panic!("{:?}", word())
            };
            swap.finish_swapin(&transfer, 1, false);
            word().has_refaulted()
        };
        assert!(!fault(), "new");
        take_out(&swap, 1);
        assert!(!word().has_refaulted() && fault(), "from probation");
        take_out(&swap, 2);
        assert!(word().has_refaulted(), "on its way out again");
        swap.set(&mut swap.table().lock_or_create(page.cluster()), 0, Word::swapped(Place::ZERO, Shadow(0)));
        assert!(fault(), "from a place");
        swap.discard(page.cluster(), 0..1, |_, _| {}, || {});
        assert!(!fault(), "new again");
    }

    /// Puts pages into the pool, each of which has refaulted or not.
    fn pool<const PAGES: usize>(swap: &Swap<Heap>, pages: [(u64, bool); PAGES]) {
        swap.zswap().set_pages_max(1000);
        let text: Vec<u8> = (0..PAGE_SIZE).map(|at| (at / 16) as u8).collect();
        for (page, refaulted) in pages {
            let page = PageIndex(page);
            let Stored::New(place) = swap.store(&text, None, false, &mut Scratch::default()) else {
                panic!("it compresses")
            };
            let word = Word::cached(1, None).with_refaulted(refaulted).locked();
            swap.set(&mut swap.table().lock_or_create(page.cluster()), page.offset(), word);
            swap.finish_store(page, place, Shadow(0));
        }
    }

    #[test]
    fn copies_that_a_fork_shares_stay_until_they_are_to_be_let_go_of() {
        let swap = empty();
        let pages = [512, 513, 2000];
        let come = |page: u64| {
            let page = PageIndex(page);
            let Swapin::Inserted(transfer) = swap.swapin(page, page..page.plus(1), Window::NONE) else {
                panic!("{page:?}")
            };
            swap.finish_swapin(&transfer, 1, false);
            swap.table().peek(page).has_pool_copy()
        };
        pool(&swap, pages.map(|page| (page, false)));
        swap.zswap().freeze();
        assert_eq!(pages.map(come), [true; 3], "whether copies are kept or not");
        assert_eq!((swap.drop_copies(9, PoolScope::Own), swap.copies()), (0, 3), "that would give nothing");
        assert_eq!((swap.drop_copies(1, PoolScope::Shared), swap.copies()), (1, 2));
        swap.zswap().thaw();
        assert_eq!((swap.drop_copies(9, PoolScope::Shared), swap.drop_copies(9, PoolScope::Own)), (0, 2));
        assert_eq!((swap.copies(), swap.zswap().pool_pages()), (0, 0));
        pool(&swap, [(512, false)]);
        assert!(!come(512), "as it was before");
    }

    #[test]
    fn copies_that_are_shared_hide_no_others() {
        let swap = empty();
        let cluster = CLUSTER_PAGES as u64;
        let bring = |nth: u64, keep: bool| {
            let page = PageIndex(nth * cluster);
            let Swapin::Inserted(transfer) = swap.swapin(page, page..page.plus(1), Window::NONE) else {
                panic!("{page:?}")
            };
            swap.finish_swapin(&transfer, 1, keep);
        };
        (1..=100).for_each(|nth| pool(&swap, [(nth * cluster, false)]));
        swap.zswap().freeze();
        (101..=200).for_each(|nth| pool(&swap, [(nth * cluster, false)]));
        (1..=20).for_each(|nth| bring(nth, false));
        (101..=200).for_each(|nth| bring(nth, true));
        (21..=100).for_each(|nth| bring(nth, false));
        assert_eq!(swap.drop_copies(60, PoolScope::Own), 60, "though those that came in last are shared");
        let steps: Vec<_> = (0..7).map(|_| swap.drop_copies_step(20)).collect();
        assert_eq!(steps, [0, 0, 0, 0, 0, 20, 0], "a bounded step goes on where the last one found none");
        assert_eq!(swap.drop_copies(500, PoolScope::Shared), 100);
        assert_eq!((swap.drop_copies_step(500), swap.copies()), (20, 0));
    }

    #[test]
    fn the_hand_does_not_spare_what_is_much_older_than_what_comes_back() {
        let swap = empty();
        pool(&swap, [(512, true)]);
        let passes = |count: usize| {
            let mut found = Vec::new();
            (0..count).for_each(|_| _ = swap.scan(1, 9, PoolScope::Own, &mut found));
            found.len()
        };
        swap.space.workingset.evict(1000, false);
        assert_eq!(passes(1), 0, "nothing has come back yet");
        swap.space.nearness.reuse.note(334);
        assert_eq!(passes(1), 0);
        swap.space.workingset.evict(3, false);
        assert_eq!(passes(1), 1);
    }

    #[test]
    fn the_hand_spares_what_has_refaulted_more_often_than_what_is_new() {
        let swap = empty();
        pool(&swap, [(512, false), (513, true)]);
        let pass = || {
            let mut found = Vec::new();
            swap.scan(2, 9, PoolScope::Own, &mut found);
            found.into_iter().map(|(page, _)| page.0).collect::<Vec<_>>()
        };
        let passes: [Vec<u64>; 8] = std::array::from_fn(|_| pass());
        let (first, rest) = passes.split_first().unwrap();
        assert!(first.is_empty() && rest[..5].iter().all(|found| found == &[512]), "{passes:?}");
        assert_eq!(rest[5..], [[512, 513], [512, 513]]);
    }

    #[test]
    fn a_cluster_with_pages_on_the_move_is_passed_over_and_gets_no_second_chance() {
        let swap = empty();
        let mut cluster = swap.table().lock_or_create(PageIndex(512).cluster());
        swap.set(&mut cluster, 0, Word::present(None));
        swap.set(&mut cluster, 1, Word::present(None).locked());
        swap.enqueue(&mut cluster);
        drop(cluster);
        assert!(swap.victim().is_none() && swap.queue().len() == 1);
        assert_eq!(swap.counters().get(Counter::pgactivate), 0);
    }
    /// Pages that were written tell what is hot in a cluster only where they are many of those that came back.
    #[test]
    fn a_cluster_that_is_mostly_read_gets_its_second_chance_whole() {
        // Two clusters of whose 100 pages 80 came back. The second is watched from the first call on.
        let victims = |written: usize| {
            let swap = empty();
            for number in [1, 2] {
                let mut cluster = swap.table().lock_or_create(PageIndex(number * 512).cluster());
                swap.set_run(&mut cluster, 0..100, Word::HOLE, Word::present(None));
                cluster.set_history(History { heat: 80, ..History::default() });
                swap.enqueue(&mut cluster);
            }
            let told = |asked: Written<'_, '_>| {
                Some(PageSet::range(0..if asked.cluster().1 { 100 } else { written }))
            };
            let victim = swap.next_victim(told).expect("one leaves in the end");
            (victim.cluster.number().0, victim.hot.len(), swap.counters().get(Counter::pgactivate))
        };
        assert_eq!(victims(20), (2, 20, 120), "the first is spared, of the second those stay");
        assert_eq!(victims(19), (1, 19, 219), "both are spared, and half of what came back is forgotten");
    }
}
