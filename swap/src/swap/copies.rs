//! Kept copies: entries of the pool whose pages have come in.

use super::{PoolScope, Swap};
use crate::place::{Handle, Place};
use crate::stats::Counter;
use crate::zswap::pool::SpanSource;
use pagetide_page::{CLUSTER_PAGES, ClusterNumber};
use std::sync::atomic::Ordering::Relaxed;

/// Kept copies that are dropped under one lock of their cluster.
const DROP_BATCH: usize = 64;
/// Clusters that are asked for copies at a time.
const DROP_CLUSTERS: usize = 1024;
/// Clusters of those that may have copies, and none of the kind that is wanted.
const DROP_IN_VAIN: usize = 16;

impl<S: SpanSource> Swap<S> {
    /// Returns the number of pages in the program of which the pool keeps a copy.
    pub fn copies(&self) -> i64 {
        self.space.totals.copies()
    }

    /// Returns the number of kept copies so far that were of older contents when their page left again. Copies that
    /// were current are counted as `swap_reuse`.
    pub fn copies_stale(&self) -> u64 {
        self.space.admission.copies_stale.load(Relaxed)
    }

    /// Drops about `wanted` kept copies of `scope`. It begins with the pages that came in last: they leave last, and are
    /// the likeliest to be written until then. Returns how many copies it dropped.
    pub fn drop_copies(&self, wanted: usize, scope: PoolScope) -> usize {
        let (clusters, vain) = match scope {
            PoolScope::Own => (DROP_CLUSTERS, DROP_IN_VAIN),
            // Whoever starves is told that none is left.
            PoolScope::Shared => (usize::MAX, usize::MAX),
        };
        let (mut dropped, mut nth, mut in_vain) = (0, 0, 0);
        while dropped < wanted
            && nth < clusters
            && in_vain < vain
            && self.copies() > 0
            && let Some(key) = self.space.queue.youngest(nth)
        {
            let (found, left) = self.drop_copies_in(key.number, scope);
            dropped += found;
            nth += usize::from(found < DROP_BATCH);
            in_vain += usize::from(found == 0 && left > 0);
        }
        self.space.counters.add(Counter::swap_copy_dropped, dropped as u64);
        dropped
    }

    /// Drops at most `DROP_BATCH` copies of a cluster that no fork shares. Returns how many it dropped.
    pub fn drop_copies_of(&self, number: ClusterNumber) -> usize {
        self.drop_copies_in(number, PoolScope::Own).0
    }

    /// Drops at most `DROP_BATCH` copies of a cluster. Returns how many it dropped, and how many are left.
    fn drop_copies_in(&self, number: ClusterNumber, scope: PoolScope) -> (usize, usize) {
        let mut handles = [Handle::page(0); DROP_BATCH];
        let (mut count, mut left) = (0, 0);
        if let Some(mut cluster) = self.object.table().lock(number)
            && cluster.copies() > 0
        {
            for offset in 0..CLUSTER_PAGES {
                let word = cluster.get(offset);
                if let Some(Place::Pool(handle)) = word.place()
                    && word.has_pool_copy()
                    && !word.is_locked()
                    && count < DROP_BATCH
                    && scope.has(&self.space.zswap, handle)
                {
                    self.set(&mut cluster, offset, word.without_place());
                    handles[count] = handle;
                    count += 1;
                }
            }
            left = cluster.copies();
        }
        handles[..count].iter().for_each(|&handle| self.space.zswap.free(handle));
        (count, left)
    }
}
