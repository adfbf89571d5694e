//! Kept copies: entries of the pool whose pages have come in.

use super::{PoolScope, Swap};
use crate::place::{Handle, Place};
use crate::stats::Counter;
use crate::zswap::pool::SpanSource;
use pagetide_page::{CLUSTER_PAGES, ClusterNumber};
use std::sync::atomic::Ordering::Relaxed;

/// Kept copies that are dropped under one lock of their cluster.
const DROP_BATCH: usize = 64;
/// Clusters that are asked for copies in one step of reclaim, and those of them whose copies are all shared.
const STEP: Walk = Walk { clusters: 1024, in_vain: 16 };
const ALL: Walk = Walk { clusters: usize::MAX, in_vain: usize::MAX };

/// How far a walk for copies goes.
#[derive(Clone, Copy)]
struct Walk {
    clusters: usize,
    /// Clusters that have copies, and none of the kind that is wanted.
    in_vain: usize,
}

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
    /// the likeliest to be written until then. Returns how many copies it dropped: 0 if there are none.
    pub fn drop_copies(&self, wanted: usize, scope: PoolScope) -> usize {
        self.drop_copies_from(0, wanted, scope, ALL).0
    }

    /// Drops about `wanted` kept copies that no fork shares, as [`Swap::drop_copies`], in a step of bounded work. Where
    /// it finds copies that are shared, and no others, the next step goes on behind those.
    pub fn drop_copies_step(&self, wanted: usize) -> usize {
        let from = self.space.shrinking.copies_at.load(Relaxed);
        let (dropped, nth) = self.drop_copies_from(from, wanted, PoolScope::Own, STEP);
        self.space.shrinking.copies_at.store(if dropped > 0 { 0 } else { nth }, Relaxed);
        dropped
    }

    /// Drops copies from the `from`th youngest cluster on. Returns how many, and where it stopped: 0 at the end.
    fn drop_copies_from(&self, from: usize, wanted: usize, scope: PoolScope, walk: Walk) -> (usize, usize) {
        let (mut dropped, mut nth, mut in_vain) = (0, from, 0);
        let last = from.saturating_add(walk.clusters);
        let mut ended = false;
        while dropped < wanted && nth < last && in_vain < walk.in_vain && self.copies() > 0 {
            let Some(key) = self.space.queue.youngest(nth) else {
                ended = true;
                break;
            };
            let (found, left) = self.drop_copies_in(key.number, scope);
            dropped += found;
            nth += usize::from(found < DROP_BATCH);
            in_vain += usize::from(found == 0 && left > 0);
        }
        self.space.counters.add(Counter::swap_copy_dropped, dropped as u64);
        (dropped, if ended || self.copies() == 0 { 0 } else { nth })
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
