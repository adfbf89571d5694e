//! The thread that takes pages out while the budget runs low.

use super::starving::{Starving, Turns};
use super::{Runtime, clock};
use crate::dump::board::{Activity, Kind};
use crate::engine::{Progress, Workspace};
use crate::group::{Field, RESIDENT_MIN, RestOrder};
use crate::injection::Fault;
use crate::readers::Place;
use pagetide_sys::{procfs, task};
use std::sync::atomic::{Ordering::Relaxed, Ordering::SeqCst};
use std::time::{Duration, Instant};

/// Reclaim sleeps when no fault has come for this long.
const SPIN_IDLE: Duration = Duration::from_millis(1);
/// When none has come for this long the thread that faults, or its reader, may be waiting for this processor.
const SPIN_LOOK: Duration = Duration::from_micros(100);

/// Whether the thread that reclaims may stay awake without work: not where others want its processor.
#[derive(Debug, Default)]
struct SpinPolicy {
    /// For how long it has stayed awake since it was judged, and for how much of that another thread ran in its place.
    awake: Duration,
    displaced: Duration,
    /// The faults at the last look, and since when there were as many, wherever it was.
    faults: u64,
    since: Option<Instant>,
    /// The faults that there had been when no more came and it slept.
    slept_at: u64,
    /// Whether it was judged before.
    judged: bool,
    /// When it may try again, and how long it waits then after the next failure; nanoseconds.
    after: u64,
    ban: u64,
}

impl SpinPolicy {
    const BAN_MIN: u64 = 500_000_000;
    const BAN_MAX: u64 = 32_000_000_000;
    /// The time that it stays awake before it is judged: ten time slices, of which one may be that of a thread that is soon done.
    const TRIAL: Duration = Duration::from_millis(30);
    /// The same before it is judged for the first time, two time slices: a compiler among others lives for two tenths of a second.
    const FIRST_TRIAL: Duration = Duration::from_millis(6);
    /// The time that it waits after the first failure; nanoseconds. One slice of a thread that is soon done may mislead that judgement.
    const FIRST_BAN: u64 = 100_000_000;
    /// The part of the time that it stays awake in which others run in its place, above which they want to.
    const DISPLACED_MAX: f64 = 0.3;

    /// The faults since it slept that make it worth the while: a process in which few come would wake for each of them.
    const FAULTS_MIN: u64 = 16;

    /// Returns whether it may stay awake, so many faults having been answered.
    fn allows(&self, faults: u64, now: u64) -> bool {
        now >= self.after && faults - self.slept_at >= Self::FAULTS_MIN
    }

    /// Returns for how long it stays awake before it is judged.
    fn trial(&self) -> Duration {
        if self.judged { Self::TRIAL } else { Self::FIRST_TRIAL }
    }

    /// Returns for how long no fault has come, of which there have been so many.
    fn idle(&mut self, faults: u64, now: Instant) -> Duration {
        if std::mem::replace(&mut self.faults, faults) != faults {
            self.since = Some(now);
        }
        now - *self.since.get_or_insert(now)
    }

    /// Notes that it has stayed awake. What it waits while it works says nothing: then it would wait asleep as well.
    fn note(&mut self, awake: Duration, displaced: Duration, now: u64) {
        self.awake += awake;
        self.displaced += displaced;
        if self.awake < self.trial() {
            return;
        }
        let first = !std::mem::replace(&mut self.judged, true);
        if self.displaced.as_secs_f64() > Self::DISPLACED_MAX * self.awake.as_secs_f64() {
            if !first {
                self.ban = (self.ban * 2).clamp(Self::BAN_MIN, Self::BAN_MAX);
            }
            self.after = now + self.ban.max(Self::FIRST_BAN);
        } else {
            self.ban /= 2;
        }
        (self.awake, self.displaced) = (Duration::ZERO, Duration::ZERO);
    }
}

impl Runtime {
    pub(super) fn reclaim(&self) {
        let mut work = Workspace::default();
        let mut starving = Starving::default();
        // Steps in vain, and steps since an inquiry.
        let (mut in_vain, mut inquired) = (Turns::default(), Turns::default());
        self.reclaimer.store(task::tid(), Relaxed);
        let (mut place, mut spin_policy) = (Place::Anywhere, SpinPolicy::default());
        let seat = self.board.sit(Kind::Reclaim, 0);
        // Since when nothing moves but by the device, or at all.
        let (mut writes_since, mut starves_since) = (None, None);
        loop {
            self.readers.move_to(&mut place, self.readers.elsewhere());
            // Who is short finds the answer by its own work; not where what leaves comes back at once, again and again.
            let is_inquired = self.is_inquired();
            if inquired.note(is_inquired, &self.engine) || (is_inquired && !self.engine.is_short()) {
                seat.now(Activity::AnswersInquiry, 0, clock());
                self.answer_inquiry(&mut starving, &mut work);
                continue;
            }
            if !self.has_work() {
                (writes_since, starves_since) = (None, None);
                if !self.spin(place, &mut spin_policy) {
                    seat.now(Activity::Sleeps, 0, clock());
                    self.wakeup.wait(Duration::from_millis(100));
                    if spin_policy.allows(self.faults.load(Relaxed), clock()) {
                        // The thread that faults may have moved since its reader looked: often to where this one slept.
                        self.follow_faults();
                    }
                }
                in_vain = Turns::default();
                continue;
            }
            seat.now(Activity::AwaitsThaw, 0, clock());
            self.pause.begin_work();
            let start = clock();
            seat.now(Activity::Reclaims, 0, start);
            self.injection.strike(Fault::StallReclaim, Fault::PanicReclaim);
            // Before anything is taken out: also what was opened before there was an engine.
            self.look_for_pins();
            self.engine.drop_dead_frames();
            let borrowed = self.borrow();
            if borrowed > 0 {
                self.engine.retry_waiting(&mut work);
            }
            self.unshare_pool(&mut work);
            let progress = self.step(borrowed, &mut work);
            self.give_back();
            self.engine.have_waiting_retried(&mut work);
            self.worked.fetch_add(clock() - start, Relaxed);
            self.pause.end_work();
            if progress == Progress::Waits {
                let since = *writes_since.get_or_insert(start);
                seat.now(Activity::AwaitsDevice, self.engine.requests() as u64, since);
                // Whoever hears of an end wakes it; so does who needs something else.
                self.wakeup.wait(Duration::from_millis(5));
            } else {
                writes_since = None;
            }
            // Pages that will not leave come round again and again: a full round of those is no progress.
            if in_vain.note(progress == Progress::Moved, &self.engine) || progress == Progress::Nothing {
                let since = *starves_since.get_or_insert(start);
                seat.now(Activity::Starves, self.engine.waiting() as u64, since);
                self.starved(&mut starving, &mut work);
            }
        }
    }

    /// Does one step for those that are short of memory, of which `borrowed` pages have just come from the group.
    fn step(&self, borrowed: usize, work: &mut Workspace) -> Progress {
        let gives_little = self.has_little() && !self.engine.is_short();
        if gives_little && self.slot.keeps_pool() && self.group.free() >= 0 {
            // Whoever asked can do with less, or asks all.
            self.slot.set(Field::Asked, 0);
            Progress::Freed(0)
        } else if gives_little {
            // Others want some: not the little that it runs in, but the pool's.
            self.engine.reclaim_pool(work)
        } else if borrowed > 0 && self.asked() == 0 && !self.engine.is_hastened() {
            // As long as the group has memory to spare nothing has to leave, however fast faults take it.
            Progress::Freed(borrowed)
        } else if self.target() > self.engine.budget().free() || self.engine.is_hastened() {
            match self.relief() {
                0 => self.engine.reclaim(work),
                pages => Progress::Freed(pages),
            }
        } else if self.unshares() {
            // What is being written is free at the end of that.
            Progress::Waits
        } else {
            Progress::Freed(0)
        }
    }

    /// Returns whether faults are to wait while other processes get on. Not those that a fork waits for.
    pub(super) fn rests(&self) -> bool {
        // All processes of the run may wait for the keeper of their shared memory.
        self.slot.is_resting()
            && !self.engine.memory().is_shared()
            && !self.lifted.load(SeqCst)
            && !self.pause.is_closed()
    }

    /// Follows the order to rest, and answers the faults that rested when it is over.
    pub(super) fn follow_rest(&self, order: &mut RestOrder) {
        order.follow();
        // A fault that came just as this one ended is found the next time.
        if !self.rests() && self.engine.end_rest() {
            self.wakeup.now();
        }
    }

    /// Returns whether memory is to be made free, for this process or others.
    fn has_work(&self) -> bool {
        let engine = &self.engine;
        engine.is_short() || engine.has_dead_frames() || self.asked() > 0 || self.unshares()
    }

    /// Stays awake while faults of one thread come thick and fast. A reclaim thread that sleeps leaves its processor
    /// idle, and the scheduler moves the faulting thread there each time it is woken: away from its reader.
    /// Returns whether there is something to do, be it that this is no longer its `place`.
    fn spin(&self, place: Place, policy: &mut SpinPolicy) -> bool {
        if !matches!(place, Place::Off(_)) || !policy.allows(self.faults.load(Relaxed), clock()) {
            return false;
        }
        let Some(before) = procfs::run_times(task::tid()) else { return false };
        let wanted = self.spin_until_wanted(place, policy);
        // The host's time is in neither.
        let after = procfs::run_times(task::tid()).unwrap_or(before);
        let (ran, waited) = (after.0.saturating_sub(before.0), after.1.saturating_sub(before.1));
        self.waited_awake.fetch_add(waited, Relaxed);
        if waited > 0 {
            self.follow_faults();
        }
        let is_place = self.readers.elsewhere() == place;
        if is_place {
            policy.note(Duration::from_nanos(ran + waited), Duration::from_nanos(waited), clock());
        }
        // Elsewhere the thread that faults or its reader has run here: that says nothing of others.
        if !wanted {
            policy.slept_at = self.faults.load(Relaxed);
        }
        wanted || !is_place || self.has_work() || self.is_inquired()
    }

    fn spin_until_wanted(&self, place: Place, policy: &mut SpinPolicy) -> bool {
        let (start, mut looked) = (Instant::now(), false);
        loop {
            for _ in 0..64 {
                std::hint::spin_loop();
            }
            if self.has_work() || self.is_inquired() || self.readers.elsewhere() != place {
                return true;
            }
            let now = Instant::now();
            if now - start > policy.trial() {
                return true;
            }
            match policy.idle(self.faults.load(Relaxed), now) {
                idle if idle > SPIN_IDLE => return false,
                idle if idle > SPIN_LOOK && !looked => {
                    self.follow_faults();
                    if self.readers.elsewhere() == place {
                        // The reader waits here, on its way to another processor.
                        std::thread::yield_now();
                    }
                    looked = true;
                }
                // A fault has come: the next time without one is looked at anew.
                idle if idle.is_zero() => looked = false,
                _ => {}
            }
        }
    }

    /// Returns whether others want memory, and there is less in the program than it may keep in any case.
    fn has_little(&self) -> bool {
        let usage = self.engine.usage();
        self.target() > self.engine.budget().free()
            && self.asked() > 0
            && usage.resident - usage.borrowed + usage.frames <= RESIDENT_MIN
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_without_a_fault_goes_on_wherever_reclaim_is() {
        let (mut spin_policy, start) = (SpinPolicy::default(), Instant::now());
        let ms = |ms| start + Duration::from_millis(ms);
        let idle =
            [(7, 0), (7, 2), (8, 3), (8, 3), (8, 5)].map(|(faults, at)| spin_policy.idle(faults, ms(at)));
        assert_eq!(idle.map(|idle| idle.as_millis()), [0, 2, 0, 0, 2]);
    }

    #[test]
    fn reclaim_stays_awake_more_and_more_seldom_where_others_want_its_processor() {
        let ms = Duration::from_millis;
        let mut spin_policy = SpinPolicy::default();
        let allows = |policy: &SpinPolicy, now| policy.allows(SpinPolicy::FAULTS_MIN, now);
        assert!(allows(&spin_policy, 0));
        assert!(!spin_policy.allows(SpinPolicy::FAULTS_MIN - 1, 0), "few faults");
        spin_policy.note(ms(5), ms(5), 1);
        assert!(allows(&spin_policy, 1), "too short to say anything");
        let mut first = SpinPolicy::default();
        first.note(ms(6), ms(3), 1);
        let again = 1 + SpinPolicy::FIRST_BAN;
        assert!(!allows(&first, again - 1) && allows(&first, again), "soon judged at first");
        first.note(ms(29), ms(29), again);
        assert!(allows(&first, again), "and later after ten time slices");
        first.note(ms(1), ms(1), again);
        assert!(!allows(&first, again + SpinPolicy::BAN_MIN - 1), "for longer");
        spin_policy.note(ms(150), ms(1), 1);
        assert!(allows(&spin_policy, 1));
        let mut bans = Vec::new();
        let mut now = 2;
        for _ in 0..10 {
            spin_policy.note(ms(50), ms(25), now);
            let from = now;
            while !allows(&spin_policy, now) {
                now += SpinPolicy::BAN_MIN / 4;
            }
            bans.push((now - from) / SpinPolicy::BAN_MIN);
        }
        assert_eq!(bans, [1, 2, 4, 8, 16, 32, 64, 64, 64, 64]);
        spin_policy.note(ms(50), ms(0), now);
        spin_policy.note(ms(50), ms(25), now);
        assert!(!allows(&spin_policy, now + SpinPolicy::BAN_MAX - 1));
        assert!(allows(&spin_policy, now + SpinPolicy::BAN_MAX));
    }
}
