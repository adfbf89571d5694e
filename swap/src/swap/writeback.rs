//! Entries of the pool go to the device.

use super::{AGE_PART, Swap};
use crate::hash::PageHash;
use crate::place::{Handle, Place};
use crate::stats::Counter;
use crate::table::History;
use crate::word::State;
use crate::zswap::Scratch;
use crate::zswap::pool::SpanSource;
use crate::zswap::shrinker::{Pooled, SCAN_RATE, Shrinker};
use pagetide_page::{CLUSTER_PAGES, ClusterNumber, PageIndex};
use std::sync::atomic::Ordering::Relaxed;

/// Entries that the shrinker's hand passes at once, at least.
const SCAN_BATCH: f64 = 32.0;

/// Which entries of the pool.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PoolScope {
    /// All.
    All,
    /// Those that no fork shares: only these give memory when they go.
    Own,
}

impl<S: SpanSource> Swap<S> {
    /// Passes the shrinker's hand over `scan` entries of the pool, or fewer if there are not so many. Notes in `into`,
    /// up to `room` in all, those that should be written back, as they lie in the object. Returns how many it passed.
    ///
    /// The hand goes over the clusters in the order in which they came to have entries, and begins anew at the end.
    /// With
    /// [`Shrinker::SecondChance`] it spares an entry that was stored or spared since it came by, and takes note.
    pub fn scan(
        &self,
        scan: usize,
        room: usize,
        scope: PoolScope,
        into: &mut Vec<(PageIndex, Handle)>,
    ) -> usize {
        let chances = self.zswap.switches().shrinker == Shrinker::SecondChance;
        let mut scanned = 0;
        // Twice round: all may have been stored of late.
        for _ in 0..2 * self.pooled.len() {
            if scanned >= scan || into.len() >= room {
                break;
            }
            let Some(number) = self.pooled.pop() else { break };
            let mut cluster = self.table.lock_or_create(number);
            let mut offset = self.take_hand(number);
            let mut pooled = offset > 0;
            while offset < CLUSTER_PAGES && scanned < scan && into.len() < room {
                let (word, count) = cluster.stretch(offset, CLUSTER_PAGES - offset);
                let (State::Swapped, Some(Place::Pool(handle))) = (word.state(), word.place()) else {
                    offset += count;
                    continue;
                };
                pooled = true;
                let busy = word.is_locked() || word.is_writeback();
                if busy || (scope == PoolScope::Own && self.zswap.is_frozen(handle)) {
                    offset += count;
                    continue;
                }
                let count = count.min(scan - scanned);
                if chances && word.is_referenced() {
                    self.set_run(&mut cluster, offset..offset + count, word, word.with_referenced(false));
                    scanned += count;
                    offset += count;
                    continue;
                }
                let count = count.min(room - into.len());
                into.extend((0..count).map(|nth| (number.page(offset + nth), handle.nth(nth))));
                scanned += count;
                offset += count;
            }
            let history = cluster.history();
            if offset < CLUSTER_PAGES {
                self.hand.store(number.page(offset).0, Relaxed);
                self.pooled.put_back(number);
            } else if pooled {
                self.pooled.push(number);
            } else {
                cluster.set_history(History { pooled, ..history });
            }
        }
        scanned
    }

    /// Where in this cluster the hand stopped: at its start, if that was in another.
    fn take_hand(&self, number: ClusterNumber) -> usize {
        let hand = PageIndex(self.hand.swap(0, Relaxed));
        if hand.cluster() == number { hand.offset() } else { 0 }
    }

    /// `taken` pages have left the program: how many entries of the pool the shrinker's hand should pass for that,
    /// where the pool is pressed `weight` times as hard.
    pub fn pressure(&self, taken: usize, weight: f64) -> usize {
        let pooled = Pooled { stored: self.zswap.stored().0, backing: self.zswap.pool_pages() as u64 };
        let shrinker = self.zswap.switches().shrinker;
        let eligible = match shrinker {
            Shrinker::SecondChance => self.second_chance.eligible(pooled),
            Shrinker::Decay => self.decay.eligible(pooled),
            Shrinker::None => 0,
        } as f64;
        let part = taken as f64 / self.present().max(1) as f64;
        let before = f64::from_bits(self.due.load(Relaxed));
        let due = (before + weight * SCAN_RATE * part * eligible).min(2.0 * eligible);
        let scan = if due < SCAN_BATCH { 0 } else { due as usize };
        self.due.store((due - scan as f64).to_bits(), Relaxed);
        match shrinker {
            Shrinker::Decay if !self.decay.permits(scan as u64, pooled.stored) => 0,
            _ => scan,
        }
    }

    /// Begins to write a pool entry back to the device: its bytes and their hash. The entry can be read
    /// and freed meanwhile; the flag in its word says at the end whether it was.
    pub fn begin_writeback(
        &self,
        owner: PageIndex,
        handle: Handle,
        out: &mut [u8],
        scratch: &mut Scratch,
    ) -> Option<PageHash> {
        // The entry may be freed once that is done, and the handle be another page's: then the flag is gone, or the
        // hashes differ, and the end of the writeback drops what was written.
        if self.claim_writeback(owner, handle) {
            self.zswap.load(handle, out, &self.keys.hash, scratch).ok()
        } else {
            None
        }
    }

    /// Says in the page's word that its entry is being written back, if it has it still. Returns whether it has.
    pub fn claim_writeback(&self, owner: PageIndex, handle: Handle) -> bool {
        let Some(mut cluster) = self.table.lock(owner.cluster()) else { return false };
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

    /// Ends a writeback. `written` is the block, if the write succeeded. Returns whether the block is the
    /// page's place now.
    pub fn finish_writeback(
        &self,
        owner: PageIndex,
        handle: Handle,
        hash: PageHash,
        written: Option<u64>,
    ) -> bool {
        let Some(mut cluster) = self.table.lock(owner.cluster()) else { return false };
        let word = cluster.get(owner.offset());
        let current = word.is_writeback()
            && !word.is_locked()
            && word.state() == State::Swapped
            && word.place() == Some(Place::Pool(handle))
            && self.zswap.is_of(handle, hash);
        match written {
            Some(block) if current => {
                let (age, old) = (self.workingset.distance(word.shadow()), self.age.load(Relaxed));
                self.age.store(old - old / AGE_PART + age / AGE_PART, Relaxed);
                self.set(&mut cluster, owner.offset(), word.with_place(Place::Device(block)));
                self.zswap.free(handle);
                self.counters.add(Counter::zswpwb, 1);
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
