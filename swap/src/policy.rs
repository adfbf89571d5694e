//! Which clusters leave, and how long their pages wait on probation: what decides it stands behind one trait.
//!
//! The kernel shows a program no access bits of its own memory. Hot is told from cold by who comes back: from probation
//! (a *hit*, the reference signal), or from a place (a *refault*, judged by its shadow).

use crate::table::History;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

/// What decides about reclaim. Its methods run under the lock of the cluster whose history they are given.
pub trait Policy: Send + Sync + std::fmt::Debug {
    /// `pages` of the cluster came back from probation.
    fn hit(&self, history: &mut History, pages: usize);

    /// Pages of the cluster came back from their places that are used as often as those in memory.
    fn refault(&self, history: &mut History);

    /// The cluster's turn to leave has come: whether it stays this once. Asked again it must let go: reclaim goes round
    /// the queue but once.
    fn spares(&self, history: &mut History) -> bool;

    /// Is told every few hundredths of a second what has come back so far.
    fn observe(&self, seen: Seen);

    /// How many of `pages`, those in the program and on probation, should be on probation.
    fn probation(&self, pages: usize) -> usize;
}

/// What has come back: totals, and from how many pages.
#[derive(Clone, Copy, Debug, Default)]
pub struct Seen {
    /// Pages that came back from probation so far.
    pub hits: u64,
    /// Pages that came back from a place so far.
    pub refaults: u64,
    /// Pages on probation now.
    pub cached: u64,
    /// Pages at a place now.
    pub swapped: u64,
}

/// Which policy.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(u8)]
pub enum Reclaim {
    /// [`SecondChance`].
    #[default]
    SecondChance = 0,
    /// [`Fifo`].
    Fifo = 1,
}

impl Reclaim {
    /// The policy of this number; the default for others.
    pub const fn from_bits(bits: u64) -> Self {
        if bits == Self::Fifo as u64 { Self::Fifo } else { Self::SecondChance }
    }

    /// The policy, which has seen nothing yet.
    pub fn policy(self) -> Box<dyn Policy> {
        match self {
            Self::SecondChance => Box::<SecondChance>::default(),
            Self::Fifo => Box::new(Fifo),
        }
    }
}

/// Shares are in parts of this.
const WHOLE: u32 = 64;
const SHARE_MIN: u32 = WHOLE / 16;
const SHARE_MAX: u32 = WHOLE / 4;
/// What must have come back before the share is looked at.
const SEEN_MIN: u64 = 256;

/// A cluster that is hot goes round once more; probation is as long as it finds hot pages.
///
/// A cluster is hot if a quarter of its pages came back from probation, or if some came back from their places that are
/// used as often as what is in memory (`workingset_activate_anon`).
///
/// What waits on probation cannot be reached without a fault, of a few µs; what is found hot there is spared being
/// stored and read again, of a few tens. So probation grows, to a quarter of the memory, while a page there is wanted
/// more than twice as often as one at a place, and shrinks to a sixteenth where it is wanted no more than those: then
/// all pages are alike, and who comes next cannot be told.
///
/// Two queues of which the first is not observed are the *segmented FIFO* of Turner and Levy (1981), whose second part
/// of some tenths comes close to LRU.
#[derive(Debug)]
pub struct SecondChance {
    share: AtomicU32,
    hits: AtomicU64,
    refaults: AtomicU64,
}

impl Default for SecondChance {
    fn default() -> Self {
        Self { share: AtomicU32::new(SHARE_MIN), hits: AtomicU64::new(0), refaults: AtomicU64::new(0) }
    }
}

impl Policy for SecondChance {
    fn hit(&self, history: &mut History, pages: usize) {
        history.hits += pages as u16;
        // A quarter came back: what is left there is likely hot too.
        history.referenced |= history.hits * 4 >= history.taken;
        history.workingset |= history.referenced;
    }

    fn refault(&self, history: &mut History) {
        history.referenced = true;
        history.workingset = true;
    }

    fn spares(&self, history: &mut History) -> bool {
        std::mem::take(&mut history.referenced)
    }

    fn observe(&self, seen: Seen) {
        let hits = seen.hits.saturating_sub(self.hits.load(Relaxed));
        let refaults = seen.refaults.saturating_sub(self.refaults.load(Relaxed));
        if hits + refaults < SEEN_MIN {
            return;
        }
        self.hits.store(seen.hits, Relaxed);
        self.refaults.store(seen.refaults, Relaxed);
        // Hits a page against refaults a page, without a division.
        let there = u128::from(hits) * u128::from(seen.swapped);
        let elsewhere = u128::from(refaults) * u128::from(seen.cached);
        let share = self.share.load(Relaxed);
        let share = if there > 2 * elsewhere {
            share + 1
        } else if 4 * there < 5 * elsewhere {
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

/// What came first leaves first: to see what the second chance is worth.
#[derive(Debug)]
pub struct Fifo;

impl Policy for Fifo {
    fn hit(&self, history: &mut History, pages: usize) {
        history.hits += pages as u16;
    }

    fn refault(&self, _: &mut History) {}

    fn spares(&self, _: &mut History) -> bool {
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
    fn a_cluster_is_spared_once_if_a_quarter_came_back() {
        let policy = Reclaim::SecondChance.policy();
        let mut history = History { taken: 8, ..History::default() };
        policy.hit(&mut history, 1);
        assert!(!policy.spares(&mut history));
        policy.hit(&mut history, 1);
        assert!(policy.spares(&mut history) && history.workingset);
        assert!(!policy.spares(&mut history));
        policy.refault(&mut history);
        assert!(policy.spares(&mut history) && !policy.spares(&mut history));
        let fifo = Reclaim::Fifo.policy();
        fifo.hit(&mut history, 8);
        fifo.refault(&mut history);
        assert!(!fifo.spares(&mut history));
    }

    /// What comes back in each of some rounds, by how often a page on probation is wanted against one at a place.
    fn probation_after(rounds: u64, wanted: f64) -> usize {
        let policy = SecondChance::default();
        let mut seen = Seen { cached: 1000, swapped: 9000, ..Seen::default() };
        for _ in 0..rounds {
            seen.refaults += 900;
            seen.hits += (100.0 * wanted) as u64;
            policy.observe(seen);
        }
        policy.probation(WHOLE as usize)
    }

    #[test]
    fn probation_grows_only_where_it_tells_hot_from_cold() {
        assert_eq!(probation_after(100, 10.0), SHARE_MAX as usize);
        assert_eq!(probation_after(100, 1.0), SHARE_MIN as usize);
        assert_eq!(probation_after(5, 10.0), SHARE_MIN as usize + 5);
        assert_eq!(Reclaim::Fifo.policy().probation(1 << 20), 0);
    }

    #[test]
    fn a_few_faults_say_nothing() {
        let policy = SecondChance::default();
        let seen = Seen { hits: SEEN_MIN - 1, refaults: 0, cached: 10, swapped: 10 };
        policy.observe(seen);
        assert_eq!(policy.probation(WHOLE as usize), SHARE_MIN as usize);
        policy.observe(Seen { hits: SEEN_MIN, ..seen });
        assert_eq!(policy.probation(WHOLE as usize), SHARE_MIN as usize + 1);
    }
}
