//! Starving: a process that finds nothing to reclaim asks others, and where none has anything it ends, with a message.
//!
//! That end rests on a proof, not on time. A round over all of this process's memory finds nothing that could leave
//! ([`crate::census`]); every other process of the run has begun one later and has found nothing, or cannot answer; the
//! launcher has looked since at what it counts; and nobody has given anything back since before the first of these
//! began.

use super::grant::RESIDENT_FLOOR;
use super::{RunningEngine, Runtime, clock};
use crate::census::{Reason, Rounds, Step, Tally};
use crate::engine::{Round, Workspace};
use crate::group::{Ended, Field, OffState};
use pagetide_device::Told;
use pagetide_swap::Counter;
use pagetide_sys::{handout, procfs, task};
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

/// Between looks at what others answer, and before something that moves is looked at again.
const PATIENCE: Duration = Duration::from_millis(10);
/// Tries in a row of what a full disk refuses, about a hundredth of a second apart, before it is taken for full.
const RETRIES: u32 = 20;
/// Where this process can neither tell whether the launcher lives nor reach its socket (in a container of its own
/// inside the run), it counts on its answer for so long, in nanoseconds.
const LAUNCHER_MAX: u64 = 5_000_000_000;

/// The progress of a process that starves.
#[derive(Debug, Default)]
pub(super) struct Starving {
    rounds: Rounds,
    retries: Retries,
    crossed: Crossed,
}

/// Faults that were answered without room since processes copied from each other's memory: so many in a second.
#[derive(Debug, Default)]
struct Crossed {
    since: Option<Instant>,
    made: u32,
}

impl Crossed {
    const MOST: u32 = 128;

    fn may_overdraw(&mut self) -> bool {
        if self.since.is_none_or(|since| since.elapsed() > Duration::from_secs(1)) {
            *self = Self { since: Some(Instant::now()), made: 0 };
        }
        self.made += 1;
        self.made <= Self::MOST
    }
}

/// Tries of blocks that the disk had no room for, in a row in which none was written.
///
/// A disk that others fill has room in a moment, and may refuse one write of several: only as many refusals in a row as
/// [`RETRIES`] prove that it is full.
#[derive(Debug, Default)]
struct Retries {
    made: u32,
    /// The pages that had been written by the last of them.
    written: u64,
}

impl Retries {
    /// Returns whether one more try is due, where this many pages have been written so far.
    fn is_due(&mut self, written: u64) -> bool {
        if self.written != written {
            *self = Self { made: 0, written };
        }
        self.made += 1;
        self.made <= RETRIES
    }
}

impl Runtime {
    /// Nothing can leave by the ordinary way: others may have room, or requests under way will make some; or all is
    /// tried, and this is the end.
    pub(super) fn starved(&self, starving: &mut Starving, work: &mut Workspace) {
        if self.engine.waiting() == 0 {
            // Nobody waits: what was asked for cannot be had, forget it. Unless it is on its way out.
            if self.is_inquired() {
                return self.answer_inquiry(starving, work);
            }
            if self.engine.requests() == 0 {
                self.slot.set(Field::Asked, 0);
            }
            return self.wakeup.wait(Duration::from_millis(20));
        }
        let (seen, allowed) = (self.group.demand(), self.group.frontiers().allowed());
        self.group.ask(self.slot, self.engine.limits().high);
        // Forks are charged for what they may come to copy, so the sum can exceed the cap although the
        // memory does not: a process keeps a little to run in.
        // Nor is anybody to end for what others have pinned for a moment: their call may wait for this process.
        if self.keeps_little() || (self.group.is_crossing() && starving.crossed.may_overdraw()) {
            self.pause.begin_work();
            self.engine.overdraw(work);
            self.pause.end_work();
            if self.engine.waiting() > 0 {
                // For the device, or for a page that somebody moves.
                self.wakeup.wait(PATIENCE);
            }
            return;
        }
        let step = self.in_need(|| {
            self.look_again();
            let is_proof =
                self.engine.borrowed() == 0 && (!self.engine.is_refused() || starving.retries.made > RETRIES);
            self.look_round(is_proof, work)
        });
        if let Some(step) = &step {
            pagetide_sys::log!(
                Debug,
                "{} faults wait and nothing leaves; a look at every page: {step:?}",
                self.engine.waiting()
            );
        }
        match step {
            // What is borrowed may leave once it is charged, and the parent gives its pot when nobody borrows any more.
            Some(Step::Stuck(_)) if self.engine.borrowed() > 0 => {
                self.pause.begin_work();
                self.settle();
                self.pause.end_work();
            }
            // A disk that was full a moment ago is no proof: what it refused is tried again.
            Some(Step::Stuck(_)) if self.tries_disk_again(&mut starving.retries) => {}
            Some(Step::Stuck(tally)) => {
                if starving.rounds.note(Step::Stuck(tally)) {
                    self.inquire((seen, allowed), tally, work);
                    // Something has changed: there may be room.
                    starving.retries = Retries::default();
                } else {
                    self.group.ask_all(self.slot, self.engine.limits().high as u64);
                    self.group.wait_free(seen, PATIENCE);
                }
            }
            Some(step) => {
                starving.rounds.note(step);
                if step == Step::Moving {
                    // Its end wakes.
                    self.wakeup.wait(PATIENCE);
                }
            }
            None => *starving = Starving::default(),
        }
    }

    /// Has the next writes try again what the disk had no room for. Returns whether they are to.
    fn tries_disk_again(&self, retries: &mut Retries) -> bool {
        let written = self.engine.swap().counters().get(Counter::pswpout);
        if !self.engine.is_refused() || !retries.is_due(written) {
            return false;
        }
        if retries.made > 1 {
            self.wakeup.wait(PATIENCE);
        }
        self.engine.retry_refused_blocks();
        true
    }

    /// While `work` goes on the pool may take what it can.
    fn in_need<T>(&self, work: impl FnOnce() -> T) -> T {
        self.in_need.store(true, Relaxed);
        let result = work();
        self.in_need.store(false, Relaxed);
        result
    }

    /// Returns whether this is one of several processes, with so little in memory that it may have it whatever it is
    /// charged.
    fn keeps_little(&self) -> bool {
        let usage = self.engine.usage();
        self.group.live().nth(1).is_some() && usage.resident - usage.borrowed + usage.frames < RESIDENT_FLOOR
    }

    /// Counts anew what is not managed, and publishes it.
    pub(crate) fn count_unmanaged(&self) {
        *super::lock(&self.watched) = procfs::Watched::default();
        self.sample();
        self.publish_unmanaged();
    }

    fn publish_unmanaged(&self) {
        self.slot.set(Field::Unmanaged, self.unmanaged.load(Relaxed).max(0) as u64);
    }

    /// Looks anew at what only a sample tells: memory that is not managed may have gone. What a sample estimates is counted.
    fn look_again(&self) {
        self.pause.begin_work();
        self.sample_exactly();
        self.publish_unmanaged();
        super::lock(&self.sharing).pot_due = 0;
        self.charge_shared();
        self.set_pool_max();
        self.pause.end_work();
    }

    /// Does one step of a census. What has let go of shared pool pages meanwhile has made way, too.
    fn census_step(&self, round: &mut Round, work: &mut Workspace) -> Step {
        match self.engine.census_step(round, work) {
            Step::Stuck(_) if self.charge_shared() => Step::Left,
            step => step,
        }
    }

    /// Tries to get each page out that is in memory. `None` if there is room meanwhile, or nobody waits for some any
    /// more. With `answers` others are told that nothing can leave, if that is so.
    fn look_round(&self, answers: bool, work: &mut Workspace) -> Option<Step> {
        let inquiry = self.group.inquiry();
        let mut round = Round::default();
        let step = loop {
            self.pause.begin_work();
            let started = clock();
            let step = self.census_step(&mut round, work);
            if self.borrow() > 0 || self.engine.budget().free() > 0 {
                self.engine.retry_waiting(work);
            }
            self.worked.fetch_add(clock() - started, Relaxed);
            self.pause.end_work();
            if self.engine.waiting() == 0 || self.engine.budget().free() > 0 {
                break None;
            }
            if step != Step::Goes {
                break Some(step);
            }
        };
        if let Some(Step::Stuck(tally)) = step
            && answers
        {
            self.slot.answer(inquiry, Some(&tally));
        }
        step
    }

    /// Nothing of this process can leave: asks all others, and ends it if none of them has given anything since `seen`,
    /// and the swap file may not grow beyond the blocks that were `allowed` then.
    fn inquire(&self, (seen, allowed): (u32, u64), mut tally: Tally, work: &mut Workspace) {
        let inquiry = self.group.inquire(self.slot);
        pagetide_sys::log!(Info, "nothing of this process can leave: inquiry {inquiry} asks all others");
        let mut since = clock();
        let unchanged = || {
            self.group.demand() == seen
                // The disk has no more room than when it was looked at.
                && self.group.frontiers().allowed() <= allowed
                && self.group.free() <= 0
                && self.engine.budget().free() <= 0
                && self.engine.waiting() > 0
                && self.engine.requests() == 0
        };
        loop {
            // Whoever has not looked yet is to give what it finds.
            self.group.ask_all(self.slot, self.engine.limits().high as u64);
            if !unchanged() {
                return;
            }
            if self.group.is_answered(self.slot, inquiry) && self.has_launcher_looked(inquiry, &mut since) {
                break;
            }
            self.group.wait_free(seen, PATIENCE);
            self.sweep_dead();
            if self.pause.is_closed() {
                return;
            }
            // Others may ask at the same time, each for itself.
            let latest = self.group.inquiry();
            let of_others = if latest == inquiry { inquiry.wrapping_sub(1) } else { latest };
            if self.slot.get(Field::Answered) < of_others {
                match self.in_need(|| self.look_round(true, work)) {
                    Some(Step::Stuck(again)) => tally = again,
                    _ => return,
                }
            }
        }
        self.pause.begin_work();
        super::lock(&self.sharing).pot_due = 0;
        let gives = self.charge_shared();
        self.pause.end_work();
        if gives || !unchanged() {
            return;
        }
        if self.group.off_state(self.slot) == OffState::Leaving {
            // What came back leaves no room.
            self.engine.cancel_swapoff();
            return;
        }
        if !self.group.may_end(self.slot) {
            // Another does: its memory is free soon.
            self.group.wait_free(seen, PATIENCE);
            return;
        }
        self.end_process(&tally);
    }

    fn has_launcher_looked(&self, inquiry: u64, since: &mut u64) -> bool {
        match self.group.is_launcher_dead() {
            Some(true) => true,
            Some(false) => self.group.has_launcher_answered(inquiry),
            None if self.group.has_launcher_answered(inquiry) => true,
            None if clock() - *since <= LAUNCHER_MAX => false,
            None => {
                *since = clock();
                !handout::is_there()
            }
        }
    }

    /// Returns whether another process asks whether anything here can leave.
    pub(super) fn is_inquired(&self) -> bool {
        !self.lifted.load(Relaxed) && self.slot.is_asked(&self.group)
    }

    /// Answers an inquiry: gives what is free, or what can leave; or says that there is none.
    pub(super) fn answer_inquiry(&self, starving: &mut Starving, work: &mut Workspace) {
        self.in_need(|| self.answer_in_need(&mut starving.retries, work));
    }

    fn answer_in_need(&self, retries: &mut Retries, work: &mut Workspace) {
        let inquiry = self.group.inquiry();
        self.unshare_all(work);
        self.pause.begin_work();
        self.settle();
        self.pause.end_work();
        self.look_again();
        let mut round = Round::default();
        loop {
            self.pause.begin_work();
            let step = if self.engine.waiting() == 0 && self.give_free() {
                *retries = Retries::default();
                self.slot.answer(inquiry, None);
                self.pause.end_work();
                return;
            } else {
                self.census_step(&mut round, work)
            };
            self.engine.retry_waiting(work);
            self.pause.end_work();
            if self.engine.waiting() > 0 {
                // It has use for what it finds.
                return;
            }
            match step {
                Step::Goes => {}
                // What is being written is free at the end of that.
                Step::Left if self.engine.requests() == 0 => round = Round::default(),
                Step::Left | Step::Moving => return self.wakeup.wait(PATIENCE),
                Step::Stuck(_) if self.tries_disk_again(retries) => round = Round::default(),
                Step::Stuck(tally) => {
                    *retries = Retries::default();
                    return self.slot.answer(inquiry, Some(&tally));
                }
            }
        }
    }

    /// The end of a program that needs more than there is.
    fn end_process(&self, tally: &Tally) {
        self.publish();
        let (stuck, unmanaged) = self.group.stuck();
        self.group.note_ended(&Ended { processes: 0, stuck, unmanaged });
        pagetide_sys::log!(Error, "out of memory: the process ends itself");
        let own = (*tally, self.unmanaged.load(Relaxed).max(0) as u64);
        let all = if self.group.live().nth(1).is_some() {
            format!("; all processes together: {}", reasons(&stuck, unmanaged))
        } else {
            String::new()
        };
        let tiers: Vec<(Told, String)> = match self.engine.device() {
            None => vec![(Told::FILE, "none".to_owned())],
            Some(device) => (0..self.engine.swap().blocks().tiers())
                .map(|tier| {
                    let told = device.told(self.engine.swap().blocks().first_of(tier));
                    (told, self.tier_state(tier, told, &own.0))
                })
                .collect(),
        };
        let states: Vec<_> =
            tiers.iter().map(|(told, state)| format!("the {}: {state}", told.name)).collect();
        let options: Vec<_> = tiers.iter().map(|(told, _)| told.options).collect();
        task::say(&format!(
            "out of memory: nothing more can leave it. Of this process {}{all}. The pool has {} of at most {} MiB, {}; \
             allow more with --memory, {} or --max-pool-percent",
            reasons(&own.0, own.1),
            mib(self.engine.usage().pool as u64),
            mib(self.engine.swap().zswap().pages_max() as u64),
            states.join(", "),
            options.join(", "),
        ));
        task::kill_self();
    }

    fn tier_state(&self, tier: usize, told: Told, stuck: &Tally) -> String {
        if self.engine.has_failed_writes(tier) {
            return "failing".to_owned();
        }
        if self.engine.is_swapped_off() {
            return "out of use".to_owned();
        }
        let (taken, most) =
            (self.engine.swap().blocks().taken_of(tier), self.group.setup().tiers[tier].blocks);
        // Of its blocks some are left, and yet pages found no place.
        let is_full = taken < most && stuck.get(Reason::NoPlace) > 0;
        let why = if is_full { format!(", for {}", told.full) } else { String::new() };
        format!("{} of {} MiB taken{why}", mib(taken), mib(most))
    }
}

fn mib(pages: u64) -> u64 {
    pages / 256
}

/// Returns a text that says how many pages cannot leave, by reason.
fn reasons(stuck: &Tally, unmanaged: u64) -> String {
    let counted = Reason::ALL.iter().map(|&reason| (stuck.get(reason), reason.text()));
    let all = counted.chain([(unmanaged, "are not managed")]).filter(|(pages, _)| mib(*pages) > 0);
    let parts: Vec<_> = all.map(|(pages, text)| format!("{} MiB {text}", mib(pages))).collect();
    if parts.is_empty() { "less than 1 MiB is left".to_owned() } else { parts.join(", ") }
}

/// Steps in a row of one kind, up to as many as give each cluster its turn.
#[derive(Debug, Default)]
pub(crate) struct Turns(usize);

impl Turns {
    /// Notes a step, and whether it is of that kind. True if all clusters have had their turn by such steps.
    pub(crate) fn note(&mut self, is_one: bool, engine: &RunningEngine) -> bool {
        if !is_one {
            self.0 = 0;
            return false;
        }
        self.0 += 1;
        let all = self.0 > engine.swap().queue().len() + 64;
        if all {
            self.0 = 0;
        }
        all
    }
}
