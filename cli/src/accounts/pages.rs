//! Memory and disk of a run, in pages.

use crate::units::PAGE;
use pagetide::group::{Field, ProcessSlot};
use serde_json::{Value, json};

macro_rules! pages {
    ($($(#[$doc:meta])* $name:ident),+ $(,)?) => {
        /// Memory and disk of a run, in pages. Processes share pages after a fork, so sums over processes are upper
        /// bounds.
        #[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
        pub(crate) struct Pages { $($(#[$doc])* pub(crate) $name: u64),+ }

        impl Pages {
            /// Returns the larger of each figure.
            pub(crate) fn max(self, other: Self) -> Self {
                Self { $($name: self.$name.max(other.$name)),+ }
            }
            /// Adds the figures of another.
            pub(crate) fn add(&mut self, other: Self) {
                $(self.$name += other.$name;)+
            }
        }
    };
}

pages! {
    /// Pages that the kernel charges to the processes.
    total,
    /// Managed pages in the programs.
    resident,
    /// Pages of the compressed pool.
    pool,
    /// Pages of the compressed pool that forks share, each once.
    pool_shared,
    /// Pages of the engines' own data.
    metadata,
    /// Frames of staging.
    frames,
    /// Pages that no engine manages.
    unmanaged,
    /// Unmanaged pages that are shared memory, each once.
    shared,
    /// Blocks held on the device.
    disk,
    /// Blocks of those that are on the remote server.
    on_server,
    /// Pages out of the programs that have a place.
    swapped,
    /// Pages on probation.
    cached,
    /// Pages that the run would take without an engine.
    needed,
    /// Pages in the programs, plus pages of the pool.
    working,
}

impl Pages {
    /// Returns the figures of one process.
    pub(crate) fn of(slot: ProcessSlot) -> Self {
        let get = |field| slot.get(field);
        let (observed, armed) = (get(Field::Observed), get(Field::Armed) != 0);
        // What a keeper serves is in no page table of its own.
        let total = if get(Field::Keeps) != 0 { slot.kept_pages() } else { observed };
        let mut pages = Self {
            total,
            resident: get(Field::Resident),
            pool: get(Field::Pool) + get(Field::PoolShared),
            pool_shared: get(Field::PoolShared),
            metadata: get(Field::Metadata),
            frames: get(Field::Frames),
            unmanaged: get(Field::Unmanaged),
            disk: get(Field::Disk),
            on_server: get(Field::OnServer),
            swapped: get(Field::Swapped),
            cached: get(Field::Cached),
            ..Self::default()
        };
        if armed {
            pages.needed = pages.resident + pages.swapped + pages.cached + pages.unmanaged;
        } else {
            // It was handed out `resident` pages, and has touched some of them.
            pages.resident = pages.resident.min(observed);
            pages.unmanaged = observed - pages.resident;
            pages.needed = observed;
        }
        pages.working = pages.resident + pages.pool;
        pages
    }

    /// Returns the figures of memory that has no slot: the group page, the launcher, processes without Pagetide.
    pub(crate) fn of_unmanaged(pages: u64) -> Self {
        Self { total: pages, unmanaged: pages, needed: pages, ..Self::default() }
    }

    /// Returns the figures of shared memory.
    pub(crate) fn of_shared(pages: u64) -> Self {
        Self { shared: pages, ..Self::of_unmanaged(pages) }
    }

    /// Returns the figures as JSON, in bytes.
    pub(crate) fn json(self) -> Value {
        json!({
            "total": self.total * PAGE,
            "resident": self.resident * PAGE,
            "pool": self.pool * PAGE,
            "pool_shared": self.pool_shared * PAGE,
            "metadata": self.metadata * PAGE,
            "frames": self.frames * PAGE,
            "unmanaged": self.unmanaged * PAGE,
            "shared": self.shared * PAGE,
            "disk": self.disk * PAGE,
            "on_server": self.on_server * PAGE,
            "swapped": self.swapped * PAGE,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::group;
    use pagetide_sys::procfs::Identity;

    #[test]
    fn memory_that_was_handed_out_and_not_touched_is_not_resident() {
        let (_fd, group) = group(64_000);
        let slot = group.claim(Identity::own()).unwrap();
        slot.set(Field::Resident, 1000);
        slot.set(Field::Observed, 300);
        let pages = Pages::of(slot);
        assert_eq!((pages.resident, pages.unmanaged, pages.needed), (300, 0, 300));
        slot.set(Field::Armed, 1);
        slot.set(Field::Swapped, 500);
        assert_eq!(Pages::of(slot).needed, 1500);
    }
}
