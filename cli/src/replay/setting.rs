//! What is replayed with, and what came of it.

use pagetide_swap::{Config, Counter};

/// What is replayed with.
#[derive(Clone, Copy, Debug)]
pub(super) struct Setting {
    /// Pages of memory.
    pub(super) memory: u64,
    /// The subsystem's settings.
    pub(super) config: Config,
    /// The most of the memory that the pool takes, as a part.
    pub(super) pool_max: f64,
    /// What a read from the device takes, and each further page of it, in nanoseconds.
    pub(super) device_ns: f64,
    /// The further pages.
    pub(super) device_page_ns: f64,
}

/// What came of it.
#[derive(Clone, Debug, Default)]
pub(super) struct Outcome {
    /// Accesses.
    pub(super) accesses: u64,
    /// Those that found their page in the program.
    pub(super) resident: u64,
    /// The subsystem's counters.
    pub(super) counters: Vec<(&'static str, u64)>,
    /// Reads from the device that were waited for.
    pub(super) device_reads: u64,
    /// Page bytes by payload bytes, when the pool held the most.
    pub(super) ratio: Option<f64>,
    /// The most pages that the pool took.
    pub(super) pool_peak: usize,
    /// What faults waited.
    pub(super) stalled_ns: f64,
    /// Pages for which there was no place although there was no room.
    pub(super) overcommitted: u64,
}

impl Outcome {
    /// A counter.
    pub(super) fn get(&self, counter: Counter) -> u64 {
        self.counters[counter as usize].1
    }

    /// Pages that came back from pool, pattern or device.
    pub(super) fn swapins(&self) -> u64 {
        [Counter::zswpin, Counter::swpin_zero, Counter::pswpin].map(|counter| self.get(counter)).iter().sum()
    }
}
