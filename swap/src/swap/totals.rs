//! Totals of pages by state.

use crate::sync::atomic::{AtomicI64, Ordering::Relaxed};
use crate::word::{State, Word};

/// Pages of all objects, by state. Each is read for itself: while words change, they may not add up.
#[derive(Debug, Default)]
pub(super) struct PageTotals {
    present: AtomicI64,
    cached: AtomicI64,
    swapped: AtomicI64,
    same: AtomicI64,
    copies: AtomicI64,
}

impl PageTotals {
    /// Returns the same totals, which count on for themselves.
    pub(super) fn for_child(&self) -> Self {
        Self {
            present: AtomicI64::new(self.present()),
            cached: AtomicI64::new(self.cached()),
            swapped: AtomicI64::new(self.swapped()),
            same: AtomicI64::new(self.same_filled()),
            copies: AtomicI64::new(self.copies()),
        }
    }

    /// Notes that the words of `pages` pages change from one kind to another.
    pub(super) fn change(&self, old: Word, new: Word, pages: i64) {
        if old.state() != new.state() {
            self.add(old.state(), -pages);
            self.add(new.state(), pages);
        }
        let change = |was: bool, is: bool| (i64::from(is) - i64::from(was)) * pages;
        match change(old.has_pool_copy(), new.has_pool_copy()) {
            0 => {}
            change => _ = self.copies.fetch_add(change, Relaxed),
        }
        match change(old.is_same_filled(), new.is_same_filled()) {
            0 => {}
            change => _ = self.same.fetch_add(change, Relaxed),
        }
    }

    fn add(&self, state: State, change: i64) {
        match state {
            State::Present => self.present.fetch_add(change, Relaxed),
            State::Cached => self.cached.fetch_add(change, Relaxed),
            State::Swapped => self.swapped.fetch_add(change, Relaxed),
            State::Hole | State::Poisoned => 0,
        };
    }

    /// Returns the pages in the program.
    pub(super) fn present(&self) -> i64 {
        self.present.load(Relaxed)
    }

    /// Returns the pages on probation.
    pub(super) fn cached(&self) -> i64 {
        self.cached.load(Relaxed)
    }

    /// Returns the pages at a place.
    pub(super) fn swapped(&self) -> i64 {
        self.swapped.load(Relaxed)
    }

    /// Returns the pages at a place that are a repeated word.
    pub(super) fn same_filled(&self) -> i64 {
        self.same.load(Relaxed)
    }

    /// Returns the pages in the program of which the pool keeps a copy.
    pub(super) fn copies(&self) -> i64 {
        self.copies.load(Relaxed)
    }
}
