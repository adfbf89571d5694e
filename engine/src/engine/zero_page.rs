//! The kernel's zero page: what a program only reads of zeroes takes no memory.
//!
//! It is charged like any other page, so that writing to it takes nothing more. But the kernel does not count it, and what
//! is not managed is sampled as the difference between the kernel's count and ours: so how many there are is counted.

use super::{Engine, lock};
use crate::mask::Mask;
use crate::memory::{Mapped, Memory};
use pagetide_swap::table::CLUSTERS_MAX;
use pagetide_swap::{CLUSTER_PAGES, ClusterNumber, PAGE_SIZE, PageIndex, Transfer, WINDOW_MAX};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering::Relaxed};

static ZERO_PAGES: [u8; WINDOW_MAX * PAGE_SIZE] = [0; WINDOW_MAX * PAGE_SIZE];

/// Pages mapped between two looks that tell whether zero pages stay what they are.
const MAPPED_MIN: u64 = 64;
/// Where most of them are written to all the same, one range in so many has the zero page, to see.
const SAMPLE: u64 = 16;

/// How many pages of the program are the zero page: those that have come, less those that have left, and less those that went
/// unseen, since they were written to or unmapped. No fewer than there are: what went unseen is noticed by a look.
#[derive(Debug, Default)]
pub(super) struct ZeroPages {
    /// What was there when its range became managed has come, too.
    came: AtomicU64,
    left: AtomicU64,
    unseen: AtomicI64,
    /// Pages mapped since the last look: the others that came were the zero page before.
    mapped: AtomicU64,
    /// Whether most of those that were mapped before the last look were gone by then.
    are_written: AtomicBool,
    look: Mutex<Look>,
}

/// A look at all page tables, in steps.
#[derive(Debug, Default)]
struct Look {
    /// The cluster to look at next; 0 between looks.
    next: u64,
    /// Pages found so far.
    found: u64,
    /// How many had come when it began.
    came: u64,
}

impl ZeroPages {
    /// Notes that so many have come into the program.
    pub(super) fn come(&self, pages: usize) {
        self.came.fetch_add(pages as u64, Relaxed);
    }

    /// Notes that so many have left it.
    pub(super) fn leave(&self, pages: usize) {
        self.left.fetch_add(pages as u64, Relaxed);
    }

    fn count(&self) -> i64 {
        let seen = self.came.load(Relaxed) as i64 - self.left.load(Relaxed) as i64;
        (seen - self.unseen.load(Relaxed)).max(0)
    }
}

impl<M: Memory> Engine<M> {
    /// Returns whether zeroes at `page` come in as the zero page, for a thread that writes, or only reads.
    pub(super) fn maps_zero_page(&self, page: PageIndex, write: bool) -> bool {
        !write
            && self.memory.has_zero_page()
            && !self.mask.masks(Mask::NO_ZERO)
            && (!self.zero_pages.are_written.load(Relaxed)
                || (page.0 / WINDOW_MAX as u64).is_multiple_of(SAMPLE))
    }

    /// Maps zeroes for a transfer that was paid for.
    pub(super) fn bring_zeroes(&self, transfer: &Transfer, write: bool) {
        let (first, length) = (transfer.first, transfer.length);
        let mut mapped = Mapped { pages: 0, error: None };
        if self.maps_zero_page(first, write) {
            mapped = self.memory.map_zero_page(first, length);
            self.zero_pages.come(mapped.pages);
            self.zero_pages.mapped.fetch_add(mapped.pages as u64, Relaxed);
        }
        if mapped.pages < length {
            // Also where something is in the way: only a copy says for sure that it is a page.
            let rest = &ZERO_PAGES[..(length - mapped.pages) * PAGE_SIZE];
            let copied = self.memory.copy_in(first.plus(mapped.pages as u64), rest);
            mapped = Mapped { pages: mapped.pages + copied.pages, error: copied.error };
        }
        self.conclude(transfer, mapped, length);
    }

    /// Returns how many pages that are charged are the zero page: no fewer than there are.
    pub fn zero_pages(&self) -> i64 {
        self.zero_pages.count().min(self.usage().resident)
    }

    /// Counts the pages that are the zero page, if there may be any: looks at the page tables of `most` clusters that have pages in
    /// the program, and goes on there when it is called again. Returns whether all were looked at.
    pub fn count_zero_pages(&self, most: usize) -> bool {
        let ZeroPages { came, unseen, mapped, are_written, .. } = &self.zero_pages;
        let mut look = lock(&self.zero_pages.look);
        if look.next == 0 {
            if self.zero_pages() == 0 {
                return true;
            }
            look.came = came.load(Relaxed);
        }
        let table = self.swap.table();
        let has_present =
            |&number: &ClusterNumber| table.lock(number).is_some_and(|cluster| cluster.present() > 0);
        let mut clusters = table.touched(look.next..CLUSTERS_MAX).filter(has_present);
        for number in clusters.by_ref().take(most) {
            let first = number.page(0);
            look.found += self.memory.presence(first..first.plus(CLUSTER_PAGES as u64)).zero.len() as u64;
            look.next = number.0 + 1;
        }
        if clusters.next().is_some() {
            return false;
        }
        // There are no more than were found and have come since; where pages come and leave fast, those are many more than there are.
        // So what counted before is lowered only.
        let before = self.zero_pages();
        let bound = look.found as i64 + came.load(Relaxed) as i64 - look.came as i64;
        unseen.fetch_add((before - bound).max(0), Relaxed);
        let mapped = mapped.swap(0, Relaxed);
        if mapped >= MAPPED_MIN {
            are_written.store((before - self.zero_pages()) * 2 > mapped as i64, Relaxed);
        }
        *look = Look::default();
        true
    }

    /// Counts them in one go, from the first cluster on: exactly, where no page comes or leaves meanwhile.
    pub fn recount_zero_pages(&self) {
        *lock(&self.zero_pages.look) = Look::default();
        while !self.count_zero_pages(usize::MAX) {}
    }
}
