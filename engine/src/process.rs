//! A process of a run, from its first mapping to its last.
//!
//! At first nothing happens but book-keeping: memory is charged to the process's grant as it is handed
//! out. When the group has no more to grant, or others ask for what the process holds, the engine starts,
//! registers the mappings, and from then on charges the pages that are really there.
//!
//! The calls below come from the program's own threads. A thread that is about to take a lock of the engine blocks
//! signals and keeps its stack where it is ([`Process::enter`]): a fault with the lock held would wait for itself.

mod arm;
mod calls;
mod charge;
mod fork;
mod locks;
mod rest;
mod served;
mod stack;

pub use calls::{Entered, Remapping};

use crate::group::{Field, Group, ProcessSlot};
use crate::pause::Pause;
use crate::regions::Regions;
use crate::runtime::{MemorySource, Runtime, Started};
use calls::words;
use pagetide_swap::{PageIndex, Word};
use pagetide_sys::procfs::Identity;
use pagetide_sys::signals::SignalsBlocked;
use pagetide_sys::task;
use stack::StackInPlace;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicUsize, Ordering::Relaxed, Ordering::SeqCst, fence};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};

/// Forks of forks, each without an exec in between, that one chain of processes may have.
const GENERATIONS: usize = 256;

/// A process of a run.
///
/// A forked child may find any lock held by a thread that it does not have. So everything that changes
/// lives in a *generation*, and a child begins a new one.
#[derive(Debug)]
pub struct Process {
    group: Group,
    source: MemorySource,
    generations: Box<[OnceLock<Box<Generation>>]>,
    current: AtomicUsize,
    /// Whether something was opened through which pages may be pinned, with an engine or before.
    pins: Arc<AtomicBool>,
    /// Whether other processes may share memory of this one since a fork.
    has_family: Arc<AtomicBool>,
}

#[derive(Debug)]
struct Generation {
    /// The process: a child of `vfork`, which works in its memory, is another.
    pid: u32,
    slot: ProcessSlot,
    /// Set once the engine runs.
    runtime: OnceLock<&'static Runtime>,
    /// The managed ranges, until the engine runs and has them.
    early: Mutex<Regions>,
    /// Held while what is mapped where changes: a range that is given up is not another mapping's before the
    /// table has forgotten what was there, and nobody of ours touches one that is being moved.
    layout: Arc<Mutex<()>>,
    /// Mapping calls, until the engine runs and counts them: it does not start while one is under way.
    phase: Pause,
    /// Granted and not yet handed out; may be negative for a moment.
    unspent: AtomicI64,
    /// Held while a sentry is posted.
    posting: Mutex<()>,
    /// Whether somebody has begun to start the engine.
    starting: AtomicBool,
    /// Whether the engine's threads are there, and mapping calls stopped.
    assembling: AtomicBool,
    /// Whether it has come to an end.
    start_ended: Mutex<bool>,
    started: Condvar,
    /// Whether a sentry was posted, or could not be.
    watched: AtomicBool,
    /// Whether starting the engine failed: not tried again.
    failed: AtomicBool,
    /// One more than the number of the slot that a fork under way has taken for the child.
    forking: AtomicUsize,
    /// Whether the child of a fork under way is to borrow what its parent has.
    lends: AtomicBool,
    /// Whether what is mapped stays in memory.
    holds_new: AtomicBool,
    /// The forking thread's, until the fork is over.
    forker: Mutex<Option<StackInPlace>>,
}

impl Generation {
    fn new(slot: ProcessSlot, regions: Regions, unspent: i64) -> Self {
        Self {
            pid: std::process::id(),
            slot,
            runtime: OnceLock::new(),
            early: Mutex::new(regions),
            layout: Arc::default(),
            phase: Pause::default(),
            unspent: AtomicI64::new(unspent),
            posting: Mutex::new(()),
            starting: AtomicBool::new(false),
            assembling: AtomicBool::new(false),
            start_ended: Mutex::new(false),
            started: Condvar::new(),
            watched: AtomicBool::new(false),
            failed: AtomicBool::new(false),
            forking: AtomicUsize::new(0),
            lends: AtomicBool::new(false),
            holds_new: AtomicBool::new(false),
            forker: Mutex::new(None),
        }
    }

    /// Returns whether the engine runs, or never will.
    fn has_started(&self) -> bool {
        self.runtime.get().is_some() || self.failed.load(Relaxed)
    }

    fn note_start(&self, started: Started) {
        match started {
            Ok(runtime) => {
                let _ = self.runtime.set(runtime);
                self.slot.set(Field::Spared, 0);
                // A sentry has nothing more to do.
                self.slot.ring();
            }
            Err(error) => {
                self.failed.store(true, Relaxed);
                self.slot.set(Field::Listens, 0);
                task::say(&format!("{error}: the program goes on without swap"));
            }
        }
        *lock(&self.start_ended) = true;
        self.started.notify_all();
    }

    /// Waits until the engine runs, or never will. Its threads need nothing that a thread of the program may hold.
    fn wait_started(&self) {
        let ended = lock(&self.start_ended);
        drop(self.started.wait_while(ended, |ended| !*ended).unwrap_or_else(PoisonError::into_inner));
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Process {
    /// Joins a run: takes a slot, and a grant for what the process has already.
    ///
    /// Returns `None` if the run has as many processes as it may have.
    pub fn join(group: Group, source: MemorySource) -> Option<Self> {
        Runtime::prepare();
        let (own, stack) = Identity::own_with_stack();
        Self::leave_as(group, own);
        let slot = group.claim_after_the_dead(own)?;
        let observed = pagetide_sys::procfs::young_memory().map_or(256, |memory| memory.charged()) as i64;
        group.take_anyway(observed);
        slot.set(Field::Grant, observed as u64);
        slot.set(Field::Observed, observed as u64);
        slot.set_stack(stack);
        let this = Self {
            group,
            source,
            generations: (0..GENERATIONS).map(|_| OnceLock::new()).collect(),
            current: AtomicUsize::new(0),
            pins: Arc::default(),
            has_family: Arc::default(),
        };
        let _ = this.generations[0].set(Box::new(Generation::new(slot, Regions::default(), 0)));
        Some(this)
    }

    /// Gives back the slot of a program that this one has replaced by exec.
    pub fn leave(group: Group) {
        Self::leave_as(group, Identity::own());
    }

    fn leave_as(group: Group, own: Identity) {
        // Not by the start time: with an exec a process may enter another time namespace.
        let is_own = |process: Identity| (process.pid, process.namespace) == (own.pid, own.namespace);
        group.release(group.live().filter(|slot| is_own(slot.process())));
    }

    fn generation(&self) -> &Generation {
        self.generations[self.current.load(Relaxed)].get().expect("set before it becomes current")
    }

    /// Returns whether the caller is this process, and not a child of `vfork`, which works in its memory.
    pub fn is_current(&self) -> bool {
        std::process::id() == self.generation().pid
    }

    /// Returns the run that it belongs to.
    pub fn group(&self) -> Group {
        self.group
    }

    /// Returns this process's slot.
    pub fn slot(&self) -> ProcessSlot {
        self.generation().slot
    }

    /// Returns the slot that a fork under way has taken for the child.
    pub fn forking_slot(&self) -> Option<ProcessSlot> {
        self.generation().forking.load(Relaxed).checked_sub(1).map(|index| self.group.slot(index))
    }

    /// Returns the running engine; `None` before it runs.
    pub fn runtime(&self) -> Option<&'static Runtime> {
        self.generation().runtime.get().copied()
    }

    /// Notes that the program is about to open a descriptor through which its pages may be pinned. From the return on
    /// no page leaves in a way that takes pinned ones along.
    pub fn note_pins(&self) {
        self.pins.store(true, SeqCst);
        // For the keeper of its shared memory, which looks there.
        self.generation().slot.set(Field::Pins, 1);
        // Either the engine that starts meanwhile sees this before it takes anything out, or it is seen here.
        fence(SeqCst);
        if let Some(runtime) = self.runtime() {
            runtime.engine().await_taken();
        }
    }

    /// Returns whether it was noted that pages of the program may be pinned.
    pub fn may_pin(&self) -> bool {
        self.pins.load(Relaxed)
    }

    /// Runs `call`, for which the kernel pins pages of a process of the run: none leaves meanwhile in a way that takes pinned ones
    /// along.
    pub fn crossing<T>(&self, call: impl FnOnce() -> T) -> T {
        let slot = self.generation().slot;
        // A handler that forked, or jumped out, would leave a count behind.
        let _signals = SignalsBlocked::new();
        let _stack = self.runtime().map(StackInPlace::new);
        self.group.begin_crossing(slot);
        let result = call();
        self.group.end_crossing(slot);
        result
    }

    /// Returns whether the table has a page of `range` that is no hole. Takes no lock.
    pub fn knows(&self, range: Range<PageIndex>) -> bool {
        self.runtime().is_some_and(|runtime| words(runtime, range).any(|(_, word)| word != Word::HOLE))
    }

    /// Prepares the calling thread for taking locks of the engine, until the result is dropped.
    pub fn enter(&self) -> Entered<'_> {
        let signals = SignalsBlocked::new();
        let generation = self.generation();
        let runtime = generation.runtime.get().copied().or_else(|| {
            generation.phase.begin_call();
            let runtime = generation.runtime.get().copied();
            if runtime.is_some() {
                generation.phase.end_call();
            }
            runtime
        });
        // Before the pause, which has a lock, too.
        let stack = runtime.map(StackInPlace::new);
        if let Some(runtime) = runtime {
            runtime.pause.begin_call();
        }
        Entered { generation, runtime, _stack: stack, _signals: signals }
    }
}

const _: () = assert!(pagetide_page::PAGE_SIZE == pagetide_swap::PAGE_SIZE);
