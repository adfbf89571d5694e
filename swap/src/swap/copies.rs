//! Kept copies: entries of the pool whose pages have come in.

use super::Swap;
use crate::place::{Handle, Place};
use crate::stats::Counter;
use crate::zswap::pool::SpanSource;
use pagetide_page::{CLUSTER_PAGES, ClusterNumber};
use std::sync::atomic::Ordering::Relaxed;

/// Kept copies that are dropped under one lock of their cluster.
const DROP_BATCH: usize = 64;
/// Clusters that are asked for copies at a time.
const DROP_CLUSTERS: usize = 1024;

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

    /// Drops about `wanted` kept copies. It begins with the pages that came in last: they leave last, and are the
    /// likeliest to be written until then. Returns how many copies it dropped.
    pub fn drop_copies(&self, wanted: usize) -> usize {
        let mut dropped = 0;
        let mut nth = 0;
        while dropped < wanted
            && nth < DROP_CLUSTERS
            && self.copies() > 0
            && let Some(key) = self.space.queue.youngest(nth)
        {
            let found = self.drop_copies_of(key.number);
            dropped += found;
            nth += usize::from(found < DROP_BATCH);
        }
        self.space.counters.add(Counter::swap_copy_dropped, dropped as u64);
        dropped
    }

    /// Drops at most `DROP_BATCH` copies of a cluster. Returns how many it dropped.
    pub fn drop_copies_of(&self, number: ClusterNumber) -> usize {
        let mut handles = [Handle::page(0); DROP_BATCH];
        let mut count = 0;
        if let Some(mut cluster) = self.object.table().lock(number)
            && cluster.copies() > 0
        {
            for offset in 0..CLUSTER_PAGES {
                let word = cluster.get(offset);
                if let Some(Place::Pool(handle)) = word.place()
                    && word.has_pool_copy()
                    && !word.is_locked()
                    && count < DROP_BATCH
                {
                    self.set(&mut cluster, offset, word.without_place());
                    handles[count] = handle;
                    count += 1;
                }
            }
        }
        handles[..count].iter().for_each(|&handle| self.space.zswap.free(handle));
        count
    }
}
