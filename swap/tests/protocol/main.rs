//! The folio protocol in every order in which a checker lets threads run: whoever reads gets what was written, once,
//! and by one read at a time.
//!
//! `cargo test -p pagetide-swap --features shuttle --test protocol`. A failure prints its schedule, which
//! `shuttle::replay` runs again. `PAGETIDE_SCHEDULES=n` says how many orders each test tries, of either kind (120).
#![cfg(feature = "shuttle")]

mod objects;

use pagetide_swap::blocks::Blocks;
use pagetide_swap::hash::HashKey;
use pagetide_swap::swap::Keys;
use pagetide_swap::table::Table;
use pagetide_swap::workingset::Shadow;
use pagetide_swap::zswap::Scratch;
use pagetide_swap::zswap::pool::Heap;
use pagetide_swap::{
    CLUSTER_PAGES, ClusterNumber, Config, Counters, FOLIO_PAGES, PAGE_SIZE, PageIndex, Place, PoolScope,
    Source, StoreOutcome, Stored, Swap, Swapin, Transfer, Window, Word,
};
use shuttle::scheduler::{PctScheduler, RandomScheduler};
use shuttle::{Runner, thread};
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard};

const CLUSTER: ClusterNumber = ClusterNumber(3);
/// Pages that take part: a unit and some of the next.
const PAGES: usize = 20;
const BLOCKS: usize = 64;
const SCHEDULES: usize = 120;

/// What lies outside of the swap subsystem. Nobody holds its locks across a step of another thread.
#[derive(Default)]
struct Outside {
    /// The program's pages: what they hold, if they are mapped.
    program: [Option<u64>; PAGES],
    /// Frames, by staging slot and offset.
    frames: HashMap<(u16, usize), u64>,
    device: HashMap<u64, Vec<u8>>,
    reading: [bool; PAGES],
    /// Pages that the program has dropped.
    dropped: [bool; PAGES],
    slots: u16,
    reads: usize,
}

struct World {
    swap: Swap<Heap>,
    outside: Mutex<Outside>,
}

/// A page that says `value`; zero for 0. Odd ones cannot be compressed.
fn page_of(value: u64) -> Vec<u8> {
    let words = (0..PAGE_SIZE as u64 / 8).map(|at| match value {
        0 => 0,
        _ if value % 2 == 1 || at < 16 => (value + at).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1,
        _ => value,
    });
    words.flat_map(u64::to_ne_bytes).collect()
}

fn value_of(page: &[u8]) -> u64 {
    let first = u64::from_ne_bytes(page[..8].try_into().unwrap());
    (0..100).find(|&value| page == page_of(value)).unwrap_or_else(|| panic!("no page of ours: {first:#x}"))
}

fn page(offset: usize) -> PageIndex {
    CLUSTER.page(offset)
}

/// What a page holds at first.
fn written(offset: usize) -> u64 {
    10 + offset as u64
}

impl World {
    fn new() -> Arc<Self> {
        let keys = Keys { hash: HashKey::new([1, 2, 3, 4]), cipher: None };
        let config = Config::for_cap(1024);
        let swap = Swap::new(Heap, Blocks::private(BLOCKS), keys, config, Counters::private());
        swap.zswap().set_pages_max(1 << 20);
        Arc::new(Self { swap, outside: Mutex::default() })
    }

    fn outside(&self) -> MutexGuard<'_, Outside> {
        self.outside.lock().unwrap()
    }

    /// The program writes its pages.
    fn touch(&self, offsets: impl Iterator<Item = usize>, value: impl Fn(usize) -> u64) {
        for offset in offsets {
            let Swapin::Inserted(hole) =
                self.swap.swapin(page(offset), page(offset)..page(offset + 1), Window::NONE)
            else {
                panic!("a hole")
            };
            assert_eq!(hole.source, Source::Hole);
            self.outside().program[offset] = Some(value(offset));
            self.swap.finish_swapin(&hole, 1, false);
        }
    }

    /// Touches a page until it is there, as a thread of the program would. `window` pages may come with it.
    fn read(&self, offset: usize, window: Window, keep: bool) -> u64 {
        loop {
            if let Some(value) = self.outside().program[offset] {
                return value;
            }
            match self.swap.swapin(page(offset), page(0)..page(PAGES), window) {
                Swapin::Present | Swapin::Pending => thread::yield_now(),
                Swapin::Poisoned => panic!("page {offset} is lost"),
                Swapin::Inserted(transfer) => self.bring(&transfer, keep),
            }
        }
    }

    fn bring(&self, transfer: &Transfer, keep: bool) {
        let first = transfer.first.offset();
        let offsets = first..first + transfer.length;
        for offset in offsets.clone() {
            let mut outside = self.outside();
            assert!(!std::mem::replace(&mut outside.reading[offset], true), "two reads of page {offset}");
            outside.reads += 1;
        }
        thread::yield_now();
        let mut values = Vec::new();
        for (nth, offset) in offsets.clone().enumerate() {
            let mut bytes = vec![0; PAGE_SIZE];
            values.push(match transfer.source {
                Source::Hole | Source::Zero => 0,
                Source::Frames { slot } => self.outside().frames[&(slot, offset)],
                Source::Memory => {
                    self.swap
                        .load(transfer, nth, &mut bytes, &mut Scratch::default())
                        .expect("it was stored");
                    value_of(&bytes)
                }
                Source::Device { block } => {
                    bytes.copy_from_slice(&self.outside().device[&(block + nth as u64)]);
                    self.swap.open(transfer, nth, &mut bytes).expect("it was written");
                    value_of(&bytes)
                }
            });
        }
        for (offset, value) in offsets.zip(values) {
            let mut outside = self.outside();
            outside.reading[offset] = false;
            outside.program[offset] = Some(value);
            if let Source::Frames { slot } = transfer.source {
                outside.frames.remove(&(slot, offset));
            }
        }
        self.swap.finish_swapin(transfer, transfer.length, keep);
    }

    /// Takes the cluster out and stores what nobody wants back. The device takes what the pool refuses.
    fn evict(&self) {
        let mut scratch = Scratch::default();
        let Some(mut cluster) = self.swap.victim() else { return };
        let (slot, taken) = {
            let mut outside = self.outside();
            outside.slots += 1;
            let slot = outside.slots;
            let taken: Vec<usize> = (0..PAGES).filter(|&offset| outside.program[offset].is_some()).collect();
            for &offset in &taken {
                let value = outside.program[offset].take().unwrap();
                assert!(outside.frames.insert((slot, offset), value).is_none());
            }
            (slot, taken)
        };
        let out =
            self.swap.taken_out(&mut cluster, slot, 0..PAGES, |offset| taken.contains(&offset), |_| true);
        drop(cluster);
        for folio in (0..PAGES).step_by(FOLIO_PAGES) {
            let mut begun = Vec::new();
            let mut cluster = self.swap.table().lock(CLUSTER).unwrap();
            for &offset in taken.iter().filter(|&&offset| offset - offset % FOLIO_PAGES == folio) {
                self.swap.begin_store(&mut cluster, slot, offset..offset + 1, |offset, kept| {
                    begun.push((offset, kept));
                });
            }
            drop(cluster);
            let bytes = |offset: usize| page_of(self.outside().frames[&(slot, offset)]);
            if let Ok(all) = <[_; FOLIO_PAGES]>::try_from(&*begun) {
                let pages = all.map(|(offset, _)| bytes(offset));
                let kept = all.map(|(_, kept)| kept);
                let stored = self.swap.store_folio(|nth| &pages[nth], &kept, &mut scratch);
                if let Some(place) = Stored::run(&stored)
                    && self.swap.finish_store_run(CLUSTER.page(folio), FOLIO_PAGES, place, out.shadow)
                {
                    let mut outside = self.outside();
                    for offset in folio..folio + FOLIO_PAGES {
                        outside.frames.remove(&(slot, offset));
                    }
                    continue;
                }
                for (nth, stored) in stored.into_iter().enumerate() {
                    self.end_store(slot, folio + nth, stored, out.shadow);
                }
            } else {
                for (offset, kept) in begun {
                    let stored = self.swap.store(&bytes(offset), kept, false, &mut scratch);
                    self.end_store(slot, offset, stored, out.shadow);
                }
            }
        }
    }

    fn end_store(&self, slot: u16, offset: usize, stored: Stored, shadow: Shadow) {
        let mut bytes = page_of(self.outside().frames[&(slot, offset)]);
        let place = match stored {
            Stored::Clean(place) | Stored::New(place) => place,
            Stored::Refused(_, hash) => {
                let block = self.swap.blocks().allocate(1).expect("room on the device").start;
                self.swap.seal(block, hash, &mut bytes);
                self.outside().device.insert(block, bytes);
                Place::Device(block)
            }
        };
        match self.swap.finish_store(page(offset), place, shadow) {
            StoreOutcome::Swapped => drop(self.outside().frames.remove(&(slot, offset))),
            StoreOutcome::Wanted => {
                {
                    let mut outside = self.outside();
                    outside.program[offset] = outside.frames.remove(&(slot, offset));
                }
                self.swap.finish_hit(page(offset));
            }
        }
    }

    /// The program drops pages: they read as zeroes from now on.
    fn discard(&self, offsets: std::ops::Range<usize>) {
        let mut freed = Vec::new();
        self.swap.discard(
            CLUSTER,
            offsets.clone(),
            |slot, offset| freed.push((slot, offset)),
            || {
                let mut outside = self.outside();
                for offset in offsets.clone() {
                    outside.program[offset] = None;
                    outside.dropped[offset] = true;
                }
            },
        );
        let mut outside = self.outside();
        for frame in freed {
            assert!(outside.frames.remove(&frame).is_some());
        }
    }

    /// Writes what the pool has back to the device.
    fn write_back(&self) {
        let (mut entries, mut scratch) = (Vec::new(), Scratch::default());
        // All are spared a few times.
        self.swap.scan(8 * PAGES, PAGES, PoolScope::Own, &mut entries);
        for (owner, handle) in entries {
            let mut bytes = vec![0; PAGE_SIZE];
            let Some(hash) = self.swap.begin_writeback(owner, handle, &mut bytes, &mut scratch) else {
                continue;
            };
            let block = self.swap.blocks().allocate(1).expect("room on the device").start;
            self.swap.seal(block, hash, &mut bytes);
            self.outside().device.insert(block, bytes);
            if !self.swap.finish_writeback(owner, handle, hash, Some(block)) {
                self.swap.blocks().free(block);
            }
        }
    }

    /// Empties the device: into the pool, and what that refuses into the program.
    fn swap_off(&self) {
        for into_pool in [true, false] {
            for run in self.swap.device_runs(0, BLOCKS) {
                let mut pages = run.pages();
                while pages.start < pages.end {
                    let Swapin::Inserted(transfer) = self.swap.swapin_run(pages.clone()) else {
                        pages.start = pages.start.plus(1);
                        continue;
                    };
                    pages.start = transfer.pages().end;
                    match transfer.source {
                        Source::Device { block } if into_pool => self.move_to_pool(&transfer, block),
                        Source::Device { .. } => self.bring(&transfer, false),
                        _ => drop(self.swap.finish_swapin(&transfer, 0, true)),
                    }
                }
            }
        }
    }

    fn move_to_pool(&self, transfer: &Transfer, block: u64) {
        let first = transfer.first.offset();
        let offsets = first..first + transfer.length;
        for offset in offsets.clone() {
            let mut outside = self.outside();
            assert!(!std::mem::replace(&mut outside.reading[offset], true), "two reads of page {offset}");
        }
        thread::yield_now();
        let mut scratch = Scratch::default();
        let mut places = Vec::new();
        for nth in 0..transfer.length {
            let mut bytes = self.outside().device[&(block + nth as u64)].clone();
            self.swap.open(transfer, nth, &mut bytes).expect("it was written");
            places.push(match self.swap.store(&bytes, None, false, &mut scratch) {
                Stored::New(place) => Some(place),
                _ => None,
            });
        }
        offsets.for_each(|offset| self.outside().reading[offset] = false);
        self.swap.finish_move(transfer, &places);
    }

    /// Reads all pages: nothing is lost, nothing is under way, nothing is held for nobody.
    fn settle(&self, value: impl Fn(usize) -> u64, touched: usize) {
        for offset in 0..touched {
            let dropped = self.outside().dropped[offset];
            assert_eq!(
                self.read(offset, Window::NONE, false),
                if dropped { 0 } else { value(offset) },
                "page {offset}"
            );
        }
        let outside = self.outside();
        assert!(outside.frames.is_empty(), "{:?}", outside.frames);
        let cluster = self.swap.table().lock(CLUSTER).unwrap();
        assert_eq!((cluster.locked(), cluster.present()), (0, touched));
        drop(cluster);
        drop(outside);
        self.discard(0..PAGES);
        assert_eq!((self.swap.zswap().stored().0, self.swap.blocks().used()), (0, 0));
        assert_eq!(self.swap.table().lock(CLUSTER).map_or(0, |cluster| cluster.swapped()), 0);
    }
}

/// Tries the orders in which these may run: at random, and with few changes at the worst moments.
fn in_any_order(test: impl Fn() + Send + Sync + 'static) {
    let test = Arc::new(test);
    let schedules =
        std::env::var("PAGETIDE_SCHEDULES").map_or(SCHEDULES, |text| text.parse().expect("a number"));
    let mut config = shuttle::Config::new();
    config.stack_size = 1 << 18;
    let again = test.clone();
    Runner::new(RandomScheduler::new(schedules), config.clone()).run(move || again());
    Runner::new(PctScheduler::new(3, schedules), config).run(move || test());
}

type Job = Box<dyn FnOnce(&World) + Send>;

fn together(world: &Arc<World>, jobs: Vec<Job>) {
    let start = |job: Job| {
        let world = world.clone();
        thread::spawn(move || job(&world))
    };
    let threads: Vec<_> = jobs.into_iter().map(start).collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
}

/// Values of pages that all go to the pool, all to the device, or some here, some there.
const KINDS: [fn(usize) -> u64; 4] = [|at| 2 * written(at), |at| 2 * written(at) + 1, written, |_| 0];

#[test]
fn two_readers_of_one_entry_get_it_by_one_read() {
    for kind in KINDS {
        in_any_order(move || {
            let world = World::new();
            world.touch(0..2, kind);
            world.evict();
            let reads = world.outside().reads;
            let reader = |keep| -> Job {
                Box::new(move |world| assert_eq!(world.read(0, Window::NONE, keep), kind(0)))
            };
            together(&world, vec![reader(true), reader(false), reader(true)]);
            assert_eq!(world.outside().reads, reads + 1);
            world.settle(kind, 2);
        });
    }
}

#[test]
fn a_reader_and_eviction() {
    for kind in KINDS {
        in_any_order(move || {
            let world = World::new();
            world.touch(0..3, kind);
            together(
                &world,
                vec![
                    Box::new(World::evict),
                    Box::new(move |world| {
                        for offset in [1, 0, 1] {
                            assert_eq!(world.read(offset, Window::NONE, offset == 1), kind(offset));
                        }
                    }),
                    Box::new(|world| {
                        world.evict();
                        world.evict();
                    }),
                ],
            );
            world.settle(kind, 3);
        });
    }
}

#[test]
fn a_reader_and_a_discard() {
    for kind in KINDS {
        in_any_order(move || {
            let world = World::new();
            world.touch(0..3, kind);
            world.evict();
            together(
                &world,
                vec![
                    Box::new(move |world| {
                        let value = world.read(1, Window::NONE, true);
                        assert!(value == kind(1) || (value == 0 && world.outside().dropped[1]));
                    }),
                    Box::new(|world| world.discard(1..2)),
                    Box::new(World::evict),
                ],
            );
            world.settle(kind, 3);
        });
    }
}

#[test]
fn a_reader_and_writeback() {
    for kind in [KINDS[0], KINDS[2]] {
        in_any_order(move || {
            let world = World::new();
            world.touch(0..4, kind);
            world.evict();
            together(
                &world,
                vec![
                    Box::new(World::write_back),
                    Box::new(move |world| {
                        assert_eq!(world.read(0, Window::NONE, false), kind(0));
                        assert_eq!(world.read(2, Window::ahead(2), true), kind(2));
                    }),
                    Box::new(|world| {
                        world.evict();
                        world.write_back();
                    }),
                ],
            );
            world.settle(kind, 4);
        });
    }
}

/// Entries move while they are read, kept, found clean, replaced, written back and dropped.
#[test]
fn a_reader_and_compaction() {
    let moved = Arc::new(AtomicU64::new(0));
    let count = moved.clone();
    in_any_order(move || {
        let kind = KINDS[0];
        let world = World::new();
        world.touch(0..4, kind);
        world.evict();
        let count = count.clone();
        together(
            &world,
            vec![
                Box::new(move |world| {
                    count.fetch_add(world.swap.compact_all() as u64, Relaxed);
                    world.discard(3..4);
                    count.fetch_add(world.swap.compact_all() as u64, Relaxed);
                }),
                Box::new(move |world| {
                    assert_eq!(world.read(0, Window::NONE, true), kind(0));
                    assert_eq!(world.read(1, Window::ahead(2), true), kind(1));
                }),
                Box::new(|world| {
                    world.evict();
                    world.write_back();
                }),
            ],
        );
        world.settle(kind, 4);
    });
    assert!(moved.load(Relaxed) > 0);
}

#[test]
fn a_reader_and_the_removal_of_the_device() {
    for kind in KINDS {
        in_any_order(move || {
            let world = World::new();
            world.touch(0..4, kind);
            world.evict();
            world.write_back();
            together(
                &world,
                vec![
                    Box::new(World::swap_off),
                    Box::new(move |world| {
                        assert_eq!(world.read(0, Window::NONE, false), kind(0));
                        assert_eq!(world.read(2, Window::ahead(2), true), kind(2));
                    }),
                    Box::new(|world| world.discard(1..2)),
                ],
            );
            world.swap_off();
            assert_eq!(world.swap.blocks().used(), 0);
            world.settle(kind, 4);
        });
    }
}

#[test]
fn a_large_folio_and_a_small_one_inside_it() {
    for kind in KINDS {
        in_any_order(move || {
            let world = World::new();
            world.touch(0..PAGES, kind);
            world.evict();
            together(
                &world,
                vec![
                    Box::new(move |world| assert_eq!(world.read(0, Window::ahead(16), true), kind(0))),
                    Box::new(move |world| assert_eq!(world.read(5, Window::NONE, false), kind(5))),
                    Box::new(|world| world.discard(8..18)),
                ],
            );
            world.settle(kind, PAGES);
        });
    }
}

/// A cluster becomes one word while others look without a lock, and its finer words become another's.
#[test]
fn who_looks_without_a_lock_sees_words_that_were_there() {
    in_any_order(|| {
        let table = Arc::new(Table::default());
        let [swapped, again] = [1, 2].map(|clock| Word::swapped(Place::ZERO, Shadow(clock)));
        table.lock_or_create(CLUSTER).set(5, swapped);
        let changes = {
            let table = table.clone();
            thread::spawn(move || {
                table.lock_or_create(CLUSTER).set_run(0..CLUSTER_PAGES, again);
                table.lock_or_create(ClusterNumber(8)).set(5, Word::POISONED);
                table.lock_or_create(CLUSTER).set(6, Word::HOLE);
            })
        };
        let looks = {
            let table = table.clone();
            thread::spawn(move || {
                let words = [5, 5, 6].map(|offset| table.peek(page(offset)));
                assert!(words[..2].iter().all(|word| [swapped, again].contains(word)), "{words:?}");
                assert!([Word::HOLE, again].contains(&words[2]), "{words:?}");
            })
        };
        [changes, looks].into_iter().for_each(|thread| thread.join().unwrap());
        assert_eq!([5, 6, 7].map(|offset| table.peek(page(offset))), [again, Word::HOLE, again]);
    });
}
