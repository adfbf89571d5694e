//! Taking out: the next cluster to leave, and the words that a take-out leaves behind.

use super::Swap;
use crate::balance::{Sizes, Totals};
use crate::policy::{SPARED_MAX, Seen};
use crate::stats::Counter;
use crate::table::{ClusterGuard, History};
use crate::word::{State, Word};
use crate::workingset::Shadow;
use crate::zswap::pool::SpanSource;
use pagetide_page::{CLUSTER_PAGES, ClusterNumber, PageIndex, PageSet};
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

/// Clusters that are watched at most before one leaves.
const WATCHED_MAX: usize = 4;
/// Clusters in a row that stay at most since nearly all of their pages are hot: then the next leaves, hot or not.
const HOT_SPARED_MAX: usize = 8;

/// Where the pages of a cluster that were written are this part of those that came back, they are what is hot in it.
const READ_PART: usize = 4;

/// The question which pages of a cluster were written.
#[expect(missing_debug_implementations, reason = "a guard has none")]
pub enum Written<'a, 'b> {
    /// Of a cluster that is watched from now on. No cluster is locked.
    Watch(ClusterNumber),
    /// Of one that is watched, and locked.
    Of(&'a ClusterGuard<'b>),
}

impl Written<'_, '_> {
    /// Returns the cluster, and whether it is watched from now on.
    pub fn cluster(&self) -> (ClusterNumber, bool) {
        match self {
            Self::Watch(number) => (*number, true),
            Self::Of(cluster) => (cluster.number(), false),
        }
    }
}

/// A cluster that is to leave.
#[expect(missing_debug_implementations, reason = "a guard has none")]
pub struct Victim<'a> {
    /// The cluster, locked.
    pub cluster: ClusterGuard<'a>,
    /// Pages of it that stay: they are hot.
    pub hot: PageSet,
}

impl<'a> Victim<'a> {
    /// Returns a cluster of which every page is to leave.
    pub fn whole(cluster: ClusterGuard<'a>) -> Self {
        Self { cluster, hot: PageSet::default() }
    }
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
        self.next_victim(|_| None).map(|victim| victim.cluster)
    }

    /// Locks the next cluster to take out, and says which of its pages stay; `None` if no cluster in the queue can give
    /// pages now.
    ///
    /// `written` tells the pages of a cluster that are in the program and that were written, or came in, since it was last
    /// asked to watch that cluster; `None` where that is not known. Where it is known it decides which pages get a second
    /// chance; elsewhere the whole cluster does, by what came back of it ([`crate::policy`]).
    pub fn next_victim(&self, written: impl Fn(Written<'_, '_>) -> Option<PageSet>) -> Option<Victim<'_>> {
        let mut spared = 0;
        // All may be as hot as can be.
        for _ in 0..=SPARED_MAX * self.space.queue.len() {
            self.watch(&written);
            let key = self.space.queue.pop()?;
            let mut cluster = self.object_of(key).table().lock_or_create(key.number);
            let history = cluster.history();
            let was_watched = history.watched;
            let history = History { queued: false, watched: false, ..history };
            cluster.set_history(history);
            if cluster.present() == 0 {
                self.space.hot.forget(key);
                if cluster.is_empty() {
                    cluster.set_history(history.emptied());
                }
                continue;
            }
            if cluster.locked() == 0 {
                let told = if was_watched { written(Written::Of(&cluster)) } else { None };
                let stay = match told {
                    Some(written) if spared < HOT_SPARED_MAX => {
                        let stay = self.space.hot.stay(key, cluster.present(), written);
                        spared += usize::from(stay.is_none());
                        stay
                    }
                    _ => {
                        self.space.hot.forget(key);
                        Some(PageSet::default())
                    }
                };
                let stay = stay.filter(|hot| !self.spares_whole(&mut cluster, hot.len()));
                let stays = stay.map_or(cluster.present(), |stay| stay.len());
                self.space.counters.add(Counter::pgactivate, stays as u64);
                if let Some(hot) = stay {
                    return Some(Victim { cluster, hot });
                }
            }
            self.enqueue(&mut cluster);
        }
        None
    }

    /// Returns whether a cluster stays though `hot` of its pages would stay alone: by what came back of it, unless those
    /// are as many as a part of that ([`READ_PART`]). Where they are fewer, the cluster is one that is mostly read.
    fn spares_whole(&self, cluster: &mut ClusterGuard<'_>, hot: usize) -> bool {
        let mut judged = cluster.history();
        if hot > 0 && hot * READ_PART >= judged.heat.into() {
            return false;
        }
        let spared = self.space.policy.spares(&mut judged, cluster.present());
        cluster.set_history(judged);
        spared
    }

    /// Watches what is written in clusters that have grown old.
    fn watch(&self, written: impl Fn(Written<'_, '_>) -> Option<PageSet>) {
        for _ in 0..WATCHED_MAX {
            let Some(number) = self.next_to_watch() else { return };
            if written(Written::Watch(number)).is_none() {
                return;
            }
        }
    }

    /// Returns the next cluster that has grown old and is to be watched from now on.
    fn next_to_watch(&self) -> Option<ClusterNumber> {
        if !self.space.policy.keeps_written() {
            return None;
        }
        while let Some(key) = self.space.queue.grown_old() {
            if !self.space.hot.is_watching() {
                continue;
            }
            let Some(mut cluster) = self.object_of(key).table().lock(key.number) else { continue };
            let history = cluster.history();
            if cluster.present() > 0 && !history.watched {
                cluster.set_history(History { watched: true, ..history });
                return Some(key.number);
            }
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
            device: self.space.counters.get(Counter::pswpin),
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
            pool_faults: self.space.nearness.pool_faults.load(Relaxed),
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
            payload: self.space.zswap.stored().1,
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
            cluster.set_history(History { heat: 0, watched: false, ..history });
            Some(self.object.id().cluster(number))
        });
        self.space.queue.hasten(&ids.collect())
    }

    /// Puts a victim back that could not be taken out.
    pub fn put_back(&self, mut cluster: ClusterGuard<'_>) {
        self.enqueue(&mut cluster);
    }

    /// Leaves a victim out of the queue, of which nothing can leave, until a page comes in or [`Swap::queue_again`].
    pub fn leave_out(&self, cluster: ClusterGuard<'_>) {
        drop(cluster);
    }

    /// Queues a cluster that was left out.
    pub fn queue_again(&self, number: ClusterNumber) {
        if let Some(mut cluster) = self.object.table().lock(number) {
            self.enqueue(&mut cluster);
        }
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
                let cached = Word::cached(slot, kept).with_refaulted(word.has_refaulted());
                self.set_run(cluster, run, word, cached);
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
