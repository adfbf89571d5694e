//! Sharing of the pool with children since a fork, and the charge for it.

use super::grant::RESIDENT_FLOOR;
use super::{Runtime, lock};
use crate::engine::Workspace;
use crate::group::{Field, ProcessSlot};
use std::time::Duration;

/// The part of its time, in millionths, that a process must lose to pages which come back before shared pool pages go
/// to the device: a quarter. Each process of the family writes what it has of them.
const UNSHARE_PRESSURE: u64 = 250_000;
/// Looks in a row at which that is so: others, asked for what they have in memory, give it in less.
const UNSHARE_LOOKS: u32 = 4;
/// The part of a process's grant, one in so many, that its shared pool pages must be of before they go.
const UNSHARE_PART: i64 = 8;

/// Pool pages shared by fork. They are charged once: to the process that had them first, for as long as
/// it or a child may hold them.
#[derive(Debug, Default)]
pub(super) struct Sharing {
    /// Children that were forked off: slot and tenancy.
    pub(super) heirs: Vec<(usize, u64)>,
    /// Shared pages that are charged here.
    pub(super) charged: i64,
    /// Shared pages that are charged to the parent: slot, tenancy, pages.
    pub(super) inherited: Option<(usize, u64, i64)>,
    /// Pages that were lent anew while children borrowed them as they were before.
    pub(super) lent_again: i64,
    /// The time of the next look at what children borrow, by the clock.
    pub(super) pot_due: u64,
    /// Looks in a row at which this was the only process that borrows, and short.
    pub(super) alone: u32,
    /// Looks in a row at which a process had hardly anything in memory, and lost its time for that.
    pub(super) squeezed: u32,
}

impl Runtime {
    /// Sets whether a thread that waits for a page is woken only when the engine thread that brings it has done with
    /// all its work: the woken thread may fork next, and a lock that is held then stays so in the child.
    pub fn answer_last(&self, on: bool) {
        self.engine.memory().set_quiet(on);
    }

    /// Freezes the pool, and charges the pages that parent and child share from now on.
    pub fn share_pool(&self, child: ProcessSlot) {
        let before = self.engine.swap().zswap().frozen_pages() as i64;
        self.engine.swap().zswap().freeze();
        self.engine.charge_pool();
        let more = self.engine.swap().zswap().frozen_pages() as i64 - before;
        self.engine.budget().take(more);
        let mut sharing = lock(&self.sharing);
        sharing.charged += more;
        // Before the next look, which this process may not live to see. They count no more among its own.
        self.slot.set(Field::Pool, self.engine.usage().pool.max(0) as u64);
        self.slot.set(Field::PoolShared, sharing.charged.max(0) as u64);
        child.set(Field::Frozen, self.engine.swap().zswap().frozen_pages() as u64);
        sharing.heirs.push((child.index(), child.get(Field::Tenancy)));
    }

    fn lives(&self, (index, tenancy): (usize, u64)) -> bool {
        let slot = self.group.slot(index);
        slot.get(Field::Taken) != 0 && slot.get(Field::Tenancy) == tenancy
    }

    /// Has this process and its heirs let go of shared pool pages, if they are much of what it is granted and a process
    /// of the run loses its time for want of memory.
    pub(super) fn judge_shared_pool(&self) {
        let mut sharing = lock(&self.sharing);
        let charged = sharing.charged;
        let own = self.slot.granted() - self.slot.get(Field::Lent) as i64;
        let is_much = charged > 0 && charged >= own / UNSHARE_PART;
        let is_squeezed = is_much
            && self.engine.can_write()
            && self.slot.get(Field::Unshares) == 0
            && self.group.live().any(|slot| {
                slot.get(Field::Pressure) >= UNSHARE_PRESSURE
                    && (slot.get(Field::Resident) + slot.get(Field::Frames))
                        .saturating_sub(slot.get(Field::Borrowed))
                        < RESIDENT_FLOOR as u64
            });
        sharing.squeezed = if is_squeezed { sharing.squeezed + 1 } else { 0 };
        if sharing.squeezed >= UNSHARE_LOOKS {
            sharing.squeezed = 0;
            pagetide_sys::log!(Info, "the pool lets go of {charged} pages that forks share");
            self.slot.set(Field::Unshares, 1);
        }
    }

    /// Returns whether pool pages that are shared by fork are to be let go of.
    pub(super) fn unshares(&self) -> bool {
        self.slot.get(Field::Unshares) != 0
    }

    /// Lets go of some of the pool pages that are shared by fork, if that is wanted: at the end it is the heirs' turn.
    pub(super) fn unshare_pool(&self, work: &mut Workspace) {
        if self.unshares() && self.engine.unshare_pool(work) == 0 && self.engine.requests() == 0 {
            self.slot.set(Field::Unshares, 0);
            for &(index, _) in lock(&self.sharing).heirs.iter().filter(|&&heir| self.lives(heir)) {
                let heir = self.group.slot(index);
                if heir.get(Field::Frozen) > 0 {
                    heir.set(Field::Unshares, 1);
                    heir.ring();
                }
            }
        }
    }

    /// Lets go of all pool pages that are shared by fork and can go, for another process that has nothing: they are room
    /// for it when the last of them has gone.
    pub(super) fn unshare_all(&self, work: &mut Workspace) {
        let mut goes = self.engine.can_write();
        while goes && self.engine.usage().pool_shared > 0 && self.engine.waiting() == 0 {
            self.pause.begin_work();
            let gone = self.engine.unshare_pool(work);
            self.pause.end_work();
            let writes = self.engine.requests() > 0;
            if writes {
                // Its end wakes.
                self.wakeup.wait(Duration::from_millis(5));
            }
            goes = gone > 0 || writes;
        }
    }

    /// Charges what forks share to whoever is left with it. Returns whether that is less than before.
    pub(super) fn charge_shared(&self) -> bool {
        let mut sharing = lock(&self.sharing);
        let gives_up = self.review_pot(&mut sharing);
        sharing.heirs.retain(|&heir| self.lives(heir));
        let frozen = self.engine.swap().zswap().frozen_pages() as i64;
        if let Some((index, tenancy, _)) = sharing.inherited
            && !self.lives((index, tenancy))
        {
            sharing.inherited = None;
            self.engine.budget().take(frozen - sharing.charged);
            sharing.charged = frozen;
        }
        // What was shared and neither we nor an heir has any more is free.
        let heirs = sharing.heirs.iter().map(|&(index, _)| self.group.slot(index).get(Field::Frozen) as i64);
        let held = frozen + heirs.sum::<i64>();
        let fewer = gives_up || held < self.slot.get(Field::Frozen) as i64;
        self.slot.set(Field::Frozen, held as u64);
        if sharing.charged > held {
            self.engine.budget().give(sharing.charged - held);
            sharing.charged = held;
        }
        if sharing.heirs.is_empty() {
            let inherited = sharing.inherited.map_or(0, |(_, _, pages)| pages.min(frozen));
            self.engine.budget().give(sharing.charged - (frozen - inherited));
            sharing.charged = frozen - inherited;
        }
        if sharing.heirs.is_empty() && sharing.inherited.is_none() && frozen > 0 {
            // Nobody that we know of shares it any more.
            self.engine.swap().zswap().thaw();
            self.engine.budget().give(std::mem::take(&mut sharing.charged));
            self.engine.charge_pool();
        }
        self.slot.set(Field::PoolShared, sharing.charged.max(0) as u64);
        if fewer {
            // Whoever is charged for them may have room now.
            self.group.stir();
        }
        fewer
    }
}
