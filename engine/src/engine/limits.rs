//! How much a process keeps free.

use super::Engine;
use crate::memory::Memory;
use pagetide_swap::CLUSTER_PAGES;
use std::sync::atomic::Ordering::Relaxed;

/// Free pages that a process keeps at least, however many share the cap.
const FREE_MIN: i64 = 16;

/// Parameters of an engine.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Free pages below which reclaim starts.
    pub low: i64,
    /// Free pages at which it stops.
    pub high: i64,
    /// Slots that pages stay in on probation, at most.
    pub probation: usize,
}

impl Limits {
    /// Limits for a cap of this many pages.
    pub fn for_cap(pages: u64) -> Self {
        // 1/128 of the cap, between 1 and 16 MiB: what faults use up while reclaim wakes. Where that would be a
        // large part of the cap, 1/64 of it: each process of the run keeps as much.
        let low = (pages as i64 / 128).clamp(256, 4096).min(pages as i64 / 64);
        // A quarter of the cap: which part of it is the policy's to say. Clusters of which little is in memory need
        // more.
        let probation = (pages as usize / 4 / CLUSTER_PAGES).clamp(32, 256);
        Self { low, high: 2 * low, probation }
    }
}

impl<M: Memory> Engine<M> {
    /// The limits, as they are just now.
    pub fn limits(&self) -> Limits {
        Limits { low: self.low.load(Relaxed), high: self.high.load(Relaxed), ..self.limits }
    }

    /// Sets how many processes share the cap.
    pub fn set_sharers(&self, processes: usize) {
        let Limits { low, high, .. } = self.limits;
        // Each of many processes keeps less free: together they would keep all there is.
        let share = |pages: i64| (pages / processes.max(1) as i64).max(pages.min(FREE_MIN));
        self.low.store(share(low), Relaxed);
        self.high.store(share(low) + share(high - low), Relaxed);
    }

    /// Whether reclaim should run.
    pub fn is_short(&self) -> bool {
        self.budget.free() < self.low.load(Relaxed) || self.waiting() > 0 || self.is_hastened()
    }
}
