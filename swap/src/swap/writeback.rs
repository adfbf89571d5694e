//! Writeback: entries of the pool go to the device.

use super::Swap;
use crate::hash::PageHash;
use crate::place::{Handle, Place};
use crate::stats::Counter;
use crate::table::History;
use crate::word::{CHANCES_MAX, State, Word};
use crate::zswap::pool::SpanSource;
use crate::zswap::shrinker::{Decay, Pooled, SCAN_RATE, SecondChance, Shrinker};
use crate::zswap::{Scratch, Zswap};
use pagetide_page::{CLUSTER_PAGES, ClusterNumber, PageIndex};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

/// Entries that the shrinker's hand passes at once, at least.
const SCAN_BATCH: f64 = 32.0;

/// Clusters in a row without an entry of the scope that the hand passes at once, where it is to pass only so many entries.
const BARREN_MAX: usize = 32;

/// An entry is too old to be spared where so many times as many pages have left since its page did as when pages come
/// back on average.
const TOO_OLD: u64 = 3;

/// The positions of the shrinker's hand and of compaction.
#[derive(Debug, Default)]
pub(super) struct Shrinking {
    /// The page at which the shrinker's hand has stopped amid a cluster; 0 if at an end.
    hand: AtomicU64,
    /// Entries that the hand should pass and has not, as bits of a float.
    due: AtomicU64,
    /// The place in the queue, from its young end, at which a walk for kept copies goes on.
    pub(super) copies_at: AtomicUsize,
    pub(super) second_chance: SecondChance,
    pub(super) decay: Decay,
    /// One more than the cluster whose entries compaction looks at next; 0 if there is none under way.
    pub(super) compacting: AtomicU64,
}

/// A choice of entries of the pool.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PoolScope {
    /// Entries that are not shared by fork: these give memory when they go.
    Own,
    /// Entries that are shared by fork: they give memory when every process that shares them has let go of them.
    Shared,
}

impl PoolScope {
    pub(super) fn has<S: SpanSource>(self, zswap: &Zswap<S>, handle: Handle) -> bool {
        match self {
            Self::Own => !zswap.is_frozen(handle),
            Self::Shared => zswap.is_frozen(handle),
        }
    }
}

impl<S: SpanSource> Swap<S> {
    /// Passes the shrinker's hand over `scan` entries of the pool, or fewer if there are not so many. Notes the entries
    /// that should be written back in `into`, up to `room` in all, each with its page. Returns how many entries it
    /// passed.
    ///
    /// The hand goes over the clusters in the order in which they came to have entries, and begins anew at the end.
    /// With [`Shrinker::SecondChance`] it spares an entry as often as that has chances left ([`Word::chances`]),
    /// unless it is much older than pages that come back are.
    pub fn scan(
        &self,
        scan: usize,
        room: usize,
        scope: PoolScope,
        into: &mut Vec<(PageIndex, Handle)>,
    ) -> usize {
        let chances = self.space.zswap.switches().shrinker == Shrinker::SecondChance;
        let mut scanned = 0;
        let clusters = self.space.pooled.len();
        // Clusters in a row without an entry of the scope: after a round of them there is none.
        let barren_max = if scan == usize::MAX { clusters } else { clusters.min(BARREN_MAX) };
        let mut barren = 0;
        // So often round: all may have every chance yet.
        for _ in 0..usize::from(CHANCES_MAX + 1) * clusters {
            if scanned >= scan || into.len() >= room || barren > barren_max {
                break;
            }
            let Some(key) = self.space.pooled.pop() else { break };
            let number = key.number;
            let mut cluster = self.object_of(key).table().lock_or_create(number);
            let mut offset = self.take_hand(number);
            let mut pooled = offset > 0;
            let before = scanned;
            while offset < CLUSTER_PAGES && scanned < scan && into.len() < room {
                let (word, count) = cluster.stretch(offset, CLUSTER_PAGES - offset);
                let (State::Swapped, Some(Place::Pool(handle))) = (word.state(), word.place()) else {
                    offset += count;
                    continue;
                };
                pooled = true;
                let busy = word.is_locked() || word.is_writeback();
                if busy || !scope.has(&self.space.zswap, handle) {
                    offset += count;
                    continue;
                }
                let count = count.min(scan - scanned);
                if chances && word.chances() > 0 && !self.is_too_old(word) {
                    self.set_run(
                        &mut cluster,
                        offset..offset + count,
                        word,
                        word.with_chances(word.chances() - 1),
                    );
                    scanned += count;
                    offset += count;
                    continue;
                }
                let count = count.min(room - into.len());
                into.extend((0..count).map(|nth| (number.page(offset + nth), handle.nth(nth))));
                scanned += count;
                offset += count;
            }
            barren = if scanned == before { barren + 1 } else { 0 };
            let history = cluster.history();
            if offset < CLUSTER_PAGES {
                self.space.shrinking.hand.store(number.page(offset).0, Relaxed);
                self.space.pooled.put_back(key);
            } else if pooled {
                self.space.pooled.push(key);
            } else {
                cluster.set_history(History { pooled, ..history });
            }
        }
        scanned
    }

    /// Returns whether an entry's page has been away for so long that it will hardly come back soon.
    fn is_too_old(&self, word: Word) -> bool {
        let reuse = self.space.nearness.reuse.get();
        reuse.is_some_and(|reuse| self.space.workingset.distance(word.shadow()) > TOO_OLD * reuse)
    }

    /// Returns the offset at which the hand stopped in this cluster: its start, if the hand stopped in another one.
    fn take_hand(&self, number: ClusterNumber) -> usize {
        let hand = PageIndex(self.space.shrinking.hand.swap(0, Relaxed));
        if hand.cluster() == number { hand.offset() } else { 0 }
    }

    /// Returns how many entries of the pool the shrinker's hand should pass, now that `taken` pages have left the
    /// program and the pool is pressed `weight` times as hard.
    pub fn pressure(&self, taken: usize, weight: f64) -> usize {
        let pooled =
            Pooled { stored: self.space.zswap.stored().0, backing: self.space.zswap.pool_pages() as u64 };
        let shrinker = self.space.zswap.switches().shrinker;
        let eligible = match shrinker {
            Shrinker::SecondChance => self.space.shrinking.second_chance.eligible(pooled),
            Shrinker::Decay => self.space.shrinking.decay.eligible(pooled),
            Shrinker::None => 0,
        } as f64;
        let part = taken as f64 / self.present().max(1) as f64;
        let before = f64::from_bits(self.space.shrinking.due.load(Relaxed));
        let due = (before + weight * SCAN_RATE * part * eligible).min(2.0 * eligible);
        let scan = if due < SCAN_BATCH { 0 } else { due as usize };
        self.space.shrinking.due.store((due - scan as f64).to_bits(), Relaxed);
        match shrinker {
            Shrinker::Decay if !self.space.shrinking.decay.permits(scan as u64, pooled.stored) => 0,
            _ => scan,
        }
    }

    /// Begins to write an entry of the pool back to the device: loads its page into `out` and returns the page's hash;
    /// `None` if `owner` has the entry no more, or it is damaged. The entry can be read and freed meanwhile: the flag
    /// in its word tells at the end whether it was.
    pub fn begin_writeback(
        &self,
        owner: PageIndex,
        handle: Handle,
        out: &mut [u8],
        scratch: &mut Scratch,
    ) -> Option<PageHash> {
        // From here on the entry may be freed, and the handle given to another page: then the flag is gone, or the
        // hashes differ, and the end of the writeback drops the block that was written.
        if self.claim_writeback(owner, handle) {
            self.space.zswap.load(handle, out, &self.space.keys.hash, scratch).ok()
        } else {
            None
        }
    }

    /// Notes in the page's word that its entry is being written back, if the page has the entry still. Returns whether
    /// it has.
    pub fn claim_writeback(&self, owner: PageIndex, handle: Handle) -> bool {
        let Some(mut cluster) = self.object.table().lock(owner.cluster()) else { return false };
        let word = cluster.get(owner.offset());
        if word.state() != State::Swapped
            || word.is_locked()
            || word.is_writeback()
            || word.place() != Some(Place::Pool(handle))
        {
            return false;
        }
        self.set(&mut cluster, owner.offset(), word.with_writeback(true));
        true
    }

    /// Ends a writeback. `written` is the block, if the write succeeded. Returns whether the block is the page's place
    /// from now on; else the caller gives it up.
    pub fn finish_writeback(
        &self,
        owner: PageIndex,
        handle: Handle,
        hash: PageHash,
        written: Option<u64>,
    ) -> bool {
        let Some(mut cluster) = self.object.table().lock(owner.cluster()) else { return false };
        let word = cluster.get(owner.offset());
        let current = word.is_writeback()
            && !word.is_locked()
            && word.state() == State::Swapped
            && word.place() == Some(Place::Pool(handle))
            && self.space.zswap.is_of(handle, hash);
        match written {
            Some(block) if current => {
                self.space.nearness.age.note(self.space.workingset.distance(word.shadow()));
                self.set(&mut cluster, owner.offset(), word.with_place(Place::Device(block)));
                self.space.zswap.free(handle);
                self.space.counters.add(Counter::zswpwb, 1);
                true
            }
            _ => {
                if current {
                    self.set(&mut cluster, owner.offset(), word.with_writeback(false));
                }
                false
            }
        }
    }
}
