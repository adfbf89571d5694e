//! Figures of the allocator that are counted as they change, for `statistics.rs`.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// A figure, and the most that it has been.
pub(super) struct Gauge {
    now: AtomicUsize,
    most: AtomicUsize,
}

impl Gauge {
    const fn new() -> Self {
        Self { now: AtomicUsize::new(0), most: AtomicUsize::new(0) }
    }

    pub(super) fn rise(&self, by: usize) {
        let now = self.now.fetch_add(by, Relaxed) + by;
        if now > self.most.load(Relaxed) {
            self.most.fetch_max(now, Relaxed);
        }
    }

    pub(super) fn fall(&self, by: usize) {
        self.now.fetch_sub(by, Relaxed);
    }

    pub(super) fn now(&self) -> usize {
        self.now.load(Relaxed)
    }

    pub(super) fn most(&self) -> usize {
        self.most.load(Relaxed)
    }
}

/// Bytes of the arenas that are committed.
pub(super) static COMMITTED: Gauge = Gauge::new();
/// Objects that are mappings of their own, and their bytes.
pub(super) static MAPPED: Gauge = Gauge::new();
pub(super) static MAPPED_BYTES: Gauge = Gauge::new();
