//! Reclaim: the steps of [`pagetide_swap::reclaimer`], with the program's memory and the device.

use super::store::StoreFor;
use super::{Engine, Workspace};
use crate::memory::Memory;
use pagetide_swap::config::WRITE_BATCH_PAGES;
use pagetide_swap::reclaimer::{Mover, Progress};
use pagetide_swap::{Counter, Handle, PageIndex, PoolScope};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::SeqCst};

/// The stores and take-outs of threads that answer faults ([`Engine::reclaim_directly`]), for the census: pages that such a
/// thread has in hand may leave yet.
#[derive(Debug, Default)]
pub(super) struct DirectStores {
    under_way: AtomicUsize,
    begun: AtomicU64,
}

impl DirectStores {
    fn begin(&self) {
        // In this order: see `mark`.
        self.under_way.fetch_add(1, SeqCst);
        self.begun.fetch_add(1, SeqCst);
    }

    fn end(&self) {
        self.under_way.fetch_sub(1, SeqCst);
    }

    /// Returns a mark for [`DirectStores::were_none_since`]; `None` while a store is under way.
    pub(super) fn mark(&self) -> Option<u64> {
        let begun = self.begun.load(SeqCst);
        (self.under_way.load(SeqCst) == 0).then_some(begun)
    }

    /// Returns whether none has begun since `mark`.
    pub(super) fn were_none_since(&self, mark: Option<u64>) -> bool {
        mark == Some(self.begun.load(SeqCst))
    }
}

/// Moves pages for one step.
struct Moving<'a, M: Memory> {
    engine: &'a Engine<M>,
    work: &'a mut Workspace,
}

impl<M: Memory> Mover for Moving<'_, M> {
    fn take_out(&mut self) -> Option<usize> {
        self.engine.take_out()
    }

    fn store(&mut self, slot: u16) -> usize {
        self.engine.store_slot(slot, StoreFor::Reclaim, self.work)
    }

    fn can_write_back(&self) -> bool {
        self.engine.can_write() && !self.engine.is_writing()
    }

    fn write_back(&mut self, entries: &[(PageIndex, Handle)]) -> usize {
        let chunks = entries.chunks(WRITE_BATCH_PAGES);
        chunks.map(|chunk| self.engine.write_back(chunk, &mut self.work.scratch)).sum()
    }

    fn is_waited_for(&self) -> bool {
        self.engine.waiting() > 0
    }

    fn drop_spare_frames(&mut self) -> usize {
        if self.engine.budget.free() <= 0 {
            // No progress: where that is the only room that is made, others are to be asked for theirs.
            self.engine.drop_spare();
        }
        self.engine.drop_donor().unwrap_or(0)
    }

    fn pool_changed(&mut self) {
        self.engine.charge_pool();
    }

    fn entries(&mut self) -> &mut Vec<(PageIndex, Handle)> {
        &mut self.work.entries
    }
}

impl<M: Memory> Engine<M> {
    /// Does one step towards free memory: a bounded piece of work, which never waits for I/O.
    pub fn reclaim(&self, work: &mut Workspace) -> Progress {
        let mark = self.direct.mark();
        match self.reclaimer.step(&self.swap, &mut Moving { engine: self, work }) {
            Progress::Nothing if !self.direct.were_none_since(mark) => Progress::Moved,
            progress => progress,
        }
    }

    /// Makes room for faults that wait for it, on a thread that answers faults and would only wait for the one that
    /// reclaims: *direct reclaim*, as in Linux. It ends as soon as none waits, after a few folios that are stored, or one
    /// cluster that leaves.
    pub fn reclaim_directly(&self, work: &mut Workspace) {
        let takes_out = self.takes_out_directly();
        if !takes_out && self.probation().len() <= 1 {
            // Nothing is begun: a census would begin anew for each fault that finds nothing to store.
            return;
        }
        self.direct.begin();
        if takes_out {
            self.take_out();
        } else if let Some(slot) = self.reclaimer.oldest_of_several() {
            let pages = self.store_slot(slot, StoreFor::Faults, work);
            self.count(Counter::pgsteal_direct, pages);
        }
        self.direct.end();
        if self.budget.free() > 0 {
            // For what the last folios gave, or the cluster that left.
            self.retry_waiting(work);
        }
    }

    /// Returns whether direct reclaim takes a cluster out: where pages are copied into spare frames that makes room at
    /// once, and to store them makes more spare frames. A census drops those, and none is made again before a page has found
    /// a place: so this does not put the end of a census off.
    fn takes_out_directly(&self) -> bool {
        let is_full = || self.reclaimer.is_probation_full(&self.swap);
        self.staging.spare() > 0 && self.budget.free() <= 0 && !is_full()
    }

    /// Does one step towards memory that the pool could give, and leaves the program's pages alone.
    pub fn reclaim_pool(&self, work: &mut Workspace) -> Progress {
        self.reclaimer.shrink_pool(&self.swap, &mut Moving { engine: self, work })
    }

    /// Lets go of entries of the pool that are shared by fork. Returns how many go.
    pub fn unshare_pool(&self, work: &mut Workspace) -> usize {
        self.reclaimer.unshare_pool(&self.swap, &mut Moving { engine: self, work })
    }

    /// Writes back entries of the pool that no fork shares, whatever the shrinker spares. Returns how many are on their
    /// way.
    pub(super) fn write_back_own(&self, work: &mut Workspace) -> usize {
        let mut moving = Moving { engine: self, work };
        self.reclaimer.write_back(&self.swap, usize::MAX, PoolScope::Own, &mut moving)
    }

    /// Sets how hard the pool is pressed to give memory, from 0 (not at all) to 1 (as hard as the program).
    pub fn set_pool_pressure(&self, weight: f64) {
        self.reclaimer.set_pressure(weight);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_that_meets_a_census_is_seen_whenever_it_begins_or_ends() {
        let stores = DirectStores::default();
        let quiet = stores.mark();
        assert!(stores.were_none_since(quiet));
        stores.begin();
        assert!(!stores.were_none_since(quiet), "it began meanwhile");
        let amid = stores.mark();
        stores.end();
        assert!(!stores.were_none_since(quiet), "it began and ended meanwhile");
        assert!(!stores.were_none_since(amid), "it ended meanwhile");
        assert!(stores.were_none_since(stores.mark()));
    }
}
