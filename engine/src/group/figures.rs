//! Figures of a run, and of one of its processes, for the programs themselves.

use super::{Field, Group, ProcessSlot};
use pagetide_page::PAGE_SIZE;
use pagetide_swap::Counter;

/// Figures of a run and of one of its processes, as `pagetide.h` has them: sizes in bytes.
#[repr(C)]
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Figures {
    /// The cap.
    pub cap: u64,
    /// Memory of all processes and of what the run shares, as last counted.
    pub memory: u64,
    /// Managed memory in the programs.
    pub resident: u64,
    /// The compressed pool.
    pub pool: u64,
    /// Pages out of the programs, before compression.
    pub swapped: u64,
    /// What the swap file holds.
    pub disk: u64,
    /// Processes that live.
    pub processes: u64,
    /// Managed memory in the process.
    pub own_resident: u64,
    /// Faults of the process for pages that were out.
    pub own_faults: u64,
    /// Nanoseconds that threads of the process have waited for pages, summed over threads.
    pub own_stalled_ns: u64,
}

impl Group {
    /// Returns the figures of the run and of the process `own`.
    pub fn figures(&self, own: ProcessSlot) -> Figures {
        let bytes = |pages: u64| pages.saturating_mul(PAGE_SIZE as u64);
        let resident = |slot: ProcessSlot| slot.get(Field::Resident).min(slot.get(Field::Observed));
        let (shared, launcher) = self.own_pages();
        let beside = shared + launcher + self.unmanaged_pages() + self.shared_pages();
        let mut figures = Figures {
            cap: bytes(self.cap_pages()),
            memory: bytes(beside),
            own_resident: bytes(resident(own)),
            own_faults: own.counters().get(Counter::pgmajfault),
            own_stalled_ns: own.counters().get(Counter::stalled_ns),
            ..Figures::default()
        };
        for slot in self.live() {
            let keeps = slot.get(Field::Keeps) != 0;
            let (memory, inside) = match keeps {
                true => (slot.kept_pages(), slot.get(Field::Resident)),
                false => (slot.get(Field::Observed), resident(slot)),
            };
            figures.memory += bytes(memory);
            figures.resident += bytes(inside);
            figures.pool += bytes(slot.get(Field::Pool) + slot.get(Field::PoolShared));
            figures.swapped += bytes(slot.get(Field::Swapped));
            figures.disk += bytes(slot.get(Field::Disk));
            figures.processes += 1;
        }
        figures
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::group::Setup;
    use pagetide_sys::procfs::Identity;

    #[test]
    fn figures_add_up_the_living() {
        let (_fd, group) = Group::create(Setup::new(1000, Identity::own())).unwrap();
        let before = group.figures(group.dead()).memory;
        let [own, other] = [1, 2].map(|pid| group.claim(Identity { pid, ..Identity::own() }).unwrap());
        for (slot, part) in [(own, 1), (other, 10)] {
            slot.set(Field::Observed, 9 * part);
            slot.set(Field::Resident, 5 * part);
            slot.set(Field::Pool, part);
            slot.set(Field::Swapped, 7 * part);
            slot.counters().add(Counter::pgmajfault, 3 * part);
        }
        let figures = group.figures(own);
        let page = PAGE_SIZE as u64;
        assert_eq!((figures.cap, figures.processes), (1000 * page, 2));
        assert_eq!((figures.memory - before, figures.resident), (99 * page, 55 * page));
        assert_eq!((figures.pool, figures.swapped), (11 * page, 77 * page));
        assert_eq!((figures.own_resident, figures.own_faults), (5 * page, 3));
    }
}
