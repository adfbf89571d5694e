//! Notices on a terminal while a run goes on: one when swapping begins, and one when the run does little but wait.

use crate::accounts::gathered::Gathered;
use crate::units::{PAGE, show_bytes};
use pagetide::engine::TICK_NS;
use pagetide_swap::Counter;
use std::time::{Duration, Instant};

/// The time over which waits are judged.
const WINDOW: Duration = Duration::from_secs(10);
/// The part of their time that threads which touch memory must wait.
const STALLED: f64 = 0.5;

/// Which notices are still due, and what the last judgement of waits has seen.
#[derive(Debug)]
pub(crate) struct Notices {
    begins: bool,
    stalls: bool,
    since: Instant,
    /// Nanoseconds of waits, and threads that began to wait in a tick, summed over ticks.
    waited: [u64; 2],
}

impl Notices {
    /// All are due, where `wanted`.
    pub(crate) fn new(wanted: bool, now: Instant) -> Self {
        Self { begins: wanted, stalls: wanted, since: now, waited: [0; 2] }
    }

    /// Looks at a sample of the run of launcher `pid`. Returns what is to be said.
    pub(crate) fn look(&mut self, now: Instant, pid: u32, cap_pages: u64, seen: &Gathered) -> Option<String> {
        if self.begins && seen.counter(Counter::pgsteal) > 0 {
            self.begins = false;
            return Some(format!(
                "the cap of {} is nearly used up: swapping begins (`pagetide stat {pid}` shows how it goes)",
                show_bytes(cap_pages * PAGE)
            ));
        }
        let elapsed = now.saturating_duration_since(self.since);
        if !self.stalls || elapsed < WINDOW {
            return None;
        }
        let waited = [Counter::stalled_ns, Counter::stalled_ticks].map(|counter| seen.counter(counter));
        let [nanos, ticks] = [0, 1].map(|nth: usize| waited[nth].saturating_sub(self.waited[nth]) as f64);
        (self.since, self.waited) = (now, waited);
        let elapsed = elapsed.as_nanos() as f64;
        // Threads that waited at one time or another in a tick, on average.
        let threads = (ticks * TICK_NS as f64 / elapsed).max(1.0);
        let share = nanos / elapsed / threads;
        if share <= STALLED {
            return None;
        }
        self.stalls = false;
        Some(format!(
            "threads that touch memory waited for pages {:.0} % of the last {} s: the run has {} and needs {} \
             (`pagetide set --pid {pid} memory=…` gives it more)",
            100.0 * share.min(1.0),
            WINDOW.as_secs(),
            show_bytes(cap_pages * PAGE),
            show_bytes(seen.pages.needed * PAGE)
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::group;

    #[test]
    fn each_notice_comes_once_and_none_where_none_is_wanted() {
        let (_fd, group) = group(131_072);
        let start = Instant::now();
        let mut seen = Gathered::from(&group);
        seen.pages.needed = 300_000;
        let mut say = |notices: &mut Notices, seconds: u64, counts: [u64; 3]| {
            let counters = [Counter::pgsteal, Counter::stalled_ns, Counter::stalled_ticks];
            counters
                .into_iter()
                .zip(counts)
                .for_each(|(counter, count)| seen.counters[counter as usize] = count);
            notices.look(start + Duration::from_secs(seconds), 7, 131_072, &seen)
        };
        let mut notices = Notices::new(true, start);
        assert_eq!(say(&mut notices, 1, [0, 0, 0]), None);
        let began = say(&mut notices, 2, [5, 0, 0]).unwrap();
        assert!(began.contains("the cap of 512 MiB") && began.contains("`pagetide stat 7`"), "{began}");
        // Four threads wait for a third of their time; then one for three quarters of it.
        assert_eq!(say(&mut notices, 10, [6, 13_000_000_000, 400]), None);
        assert_eq!(say(&mut notices, 15, [6, 20_000_000_000, 450]), None);
        let stalls = say(&mut notices, 20, [6, 20_500_000_000, 500]).unwrap();
        assert!(stalls.contains("75 % of the last 10 s") && stalls.contains("needs 1.1 GiB"), "{stalls}");
        assert_eq!(say(&mut notices, 40, [6, 60_000_000_000, 700]), None);

        let mut notices = Notices::new(false, start);
        assert_eq!(say(&mut notices, 40, [6, 60_000_000_000, 700]), None);
    }
}
