//! The kernel's zero page: what a program only reads of zeroes takes no memory.
//!
//! It is charged like any other page, so that writing to it takes nothing more. But the kernel does not count it, and what
//! is not managed is sampled as the difference between the kernel's count and ours: so how many there are is counted.

use super::Engine;
use crate::mask::Mask;
use crate::memory::{Mapped, Memory};
use pagetide_swap::table::CLUSTERS_MAX;
use pagetide_swap::{CLUSTER_PAGES, PAGE_SIZE, PageIndex, Transfer, WINDOW_MAX};
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering::Relaxed};

static ZERO_PAGES: [u8; WINDOW_MAX * PAGE_SIZE] = [0; WINDOW_MAX * PAGE_SIZE];

/// Pages mapped between two looks that tell whether zero pages stay what they are.
const MAPPED_MIN: u64 = 64;
/// Where most of them are written to all the same, one range in so many has the zero page, to see.
const SAMPLE: u64 = 16;

/// How many pages of the program are the zero page.
#[derive(Debug, Default)]
pub(super) struct ZeroPages {
    /// No fewer than there are: those that are written to, or unmapped, are noticed at the next look.
    count: AtomicI64,
    /// Whether there was a look: a program may have read zeroes before the engine ran.
    looked: AtomicBool,
    /// Pages mapped since the last look.
    mapped: AtomicU64,
    /// Whether most of those that were mapped before the last look were gone by then.
    are_written: AtomicBool,
}

impl ZeroPages {
    /// Notes that so many have come into the program, or have left it.
    pub(super) fn add(&self, pages: i64) {
        self.count.fetch_add(pages, Relaxed);
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
            self.zero_pages.add(mapped.pages as i64);
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

    /// Returns how many pages that are charged are the zero page: at least as many as there are, but for what is on its way.
    pub fn zero_pages(&self) -> i64 {
        self.zero_pages.count.load(Relaxed).max(0)
    }

    /// Counts the pages that are the zero page, if there may be any. It walks the page tables of all that is managed.
    pub fn count_zero_pages(&self) {
        let before = self.zero_pages.count.load(Relaxed);
        if before == 0 && self.zero_pages.looked.swap(true, Relaxed) {
            return;
        }
        let mapped = self.zero_pages.mapped.swap(0, Relaxed);
        let touched = self.swap.table().touched(0..CLUSTERS_MAX);
        let zero =
            |first: PageIndex| self.memory.presence(first..first.plus(CLUSTER_PAGES as u64)).zero.len();
        let found: usize = touched.map(|number| zero(number.page(0))).sum();
        // What has come or gone meanwhile counts on.
        self.zero_pages.count.fetch_add(found as i64 - before, Relaxed);
        if mapped >= MAPPED_MIN {
            let written = before - found as i64;
            self.zero_pages.are_written.store(written * 2 > mapped as i64, Relaxed);
        }
    }
}
