//! Announced ranges: what a call of the program is about to touch.
//!
//! A `read` into a buffer touches all of it, and its first fault tells nothing of that: [`crate::streams`] would take
//! the buffer for the beginning of a scan, ask for it in windows that double, and read on behind its end. So a call on a large
//! buffer says beforehand which pages it will touch. A fault there brings in what is left of the buffer, and no more.

use crate::sync::atomic::{AtomicU64, Ordering::Relaxed};
use pagetide_page::PageIndex;
use std::ops::Range;

/// Calls that are known at a time. Of more some are forgotten, and their buffers come in as scans do.
const CALLS: usize = 16;
/// The bits of a word that count pages; a call moves 2 GiB at most. Those above are the first page.
const LENGTH_BITS: u32 = 20;
const LENGTH_MAX: u64 = (1 << LENGTH_BITS) - 1;
/// The pages that come in with one fault at most, as many as by one transfer: other faults wait meanwhile.
const PAGES_MAX: u64 = 64;

/// A call that was announced: what [`Announced::retract`] ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Call(u64);

impl Call {
    /// Its place in the table: by the first page, so that announcing takes no search.
    fn place(self) -> usize {
        ((self.0 >> LENGTH_BITS).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (u64::BITS - CALLS.ilog2())) as usize
    }

    fn pages(self) -> Range<u64> {
        let first = self.0 >> LENGTH_BITS;
        first..first + (self.0 & LENGTH_MAX)
    }
}

/// The calls under way of a process. It has no lock: calls may come from signal handlers.
///
/// ```
/// use pagetide_swap::announced::Announced;
/// use pagetide_swap::PageIndex;
///
/// let announced = Announced::default();
/// let call = announced.announce(PageIndex(100)..PageIndex(116)).expect("two pages or more");
/// assert_eq!(announced.behind(PageIndex(101)), 14);
/// announced.retract(call);
/// assert_eq!(announced.behind(PageIndex(101)), 0);
/// ```
#[derive(Debug, Default)]
#[repr(align(64))]
pub struct Announced {
    calls: [AtomicU64; CALLS],
    /// What [`Announced::forget_ended`] found.
    found: [AtomicU64; CALLS],
}

impl Announced {
    /// Notes that a call is about to touch `pages`. `None` if that is one page, or more than a call can touch.
    pub fn announce(&self, pages: Range<PageIndex>) -> Option<Call> {
        let (first, length) = (pages.start.0, pages.end.0.saturating_sub(pages.start.0));
        if !(2..=LENGTH_MAX).contains(&length) || first >> (u64::BITS - LENGTH_BITS) != 0 {
            return None;
        }
        let call = Call(first << LENGTH_BITS | length);
        self.calls[call.place()].store(call.0, Relaxed);
        Some(call)
    }

    /// Notes that a call has ended.
    pub fn retract(&self, call: Call) {
        // Another call may have taken its place.
        _ = self.calls[call.place()].compare_exchange(call.0, 0, Relaxed, Relaxed);
    }

    /// Forgets what was there at the last look, too: calls whose thread was cancelled, or jumped out of a signal handler, never
    /// say that they have ended. To be called a few times a second.
    pub fn forget_ended(&self) {
        for (call, found) in self.calls.iter().zip(&self.found) {
            let now = call.load(Relaxed);
            if now != 0 && found.swap(now, Relaxed) == now {
                _ = call.compare_exchange(now, 0, Relaxed, Relaxed);
            }
        }
    }

    /// Returns how many pages behind `page` are to come in with it, since a call is about to touch it and them.
    pub fn behind(&self, page: PageIndex) -> usize {
        let calls = self.calls.iter().map(|call| Call(call.load(Relaxed)).pages());
        let left = calls.filter(|pages| pages.contains(&page.0)).map(|pages| pages.end - page.0).max();
        left.map_or(0, |left| left.min(PAGES_MAX) as usize - 1)
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::*;

    fn pages(range: Range<u64>) -> Range<PageIndex> {
        PageIndex(range.start)..PageIndex(range.end)
    }

    #[test]
    fn a_fault_in_a_buffer_brings_in_what_follows_up_to_its_end() {
        let announced = Announced::default();
        let call = announced.announce(pages(1000..1016)).unwrap();
        let behind = |page| announced.behind(PageIndex(page));
        assert_eq!([999, 1000, 1010, 1015, 1016].map(behind), [0, 15, 5, 0, 0]);
        // Another one around it.
        let wider = announced.announce(pages(990..5000)).unwrap();
        assert_eq!(behind(1000), PAGES_MAX as usize - 1);
        announced.retract(wider);
        assert_eq!(behind(1000), 15);
        announced.retract(call);
        assert_eq!(behind(1000), 0);
    }

    #[test]
    fn what_is_too_short_or_too_long_is_not_announced() {
        let announced = Announced::default();
        assert_eq!(announced.announce(pages(7..7)), None);
        assert_eq!(announced.announce(pages(7..8)), None);
        assert_eq!(announced.announce(pages(0..LENGTH_MAX + 1)), None);
        assert_eq!(announced.announce(pages(1 << 44..(1 << 44) + 4)), None);
        assert!(announced.announce(pages(7..9)).is_some());
        assert!(announced.announce(pages((1 << 44) - 4..1 << 44)).is_some());
    }

    #[test]
    fn calls_that_never_end_are_forgotten_when_their_places_are_wanted() {
        let announced = Announced::default();
        (0..1000).for_each(|nth| _ = announced.announce(pages(nth * 100..nth * 100 + 50)));
        let known = (0..1000).filter(|nth| announced.behind(PageIndex(nth * 100)) > 0).count();
        assert!((1..=CALLS).contains(&known), "{known}");
        let last = announced.announce(pages(1..3)).unwrap();
        assert_eq!(announced.behind(PageIndex(1)), 1);
        announced.retract(last);
        announced.retract(last);
        assert_eq!(announced.behind(PageIndex(1)), 0);
        // And when they are found a second time.
        (0..3).for_each(|_| announced.forget_ended());
        assert!((0..1000).all(|nth| announced.behind(PageIndex(nth * 100)) == 0));
        let known = announced.announce(pages(7..9)).unwrap();
        announced.forget_ended();
        assert_eq!(announced.behind(PageIndex(7)), 1);
        announced.retract(known);
    }
}
