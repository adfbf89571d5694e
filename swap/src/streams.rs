//! Which neighbours of a page come in with it: a small table of sequential streams.
//!
//! A fault next to where a stream was about to go on continues it, upwards or downwards, and the window doubles; one
//! near it gets a few neighbours on both sides; any other fault starts a stream of one page in place of the stalest. So
//! random access brings in single pages and never pays for a neighbour, and several threads that scan keep a window
//! each. The rules are those of the kernel's readahead by address (`swap_vma_ra_win`), with a table of streams in place
//! of one for each mapping. Nobody sees a page touched that is mapped already: that all of a window was of use is told
//! by the fault that comes at its end.

use crate::entry::PageIndex;
use crate::sync::{Mutex, lock};
use std::ops::Range;

const STREAMS: usize = 8;
/// The largest window: 2 MiB.
const WINDOW_MAX: u64 = 512;
/// Pages between a stream and the fault that continues it, at most: other threads' faults and pages that were present
/// already leave small gaps.
const GAP_MAX: u64 = 4;

/// What is near a stream: this part of its window.
const NEAR_PART: u64 = 4;
/// The largest window around a page: it may be that a scan has ended, and access is at random now.
const CENTRED_MAX: u64 = 8;

/// Which neighbours come in.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(u8)]
pub enum Readahead {
    /// By index, as streams say: ahead of the fault, behind it or both. From places that answer at once (a pattern, the
    /// pool) too: a larger folio costs less than its pages.
    #[default]
    Object = 0,
    /// The aligned block of pages around the fault, of those that lie next to each other, whatever the place: as the
    /// kernel does by device offset.
    Cluster = 1,
    /// From the device none.
    None = 2,
}

impl Readahead {
    /// The rule of this number; the default for others.
    pub const fn from_bits(bits: u64) -> Self {
        match bits {
            1 => Self::Cluster,
            2 => Self::None,
            _ => Self::Object,
        }
    }
}

/// Neighbours of a page that may come in with it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Window {
    /// Pages before it.
    pub before: usize,
    /// Pages after it.
    pub after: usize,
}

impl Window {
    /// The page alone.
    pub const NONE: Self = Self { before: 0, after: 0 };

    /// The page and those after it, `pages` in all.
    pub const fn ahead(pages: usize) -> Self {
        Self { before: 0, after: pages - 1 }
    }

    /// At most `pages` in all, of which those after the page come first.
    pub fn at_most(self, pages: usize) -> Self {
        let after = self.after.min(pages - 1);
        Self { before: self.before.min(pages - 1 - after), after }
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct Stream {
    /// The pages that it brought in last: the first, and the first beyond them.
    first: u64,
    next: u64,
    window: u64,
    /// Those of them that came from their places ahead.
    ahead: u64,
    used_at: u64,
}

/// The streams of a process.
#[derive(Debug, Default)]
pub struct Streams {
    inner: Mutex<([Stream; STREAMS], u64)>,
}

impl Streams {
    /// Neighbours to bring in with `page`, and how many pages that came in ahead have proved to be of use.
    pub fn window(&self, page: PageIndex) -> (Window, usize) {
        let mut inner = lock(&self.inner);
        let (streams, clock) = &mut *inner;
        *clock += 1;
        let now = *clock;
        let page = page.0;
        let gap = |stream: &Stream| stream.window.min(GAP_MAX);
        let after = |s: &Stream| s.window > 0 && page >= s.next && page - s.next <= gap(s);
        let before = |s: &Stream| s.window > 0 && page < s.first && s.first - 1 - page <= gap(s);
        let near = |s: &Stream| {
            let reach = s.window / NEAR_PART;
            reach > 0 && page + reach >= s.first && page < s.next + reach
        };
        let position = |which: &dyn Fn(&Stream) -> bool| streams.iter().position(which);
        let (at, window, passed) = if let Some(at) = position(&after) {
            let wider = (streams[at].window * 2).min(WINDOW_MAX);
            (at, Window { before: 0, after: wider as usize - 1 }, true)
        } else if let Some(at) = position(&before) {
            let wider = (streams[at].window * 2).min(WINDOW_MAX);
            (at, Window { before: wider as usize - 1, after: 0 }, true)
        } else if let Some(at) = position(&near) {
            let narrower = (streams[at].window / 2).min(CENTRED_MAX) as usize;
            (at, Window { before: (narrower - 1) / 2, after: narrower / 2 }, false)
        } else {
            let stalest = (0..STREAMS).min_by_key(|&at| streams[at].used_at).expect("there are streams");
            streams[stalest] = Stream::default();
            (stalest, Window::NONE, false)
        };
        let stream = &mut streams[at];
        let passed = if passed { stream.ahead } else { 0 };
        let first = page.saturating_sub(window.before as u64);
        let next = page + window.after as u64 + 1;
        *stream = Stream { first, next, window: next - first, ahead: 0, used_at: now };
        (window, passed as usize)
    }

    /// Tells the stream that `page` continued what it brought in, of which `ahead` pages came from their places before
    /// anybody asked. If that is less than its window the next fault there doubles it as if it had been filled.
    pub fn brought_in(&self, page: PageIndex, pages: Range<PageIndex>, ahead: usize) {
        let mut inner = lock(&self.inner);
        let holds = |stream: &&mut Stream| (stream.first..stream.next).contains(&page.0);
        if let Some(stream) = inner.0.iter_mut().filter(holds).max_by_key(|stream| stream.used_at) {
            (stream.first, stream.next, stream.ahead) = (pages.start.0, pages.end.0, ahead as u64);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn window(streams: &Streams, page: u64) -> (usize, usize) {
        let Window { before, after } = streams.window(PageIndex(page)).0;
        (before, after)
    }

    #[test]
    fn a_scan_doubles_its_window_and_random_access_gets_one_page() {
        let streams = Streams::default();
        let mut page = 1000;
        let mut pages = Vec::new();
        let mut hits = 0;
        for n in 0..12u64 {
            let (window, passed) = streams.window(PageIndex(page));
            assert_eq!(window.before, 0);
            pages.push(window.after + 1);
            let brought = PageIndex(page)..PageIndex(page + window.after as u64 + 1);
            streams.brought_in(PageIndex(page), brought, window.after);
            hits += passed;
            page += window.after as u64 + 1;
            assert_eq!(streams.window(PageIndex((1 << 30) + n * 9777)), (Window::NONE, 0));
        }
        assert_eq!(pages, [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 512, 512]);
        // All but the last window was passed; of each the first page was asked for.
        assert_eq!(hits, pages[..11].iter().map(|pages| pages - 1).sum());
    }

    #[test]
    fn a_scan_downwards_gets_what_lies_before() {
        let streams = Streams::default();
        assert_eq!(window(&streams, 1000), (0, 0));
        assert_eq!(window(&streams, 999), (1, 0));
        assert_eq!(window(&streams, 997), (3, 0));
        assert_eq!(window(&streams, 993), (7, 0));
        // There is nothing before the first page of all.
        let streams = Streams::default();
        assert_eq!(window(&streams, 2), (0, 0));
        assert_eq!(window(&streams, 1), (1, 0));
        assert_eq!(streams.window(PageIndex(0)).0.after, 0);
    }

    #[test]
    fn a_fault_beside_a_stream_halves_its_window_and_centres_it() {
        let streams = Streams::default();
        for page in [100, 101, 103, 107] {
            window(&streams, page);
        }
        // 107 to 114 came last: some of them are gone already.
        assert_eq!(window(&streams, 110), (1, 2));
        assert_eq!(window(&streams, 140), (0, 0));
    }

    #[test]
    fn a_window_that_was_cut_short_is_continued_where_it_ended() {
        let streams = Streams::default();
        assert_eq!(window(&streams, 10), (0, 0));
        assert_eq!(window(&streams, 11), (0, 1));
        assert_eq!(window(&streams, 13), (0, 3));
        streams.brought_in(PageIndex(13), PageIndex(13)..PageIndex(14), 0);
        assert_eq!(window(&streams, 14), (0, 7));
    }

    #[test]
    fn what_does_not_fit_is_left_away_behind_first() {
        let wide = Window { before: 10, after: 20 };
        assert_eq!(wide.at_most(64), wide);
        assert_eq!(wide.at_most(25), Window { before: 4, after: 20 });
        assert_eq!(wide.at_most(16), Window { before: 0, after: 15 });
        assert_eq!(wide.at_most(1), Window::NONE);
    }
}
