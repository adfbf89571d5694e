//! The whole engine on a fake memory, one event at a time, beside a naive model.
//!
//! A few virtual threads read and write pages; between any two of their steps the engine may reclaim,
//! requests may end (in any order), and the program may discard, move, protect or unmap ranges. After every
//! event the books must balance; every page that is read must be what was last written.
//!
//! `PAGETIDE_SEED=n` replays one run, `PAGETIDE_MODEL_SEEDS=n` sets how many are made.

mod common;

use common::{Random, Shared, compose, manage, noise, page, pages, prose};
use pagetide::engine::{Engine, Limits, Progress, Swapoff, Workspace};
use pagetide::fake::{self, Bytes, FakeMemory, FaultToken, Miss, Setup};
use pagetide::mask::Mask;
use pagetide::memory::Memory;
use pagetide::regions::{Access, Attributes};
use pagetide_device::deferred::Deferred;
use pagetide_device::faulty::{Failure, Faulty};
use pagetide_device::ram::Ram;
use pagetide_device::{Device, Direction};
use pagetide_swap::zswap::shrinker::Shrinker;
use pagetide_swap::{
    Allocator, CLUSTER_PAGES, Config, Counter, PageIndex, Readahead, Reclaim, State, Switches, Word,
};
use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

const EIO: i32 = 5;
const ENOSPC: i32 = 28;
const SEEDS_DEFAULT: u64 = 120;
const EVENTS: usize = 1500;
const THREADS: usize = 4;
/// The object under test: six clusters, the first page of which is not aligned to anything.
const AREA: Range<u64> = 1000 * 512 + 100..1006 * 512 - 37;

#[derive(Clone, Copy, Debug)]
enum Action {
    Read,
    Write(u64),
}

/// An access under way.
#[derive(Clone, Copy, Debug)]
struct Access1 {
    page: PageIndex,
    action: Action,
    token: Option<FaultToken>,
    delivered: bool,
}

struct World {
    engine: Arc<Engine<FakeMemory>>,
    work: Workspace,
    deferred: Option<Arc<Deferred>>,
    model: HashMap<u64, Box<Bytes>>,
    threads: [Option<Access1>; THREADS],
    granted: i64,
    /// Pages that may be lost to injected read errors.
    may_lose: bool,
    /// Whether the device goes out of use now and then.
    swaps_off: bool,
    /// Whether the process rests just now.
    rests: bool,
    stamp: u64,
    reads: usize,
}

impl World {
    fn new(setup: Setup, granted: i64) -> Self {
        let engine = Arc::new(fake::engine(setup));
        engine.budget().give(granted);
        Self {
            engine,
            work: Workspace::default(),
            deferred: None,
            model: HashMap::new(),
            threads: [None; THREADS],
            granted,
            may_lose: false,
            swaps_off: false,
            rests: false,
            stamp: 0,
            reads: 0,
        }
    }

    fn memory(&self) -> &FakeMemory {
        self.engine.memory()
    }

    fn word(&self, page: PageIndex) -> Word {
        self.engine.swap().table().peek(page)
    }

    fn counter(&self, counter: Counter) -> u64 {
        self.engine.swap().counters().get(counter)
    }

    fn expected(&self, page: PageIndex) -> Box<Bytes> {
        self.model.get(&page.0).cloned().unwrap_or_else(|| Box::new([0; 4096]))
    }

    // ---- the device -----------------------------------------------------------------------------

    /// Ends what has ended.
    fn complete(&mut self) {
        let Some(device) = self.engine.device() else { return };
        let mut done = Vec::new();
        device.nudge();
        device.wait(&mut done);
        self.engine.complete(&mut done, &mut self.work);
    }

    /// Ends everything.
    fn drain_requests(&mut self) {
        for _ in 0..1000 {
            if let Some(deferred) = &self.deferred {
                while deferred.release(0) {}
            }
            self.complete();
            if self.engine.requests() == 0 {
                return;
            }
        }
        panic!("{} requests never end", self.engine.requests());
    }

    // ---- threads --------------------------------------------------------------------------------

    /// One step of an access. True if it is over.
    fn step(&mut self, access: &mut Access1) -> bool {
        if let Some(token) = access.token {
            if !access.delivered {
                access.delivered = true;
                let write = matches!(access.action, Action::Write(_));
                match self.rests {
                    true => self.engine.rest(access.page, write),
                    false => self.engine.fault(access.page, write, fake::clock(), &mut self.work),
                }
                return false;
            }
            if !self.memory().is_woken(token) {
                return false;
            }
            access.token = None;
        }
        let page = access.page;
        let region = self.engine.regions.read().unwrap().find(page);
        let may = match (region.map(|region| region.attributes.access), access.action) {
            (None | Some(Access::None), _) => false,
            (Some(Access::Read), Action::Write(_)) => false,
            (Some(_), _) => true,
        };
        if !may {
            // SIGSEGV: not our business.
            return true;
        }
        let outcome = match access.action {
            Action::Read => self.memory().read(page).map(|found| {
                assert!(
                    found == self.expected(page),
                    "{page:?} has come back wrong, its word is {:?}",
                    self.word(page)
                );
                self.reads += 1;
            }),
            Action::Write(stamp) => {
                let bytes = compose(stamp);
                let outcome = self.memory().write(page, &bytes);
                if outcome.is_ok() {
                    self.model.insert(page.0, bytes);
                }
                outcome
            }
        };
        match outcome {
            Ok(()) => true,
            Err(Miss::Poisoned) => {
                assert!(self.may_lose, "{page:?} is poisoned");
                assert_eq!(self.word(page).state(), State::Poisoned);
                true
            }
            Err(Miss::Fault(token)) => {
                (access.token, access.delivered) = (Some(token), false);
                false
            }
        }
    }

    fn access(&self, page: PageIndex, action: Action) -> Access1 {
        Access1 { page, action, token: None, delivered: false }
    }

    /// Does an access from start to end. False if it cannot be done with the room there is.
    fn try_now(&mut self, page: PageIndex, action: Action) -> bool {
        let mut access = self.access(page, action);
        for _ in 0..200 {
            if self.step(&mut access) {
                return true;
            }
            if access.delivered && !self.memory().is_woken(access.token.unwrap()) {
                self.engine.reclaim(&mut self.work);
                self.drain_requests();
                self.engine.retry_waiting(&mut self.work);
            }
        }
        false
    }

    fn now(&mut self, page: PageIndex, action: Action) {
        assert!(
            self.try_now(page, action),
            "{action:?} of {page:?} is never answered: {:?}",
            self.word(page)
        );
    }

    fn read(&mut self, number: u64) {
        self.now(page(number), Action::Read);
    }

    /// Writes bytes of the test's own.
    fn put(&mut self, number: u64, bytes: Box<Bytes>) {
        self.now(page(number), Action::Read);
        self.memory().write(page(number), &bytes).expect("it was read just now");
        self.model.insert(number, bytes);
    }

    /// Reclaims until nothing moves any more, and ends what that led to.
    fn push_out(&mut self) {
        for _ in 0..100 {
            let progress = self.engine.reclaim(&mut self.work);
            self.drain_requests();
            let usage = self.engine.usage();
            if progress == Progress::Nothing || usage.resident + usage.frames == 0 {
                return;
            }
        }
    }

    /// Reclaims until nothing moves any more; requests stay under way.
    fn push_out_undrained(&mut self) {
        for _ in 0..100 {
            if self.engine.reclaim(&mut self.work) == Progress::Nothing {
                return;
            }
        }
    }

    // ---- invariants -----------------------------------------------------------------------------

    fn check_books(&self) {
        self.engine.charge_pool();
        let (mut reading, mut locked, mut present) = (0, 0, 0);
        for number in AREA {
            let word = self.word(page(number));
            locked += i64::from(word.is_locked());
            reading += i64::from(word.is_locked() && word.state() == State::Swapped);
            present += i64::from(word.state() == State::Present);
        }
        let usage = self.engine.usage();
        if self.engine.requests() == 0 {
            assert_eq!(locked, 0, "words are locked and nothing is under way");
        }
        assert_eq!(usage.resident, present, "the total of pages in the program");
        assert_eq!(usage.frames, self.memory().frames(), "the total of frames");
        let free = self.engine.budget().free();
        assert_eq!(
            free + usage.resident + usage.frames + usage.pool + usage.pool_shared + reading,
            self.granted,
            "{free} free, {usage:?}, {reading} being read"
        );
    }

    /// Pages that are in the program can be compared without moving any.
    fn check_present(&self) {
        for page in self.memory().present() {
            let found = self.memory().peek(page).expect("listed");
            assert!(found == self.expected(page), "{page:?} is wrong in the program: {:?}", self.word(page));
        }
    }

    /// What waited meanwhile waits for no more than room.
    fn end_rest(&mut self) {
        self.rests = false;
        self.engine.end_rest();
    }

    /// With enough room given, every access ends, every page is right, and nothing is left locked.
    fn check_end(&mut self) {
        self.memory().set_no_memory_every(0);
        self.memory().set_may_pin(false);
        self.memory().set_can_move(true);
        let room = (AREA.end - AREA.start) as i64 + 4096;
        self.engine.budget().give(room);
        self.granted += room;
        self.engine.hold_waiting(false);
        self.end_rest();
        for _ in 0..1000 {
            if self.threads.iter().all(Option::is_none) {
                break;
            }
            self.drain_requests();
            self.engine.retry_waiting(&mut self.work);
            for nth in 0..THREADS {
                let Some(mut access) = self.threads[nth].take() else { continue };
                if !self.step(&mut access) {
                    self.threads[nth] = Some(access);
                }
            }
        }
        assert!(self.threads.iter().all(Option::is_none), "not answered: {:?}", self.threads);
        self.drain_requests();
        self.engine.retry_waiting(&mut self.work);
        assert_eq!((self.engine.waiting(), self.engine.stalled(), self.memory().parked()), (0, 0, 0));
        self.check_books();
        for number in AREA {
            self.try_now(page(number), Action::Read).then_some(()).expect("there is room");
        }
        self.check_books();
        self.check_present();
        // All gone: nothing is left of the pool, of device space, of the budget.
        self.discard(AREA);
        self.engine.hold_waiting(true);
        for _ in 0..1000 {
            if self.engine.drain(&mut self.work) {
                break;
            }
            self.drain_requests();
        }
        self.check_books();
        let usage = self.engine.usage();
        assert_eq!((usage.resident, usage.frames, usage.pool), (0, 0, 0));
        assert_eq!(self.engine.swap().blocks().used(), 0, "blocks leak");
        assert_eq!((self.engine.swap().cached(), self.engine.swap().swapped()), (0, 0));
    }

    // ---- the program's calls --------------------------------------------------------------------

    fn discard(&mut self, range: Range<u64>) {
        self.drain_requests();
        let memory = self.engine.memory();
        let mut at = page(range.start);
        self.engine.discard(pages(range.clone()), |part| {
            assert_eq!(part.start, at, "the parts of a discard are in order, and leave nothing out");
            at = part.end;
            memory.drop_pages(part);
        });
        assert_eq!(at.0, range.end);
        range.for_each(|number| _ = self.model.remove(&number));
    }

    fn unmap(&mut self, range: Range<u64>) {
        self.engine.regions.write().unwrap().remove(pages(range.clone()));
        self.drain_requests();
        self.engine.discard(pages(range.clone()), |_| {});
        self.memory().unmap(pages(range.clone()));
        range.for_each(|number| _ = self.model.remove(&number));
    }

    fn map(&mut self, range: Range<u64>) {
        self.unmap(range.clone());
        self.memory().map(pages(range.clone()));
        manage(&self.engine, range, Access::Write);
    }

    fn protect(&mut self, range: Range<u64>, access: Access) {
        let mut regions = self.engine.regions.write().unwrap();
        let pieces: Vec<_> = regions.pieces(pages(range)).collect();
        for (part, region) in pieces {
            self.engine.memory().protect(part.clone(), access == Access::Write);
            regions.insert(part, Attributes { access, ..region.attributes });
        }
    }

    /// What `Entered::remapping` does. The ranges do not overlap, and all of `from` is mapped.
    fn remap(&mut self, from: u64, to: u64, length: u64, keeps_old: bool) {
        let old = pages(from..from + length);
        let new = pages(to..to + length);
        let removed = self.engine.regions.write().unwrap().remove(old.clone());
        self.drain_requests();
        self.engine.recall(old.clone());
        self.engine.regions.write().unwrap().remove(new.clone());
        self.drain_requests();
        for number in from..from + length {
            let word = self.word(page(number));
            assert!(word.state() != State::Cached && !word.is_locked(), "recalled, and not back: {word:?}");
        }
        self.memory().remap(old.start, new.start, length);
        self.engine.discard(new.clone(), |_| {});
        self.engine.rename(old.start, new.start, length);
        let mut regions = self.engine.regions.write().unwrap();
        for (part, region) in removed {
            let moved = page(part.start.0 - from + to)..page(part.end.0 - from + to);
            regions.insert(moved, region.attributes);
            if keeps_old {
                regions.insert(part, region.attributes);
            }
        }
        drop(regions);
        if !keeps_old {
            self.memory().unmap(old);
        }
        for nth in 0..length {
            match self.model.remove(&(from + nth)) {
                Some(bytes) => drop(self.model.insert(to + nth, bytes)),
                None => drop(self.model.remove(&(to + nth))),
            }
        }
    }

    fn some_range(random: &mut Random, longest: u64) -> Range<u64> {
        let length = 1 + random.below(longest);
        let start = AREA.start + random.below(AREA.end - AREA.start - length);
        start..start + length
    }

    // ---- one event ------------------------------------------------------------------------------

    fn event(&mut self, random: &mut Random) {
        match random.below(1000) {
            0..600 => self.run_thread(random),
            600..758 => {
                self.engine.reclaim(&mut self.work);
            }
            758 => self.rests = true,
            759 => self.end_rest(),
            760..764 if self.swaps_off => drop(self.engine.swapoff()),
            764 if self.swaps_off => self.engine.swapon(),
            760..900 => {
                if let Some(deferred) = &self.deferred {
                    let held = deferred.held() as u64;
                    if held > 0 {
                        deferred.release(random.below(held) as usize);
                    }
                }
                self.complete();
            }
            900..925 => self.engine.retry_waiting(&mut self.work),
            925..940 => {
                let range = Self::some_range(random, 700);
                self.discard(range);
            }
            940..950 => {
                let length = 1 + random.below(700);
                let from = Self::some_range(random, 1).start.min(AREA.end - length);
                let to = Self::some_range(random, 1).start.min(AREA.end - length);
                let mapped = (from..from + length)
                    .all(|number| self.engine.regions.read().unwrap().find(page(number)).is_some());
                if mapped && from.abs_diff(to) >= length {
                    self.remap(from, to, length, random.one_in(2));
                }
            }
            950..955 => {
                let range = Self::some_range(random, 300);
                self.unmap(range);
            }
            955..962 => {
                let range = Self::some_range(random, 900);
                self.map(range);
            }
            962..968 => {
                let range = Self::some_range(random, 300);
                let access =
                    [Access::None, Access::Read, Access::Write, Access::Write][random.below(4) as usize];
                self.protect(range, access);
            }
            968..970 => self.engine.swap().zswap().set_pages_max(random.below(120) as usize),
            970..971 => self.engine.swap().zswap().switch(any_switches(random)),
            971..972 => self.engine.set_pool_pressure(random.below(3) as f64),
            972..976 => {
                // The kernel drops pages that nobody tells us of.
                let range = Self::some_range(random, 40);
                for number in range {
                    if self.memory().peek(page(number)).is_some() {
                        self.memory().drop_pages(pages(number..number + 1));
                        self.model.remove(&number);
                    }
                }
            }
            976..980 => self.sneak_in(random),
            980..984 => {
                let memory = self.memory();
                memory.set_can_move(!random.one_in(3));
                memory.set_can_remap(!random.one_in(3));
                memory.set_may_pin(random.one_in(3));
                memory.set_no_memory_every([0, 0, 7][random.below(3) as usize]);
            }
            984..985 => self.memory().share(),
            985..988 => {
                for number in Self::some_range(random, 60) {
                    self.memory().pin(page(number), random.one_in(4));
                }
            }
            988..992 => self.protect_a_cluster(random),
            992..996 => {
                self.engine.hold_waiting(true);
                self.drain();
                self.engine.hold_waiting(false);
            }
            _ => {
                let range = Self::some_range(random, 200);
                self.drain_requests();
                self.engine.recall(pages(range));
            }
        }
    }

    fn run_thread(&mut self, random: &mut Random) {
        let nth = random.below(THREADS as u64) as usize;
        let mut access = self.threads[nth].take().unwrap_or_else(|| {
            // Each thread prefers a region of its own and scans it, with jumps.
            let jump = random.one_in(3);
            let spread = if jump { AREA.end - AREA.start } else { 64 };
            let base = if jump {
                0
            } else {
                (self.stamp / 256 * 97 + nth as u64 * 300) % (AREA.end - AREA.start - 64)
            };
            let number = AREA.start + base + random.below(spread);
            self.stamp += 1;
            let action = if random.one_in(2) { Action::Read } else { Action::Write(random.next() >> 8) };
            self.access(page(number), action)
        });
        if !self.step(&mut access) {
            self.threads[nth] = Some(access);
        } else if random.one_in(6) {
            // A scan goes on at the next page.
            let next = access.page.plus(1);
            if AREA.contains(&next.0) {
                self.threads[nth] = Some(self.access(next, Action::Read));
            }
        } else if let Action::Read = access.action
            && random.one_in(2)
            && AREA.contains(&(access.page.0 + 1))
        {
            self.threads[nth] = Some(self.access(access.page.plus(1), Action::Read));
        }
    }

    /// A page comes into the program that the table takes for a hole.
    fn sneak_in(&mut self, random: &mut Random) {
        let number = Self::some_range(random, 1).start;
        let region = self.engine.regions.read().unwrap().find(page(number));
        if self.word(page(number)) != Word::HOLE
            || region.is_none_or(|region| region.attributes.access != Access::Write)
            || self.memory().peek(page(number)).is_some()
            || self.memory().poisoned().contains(&page(number))
        {
            return;
        }
        let bytes = (!random.one_in(3)).then(|| compose(random.next() >> 8));
        self.memory().put(page(number), bytes.as_deref());
        self.model.remove(&number);
        self.model.extend(bytes.map(|bytes| (number, bytes)));
        if random.one_in(2) {
            self.engine.adopt(pages(number..number + 1));
        }
    }

    /// While a cluster is protected no page of it leaves.
    fn protect_a_cluster(&mut self, random: &mut Random) {
        let cluster = page(Self::some_range(random, 1).start).cluster();
        let token = self.engine.protect(cluster).expect("there is a place");
        let range = cluster.page(0)..cluster.page(0).plus(CLUSTER_PAGES as u64);
        let before = self.memory().presence(range.clone()).present;
        for _ in 0..6 {
            self.engine.reclaim(&mut self.work);
        }
        let after = self.memory().presence(range).present;
        assert!(before.iter().all(|offset| after.contains(offset)), "a page of a protected cluster left");
        self.engine.unprotect(token);
    }

    fn drain(&mut self) {
        for _ in 0..1000 {
            if self.engine.drain(&mut self.work) {
                assert_eq!((self.engine.swap().cached(), self.engine.usage().frames), (0, 0));
                assert_eq!(self.engine.requests(), 0);
                return;
            }
            self.drain_requests();
        }
        panic!("drain() never ends: {:?}", self.engine);
    }
}

/// A world that follows from a seed.
fn world(random: &mut Random) -> (World, String) {
    let blocks = 64 + random.below(3000);
    let refuse_every = [0, 0, 5][random.below(3) as usize];
    let kind = random.below(7);
    let mut deferred = None;
    let mut may_lose = false;
    let device: Option<Box<dyn Device>> = match kind {
        0 => None,
        1 => Some(Shared::refusing(&Arc::new(Ram::new(blocks)), refuse_every)),
        2 => {
            may_lose = true;
            let nth = 2 + random.below(20);
            Some(Shared::new(&Arc::new(Faulty::new(
                Box::new(Ram::new(blocks)),
                Direction::Read,
                nth,
                Failure::Errno(5),
            ))))
        }
        3 => {
            may_lose = true;
            let nth = 2 + random.below(20);
            Some(Shared::new(&Arc::new(Faulty::new(
                Box::new(Ram::new(blocks)),
                Direction::Read,
                nth,
                Failure::Corrupt,
            ))))
        }
        4 => {
            let nth = 1 + random.below(20);
            Some(Shared::new(&Arc::new(Faulty::new(
                Box::new(Ram::new(blocks)),
                Direction::Write,
                nth,
                Failure::Errno(if random.one_in(2) { EIO } else { ENOSPC }),
            ))))
        }
        _ => {
            let device = Arc::new(Deferred::new(blocks));
            deferred = Some(Arc::clone(&device));
            Some(Shared::refusing(&device, refuse_every))
        }
    };
    let ways = ["", "", "remap", "copy", "remap,copy", "move"][random.below(6) as usize];
    let pool_pages_max = [0, 8, 40, 200][random.below(4) as usize];
    let granted = 64 + random.below(536) as i64;
    let setup = Setup {
        slots: 3 + random.below(6) as usize,
        limits: Limits { low: 8 + granted / 16, high: 16 + granted / 8, probation: random.below(3) as usize },
        pool_pages_max,
        span_pages: [1 << 16, 1 << 16, 64][random.below(3) as usize],
        config: Config {
            zpool: if random.one_in(4) { Allocator::Zbud } else { Allocator::Zsmalloc },
            switches: any_switches(random),
            reclaim: if random.one_in(4) { Reclaim::Fifo } else { Reclaim::SecondChance },
            readahead: [Readahead::Object, Readahead::Object, Readahead::Cluster, Readahead::None]
                [random.below(4) as usize],
            page_cluster: random.below(10) as u32,
            ..Config::for_cap(4096)
        },
        device,
        mask: Mask::parse(ways).unwrap(),
    };
    let text = format!(
        "device {kind} of {blocks}, refuse {refuse_every}, ways {ways:?}, budget {granted}, {setup:?}"
    );
    let mut world = World::new(setup, granted);
    if ways == "move" {
        world.memory().set_can_move(false);
    }
    (world.deferred, world.may_lose) = (deferred, may_lose);
    world.swaps_off = random.one_in(3);
    // Three regions with a gap between each two.
    let length = AREA.end - AREA.start;
    for third in 0..3 {
        let start = AREA.start + third * length / 3;
        manage(&world.engine, start..start + length / 3 - 20, Access::Write);
        world.memory().unmap(pages(start + length / 3 - 20..start + length / 3));
    }
    (world, text)
}

/// Any way to work for the pool.
fn any_switches(random: &mut Random) -> Switches {
    Switches {
        enabled: !random.one_in(8),
        compression: ["lz4", "lz4", "zstd:-3", "zstd", "none"][random.below(5) as usize].parse().unwrap(),
        max_compression_ratio: [75, 100, 30][random.below(3) as usize],
        accept_threshold_percent: [90, 100, 1][random.below(3) as usize],
        shrinker: Shrinker::from_bits(random.below(3)),
        fixed_share: false,
    }
}

/// Runs one seed; says which if it panics.
fn run_seed(seed: u64) -> World {
    struct Replay<'a>(u64, usize, &'a str);
    impl Drop for Replay<'_> {
        fn drop(&mut self) {
            if std::thread::panicking() {
                eprintln!("event {} of PAGETIDE_SEED={}: {}", self.1, self.0, self.2);
            }
        }
    }
    let mut random = Random::new(seed);
    let (mut world, text) = world(&mut random);
    let mut replay = Replay(seed, 0, &text);
    let mut stuck = 0;
    for event in 0..EVENTS {
        replay.1 = event;
        world.event(&mut random);
        world.check_books();
        if event % 16 == 0 {
            world.check_present();
        }
        // A world in which everybody waits for room proves little: give some, and take it back later.
        stuck = if world.threads.iter().all(|access| access.is_some_and(|access| access.delivered)) {
            stuck + 1
        } else {
            0
        };
        if stuck > 60 {
            world.engine.budget().give(64);
            (world.granted, stuck) = (world.granted + 64, 0);
        } else if world.granted > 600 && random.one_in(50) {
            world.engine.budget().take(128);
            world.granted -= 128;
        }
    }
    replay.1 = EVENTS;
    world.check_end();
    world
}

#[test]
fn every_page_read_is_what_a_naive_model_says() {
    if let Ok(seed) = std::env::var("PAGETIDE_SEED") {
        run_seed(seed.parse().expect("PAGETIDE_SEED is a number"));
        return;
    }
    let seeds =
        std::env::var("PAGETIDE_MODEL_SEEDS").map_or(SEEDS_DEFAULT, |seeds| seeds.parse().expect("a number"));
    let mut sums = [0u64; Counter::ALL.len()];
    let mut reads = 0;
    for seed in 1..=seeds {
        let world = run_seed(seed);
        reads += world.reads;
        for (sum, &counter) in sums.iter_mut().zip(Counter::ALL) {
            *sum += world.counter(counter);
        }
    }
    // The runs must have gone everywhere, or they prove nothing.
    for (sum, counter) in sums.iter().zip(Counter::ALL) {
        println!("{:28} {sum}", counter.name());
    }
    println!("{reads} reads");
    if seeds >= SEEDS_DEFAULT {
        for counter in [
            Counter::pswpin,
            Counter::pswpout,
            Counter::zswpin,
            Counter::zswpout,
            Counter::zswpwb,
            Counter::swpin_zero,
            Counter::swap_reuse,
            Counter::swap_cache_hit,
            Counter::swap_copy_dropped,
            Counter::pgsteal_fail,
            Counter::read_error,
            Counter::write_error,
            Counter::decompress_fail,
            Counter::allocstall,
        ] {
            assert!(sums[counter as usize] > 0, "no run has counted {}", counter.name());
        }
    }
}

// ---- directed -----------------------------------------------------------------------------------

const BASE: u64 = 1001 * 512;

/// A world with one region, room for `granted` pages and no pool unless `pool_pages_max` says so.
fn plain(device: Option<Box<dyn Device>>, pool_pages_max: usize, granted: i64) -> World {
    let world = World::new(Setup { device, pool_pages_max, ..Setup::default() }, granted);
    manage(&world.engine, BASE..BASE + 1024, Access::Write);
    world
}

fn on_device(world: &World, number: u64) -> bool {
    matches!(world.word(page(number)).place(), Some(pagetide_swap::Place::Device(_)))
        && world.word(page(number)).state() == State::Swapped
}

fn faulty(direction: Direction, nth: u64, failure: Failure) -> Option<Box<dyn Device>> {
    Some(Box::new(Faulty::new(Box::new(Ram::new(4096)), direction, nth, failure)))
}

/// Every other page, so that each is a transfer of its own.
fn scattered() -> impl Iterator<Item = u64> {
    (BASE..BASE + 64).step_by(2)
}

#[test]
fn a_read_error_poisons_that_page_only() {
    let mut world = plain(faulty(Direction::Read, 5, Failure::Errno(5)), 0, 300);
    world.may_lose = true;
    scattered().for_each(|number| world.put(number, noise(number)));
    world.push_out();
    assert!(scattered().all(|number| on_device(&world, number)));
    scattered().for_each(|number| world.read(number));
    assert_eq!(world.counter(Counter::read_error), 6, "one read in five of 32");
    let poisoned = world.memory().poisoned();
    assert_eq!(poisoned.len(), 6);
    // Those stay lost, the others stay right.
    scattered().for_each(|number| world.read(number));
    assert_eq!(world.memory().poisoned(), poisoned);
    world.check_books();
    // A poisoned page that is discarded is a page again.
    world.discard(BASE..BASE + 64);
    assert!(world.memory().poisoned().is_empty());
    world.may_lose = false;
    world.put(BASE, noise(1));
    world.read(BASE);
    world.check_end();
}

/// A world of which 512 pages that do not compress lie on the device, in order.
fn written_in_order(device: Option<Box<dyn Device>>) -> World {
    let mut world = plain(device, 0, 900);
    write_in_order(&mut world);
    world
}

/// The same, on a device that ends a request when it is told to.
fn written_behind_a_slow_device() -> (World, Arc<Deferred>) {
    let device = Arc::new(Deferred::new(4096));
    let mut world = plain(Some(Shared::new(&device)), 0, 900);
    world.deferred = Some(device.clone());
    write_in_order(&mut world);
    (world, device)
}

fn write_in_order(world: &mut World) {
    (BASE..BASE + 512).for_each(|number| world.put(number, noise(number)));
    world.push_out();
    assert!((BASE..BASE + 512).all(|number| on_device(world, number)));
}

#[test]
fn a_scan_that_is_faster_than_the_device_always_leaves_it_something_to_do() {
    let (mut world, device) = written_behind_a_slow_device();
    for number in BASE..BASE + 512 {
        let mut access = world.access(page(number), Action::Read);
        while !world.step(&mut access) {
            if access.delivered && device.release(0) {
                let busy = device.held() > 0;
                world.complete();
                // Windows begin small, and there is an end.
                assert!(busy || !(BASE + 160..BASE + 384).contains(&number), "nothing is read at {number}");
            }
        }
    }
    let faults = world.counter(Counter::pgmajfault);
    assert!(faults < 20, "{faults} faults");
    world.check_end();
}

#[test]
fn a_scan_is_read_ahead_of_up_and_down() {
    for downwards in [false, true] {
        let mut world = written_in_order(Some(Shared::new(&Arc::new(Ram::new(4096)))));
        let numbers = BASE..BASE + 512;
        let read = |number| world.read(number);
        if downwards {
            numbers.rev().for_each(read)
        } else {
            numbers.for_each(read)
        }
        let (faults, ahead) = (world.counter(Counter::pgmajfault), world.counter(Counter::swap_ra));
        assert_eq!((world.counter(Counter::pswpin), faults + ahead), (512, 512));
        assert!(faults < 20, "{faults} faults");
        let hits = world.counter(Counter::swap_ra_hit);
        assert!(hits > 200 && hits <= ahead, "{hits} of {ahead} were passed");
        world.check_end();
    }
}

#[test]
fn eight_faults_at_one_entry_are_answered_by_one_read() {
    let (mut world, device) = written_behind_a_slow_device();
    let number = BASE + 300;
    let mut readers: Vec<_> = (0..8).map(|_| world.access(page(number), Action::Read)).collect();
    let mut ended = [false; 8];
    let mut step = |world: &mut World| {
        for (reader, ended) in readers.iter_mut().zip(&mut ended) {
            *ended = *ended || world.step(reader);
        }
        ended.iter().filter(|&&ended| ended).count()
    };
    // All fault, and all faults are told.
    (0..3).for_each(|_| assert_eq!(step(&mut world), 0));
    assert_eq!(device.held(), 1);
    assert!(device.release(0));
    world.complete();
    // The end of the read wakes all of them: nobody looks again.
    assert_eq!(step(&mut world), 8);
    assert_eq!((world.counter(Counter::pgmajfault), world.counter(Counter::pswpin)), (1, 1));
    world.check_end();
}

/// Calls swapoff until it has an end. What it reads comes at once.
fn swapoff(world: &mut World) -> Swapoff {
    for _ in 0..10_000 {
        match world.engine.swapoff() {
            Swapoff::Goes => world.drain_requests(),
            end => return end,
        }
    }
    panic!("swapoff has no end")
}

#[test]
fn swapoff_moves_to_the_pool_what_fits_there_in_the_devices_order() {
    let device = Arc::new(Ram::new(4096));
    let mut world = plain(Some(Shared::new(&device)), 0, 900);
    // In any order but that of their addresses.
    (0..512).for_each(|nth| world.put(BASE + nth * 77 % 512, prose(nth)));
    world.push_out();
    assert!((BASE..BASE + 512).all(|number| on_device(&world, number)));
    world.engine.swap().zswap().set_pages_max(4096);
    let present = world.engine.usage().resident;
    assert_eq!(swapoff(&mut world), Swapoff::Done);
    assert_eq!((world.engine.swap().blocks().used(), world.engine.usage().resident), (0, present));
    assert!((BASE..BASE + 512).all(|number| !on_device(&world, number)));
    // Nothing goes there any more, and again when it is in use.
    let written = world.counter(Counter::pswpout);
    world.engine.swap().zswap().set_pages_max(0);
    (BASE + 512..BASE + 600).for_each(|number| world.put(number, noise(number)));
    world.push_out();
    assert_eq!(world.counter(Counter::pswpout), written);
    world.engine.swapon();
    world.push_out();
    assert!(world.counter(Counter::pswpout) > written);
    world.check_end();
}

#[test]
fn swapoff_brings_into_the_program_what_the_pool_refuses() {
    let mut world = written_in_order(Some(Shared::new(&Arc::new(Ram::new(4096)))));
    assert_eq!(swapoff(&mut world), Swapoff::Done);
    assert_eq!((world.engine.swap().blocks().used(), world.engine.usage().resident), (0, 512));
    world.check_end();
}

#[test]
fn swapoff_without_room_leaves_the_device_in_use_and_loses_nothing() {
    let mut world = plain(Some(Shared::new(&Arc::new(Ram::new(4096)))), 0, 300);
    for number in BASE..BASE + 512 {
        world.put(number, noise(number));
        if number % 64 == 63 {
            world.push_out();
        }
    }
    let before = world.engine.swap().blocks().used();
    assert!(before > 300);
    assert_eq!(swapoff(&mut world), Swapoff::NoRoom);
    assert!(world.engine.swap().blocks().used() > 0 && world.engine.can_write());
    world.push_out();
    assert!(world.engine.swap().blocks().used() >= before);
    world.check_end();
}

#[test]
fn swapoff_loses_the_page_that_cannot_be_read_and_no_other() {
    let device = Faulty::at_block(Box::new(Ram::new(4096)), Direction::Read, 100, Failure::Errno(5));
    let mut world = written_in_order(Some(Box::new(device)));
    world.may_lose = true;
    assert_eq!(swapoff(&mut world), Swapoff::Done);
    assert_eq!(world.memory().poisoned().len(), 1);
    world.check_end();
}

#[test]
fn random_reads_bring_in_single_pages() {
    let mut world = written_in_order(Some(Shared::new(&Arc::new(Ram::new(4096)))));
    // Each lies far from those before.
    (0..64).for_each(|nth| world.read(BASE + nth * 203 % 512));
    // But for the first, which is near where the last page was written.
    let ahead = world.counter(Counter::swap_ra);
    assert!(ahead < 8, "{ahead} pages came ahead");
    world.check_end();
}

#[test]
fn a_block_that_cannot_be_read_loses_its_page_and_none_that_is_read_with_it() {
    for failure in [Failure::Errno(5), Failure::Corrupt, Failure::Short] {
        for downwards in [false, true] {
            let device = Faulty::at_block(Box::new(Ram::new(4096)), Direction::Read, 100, failure);
            let mut world = written_in_order(Some(Box::new(device)));
            world.may_lose = true;
            let numbers = BASE..BASE + 512;
            let read = |number| world.read(number);
            if downwards {
                numbers.rev().for_each(read)
            } else {
                numbers.for_each(read)
            }
            let lost = world.memory().poisoned();
            // Bytes are damaged at the start of the request, wherever the block is in it.
            assert!(lost.len() == 1, "{failure:?}: {lost:?}");
            world.check_end();
        }
    }
}

#[test]
fn damage_on_the_device_poisons_and_never_gives_wrong_bytes() {
    let mut world = plain(faulty(Direction::Read, 3, Failure::Corrupt), 0, 300);
    world.may_lose = true;
    scattered().for_each(|number| world.put(number, noise(number)));
    world.push_out();
    // Each that is read is compared.
    scattered().for_each(|number| world.read(number));
    assert_eq!(world.memory().poisoned().len(), 10, "one read in three of 32");
    assert_eq!(world.counter(Counter::decompress_fail), 10);
    world.check_end();
}

#[test]
fn damage_in_a_window_poisons_no_page_that_was_not_asked_for_wrongly() {
    let mut world = plain(faulty(Direction::Read, 2, Failure::Corrupt), 0, 600);
    world.may_lose = true;
    (BASE..BASE + 256).for_each(|number| world.put(number, noise(number)));
    world.push_out();
    (BASE..BASE + 256).for_each(|number| world.read(number));
    assert_eq!(world.memory().poisoned().len() as u64, world.counter(Counter::decompress_fail));
    world.check_end();
}

#[test]
fn damage_in_the_pool_poisons_and_never_gives_wrong_bytes() {
    let mut world = plain(None, 200, 300);
    world.may_lose = true;
    scattered().for_each(|number| world.put(number, prose(number)));
    world.push_out();
    for number in scattered().take(4) {
        match world.word(page(number)).place() {
            Some(pagetide_swap::Place::Pool(handle)) => world.engine.swap().zswap().damage(handle),
            other => panic!("{number} is not in the pool but {other:?}"),
        }
    }
    scattered().for_each(|number| world.read(number));
    assert_eq!(world.memory().poisoned().len(), 4);
    world.check_end();
}

#[test]
fn a_write_error_keeps_the_pages() {
    for (errno, counter) in [(EIO, Counter::write_error), (ENOSPC, Counter::write_full)] {
        let mut world = plain(faulty(Direction::Write, 1, Failure::Errno(errno)), 0, 300);
        scattered().for_each(|number| world.put(number, noise(number)));
        world.push_out();
        assert_eq!(world.counter(Counter::pswpout), 0);
        assert!(world.counter(counter) > 0);
        assert_eq!(
            (world.engine.has_failed_writes(), world.engine.can_write()),
            (errno == EIO, errno != EIO)
        );
        scattered().for_each(|number| assert!(!on_device(&world, number)));
        scattered().for_each(|number| world.read(number));
        assert_eq!(world.engine.swap().blocks().used(), 0);
        world.check_books();
        world.check_end();
    }
}

#[test]
fn a_disk_that_was_full_is_written_to_again() {
    let mut world = plain(faulty(Direction::Write, 2, Failure::Errno(ENOSPC)), 0, 300);
    scattered().for_each(|number| world.put(number, noise(number)));
    // What was refused is due again some time, by a clock that counts how often it is read.
    // Each round has other bytes: pages that are as they were are not written again.
    for round in 1.. {
        world.push_out();
        assert!(world.engine.can_write());
        if world.counter(Counter::write_full) >= 3 && world.counter(Counter::pswpout) > 0 {
            break;
        }
        scattered().for_each(|number| world.put(number, noise(number + 1000 * round)));
    }
    scattered().for_each(|number| world.read(number));
    world.check_end();
}

#[test]
fn on_a_full_device_pages_stay() {
    let mut world = plain(Some(Box::new(Ram::new(10))), 0, 300);
    scattered().for_each(|number| world.put(number, noise(number)));
    world.push_out();
    assert_eq!(scattered().filter(|&number| on_device(&world, number)).count(), 10);
    assert!(world.engine.take_refused() > 0);
    scattered().for_each(|number| world.read(number));
    world.check_end();
}

fn deferred(pool_pages_max: usize, granted: i64) -> (World, Arc<Deferred>) {
    let device = Arc::new(Deferred::new(4096));
    let mut world = plain(Some(Shared::new(&device)), pool_pages_max, granted);
    world.deferred = Some(Arc::clone(&device));
    (world, device)
}

#[test]
fn a_fault_on_a_page_whose_store_is_in_flight_is_answered_by_its_end() {
    let (mut world, device) = deferred(0, 300);
    (BASE..BASE + 16).for_each(|number| world.put(number, noise(number)));
    world.push_out_undrained();
    assert_eq!(device.held(), 1, "one write of 16 pages");
    let mut access = world.access(page(BASE + 3), Action::Write(99));
    assert!(!world.step(&mut access) && !world.step(&mut access));
    assert!(world.word(page(BASE + 3)).is_wanted());
    assert!(!world.step(&mut access), "it is parked");
    world.check_books();
    device.release(0);
    world.complete();
    assert!(world.step(&mut access), "the end of the store has mapped it");
    assert_eq!(world.word(page(BASE + 3)).state(), State::Present);
    assert!((BASE..BASE + 16).filter(|&number| number != BASE + 3).all(|number| on_device(&world, number)));
    (BASE..BASE + 16).for_each(|number| world.read(number));
    world.check_end();
}

#[test]
fn a_fault_on_a_page_whose_store_fails_is_answered_with_the_page() {
    let device = Arc::new(Faulty::new(Box::new(Ram::new(64)), Direction::Write, 1, Failure::Errno(5)));
    let mut world = plain(Some(Shared::new(&device)), 0, 300);
    (BASE..BASE + 16).for_each(|number| world.put(number, noise(number)));
    // The write fails at once, but its end is not seen yet.
    world.push_out_undrained();
    assert_eq!(world.engine.requests(), 1);
    let mut access = world.access(page(BASE + 3), Action::Read);
    assert!(!world.step(&mut access) && !world.step(&mut access) && !world.step(&mut access));
    world.complete();
    assert!(world.step(&mut access));
    (BASE..BASE + 16).for_each(|number| world.read(number));
    world.check_end();
}

#[test]
fn a_fault_during_writeback_reads_the_copy_in_the_pool() {
    let (mut world, device) = deferred(100, 600);
    (BASE..BASE + 64).for_each(|number| world.put(number, prose(number)));
    world.push_out();
    assert_eq!((device.held(), world.engine.requests()), (0, 0), "all in the pool");
    // A limit that the pool is above: its entries are written back.
    world.engine.swap().zswap().set_pages_max(1);
    world.engine.reclaim(&mut world.work);
    let flying: Vec<u64> =
        (BASE..BASE + 64).filter(|&number| world.word(page(number)).is_writeback()).collect();
    assert!(flying.len() > 8 && device.held() > 0, "{flying:?}");
    // Read one and write one while their copies are on their way, and discard one.
    let (read, written, gone) = (flying[0], flying[2], flying[4]);
    let mut access = world.access(page(read), Action::Read);
    assert!(
        !world.step(&mut access) && !world.step(&mut access) && world.step(&mut access),
        "no wait for I/O"
    );
    let mut access = world.access(page(written), Action::Write(12_345));
    assert!(
        !world.step(&mut access) && !world.step(&mut access) && world.step(&mut access),
        "no wait for I/O"
    );
    let memory = world.engine.memory();
    world.engine.discard(pages(gone..gone + 1), |part| memory.drop_pages(part));
    world.model.remove(&gone);
    world.check_books();
    world.drain_requests();
    assert!(world.counter(Counter::zswpwb) > 0);
    assert_eq!(world.word(page(gone)), Word::HOLE);
    (BASE..BASE + 64).for_each(|number| world.read(number));
    world.check_end();
}

#[test]
fn where_nothing_else_is_left_the_pool_gives() {
    let (mut world, device) = deferred(100, 600);
    (BASE..BASE + 64).for_each(|number| world.put(number, prose(number)));
    world.push_out();
    let pool = world.engine.swap().zswap().pool_pages();
    assert!(pool > 0 && device.held() == 0, "all in the pool");
    // Until a step finds nothing; one that is writing already does not count.
    while matches!(world.engine.reclaim(&mut world.work), Progress::Freed(_)) {
        world.drain_requests();
    }
    world.check_books();
    assert_eq!(world.engine.swap().zswap().pool_pages(), 0);
    (BASE..BASE + 64).for_each(|number| world.read(number));
    world.check_end();
}

#[test]
fn a_cluster_that_was_referenced_is_a_victim_when_there_is_no_other() {
    let mut world = plain(Some(Box::new(Ram::new(100))), 0, 300);
    scattered().for_each(|number| world.put(number, noise(number)));
    assert_eq!(world.engine.reclaim(&mut world.work), Progress::Moved, "on probation");
    scattered().for_each(|number| world.read(number));
    assert_eq!(world.engine.reclaim(&mut world.work), Progress::Moved, "hot, but there is nothing else");
    world.drain_requests();
    world.check_end();
}

#[test]
fn what_a_busy_device_cannot_take_yet_waits_on_probation() {
    let (mut world, device) = deferred(0, 600);
    (BASE..BASE + 400).for_each(|number| world.put(number, noise(number)));
    world.push_out_undrained();
    let cached = |world: &World| {
        (BASE..BASE + 400).filter(|&number| world.word(page(number)).state() == State::Cached).count()
    };
    assert_eq!((device.held(), cached(&world)), (4, 400), "as much is being written as may be");
    assert_eq!(world.engine.reclaim(&mut world.work), Progress::Waits);
    assert_eq!((device.held(), world.engine.take_refused()), (4, 0));
    // A hit meanwhile, and the end of a write.
    world.read(BASE + 200);
    device.release(0);
    world.complete();
    assert_eq!(world.engine.reclaim(&mut world.work), Progress::Freed(32));
    assert_eq!((device.held(), cached(&world)), (4, 400 - 1 - 32));
    while device.release(0) {
        world.complete();
        world.push_out_undrained();
    }
    assert_eq!(cached(&world), 0);
    assert_eq!(world.counter(Counter::swap_cache_hit), 1);
    (BASE..BASE + 400).for_each(|number| {
        world.read(number);
        while device.release(0) {
            world.complete();
        }
    });
    world.check_end();
}

#[test]
fn a_discard_waits_for_the_store_and_then_forgets_it() {
    let (mut world, device) = deferred(0, 300);
    (BASE..BASE + 16).for_each(|number| world.put(number, noise(number)));
    world.push_out_undrained();
    assert_eq!(device.held(), 1);
    let engine = Arc::clone(&world.engine);
    let (report, told) = std::sync::mpsc::channel();
    let discard = std::thread::spawn(move || {
        let memory = engine.memory();
        engine.discard(pages(BASE..BASE + 8), |part| memory.drop_pages(part));
        report.send(()).unwrap();
    });
    assert!(told.recv_timeout(Duration::from_millis(50)).is_err(), "the pages are on their way");
    device.release(0);
    world.complete();
    told.recv_timeout(Duration::from_secs(20)).expect("the end of the store lets it go on");
    discard.join().unwrap();
    (BASE..BASE + 8).for_each(|number| _ = world.model.remove(&number));
    (BASE..BASE + 16).for_each(|number| world.read(number));
    world.check_end();
}

#[test]
fn a_discard_waits_for_the_read_and_then_forgets_it() {
    let (mut world, device) = deferred(0, 300);
    (BASE..BASE + 16).for_each(|number| world.put(number, noise(number)));
    world.push_out();
    let mut access = world.access(page(BASE + 1), Action::Read);
    assert!(!world.step(&mut access) && !world.step(&mut access));
    assert_eq!(device.held(), 1);
    let engine = Arc::clone(&world.engine);
    let discard = std::thread::spawn(move || {
        let memory = engine.memory();
        engine.discard(pages(BASE..BASE + 16), |part| memory.drop_pages(part));
    });
    std::thread::sleep(Duration::from_millis(20));
    assert!(!discard.is_finished());
    device.release(0);
    world.complete();
    discard.join().unwrap();
    world.model.clear();
    // The access looks again: zeroes.
    world.threads[0] = Some(access);
    world.check_end();
}

#[test]
fn drain_ends_once_requests_are_released() {
    let (mut world, device) = deferred(0, 400);
    (BASE..BASE + 200).for_each(|number| world.put(number, noise(number)));
    world.engine.reclaim(&mut world.work);
    assert!(!world.engine.drain(&mut world.work), "writes are under way");
    assert!(device.held() > 0);
    for _ in 0..100 {
        device.release(0);
        world.complete();
        if world.engine.drain(&mut world.work) {
            break;
        }
    }
    world.drain();
    world.check_books();
    world.check_end();
}

#[test]
fn a_fault_without_room_is_answered_when_there_is_some() {
    let mut world = plain(None, 0, 2);
    world.put(BASE, noise(1));
    world.put(BASE + 1, noise(2));
    let mut access = world.access(page(BASE + 2), Action::Write(7));
    assert!(!world.step(&mut access) && !world.step(&mut access) && !world.step(&mut access));
    assert_eq!((world.engine.waiting(), world.engine.stalled()), (1, 1));
    assert!(world.engine.is_short());
    // Nothing can leave: there is no pool and no device.
    world.push_out();
    world.engine.retry_waiting(&mut world.work);
    assert!(!world.step(&mut access));
    world.engine.budget().give(1);
    world.granted += 1;
    world.engine.retry_waiting(&mut world.work);
    assert!(world.step(&mut access));
    world.check_books();
    world.check_end();
}

#[test]
fn faults_of_a_process_that_rests_wait_whatever_room_there_is() {
    let mut world = plain(None, 0, 10);
    world.rests = true;
    let mut access = world.access(page(BASE), Action::Write(7));
    assert!(!world.step(&mut access) && !world.step(&mut access));
    world.engine.retry_waiting(&mut world.work);
    assert!(!world.step(&mut access));
    // It wants nothing meanwhile: others may have what there is.
    assert_eq!((world.engine.waiting(), world.engine.stalled()), (0, 0));
    assert!(world.engine.end_rest() && !world.engine.end_rest());
    assert_eq!((world.engine.waiting(), world.engine.stalled()), (1, 1));
    world.engine.retry_waiting(&mut world.work);
    assert!(world.step(&mut access));
    world.check_end();
}

#[test]
fn a_fork_answers_what_rests_or_waits_also_without_room() {
    let mut world = plain(None, 0, 1);
    world.put(BASE, noise(1));
    let mut waits = world.access(page(BASE + 1), Action::Write(7));
    assert!(!world.step(&mut waits) && !world.step(&mut waits));
    world.rests = true;
    let mut rests = world.access(page(BASE + 2), Action::Write(8));
    assert!(!world.step(&mut rests) && !world.step(&mut rests));
    world.engine.hold_waiting(true);
    world.end_rest();
    assert_eq!(world.engine.waiting(), 2);
    world.engine.answer_waiting(&mut world.work);
    assert_eq!((world.engine.waiting(), world.engine.stalled()), (0, 0));
    assert!(world.step(&mut waits) && world.step(&mut rests));
    world.engine.hold_waiting(false);
    world.check_books();
    world.check_end();
}

#[test]
fn faults_that_are_held_back_wait() {
    let mut world = plain(None, 0, 10);
    let mut access = world.access(page(BASE), Action::Write(7));
    assert!(!world.step(&mut access));
    world.engine.hold_waiting(true);
    access.delivered = true;
    world.engine.park(page(BASE), true, fake::clock());
    world.engine.retry_waiting(&mut world.work);
    assert!(!world.step(&mut access));
    world.engine.hold_waiting(false);
    world.engine.retry_waiting(&mut world.work);
    assert!(world.step(&mut access));
    world.check_end();
}

#[test]
fn pinned_pages_stay_where_they_are() {
    let mut world = plain(None, 200, 300);
    (BASE..BASE + 32).for_each(|number| world.put(number, prose(number)));
    world.memory().set_may_pin(true);
    world.memory().pin(page(BASE + 5), true);
    world.push_out();
    assert_eq!(world.memory().present(), [page(BASE + 5)]);
    world.memory().set_can_move(false);
    world.put(BASE + 600, prose(1));
    world.push_out();
    assert!(world.memory().peek(page(BASE + 600)).is_some(), "without MOVE nothing may leave");
    (BASE..BASE + 32).for_each(|number| world.read(number));
    world.check_end();
}

#[test]
fn what_may_not_be_written_leaves_though_pages_may_be_pinned() {
    let mut world = plain(None, 200, 300);
    (BASE..BASE + 32).for_each(|number| world.put(number, prose(number)));
    world.protect(BASE..BASE + 16, Access::Read);
    world.protect(BASE + 16..BASE + 20, Access::None);
    world.memory().set_may_pin(true);
    world.memory().pin(page(BASE + 5), true);
    world.memory().pin(page(BASE + 25), true);
    world.push_out();
    assert_eq!(world.memory().present(), [page(BASE + 5), page(BASE + 25)]);
    (BASE..BASE + 16).for_each(|number| world.read(number));
    world.check_end();
}

#[test]
fn pages_shared_by_a_fork_leave_by_move_too() {
    let mut world = plain(None, 200, 300);
    world.memory().set_may_pin(true);
    (BASE..BASE + 32).for_each(|number| world.put(number, prose(number)));
    world.memory().share();
    world.push_out();
    assert!(world.memory().present().is_empty());
    (BASE..BASE + 32).for_each(|number| world.read(number));
    // A pinned page among them does not hold up the others.
    world.memory().share();
    world.memory().pin(page(BASE + 5), true);
    world.push_out();
    assert_eq!(world.memory().present(), [page(BASE + 5)]);
    (BASE..BASE + 32).for_each(|number| world.read(number));
    world.check_end();
}

#[test]
fn a_page_that_comes_back_clean_is_not_stored_again() {
    let mut world = plain(None, 200, 300);
    (BASE..BASE + 32).for_each(|number| world.put(number, prose(number)));
    world.push_out();
    (BASE..BASE + 32).for_each(|number| world.read(number));
    world.put(BASE + 9, prose(1000));
    world.push_out();
    assert_eq!(world.counter(Counter::swap_reuse), 31);
    assert_eq!(world.counter(Counter::zswpout), 33);
    (BASE..BASE + 32).for_each(|number| world.read(number));
    world.check_end();
}

#[test]
fn contents_travel_with_a_mapping_that_moves() {
    for (pool, blocks) in [(200, 0), (0, 4096), (20, 4096)] {
        let device = (blocks > 0).then(|| Box::new(Ram::new(blocks)) as Box<dyn Device>);
        let mut world = plain(device, pool, 600);
        (BASE..BASE + 300).for_each(|number| world.put(number, prose(number)));
        world.push_out();
        // Some in the program, some on probation, some stored.
        (BASE..BASE + 40).for_each(|number| world.read(number));
        world.engine.reclaim(&mut world.work);
        world.remap(BASE, BASE + 1024 + 7, 300, false);
        (BASE + 1024..BASE + 1400).for_each(|number| {
            if (BASE + 1031..BASE + 1331).contains(&number) {
                world.read(number);
            }
        });
        world.check_books();
        world.check_end();
    }
}

#[test]
fn a_page_that_a_fault_waits_for_outlives_a_moment_without_memory() {
    let (mut world, device) = deferred(0, 300);
    (BASE..BASE + 16).for_each(|number| world.put(number, noise(number)));
    world.push_out_undrained();
    let mut access = world.access(page(BASE + 3), Action::Read);
    assert!(!world.step(&mut access) && !world.step(&mut access));
    assert!(world.word(page(BASE + 3)).is_wanted());
    // The store ends, and the kernel has no page for the mapping (a cgroup at its limit).
    world.memory().set_no_memory_every(1);
    device.release(0);
    world.complete();
    world.memory().set_no_memory_every(0);
    world.threads[0] = Some(access);
    world.check_end();
}

#[test]
fn drain_ends_although_the_kernel_had_no_memory_for_a_moment() {
    let mut world = plain(None, 0, 300);
    (BASE..BASE + 16).for_each(|number| world.put(number, noise(number)));
    assert_eq!(world.engine.reclaim(&mut world.work), Progress::Moved);
    // No place for the pages, and no memory to put them back.
    world.memory().set_no_memory_every(1);
    world.engine.drain(&mut world.work);
    world.memory().set_no_memory_every(0);
    world.drain();
    (BASE..BASE + 16).for_each(|number| world.read(number));
    world.check_end();
}
