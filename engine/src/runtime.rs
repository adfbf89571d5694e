//! The engine's threads.
//!
//! | thread | waits for | does |
//! |---|---|---|
//! | control | requests of the program's threads, other processes, 10 ms | registers ranges, samples memory, publishes |
//! | fault (one a processor, at most four) | userfaultfd | answers faults |
//! | reclaim | the budget running low | takes pages out, stores them, answers faults that waited for room |
//! | io | the device | ends requests |
//!
//! They are engine threads in the program: all signals blocked, a descriptor table of their own, and no memory
//! from the program's `malloc`.

mod control;
mod faults;
mod grant;
mod lending;
mod reclaim;
mod sample;
mod sharing;
mod start;
mod starving;
mod wakeup;

pub(crate) use lending::{can_lend, is_ample};
pub use start::{MemorySource, OpenKernel, StartArgs, StartError, StartMode, Started};
pub(crate) use starving::Turns;

use crate::clock::clock;
use crate::dump::board::Board;
use crate::engine::Engine;
use crate::engine_memory::EngineMemory;
use crate::group::{Field, Group, ProcessSlot};
use crate::injection::Injection;
use crate::pause::Pause;
use crate::readers::Readers;
use crate::recorder::Writer;
use control::ControlTask;
use pagetide_swap::balance::{Balance, Copies};
use pagetide_swap::frontier::TIERS;
use pagetide_sys::procfs;
use sample::Discount;
use sharing::Sharing;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, AtomicU64, Ordering::Relaxed, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use wakeup::Wakeup;

type RunningEngine = Engine<EngineMemory>;

/// A running engine: the engine of a process, with its threads.
#[derive(Debug)]
pub struct Runtime {
    engine: RunningEngine,
    /// Stops the threads for a fork.
    pub pause: Pause,
    group: Group,
    slot: ProcessSlot,
    /// The board on which it shows what it does.
    board: Board,
    wakeup: Wakeup,
    readers: Readers,
    /// Faults read so far.
    faults: AtomicU64,
    control_tasks: Mutex<Vec<Arc<ControlTask>>>,
    unmanaged: AtomicI64,
    watched: Mutex<procfs::Watched>,
    /// The pages that were charged for tables and hashes at the last look.
    metadata: AtomicI64,
    sharing: Mutex<Sharing>,
    discount: Mutex<Discount>,
    /// Whether other processes may share memory of this one since a fork, with an engine or before.
    has_family: Arc<AtomicBool>,
    balance: Mutex<Balance>,
    copies: Mutex<Copies>,
    /// Nanoseconds that reclaim has worked.
    worked: AtomicU64,
    /// The thread that reclaims.
    reclaimer: AtomicU32,
    /// Nanoseconds that it has waited for a processor while it only stayed awake.
    waited_awake: AtomicU64,
    /// The faults that are injected, for tests.
    injection: Injection,
    /// The time at which reclaim looks next at descriptors that pin, by the clock.
    pins_due: AtomicU64,
    /// The time of the next count of zero pages.
    zero_due: AtomicU64,
    /// The time at which relief is looked for again, by the clock.
    relief_after: AtomicU64,
    /// The time before which nothing is borrowed, by the clock.
    borrow_after: AtomicU64,
    /// Pages that were granted when the program last lost time, or more since.
    busy_grant: AtomicI64,
    /// Whether the cap is lifted: then nothing is given back.
    lifted: AtomicBool,
    /// Whether all that is in memory is asked to leave: then the pool may take what it can, whatever is worth it.
    in_need: AtomicBool,
    /// Of each tier of the device, paths at which children find it when they do not find the launcher: in the `/proc`
    /// that this process saw when it started, and in one of its own pid namespace.
    tier_paths: [Vec<PathBuf>; TIERS],
    /// The writer of the run's trace, if there is one.
    trace: Mutex<Option<Writer>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Runtime {
    /// Returns the engine.
    pub fn engine(&self) -> &RunningEngine {
        &self.engine
    }

    /// Returns this process's slot.
    pub fn slot(&self) -> ProcessSlot {
        self.slot
    }

    /// Returns whether pages can come in although no others leave.
    pub fn has_room(&self) -> bool {
        self.engine.budget().free() > self.engine.limits().low
    }

    /// Releases the slots of processes that have died, if nobody else does.
    fn sweep_dead(&self) {
        // A swap file is the first tier.
        self.group.sweep(self.tier_paths[0].first());
    }

    /// Lifts the cap for this process from now on, since it is about to end.
    pub fn lift_cap(&self) {
        if !self.lifted.swap(true, SeqCst) {
            self.engine.budget().give(i64::MAX / 4);
        }
    }

    /// Runs `work`, which needs `pages` more than the process has, free or not: others give theirs afterwards.
    pub fn overdrawing<T>(&self, pages: i64, work: impl FnOnce() -> T) -> T {
        let lifted = self.lifted.swap(true, SeqCst);
        self.group.take_anyway(pages);
        self.slot.word(Field::Grant).fetch_add(pages as u64, SeqCst);
        self.engine.budget().give(pages);
        let result = work();
        self.lifted.store(lifted, SeqCst);
        // What has changed hands counts with somebody else from now on.
        self.publish();
        result
    }

    /// Returns the number of pages that are not managed, as last sampled.
    pub fn unmanaged(&self) -> i64 {
        self.unmanaged.load(Relaxed)
    }

    /// Returns the group page.
    pub fn group(&self) -> Group {
        self.group
    }
}
