//! Eight threads read, write, evict, write back, shrink, move together and forget the same pages, while the pool
//! changes how it works: every page that comes back is what was written last, and in the end nothing is held for
//! nobody.
//!
//! `PAGETIDE_SEED=n` chooses what the threads draw; `PAGETIDE_STRESS_OPS=n` says how much each of them does. In which
//! order they run is not replayed: tests/protocol/main.rs tries those one by one.
#![cfg(not(feature = "shuttle"))]

use pagetide_swap::blocks::Blocks;
use pagetide_swap::cipher::Cipher;
use pagetide_swap::hash::HashKey;
use pagetide_swap::swap::Keys;
use pagetide_swap::workingset::Shadow;
use pagetide_swap::zswap::pool::Heap;
use pagetide_swap::zswap::shrinker::Shrinker;
use pagetide_swap::{
    Allocator, CLUSTER_PAGES, ClusterNumber, Config, Counter, Counters, FOLIO_PAGES, PAGE_SIZE, PageIndex,
    Place, PoolScope, Scratch, Source, State, StoreOutcome, Stored, Swap, Swapin, Switches, Transfer, Window,
};
use std::collections::HashMap;
use std::sync::atomic::{AtomicU16, AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard};

#[path = "../../tests/seeds/kept.rs"]
mod kept;

const THREADS: u64 = 8;
const CLUSTERS: u64 = 12;
const PAGES: u64 = CLUSTERS * CLUSTER_PAGES as u64;
const BLOCKS: usize = 3 * PAGES as usize;
const OPS: u64 = 6000;

/// What must have happened.
const EXPECTED: [Counter; 13] = [
    Counter::pswpin,
    Counter::zswpin,
    Counter::zswpout,
    Counter::zswpwb,
    Counter::swpin_zero,
    Counter::swpout_zero,
    Counter::swap_reuse,
    Counter::swap_ra,
    Counter::swap_cache_hit,
    Counter::reject_compress_poor,
    Counter::pool_limit_hit,
    Counter::swap_copy_dropped,
    Counter::workingset_refault_anon,
];

type Bytes = Box<[u8]>;

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }
    fn below(&mut self, limit: u64) -> u64 {
        (self.next() >> 11) % limit
    }
}

/// What a page says after so many writes: a repeated word, noise, digits, or something between. Zeroes before the first.
fn compose(page: u64, version: u32) -> Bytes {
    let mut bytes = vec![0; PAGE_SIZE].into_boxed_slice();
    let stamp = (page << 32 | u64::from(version)).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut random = Random(stamp);
    let kind = (page / 40 + u64::from(version)) % 8;
    let words = bytes.as_chunks_mut::<8>().0.iter_mut().enumerate();
    for (nth, word) in words.filter(|_| version > 0) {
        *word = match kind {
            0 => (stamp as u32 as u64 * 0x1_0000_0001).to_ne_bytes(),
            1 => random.next().to_ne_bytes(),
            // Digits, which only Zstandard makes smaller.
            2 => (random.next() & 0x0f0f_0f0f_0f0f_0f0f | 0x3030_3030_3030_3030).to_ne_bytes(),
            _ if (nth as u64).is_multiple_of(kind * 3) => random.next().to_ne_bytes(),
            _ => *b"pagetide",
        };
    }
    bytes
}

/// What lies outside of the swap subsystem.
struct Outside {
    /// The program's pages, if they are mapped: how often each was written.
    program: Vec<Option<u32>>,
    /// The same of all pages: the model.
    written: Vec<u32>,
    frames: HashMap<(u16, u64), Bytes>,
    device: HashMap<u64, Bytes>,
}

struct World {
    swap: Swap<Heap>,
    outside: Mutex<Outside>,
    slots: AtomicU16,
    /// Entries that were moved together.
    moved: AtomicU64,
}

/// One thread's.
struct Worker<'a> {
    world: &'a World,
    random: Random,
    scratch: Scratch,
}

impl World {
    fn new(zpool: Allocator) -> Self {
        let keys = Keys { hash: HashKey::new([1, 2, 3, 4]), cipher: Some(Cipher::new([5, 6])) };
        let config = Config { zpool, ..Config::for_cap(PAGES / 2) };
        let swap = Swap::new(Heap, Blocks::private(BLOCKS), keys, config, Counters::private());
        swap.zswap().set_pages_max(PAGES as usize);
        let outside = Outside {
            program: vec![None; PAGES as usize],
            written: vec![0; PAGES as usize],
            frames: HashMap::new(),
            device: HashMap::new(),
        };
        Self { swap, outside: Mutex::new(outside), slots: AtomicU16::new(0), moved: AtomicU64::new(0) }
    }

    fn outside(&self) -> MutexGuard<'_, Outside> {
        self.outside.lock().unwrap()
    }
}

impl Worker<'_> {
    fn step(&mut self) {
        let page = self.random.below(PAGES);
        let swap = &self.world.swap;
        match self.random.below(1000) {
            0..400 => self.read(page),
            400..700 => {
                let length = 1 + self.random.below(40);
                (page..(page + length).min(PAGES)).for_each(|page| self.write(page));
            }
            700..850 => self.evict(),
            850..900 => self.write_back(),
            900..930 => self.discard(page),
            930..950 => _ = self.world.moved.fetch_add(swap.compact(4) as u64, Relaxed),
            950..970 => _ = swap.drop_copies(self.random.below(300) as usize, PoolScope::Own),
            970..985 => {
                swap.zswap().set_pages_max([40, 400, PAGES as usize][self.random.below(3) as usize]);
                swap.zswap().set_recompress_max([0, 40, usize::MAX][self.random.below(3) as usize]);
            }
            985..995 => {
                let switches = Switches {
                    enabled: self.random.below(8) > 0,
                    compression: ["lzpage", "lz4", "zstd:-5", "zstd", "none"][self.random.below(5) as usize]
                        .parse()
                        .unwrap(),
                    recompression: ["zstd", "zstd:-3", "none"][self.random.below(3) as usize]
                        .parse()
                        .unwrap(),
                    max_compression_ratio: [75, 100][self.random.below(2) as usize],
                    accept_threshold_percent: [90, 50][self.random.below(2) as usize],
                    shrinker: Shrinker::ALL[self.random.below(3) as usize],
                    fixed_share: false,
                };
                swap.zswap().switch(switches);
            }
            _ => swap.observe(),
        }
    }

    /// Asks for a page until it is there.
    fn read(&mut self, number: u64) {
        let page = PageIndex(number);
        while self.world.outside().program[number as usize].is_none() {
            let window =
                Window { before: self.random.below(4) as usize, after: self.random.below(64) as usize };
            match self.world.swap.swapin(page, PageIndex(0)..PageIndex(PAGES), window) {
                Swapin::Present | Swapin::Pending => std::thread::yield_now(),
                Swapin::Poisoned => panic!("page {number} is lost"),
                Swapin::Inserted(transfer) => self.bring(&transfer),
            }
        }
    }

    fn write(&mut self, number: u64) {
        loop {
            self.read(number);
            let outside = &mut *self.world.outside();
            if let Some(version) = &mut outside.program[number as usize] {
                *version += 1;
                outside.written[number as usize] = *version;
                return;
            }
        }
    }

    fn bring(&mut self, transfer: &Transfer) {
        let swap = &self.world.swap;
        for (nth, number) in (transfer.first.0..).take(transfer.length).enumerate() {
            let mut bytes = vec![0; PAGE_SIZE].into_boxed_slice();
            match transfer.source {
                Source::Hole | Source::Zero => {}
                Source::Frames { slot } => {
                    bytes = self.world.outside().frames.remove(&(slot, number)).expect("a frame")
                }
                Source::Memory => {
                    swap.load(transfer, nth, &mut bytes, &mut self.scratch).expect("it was stored")
                }
                Source::Device { block } => {
                    bytes.clone_from(&self.world.outside().device[&(block + nth as u64)]);
                    swap.open(transfer, nth, &mut bytes).expect("it was written");
                }
            }
            // Nobody writes a page that is on its way, and who forgets it waits.
            let version = self.world.outside().written[number as usize];
            assert!(
                bytes == compose(number, version),
                "page {number}, version {version}, {:?}",
                transfer.source
            );
            let before = self.world.outside().program[number as usize].replace(version);
            assert_eq!(before, None, "page {number} came in twice");
        }
        let keep = self.random.below(2) == 0;
        swap.finish_swapin(transfer, transfer.length, keep);
    }

    fn evict(&mut self) {
        let Self { world, scratch, .. } = self;
        let swap = &world.swap;
        let Some(mut cluster) = swap.victim() else { return };
        let number = cluster.number();
        let first = number.page(0).0;
        let slot = world.slots.fetch_add(1, Relaxed);
        let mut taken = [false; CLUSTER_PAGES];
        for (offset, taken) in taken.iter_mut().enumerate() {
            let outside = &mut *world.outside();
            let page = first + offset as u64;
            if let Some(version) = outside.program[page as usize].take() {
                let before = outside.frames.insert((slot, page), compose(page, version));
                assert!(before.is_none());
                *taken = true;
            }
        }
        let out = swap.taken_out(&mut cluster, slot, 0..CLUSTER_PAGES, |offset| taken[offset], |_| true);
        drop(cluster);
        for folio in (0..CLUSTER_PAGES).step_by(FOLIO_PAGES) {
            let mut begun = Vec::new();
            if let Some(mut cluster) = swap.table().lock(number) {
                swap.begin_store(&mut cluster, slot, folio..folio + FOLIO_PAGES, |offset, kept| {
                    begun.push((offset, kept));
                });
            }
            let bytes = |offset: usize| world.outside().frames[&(slot, first + offset as u64)].clone();
            if let Ok(all) = <[_; FOLIO_PAGES]>::try_from(&*begun) {
                let pages = all.map(|(offset, _)| bytes(offset));
                let stored = swap.store_folio(|nth| &pages[nth], &all.map(|(_, kept)| kept), scratch);
                let whole = Stored::run(&stored).filter(|&place| {
                    swap.finish_store_run(number.page(folio), FOLIO_PAGES, place, out.shadow)
                });
                match whole {
                    Some(_) => {
                        let frames = &mut world.outside().frames;
                        all.iter().for_each(|&(offset, _)| _ = frames.remove(&(slot, first + offset as u64)));
                    }
                    None => all.iter().zip(stored).for_each(|(&(offset, _), stored)| {
                        world.end_store(slot, first + offset as u64, stored, out.shadow);
                    }),
                }
                continue;
            }
            for (offset, kept) in begun {
                let stored = swap.store(&bytes(offset), kept, false, scratch);
                world.end_store(slot, first + offset as u64, stored, out.shadow);
            }
        }
    }

    /// Writes back what the hand finds. Some writes fail, and some take long.
    fn write_back(&mut self) {
        let swap = &self.world.swap;
        let mut entries = Vec::new();
        swap.scan(1 + self.random.below(600) as usize, 64, PoolScope::Own, &mut entries);
        let mut begun = Vec::new();
        for (owner, handle) in entries {
            let mut bytes = vec![0; PAGE_SIZE].into_boxed_slice();
            let Some(run) = swap.blocks().allocate(1) else { break };
            match swap.begin_writeback(owner, handle, &mut bytes, &mut self.scratch) {
                None => swap.blocks().free(run.start),
                Some(hash) => {
                    swap.seal(run.start, hash, &mut bytes);
                    self.world.outside().device.insert(run.start, bytes);
                    begun.push((owner, handle, hash, run.start));
                }
            }
        }
        for (owner, handle, hash, block) in begun {
            let written = (self.random.below(8) > 0).then_some(block);
            if !swap.finish_writeback(owner, handle, hash, written) {
                swap.blocks().free(block);
            }
        }
    }

    fn discard(&mut self, from: u64) {
        let number = PageIndex(from).cluster();
        let start = PageIndex(from).offset();
        let end = (start + 1 + self.random.below(100) as usize).min(CLUSTER_PAGES);
        self.world.discard(number, start..end);
    }
}

impl World {
    fn end_store(&self, slot: u16, number: u64, stored: Stored, shadow: Shadow) {
        let page = PageIndex(number);
        let place = match stored {
            Stored::Clean(place) | Stored::New(place) => Some(place),
            Stored::Refused(_, hash) => self.swap.blocks().allocate(1).map(|run| {
                let mut bytes = self.outside().frames[&(slot, number)].clone();
                self.swap.seal(run.start, hash, &mut bytes);
                self.outside().device.insert(run.start, bytes);
                Place::Device(run.start)
            }),
        };
        let outcome = match place {
            Some(place) => self.swap.finish_store(page, place, shadow),
            None => self.swap.abandon_store(page),
        };
        match outcome {
            StoreOutcome::Swapped if place.is_some() => _ = self.outside().frames.remove(&(slot, number)),
            StoreOutcome::Swapped => {}
            StoreOutcome::Wanted => {
                {
                    let outside = &mut *self.outside();
                    outside.frames.remove(&(slot, number)).expect("a frame");
                    outside.program[number as usize] = Some(outside.written[number as usize]);
                }
                self.swap.finish_hit(page);
            }
        }
    }

    fn discard(&self, number: ClusterNumber, range: std::ops::Range<usize>) {
        let first = number.page(0).0;
        let mut freed = Vec::new();
        let forget = || {
            let outside = &mut *self.outside();
            for page in range.clone().map(|offset| first as usize + offset) {
                (outside.program[page], outside.written[page]) = (None, 0);
            }
        };
        self.swap.discard(
            number,
            range.clone(),
            |slot, offset| freed.push((slot, first + offset as u64)),
            forget,
        );
        let mut outside = self.outside();
        freed.iter().for_each(|frame| assert!(outside.frames.remove(frame).is_some()));
    }

    /// Totals are what the words say.
    fn check_totals(&self) {
        let mut found = HashMap::new();
        for page in (0..PAGES).map(PageIndex) {
            *found.entry(format!("{:?}", self.swap.table().peek(page).state())).or_insert(0) += 1;
        }
        let count = |state: State| found.get(&format!("{state:?}")).copied().unwrap_or(0);
        let totals = (self.swap.present(), self.swap.cached(), self.swap.swapped());
        assert_eq!(totals, (count(State::Present), count(State::Cached), count(State::Swapped)));
    }
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|value| value.parse().unwrap_or_else(|_| panic!("{name} is a number")))
}

/// The seed that is wanted, or 1.
fn first_seed() -> u64 {
    number("PAGETIDE_SEED").unwrap_or(1)
}

fn stress(zpool: Allocator, seed: u64) {
    let ops = number("PAGETIDE_STRESS_OPS").unwrap_or(OPS);
    println!("PAGETIDE_SEED={seed} PAGETIDE_STRESS_OPS={ops} cargo test -p pagetide-swap --test stress");
    let world = &World::new(zpool);
    std::thread::scope(|scope| {
        for nth in 0..THREADS {
            scope.spawn(move || {
                let random = Random((seed * THREADS + nth).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
                let mut worker = Worker { world, random, scratch: Scratch::default() };
                (0..ops).for_each(|_| worker.step());
            });
        }
    });
    world.check_totals();
    let mut worker = Worker { world, random: Random(seed | 1), scratch: Scratch::default() };
    (0..PAGES).for_each(|page| worker.read(page));
    assert_eq!(world.outside().frames.len(), 0);
    (0..CLUSTERS).for_each(|cluster| world.discard(ClusterNumber(cluster), 0..CLUSTER_PAGES));
    world.check_totals();
    let swap = &world.swap;
    // Nothing is left out.
    for counter in EXPECTED {
        assert!(swap.counters().get(counter) > 0, "{}", counter.name());
    }
    assert!(zpool == Allocator::Zbud || world.moved.load(Relaxed) > 0, "nothing was moved together");
    assert_eq!((swap.zswap().stored(), swap.zswap().stored_raw(), swap.zswap().pool_pages()), ((0, 0), 0, 0));
    assert_eq!((swap.blocks().used(), swap.copies(), swap.same_filled()), (0, 0, 0));
}

#[test]
fn what_comes_back_is_what_was_written_last() {
    stress(Allocator::Zsmalloc, first_seed());
}

#[test]
fn the_same_with_two_pages_in_one() {
    stress(Allocator::Zbud, first_seed());
}

#[test]
fn seeds_that_failed_once_do_not_fail_again() {
    kept::kept_seeds("stress").into_iter().for_each(|seed| stress(Allocator::Zsmalloc, seed));
}
