//! Mappings that move: their pages may be in none of the places where the engine looks for them.

use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

/// The moves so far, and those that are under way.
#[derive(Debug, Default)]
pub(super) struct Moves {
    under_way: AtomicU64,
    begun: AtomicU64,
    pages: AtomicU64,
}

/// A mapping moves while this is held.
pub struct Moving<'a>(&'a Moves);

impl Moves {
    /// Notes that a mapping of so many pages moves, until what this returns is dropped.
    pub(super) fn begin(&self, pages: u64) -> Moving<'_> {
        self.under_way.fetch_add(1, SeqCst);
        self.begun.fetch_add(1, SeqCst);
        self.pages.fetch_add(pages, SeqCst);
        Moving(self)
    }

    pub(super) fn are_under_way(&self) -> bool {
        self.under_way.load(SeqCst) > 0
    }

    /// Returns how many have begun.
    pub(super) fn begun(&self) -> u64 {
        self.begun.load(SeqCst)
    }

    /// Returns the pages of all mappings whose move has begun.
    pub(super) fn pages(&self) -> u64 {
        self.pages.load(SeqCst)
    }
}

impl Drop for Moving<'_> {
    fn drop(&mut self) {
        self.0.under_way.fetch_sub(1, SeqCst);
    }
}
