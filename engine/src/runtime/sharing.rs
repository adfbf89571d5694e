//! Sharing of the pool with children since a fork, and the charge for it.

use super::{Runtime, lock};
use crate::group::{Field, ProcessSlot};

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
        child.set(Field::Frozen, self.engine.swap().zswap().frozen_pages() as u64);
        sharing.heirs.push((child.index(), child.get(Field::Tenancy)));
    }

    /// Charges shared pool pages to whoever is left with them.
    pub(super) fn charge_shared_pool(&self) {
        let mut sharing = lock(&self.sharing);
        let lives = |index: usize, tenancy: u64| {
            let slot = self.group.slot(index);
            slot.get(Field::Taken) != 0 && slot.get(Field::Tenancy) == tenancy
        };
        sharing.heirs.retain(|&(index, tenancy)| lives(index, tenancy));
        let frozen = self.engine.swap().zswap().frozen_pages() as i64;
        if let Some((index, tenancy, _)) = sharing.inherited
            && !lives(index, tenancy)
        {
            sharing.inherited = None;
            self.engine.budget().take(frozen - sharing.charged);
            sharing.charged = frozen;
        }
        // What was shared and neither we nor an heir has any more is free.
        let heirs = sharing.heirs.iter().map(|&(index, _)| self.group.slot(index).get(Field::Frozen) as i64);
        let held = frozen + heirs.sum::<i64>();
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
    }
}
