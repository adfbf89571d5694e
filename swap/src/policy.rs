//! Policies, behind one trait: they decide which clusters leave, and how long their pages wait on probation.
//!
//! The kernel shows a program no access bits of its own memory. Hot pages are told from cold ones by what is written
//! ([`Policy::keeps_written`]), and by their coming back: from probation (a *hit*, the reference signal), or from a place
//! (a *refault*, judged by its shadow).

use crate::table::History;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

/// A rule by which clusters leave. Methods that are given a cluster's history run under the cluster's lock.
pub trait Policy: Send + Sync + std::fmt::Debug {
    /// Notes that `pages` pages of the cluster came back from probation.
    fn hit(&self, history: &mut History, pages: usize);

    /// Notes that `pages` pages of the cluster came back from their places which are used as often as those in memory.
    fn refault(&self, history: &mut History, pages: usize);

    /// Returns whether a cluster stays this once whose turn to leave has come, and of which `present` pages are in the
    /// program. It spares the same cluster at most [`SPARED_MAX`] times in a row.
    fn spares(&self, history: &mut History, present: usize) -> bool;

    /// Returns whether pages stay when their cluster leaves, if they were written of late.
    fn keeps_written(&self) -> bool;

    /// Notes how many pages have come back so far. It is called every few hundredths of a second.
    fn observe(&self, seen: Seen);

    /// Returns how many pages should be on probation, of `pages` in the program and on probation.
    fn probation(&self, pages: usize) -> usize;
}

/// Pages that came back, and pages that may: what a policy goes by.
#[derive(Clone, Copy, Debug, Default)]
pub struct Seen {
    /// Pages that came back from probation so far.
    pub hits: u64,
    /// Pages that came back from a place so far.
    pub refaults: u64,
    /// Pages of those that came back from the device.
    pub device: u64,
    /// Pages on probation now.
    pub cached: u64,
    /// Pages at a place now.
    pub swapped: u64,
}

pagetide_page::numbered_enum! {
    /// The name of a [`Policy`], as users choose it.
    #[derive(Default)]
    pub enum Reclaim: u64 {
        /// The policy [`SecondChance`].
        #[default]
        SecondChance = 0,
        /// The policy [`Fifo`].
        Fifo = 1,
    }
}

impl Reclaim {
    /// Makes a policy of this name, which has seen nothing yet.
    pub fn policy(self) -> Box<dyn Policy> {
        match self {
            Self::SecondChance => Box::<SecondChance>::default(),
            Self::Fifo => Box::new(Fifo),
        }
    }
}

/// A cluster is hot if this part of its pages came back.
const HOT_PART: u32 = 4;
/// The number of times in a row that a cluster is spared at most: when all of its pages came back, then half, then a
/// quarter.
pub const SPARED_MAX: usize = 3;

/// The whole of which a share is a part: shares of probation are counted in 64ths.
const WHOLE: u32 = 64;
const SHARE_MIN: u32 = WHOLE / 16;
const SHARE_MAX: u32 = WHOLE / 4;
/// Pages that must have come back before the share is judged anew.
const SEEN_MIN: u64 = 256;
/// The part of what comes back from a place that must come from the device for probation to grow.
const DEVICE_PART: u64 = 4;

/// The second-chance policy: a hot cluster goes round once more, and probation is as long as its hits are worth.
///
/// ```
/// use pagetide_swap::Reclaim;
/// use pagetide_swap::table::History;
///
/// let policy = Reclaim::SecondChance.policy();
/// let mut history = History { taken: 8, ..History::default() };
/// assert!(!policy.spares(&mut history, 8), "no page came back: the cluster is cold");
/// policy.hit(&mut history, 2);
/// assert!(policy.spares(&mut history, 8), "a quarter of its pages came back");
/// assert!(!policy.spares(&mut history, 8), "half of that is forgotten each time");
/// ```
///
/// The second chance of entries of the pool is another: [`crate::zswap::shrinker::SecondChance`].
///
/// A cluster is hot if as many pages came back as a quarter of what is there: from probation, or from their places if
/// they are used as often as what is in memory (`workingset_activate_anon`). Each time that it is spared half of that
/// is forgotten, so one of which all came back goes round three times (the *generalised clock*, Smith 1978). What never
/// left counts as cold: pages that were touched for the first time leave before those that proved to be wanted again.
///
/// A page on probation cannot be reached without a fault, which takes about half as long as one from the pool. Of three
/// to five pages that come back from there one would have had to come from its place had probation been shorter, however
/// much more they are wanted than what has left (`docs/decisions/0021-probation-grows-for-the-device.md`). So probation grows, to a
/// quarter of the memory, where both hold:
///
/// - of what comes back from a place a quarter comes from the device, so that it takes four times as long and more;
/// - a page on probation is wanted more than twice as often as one at a place: otherwise all pages are alike.
///
/// It shrinks, to a sixteenth, where less than an eighth comes from the device, or a page there is wanted hardly more often.
///
/// Two queues of which the first is not observed are the *segmented FIFO* of Turner and Levy (1981), whose second part
/// of some tenths comes close to LRU.
#[derive(Debug)]
pub struct SecondChance {
    share: AtomicU32,
    hits: AtomicU64,
    refaults: AtomicU64,
    device: AtomicU64,
}

impl Default for SecondChance {
    fn default() -> Self {
        let zero = AtomicU64::default;
        Self { share: AtomicU32::new(SHARE_MIN), hits: zero(), refaults: zero(), device: zero() }
    }
}

impl Policy for SecondChance {
    fn hit(&self, history: &mut History, pages: usize) {
        history.heat += pages as u16;
        // A quarter came back: what is left there is likely hot too.
        history.workingset |= u32::from(history.heat) * HOT_PART >= history.taken.into();
    }

    fn refault(&self, history: &mut History, pages: usize) {
        history.heat += pages as u16;
        history.workingset = true;
    }

    fn spares(&self, history: &mut History, present: usize) -> bool {
        // What came back may have gone again by now.
        let heat = history.heat.min(present as u16);
        history.heat = heat / 2;
        heat > 0 && u32::from(heat) * HOT_PART >= present as u32
    }

    fn keeps_written(&self) -> bool {
        true
    }

    fn observe(&self, seen: Seen) {
        let hits = seen.hits.saturating_sub(self.hits.load(Relaxed));
        let refaults = seen.refaults.saturating_sub(self.refaults.load(Relaxed));
        if hits + refaults < SEEN_MIN {
            return;
        }
        let device = seen.device.saturating_sub(self.device.load(Relaxed));
        self.hits.store(seen.hits, Relaxed);
        self.refaults.store(seen.refaults, Relaxed);
        self.device.store(seen.device, Relaxed);
        // Hits a page against refaults a page, without a division.
        let there = u128::from(hits) * u128::from(seen.swapped);
        let elsewhere = u128::from(refaults) * u128::from(seen.cached);
        let share = self.share.load(Relaxed);
        let is_slow = device > 0 && device * DEVICE_PART >= refaults;
        let is_fast = refaults > 0 && device * DEVICE_PART * 2 < refaults;
        let share = if is_slow && there > 2 * elsewhere {
            share + 1
        } else if is_fast || 4 * there < 5 * elsewhere {
            share - 1
        } else {
            share
        };
        self.share.store(share.clamp(SHARE_MIN, SHARE_MAX), Relaxed);
    }

    fn probation(&self, pages: usize) -> usize {
        pages * self.share.load(Relaxed) as usize / WHOLE as usize
    }
}

/// The first-in-first-out policy, without probation: a base line to measure the second chance against.
#[derive(Debug)]
pub struct Fifo;

impl Policy for Fifo {
    fn hit(&self, _: &mut History, _: usize) {}

    fn refault(&self, _: &mut History, _: usize) {}

    fn spares(&self, _: &mut History, _: usize) -> bool {
        false
    }

    fn keeps_written(&self) -> bool {
        false
    }

    fn observe(&self, _: Seen) {}

    fn probation(&self, _: usize) -> usize {
        0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cluster_is_spared_as_often_as_the_part_that_came_back_is_halved_down_to_a_quarter() {
        let policy = Reclaim::SecondChance.policy();
        let spared = |came_back: usize, present: usize| {
            let mut history = History { taken: 8, ..History::default() };
            policy.hit(&mut history, came_back);
            (0..10).take_while(|_| policy.spares(&mut history, present)).count()
        };
        assert_eq!(
            [0, 1, 2, 3, 4, 7, 8].map(|came_back| spared(came_back, 8)),
            [0, 0, 1, 1, 2, 2, SPARED_MAX]
        );
        assert_eq!(spared(500, 8), SPARED_MAX, "more came back than is left");
        assert_eq!((spared(8, 512), spared(8, 32)), (0, 1), "of the others nobody knows");
        let mut history = History::default();
        policy.refault(&mut history, 8);
        assert!(history.workingset && policy.spares(&mut history, 32) && !policy.spares(&mut history, 32));
        let fifo = Reclaim::Fifo.policy();
        fifo.hit(&mut history, 8);
        fifo.refault(&mut history, 8);
        assert!(!fifo.spares(&mut history, 8));
    }

    /// What comes back in each of some rounds, by how often a page on probation is wanted against one at a place, and
    /// which percentage of those comes from the device.
    fn probation_after(rounds: u64, wanted: f64, device: u64) -> usize {
        let policy = SecondChance::default();
        let mut seen = Seen { cached: 1000, swapped: 9000, ..Seen::default() };
        for _ in 0..rounds {
            seen.refaults += 900;
            seen.device += 9 * device;
            seen.hits += (100.0 * wanted) as u64;
            policy.observe(seen);
        }
        policy.probation(WHOLE as usize)
    }

    #[test]
    fn probation_grows_only_where_it_tells_hot_from_cold_and_the_device_is_asked() {
        assert_eq!(probation_after(100, 10.0, 40), SHARE_MAX as usize);
        assert_eq!(probation_after(100, 1.0, 40), SHARE_MIN as usize);
        assert_eq!(probation_after(5, 10.0, 40), SHARE_MIN as usize + 5);
        assert_eq!(probation_after(100, 10.0, 20), SHARE_MIN as usize);
        assert_eq!(Reclaim::Fifo.policy().probation(1 << 20), 0);
    }

    #[test]
    fn a_few_faults_say_nothing() {
        let policy = SecondChance::default();
        let seen = Seen { hits: SEEN_MIN - 2, refaults: 1, device: 1, cached: 10, swapped: 10 };
        policy.observe(seen);
        assert_eq!(policy.probation(WHOLE as usize), SHARE_MIN as usize);
        policy.observe(Seen { hits: SEEN_MIN, ..seen });
        assert_eq!(policy.probation(WHOLE as usize), SHARE_MIN as usize + 1);
    }
}
