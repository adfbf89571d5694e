//! Shrinkers, which tell how many entries of the pool may be written back under pressure: two schemes of Linux's zswap.
//!
//! Which entries those are is decided where the hand passes them: [`crate::swap::Swap::scan`].
//!
//! | | [`SecondChance`] (Linux 6.12) | [`Decay`] (Linux 6.8) |
//! |---|---|---|
//! | which entries | one is passed over as often as it has chances ([`crate::Word::chances`]): in Linux once | in order |
//! | how many are protected | as many as were read from the device of late; consumed as it is used | a number that grows by one with each store and each swapin, and is halved at a store where it exceeds a quarter of the entries |
//!
//! The other entries are eligible. Their number is scaled by the compression ratio, for an entry gives that much less
//! memory than a page does. The kernel's reclaim then scans twice the part of them that it scans of other memory
//! ([`SCAN_RATE`]).

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// The part of the eligible entries that is scanned, against the part of the program's memory: 4 / `DEFAULT_SEEKS` of
/// the kernel's `do_shrink_slab`.
pub const SCAN_RATE: f64 = 2.0;

pagetide_page::numbered_enum! {
    /// A scheme by which the pool gives entries up.
    #[derive(Default)]
    pub enum Shrinker: u8 {
        /// The scheme [`SecondChance`].
        #[default]
        SecondChance = 0,
        /// The scheme [`Decay`].
        Decay = 1,
        /// The pool gives nothing up before it nears its limit, and then in order.
        None = 2,
    }
}

/// The contents of the pool: entries, and the memory that they take.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Pooled {
    /// The number of entries.
    pub stored: u64,
    /// The number of pages of memory that the pool takes.
    pub backing: u64,
}

/// Returns the number of pages of the pool that `count` entries take.
fn scaled(count: u64, pooled: Pooled) -> u64 {
    (u128::from(count) * u128::from(pooled.backing) / u128::from(pooled.stored.max(1))) as u64
}

/// The second-chance shrinker, after `zswap_shrinker_count` of Linux 6.12 (Pham 2024). The second chance of clusters in the
/// program is another: [`crate::policy::SecondChance`].
///
/// ```
/// use pagetide_swap::zswap::shrinker::{Pooled, SecondChance};
///
/// let shrinker = SecondChance::default();
/// let pooled = Pooled { stored: 1000, backing: 250 };
/// shrinker.note_disk_swapins(600);
/// // 600 entries are protected; the other 400 take 100 pages.
/// assert_eq!(shrinker.eligible(pooled), 100);
/// assert_eq!(shrinker.eligible(pooled), 250, "the protection is consumed");
/// ```
#[derive(Debug, Default)]
pub struct SecondChance {
    disk_swapins: AtomicU64,
}

impl SecondChance {
    /// Notes that `pages` pages came in from the device, on demand or ahead of it.
    pub fn note_disk_swapins(&self, pages: u64) {
        self.disk_swapins.fetch_add(pages, Relaxed);
    }

    /// Returns how much may be written back, in pages of the pool. It protects as many entries as pages came back from
    /// the device: had those been spared, they would not have had to.
    pub fn eligible(&self, pooled: Pooled) -> u64 {
        let consume = |swapins: u64| Some(swapins.saturating_sub(pooled.stored));
        let swapins = self.disk_swapins.fetch_update(Relaxed, Relaxed, consume).unwrap_or_default();
        scaled(pooled.stored - swapins.min(pooled.stored), pooled)
    }
}

/// The decaying shrinker, after `zswap_lru_add`, `zswap_folio_swapin` and `zswap_shrinker_count` of Linux 6.8.
#[derive(Debug, Default)]
pub struct Decay {
    protected: AtomicU64,
}

impl Decay {
    /// Notes that an entry was stored. There are `stored` entries now.
    pub fn note_store(&self, stored: u64) {
        let decay = |protected: u64| {
            let grown = protected + 1;
            Some(if grown > stored / 4 { grown / 2 } else { grown })
        };
        _ = self.protected.fetch_update(Relaxed, Relaxed, decay);
    }

    /// Notes that a page came in for which a fault waited.
    pub fn note_swapin(&self) {
        self.protected.fetch_add(1, Relaxed);
    }

    /// Returns how much may be written back, in pages of the pool.
    pub fn eligible(&self, pooled: Pooled) -> u64 {
        scaled(pooled.stored.saturating_sub(self.protected()), pooled)
    }

    /// Returns whether `scan` entries can be scanned without touching those that are protected.
    pub fn permits(&self, scan: u64, stored: u64) -> bool {
        self.protected() < stored.saturating_sub(scan)
    }

    fn protected(&self) -> u64 {
        self.protected.load(Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pooled(stored: u64) -> Pooled {
        Pooled { stored, backing: stored / 4 }
    }

    #[test]
    fn disk_swapins_protect_as_many_entries_and_are_consumed() {
        let shrinker = SecondChance::default();
        assert_eq!(shrinker.eligible(pooled(1000)), 250);
        shrinker.note_disk_swapins(600);
        assert_eq!(shrinker.eligible(pooled(1000)), 100);
        assert_eq!(shrinker.eligible(pooled(1000)), 250, "consumed");
        shrinker.note_disk_swapins(1500);
        assert_eq!(shrinker.eligible(pooled(1000)), 0);
        assert_eq!(shrinker.eligible(pooled(1000)), 125, "the rest of them");
        assert_eq!(shrinker.eligible(Pooled::default()), 0);
    }

    /// The recurrence of Linux 6.8, written down once more: p ← p + 1, then p ← p / 2 if p > stored / 4.
    #[test]
    fn decay_is_the_recurrence() {
        let shrinker = Decay::default();
        let mut protected = 0u64;
        for step in 0..10_000u64 {
            let stored = 1 + step * 7 % 900;
            if step % 3 == 0 {
                shrinker.note_swapin();
                protected += 1;
            } else {
                shrinker.note_store(stored);
                protected += 1;
                if protected > stored / 4 {
                    protected /= 2;
                }
            }
            assert_eq!(shrinker.protected(), protected);
            let eligible = stored.saturating_sub(protected);
            assert_eq!(shrinker.eligible(pooled(stored)), eligible * (stored / 4) / stored);
            assert_eq!(shrinker.permits(10, stored), protected < stored.saturating_sub(10));
        }
    }

    /// What S4 found: swapins had protected much, and a burst of stores leaves next to nothing of it.
    #[test]
    fn a_burst_of_stores_erases_what_decay_protects() {
        let shrinker = Decay::default();
        (0..2000).for_each(|_| shrinker.note_swapin());
        (0..20).for_each(|_| shrinker.note_store(1000));
        assert!(shrinker.protected() <= 250);
    }
}
