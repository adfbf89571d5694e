//! Compaction of the pool: entries that lie loosely are moved together.

use super::Swap;
use crate::place::Place;
use crate::table::CLUSTERS_MAX;
use crate::zswap::pool::SpanSource;
use pagetide_page::{CLUSTER_PAGES, ClusterNumber};
use std::sync::atomic::Ordering::Relaxed;

/// Compaction begins when as many pages as this, and this part of the pool, would become free.
const LOOSE_MIN: usize = 64;
const LOOSE_PART: usize = 48;

impl<S: SpanSource> Swap<S> {
    /// Moves the pool's entries together, if much of its memory is loose: those of `clusters` clusters at most. Each
    /// call goes on where the last one ended. Returns how many entries it moved.
    pub fn compact(&self, clusters: usize) -> usize {
        let mut from = self.space.shrinking.compacting.load(Relaxed);
        if from == 0 {
            let loose = self.space.zswap.loose_pages();
            if loose < LOOSE_MIN.max(self.space.zswap.pool_pages() / LOOSE_PART) {
                return 0;
            }
            self.space.zswap.compact();
            from = 1;
        }
        let mut next = 0;
        let mut moved = 0;
        for (nth, number) in self.object.table().touched(from - 1..CLUSTERS_MAX).enumerate() {
            if nth == clusters {
                next = number.0 + 1;
                break;
            }
            moved += self.compact_cluster(number);
        }
        self.space.shrinking.compacting.store(next, Relaxed);
        moved
    }

    /// Moves all entries of pages that are stored alone, and returns how many: for tests.
    #[cfg(feature = "shuttle")]
    pub fn compact_all(&self) -> usize {
        self.space.zswap.empty();
        self.object.table().touched(0..CLUSTERS_MAX).map(|number| self.compact_cluster(number)).sum()
    }

    fn compact_cluster(&self, number: ClusterNumber) -> usize {
        let Some(mut cluster) = self.object.table().lock(number) else { return 0 };
        let (mut moved, mut offset) = (0, 0);
        while offset < CLUSTER_PAGES {
            let (word, count) = cluster.stretch(offset, CLUSTER_PAGES - offset);
            // Whoever moves bytes, or writes them back, knows the entry by its handle.
            if let Some(Place::Pool(handle)) = word.place()
                && !word.is_locked()
                && !word.is_writeback()
                && let Some(there) = self.space.zswap.relocate(handle)
            {
                let moved_word = word.with_place(Place::Pool(there)).with_chances(word.chances());
                self.set(&mut cluster, offset, moved_word);
                self.space.zswap.vacate(handle);
                moved += 1;
            }
            offset += count;
        }
        moved
    }
}
