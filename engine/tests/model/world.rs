//! The world of a run: an engine on a fake memory, virtual threads, and what a naive model says of each page.

use crate::common::{compose, page};
use pagetide::engine::{Engine, Progress, Workspace};
use pagetide::fake::{self, Bytes, FakeMemory, FaultToken, Miss, Setup};
use pagetide::regions::Access;
use pagetide_device::deferred::Deferred;
use pagetide_swap::announced::Call;
use pagetide_swap::{Counter, PageIndex, State, Word};
use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

pub(crate) const THREADS: usize = 4;
/// The object under test: six clusters, the first page of which is not aligned to anything.
pub(crate) const AREA: Range<u64> = 1000 * 512 + 100..1006 * 512 - 37;

#[derive(Clone, Copy, Debug)]
pub(crate) enum Action {
    Read,
    Write(u64),
}

/// An access under way.
#[derive(Clone, Copy, Debug)]
pub(crate) struct UnderWay {
    pub page: PageIndex,
    pub action: Action,
    pub token: Option<FaultToken>,
    /// Whether the page is there, and the write is stopped.
    pub stopped: bool,
    pub delivered: bool,
}

pub(crate) struct World {
    pub engine: Arc<Engine<FakeMemory>>,
    pub work: Workspace,
    pub deferred: Option<Arc<Deferred>>,
    pub model: HashMap<u64, Box<Bytes>>,
    pub threads: [Option<UnderWay>; THREADS],
    /// A call that has announced what it touches.
    pub announced: Option<Call>,
    pub granted: i64,
    /// Pages that may be lost to injected read errors.
    pub may_lose: bool,
    /// Whether the device goes out of use now and then.
    pub swaps_off: bool,
    /// Whether the process rests just now.
    pub rests: bool,
    pub stamp: u64,
    pub reads: usize,
}

impl World {
    pub(crate) fn new(setup: Setup, granted: i64) -> Self {
        let engine = Arc::new(fake::engine(setup));
        engine.budget().give(granted);
        Self {
            engine,
            work: Workspace::default(),
            deferred: None,
            model: HashMap::new(),
            threads: [None; THREADS],
            announced: None,
            granted,
            may_lose: false,
            swaps_off: false,
            rests: false,
            stamp: 0,
            reads: 0,
        }
    }

    pub(crate) fn memory(&self) -> &FakeMemory {
        self.engine.memory()
    }

    pub(crate) fn word(&self, page: PageIndex) -> Word {
        self.engine.swap().table().peek(page)
    }

    pub(crate) fn counter(&self, counter: Counter) -> u64 {
        self.engine.swap().counters().get(counter)
    }

    pub(crate) fn expected(&self, page: PageIndex) -> Box<Bytes> {
        self.model.get(&page.0).cloned().unwrap_or_else(|| Box::new([0; 4096]))
    }
}

/// The device.
impl World {
    /// Ends what has ended.
    pub(crate) fn complete(&mut self) {
        let Some(device) = self.engine.device() else { return };
        let mut done = Vec::new();
        device.nudge();
        device.wait(&mut done);
        self.engine.complete(&mut done, &mut self.work);
    }

    /// Ends everything.
    pub(crate) fn drain_requests(&mut self) {
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
}

/// Threads.
impl World {
    /// One step of an access. True if it is over.
    pub(crate) fn step(&mut self, access: &mut UnderWay) -> bool {
        if let Some(token) = access.token {
            if !access.delivered {
                access.delivered = true;
                let write = matches!(access.action, Action::Write(_));
                match self.rests {
                    true => self.engine.rest(access.page, write),
                    false if access.stopped => self.engine.write_fault(access.page, fake::clock()),
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
            Err(miss @ (Miss::Fault(token) | Miss::Stopped(token))) => {
                access.stopped = matches!(miss, Miss::Stopped(_));
                (access.token, access.delivered) = (Some(token), false);
                false
            }
        }
    }

    pub(crate) fn access(&self, page: PageIndex, action: Action) -> UnderWay {
        UnderWay { page, action, token: None, stopped: false, delivered: false }
    }

    /// Does an access from start to end. False if it cannot be done with the room there is.
    pub(crate) fn try_now(&mut self, page: PageIndex, action: Action) -> bool {
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

    pub(crate) fn now(&mut self, page: PageIndex, action: Action) {
        assert!(
            self.try_now(page, action),
            "{action:?} of {page:?} is never answered: {:?}",
            self.word(page)
        );
    }

    /// Reads pages one after the other.
    pub(crate) fn scan(&mut self, numbers: std::ops::Range<u64>, downwards: bool) {
        let read = |number| self.read(number);
        if downwards { numbers.rev().for_each(read) } else { numbers.for_each(read) }
    }

    pub(crate) fn read(&mut self, number: u64) {
        self.now(page(number), Action::Read);
    }

    /// Writes bytes of the test's own.
    pub(crate) fn put(&mut self, number: u64, bytes: Box<Bytes>) {
        self.now(page(number), Action::Read);
        self.memory().write(page(number), &bytes).expect("it was read just now");
        self.model.insert(number, bytes);
    }
}

/// Reclaim.
impl World {
    /// Reclaims until nothing moves any more, and ends what that led to.
    pub(crate) fn push_out(&mut self) {
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
    pub(crate) fn push_out_undrained(&mut self) {
        for _ in 0..100 {
            if self.engine.reclaim(&mut self.work) == Progress::Nothing {
                return;
            }
        }
    }

    pub(crate) fn drain(&mut self) {
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

/// What must hold after every event, and at the end.
impl World {
    pub(crate) fn check_books(&self) {
        self.engine.charge_pool();
        let (mut reading, mut locked, mut present, mut zero) = (0, 0, 0, 0);
        for number in AREA {
            let word = self.word(page(number));
            locked += i64::from(word.is_locked());
            reading += i64::from(word.is_locked() && word.state() == State::Swapped);
            present += i64::from(word.state() == State::Present);
            zero += i64::from(word.state() == State::Present && self.memory().is_zero(page(number)));
        }
        for number in AREA {
            let page = page(number);
            let may_write = self.memory().peek(page).is_some() && !self.memory().is_stopped(page);
            assert!(!may_write || !self.engine.is_borrowed(page), "{page:?} is written to and not charged");
        }
        let usage = self.engine.usage();
        if self.engine.requests() == 0 {
            assert_eq!(locked, 0, "words are locked and nothing is under way");
        }
        assert_eq!(usage.resident, present, "the total of pages in the program");
        assert_eq!(usage.frames, self.memory().frames(), "the total of frames");
        assert!(self.engine.zero_pages() >= zero, "{zero} zero pages, {} counted", self.engine.zero_pages());
        let free = self.engine.budget().free();
        assert_eq!(
            free + usage.resident - usage.borrowed + usage.frames + usage.pool + usage.pool_shared + reading,
            self.granted,
            "{free} free, {usage:?}, {reading} being read"
        );
    }

    /// Counts zero pages, a cluster at a time.
    pub(crate) fn count_zero_pages(&self) {
        while !self.engine.count_zero_pages(1) {}
        self.check_books();
    }

    /// Pages that are in the program can be compared without moving any.
    pub(crate) fn check_present(&self) {
        for page in self.memory().present() {
            let found = self.memory().peek(page).expect("listed");
            assert!(found == self.expected(page), "{page:?} is wrong in the program: {:?}", self.word(page));
        }
    }

    /// What waited meanwhile waits for no more than room.
    pub(crate) fn end_rest(&mut self) {
        self.rests = false;
        self.engine.end_rest();
    }

    /// With enough room given, every access ends, every page is right, and nothing is left locked.
    pub(crate) fn check_end(&mut self) {
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
}
