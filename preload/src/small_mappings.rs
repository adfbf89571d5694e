//! Private mappings under 16 KiB: not managed until there are many, or one grows.
//!
//! As long as they are few all of them are known. One that grows is managed only if nothing was set on it meanwhile that
//! management would have to know (locks, advice, access to a part): such a call has it count as *changed*.

use pagetide::process::Entered;
use pagetide_swap::PAGE_SIZE;
use pagetide_sys::lock;
use std::ffi::c_int;
use std::sync::Mutex;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;

/// Smaller mappings are not worth managing while they are few: 16 KiB. (A compiler may hold a seventh of its memory in such of 16
/// to 60.)
const MANAGED_MIN: usize = 4 * PAGE_SIZE;
/// Small mappings are many from 1 MiB on. One that is mapped, touched and unmapped again costs a fault through the engine more if it
/// is managed, so those that come and go are left out.
const MANY: usize = (1 << 20) / PAGE_SIZE;

/// Pages of those that are known.
static PAGES: AtomicUsize = AtomicUsize::new(0);
/// Those that are known. Locked in mapping calls only, for whose ends a fork waits.
static KNOWN: Mutex<Known> = Mutex::new(Known { mappings: [Small::NONE; MANY] });

/// A small mapping that is not managed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Small {
    start: usize,
    end: usize,
    /// The access to it, if it is as `mmap` made it but for that.
    protection: Option<c_int>,
}

impl Small {
    const NONE: Self = Self { start: 0, end: 0, protection: None };

    fn new(start: usize, length: usize, protection: Option<c_int>) -> Self {
        Self { start, end: end_of(start, length), protection }
    }

    fn pages(&self) -> usize {
        (self.end - self.start) / PAGE_SIZE
    }
}

/// As many as there may be: none has less than a page.
struct Known {
    mappings: [Small; MANY],
}

fn end_of(start: usize, length: usize) -> usize {
    start.saturating_add(length).checked_next_multiple_of(PAGE_SIZE).unwrap_or(usize::MAX)
}

impl Known {
    fn meeting(&mut self, start: usize, end: usize) -> impl Iterator<Item = &mut Small> {
        self.mappings.iter_mut().filter(move |small| small.start < end && start < small.end)
    }

    /// Adds one. There is room unless several threads map at once: it is not known then, and never grows into what is managed.
    fn add(&mut self, small: Small) {
        self.remove(small.start, small.end);
        if let Some(free) = self.mappings.iter_mut().find(|free| **free == Small::NONE) {
            *free = small;
        }
    }

    /// Removes a range: of what it meets the rest stays.
    fn remove(&mut self, start: usize, end: usize) {
        let mut behind = Small::NONE;
        for small in self.meeting(start, end) {
            let before = *small;
            *small = Small { end: start.max(before.start), ..before };
            if end < before.end {
                let rest = Small { start: end, ..before };
                if *small == (Small { end: before.start, ..before }) { *small = rest } else { behind = rest }
            }
            if small.start == small.end {
                *small = Small::NONE;
            }
        }
        if behind != Small::NONE {
            self.add(behind);
        }
    }

    /// Notes access to a range; `None` is something else that was set there.
    fn change(&mut self, start: usize, end: usize, protection: Option<c_int>) {
        for small in self.meeting(start, end) {
            let whole = start <= small.start && small.end <= end;
            small.protection = protection.filter(|_| whole && small.protection.is_some());
        }
    }

    /// Takes out the mapping that is that range.
    fn take(&mut self, start: usize, end: usize) -> Option<Small> {
        let found = self.meeting(start, end).find(|small| (small.start, small.end) == (start, end))?;
        Some(std::mem::replace(found, Small::NONE))
    }

    fn pages(&self) -> usize {
        self.mappings.iter().map(Small::pages).sum()
    }
}

/// Runs `with` those that are known, if there are any, or `adds` one.
fn with<T>(adds: bool, with: impl FnOnce(&mut Known) -> T) -> Option<T> {
    if !adds && PAGES.load(Relaxed) == 0 {
        return None;
    }
    let mut known = lock(&KNOWN);
    let result = with(&mut known);
    PAGES.store(known.pages(), Relaxed);
    Some(result)
}

/// Returns whether a private mapping of `length` bytes is worth managing.
pub(crate) fn is_worth_managing(length: usize) -> bool {
    length >= MANAGED_MIN || PAGES.load(Relaxed) >= MANY
}

/// Returns whether any is known.
pub(crate) fn are_there() -> bool {
    PAGES.load(Relaxed) > 0
}

/// Notes a private mapping that was not worth managing.
pub(crate) fn mapped(_: &Entered<'_>, start: usize, length: usize, protection: c_int) {
    with(true, |known| known.add(Small::new(start, length, Some(protection))));
}

/// Notes that other memory, or none, is in a range now.
pub(crate) fn unmapped(_: &Entered<'_>, start: usize, length: usize) {
    with(false, |known| known.remove(start, end_of(start, length)));
}

/// Notes the access to a range.
pub(crate) fn protected(_: &Entered<'_>, start: usize, length: usize, protection: c_int) {
    with(false, |known| known.change(start, end_of(start, length), Some(protection)));
}

/// Notes that something was set on a range that management would have to know.
pub(crate) fn changed(_: &Entered<'_>, start: usize, length: usize) {
    with(false, |known| known.change(start, end_of(start, length), None));
}

/// Takes out the mapping that is about to be resized, if it is known.
pub(crate) fn resizing(_: &Entered<'_>, start: usize, length: usize) -> Option<Small> {
    with(false, |known| known.take(start, end_of(start, length))).flatten()
}

/// Notes what became of one that was taken out: a mapping of that range. Returns the access to it, if it is worth managing now.
pub(crate) fn resized(_: &Entered<'_>, small: Small, start: usize, length: usize) -> Option<c_int> {
    let managed = small.protection.filter(|_| is_worth_managing(length));
    // One that was changed is not managed however large it is, and counts no more.
    if managed.is_none() && length < MANAGED_MIN {
        with(true, |known| known.add(Small::new(start, length, small.protection)));
    }
    managed
}

/// Puts one back that was taken out, and was not resized.
pub(crate) fn stays(_: &Entered<'_>, small: Small) {
    with(true, |known| known.add(small));
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: usize = PAGE_SIZE;

    fn known(ranges: &[(usize, usize)]) -> Known {
        let mut known = Known { mappings: [Small::NONE; MANY] };
        ranges.iter().for_each(|&(start, pages)| known.add(Small::new(start * PAGE, pages * PAGE, Some(3))));
        known
    }

    fn all(known: &Known) -> Vec<(usize, usize, Option<c_int>)> {
        let mut all: Vec<_> = known.mappings.iter().filter(|small| **small != Small::NONE).copied().collect();
        all.sort_by_key(|small| small.start);
        all.iter().map(|small| (small.start / PAGE, small.pages(), small.protection)).collect()
    }

    #[test]
    fn what_is_unmapped_counts_no_more_and_the_rest_stays() {
        let mut three = known(&[(10, 3), (20, 1), (30, 3)]);
        three.remove(9 * PAGE, 11 * PAGE);
        three.remove(31 * PAGE, 32 * PAGE);
        assert_eq!(all(&three), [(11, 2, Some(3)), (20, 1, Some(3)), (30, 1, Some(3)), (32, 1, Some(3))]);
        assert_eq!(three.pages(), 5);
        three.remove(0, end_of(1, usize::MAX));
        assert_eq!((all(&three), three.pages()), (vec![], 0));
    }

    #[test]
    fn what_is_trimmed_again_and_again_adds_up() {
        let mut trimmed = known(&[]);
        for nth in 1..=100 {
            trimmed.add(Small::new(nth * 4 * PAGE, 3 * PAGE, Some(3)));
            trimmed.remove(nth * 4 * PAGE, (nth * 4 + 1) * PAGE);
            assert_eq!(trimmed.pages(), 2 * nth);
        }
    }

    #[test]
    fn what_was_changed_stays_so_and_counts() {
        let mut two = known(&[(10, 2), (20, 2)]);
        two.change(10 * PAGE, 12 * PAGE, Some(1));
        two.change(20 * PAGE, 21 * PAGE, Some(1));
        assert_eq!(all(&two), [(10, 2, Some(1)), (20, 2, None)]);
        two.change(0, 100 * PAGE, Some(3));
        assert_eq!(all(&two), [(10, 2, Some(3)), (20, 2, None)]);
        two.change(10 * PAGE, 11 * PAGE, None);
        assert_eq!((all(&two), two.pages()), (vec![(10, 2, None), (20, 2, None)], 4));
    }

    #[test]
    fn only_the_mapping_itself_is_taken_out_once() {
        let mut one = known(&[(10, 2)]);
        assert_eq!((one.take(10 * PAGE, 11 * PAGE), one.take(9 * PAGE, 12 * PAGE)), (None, None));
        assert_eq!(one.take(10 * PAGE, 12 * PAGE), Some(Small::new(10 * PAGE, 2 * PAGE, Some(3))));
        assert_eq!((one.take(10 * PAGE, 12 * PAGE), one.pages()), (None, 0));
    }

    #[test]
    fn a_new_mapping_takes_the_place_of_what_was_there() {
        let mut full = known(&[]);
        (0..MANY + 10).for_each(|nth| full.add(Small::new(nth * PAGE, PAGE, Some(3))));
        assert_eq!(full.pages(), MANY);
        full.add(Small::new(5 * PAGE, PAGE, Some(1)));
        assert_eq!((full.pages(), full.take(5 * PAGE, 6 * PAGE).unwrap().protection), (MANY, Some(1)));
    }
}
