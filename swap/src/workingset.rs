//! The working set: refaults are judged by their distance, which tells the pages that would have stayed, had there been
//! a little more memory (after Linux's `mm/workingset.c`, Weiner 2014).
//!
//! A page that leaves takes along a *shadow*: the clock of evictions, and whether it belonged to the working set. When
//! it comes back, the clock says how many pages have left since. If those are not more than the pages in memory, it is
//! used as often as they are: it is *activated*. If it had been before it left, it is *restored*.
//!
//! ```text
//!  15   14                          0
//! ┌────┬─────────────────────────────┐
//! │ W  │ evictions / grain           │
//! └────┴─────────────────────────────┘
//! ```
//!
//! The clock goes round after 2¹⁵ grains. The grain is such that this is at least sixteen times the cap: of pages that
//! were away for longer than that, a sixteenth is taken for near.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

const CLOCK_BITS: u32 = 15;
const WORKINGSET: u16 = 1 << CLOCK_BITS;
/// The clock goes round after this many times the pages of the cap.
const TURN: u64 = 16;

/// The clock of evictions.
///
/// ```
/// use pagetide_swap::workingset::Workingset;
///
/// let clock = Workingset::new(1000);
/// let shadow = clock.evict(1, false);
/// clock.evict(900, false);
/// // It comes back before as many pages have left as are in memory.
/// assert!(clock.refault(shadow, 1000).activate);
/// clock.evict(200, false);
/// assert!(!clock.refault(shadow, 1000).activate);
/// ```
#[derive(Debug)]
pub struct Workingset {
    evictions: AtomicU64,
    /// log2 of the evictions that the clock does not tell apart.
    grain: u32,
}

/// The shadow that a page leaves behind when it goes: when that was, and whether it belonged to the working set.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Shadow(pub u16);

/// The judgement on a page that comes back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Refault {
    /// Whether it is used as often as the pages in memory.
    pub activate: bool,
    /// Whether it is activated, and belonged to the working set when it left.
    pub restore: bool,
}

/// A mean of distances, of late.
#[derive(Debug, Default)]
pub(crate) struct MeanDistance {
    /// In parts of [`MEAN_OF`]; 0 before the first.
    sum: AtomicU64,
}

/// The number of distances that a mean is of, about.
const MEAN_OF: u64 = 256;

impl MeanDistance {
    /// Notes a distance. Of two that are noted at a time one may be missed.
    pub(crate) fn note(&self, distance: u64) {
        let sum = match self.sum.load(Relaxed) {
            0 => distance * MEAN_OF,
            sum => sum - sum / MEAN_OF + distance,
        };
        self.sum.store(sum, Relaxed);
    }

    /// Returns the mean; `None` before a distance was noted, or if it is 0.
    pub(crate) fn get(&self) -> Option<u64> {
        Some(self.sum.load(Relaxed) / MEAN_OF).filter(|&mean| mean > 0)
    }
}

impl Workingset {
    /// Returns the clock of a process that may have `cap` pages in memory.
    pub fn new(cap: u64) -> Self {
        let grain = cap.saturating_mul(TURN).div_ceil(1 << CLOCK_BITS).max(1).next_power_of_two().ilog2();
        Self { evictions: AtomicU64::new(0), grain }
    }

    /// Returns a clock for a forked child, which shows the same time.
    pub fn for_child(&self) -> Self {
        Self { evictions: AtomicU64::new(self.evictions.load(Relaxed)), grain: self.grain }
    }

    /// Advances the clock by `pages` pages that leave, from the working set or not. Returns their shadow.
    pub fn evict(&self, pages: u64, workingset: bool) -> Shadow {
        let clock = self.evictions.fetch_add(pages, Relaxed);
        Shadow(self.ticks(clock) | if workingset { WORKINGSET } else { 0 })
    }

    /// Returns how many pages have left since the one with this shadow, within a turn of the clock.
    pub fn distance(&self, shadow: Shadow) -> u64 {
        let now = self.ticks(self.evictions.load(Relaxed));
        u64::from(now.wrapping_sub(shadow.0) & !WORKINGSET) << self.grain
    }

    /// Judges a page that comes back, while `present` pages are in the program.
    pub fn refault(&self, shadow: Shadow, present: u64) -> Refault {
        let distance = self.distance(shadow);
        let activate = distance <= present;
        Refault { activate, restore: activate && shadow.0 & WORKINGSET != 0 }
    }

    fn ticks(&self, clock: u64) -> u16 {
        (clock >> self.grain) as u16 & !WORKINGSET
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_comes_back_before_memory_was_renewed_once_is_activated() {
        let workingset = Workingset::new(1000);
        let shadow = workingset.evict(1, false);
        workingset.evict(900, false);
        assert_eq!(workingset.refault(shadow, 1000), Refault { activate: true, restore: false });
        workingset.evict(200, false);
        assert_eq!(workingset.refault(shadow, 1000), Refault { activate: false, restore: false });
        let shadow = workingset.evict(1, true);
        assert_eq!(workingset.refault(shadow, 1000), Refault { activate: true, restore: true });
    }

    #[test]
    fn a_mean_is_of_what_was_noted_of_late() {
        let mean = MeanDistance::default();
        assert_eq!(mean.get(), None);
        mean.note(1000);
        assert_eq!(mean.get(), Some(1000));
        (0..64).for_each(|_| mean.note(2000));
        assert!((1200..1250).contains(&mean.get().unwrap()), "{mean:?}");
        (0..4096).for_each(|_| mean.note(5));
        assert!((5..7).contains(&mean.get().unwrap()), "{mean:?}");
    }

    #[test]
    fn the_clock_goes_round_after_sixteen_times_the_cap_at_least() {
        for cap in [1, 100, 4096, 10_000, 1 << 20, 3 << 24] {
            let workingset = Workingset::new(cap);
            let shadow = workingset.evict(cap, true);
            let turn = (1 << CLOCK_BITS) << workingset.grain;
            assert!((cap * TURN..=(cap * TURN * 2).max(1 << CLOCK_BITS)).contains(&turn), "{cap}: {turn}");
            workingset.evict(turn - 2 * cap - (1 << workingset.grain), false);
            assert!(!workingset.refault(shadow, cap / 2).activate, "{cap}");
        }
    }
}
