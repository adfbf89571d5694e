//! Tries that are in vain again and again are made seldom.

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// The number of tries, one after the other, that were in vain, after which only one of [`SAMPLE`] is made.
pub(crate) const RUN: u32 = 64;
pub(crate) const SAMPLE: u32 = 16;

/// A count of tries that were in vain. Of two that are noted at a time one may be missed.
#[derive(Debug, Default)]
pub(crate) struct InVain {
    /// Tries in vain since the last one that was not.
    run: AtomicU32,
    /// Tries that could have been made since, beyond [`RUN`].
    asked: AtomicU32,
}

impl InVain {
    /// Returns whether a try is made.
    pub(crate) fn may_try(&self) -> bool {
        self.run.load(Relaxed) < RUN || self.asked.fetch_add(1, Relaxed).is_multiple_of(SAMPLE)
    }

    /// Notes whether a try was in vain.
    pub(crate) fn note(&self, in_vain: bool) {
        let run = if in_vain { self.run.load(Relaxed).saturating_add(1) } else { 0 };
        self.run.store(run, Relaxed);
    }
}
