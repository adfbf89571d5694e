//! Forks: the parent hands its pages on, and the child begins anew.

use super::stack::StackInPlace;
use super::{GENERATIONS, Generation, Process, lock};
use crate::engine::{Progress, Usage, Workspace};
use crate::group::{Field, ProcessSlot};
use crate::runtime::{Runtime, StartMode, Turns, can_lend, is_ample};
use pagetide_swap::Counter;
use pagetide_sys::procfs::Identity;
use pagetide_sys::signals::SignalsBlocked;
use pagetide_sys::{engine_thread, task};
use std::sync::PoisonError;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

/// Pages that processes without an engine leave to others: 16 MiB.
pub(super) const ASLEEP_RESERVE: i64 = 4096;

/// Steps in vain after which a fork goes on without the room that it lacks.
const STUCK_MAX: usize = 64;
/// The steps in vain that a round through all clusters counts for: a cluster of hot pages leaves in its second round.
const STUCK_ROUND: usize = 16;

impl Process {
    /// Answers the faults that rest or wait for room, room or not, before a fork that their threads keep waiting.
    pub fn answer_waiting(&self) {
        let Some(runtime) = self.runtime() else { return };
        runtime.run_control_task(|runtime| {
            let engine = runtime.engine();
            engine.hold_waiting(true);
            engine.end_rest();
            engine.answer_waiting(&mut Workspace::default());
            engine.hold_waiting(false);
        });
        runtime.wake();
    }

    /// Prepares for a fork, in the parent: makes room for a second process, takes a slot for it, and stops the engine.
    /// Faults of the forking thread from here to the fork are served all the same. Signals are to be blocked from here to the
    /// end of the fork, in the parent and in the child.
    pub fn before_fork(&'static self) {
        let own = self.generation().slot;
        let slot = self.group.claim_for_child(own);
        let [handed_out, added] = [Field::Grant, Field::Added].map(|field| own.get(field));
        let grant = handed_out.wrapping_add(added) as i64;
        if self.runtime().is_none()
            && let Some(slot) = slot
        {
            // The child may come to write all that the parent has. A small one is let pass: it execs, or
            // its own engine starts as soon as it grows.
            let small = grant <= 8 * self.group.step();
            if !small && !is_ample(self.group.free(), grant) && can_lend(&self.group) {
                // What an engine manages all children borrow together.
                self.arm();
            }
            if self.runtime().is_none() {
                self.grant_child(slot, [handed_out, added], small);
            }
        }
        let generation = self.generation();
        let stack = self.runtime().map(StackInPlace::new);
        generation.phase.freeze(task::tid());
        *lock(&generation.forker) = stack;
        if let Some(runtime) = self.runtime() {
            runtime.pause.freeze(task::tid());
            let engine = runtime.engine();
            engine.hold_waiting(true);
            let lends = runtime.run_control_task(move |runtime| {
                pagetide_sys::log!(Info, "work stops for a fork");
                slot.is_some_and(|slot| make_room(runtime, slot, &mut Workspace::default()))
            });
            generation.lends.store(lends, Relaxed);
            // Nothing is taken out from here to the fork.
            runtime.pause.serving(|| {
                // Of threads that have locks which the fork itself needs.
                runtime.run_control_task(|runtime| {
                    runtime.engine().end_rest();
                    runtime.engine().answer_waiting(&mut Workspace::default());
                });
            });
            engine.swap().counters().add(Counter::forks, 1);
        }
        // Now that no look is under way which would find nothing shared. The child has it, too.
        self.has_family.store(true, Relaxed);
        generation.forking.store(slot.map_or(0, |slot| slot.index() + 1), Relaxed);
    }

    /// Grants a child what its parent, which has no engine, was handed out and what was added to that. Starts the engine if there is
    /// not so much, unless it is `small`.
    fn grant_child(&'static self, child: ProcessSlot, [handed_out, added]: [u64; 2], small: bool) {
        let (own, grant) = (self.generation().slot, handed_out.wrapping_add(added) as i64);
        if small {
            self.group.take_anyway(grant);
        }
        if small || self.group.take_for(own, grant, 0) {
            child.set(Field::Grant, handed_out);
            child.set(Field::Added, added);
            child.set(Field::Spared, own.get(Field::Spared));
        } else {
            self.arm();
        }
    }

    /// Waits until all work has ended, as the last step of ours before a fork. Pages that the C library touches after
    /// it (its configuration of names, for one) are brought in all the same, by a thread that has done with all its
    /// work when the forking thread goes on.
    pub fn quiesce_before_fork(&self) {
        let generation = self.generation();
        let Some(runtime) = self.runtime() else { return };
        runtime.run_control_task(|runtime| {
            let mut work = Workspace::default();
            while !runtime.engine().drain(&mut work) {
                std::thread::yield_now();
            }
        });
        runtime.answer_last(true);
        // Whoever answered our last fault may still be about to say so in the table.
        runtime.pause.quiesce();
        if let Some(index) = generation.forking.load(Relaxed).checked_sub(1) {
            let slot = self.group.slot(index);
            if generation.lends.load(Relaxed) {
                runtime.run_control_task(move |runtime| runtime.lend(slot));
            }
            runtime.share_pool(slot);
            runtime.engine().swap().blocks().share_with(&self.group.held(slot));
        }
    }

    /// Ends a fork in the parent. Returns the number of the child's slot.
    pub fn after_fork_in_parent(&self) -> Option<usize> {
        let generation = self.generation();
        let child = generation.forking.swap(0, Relaxed).checked_sub(1);
        if let Some(runtime) = self.runtime() {
            runtime.answer_last(false);
            runtime.engine().hold_waiting(false);
            runtime.pause.thaw();
            runtime.wake();
        }
        let forker = lock(&generation.forker).take();
        generation.phase.thaw();
        drop(forker);
        child
    }

    /// Frees the slot, and the memory and blocks, that were set aside for a child, since the fork failed.
    pub fn fork_failed(&self, child: usize) {
        let _signals = SignalsBlocked::new();
        // One that has a name was given up by the launcher meanwhile, and is another's.
        self.group.release(Some(self.group.slot(child)).filter(|slot| slot.get(Field::Pid) == 0));
        if let Some(runtime) = self.runtime() {
            runtime.wake();
        }
    }

    /// Ends a fork in the child: takes its slot, and starts an engine of its own if the parent had one.
    pub fn after_fork_in_child(&'static self) {
        engine_thread::forget_all();
        pagetide_sys::buffer::forget_all();
        let parent = self.generation();
        let engine = parent.runtime.get().copied();
        let next = self.current.load(Relaxed) + 1;
        let slot = parent.forking.load(Relaxed).checked_sub(1).map(|index| self.group.slot(index));
        let (Some(slot), true) = (slot, next < GENERATIONS) else {
            // Without a slot nobody counts this process. One that has nothing out may go on.
            parent.phase.thaw();
            if engine.is_some() {
                task::say("too many processes in this run: a forked child cannot go on");
                task::kill_self();
            }
            return;
        };
        slot.set_stack(parent.slot.stack());
        slot.set(Field::Pins, self.pins.load(Relaxed).into());
        slot.name(Identity::own());
        // Nobody held these locks: the fork froze whoever takes them.
        let regions = match engine {
            Some(engine) => {
                let mut regions = engine.engine().regions.write().unwrap_or_else(PoisonError::into_inner);
                std::mem::take(&mut *regions)
            }
            None => lock(&parent.early).inherited(),
        };
        // What a thread of the parent was about to charge is not here.
        let unspent = parent.unspent.load(Relaxed).max(0);
        let _ = self.generations[next].set(Box::new(Generation::new(slot, regions, unspent)));
        self.current.store(next, Relaxed);
        if let Some(engine) = engine {
            self.arm_with(StartMode::Forked(engine));
            if self.runtime().is_none() {
                // Pages that are out of the program could not come back.
                task::kill_self();
            }
        } else {
            self.post_sentry_if_large();
        }
    }
}

/// Evicts until what is in the program fits twice: less what other children borrow already, if this one is to borrow as well.
/// Returns whether it is.
fn make_room(runtime: &Runtime, child: ProcessSlot, work: &mut Workspace) -> bool {
    let (engine, group) = (runtime.engine(), runtime.group());
    let (mut stuck, mut in_vain, mut from_pool) = (0, Turns::default(), false);
    let all = |usage: Usage| usage.resident + usage.metadata + runtime.unmanaged() + engine.limits().low;
    let lends = runtime.prepare_to_lend(all(engine.usage()));
    loop {
        let usage = engine.usage();
        // Of what leaves meanwhile a part is lent: that is counted when all is lent.
        let needed = all(usage) - if lends { engine.lent().min(usage.resident) } else { 0 };
        let missing = || needed - group.free() - engine.budget().free().max(0);
        if missing() > 0 {
            group.collect_from_ended(runtime.slot());
        }
        let missing = missing();
        if missing <= 0 || stuck > STUCK_MAX {
            // Taken from our own first: what we freed above is in our budget.
            let own = engine.budget().free().clamp(0, needed);
            engine.budget().take(own);
            runtime.slot().word(Field::Grant).fetch_sub(own as u64, Relaxed);
            group.take_anyway(needed - own);
            // Our engine may have started since the child was granted what it would have needed without.
            let added = child.word(Field::Added).swap(0, Relaxed);
            let grant = child.word(Field::Grant).swap(needed as u64, Relaxed);
            group.give(grant.wrapping_add(added) as i64);
            // Before it runs anything else it starts its engine: what it shares with us is not to be charged
            // again meanwhile.
            child.set(Field::Armed, 1);
            return lends;
        }
        group.ask(runtime.slot(), missing);
        // Locked pages come round again and again; what the pool has may leave all the same, if that is enough.
        let progress = if from_pool { engine.reclaim_pool(work) } else { engine.reclaim(work) };
        let round = in_vain.note(progress == Progress::Moved, engine);
        match progress {
            Progress::Freed(_) => stuck = 0,
            // Its completions go on while all else is frozen.
            Progress::Waits => std::thread::sleep(Duration::from_millis(1)),
            _ if from_pool && engine.writes() > 0 => std::thread::sleep(Duration::from_millis(1)),
            Progress::Moved if !round => std::thread::yield_now(),
            _ => {
                stuck += if round { STUCK_ROUND } else { 1 };
                from_pool = !from_pool && usage.pool >= missing;
                std::thread::yield_now();
            }
        }
    }
}
