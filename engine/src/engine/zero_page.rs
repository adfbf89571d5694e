//! The kernel's zero page: what a program only reads of zeroes takes no memory.
//!
//! It is charged like any other page, so that writing to it takes nothing more. But the kernel does not count it, and what
//! is not managed is sampled as the difference between the kernel's count and ours: so how many there are is counted.

use super::moves::Moves;
use super::takeout::uncharged;
use super::{Engine, lock};
use crate::mask::Mask;
use crate::memory::{Mapped, Memory};
use pagetide_swap::table::CLUSTERS_MAX;
use pagetide_swap::{CLUSTER_PAGES, PAGE_SIZE, PageIndex, Transfer, WINDOW_MAX};
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
    /// Looks so far. There is one in any case: nobody has told what a program read of zeroes before a fork.
    ended: u64,
    /// The cluster to look at next; 0 between looks.
    next: u64,
    /// Pages found so far.
    found: u64,
    /// How many had come and left when it began, and how many pages had mappings that moved.
    came: u64,
    left: u64,
    moved: u64,
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

    /// Returns the count. It is less than none after pages left of which nobody saw that they came: the kernel makes its zero
    /// page of zeroes where it splits a huge page.
    fn count(&self) -> i64 {
        self.came.load(Relaxed) as i64 - self.left.load(Relaxed) as i64 - self.unseen.load(Relaxed)
    }

    /// Begins a look, unless there is nothing to see, or a mapping moves.
    fn begin(&self, look: &mut Look, moves: &Moves) -> bool {
        if (look.ended > 0 && self.count() == 0) || moves.are_under_way() {
            return false;
        }
        let (came, left, moved) = (self.came.load(Relaxed), self.left.load(Relaxed), moves.pages());
        *look = Look { ended: look.ended, came, left, moved, ..Look::default() };
        true
    }

    /// Ends a look.
    fn end(&self, look: &mut Look, moves: &Moves) {
        let Look { ended, found, came, left, moved, .. } = std::mem::take(look);
        look.ended = ended + 1;
        // What moved meanwhile was perhaps nowhere.
        let moved = moves.pages() - moved;
        // There are no more than were found and have come since, and no fewer than were found and have not left since. Where pages
        // come and leave fast both are far off: what counted before holds between them.
        let before = self.count();
        let most = (found + self.came.load(Relaxed) - came + moved) as i64;
        let least = found as i64 - (self.left.load(Relaxed) - left) as i64;
        let now = before.clamp(least.clamp(0, most), most);
        self.unseen.fetch_add(before - now, Relaxed);
        let mapped = self.mapped.swap(0, Relaxed);
        if mapped >= MAPPED_MIN {
            self.are_written.store((before - now) * 2 > mapped as i64, Relaxed);
        }
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
        self.zero_pages.count().min(self.usage().resident).max(0)
    }

    /// Counts the pages that are the zero page, if there may be any: looks at the page tables of `most` clusters that have pages in
    /// the program, and goes on there when it is called again. Returns whether all were looked at.
    pub fn count_zero_pages(&self, most: usize) -> bool {
        let mut look = lock(&self.zero_pages.look);
        if look.next == 0 && !self.zero_pages.begin(&mut look, &self.moves) {
            return true;
        }
        let mut more = most;
        for number in self.swap.table().touched(look.next..CLUSTERS_MAX) {
            // Held while it is looked at: what is taken out meanwhile would be found, and have left.
            let Some(cluster) = self.swap.table().lock(number) else { continue };
            if cluster.present() == 0 {
                continue;
            }
            if more == 0 {
                return false;
            }
            more -= 1;
            let first = number.page(0);
            let zero = self.memory.presence(first..first.plus(CLUSTER_PAGES as u64)).zero;
            look.found += zero.minus(uncharged(zero, &cluster)).len() as u64;
            look.next = number.0 + 1;
        }
        self.zero_pages.end(&mut look, &self.moves);
        true
    }

    /// Counts them in one go, from the first cluster on: exactly, where no page comes or leaves meanwhile.
    pub fn recount_zero_pages(&self) {
        *lock(&self.zero_pages.look) = Look::default();
        while !self.count_zero_pages(usize::MAX) {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A look that finds so many, while `meanwhile` happens.
    fn look(pages: &ZeroPages, moves: &Moves, found: u64, meanwhile: impl FnOnce()) {
        let mut look = lock(&pages.look);
        assert!(pages.begin(&mut look, moves));
        meanwhile();
        look.found = found;
        pages.end(&mut look, moves);
    }

    #[test]
    fn what_came_or_left_unseen_is_found_out() {
        let (pages, moves) = (ZeroPages::default(), Moves::default());
        // There before a fork.
        look(&pages, &moves, 7, || ());
        assert_eq!(pages.count(), 7);
        // The kernel made them.
        pages.leave(10);
        assert_eq!(pages.count(), -3);
        look(&pages, &moves, 5, || ());
        assert_eq!(pages.count(), 5);
        pages.come(100);
        look(&pages, &moves, 20, || ());
        assert_eq!(pages.count(), 20);
        look(&pages, &moves, 0, || ());
        assert!(!pages.begin(&mut lock(&pages.look), &moves), "there is none");
    }

    #[test]
    fn what_comes_and_leaves_during_a_look_is_no_error() {
        let (pages, moves) = (ZeroPages::default(), Moves::default());
        pages.come(50);
        look(&pages, &moves, 40, || {
            pages.come(1000);
            pages.leave(1000);
        });
        assert_eq!(pages.count(), 50);
    }

    #[test]
    fn what_moved_during_a_look_may_be_there_still() {
        let (pages, moves) = (ZeroPages::default(), Moves::default());
        pages.come(50);
        look(&pages, &moves, 10, || drop(moves.begin(30)));
        assert_eq!(pages.count(), 40);
        let moving = moves.begin(1);
        assert!(!pages.begin(&mut lock(&pages.look), &moves));
        drop(moving);
        look(&pages, &moves, 0, || ());
        assert_eq!(pages.count(), 0);
    }
}
