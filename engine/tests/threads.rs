//! The engine on a fake memory under real threads: no page goes back in time and no write is lost.
//!
//! Four threads fault and answer their own faults, as a fault thread on their processor would; one
//! reclaims, one ends I/O. Every page carries its number, its generation, and contents that follow from
//! both. Shared pages have one writer each and are read by all; private ones are discarded, or unmapped and
//! mapped anew, now and then.
//!
//! `PAGETIDE_THREADS_OPS=n` says how much each thread does, `PAGETIDE_SEED=n` what it draws (0); in which order they run
//! is not replayed.

mod common;

use common::{Random, balances, borrow, compose, manage, page, pages};
use pagetide::engine::{Engine, Limits, Swapoff, Workspace};
use pagetide::fake::{self, Bytes, FakeMemory, Miss, Setup};
use pagetide::mask::Mask;
use pagetide::pause::Pause;
use pagetide::regions::Access;
use pagetide_device::ram::Ram;
use pagetide_swap::{Counter, State};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::{Duration, Instant};

const THREADS: u64 = 4;
const OPERATIONS: u64 = 12_000;
const SHARED: u64 = 3000 * 512 + 11;
const SHARED_PAGES: u64 = 900;
const PRIVATE: u64 = 3010 * 512;
const PRIVATE_PAGES: u64 = 200;
/// An answer takes microseconds; this is only so that a test that hangs says where.
const GUARD: Duration = Duration::from_secs(30);

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| text.parse().unwrap_or_else(|_| panic!("{name} is a number")))
}

fn contents(number: u64, generation: u64) -> Box<Bytes> {
    if generation == 0 {
        return Box::new([0; 4096]);
    }
    let mut bytes = compose(number.wrapping_mul(31) ^ generation.wrapping_mul(0x9e37_79b9));
    bytes[..8].copy_from_slice(&number.to_ne_bytes());
    bytes[8..16].copy_from_slice(&generation.to_ne_bytes());
    bytes
}

/// The generation that a page carries; its contents must be all of that generation.
fn generation(number: u64, bytes: &Bytes) -> u64 {
    let word = |at: usize| u64::from_ne_bytes(bytes[at..at + 8].try_into().unwrap());
    let generation = word(8);
    assert!(
        *bytes == *contents(number, generation),
        "page {number}: torn or strange at generation {generation}"
    );
    generation
}

struct Thread<'a> {
    engine: &'a Engine<FakeMemory>,
    pause: &'a Pause,
    work: Workspace,
}

impl Thread<'_> {
    /// Does `access` until it succeeds, faulting as often as it takes.
    fn until_done<T>(
        &mut self,
        number: u64,
        write: bool,
        mut access: impl FnMut(&FakeMemory) -> Result<T, Miss>,
    ) -> T {
        loop {
            match access(self.engine.memory()) {
                Ok(value) => return value,
                Err(Miss::Poisoned) => panic!("page {number} is poisoned"),
                Err(miss @ (Miss::Fault(ticket) | Miss::Stopped(ticket))) => {
                    if self.pause.try_work(1) {
                        match miss {
                            Miss::Stopped(_) => self.engine.write_fault(page(number), fake::clock()),
                            _ => self.engine.fault(page(number), write, fake::clock(), &mut self.work),
                        }
                        if self.engine.waiting() > 0 {
                            self.engine.reclaim_directly(&mut self.work);
                        }
                        self.pause.end_work();
                    } else {
                        self.engine.park(page(number), write, fake::clock());
                    }
                    assert!(
                        self.engine.memory().wait_woken(ticket, GUARD),
                        "page {number} is never answered: {:?}, {} wait, {} requests, {:?}",
                        self.engine.swap().table().peek(page(number)),
                        self.engine.waiting(),
                        self.engine.requests(),
                        self.engine,
                    );
                }
            }
        }
    }

    fn read(&mut self, number: u64) -> u64 {
        let bytes = self.until_done(number, false, |memory| memory.read(page(number)));
        generation(number, &bytes)
    }

    /// Raises the page's generation, from `before`.
    fn write(&mut self, number: u64, before: u64) {
        let next = contents(number, before + 1);
        self.until_done(number, true, |memory| {
            memory.update(page(number), |bytes| {
                assert_eq!(generation(number, bytes), before, "page {number} has lost a write");
                *bytes = *next;
            })
        });
    }

    fn run(&mut self, index: u64) {
        let mut random = Random::new(number("PAGETIDE_SEED", 0) * THREADS + index + 1);
        let mut seen = vec![0; SHARED_PAGES as usize];
        let mut private = vec![0; PRIVATE_PAGES as usize];
        let private_at = PRIVATE + index * PRIVATE_PAGES;
        let mut at = 0;
        for _ in 0..number("PAGETIDE_THREADS_OPS", OPERATIONS) {
            // Scans, with jumps.
            at = if random.one_in(8) { random.below(SHARED_PAGES) } else { (at + 1) % SHARED_PAGES };
            match random.below(16) {
                0..8 => {
                    let found = self.read(SHARED + at);
                    assert!(found >= seen[at as usize], "page {at} went back to generation {found}");
                    seen[at as usize] = found;
                }
                8..12 => {
                    let own = (at / THREADS * THREADS + index).min(SHARED_PAGES - THREADS + index);
                    self.write(SHARED + own, seen[own as usize]);
                    seen[own as usize] += 1;
                }
                12..15 => {
                    let own = random.below(PRIVATE_PAGES);
                    self.write(private_at + own, private[own as usize]);
                    private[own as usize] += 1;
                }
                _ if random.one_in(6) => {
                    let start = random.below(PRIVATE_PAGES);
                    let end = (start + 1 + random.below(40)).min(PRIVATE_PAGES);
                    self.pause.begin_call();
                    let memory = self.engine.memory();
                    if random.one_in(2) {
                        // A mapping that goes and comes, of which the engine hears too late.
                        memory.unmap(pages(private_at + start..private_at + end));
                        if let Some(own) =
                            [start.wrapping_sub(1), end].into_iter().find(|&at| at < PRIVATE_PAGES)
                        {
                            assert_eq!(
                                self.read(private_at + own),
                                private[own as usize],
                                "private page {own}"
                            );
                        }
                        memory.map(pages(private_at + start..private_at + end));
                    }
                    self.engine
                        .discard(pages(private_at + start..private_at + end), |part| memory.drop_pages(part));
                    self.pause.end_call();
                    private[start as usize..end as usize].fill(0);
                }
                _ => {
                    let own = random.below(PRIVATE_PAGES);
                    assert_eq!(self.read(private_at + own), private[own as usize], "private page {own}");
                }
            }
        }
    }
}

/// What a hammer has to bear.
#[derive(Clone, Copy)]
struct Blows {
    pool_pages_max: usize,
    granted: i64,
    mask: &'static str,
    /// Every so many mappings the machine is out of memory (0: none).
    no_memory_every: u64,
    /// Whether the process forks.
    forks: bool,
    /// Whether the device goes out of use, and into use again.
    swapoff: bool,
}

const WITH_A_POOL: Blows =
    Blows { pool_pages_max: 120, granted: 500, mask: "", no_memory_every: 0, forks: false, swapoff: false };
const WITHOUT: Blows = Blows { pool_pages_max: 0, ..WITH_A_POOL };
const BY_MOVE: Blows = Blows { pool_pages_max: 60, granted: 400, mask: "remap,copy", ..WITH_A_POOL };

/// Forks, again and again: what the forking thread and the control thread do in the parent.
fn fork(engine: &Engine<FakeMemory>, pause: &Pause, granted: i64, stop: &AtomicBool) {
    let mut random = Random::new(99);
    let mut work = Workspace::default();
    while !stop.load(SeqCst) {
        pause.freeze(999);
        engine.hold_waiting(true);
        engine.answer_waiting(&mut work);
        // Who answers a fault may still be about to read for it.
        pause.quiesce();
        let start = Instant::now();
        while !engine.drain(&mut work) {
            assert!(start.elapsed() < GUARD, "a fork waits for ever: {engine:?}");
            if stop.load(SeqCst) {
                break;
            }
            std::thread::yield_now();
        }
        pause.quiesce();
        if !stop.load(SeqCst) {
            assert_eq!((engine.swap().cached(), engine.usage().frames, engine.requests()), (0, 0, 0));
            balances(engine, granted);
            if random.one_in(4) {
                engine.memory().share();
            }
            if engine.can_lend() && random.one_in(4) {
                borrow(engine);
            }
        }
        engine.hold_waiting(false);
        pause.thaw();
        engine.retry_waiting(&mut work);
        // So that the others come to work.
        (0..random.below(2000)).for_each(|_| std::thread::yield_now());
    }
}

/// Reclaims as long as the engine is short of memory.
fn reclaim(engine: &Engine<FakeMemory>, pause: &Pause, stop: &AtomicBool) {
    let mut work = Workspace::default();
    while !stop.load(SeqCst) {
        if engine.is_short() || engine.has_dead_frames() {
            pause.begin_work();
            engine.drop_dead_frames();
            engine.reclaim(&mut work);
            engine.retry_waiting(&mut work);
            pause.end_work();
        } else {
            std::thread::yield_now();
        }
    }
}

/// Ends requests, as the I/O thread does.
fn complete(engine: &Engine<FakeMemory>, pause: &Pause, stop: &AtomicBool) {
    let mut work = Workspace::default();
    let mut done = Vec::new();
    while !stop.load(SeqCst) {
        engine.device().unwrap().wait(&mut done);
        pause.begin_completion();
        engine.complete(&mut done, &mut work);
        pause.end_completion();
    }
}

/// Takes the device out of use, and into use again.
fn swapoff(engine: &Engine<FakeMemory>, pause: &Pause, stop: &AtomicBool) {
    let mut random = Random::new(98);
    while !stop.load(SeqCst) {
        for _ in 0..20 + random.below(60) {
            let done = pause.try_work(0) && {
                let done = engine.swapoff() == Swapoff::Done;
                pause.end_work();
                done
            };
            let written = || engine.swap().counters().get(Counter::pswpout);
            let before = written();
            std::thread::yield_now();
            assert!(!done || written() == before, "the device is written to, and out of use");
        }
        // What does not fit without it needs it for a while.
        engine.swapon();
        while engine.waiting() > 0 && !stop.load(SeqCst) {
            std::thread::yield_now();
        }
        (0..random.below(500)).for_each(|_| std::thread::yield_now());
    }
}

/// Stops the other threads when it is dropped: one that panics must not leave them at work for ever.
struct StopAll<'a>(&'a AtomicBool, &'a Engine<FakeMemory>);

impl Drop for StopAll<'_> {
    fn drop(&mut self) {
        self.0.store(true, SeqCst);
        self.1.device().unwrap().nudge();
    }
}

/// Ends the requests that are under way when no thread works any more.
fn settle(engine: &Engine<FakeMemory>) {
    let mut work = Workspace::default();
    while engine.requests() > 0 {
        let mut done = Vec::new();
        engine.device().unwrap().nudge();
        engine.device().unwrap().wait(&mut done);
        engine.complete(&mut done, &mut work);
    }
    engine.retry_waiting(&mut work);
}

/// Checks that an engine at rest has accounted for all pages, and that nobody waits for one.
fn check(engine: &Engine<FakeMemory>, granted: i64) {
    assert_eq!((engine.waiting(), engine.stalled(), engine.memory().parked()), (0, 0, 0));
    balances(engine, granted);
    let usage = engine.usage();
    assert_eq!(usage.frames, engine.memory().frames());
    assert_eq!(usage.resident as usize, engine.memory().present().len());
    for number in (SHARED..SHARED + SHARED_PAGES).chain(PRIVATE..PRIVATE + THREADS * PRIVATE_PAGES) {
        let word = engine.swap().table().peek(page(number));
        assert!(
            !word.is_locked() && !word.is_wanted() && word.state() != State::Poisoned,
            "{number}: {word:?}"
        );
    }
}

fn hammer(blows: Blows) {
    let granted = blows.granted;
    let setup = Setup {
        slots: 8,
        limits: Limits { low: 40, high: 80, probation: 2 },
        pool_pages_max: blows.pool_pages_max,
        device: Some(Box::new(Ram::new(16_384))),
        mask: Mask::parse(blows.mask).unwrap(),
        ..Setup::default()
    };
    let pause = &Pause::default();
    let engine = &fake::engine(setup);
    engine.budget().give(granted);
    engine.memory().set_no_memory_every(blows.no_memory_every);
    manage(engine, SHARED..SHARED + SHARED_PAGES, Access::Write);
    manage(engine, PRIVATE..PRIVATE + THREADS * PRIVATE_PAGES, Access::Write);
    let stop = &AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _stop = StopAll(stop, engine);
        scope.spawn(move || reclaim(engine, pause, stop));
        scope.spawn(move || complete(engine, pause, stop));
        if blows.forks {
            scope.spawn(move || fork(engine, pause, granted, stop));
        }
        if blows.swapoff {
            scope.spawn(move || swapoff(engine, pause, stop));
        }
        let threads: Vec<_> = (0..THREADS)
            .map(|index| scope.spawn(move || Thread { engine, pause, work: Workspace::default() }.run(index)))
            .collect();
        let ended: Vec<_> = threads.into_iter().map(std::thread::ScopedJoinHandle::join).collect();
        assert!(
            ended.iter().all(Result::is_ok),
            "a thread has found something wrong: PAGETIDE_SEED={} cargo test -p pagetide --test threads",
            number("PAGETIDE_SEED", 0)
        );
    });
    settle(engine);
    check(engine, granted);
    assert!(engine.swap().counters().get(Counter::pgsteal) > 1000, "there was pressure");
}

#[test]
fn no_page_goes_back_and_no_write_is_lost_with_a_pool() {
    hammer(WITH_A_POOL);
}

#[test]
fn no_page_goes_back_and_no_write_is_lost_without_a_pool() {
    hammer(WITHOUT);
}

#[test]
fn no_page_goes_back_and_no_write_is_lost_by_move_alone() {
    hammer(BY_MOVE);
}

#[test]
fn no_page_goes_back_and_no_write_is_lost_when_memory_runs_out_for_moments() {
    for blows in [WITH_A_POOL, WITHOUT, BY_MOVE] {
        hammer(Blows { no_memory_every: 3, ..blows });
    }
}

#[test]
fn no_page_goes_back_and_no_write_is_lost_in_forks() {
    for blows in [WITH_A_POOL, WITHOUT, BY_MOVE] {
        hammer(Blows { forks: true, ..blows });
        hammer(Blows { forks: true, no_memory_every: 3, ..blows });
    }
}

#[test]
fn no_page_goes_back_and_no_write_is_lost_while_the_device_comes_and_goes() {
    for blows in [WITH_A_POOL, WITHOUT, BY_MOVE] {
        hammer(Blows { swapoff: true, ..blows });
        hammer(Blows { swapoff: true, forks: true, ..blows });
    }
}
