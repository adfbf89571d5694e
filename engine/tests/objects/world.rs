//! The world of a run: objects, the processes that map them, and what a naive model says of each page.

use crate::common::{balances, compose, manage, page, pages};
use pagetide::engine::{Engine, Progress, Workspace};
use pagetide::fake::{self, Bytes, FakeObjects, FaultToken};
use pagetide::regions::Access;
use pagetide_device::deferred::Deferred;
use pagetide_swap::{Counter, PageIndex, State, Word};
use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

pub(crate) const PROCESSES: usize = 4;
/// Objects begin here, each with clusters of its own.
pub(crate) const FIRST: u64 = 1000 * 512;
/// Clusters between the beginnings of two objects: the longest object has two.
pub(crate) const STRIDE: u64 = 3 * 512;
pub(crate) const OBJECTS: usize = 4;

/// An object, and which processes map it.
#[derive(Clone, Debug)]
pub(crate) struct Object {
    pub pages: Range<u64>,
    pub mapped_by: [bool; PROCESSES],
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Action {
    Read,
    Write,
}

/// How far an access is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Stage {
    /// It looks whether the page is there.
    Looks,
    /// It has found it missing.
    Missing,
    /// It waits; the engine has not heard of it.
    Waits(FaultToken),
    /// It waits for the engine's answer.
    Heard(FaultToken),
}

/// An access under way.
#[derive(Clone, Copy, Debug)]
pub(crate) struct UnderWay {
    pub page: PageIndex,
    pub action: Action,
    pub stage: Stage,
}

pub(crate) struct World {
    pub engine: Engine<FakeObjects>,
    pub work: Workspace,
    pub deferred: Option<Arc<Deferred>>,
    pub model: HashMap<u64, Box<Bytes>>,
    pub objects: [Option<Object>; OBJECTS],
    pub accesses: [Option<UnderWay>; PROCESSES],
    /// The number that the memory has for each process: another one after it was killed.
    pub numbers: [usize; PROCESSES],
    pub granted: i64,
    /// Pages that may be lost to injected read errors.
    pub may_lose: bool,
    pub swaps_off: bool,
    pub stamp: u64,
    pub reads: usize,
    /// Accesses that began to wait for a page which was in its object by then.
    pub late: usize,
}

impl World {
    pub(crate) fn memory(&self) -> &FakeObjects {
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

    /// All pages of all objects.
    pub(crate) fn all_pages(&self) -> impl Iterator<Item = u64> {
        self.objects.iter().flatten().flat_map(|object| object.pages.clone())
    }
}

/// The device, and room.
impl World {
    pub(crate) fn complete(&mut self) {
        let Some(device) = self.engine.device() else { return };
        let mut done = Vec::new();
        device.nudge();
        device.wait(&mut done);
        self.engine.complete(&mut done, &mut self.work);
    }

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

    pub(crate) fn push_out(&mut self) {
        for _ in 0..100 {
            let progress = self.engine.reclaim(&mut self.work);
            self.drain_requests();
            if progress == Progress::Nothing {
                return;
            }
        }
    }

    pub(crate) fn give(&mut self, count: i64) {
        self.engine.budget().give(count);
        self.granted += count;
    }
}

/// Accesses.
impl World {
    /// One step of an access. True if it is over.
    pub(crate) fn step(&mut self, process: usize, access: &mut UnderWay) -> bool {
        let (number, page) = (self.numbers[process], access.page);
        match access.stage {
            Stage::Looks => match self.memory().is_missing(number, page) {
                Ok(true) => access.stage = Stage::Missing,
                Ok(false) => return self.ends(number, access),
                Err(_) => return self.is_lost(page),
            },
            Stage::Missing => {
                self.late += usize::from(self.memory().peek(page).is_some());
                access.stage = self.memory().begin_to_wait(number, page).map_or(Stage::Looks, Stage::Waits);
            }
            Stage::Waits(token) if self.memory().hear(token) => {
                access.stage = Stage::Heard(token);
                let write = matches!(access.action, Action::Write);
                self.engine.fault(page, write, fake::clock(), &mut self.work);
            }
            Stage::Waits(token) | Stage::Heard(token) => {
                if self.memory().is_woken(token) {
                    access.stage = Stage::Looks;
                }
            }
        }
        false
    }

    fn ends(&mut self, number: usize, access: &mut UnderWay) -> bool {
        let (page, expected) = (access.page, self.expected(access.page));
        let stamp = self.stamp;
        let written = match access.action {
            Action::Read => None,
            Action::Write => Some(compose(stamp)),
        };
        let done = self.memory().update(number, page, |bytes| {
            assert!(*bytes == *expected, "{page:?} has come back wrong");
            if let Some(written) = &written {
                bytes.copy_from_slice(&written[..]);
            }
        });
        assert_eq!(done, Ok(Some(())), "it was there just now");
        self.reads += 1;
        if let Some(written) = written {
            self.model.insert(page.0, written);
            self.stamp += 1;
        }
        true
    }

    fn is_lost(&self, page: PageIndex) -> bool {
        assert!(self.may_lose, "{page:?} is poisoned");
        assert_eq!(self.word(page).state(), State::Poisoned);
        true
    }

    /// Reads a page from start to end.
    pub(crate) fn read(&mut self, process: usize, page: PageIndex) {
        let mut access = UnderWay { page, action: Action::Read, stage: Stage::Looks };
        for _ in 0..300 {
            if self.step(process, &mut access) {
                return;
            }
            if matches!(access.stage, Stage::Heard(_)) {
                self.drain_requests();
                self.engine.retry_waiting(&mut self.work);
            }
        }
        panic!("a read of {page:?} is never answered: {access:?}, {:?}", self.word(page));
    }
}

/// What must hold after every event, and at the end.
impl World {
    pub(crate) fn check_books(&self) {
        self.engine.charge_pool();
        let (mut reading, mut locked, mut present) = (0, 0, 0);
        for number in self.all_pages() {
            let word = self.word(page(number));
            locked += i64::from(word.is_locked());
            reading += i64::from(word.is_locked() && word.state() == State::Swapped);
            present += i64::from(word.state() == State::Present);
        }
        let usage = self.engine.usage();
        if self.engine.requests() == 0 {
            assert_eq!(locked, 0, "words are locked and nothing is under way");
        }
        assert_eq!(usage.resident, present, "the total of pages in objects");
        assert_eq!(
            usage.resident as usize,
            self.served().count(),
            "pages in objects that the table does not know"
        );
        assert_eq!(usage.frames, self.memory().frames(), "the total of frames");
        let free = self.engine.budget().free();
        assert_eq!(
            free + usage.resident + usage.frames + usage.pool + usage.pool_shared + reading,
            self.granted,
            "{free} free, {usage:?}, {reading} being read"
        );
    }

    /// Pages that are in objects which the engine serves.
    fn served(&self) -> impl Iterator<Item = PageIndex> {
        let is_served =
            |page: &PageIndex| self.objects.iter().flatten().any(|object| object.pages.contains(&page.0));
        self.memory().present().into_iter().filter(is_served)
    }

    /// Pages that are in their objects can be compared without moving any.
    pub(crate) fn check_present(&self) {
        for page in self.memory().present() {
            let found = self.memory().peek(page).expect("listed");
            assert!(found == self.expected(page), "{page:?} is wrong in its object: {:?}", self.word(page));
        }
    }

    /// With enough room given, every access ends, every page is right for everybody, and nothing is left.
    pub(crate) fn check_end(&mut self) {
        self.memory().set_no_memory_every(0);
        self.memory().pin_after(None);
        self.give((OBJECTS as u64 * STRIDE) as i64);
        for _ in 0..1000 {
            if self.accesses.iter().all(Option::is_none) {
                break;
            }
            self.drain_requests();
            self.engine.retry_waiting(&mut self.work);
            for process in 0..PROCESSES {
                let Some(mut access) = self.accesses[process].take() else { continue };
                if !self.step(process, &mut access) {
                    self.accesses[process] = Some(access);
                }
            }
        }
        assert!(self.accesses.iter().all(Option::is_none), "not answered: {:?}", self.accesses);
        self.drain_requests();
        self.engine.retry_waiting(&mut self.work);
        assert_eq!((self.engine.waiting(), self.engine.stalled(), self.memory().waiting()), (0, 0, 0));
        for nth in 0..OBJECTS {
            let Some(object) = self.objects[nth].clone() else { continue };
            for process in (0..PROCESSES).filter(|&process| object.mapped_by[process]) {
                object.pages.clone().for_each(|number| self.read(process, page(number)));
            }
            self.check_books();
        }
        self.check_present();
        for nth in 0..OBJECTS {
            for process in 0..PROCESSES {
                self.detach(nth, process);
            }
            self.end_object(nth);
        }
        for _ in 0..1000 {
            if self.engine.drain(&mut self.work) {
                break;
            }
            self.drain_requests();
        }
        balances(&self.engine, self.granted);
        let usage = self.engine.usage();
        assert_eq!((usage.resident, usage.frames, usage.pool), (0, 0, 0));
        assert_eq!(self.engine.swap().blocks().used(), 0, "blocks leak");
        assert_eq!((self.engine.swap().cached(), self.engine.swap().swapped()), (0, 0));
        assert_eq!(self.memory().present(), []);
    }
}

/// Mappings and objects.
impl World {
    pub(crate) fn attach(&mut self, nth: usize, process: usize) {
        let Some(object) = &mut self.objects[nth] else { return };
        if !object.mapped_by[process] {
            object.mapped_by[process] = true;
            let range = pages(object.pages.clone());
            self.memory().attach(self.numbers[process], range);
        }
    }

    pub(crate) fn detach(&mut self, nth: usize, process: usize) {
        let Some(object) = &mut self.objects[nth] else { return };
        if std::mem::take(&mut object.mapped_by[process]) {
            let range = object.pages.clone();
            // Its thread gets SIGSEGV.
            self.accesses[process] = self.accesses[process].filter(|access| !range.contains(&access.page.0));
            self.memory().detach(self.numbers[process], pages(range));
        }
    }

    /// Gives an object up that nobody maps, as the keeper does.
    pub(crate) fn end_object(&mut self, nth: usize) {
        let Some(object) = self.objects[nth].take_if(|object| object.mapped_by == [false; PROCESSES]) else {
            return;
        };
        let range = pages(object.pages.clone());
        self.forget(&object);
        self.memory().remove(range.start);
        object.pages.for_each(|number| _ = self.model.remove(&number));
    }

    /// The engine serves an object no more; what is in it stays there.
    fn forget(&mut self, object: &Object) {
        let range = pages(object.pages.clone());
        self.engine.regions.write().unwrap().remove(range.clone());
        self.drain_requests();
        self.engine.discard(range, |_| {});
    }

    /// Leaves an object to the kernel: all of it comes in, whatever room there is, and must be right for outsiders.
    pub(crate) fn retire(&mut self, nth: usize) {
        let Some(mut object) = self.objects[nth].clone() else { return };
        self.give(STRIDE as i64);
        for number in object.pages.clone() {
            for _ in 0..100 {
                if matches!(self.word(page(number)).state(), State::Present | State::Hole | State::Poisoned) {
                    break;
                }
                self.engine.fault(page(number), false, fake::clock(), &mut self.work);
                self.drain_requests();
                self.engine.retry_waiting(&mut self.work);
            }
        }
        self.forget(&object);
        self.engine.budget().take(STRIDE as i64);
        self.granted -= STRIDE as i64;
        for number in object.pages.clone() {
            let (found, expected) = (self.memory().peek(page(number)), self.expected(page(number)));
            let is_right =
                found.as_ref().map_or(expected.iter().all(|&byte| byte == 0), |found| *found == expected);
            assert!(
                is_right || self.may_lose,
                "page {number} of an object that is retired is {:?}",
                found.is_some()
            );
        }
        self.objects[nth] = Some(object.clone());
        for process in 0..PROCESSES {
            self.detach(nth, process);
        }
        object.mapped_by = [false; PROCESSES];
        self.objects[nth] = None;
        self.memory().remove(page(object.pages.start));
        object.pages.for_each(|number| _ = self.model.remove(&number));
    }

    /// Makes an object that one process maps.
    pub(crate) fn create(&mut self, nth: usize, count: u64, process: usize) {
        if self.objects[nth].is_some() {
            return;
        }
        let first = FIRST + nth as u64 * STRIDE;
        self.memory().create(pages(first..first + count));
        manage(&self.engine, first..first + count, Access::Write);
        self.objects[nth] = Some(Object { pages: first..first + count, mapped_by: [false; PROCESSES] });
        self.attach(nth, process);
    }

    /// Gives contents of an object back.
    pub(crate) fn punch(&mut self, range: Range<u64>) {
        self.drain_requests();
        self.engine.discard(pages(range.clone()), |part| self.memory().punch(part));
        range.for_each(|number| _ = self.model.remove(&number));
    }

    /// Kills a process; another one takes its place, which maps nothing.
    pub(crate) fn kill(&mut self, process: usize) {
        self.memory().kill(self.numbers[process]);
        self.numbers[process] = self.memory().start();
        self.accesses[process] = None;
        self.objects.iter_mut().flatten().for_each(|object| object.mapped_by[process] = false);
    }
}
