//! Taking out: the next cluster to leave, and the words that a take-out leaves behind.

use super::Swap;
use crate::balance::{Sizes, Totals};
use crate::policy::{SPARED_MAX, Seen};
use crate::stats::Counter;
use crate::table::{ClusterGuard, History};
use crate::word::{State, Word};
use crate::workingset::Shadow;
use crate::zswap::pool::SpanSource;
use pagetide_page::{CLUSTER_PAGES, ClusterNumber, PageIndex};
use std::sync::atomic::Ordering::Relaxed;

/// The answer of a cluster that is asked for its pages out of turn.
#[expect(missing_debug_implementations, reason = "a guard has none")]
pub enum Candidate<'a> {
    /// No page of it is in the program.
    Empty,
    /// A transfer of some of its pages is under way.
    Moving,
    /// Pages of it can be taken out, under this lock.
    Ready(ClusterGuard<'a>),
}

/// The outcome of a take-out, in pages.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct TakenOut {
    /// Pages that are in frames now.
    pub taken: usize,
    /// Pages of `taken` that the table had not known to be in the program.
    pub adopted: usize,
    /// Pages that the table thought to be in the program, but were not.
    pub dropped: usize,
    /// The shadow of the pages that are taken.
    pub shadow: Shadow,
    /// Slots, each with the number of its pages that turned out to be in the program, and are in the slot no more.
    pub left: Vec<(u16, usize)>,
}

impl<S: SpanSource> Swap<S> {
    /// Locks the next cluster to take out; `None` if no cluster in the queue can give pages now.
    ///
    /// A cluster with a transfer under way is passed over: its pages are on the move.
    pub fn victim(&self) -> Option<ClusterGuard<'_>> {
        // All may be as hot as can be.
        for _ in 0..=SPARED_MAX * self.space.queue.len() {
            let key = self.space.queue.pop()?;
            let mut cluster = self.object_of(key).table().lock_or_create(key.number);
            let history = cluster.history();
            let history = History { queued: false, ..history };
            cluster.set_history(history);
            if cluster.present() == 0 {
                if cluster.is_empty() {
                    cluster.set_history(history.emptied());
                }
                continue;
            }
            if cluster.locked() == 0 {
                let mut judged = history;
                if !self.space.policy.spares(&mut judged, cluster.present()) {
                    return Some(cluster);
                }
                cluster.set_history(judged);
                self.space.counters.add(Counter::pgactivate, cluster.present() as u64);
            }
            self.enqueue(&mut cluster);
        }
        None
    }

    /// Locks a cluster to take it out, whether or not its turn has come.
    pub fn candidate(&self, number: ClusterNumber) -> Candidate<'_> {
        match self.object.table().lock(number) {
            Some(cluster) if cluster.locked() > 0 => Candidate::Moving,
            Some(cluster) if cluster.present() > 0 => Candidate::Ready(cluster),
            _ => Candidate::Empty,
        }
    }

    /// Tells the policy how many pages have come back so far. To be called every few hundredths of a second.
    pub fn observe(&self) {
        self.space.policy.observe(Seen {
            hits: self.space.counters.get(Counter::swap_cache_hit),
            refaults: self.space.counters.get(Counter::workingset_refault_anon),
            cached: self.cached().max(0) as u64,
            swapped: self.swapped().max(0) as u64,
        });
    }

    /// Returns the counts of pages that have come and gone so far, for [`crate::balance`]. Faults have waited
    /// `device_ns` nanoseconds for the device in all.
    pub fn totals(&self, device_ns: u64) -> Totals {
        let get = |counter| self.space.counters.get(counter);
        Totals {
            pool_in: get(Counter::zswpin),
            device_in: get(Counter::pswpin),
            device_near: self.space.nearness.near.load(Relaxed),
            pool_near: self.space.nearness.pool_near.load(Relaxed),
            device_ns,
            hits: get(Counter::swap_cache_hit),
            displaced: get(Counter::pool_limit_hit) + get(Counter::zswpwb),
            incompressible: get(Counter::reject_compress_poor),
            reused: get(Counter::swap_reuse),
            stale: self.copies_stale(),
        }
    }

    /// Returns the sizes of pool, device and program, for [`crate::balance`].
    pub fn sizes(&self) -> Sizes {
        Sizes {
            stored: self.space.zswap.stored().0,
            pool: self.space.zswap.pool_pages() as u64,
            device: self.space.blocks.used(),
            resident: self.present().max(0) as u64,
            full: !self.space.zswap.has_room(),
        }
    }

    /// Returns whether more pages are on probation than the policy wants there.
    pub fn is_probation_full(&self) -> bool {
        let cached = self.cached().max(0) as usize;
        cached > self.space.policy.probation(cached + self.present().max(0) as usize)
    }

    /// Makes the clusters of a range the next victims, hot or not. Returns how many of them were in the queue.
    pub fn hasten(&self, range: std::ops::Range<PageIndex>) -> usize {
        let numbers = range.start.cluster().0..range.end.0.div_ceil(CLUSTER_PAGES as u64);
        let ids = self.object.table().touched(numbers).filter_map(|number| {
            let mut cluster = self.object.table().lock(number)?;
            let history = cluster.history();
            cluster.set_history(History { heat: 0, ..history });
            Some(self.object.id().cluster(number))
        });
        self.space.queue.hasten(&ids.collect())
    }

    /// Puts a victim back that could not be taken out.
    pub fn put_back(&self, mut cluster: ClusterGuard<'_>) {
        self.enqueue(&mut cluster);
    }

    /// Records a take-out of the cluster's pages in `range`. Pages in `populated` are in frames of `slot` now. Others
    /// that the table had as present, but are `absent`, had been dropped by a system call that we did not see.
    pub fn taken_out(
        &self,
        cluster: &mut ClusterGuard<'_>,
        slot: u16,
        range: std::ops::Range<usize>,
        populated: impl Fn(usize) -> bool,
        absent: impl Fn(usize) -> bool,
    ) -> TakenOut {
        let mut out = TakenOut::default();
        let end = range.end;
        let mut offset = range.start;
        while offset < end {
            let (word, count) = cluster.stretch(offset, end - offset);
            debug_assert!(!word.is_locked(), "victims have no transfer under way: {word:?}");
            let present = word.state() == State::Present;
            let fate = |offset| (populated(offset), !populated(offset) && present && absent(offset));
            let (taken, dropped) = fate(offset);
            let run = offset
                ..offset
                    + 1
                    + (offset + 1..offset + count).take_while(|&next| fate(next) == (taken, dropped)).count();
            offset = run.end;
            let free = |run: std::ops::Range<usize>| {
                (0..run.len()).for_each(|nth| self.free_place(word.nth(nth).place()));
            };
            if taken {
                // The page tables have the last word: a page that came there by a call we did not see
                // is the program's, and what the table had for it is stale.
                let kept = if present { word.place() } else { None };
                if !present {
                    free(run.clone());
                }
                out.taken += run.len();
                out.adopted += if present { 0 } else { run.len() };
                if word.state() == State::Cached {
                    out.left.push((word.slot(), run.len()));
                }
                self.set_run(cluster, run, word, Word::cached(slot, kept));
            } else if dropped {
                out.dropped += run.len();
                free(run.clone());
                self.set_run(cluster, run, word, Word::HOLE);
            }
        }
        let history = cluster.history();
        out.shadow = self.space.workingset.evict(out.taken as u64, history.workingset);
        cluster.set_history(History { heat: 0, taken: out.taken as u16, workingset: false, ..history });
        if cluster.present() > 0 {
            self.enqueue(cluster);
        }
        self.space.counters.add(Counter::pgsteal, out.taken as u64);
        out
    }
}
