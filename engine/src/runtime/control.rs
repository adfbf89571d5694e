//! The control thread: it runs control tasks, follows the run and looks at memory.

use super::sample::{ProcessorUse, Times};
use super::start::{RESERVED_CLUSTERS, RESERVED_UNITS};
use super::{Runtime, clock, lock};
use crate::dump::board::{Activity, Kind, Seat};
use crate::engine::Swapoff;
use crate::group::{Field, OffState, RestOrder};
use crate::injection::Fault;
use pagetide_swap::{Counter, PageIndex};
use pagetide_sys::task;
use std::ops::Range;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Time from one round of the control thread to the next, while there are faults.
const TICK: Duration = Duration::from_millis(10);
/// Rounds in a row without a fault after which a round comes every five ticks.
const QUIET_ROUNDS: u32 = 50;
/// Rounds from one look at what changes slowly to the next.
const LOOK_ROUNDS: u64 = 10;

/// A task that a thread of the program hands to the control thread, and waits for. Descriptors of the engine
/// are in the engine threads' table only, so all questions to the kernel about the program's memory are asked there.
pub(super) struct ControlTask {
    pub(super) job: Mutex<Option<Job>>,
    pub(super) done: Mutex<bool>,
    pub(super) ended: Condvar,
}

type Job = Box<dyn FnOnce(&'static Runtime) + Send>;

impl std::fmt::Debug for ControlTask {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ControlTask")
    }
}

fn off_text(state: OffState) -> &'static str {
    match state {
        OffState::Used => "the swap file is used",
        OffState::Leaving => "pages come back from the swap file",
        OffState::Off => "nothing is in the swap file any more",
        OffState::NoRoom => "there is no room for what is in the swap file, which stays in use",
    }
}

/// The control thread: its runtime, and what it remembers from one round to the next.
struct Control {
    runtime: &'static Runtime,
    seat: Seat,
    round: u64,
    /// Faults answered until the last round, and the rounds in a row that saw no new one.
    faults: u64,
    quiet_rounds: u32,
    rest: RestOrder,
    /// The time at which a fork was first seen to stop the work.
    stopped: Option<Instant>,
    /// Times, and the nanoseconds that refaults have cost the program, at the last look.
    looked: Times,
    refault_ns: u64,
    processors: ProcessorUse,
}

impl Control {
    fn new(runtime: &'static Runtime) -> Self {
        Self {
            runtime,
            seat: runtime.board.sit(Kind::Control, 0),
            round: 0,
            faults: 0,
            quiet_rounds: 0,
            rest: RestOrder::new(runtime.slot),
            stopped: None,
            looked: runtime.times(),
            refault_ns: runtime.refault_ns(),
            processors: ProcessorUse::default(),
        }
    }

    fn run(mut self) {
        let runtime = self.runtime;
        loop {
            self.await_bell();
            self.seat.now(Activity::RunsTasks, 0, clock());
            runtime.injection.strike(Fault::StallControl, Fault::PanicControl);
            runtime.run_tasks();
            runtime.inject_rest();
            runtime.follow_rest(&mut self.rest);
            if !self.begin_work() {
                continue;
            }
            self.seat.now(Activity::Looks, 0, clock());
            runtime.follow_run();
            runtime.pause.end_work();
            if runtime.asked() > 0 || runtime.engine.is_short() || runtime.is_inquired() || runtime.unshares()
            {
                runtime.wakeup.if_sleeping();
            }
            self.note_faults();
            self.round += 1;
            if self.round.is_multiple_of(LOOK_ROUNDS) && runtime.pause.try_work(0) {
                self.look();
                runtime.pause.end_work();
            }
        }
    }

    /// Waits until the bell rings or it is time for the next round.
    fn await_bell(&self) {
        let runtime = self.runtime;
        self.seat.now(Activity::AwaitsBell, 0, clock());
        let seen = runtime.slot.get(Field::Bell);
        if lock(&runtime.control_tasks).is_empty() && runtime.asked() == 0 {
            runtime.slot.wait_bell(seen, if self.quiet_rounds > QUIET_ROUNDS { 5 * TICK } else { TICK });
        } else if runtime.asked() > 0 {
            runtime.slot.wait_bell(seen, TICK);
        }
    }

    /// Returns whether the round may work. While a fork is under way this thread is there for its errands alone:
    /// waiting here for the thaw would leave them undone, and the fork waiting for them.
    fn begin_work(&mut self) -> bool {
        if !self.runtime.pause.try_work(0) {
            self.stopped.get_or_insert_with(Instant::now);
            return false;
        }
        if let Some(since) = self.stopped.take() {
            pagetide_sys::log!(
                Info,
                "work goes on, {} ms after a fork stopped it",
                since.elapsed().as_millis()
            );
        }
        true
    }

    /// Counts the rounds in a row without a fault: after some of them a round comes more seldom.
    fn note_faults(&mut self) {
        let counters = self.runtime.engine.swap().counters();
        let faults = counters.get(Counter::pgmajfault) + counters.get(Counter::pgminfault);
        self.quiet_rounds = if faults == self.faults { self.quiet_rounds + 1 } else { 0 };
        self.faults = faults;
    }

    /// Looks at what takes longer to tell, or changes more slowly: pins, the dead, loads, what refaults cost.
    fn look(&mut self) {
        let runtime = self.runtime;
        runtime.look_for_pins();
        runtime.engine.prefer_cheapest_tier();
        if runtime.group.free() <= 0 {
            runtime.sweep_dead();
        }
        let now = runtime.times();
        let load = now.since(&self.looked);
        runtime.judge_copies(load);
        lock(&runtime.balance).note_load(self.processors.load(&self.looked, &now, runtime));
        let refault_ns = runtime.refault_ns();
        runtime.level(refault_ns.saturating_sub(self.refault_ns), now.clock - self.looked.clock);
        (self.looked, self.refault_ns) = (now, refault_ns);
        runtime.judge_shared_pool();
        runtime.engine.drop_idle_frames();
        runtime.engine.size_buffers();
        runtime.engine.forget_ended_calls();
    }
}

impl Runtime {
    /// Serves as the control thread.
    pub(super) fn control(&'static self) {
        Control::new(self).run();
    }

    /// Runs the tasks that threads of the program wait for.
    fn run_tasks(&'static self) {
        for task in std::mem::take(&mut *lock(&self.control_tasks)) {
            if let Some(job) = lock(&task.job).take() {
                job(self);
            }
            *lock(&task.done) = true;
            task.ended.notify_all();
        }
    }

    /// Has the process rest, or go on, as the injected fault wants it.
    fn inject_rest(&self) {
        if self.injection.happens(Fault::Rest) {
            self.slot.set_resting(!self.slot.is_resting());
        } else if !self.slot.is_resting() && self.injection.happens(Fault::RestForgotten) {
            self.slot.set_resting(true);
        }
    }

    /// Follows what the run and the program do, and shows the run what this process does.
    fn follow_run(&self) {
        self.absorb();
        self.ask_for_pot();
        self.sample();
        self.engine.swap().observe();
        self.engine.swap().table().reserve(RESERVED_CLUSTERS, RESERVED_UNITS);
        // Before the pool's limit: what nobody shares any more counts against that.
        self.charge_shared();
        self.set_pool_max();
        self.return_surplus();
        self.follow_swapoff();
        self.write_trace();
        self.publish();
    }

    /// Writes down what has happened, if that is wanted.
    fn write_trace(&self) {
        let mut trace = lock(&self.trace);
        if let (Some(writer), Some(recorder)) = (&mut *trace, self.engine.recorder())
            && let Err(error) = recorder.flush(writer)
        {
            task::say(&format!("cannot write the trace any more: {error} (--trace)"));
            *trace = None;
        }
    }

    /// Gives the swap file up, or uses it, as the run is told.
    fn follow_swapoff(&self) {
        self.group.follow_swapoff(self.slot, |off, state| match (off, state) {
            (false, _) => {
                self.engine.swapon();
                pagetide_sys::log!(Info, "swapon: the swap file is used");
                OffState::Used
            }
            (true, OffState::Used | OffState::Leaving) => {
                let next = match self.engine.swapoff() {
                    Swapoff::Goes => OffState::Leaving,
                    Swapoff::Done => OffState::Off,
                    Swapoff::NoRoom => OffState::NoRoom,
                };
                if next != state {
                    pagetide_sys::log!(Info, "swapoff: {}", off_text(next));
                }
                next
            }
            (true, state) => state,
        });
    }

    /// Runs `job` on the control thread and waits for its result. Called by threads of the program.
    pub fn run_control_task<T: Send + 'static>(
        &self,
        job: impl FnOnce(&'static Self) -> T + Send + 'static,
    ) -> T {
        let result = Arc::new(Mutex::new(None));
        let to = Arc::clone(&result);
        let job: Job = Box::new(move |runtime| *lock(&to) = Some(job(runtime)));
        let task = Arc::new(ControlTask {
            job: Mutex::new(Some(job)),
            done: Mutex::new(false),
            ended: Condvar::new(),
        });
        lock(&self.control_tasks).push(Arc::clone(&task));
        self.slot.ring();
        let mut done = lock(&task.done);
        while !*done {
            done = task.ended.wait(done).unwrap_or_else(PoisonError::into_inner);
        }
        lock(&result).take().expect("the job has run")
    }

    /// Registers a range that is mapped anew with the userfaultfd.
    ///
    /// # Errors
    /// EINVAL if something else than private anonymous memory, or nothing, is mapped in a part of the range; EBUSY if
    /// another userfaultfd has it.
    pub fn register(&self, range: Range<PageIndex>) -> std::io::Result<()> {
        self.run_control_task(|runtime| runtime.engine.memory().register(range))
    }

    /// Takes the pages into account that are in a range which has just been registered.
    pub fn adopt(&self, range: Range<PageIndex>) {
        self.run_control_task(|runtime| _ = runtime.engine.adopt(range));
    }

    /// Prepares a range for being moved: brings pages that are on probation back into the program, and takes
    /// the range out of our care until it is registered anew.
    ///
    /// # Errors
    /// EINVAL if something is mapped in the range that could not be registered, or a part of it was unmapped by a call
    /// that we did not see.
    pub fn release(&self, range: Range<PageIndex>) -> std::io::Result<()> {
        self.run_control_task(|runtime| {
            runtime.engine.recall(range.clone());
            runtime.engine.memory().unregister(range)
        })
    }

    /// Wakes the reclaim thread.
    pub fn wake(&self) {
        self.wakeup.now();
    }
}
