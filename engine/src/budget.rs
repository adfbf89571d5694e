//! What this process may still use: pages granted and not in use.

use std::sync::atomic::{AtomicI64, Ordering::Relaxed};

/// A count of free pages. May go below zero for memory that is in use already (a page table, a pool
/// span needed to free more than it takes): reclaim then makes it good.
#[derive(Debug, Default)]
pub struct Budget(AtomicI64);

impl Budget {
    /// Pages that are free.
    pub fn free(&self) -> i64 {
        self.0.load(Relaxed)
    }

    /// Takes `pages` if they are free.
    pub fn try_take(&self, pages: usize) -> bool {
        self.0
            .fetch_update(Relaxed, Relaxed, |free| (free >= pages as i64).then_some(free - pages as i64))
            .is_ok()
    }

    /// Takes `pages` in any case.
    pub fn take(&self, pages: i64) {
        self.0.fetch_sub(pages, Relaxed);
    }

    /// Gives pages back.
    pub fn give(&self, pages: i64) {
        self.0.fetch_add(pages, Relaxed);
    }
}
