//! Readers: the threads that read faults, and the processors on which they run.
//!
//! Every fault wakes every reader that sleeps, and a wake-up across processors may cost many times the work
//! itself. So one reader serves a program in which one thread faults, on that thread's processor. When several
//! fault there is a reader on each processor (as far as there are readers), which lets whoever runs there go
//! on when it wakes: the fault of another processor has a reader of its own, and a thread that has just
//! faulted here sleeps anyway.

use crate::clock::clock;
use pagetide_sys::task;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering::Relaxed};
use std::sync::{Condvar, Mutex, PoisonError};

/// More readers than that are never started.
pub(crate) const READERS_MAX: usize = 4;
/// Faults of one reader after which it looks who faulted.
const LOOK: u32 = 128;
/// The number of faults of other threads among those that is no accident.
const SEVERAL: u32 = 16;
/// Nanoseconds for which reclaim works on one processor before it goes on on the next.
const TURN: u64 = 4_000_000;
/// Nanoseconds without a fault of another thread after which one is taken for the only one that faults. Another may not have run
/// meanwhile, for some time slices (3 ms) of whoever runs in its place.
const ALONE: u64 = 15_000_000;
/// Looks after which a reader that serves several threads, while another has little to do, sends one of them
/// to the other's processor.
const SPREAD_LOOKS: u32 = 2;

/// The readers of a process, and what they know of each other.
#[derive(Debug)]
pub(crate) struct Readers {
    /// The processors that the program may use.
    processors: Vec<usize>,
    seats: [Seat; READERS_MAX],
    /// Whether several threads of the program fault just now.
    crowd: AtomicBool,
    /// The only thread that faults, 0 if several do or none has.
    alone: AtomicU32,
    /// One more than the processor where the only thread that faults runs, and its reader with it; 0 if
    /// several fault, or it is not known.
    home: AtomicUsize,
    changed: Condvar,
    lock: Mutex<()>,
}

/// The facts that a reader shows to the others.
#[derive(Debug, Default)]
struct Seat {
    /// The thread that faulted last.
    last: AtomicU32,
    /// Faults, modulo 2³².
    faults: AtomicU32,
}

impl Readers {
    /// For a program that may use these processors.
    pub(crate) fn new(processors: Vec<usize>) -> Self {
        Self {
            processors,
            seats: Default::default(),
            crowd: AtomicBool::new(false),
            alone: AtomicU32::new(0),
            home: AtomicUsize::new(0),
            changed: Condvar::new(),
            lock: Mutex::new(()),
        }
    }

    /// Returns the number of readers that there should be.
    pub(crate) fn count(&self) -> usize {
        self.processors.len().clamp(1, READERS_MAX)
    }

    /// Returns whether several threads of the program fault just now.
    fn is_crowd(&self) -> bool {
        self.crowd.load(Relaxed)
    }

    /// Returns whether each processor has a reader of its own.
    fn cover(&self) -> bool {
        self.processors.len() <= READERS_MAX
    }

    /// Returns whether as many threads fault as there are processors: each reader has read another one's fault last.
    fn fill_all(&self) -> bool {
        let seats = &self.seats[..self.count()];
        let last = |seat: &Seat| seat.last.load(Relaxed);
        let is_new =
            |(nth, seat)| last(seat) != 0 && seats[..nth].iter().all(|other| last(other) != last(seat));
        self.cover() && seats.iter().enumerate().all(is_new)
    }

    fn set_crowd(&self, crowd: bool) {
        if self.is_crowd() != crowd {
            let _guard = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
            self.crowd.store(crowd, Relaxed);
            self.changed.notify_all();
        }
    }

    fn wait_crowd(&self) {
        let mut guard = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
        while !self.is_crowd() {
            guard = self.changed.wait(guard).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Finds where the only thread that faults runs now, by `processor_of`: the reader looks every so many faults, and so
    /// does not see that it waits for a processor.
    pub(crate) fn follow(&self, processor_of: impl Fn(u32) -> Option<usize>) {
        let home = match self.alone.load(Relaxed) {
            0 => None,
            _ if self.processors.len() == 1 => None,
            tid => processor_of(tid).filter(|home| self.processors.contains(home)),
        };
        self.home.store(home.map_or(0, |home| home + 1), Relaxed);
    }

    /// Returns where a thread that works beside the readers should run:
    ///
    /// - Where one thread faults, not on its processor: its reader and it take turns there, and that is left to them.
    /// - Where as many fault as there are processors, on each in turn. No processor is free; on a single one it would slow one of
    ///   them down.
    pub(crate) fn elsewhere(&self) -> Place {
        match self.home.load(Relaxed) {
            // Who follows may have begun before several faulted.
            home if home > 0 && !self.is_crowd() => Place::Off(home - 1),
            _ if self.is_crowd() && self.fill_all() => {
                let turn = clock() / TURN;
                Place::At(self.processors[turn as usize % self.processors.len()])
            }
            _ => Place::Anywhere,
        }
    }

    /// Ties the calling thread to `wanted`, if `place` says that it is not there.
    pub(crate) fn move_to(&self, place: &mut Place, wanted: Place) {
        if *place == wanted {
            return;
        }
        match wanted {
            Place::Anywhere => task::run_on(&self.processors),
            Place::At(at) => task::run_on(&[at]),
            Place::Off(home) => {
                let others: Vec<usize> = self.processors.iter().copied().filter(|&at| at != home).collect();
                task::run_on(&others);
            }
        }
        *place = wanted;
    }
}

/// A choice of processors for a thread of the engine.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Place {
    /// On any processor of the program.
    Anywhere,
    /// On this processor only.
    At(usize),
    /// On any processor of the program but this.
    Off(usize),
}

/// The threads whose faults a reader saw.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Scene {
    /// One thread's, and no other reader saw another's.
    Alone,
    /// One thread's, while other readers saw other threads'.
    Apart,
    /// Several threads'.
    Together,
}

/// One reader.
#[derive(Debug)]
pub(crate) struct Reader<'a> {
    readers: &'a Readers,
    number: usize,
    place: Place,
    gentle: bool,
    /// Faults that came from another thread than the one before.
    changes: u32,
    /// The time of the last look at which several threads had faulted.
    several: u64,
    /// Looks at which this reader served several threads, and another next to none.
    crowded: u32,
    /// The faults that each reader had served at the last look.
    seen: [u32; READERS_MAX],
}

impl<'a> Reader<'a> {
    /// Reader `number` of those that [`Readers::count`] asks for, on its own thread.
    pub(crate) fn new(readers: &'a Readers, number: usize) -> Self {
        Self {
            readers,
            number,
            place: Place::Anywhere,
            gentle: false,
            changes: 0,
            several: 0,
            crowded: 0,
            seen: [0; READERS_MAX],
        }
    }

    /// Waits until this reader is wanted, and goes where it should read. The first always reads.
    pub(crate) fn take_seat(&mut self) {
        let crowd = self.readers.is_crowd();
        if self.number > 0 && !crowd {
            self.readers.wait_crowd();
        }
        let each = crowd && self.readers.cover();
        let wanted = match self.readers.home.load(Relaxed) {
            _ if each => Place::At(self.readers.processors[self.number]),
            home if home > 0 && !crowd => Place::At(home - 1),
            _ => Place::Anywhere,
        };
        self.readers.move_to(&mut self.place, wanted);
        if self.gentle != each {
            task::wake_gently(each);
            self.gentle = each;
        }
    }

    /// Notes a fault of a thread, which sleeps now; `now` is the time by the clock. Says to which processor it should go when it wakes, if it
    /// should leave its own. `processor_of` tells where a thread runs.
    pub(crate) fn note(
        &mut self,
        tid: u32,
        now: u64,
        processor_of: impl Fn(u32) -> Option<usize>,
    ) -> Option<usize> {
        let (scene, other) = self.look(tid)?;
        if scene != Scene::Alone {
            self.several = now;
        }
        let crowd = scene != Scene::Alone || self.readers.is_crowd() && now < self.several + ALONE;
        self.readers.set_crowd(crowd);
        self.readers.alone.store(if crowd { 0 } else { tid }, Relaxed);
        self.readers.follow(&processor_of);
        let other = other?;
        let processors = &self.readers.processors;
        (processor_of(tid) == Some(processors[self.number])).then_some(processors[other])
    }

    /// Counts a fault, and looks round every so many: who faulted, and which reader should get one of the
    /// threads.
    fn look(&mut self, tid: u32) -> Option<(Scene, Option<usize>)> {
        let seats = &self.readers.seats;
        let own = &seats[self.number];
        self.changes += u32::from(own.last.load(Relaxed) != tid);
        own.last.store(tid, Relaxed);
        let faults = own.faults.load(Relaxed).wrapping_add(1);
        own.faults.store(faults, Relaxed);
        if faults.wrapping_sub(self.seen[self.number]) < LOOK {
            return None;
        }
        let now: [u32; READERS_MAX] = std::array::from_fn(|number| seats[number].faults.load(Relaxed));
        let before = std::mem::replace(&mut self.seen, now);
        let changes = std::mem::take(&mut self.changes);
        let served = |number: usize| now[number].wrapping_sub(before[number]);
        let others = || (0..self.readers.count()).filter(|&number| number != self.number);
        let differs = |number: usize| served(number) >= SEVERAL && seats[number].last.load(Relaxed) != tid;
        let scene = if changes >= SEVERAL {
            Scene::Together
        } else if others().any(differs) {
            Scene::Apart
        } else {
            Scene::Alone
        };
        let idlest = others().min_by_key(|&number| served(number));
        let idlest = idlest.filter(|&number| self.readers.cover() && served(number) * 2 < LOOK);
        self.crowded = if scene == Scene::Together && idlest.is_some() { self.crowded + 1 } else { 0 };
        if self.crowded < SPREAD_LOOKS {
            return Some((scene, None));
        }
        self.crowded = 0;
        Some((scene, idlest))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pagetide_sys::procfs;

    fn looks(reader: &mut Reader<'_>, tids: &[u32], looks: u32) -> Vec<(Scene, Option<usize>)> {
        (0..looks * LOOK).filter_map(|number| reader.look(tids[number as usize % tids.len()])).collect()
    }

    fn scenes(reader: &mut Reader<'_>, tids: &[u32], number: u32) -> Vec<Scene> {
        looks(reader, tids, number).into_iter().map(|(scene, _)| scene).collect()
    }

    fn sent(reader: &mut Reader<'_>, tids: &[u32], number: u32) -> Vec<usize> {
        looks(reader, tids, number).into_iter().filter_map(|(_, other)| other).collect()
    }

    #[test]
    fn one_thread_is_no_crowd_whichever_reader_serves_it() {
        let readers = Readers::new(vec![0, 1]);
        let (mut first, mut second) = (Reader::new(&readers, 0), Reader::new(&readers, 1));
        assert_eq!(scenes(&mut first, &[7], 2), [Scene::Alone; 2]);
        assert_eq!(scenes(&mut second, &[7], 2), [Scene::Alone; 2]);
        assert_eq!(scenes(&mut first, &[7], 1), [Scene::Alone]);
    }

    #[test]
    fn threads_that_each_have_their_reader_are_a_crowd_until_one_stops() {
        let readers = Readers::new(vec![0, 1]);
        let (mut first, mut second) = (Reader::new(&readers, 0), Reader::new(&readers, 1));
        scenes(&mut first, &[7], 1);
        assert_eq!(scenes(&mut second, &[8], 1), [Scene::Apart]);
        assert_eq!(scenes(&mut first, &[7], 2), [Scene::Apart, Scene::Alone]);
    }

    #[test]
    fn one_of_several_threads_at_a_reader_is_sent_to_the_reader_that_has_little_to_do() {
        let readers = Readers::new(vec![4, 6]);
        let (mut first, mut second) = (Reader::new(&readers, 0), Reader::new(&readers, 1));
        assert_eq!(sent(&mut second, &[7, 8], 2 * SPREAD_LOOKS), [0, 0]);
        assert_eq!(sent(&mut second, &[7], 2 * SPREAD_LOOKS), []);
        // Now the other has much to do.
        for _ in 0..2 * SPREAD_LOOKS {
            assert_eq!(sent(&mut second, &[7, 8], 1), []);
            scenes(&mut first, &[9], 1);
        }
    }

    #[test]
    fn home_follows_the_only_thread_that_faults_between_looks() {
        let all = task::processors();
        let readers = Readers::new(all.clone());
        let mut reader = Reader::new(&readers, 0);
        readers.follow(procfs::processor_of);
        assert_eq!(readers.elsewhere(), Place::Anywhere, "none has faulted");
        for _ in 0..LOOK {
            assert_eq!(reader.note(task::tid(), 0, procfs::processor_of), None);
        }
        for (find, &at) in
            [procfs::processor_of, procfs::processor_of_any].into_iter().zip(all.iter().cycle())
        {
            task::run_on(&[at]);
            readers.follow(find);
            let wanted = if all.len() == 1 { Place::Anywhere } else { Place::Off(at) };
            assert_eq!(readers.elsewhere(), wanted);
        }
        task::run_on(&all);
        readers.follow(|_| None);
        assert_eq!(readers.elsewhere(), Place::Anywhere, "nobody knows");
        readers.follow(procfs::processor_of);
        readers.set_crowd(true);
        let fills_all = all.len() == 1;
        assert_eq!(readers.elsewhere() == Place::Anywhere, !fills_all, "others have not faulted");
    }

    #[test]
    fn reclaim_takes_turns_where_each_processor_has_a_thread_that_faults() {
        let readers = Readers::new(vec![4, 6]);
        let (mut first, mut second) = (Reader::new(&readers, 0), Reader::new(&readers, 1));
        let nowhere = |_| None;
        for _ in 0..LOOK {
            first.note(7, 1, nowhere);
            second.note(8, 1, nowhere);
        }
        let seen = || {
            let place = readers.elsewhere();
            assert!([Place::At(4), Place::At(6)].contains(&place), "{place:?}");
            place
        };
        let one = seen();
        while seen() == one {}
        // For so long one of them may only have had no processor.
        for (now, crowd) in [(2, true), (ALONE, true), (ALONE + 1, false)] {
            (0..LOOK).for_each(|_| _ = first.note(7, now, nowhere));
            assert_eq!(readers.is_crowd(), crowd);
            assert_eq!(readers.elsewhere() == Place::Anywhere, !crowd, "nobody knows where it runs");
        }
        (0..LOOK).for_each(|nth| _ = first.note(7 + nth % 2, 2 * ALONE, nowhere));
        assert!(readers.is_crowd());
        second.note(8, 2 * ALONE, nowhere);
        first.note(8, 2 * ALONE, nowhere);
        assert_eq!(readers.elsewhere(), Place::Anywhere, "one processor has none");
    }

    #[test]
    fn readers_that_do_not_cover_the_processors_leave_threads_where_they_are() {
        let readers = Readers::new((0..=READERS_MAX).collect());
        let mut reader = Reader::new(&readers, 1);
        assert_eq!(scenes(&mut reader, &[7, 8], 1), [Scene::Together]);
        assert_eq!(sent(&mut reader, &[7, 8], 3 * SPREAD_LOOKS), []);
    }
}
