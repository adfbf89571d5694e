//! The budget of a process: pages that it was granted and does not use.

use std::sync::atomic::{AtomicI64, Ordering::Relaxed};

/// The budget: a count of free pages. It may go below zero for memory that is in use already (a page table, a pool
/// span needed to free more than it takes): reclaim then makes it good.
///
/// ```
/// use pagetide::budget::Budget;
///
/// let budget = Budget::default();
/// budget.give(10);
/// assert!(budget.try_take(7) && !budget.try_take(7));
/// budget.take(5);
/// assert_eq!(budget.free(), -2);
/// budget.give(5);
/// assert_eq!((budget.take_up_to(2), budget.take_up_to(9), budget.take_up_to(9)), (2, 1, 0));
/// ```
#[derive(Debug, Default)]
pub struct Budget(AtomicI64);

impl Budget {
    /// Returns the number of free pages.
    pub fn free(&self) -> i64 {
        self.0.load(Relaxed)
    }

    /// Takes `pages` if so many are free. Returns whether it did.
    pub fn try_take(&self, pages: usize) -> bool {
        self.0
            .fetch_update(Relaxed, Relaxed, |free| (free >= pages as i64).then_some(free - pages as i64))
            .is_ok()
    }

    /// Takes `pages`, or as many as are free. Returns how many.
    pub fn take_up_to(&self, pages: usize) -> usize {
        let taken = |free: i64| free.clamp(0, pages as i64);
        let before = self.0.fetch_update(Relaxed, Relaxed, |free| Some(free - taken(free)));
        before.map_or(0, taken) as usize
    }

    /// Takes `pages`, whether or not they are free.
    pub fn take(&self, pages: i64) {
        self.0.fetch_sub(pages, Relaxed);
    }

    /// Gives `pages` back.
    pub fn give(&self, pages: i64) {
        self.0.fetch_add(pages, Relaxed);
    }
}
