//! Locked memory: pages that the program locks are in memory for good, so a run takes no more of them than the cap
//! leaves.
//!
//! A lock that would leave no room for other pages that cannot leave is refused when it is asked for, as a lock beyond
//! RLIMIT_MEMLOCK is: later the process could only be ended.

use super::charge::SMALL;
use super::{Entered, Process};
use crate::group::{Field, ProcessSlot};
use crate::regions::{Access, Region};
use pagetide_swap::PageIndex;
use std::ops::Range;
use std::sync::atomic::Ordering::{AcqRel, Relaxed};

/// Pages that each process of a run needs beside what cannot leave: 2 MiB.
const RESERVE: u64 = 512;
/// The part of the cap that is to stay free.
const FREE_PART: u64 = 64;
/// In [`Field::Locked`]: all that is managed is locked, whatever there is of it.
const ALL: u64 = 1 << 63;

fn is_locked(region: &Region) -> bool {
    region.attributes.locked && region.attributes.access != Access::None
}

/// Pages that are locked in a process.
fn locked(slot: ProcessSlot) -> u64 {
    let word = slot.get(Field::Locked);
    let managed = [Field::Resident, Field::Cached, Field::Swapped].map(|field| slot.get(field)).iter().sum();
    if word & ALL != 0 { (word & !ALL).max(managed) } else { word }
}

impl Process {
    /// Pages of the run that cannot leave, with what each process needs to run.
    fn fixed(&self) -> u64 {
        let (group, launcher) = self.group.own_pages();
        let of = |slot: ProcessSlot| {
            let rest = match slot.get(Field::Armed) {
                // With an engine most of it could leave.
                0 => slot.get(Field::Observed).min(SMALL as u64),
                _ => slot.get(Field::Unmanaged) + slot.get(Field::Metadata),
            };
            locked(slot) + rest + RESERVE
        };
        let all: u64 = self.group.live().map(of).sum();
        group + launcher + self.group.shared_pages() + all + self.group.cap_pages() / FREE_PART
    }

    /// Reserves `pages` more locked pages. Returns false, and changes nothing, if the cap does not allow them.
    #[must_use]
    pub fn lock_more(&'static self, pages: u64) -> bool {
        if pages == 0 {
            return true;
        }
        let word = self.generation().slot.word(Field::Locked);
        word.fetch_add(pages, AcqRel);
        let fits = self.fixed() <= self.group.cap_pages();
        if !fits {
            word.fetch_sub(pages, AcqRel);
        }
        fits
    }

    /// Returns whether `pages` more pages that are not managed may be locked. They count as soon as they are there.
    pub fn may_lock_unmanaged(&self, pages: u64) -> bool {
        self.fixed() + pages <= self.group.cap_pages()
    }

    /// Has unmanaged memory counted that has just come.
    pub fn count_unmanaged(&self) {
        // A fork meanwhile would meet what the control thread has locked for it.
        let _entered = self.enter();
        if let Some(runtime) = self.runtime() {
            runtime.run_control_task(|runtime| runtime.count_unmanaged());
        }
    }

    /// Returns whether memory that is mapped from now on is locked.
    pub fn locks_new(&self) -> bool {
        self.generation().holds_new.load(Relaxed)
    }
}

impl Entered<'_> {
    /// Returns the number of pages of `range` that are managed, may be accessed, and are not locked yet.
    pub fn unlocked(&self, range: Range<PageIndex>) -> u64 {
        let regions = self.regions();
        let open = regions
            .pieces(range)
            .filter(|(_, region)| !region.attributes.locked && region.attributes.access != Access::None);
        open.map(|(part, _)| part.end.0 - part.start.0).sum()
    }

    /// Returns the number of managed pages that have contents: those that a lock of all memory locks.
    pub fn managed_pages(&self) -> u64 {
        match self.runtime {
            None => self.generation.slot.granted().max(0) as u64,
            Some(runtime) => {
                let swap = runtime.engine().swap();
                (swap.present() + swap.cached() + swap.swapped()).max(0) as u64
            }
        }
    }

    /// Counts locked pages anew, since a call that was to lock more has failed.
    pub fn recount_locked(&self) {
        self.count_locked(None);
    }

    /// Counts anew what is locked, if anything is. `all`: everything is from now on, or no more than a part.
    pub(super) fn count_locked(&self, all: Option<bool>) {
        let word = self.generation.slot.word(Field::Locked);
        let before = word.load(Relaxed);
        let all = all.unwrap_or(before & ALL != 0);
        if before == 0 && !all {
            return;
        }
        let counted = if all {
            self.managed_pages() | ALL
        } else {
            let regions = self.regions();
            let locked = regions.iter().filter(|(_, region)| is_locked(region));
            locked.map(|(start, region)| region.end.0 - start.0).sum()
        };
        word.store(counted, Relaxed);
    }
}
