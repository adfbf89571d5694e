//! Real threads, each of a process of its own: no page goes back in time, no write is lost, and nobody waits for ever.
//!
//! Each page of each object has one process that writes to it and is read by all. Processes unmap and map objects, and
//! one object after another ends and is made anew.

use crate::common::{Random, balances, compose, manage, page, pages};
use pagetide::engine::{Engine, Limits, Workspace};
use pagetide::fake::{self, Bytes, FakeObjects, Setup};
use pagetide::regions::Access;
use pagetide_device::ram::Ram;
use pagetide_swap::Counter;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Duration;

const PROCESSES: usize = 4;
const OPERATIONS: u64 = 12_000;
const OBJECTS: u64 = 3;
const FIRST: u64 = 3000 * 512;
const STRIDE: u64 = 2 * 512;
const LENGTH: u64 = 700;
/// Once in so many faults a thread makes way, so that others run between its steps. On a machine whose processors are busy
/// each time costs it milliseconds.
const YIELD_EVERY: u64 = 16;
/// The reclaim thread looks again after this time.
const IDLE: Duration = Duration::from_micros(50);
/// An answer takes microseconds; this is only so that a test that hangs says where.
const GUARD: Duration = Duration::from_secs(30);

fn contents(number: u64, generation: u64) -> Box<Bytes> {
    if generation == 0 {
        return Box::new([0; 4096]);
    }
    let mut bytes = compose(number.wrapping_mul(31) ^ generation.wrapping_mul(0x9e37_79b9));
    bytes[..8].copy_from_slice(&generation.to_ne_bytes());
    bytes
}

/// The generation that a page carries; its contents must be all of that generation.
fn generation(number: u64, bytes: &Bytes) -> u64 {
    let generation = u64::from_ne_bytes(bytes[..8].try_into().unwrap());
    assert!(
        *bytes == *contents(number, generation),
        "page {number}: torn or strange at generation {generation}"
    );
    generation
}

struct Process<'a> {
    engine: &'a Engine<FakeObjects>,
    number: usize,
    work: Workspace,
    faults: u64,
}

impl<'a> Process<'a> {
    fn new(engine: &'a Engine<FakeObjects>, number: usize) -> Self {
        Self { engine, number, work: Workspace::default(), faults: 0 }
    }

    /// Makes way at this step of a fault, now and then.
    fn make_way(&self, step: u64) {
        if (self.faults + step * YIELD_EVERY / 2).is_multiple_of(YIELD_EVERY) {
            std::thread::yield_now();
        }
    }

    /// Does `access` until the page is there, faulting as often as it takes.
    fn until_done<T>(&mut self, number: u64, write: bool, access: impl Fn(&mut Bytes) -> T) -> T {
        let (memory, page) = (self.engine.memory(), page(number));
        loop {
            if !memory.is_missing(self.number, page).expect("nothing is lost")
                && let Some(result) = memory.update(self.number, page, &access).expect("nothing is lost")
            {
                return result;
            }
            // Others run between the look and the wait, and between the wait and the engine's hearing of it.
            self.faults += 1;
            self.make_way(0);
            let Some(token) = memory.begin_to_wait(self.number, page) else { continue };
            self.make_way(1);
            if memory.hear(token) {
                self.engine.fault(page, write, fake::clock(), &mut self.work);
                if self.engine.waiting() > 0 {
                    self.engine.reclaim_directly(&mut self.work);
                }
            }
            assert!(
                memory.wait_woken(token, GUARD),
                "page {number} is never answered: {:?}, {} wait, {} requests, {:?}",
                self.engine.swap().table().peek(page),
                self.engine.waiting(),
                self.engine.requests(),
                self.engine,
            );
        }
    }

    fn run(&mut self, operations: u64) {
        let mut random = Random::new(self.number as u64 + 1);
        let mut seen = vec![0; (OBJECTS * STRIDE) as usize];
        let mut at = 0;
        for _ in 0..operations {
            let object = random.below(OBJECTS);
            at = if random.one_in(8) { random.below(LENGTH) } else { (at + 1) % LENGTH };
            let number = FIRST + object * STRIDE + at;
            let own = at % PROCESSES as u64 == self.number as u64;
            let last = &mut seen[(number - FIRST) as usize];
            if random.one_in(2000) {
                let range = FIRST + object * STRIDE..FIRST + object * STRIDE + LENGTH;
                self.engine.memory().detach(self.number, pages(range.clone()));
                std::thread::yield_now();
                self.engine.memory().attach(self.number, pages(range));
            } else if own && random.one_in(2) {
                let before = *last;
                let next = contents(number, before + 1);
                self.until_done(number, true, |bytes| {
                    assert_eq!(generation(number, bytes), before, "page {number} has lost a write");
                    *bytes = *next;
                });
                *last += 1;
            } else {
                let found = self.until_done(number, false, |bytes| generation(number, bytes));
                assert!(found >= *last, "page {number} went back from generation {last} to {found}");
                *last = found;
            }
        }
    }
}

/// Stops the other threads when it is dropped: one that panics must not leave them at work for ever.
struct StopAll<'a>(&'a AtomicBool, &'a Engine<FakeObjects>);

impl Drop for StopAll<'_> {
    fn drop(&mut self) {
        self.0.store(true, SeqCst);
        self.1.device().unwrap().nudge();
    }
}

fn reclaim(engine: &Engine<FakeObjects>, stop: &AtomicBool) {
    let mut work = Workspace::default();
    while !stop.load(SeqCst) {
        if engine.is_short() {
            engine.reclaim(&mut work);
            engine.retry_waiting(&mut work);
        } else {
            std::thread::sleep(IDLE);
        }
    }
}

fn complete(engine: &Engine<FakeObjects>, stop: &AtomicBool) {
    let (mut work, mut done) = (Workspace::default(), Vec::new());
    while !stop.load(SeqCst) {
        engine.device().unwrap().wait(&mut done);
        engine.complete(&mut done, &mut work);
    }
}

/// An object of which the processes map nothing is written, ends and is made anew, at the same numbers.
fn come_and_go(engine: &Engine<FakeObjects>, last: &AtomicBool) {
    let range = FIRST + OBJECTS * STRIDE..FIRST + OBJECTS * STRIDE + 100;
    let memory = engine.memory();
    let mut process = Process::new(engine, memory.start());
    while !last.load(SeqCst) {
        memory.create(pages(range.clone()));
        memory.attach(process.number, pages(range.clone()));
        manage(engine, range.clone(), Access::Write);
        for round in 0..3 {
            for number in range.clone() {
                process.until_done(number, true, |bytes| {
                    assert_eq!(
                        generation(number, bytes),
                        round,
                        "page {number} is of an object that has ended"
                    );
                    *bytes = *contents(number, round + 1);
                });
            }
        }
        memory.detach(process.number, pages(range.clone()));
        engine.regions.write().unwrap().remove(pages(range.clone()));
        engine.discard(pages(range.clone()), |_| {});
        memory.remove(page(range.start));
    }
}

fn hammer(pool_pages_max: usize, no_memory_every: u64) {
    const GRANTED: i64 = 500;
    let engine = &fake::keeper(Setup {
        slots: 8,
        limits: Limits { low: 40, high: 80, probation: 2 },
        pool_pages_max,
        device: Some(Box::new(Ram::new(16_384))),
        ..Setup::default()
    });
    let memory = engine.memory();
    engine.budget().give(GRANTED);
    memory.set_no_memory_every(no_memory_every);
    let objects = (0..OBJECTS).map(|nth| FIRST + nth * STRIDE..FIRST + nth * STRIDE + LENGTH);
    let numbers = [(); PROCESSES].map(|()| memory.start());
    for range in objects.clone() {
        memory.create(pages(range.clone()));
        manage(engine, range.clone(), Access::Write);
        numbers.iter().for_each(|&number| memory.attach(number, pages(range.clone())));
    }
    let operations =
        std::env::var("PAGETIDE_THREADS_OPS").map_or(OPERATIONS, |text| text.parse().expect("a number"));
    let (stop, last) = (&AtomicBool::new(false), &AtomicBool::new(false));
    std::thread::scope(|scope| {
        let _stop = StopAll(stop, engine);
        scope.spawn(move || reclaim(engine, stop));
        scope.spawn(move || complete(engine, stop));
        let other = scope.spawn(move || come_and_go(engine, last));
        let start = |number| move || Process::new(engine, number).run(operations);
        let threads = numbers.map(|number| scope.spawn(start(number)));
        let ended = threads.map(|thread| thread.join().is_ok());
        last.store(true, SeqCst);
        assert!(other.join().is_ok() && ended == [true; PROCESSES], "a thread has found something wrong");
    });
    let (mut work, mut done) = (Workspace::default(), Vec::new());
    while engine.requests() > 0 {
        engine.device().unwrap().nudge();
        engine.device().unwrap().wait(&mut done);
        engine.complete(&mut done, &mut work);
    }
    engine.retry_waiting(&mut work);
    assert_eq!((engine.waiting(), engine.stalled(), memory.waiting()), (0, 0, 0));
    balances(engine, GRANTED);
    assert_eq!(engine.usage().frames, memory.frames());
    assert_eq!(engine.usage().resident as usize, memory.present().len());
    assert!(engine.swap().counters().get(Counter::pgsteal) > 1000, "there was pressure");
}

#[test]
fn processes_see_each_others_writes_with_a_pool() {
    hammer(120, 0);
}

#[test]
fn processes_see_each_others_writes_without_a_pool() {
    hammer(0, 0);
}

#[test]
fn processes_see_each_others_writes_when_memory_runs_out_for_moments() {
    hammer(120, 3);
    hammer(0, 3);
}
