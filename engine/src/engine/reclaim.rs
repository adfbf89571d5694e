//! Reclaim: the steps of [`pagetide_swap::reclaimer`], with the program's memory and the device.

use super::store::Busy;
use super::{Engine, Workspace};
use crate::memory::Memory;
use pagetide_swap::config::WRITE_BATCH_PAGES;
use pagetide_swap::reclaimer::{Mover, Progress};
use pagetide_swap::{Handle, PageIndex, PoolScope};

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
        self.engine.store_slot(slot, Busy::Wait, self.work)
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
        self.reclaimer.step(&self.swap, &mut Moving { engine: self, work })
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
