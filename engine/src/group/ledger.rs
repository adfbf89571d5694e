//! The ledger: which part of the cap each process has, and which is free.

use super::layout::{Field, Header, PAGES_MAX};
use super::{Group, ProcessSlot};
use pagetide_sys::shared::{futex_wait, futex_wake};
use std::sync::atomic::{Ordering::AcqRel, Ordering::Acquire, Ordering::Relaxed};
use std::time::Duration;

/// The part of the cap that may be handed out without a charge.
const UNCHARGED_PART: i64 = 8;

impl Group {
    /// Returns the slots of keepers of shared memory: one, if there is one.
    pub fn keepers(&self) -> impl Iterator<Item = ProcessSlot> + '_ {
        self.live().filter(|slot| slot.get(Field::Keeps) != 0)
    }

    /// Returns the number of pages of the group page itself, and of the launcher.
    pub fn own_pages(&self) -> (u64, u64) {
        let get = |word: Header| self.header[word as usize].load(Relaxed).min(PAGES_MAX as u64);
        (get(Header::OwnPages), get(Header::LauncherPages))
    }

    /// Charges the pages that the group page (`shared`) and the launcher take by now. For the launcher to call.
    pub fn charge_own(&self, shared: u64, launcher: u64) {
        for (word, pages) in [(Header::OwnPages, shared), (Header::LauncherPages, launcher)] {
            let before = self.header[word as usize].swap(pages, Relaxed);
            self.take_anyway((pages as i64).wrapping_sub(before as i64));
        }
    }

    /// Returns the number of pages of shared memory that processes map, each once, without the group page.
    pub fn shared_pages(&self) -> u64 {
        self.header[Header::SharedPages as usize].load(Relaxed).min(PAGES_MAX as u64)
    }

    /// Charges the pages of shared memory that the run has by now. For the launcher to call, which alone sees them all.
    pub fn charge_shared(&self, pages: u64) {
        let before = self.header[Header::SharedPages as usize].swap(pages, Relaxed);
        self.take_anyway((pages as i64).wrapping_sub(before as i64));
    }

    /// Returns the number of pages that processes without a slot hold.
    pub fn unmanaged_pages(&self) -> u64 {
        self.header[Header::UnmanagedPages as usize].load(Relaxed).min(PAGES_MAX as u64)
    }

    /// Charges the pages that processes without a slot hold by now. For the launcher to call.
    pub fn charge_unmanaged(&self, pages: u64) {
        let before = self.header[Header::UnmanagedPages as usize].swap(pages, Relaxed);
        self.take_anyway((pages as i64).wrapping_sub(before as i64));
    }

    /// Keeps `pages` free for programs that start, in place of what was kept before. For the launcher to call.
    pub fn reserve_for_starts(&self, pages: u64) {
        let before = self.header[Header::StartReserve as usize].swap(pages, Relaxed);
        let more = (pages as i64).wrapping_sub(before as i64);
        if more > 0 { self.take_anyway(more) } else { self.give(more.wrapping_neg()) }
    }

    /// Returns the number of pages of the cap that no process was granted. It is negative if unmanaged memory has grown
    /// past the cap.
    pub fn free(&self) -> i64 {
        (self.header[Header::Free as usize].load(Relaxed) as i64).clamp(-PAGES_MAX, PAGES_MAX)
    }

    /// Returns how many more pages may be handed out without a charge: pages that processes without an engine take and
    /// do not touch. They are an eighth of the cap at most, should all be touched at once. Pages that processes had for
    /// a while and did not touch, or seem to be charged for since, count half.
    pub fn uncharged_left(&self) -> i64 {
        let without = self.live().filter(|slot| slot.get(Field::Armed) == 0);
        let uncharged = |slot: ProcessSlot| {
            // What was spared may be charged by now, since it was seen to be touched. So may be what else it holds.
            let [spared, charged] = [Field::Spared, Field::Added].map(|field| slot.get(field) as i64);
            (spared - charged.max(0)).max(spared / 2) + slot.debt() / 2
        };
        let uncharged: i64 = without.map(uncharged).sum();
        self.cap_pages() as i64 / UNCHARGED_PART - uncharged
    }

    /// Takes `pages` if at least `reserve` remain. Returns whether it did.
    pub fn take(&self, pages: i64, reserve: i64) -> bool {
        self.header[Header::Free as usize]
            .fetch_update(AcqRel, Relaxed, |free| {
                let left = (free as i64).saturating_sub(pages);
                (left >= reserve).then_some(left as u64)
            })
            .is_ok()
    }

    /// Takes as many of `pages` as are free. Returns how many it took.
    pub fn take_up_to(&self, pages: i64) -> i64 {
        let mut taken = 0;
        let _ = self.header[Header::Free as usize].fetch_update(AcqRel, Relaxed, |free| {
            taken = (free as i64).clamp(0, pages.max(0));
            (taken > 0).then_some((free as i64 - taken) as u64)
        });
        taken
    }

    /// Takes `pages` whether or not they are free, for memory that is in use already.
    pub fn take_anyway(&self, pages: i64) {
        self.header[Header::Free as usize].fetch_sub(pages as u64, AcqRel);
    }

    /// Gives `pages` back, and wakes the threads that wait for them.
    pub fn give(&self, pages: i64) {
        self.header[Header::Free as usize].fetch_add(pages as u64, AcqRel);
        if pages > 0 {
            self.stir();
        }
    }

    /// Has those that wait for pages look again.
    pub fn stir(&self) {
        self.header[Header::Demand as usize].fetch_add(1, AcqRel);
        futex_wake(&self.header[Header::Demand as usize]);
    }

    /// Returns the number of pages that are asked of the group at a time: 1/64 of the cap, 1 MiB at most.
    pub fn step(&self) -> i64 {
        (self.cap_pages() as i64 / 64).min(256)
    }

    /// Returns a number that changes whenever pages are given back.
    pub fn demand(&self) -> u32 {
        self.header[Header::Demand as usize].load(Acquire) as u32
    }

    /// Waits until pages were given back since `seen`, or `timeout` passed.
    pub fn wait_free(&self, seen: u32, timeout: Duration) {
        futex_wait(&self.header[Header::Demand as usize], seen, timeout);
    }
}
