//! The grant: the pages of the cap that this process has, and their return.

use super::{Runtime, clock};
use crate::group::{Field, RESIDENT_MIN};
use std::sync::atomic::{Ordering::Relaxed, Ordering::SeqCst};
use std::time::Duration;

/// The number of pages that a process may have in memory however much the others have, as [`RESIDENT_MIN`], once those
/// had time to give some.
pub(super) const RESIDENT_FLOOR: i64 = 512;

/// The time for which memory that a resting process gives is waited for: about that of storing a cluster.
const RELIEF: Duration = Duration::from_millis(2);

/// Nanoseconds until it is asked for again, where none came.
const RELIEF_AGAIN: u64 = 20_000_000;

/// Nanoseconds for which nothing is borrowed after something was given to who starves.
const GIVEN: u64 = 10_000_000;

impl Runtime {
    /// Returns the number of pages that others have asked for.
    pub(super) fn asked(&self) -> i64 {
        if self.lifted.load(SeqCst) { 0 } else { self.slot.get(Field::Asked) as i64 }
    }

    /// Returns the number of pages that should be free.
    pub(super) fn target(&self) -> i64 {
        self.engine.limits().high + self.asked()
    }

    /// Takes what the group has to spare: no more than it needs, where others have asked for some. Returns how many
    /// pages.
    pub(super) fn borrow(&self) -> usize {
        let limits = self.engine.limits();
        let (goal, step) = if self.asked() > 0 { (limits.low, 0) } else { (limits.high, self.group.step()) };
        let wanted = goal - self.engine.budget().free();
        if wanted <= 0 || clock() < self.borrow_after.load(Relaxed) {
            return 0;
        }
        let wanted = wanted.max(step);
        let mut taken = self.group.take_up_to(wanted);
        if taken == 0 {
            self.group.collect_from_ended(self.slot);
            taken = self.group.take_up_to(wanted);
        }
        if taken > 0 {
            self.slot.word(Field::Grant).fetch_add(taken as u64, SeqCst);
            self.engine.budget().give(taken);
        }
        taken as usize
    }

    /// Takes memory that a process which rests gives, in place of its own. Returns how many pages.
    pub(super) fn relief(&self) -> usize {
        if self.asked() > 0 || self.engine.is_hastened() || self.slot.is_resting() {
            return 0;
        }
        let seen = self.group.demand();
        if clock() < self.relief_after.load(Relaxed)
            || !self.group.ask_resting(self.slot, self.group.step() as u64)
        {
            return 0;
        }
        self.group.wait_free(seen, RELIEF);
        let pages = self.borrow();
        if pages == 0 {
            // It is slow, or has none after all.
            self.relief_after.store(clock() + RELIEF_AGAIN, Relaxed);
        }
        pages
    }

    /// Makes the pages that the launcher took in our name part of the grant.
    pub(super) fn absorb(&self) {
        let added = Field::Added.bounded(self.slot.word(Field::Added).swap(0, SeqCst));
        // What comes for pages that were borrowed is not to be spent before they are charged.
        self.follow_parent();
        if added != 0 {
            self.slot.word(Field::Grant).fetch_add(added, SeqCst);
            self.engine.budget().give(added as i64);
        }
    }

    /// Gives pages that others asked for, as far as they are free.
    pub(super) fn give_back(&self) {
        let asked = self.asked();
        let spare = (self.engine.budget().free() - self.engine.limits().low).min(asked);
        if asked > 0 && spare > 0 {
            self.slot.word(Field::Asked).fetch_sub(spare as u64, SeqCst);
            self.slot.word(Field::Given).fetch_add(spare as u64, SeqCst);
            self.return_grant(spare);
            pagetide_sys::log!(Debug, "gives {spare} of {asked} pages that others asked for");
        }
    }

    pub(super) fn return_grant(&self, pages: i64) {
        self.engine.budget().take(pages);
        self.hand_over(pages);
    }

    /// Gives what is free, up to what is kept free, and borrows nothing for a moment: who waits for it has to wake first.
    /// Returns whether anything was free.
    pub(super) fn give_free(&self) -> bool {
        let pages = self.engine.budget().take_up_to(self.engine.limits().high as usize) as i64;
        if pages > 0 {
            self.borrow_after.store(clock() + GIVEN, Relaxed);
            self.hand_over(pages);
        }
        pages > 0
    }

    /// Gives pages to the group that were taken from the budget.
    fn hand_over(&self, pages: i64) {
        self.slot.word(Field::Grant).fetch_sub(pages as u64, SeqCst);
        self.group.give(pages);
    }

    /// Gives back pages that are free beyond those that are needed soon, where others may need them.
    pub(super) fn return_surplus(&self) {
        let step = if self.group.free() < self.group.step() { 0 } else { self.group.step() };
        let surplus = self.engine.budget().free() - 2 * self.engine.limits().high - step;
        if surplus > step && !self.lifted.load(SeqCst) && self.group.live().nth(1).is_some() {
            self.return_grant(surplus);
        }
    }

    /// Shows the time that the program loses to pages which come back, and takes memory from a process whose
    /// pages are worth far less.
    pub(super) fn level(&self, lost: u64, time: u64) {
        let pressure = (lost as f64 / time.max(1) as f64 * 1e6) as u64;
        self.slot.set(Field::Pressure, u64::midpoint(self.slot.get(Field::Pressure), pressure));
        if self.slot.loses_time() {
            self.slot.set(Field::Rent, 0);
            self.slot.set(Field::Given, 0);
        }
        if self.group.free() < self.group.step() {
            self.group.level(self.slot, self.engine.limits().high.max(self.group.step()) as u64, time);
        }
    }

    /// Returns the number of pages that others may ask for.
    pub(super) fn spare(&self) -> i64 {
        let usage = self.engine.usage();
        let pool = if self.engine.can_write() { usage.pool } else { 0 };
        (usage.resident - usage.borrowed + usage.frames - RESIDENT_MIN).max(0) + pool
    }
}
