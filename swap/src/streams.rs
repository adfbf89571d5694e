//! Sequential streams of faults, in a small table: they tell which neighbours of a page come in with it.
//!
//! A fault next to where a stream was about to go on continues it, upwards or downwards, and the window doubles; one
//! near it gets a few neighbours on both sides; any other fault starts a stream of one page in place of the stalest. So
//! random access brings in single pages and never pays for a neighbour, and several threads that scan keep a window
//! each. The rules are those of the kernel's readahead by address (`swap_vma_ra_win`), with a table of streams in place
//! of one for each mapping. A touch of a page that is mapped already is not seen: that all of a window was of use is
//! known by the fault that comes at its end.
//!
//! Two faults side by side may be a scan, or a structure that lies across the end of a page. So the second page of a
//! stream brings a neighbour only where a quarter of such *pairs* went on, or few were seen yet.

use crate::announced::Announced;
use crate::sync::{Mutex, lock};
use pagetide_page::PageIndex;
use std::ops::Range;

/// The streams of a program. More of them, and faults at random in a few MiB would often seem to continue one.
pub const STREAMS: usize = 8;
/// The largest window: 2 MiB.
const WINDOW_MAX: u64 = 512;
/// The number of requests under way up to which pages are read ahead: beyond, the device's queue is for pages that a
/// fault waits for.
pub const AHEAD_MAX: usize = 16;
/// Pages between a stream and the fault that continues it, at most: other threads' faults and pages that were present
/// already leave small gaps.
const GAP_MAX: u64 = 4;

/// The reach of a stream, as a part of its window: a fault within it is near the stream.
const NEAR_PART: u64 = 4;
/// The part of pairs that must go on for a third page to come in with the second: a page that is
/// brought in for nothing takes about half of the time of a fault, and one in memory leaves for it.
const GOES_ON: u32 = WHOLE / 4;
/// The whole of which averages are a part, and the pairs over which is averaged, about.
const WHOLE: u32 = 1 << 16;
const AVERAGED: u32 = 64;
/// The largest window around a page, in pages: it may be that a scan has ended, and access is at random now.
const CENTRED_MAX: u64 = 8;

pagetide_page::numbered_enum! {
    /// A rule that says which neighbours of a faulting page come in with it.
    #[derive(Default)]
    pub enum Readahead: u64 {
        /// By index, as streams say: ahead of the fault, behind it or both. From places that answer at once (a pattern,
        /// the pool) too: a larger folio costs less than its pages.
        #[default]
        Object = 0,
        /// The aligned block of pages around the fault, of those that lie next to each other, whatever the place: as
        /// the kernel does by device offset.
        Cluster = 1,
        /// From the device none.
        None = 2,
    }
}

/// A window around a page: the neighbours that may come in with it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Window {
    /// The number of pages before it.
    pub before: usize,
    /// The number of pages after it.
    pub after: usize,
}

impl Window {
    /// The window without neighbours: the page alone.
    pub const NONE: Self = Self { before: 0, after: 0 };

    /// Returns the window of a page and those after it, `pages` in all.
    pub const fn ahead(pages: usize) -> Self {
        Self { before: 0, after: pages - 1 }
    }

    /// Returns the window cut down to `pages` pages in all. Pages before the page are left out first.
    pub fn at_most(self, pages: usize) -> Self {
        let after = self.after.min(pages - 1);
        Self { before: self.before.min(pages - 1 - after), after }
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct Stream {
    /// The pages that the stream brought in last: the first, and the first beyond them.
    first: u64,
    next: u64,
    /// Pages of the window that brought them in; of one that was held back, the pages that it would have had.
    window: u64,
    /// Pages of those that came from their places before a fault asked for them.
    ahead: u64,
    /// Whether it is a pair: the second fault of a stream has come, at pages that were at their places. What becomes of
    /// it tells what becomes of pairs.
    is_pair: bool,
    used_at: u64,
}

#[derive(Debug)]
struct Table {
    streams: Box<[Stream]>,
    clock: u64,
    /// The part of pairs that went on, on average.
    go_on: u32,
}

impl Table {
    /// Counts the end of a pair, or that it goes on.
    fn count_pair(&mut self, goes_on: bool) {
        let now = if goes_on { WHOLE } else { 0 };
        self.go_on = self.go_on - self.go_on / AVERAGED + now / AVERAGED;
    }
}

/// The streams' advice on a fault.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Look {
    /// Neighbours to bring in with the page, as streams go.
    pub window: Window,
    /// Those behind it that a call is about to touch, where they are more.
    pub announced: Option<Window>,
    /// Pages that came in ahead of faults and have proved to be of use by this fault.
    pub passed: usize,
    /// The stream that the fault continues, or is near.
    stream: Option<usize>,
    /// Whether it continues it.
    goes_on: bool,
    /// Whether the window of two pages that the stream would have is held back.
    held_back: bool,
}

impl Look {
    /// Returns the pages behind `page` that a call is about to touch, where they are more than the streams' window has.
    pub fn called(&self, page: PageIndex) -> Range<PageIndex> {
        let after = self.announced.map_or(0, |window| window.after);
        page.plus(1)..page.plus(1 + after as u64)
    }
}

/// The streams of a process.
///
/// ```
/// use pagetide_swap::streams::Streams;
/// use pagetide_swap::{PageIndex, Window};
///
/// let streams = Streams::default();
/// // A first fault brings in one page, a fault behind it two, and so on.
/// let mut page = PageIndex(1000);
/// for pages in [1, 2, 4, 8] {
///     let look = streams.look(page);
///     assert_eq!(look.window, Window::ahead(pages));
///     let end = page.plus(pages as u64);
///     streams.brought_in(page, look, page..end, Some(pages - 1));
///     page = end;
/// }
/// assert_eq!(streams.look(PageIndex(5)).window, Window::NONE, "elsewhere no stream is known");
/// ```
#[derive(Debug)]
pub struct Streams {
    inner: Mutex<Table>,
    /// What calls are about to touch.
    pub announced: Announced,
}

impl Default for Streams {
    fn default() -> Self {
        Self::new(STREAMS)
    }
}

impl Streams {
    /// A table of so many streams. Of more scans than that at once some get single pages. A look at 64 takes about 0.1 µs.
    pub fn new(streams: usize) -> Self {
        let streams = vec![Stream::default(); streams].into_boxed_slice();
        let inner = Mutex::new(Table { streams, clock: 0, go_on: WHOLE });
        Self { inner, announced: Announced::default() }
    }

    /// Returns what to bring in with `page`, at which a fault came. Nothing changes before [`Streams::brought_in`]: the
    /// page may turn out to be on its way.
    pub fn look(&self, page: PageIndex) -> Look {
        let look = self.look_at_streams(page);
        let behind = self.announced.behind(page);
        Look { announced: (behind > look.window.after).then(|| Window::ahead(1 + behind)), ..look }
    }

    fn look_at_streams(&self, page: PageIndex) -> Look {
        let table = lock(&self.inner);
        let streams = &table.streams;
        let page = page.0;
        let gap = |stream: &Stream| stream.window.min(GAP_MAX);
        let after = |s: &Stream| s.window > 0 && page >= s.next && page - s.next <= gap(s);
        let before = |s: &Stream| s.window > 0 && page < s.first && s.first - 1 - page <= gap(s);
        let near = |s: &Stream| {
            let reach = s.window / NEAR_PART;
            reach > 0 && page + reach >= s.first && page < s.next + reach
        };
        let goes_on = |at: usize, downwards: bool| {
            let wider = (streams[at].window * 2).min(WINDOW_MAX) as usize;
            let held_back = wider == 2 && table.go_on < GOES_ON;
            let window = match downwards {
                _ if held_back => Window::NONE,
                true => Window { before: wider - 1, after: 0 },
                false => Window::ahead(wider),
            };
            let passed = streams[at].ahead as usize;
            Look { window, announced: None, passed, stream: Some(at), goes_on: true, held_back }
        };
        let (mut downwards, mut beside) = (None, None);
        for (at, stream) in streams.iter().enumerate() {
            if after(stream) {
                return goes_on(at, false);
            }
            downwards = downwards.or_else(|| before(stream).then_some(at));
            beside = beside.or_else(|| near(stream).then_some(at));
        }
        if let Some(at) = downwards {
            goes_on(at, true)
        } else if let Some(at) = beside {
            let narrower = (streams[at].window / 2).min(CENTRED_MAX) as usize;
            let window = Window { before: (narrower - 1) / 2, after: narrower / 2 };
            Look { window, stream: Some(at), ..Look::default() }
        } else {
            Look::default()
        }
    }

    /// Notes that a fault at `page` was answered as `look` said, and that `pages` came in, of which `ahead` came from
    /// their places before a fault asked for them; `None` if they had none. If they are fewer than the window, the next
    /// fault at their end doubles the window all the same.
    pub fn brought_in(&self, page: PageIndex, look: Look, pages: Range<PageIndex>, ahead: Option<usize>) {
        let mut table = lock(&self.inner);
        table.clock += 1;
        let at = look.stream.unwrap_or_else(|| {
            (0..table.streams.len()).min_by_key(|&at| table.streams[at].used_at).expect("there are streams")
        });
        if table.streams[at].is_pair {
            table.count_pair(look.goes_on);
        }
        let window = 1 + look.window.before.min(page.0 as usize) + look.window.after;
        let window = if look.held_back { 2 } else { window as u64 };
        table.streams[at] = Stream {
            first: pages.start.0,
            next: pages.end.0,
            window,
            ahead: ahead.unwrap_or(0) as u64,
            is_pair: look.goes_on && window == 2 && ahead.is_some(),
            used_at: table.clock,
        };
    }

    /// Returns the pages to read next when a fault comes at a page that is on its way already: the scan has caught up
    /// with its window, and the device need not wait for the fault at the window's end. `None` if there is nothing.
    pub fn caught_up(&self, page: PageIndex) -> Option<Range<PageIndex>> {
        let streams = &lock(&self.inner).streams;
        let holds = |s: &&Stream| s.ahead > 0 && (s.first + 1..s.next).contains(&page.0);
        let stream = streams.iter().filter(holds).max_by_key(|stream| stream.used_at)?;
        let reach = (stream.window * 2).min(WINDOW_MAX);
        (page.0 + reach > stream.next).then(|| PageIndex(stream.next)..PageIndex(page.0 + reach))
    }

    /// Notes that pages up to `end` were asked for after [`Streams::caught_up`] at `page`.
    pub fn went_on(&self, page: PageIndex, end: PageIndex) {
        let mut table = lock(&self.inner);
        table.clock += 1;
        let clock = table.clock;
        let holds = |s: &&mut Stream| (s.first + 1..s.next).contains(&page.0);
        if let Some(stream) = table.streams.iter_mut().filter(holds).max_by_key(|stream| stream.used_at) {
            let was_pair = std::mem::take(&mut stream.is_pair);
            stream.window = (stream.window * 2).min(WINDOW_MAX);
            stream.ahead += end.0.saturating_sub(stream.next);
            stream.next = stream.next.max(end.0);
            stream.used_at = clock;
            if was_pair {
                table.count_pair(true);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A fault that is answered with the whole window.
    fn fault(streams: &Streams, page: u64) -> Look {
        let look = streams.look(PageIndex(page));
        let first = page.saturating_sub(look.window.before as u64);
        let end = page + look.window.after as u64 + 1;
        let ahead = (end - first) as usize - 1;
        streams.brought_in(PageIndex(page), look, PageIndex(first)..PageIndex(end), Some(ahead));
        look
    }

    fn window(streams: &Streams, page: u64) -> (usize, usize) {
        let Window { before, after } = fault(streams, page).window;
        (before, after)
    }

    #[test]
    fn a_scan_doubles_its_window_and_random_access_gets_one_page() {
        let streams = Streams::default();
        let mut page = 1000;
        let mut pages = Vec::new();
        let mut hits = 0;
        for n in 0..12u64 {
            let Look { window, passed, .. } = fault(&streams, page);
            assert_eq!(window.before, 0);
            pages.push(window.after + 1);
            hits += passed;
            page += window.after as u64 + 1;
            assert_eq!(fault(&streams, (1 << 30) + n * 9777), Look::default());
        }
        assert_eq!(pages, [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 512, 512]);
        // All but the last window was passed; of each the first page was asked for.
        assert_eq!(hits, pages[..11].iter().map(|pages| pages - 1).sum());
    }

    #[test]
    fn scans_of_many_processes_keep_a_window_each() {
        let streams = Streams::new(20);
        let mut pages: Vec<u64> = (0..20).map(|nth| nth << 20).collect();
        for round in 0..5 {
            for page in &mut pages {
                assert_eq!(window(&streams, *page), (0, (1 << round) - 1));
                *page += 1 << round;
            }
        }
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
        assert_eq!(window(&streams, 0).1, 0);
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
        let look = streams.look(PageIndex(13));
        streams.brought_in(PageIndex(13), look, PageIndex(13)..PageIndex(14), Some(0));
        assert_eq!(look.window, Window::ahead(4));
        assert_eq!(window(&streams, 14), (0, 7));
    }

    #[test]
    fn a_look_alone_changes_nothing() {
        let streams = Streams::default();
        for page in [100, 101, 103, 107] {
            window(&streams, page);
        }
        assert_eq!(streams.look(PageIndex(110)).window, Window { before: 1, after: 2 });
        assert_eq!(streams.look(PageIndex(115)).window, Window::ahead(16));
        assert_eq!(window(&streams, 115), (0, 15));
    }

    #[test]
    fn who_catches_up_has_the_next_window_read_before_the_end_of_this_one() {
        let streams = Streams::default();
        assert_eq!(streams.caught_up(PageIndex(100)), None);
        for page in [100, 101, 103, 107] {
            window(&streams, page);
        }
        // Of 107 to 114 the first was asked for.
        assert_eq!(streams.caught_up(PageIndex(107)), None);
        assert_eq!(streams.caught_up(PageIndex(109)), Some(PageIndex(115)..PageIndex(125)));
        streams.went_on(PageIndex(109), PageIndex(120));
        assert_eq!(streams.caught_up(PageIndex(115)), Some(PageIndex(120)..PageIndex(147)));
        // What lies beyond the end is a fault that continues the stream; all that came ahead was of use.
        let look = fault(&streams, 120);
        assert_eq!((look.window, look.passed, look.stream), (Window::ahead(32), 12, Some(0)));
    }

    /// Faults at two pages side by side, in many places, of which none goes on.
    fn straddle(streams: &Streams, places: u64) -> Vec<(usize, usize)> {
        (0..places)
            .map(|nth| {
                let page = (1 << 40) + (nth << 20);
                window(streams, page);
                window(streams, page + 1)
            })
            .collect()
    }

    #[test]
    fn pairs_that_do_not_go_on_bring_no_neighbour_in_and_scans_begin_one_page_later() {
        let streams = Streams::default();
        let windows = straddle(&streams, 200);
        assert_eq!((windows[0], windows[199]), ((0, 1), (0, 0)));
        let scan = |from: u64, pages: [u64; 4]| pages.map(|page| window(&streams, from + page).1 + 1);
        assert_eq!(scan(1 << 50, [0, 1, 2, 6]), [1, 1, 4, 8]);
        assert_eq!([1000, 999, 998].map(|page| window(&streams, page)), [(0, 0), (0, 0), (3, 0)]);
        // Where scans go on, pairs are believed in again.
        (0..100u64).for_each(|nth| _ = scan((1 << 50) + (nth << 20), [0, 1, 3, 7]));
        assert_eq!(straddle(&streams, 1), [(0, 1)]);
    }

    #[test]
    fn what_was_never_stored_says_nothing_of_pairs() {
        let streams = Streams::default();
        straddle(&streams, 200);
        for page in (0..600).map(|nth| PageIndex((1 << 50) + ((nth / 3) << 20) + nth % 3)) {
            let look = streams.look(page);
            streams.brought_in(page, look, page..page.plus(1), None);
        }
        assert_eq!(straddle(&streams, 1), [(0, 0)]);
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
