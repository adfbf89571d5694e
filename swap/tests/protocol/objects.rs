//! Objects of shared memory: several processes wait for pages of one, each in a page table of its own, and nobody for
//! ever.
//!
//! What a keeper does with its faults, after `engine/src/engine/bring_in.rs` and `sys/src/keeper/objects.rs`: a thread
//! looks, begins to wait, and then the keeper hears of its fault. Mapping wakes the threads of the process by which it
//! is done, and those of whose faults the keeper has heard.

use super::{in_any_order, page_of, value_of};
use pagetide_swap::blocks::Blocks;
use pagetide_swap::hash::HashKey;
use pagetide_swap::swap::Keys;
use pagetide_swap::zswap::Scratch;
use pagetide_swap::zswap::pool::Heap;
use pagetide_swap::{
    ClusterNumber, Config, Counters, PAGE_SIZE, PageIndex, Source, StoreOutcome, Stored, Swap, Swapin,
    Transfer, Window,
};
use shuttle::sync::{Condvar, Mutex, MutexGuard};
use shuttle::thread;
use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::sync::Arc;

/// Each object has a cluster of its own.
const ONE: ClusterNumber = ClusterNumber(3);
const OTHER: ClusterNumber = ClusterNumber(4);
const PAGES: usize = 3;
const PROCESSES: usize = 3;

struct Waiter {
    token: usize,
    process: usize,
    page: PageIndex,
    heard: bool,
}

/// What lies outside of the swap subsystem.
#[derive(Default)]
struct Outside {
    /// The pages that are in their object.
    pages: HashMap<PageIndex, u64>,
    frames: HashMap<(u16, PageIndex), u64>,
    tables: [HashSet<PageIndex>; PROCESSES],
    waiting: Vec<Waiter>,
    tokens: usize,
    slots: u16,
}

struct World {
    swap: Swap<Heap>,
    outside: Mutex<Outside>,
    woken: Condvar,
}

fn pages_of(object: ClusterNumber) -> impl Iterator<Item = PageIndex> {
    (0..PAGES).map(move |offset| object.page(offset))
}

fn range_of(object: ClusterNumber) -> Range<PageIndex> {
    object.page(0)..object.page(PAGES)
}

/// What a page holds: even values, which the pool takes.
fn written(page: PageIndex) -> u64 {
    20 + 2 * (page.0 % 8) + if page.cluster() == ONE { 0 } else { 20 }
}

impl World {
    /// Two objects, all of whose pages are written, and mapped by nobody.
    fn new() -> Arc<Self> {
        let keys = Keys { hash: HashKey::new([1, 2, 3, 4]), cipher: None };
        let swap = Swap::new(Heap, Blocks::private(8), keys, Config::for_cap(1024), Counters::private());
        swap.zswap().set_pages_max(1 << 20);
        let world = Self { swap, outside: Mutex::default(), woken: Condvar::new() };
        for page in pages_of(ONE).chain(pages_of(OTHER)) {
            let Swapin::Inserted(hole) = world.swap.swapin(page, page..page.plus(1), Window::NONE) else {
                panic!("a hole")
            };
            world.outside().pages.insert(page, written(page));
            world.swap.finish_swapin(&hole, 1, false);
        }
        Arc::new(world)
    }

    fn outside(&self) -> MutexGuard<'_, Outside> {
        self.outside.lock().unwrap()
    }

    /// Touches a page until it is there, as a thread of a process does.
    fn read(&self, process: usize, page: PageIndex) -> u64 {
        loop {
            {
                let mut outside = self.outside();
                if let Some(&value) = outside.pages.get(&page) {
                    outside.tables[process].insert(page);
                    return value;
                }
            }
            thread::yield_now();
            let token = {
                let mut outside = self.outside();
                if outside.tables[process].contains(&page) {
                    continue;
                }
                outside.tokens += 1;
                let token = outside.tokens;
                outside.waiting.push(Waiter { token, process, page, heard: false });
                token
            };
            thread::yield_now();
            let waits = |outside: &Outside| outside.waiting.iter().any(|waiter| waiter.token == token);
            let hears = {
                let mut outside = self.outside();
                let waiter = outside.waiting.iter_mut().find(|waiter| waiter.token == token);
                waiter.map(|waiter| waiter.heard = true).is_some()
            };
            if hears {
                match self.swap.swapin(page, range_of(page.cluster()), Window::ahead(2)) {
                    Swapin::Present => self.wake(page, 1),
                    // Whoever has the page wakes.
                    Swapin::Pending => {}
                    Swapin::Poisoned => panic!("{page:?} is lost"),
                    Swapin::Inserted(transfer) => self.bring(&transfer),
                }
            }
            let mut outside = self.outside();
            while waits(&outside) {
                outside = self.woken.wait(outside).unwrap();
            }
        }
    }

    fn bring(&self, transfer: &Transfer) {
        let pages: Vec<_> = (0..transfer.length).map(|nth| transfer.first.plus(nth as u64)).collect();
        let values = pages.iter().enumerate().map(|(nth, page)| match transfer.source {
            Source::Hole | Source::Zero => 0,
            Source::Frames { slot } => {
                self.outside().frames.remove(&(slot, *page)).expect("it is on probation")
            }
            Source::Memory => {
                let mut bytes = vec![0; PAGE_SIZE];
                self.swap.load(transfer, nth, &mut bytes, &mut Scratch::default()).expect("it was stored");
                value_of(&bytes)
            }
            Source::Device { .. } => panic!("the pool takes all of them"),
        });
        let values: Vec<_> = values.collect();
        self.copy_in(&pages, &values);
        thread::yield_now();
        let wanted = self.swap.finish_swapin(transfer, transfer.length, false);
        assert_eq!(wanted, 0, "all of them were mapped");
        self.wake(transfer.first, transfer.length);
    }

    /// Puts pages into their object, by a process of whose fault on one of them the keeper has heard.
    fn copy_in(&self, pages: &[PageIndex], values: &[u64]) {
        let mut outside = self.outside();
        let outside = &mut *outside;
        let heard = |waiter: &&Waiter| waiter.heard && pages.contains(&waiter.page);
        let by = outside.waiting.iter().find(heard).map(|waiter| waiter.process);
        for (&page, &value) in pages.iter().zip(values) {
            assert_eq!(outside.pages.insert(page, value), None, "{page:?} comes twice");
            by.map(|process| outside.tables[process].insert(page));
        }
        outside
            .waiting
            .retain(|waiter| !pages.contains(&waiter.page) || !(waiter.heard || Some(waiter.process) == by));
        self.woken.notify_all();
    }

    fn wake(&self, first: PageIndex, count: usize) {
        let pages = first..first.plus(count as u64);
        self.outside().waiting.retain(|waiter| !(waiter.heard && pages.contains(&waiter.page)));
        self.woken.notify_all();
    }

    /// Takes a cluster out, of whichever object, and stores what nobody wants back.
    fn evict(&self) {
        let Some(mut cluster) = self.swap.victim() else { return };
        let number = cluster.number();
        let (slot, taken) = {
            let mut outside = self.outside();
            let outside = &mut *outside;
            outside.slots += 1;
            let slot = outside.slots;
            let taken: Vec<_> =
                (0..PAGES).filter(|&at| outside.pages.contains_key(&number.page(at))).collect();
            for page in taken.iter().map(|&at| number.page(at)) {
                let value = outside.pages.remove(&page).expect("looked at above");
                outside.tables.iter_mut().for_each(|table| _ = table.remove(&page));
                outside.frames.insert((slot, page), value);
            }
            (slot, taken)
        };
        let out = self.swap.taken_out(&mut cluster, slot, 0..PAGES, |at| taken.contains(&at), |_| true);
        drop(cluster);
        for &at in &taken {
            let page = number.page(at);
            let mut begun = None;
            if let Some(mut cluster) = self.swap.table().lock(number) {
                self.swap.begin_store(&mut cluster, slot, at..at + 1, |_, kept| begun = Some(kept));
            }
            let Some(kept) = begun else { continue };
            let bytes = page_of(self.outside().frames[&(slot, page)]);
            let (Stored::Clean(place) | Stored::New(place)) =
                self.swap.store(&bytes, kept, false, &mut Scratch::default())
            else {
                panic!("the pool takes all of them")
            };
            let outcome = self.swap.finish_store(page, place, out.shadow);
            let value = self.outside().frames.remove(&(slot, page)).expect("it is being stored");
            if let StoreOutcome::Wanted = outcome {
                self.copy_in(&[page], &[value]);
                thread::yield_now();
                self.swap.finish_hit(page);
                self.wake(page, 1);
            }
        }
    }

    /// Ends an object that nobody maps.
    fn end(&self, object: ClusterNumber) {
        let mut freed = Vec::new();
        let range = 0..PAGES;
        self.swap.discard(
            object,
            range,
            |slot, at| freed.push((slot, object.page(at))),
            || pages_of(object).for_each(|page| _ = self.outside().pages.remove(&page)),
        );
        freed.iter().for_each(|frame| _ = self.outside().frames.remove(frame));
    }
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

fn reader(process: usize, pages: Vec<PageIndex>) -> Job {
    Box::new(move |world| {
        pages.iter().for_each(|&page| assert_eq!(world.read(process, page), written(page), "{page:?}"));
    })
}

#[test]
fn processes_that_wait_for_one_page_are_all_woken() {
    in_any_order(|| {
        let world = World::new();
        world.evict();
        world.evict();
        let pages = || vec![ONE.page(0), ONE.page(1)];
        together(&world, vec![reader(0, pages()), reader(1, pages()), reader(2, pages())]);
        assert!(world.outside().waiting.is_empty());
    });
}

#[test]
fn processes_read_two_objects_while_those_leave() {
    in_any_order(|| {
        let world = World::new();
        world.evict();
        together(
            &world,
            vec![
                reader(0, vec![ONE.page(0), OTHER.page(2)]),
                reader(1, vec![OTHER.page(2), ONE.page(0)]),
                Box::new(|world| (0..3).for_each(|_| world.evict())),
            ],
        );
    });
}

#[test]
fn an_object_ends_while_another_leaves_and_is_read() {
    in_any_order(|| {
        let world = World::new();
        world.evict();
        together(
            &world,
            vec![
                Box::new(|world| world.end(OTHER)),
                reader(1, vec![ONE.page(1), ONE.page(0)]),
                Box::new(|world| (0..2).for_each(|_| world.evict())),
            ],
        );
        let swapped = |object| world.swap.table().lock(object).map_or(0, |cluster| cluster.swapped());
        assert_eq!(swapped(OTHER), 0);
        reader(2, pages_of(ONE).collect())(&world);
        world.end(ONE);
        assert_eq!((swapped(ONE), world.swap.zswap().stored().0), (0, 0));
        assert!(world.outside().frames.is_empty() && world.outside().pages.is_empty());
    });
}
