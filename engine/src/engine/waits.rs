//! Waits of the program's threads for pages: how long they are, and how many threads wait.
//!
//! A wait begins when a reader has read the fault, and ends when the page is there. What the kernel takes before and
//! after that is not seen here: its message has no time. A wait for room, for the device or for another fault's page is counted
//! as it goes on ([`Engine::count_waits`]): it may last as long as a server is away.

use super::{Engine, lock};
use crate::dump::board::{Board, Why};
use crate::memory::Memory;
use pagetide_swap::{Counter, PageIndex};
use std::ops::Range;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed, Ordering::SeqCst, fence};
use std::sync::{Mutex, OnceLock};
use std::time::Duration;

/// Nanoseconds of a tick, in which a thread that waits is counted once.
pub const TICK_NS: u64 = 100_000_000;
/// Threads that are told apart. Where more wait some are counted twice.
const THREADS: usize = 512;
/// Places in which a thread may be noted.
const PROBES: usize = 8;
/// Faults that wait for another's page at one time, at most: no more are counted.
const JOINED_MAX: usize = 64;

/// The threads that wait, and the faults that wait for another's page.
#[derive(Debug)]
pub(super) struct Waits {
    /// Threads, and the tick in which each waited last.
    threads: Box<[AtomicU64]>,
    /// Faults that wait for a page which another brings in.
    joined: Mutex<Vec<Joined>>,
    joined_count: AtomicUsize,
    /// The time until which waits that go on are counted.
    counted: AtomicU64,
    board: OnceLock<Board>,
}

/// The page of a fault that waits for another, since when, and its place on the board.
type Joined = (PageIndex, u64, Option<u8>);

/// The history of a fault's thread.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Seen {
    /// Whether the thread has not waited before.
    first: bool,
    /// Whether the thread has not waited in this tick before.
    first_in_tick: bool,
}

impl Waits {
    pub(super) fn new() -> Self {
        Self {
            threads: (0..THREADS).map(|_| AtomicU64::new(0)).collect(),
            joined: Mutex::new(Vec::with_capacity(JOINED_MAX)),
            joined_count: AtomicUsize::new(0),
            counted: AtomicU64::new(0),
            board: OnceLock::new(),
        }
    }

    /// Shows faults that have joined on `board` from now on.
    pub(super) fn show_on(&self, board: Board) {
        let _ = self.board.set(board);
    }

    /// The nanoseconds until `now` that are not counted yet of a wait which began at `since`.
    fn uncounted(&self, since: u64, now: u64) -> u64 {
        now.saturating_sub(since.max(self.counted.load(Relaxed)))
    }

    fn saw(&self, tid: u32, now: u64) -> Seen {
        let entry = (u64::from(tid) << 32) | ((now / TICK_NS) & u64::from(u32::MAX));
        let place = |probe: usize| &self.threads[(tid as usize).wrapping_add(probe) % THREADS];
        for probe in 0..PROBES {
            let before = place(probe).load(Relaxed);
            if before >> 32 == u64::from(tid) {
                if before != entry {
                    place(probe).store(entry, Relaxed);
                }
                return Seen { first: false, first_in_tick: before != entry };
            }
            if before == 0 && place(probe).compare_exchange(0, entry, Relaxed, Relaxed).is_ok() {
                return Seen { first: true, first_in_tick: true };
            }
        }
        place(0).store(entry, Relaxed);
        Seen { first: true, first_in_tick: true }
    }

    fn join(&self, page: PageIndex, since: u64) {
        let mut joined = lock(&self.joined);
        if joined.len() < JOINED_MAX {
            let board = self.board.get();
            let place = board.and_then(|board| board.park(page, false, Why::Page, [since, since]));
            joined.push((page, since, place));
            self.joined_count.store(joined.len(), SeqCst);
        }
    }

    /// The nanoseconds that faults have waited until `now` which had joined for `pages`, and that are not counted: each of them.
    fn leave(&self, pages: &Range<PageIndex>, now: u64, mut waited: impl FnMut(u64)) {
        if self.joined_count.load(SeqCst) == 0 {
            return;
        }
        let mut joined = lock(&self.joined);
        joined.retain(|(page, since, place)| {
            let stays = !pages.contains(page);
            if !stays {
                if let Some(board) = self.board.get() {
                    board.unpark(*place);
                }
                waited(self.uncounted(*since, now));
            }
            stays
        });
        self.joined_count.store(joined.len(), SeqCst);
    }
}

/// The ticks that have passed until `now` in which a wait went on that began at `since`, without those that were counted until
/// `before`, and without the first and the last: when the thread faults it is counted in these.
fn passed_ticks(since: u64, before: u64, now: u64) -> u64 {
    (now / TICK_NS).saturating_sub((since / TICK_NS + 1).max(before / TICK_NS))
}

impl<M: Memory> Engine<M> {
    /// Notes that a thread of the program begins to wait, at `now`.
    pub fn saw(&self, tid: u32, now: u64) {
        let seen = self.meters.waits.saw(tid, now);
        self.count(Counter::stalled_threads, usize::from(seen.first));
        self.count(Counter::stalled_ticks, usize::from(seen.first_in_tick));
    }

    /// Notes the end of a wait that began at `since` and that no answer of a fault ended.
    pub fn waited(&self, since: u64) {
        self.swap.counters().add(Counter::stalled_ns, self.meters.waits.uncounted(since, self.now()));
    }

    /// Counts the waits that go on, until now: of each what has not been counted, and the ticks through which it went on.
    pub fn count_waits(&self) {
        let (now, waits) = (self.now(), &self.meters.waits);
        // What is answered just now, or being tried again, is counted from now on only if it was not found: too little by the
        // time between two of these calls, and nothing twice.
        let before = waits.counted.swap(now, Relaxed);
        let (mut waited, mut ticks, mut rested) = (0u64, 0, 0u64);
        let mut count = |since: u64| {
            waited += now.saturating_sub(since.max(before));
            ticks += passed_ticks(since, before, now);
        };
        self.parked.for_each_since(&mut count);
        self.requests.for_each_since(&mut count);
        if waits.joined_count.load(Relaxed) > 0 {
            lock(&waits.joined).iter().for_each(|&(_, since, _)| count(since));
        }
        self.parked.for_each_rest(|since| rested += now.saturating_sub(since.max(before)));
        for (counter, count) in
            [(Counter::stalled_ns, waited), (Counter::stalled_ticks, ticks), (Counter::rested_ns, rested)]
        {
            if count > 0 {
                self.swap.counters().add(counter, count);
            }
        }
    }

    /// Notes the end of a rest that began at `since`.
    pub(super) fn rested(&self, since: u64) {
        self.swap.counters().add(Counter::rested_ns, self.meters.waits.uncounted(since, self.now()));
    }

    /// Notes that a fault was answered which was read at `since`.
    pub(super) fn answered(&self, since: u64) {
        let waited = self.now().saturating_sub(since);
        self.meters.latency.record(Duration::from_nanos(waited));
        self.waited(since);
    }

    /// Notes that a fault waits for a page which another brings in.
    pub(super) fn join(&self, page: PageIndex, since: u64) {
        self.meters.waits.join(page, since);
        // Whoever ends that unlocks the page and then looks who has joined: one of the two sees the other.
        fence(SeqCst);
        if !self.swap.table().peek(page).is_locked() {
            self.end_waits(page..page.plus(1));
        }
    }

    /// Notes that the faults which had joined for `pages` were answered. After those were unlocked.
    pub(super) fn end_waits(&self, pages: Range<PageIndex>) {
        fence(SeqCst);
        self.meters.waits.leave(&pages, self.now(), |nanos| {
            self.swap.counters().add(Counter::stalled_ns, nanos);
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_are_counted_once_and_once_a_tick() {
        let waits = Waits::new();
        let new = Seen { first: true, first_in_tick: true };
        let known = |first_in_tick| Seen { first: false, first_in_tick };
        assert_eq!(waits.saw(7, 0), new);
        // They share a place.
        assert_eq!(waits.saw(7 + THREADS as u32, 0), new);
        assert_eq!(waits.saw(7, TICK_NS - 1), known(false));
        assert_eq!(waits.saw(7, TICK_NS), known(true));
        assert_eq!(waits.saw(7 + THREADS as u32, TICK_NS), known(true));
        assert_eq!(waits.saw(7 + THREADS as u32, TICK_NS), known(false));
        // More than there are places for: each is known at least at once again.
        for tid in 1..4 * THREADS as u32 {
            waits.saw(tid, 0);
            assert_eq!(waits.saw(tid, 0), known(false), "{tid}");
        }
    }

    #[test]
    fn a_thread_that_does_nothing_but_wait_is_counted_once_a_tick() {
        const MS: u64 = 1_000_000;
        for length in [5, 50, 99, 150, 1000, 30_000] {
            let waits = Waits::new();
            let (mut since, mut before, mut ticks) = (7 * MS, 0, 0u64);
            ticks += u64::from(waits.saw(1, since).first_in_tick);
            for now in (10 * MS..30_000 * MS).step_by(10 * MS as usize) {
                while since + length * MS <= now {
                    since += length * MS;
                    ticks += u64::from(waits.saw(1, since).first_in_tick);
                }
                ticks += passed_ticks(since, before, now);
                before = now;
            }
            assert!((298..=301).contains(&ticks), "{length} ms: {ticks}");
        }
    }

    #[test]
    fn who_joins_waits_until_the_page_is_there() {
        let waits = Waits::new();
        let mut ended = Vec::new();
        let mut leave = |pages: Range<u64>, now| {
            ended.clear();
            waits.leave(&(PageIndex(pages.start)..PageIndex(pages.end)), now, |nanos| ended.push(nanos));
            ended.clone()
        };
        assert_eq!(leave(0..9, 5), []);
        for (page, since) in [(1, 10), (2, 20), (2, 30), (5, 40)] {
            waits.join(PageIndex(page), since);
        }
        assert_eq!(leave(2..5, 100), [80, 70]);
        assert_eq!(leave(0..9, 200), [190, 160]);
        for _ in 0..2 * JOINED_MAX {
            waits.join(PageIndex(1), 0);
        }
        assert_eq!(leave(1..2, 1).len(), JOINED_MAX);
        // What was counted while it went on is not counted again.
        waits.counted.store(70, Relaxed);
        for since in [60, 80] {
            waits.join(PageIndex(1), since);
        }
        assert_eq!(leave(1..2, 100), [30, 20]);
    }
}
