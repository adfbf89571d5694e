//! The thread that runs control tasks, follows the run and looks at memory.

use super::reclaim::SpinPolicy;
use super::start::{RESERVED_CLUSTERS, RESERVED_UNITS};
use super::{Runtime, clock, lock};
use crate::dump::board::{Activity, Kind};
use crate::engine::Swapoff;
use crate::group::{Field, OffState};
use crate::injection::Fault;
use pagetide_swap::{Counter, PageIndex};
use pagetide_sys::task;
use std::ops::Range;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

const TICK: Duration = Duration::from_millis(10);

/// Work that a thread of the program hands to the control thread, and waits for. Descriptors of the engine
/// are in the engine threads' table only: whatever asks the kernel about the program's memory runs on an engine thread.
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

impl Runtime {
    #[expect(clippy::too_many_lines, reason = "one round of what is looked at from time to time, in order")]
    pub(super) fn control(&'static self) {
        let mut last_faults = 0;
        let mut quiet = 0;
        let mut round = 0u64;
        let mut looked = self.times();
        let mut spin_policy = SpinPolicy::default();
        let mut refaults = self.refault_ns();
        let mut rest = (0, Instant::now());
        let seat = self.board.sit(Kind::Control, 0);
        let mut frozen = None;
        loop {
            seat.now(Activity::AwaitsBell, 0, clock());
            let seen = self.slot.get(Field::Bell);
            if lock(&self.control_tasks).is_empty() && self.asked() == 0 {
                self.slot.wait_bell(seen, if quiet > 50 { 5 * TICK } else { TICK });
            } else if self.asked() > 0 {
                self.slot.wait_bell(seen, TICK);
            }
            seat.now(Activity::RunsTasks, 0, clock());
            self.injection.strike(Fault::StallControl, Fault::PanicControl);
            for task in std::mem::take(&mut *lock(&self.control_tasks)) {
                if let Some(job) = lock(&task.job).take() {
                    job(self);
                }
                *lock(&task.done) = true;
                task.ended.notify_all();
            }
            if self.injection.happens(Fault::Rest) {
                self.slot.set_resting(!self.slot.is_resting());
            } else if !self.slot.is_resting() && self.injection.happens(Fault::RestForgotten) {
                self.slot.set_resting(true);
            }
            self.follow_rest(&mut rest);
            // While a fork is under way this thread is there for its errands alone: waiting here for the
            // thaw would leave them undone, and the fork waiting for them.
            if !self.pause.try_work(0) {
                frozen.get_or_insert_with(Instant::now);
                continue;
            }
            if let Some(since) = frozen.take() {
                pagetide_sys::log!(
                    Info,
                    "work goes on, {} ms after a fork stopped it",
                    since.elapsed().as_millis()
                );
            }
            seat.now(Activity::Looks, 0, clock());
            self.absorb();
            self.sample();
            self.set_pool_max();
            self.engine.swap().observe();
            self.engine.swap().table().reserve(RESERVED_CLUSTERS, RESERVED_UNITS);
            self.charge_shared_pool();
            self.return_surplus();
            self.follow_swapoff();
            self.write_trace();
            self.publish();
            self.pause.end_work();
            if self.asked() > 0 || self.engine.is_short() || self.is_inquired() {
                self.wakeup.if_sleeping();
            }
            let counters = self.engine.swap().counters();
            let faults = counters.get(Counter::pgmajfault) + counters.get(Counter::pgminfault);
            quiet = if faults == last_faults { quiet + 1 } else { 0 };
            last_faults = faults;
            round += 1;
            if round.is_multiple_of(10) && self.pause.try_work(0) {
                self.look_for_pins();
                if self.group.free() <= 0 {
                    self.group.sweep(self.swap_paths.first());
                }
                let now = self.times();
                let load = now.since(&looked);
                self.judge_copies(load);
                let spun = self.spun.swap(false, Relaxed);
                self.may_spin
                    .store(spin_policy.judge(spun, load.waits, now.clock) && self.is_alone(), Relaxed);
                let lost = self.refault_ns();
                self.level(lost.saturating_sub(refaults), now.clock - looked.clock);
                (looked, refaults) = (now, lost);
                self.engine.drop_idle_donor();
                self.engine.size_buffers();
                self.pause.end_work();
            }
        }
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

    /// Registers a range that is mapped anew, and takes what is in it into account.
    pub fn register(&self, range: Range<PageIndex>) -> std::io::Result<()> {
        self.run_control_task(|runtime| runtime.engine.memory().register(range))
    }

    /// Takes into account what is in a range that has just been registered.
    pub fn adopt(&self, range: Range<PageIndex>) {
        self.run_control_task(|runtime| _ = runtime.engine.adopt(range));
    }

    /// Prepares a range for being moved: brings back into the program what is on probation there, and takes
    /// the range out of our care until it is registered anew.
    pub fn release(&self, range: Range<PageIndex>) -> std::io::Result<()> {
        self.run_control_task(|runtime| {
            runtime.engine.recall(range.clone());
            runtime.engine.memory().unregister(range)
        })
    }

    /// Wakes reclaim.
    pub fn wake(&self) {
        self.wakeup.now();
    }
}
