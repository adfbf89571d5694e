//! Limits: the pages that a process keeps free, and its slots.

use super::Engine;
use crate::memory::Memory;
use pagetide_swap::CLUSTER_PAGES;
use std::sync::atomic::{AtomicI64, Ordering::Relaxed};

/// Free pages that a process keeps at least, however many share the cap.
const FREE_MIN: i64 = 16;

/// Slots of staging beside those on probation.
const SLOTS_MORE: usize = 24;

/// The limits of an engine.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Free pages below which reclaim starts.
    pub low: i64,
    /// Free pages at which reclaim stops.
    pub high: i64,
    /// The number of slots that have pages on probation at most.
    pub probation: usize,
}

impl Limits {
    /// Returns the limits for a cap of `pages` pages.
    pub fn for_cap(pages: u64) -> Self {
        // 1/128 of the cap, between 1 and 16 MiB: what faults use up while reclaim wakes. Where that would be a
        // large part of the cap, 1/64 of it: each process of the run keeps as much.
        let low = (pages as i64 / 128).clamp(256, 4096).min(pages as i64 / 64);
        // A quarter of the cap: which part of it is the policy's to say. Clusters of which little is in memory need
        // more.
        let probation = (pages as usize / 4 / CLUSTER_PAGES).clamp(32, 256);
        Self { low, high: 2 * low, probation }
    }

    /// Returns these limits with one slot on probation, the least that there can be.
    pub fn without_probation(self) -> Self {
        Self { probation: 1, ..self }
    }

    /// Returns the number of slots of staging. Beside those on probation there are some for take-outs under way, for
    /// pages that wait for the device, and for donors.
    pub fn slots(&self) -> u16 {
        (self.probation + SLOTS_MORE) as u16
    }
}

/// The watermarks of free pages, between which reclaim works.
#[derive(Debug)]
pub(super) struct Watermarks {
    limits: Limits,
    /// The free pages that this process keeps, with others that share the cap.
    pub(super) low: AtomicI64,
    pub(super) high: AtomicI64,
}

impl Watermarks {
    /// Returns the watermarks of a process that shares the cap with no other.
    pub(super) fn new(limits: Limits) -> Self {
        Self { limits, low: AtomicI64::new(limits.low), high: AtomicI64::new(limits.high) }
    }

    /// Returns the free pages below which reclaim starts.
    pub(super) fn low(&self) -> i64 {
        self.low.load(Relaxed)
    }

    /// Returns the free pages at which reclaim stops.
    pub(super) fn high(&self) -> i64 {
        self.high.load(Relaxed)
    }

    fn share(&self, cap_pages: u64, processes: usize) {
        let Limits { low, high, .. } = Limits::for_cap(cap_pages);
        // Each of many processes keeps less free: together they would keep all there is.
        let share = |pages: i64| (pages / processes.max(1) as i64).max(pages.min(FREE_MIN));
        self.low.store(share(low), Relaxed);
        self.high.store(share(low) + share(high - low), Relaxed);
    }
}

impl<M: Memory> Engine<M> {
    /// Returns the limits as they are just now, with others that share the cap.
    pub fn limits(&self) -> Limits {
        Limits { low: self.watermarks.low(), high: self.watermarks.high(), ..self.watermarks.limits }
    }

    /// Sets the cap, in pages, and how many processes share it. The number of slots stays as it was at the start.
    pub fn share_cap(&self, cap_pages: u64, processes: usize) {
        self.watermarks.share(cap_pages, processes);
    }

    /// Returns whether reclaim should run.
    pub fn is_short(&self) -> bool {
        self.budget.free() < self.watermarks.low() || self.waiting() > 0 || self.is_hastened()
    }
}
