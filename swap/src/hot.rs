//! Hot pages: which pages of a cluster stay when the others leave.
//!
//! A program does not see which of its pages are used; but the kernel tells which were *written* since they were
//! protected (`UFFD_FEATURE_WP_ASYNC`). So a cluster that comes into the older part of the queue is *watched*, and when
//! its turn has come, the pages that were written since, or have come in since, are *hot*: they stay. It is the clock
//! algorithm (Corbató 1968) by page, with the bit of what was written for that of what was used.
//!
//! What was written once may be written again, or not. Pages that stayed are therefore looked at on their cluster's
//! next turn: where fewer than a part of them ([`PAYS`]) were written again, all leave together, which is cheaper.

use crate::sync::atomic::{AtomicU32, Ordering::Relaxed};
use crate::sync::{Mutex, lock};
use pagetide_page::{ClusterKey, PageSet};
use std::collections::HashMap;

/// The whole of which averages are a part.
const WHOLE: u32 = 1 << 16;
/// The part of what stayed that must be written again for hot pages to stay: keeping a scattered page costs a move, which
/// takes a fourth of the time of a fault.
const PAYS: u32 = WHOLE / 4;
/// The part of what is in watched clusters that must be hot for each cluster to be watched.
const WORTH: u32 = WHOLE / 64;
/// Clusters of which one is watched, or keeps its hot pages, where that is not worth it: to see whether it is by now.
const SAMPLE: u32 = 16;
/// Where fewer cold pages than one in so many could leave, none does.
const COLD_MIN: usize = 16;
/// Turns over which is averaged, about.
const TURNS: u32 = 16;

/// The pages that are hot, by cluster, and what is known of the worth of keeping them.
#[derive(Debug)]
pub(crate) struct Hot {
    /// Pages that stayed at their cluster's last turn.
    stayed: Mutex<HashMap<ClusterKey, PageSet>>,
    /// The part of what stayed that was written again, on average.
    again: AtomicU32,
    /// The part of watched pages that were hot, on average.
    found: AtomicU32,
    watches: AtomicU32,
    turns: AtomicU32,
}

impl Default for Hot {
    fn default() -> Self {
        Self {
            stayed: Mutex::default(),
            again: AtomicU32::new(WHOLE),
            found: AtomicU32::new(WHOLE),
            watches: AtomicU32::new(0),
            turns: AtomicU32::new(0),
        }
    }
}

/// Moves an average towards `part` of `whole`, by weight.
fn average(of: &AtomicU32, part: usize, whole: usize) {
    let now = (part as u64 * u64::from(WHOLE) / whole as u64) as u32;
    let before = of.load(Relaxed);
    of.store(before - before / TURNS + now / TURNS, Relaxed);
}

impl Hot {
    /// Returns whether the next cluster that grows old is to be watched.
    pub(crate) fn is_watching(&self) -> bool {
        let nth = self.watches.fetch_add(1, Relaxed);
        (self.pays() && self.found.load(Relaxed) >= WORTH) || nth.is_multiple_of(SAMPLE)
    }

    /// Returns whether hot pages that stay are written again.
    fn pays(&self) -> bool {
        self.again.load(Relaxed) >= PAYS
    }

    /// Returns the pages that stay when a watched cluster leaves of which `present` pages are in the program, and
    /// `written` of those were written or came in since; `None` if the cluster stays, since nearly all pages would.
    pub(crate) fn stay(&self, cluster: ClusterKey, present: usize, written: PageSet) -> Option<PageSet> {
        let hot = written.len().min(present);
        average(&self.found, hot, present.max(1));
        let mut stayed = lock(&self.stayed);
        if let Some(before) = stayed.remove(&cluster).filter(|before| !before.is_empty()) {
            average(&self.again, before.and(written).len(), before.len());
        }
        let nth = self.turns.fetch_add(1, Relaxed);
        if hot == 0 || !(self.pays() || nth.is_multiple_of(SAMPLE)) {
            return Some(PageSet::default());
        }
        stayed.insert(cluster, written);
        ((present - hot) * COLD_MIN >= present).then_some(written)
    }

    /// Forgets a cluster that leaves whole.
    pub(crate) fn forget(&self, cluster: ClusterKey) {
        lock(&self.stayed).remove(&cluster);
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::*;
    use pagetide_page::{ClusterNumber, ObjectId};

    fn key(number: u64) -> ClusterKey {
        ObjectId::PRIVATE.cluster(ClusterNumber(number))
    }

    fn pages(range: std::ops::Range<usize>) -> PageSet {
        PageSet::range(range)
    }

    #[test]
    fn what_was_written_stays_and_its_cluster_with_it_if_that_is_nearly_all() {
        let hot = Hot::default();
        assert_eq!(hot.stay(key(1), 512, pages(3..40)), Some(pages(3..40)));
        assert_eq!(hot.stay(key(2), 512, PageSet::default()), Some(PageSet::default()));
        assert_eq!(hot.stay(key(3), 512, pages(0..500)), None);
        assert_eq!(hot.stay(key(4), 16, pages(0..15)), Some(pages(0..15)));
        assert_eq!(hot.stay(key(5), 7, pages(0..8)), None, "a page came in meanwhile");
    }

    #[test]
    fn pages_that_are_not_written_again_leave_with_the_others_but_for_a_sample() {
        let hot = Hot::default();
        let kept = |from: usize| {
            let keeps =
                |&nth: &u64| hot.stay(key(nth), 512, pages(from..from + 100)) != Some(PageSet::default());
            (0..48).filter(keeps).count()
        };
        assert_eq!(kept(0), 48);
        assert!((4..40).contains(&kept(100)), "they are others than before");
        assert_eq!(kept(200), 3, "one in sixteen shows whether that is still so");
        (0..60).for_each(|_| _ = kept(0));
        assert_eq!(kept(0), 48, "they are the same each time");
    }

    #[test]
    fn where_nothing_is_written_few_clusters_are_watched() {
        let hot = Hot::default();
        let watched = || (0..160).filter(|_| hot.is_watching()).count();
        assert_eq!(watched(), 160);
        (0..100).for_each(|nth| _ = hot.stay(key(nth), 512, PageSet::default()));
        assert_eq!(watched(), 10);
    }
}
