//! `--max-stall`: detection of a run in which all threads that touch memory wait for pages nearly all the time.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

const TICK: Duration = Duration::from_nanos(pagetide::engine::TICK_NS);
/// A run has stalled if each thread waited for this share of the time, in this share of the ticks.
const STALLED: f64 = 0.9;

/// The ticks of the last window.
#[derive(Debug)]
pub(crate) struct Stall {
    window: usize,
    ticks: VecDeque<Tick>,
    started: Instant,
    before: Waited,
    throughout: bool,
}

#[derive(Clone, Copy, Debug)]
struct Tick {
    elapsed: Duration,
    /// Time that threads waited, summed; the whole tick if one waits and none was answered.
    waited: Duration,
    /// Threads that began to wait, summed over the ticks of the engines.
    threads: u64,
}

/// Waiting times of threads since the start of the run.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Waited {
    /// Nanoseconds of all waits, of those that go on as far as their engines have counted them.
    pub(crate) nanos: u64,
    /// Threads that waited in a tick, summed over ticks.
    pub(crate) ticks: u64,
    /// Whether a thread waits at this moment, for room or for the device.
    pub(crate) now: bool,
}

impl Stall {
    /// Watches the last `window`.
    pub(crate) fn new(window: Duration, now: Instant) -> Self {
        let window = window.as_millis().div_ceil(TICK.as_millis()) as usize;
        Self { window, ticks: VecDeque::new(), started: now, before: Waited::default(), throughout: true }
    }

    /// Takes a sample. Returns whether the run has stalled for the whole window.
    pub(crate) fn sample(&mut self, now: Instant, waited: Waited) -> bool {
        self.throughout &= waited.now;
        let elapsed = now.saturating_duration_since(self.started);
        if elapsed < TICK {
            return false;
        }
        let answered = Duration::from_nanos(waited.nanos.saturating_sub(self.before.nanos));
        // A thread waits, and none was answered: the run is stuck.
        let nobody = self.throughout && answered.is_zero();
        self.ticks.push_back(Tick {
            elapsed,
            waited: if nobody { elapsed } else { answered },
            threads: waited.ticks.saturating_sub(self.before.ticks),
        });
        if self.ticks.len() > self.window {
            self.ticks.pop_front();
        }
        (self.started, self.before, self.throughout) = (now, waited, true);
        self.ticks.len() == self.window && self.has_stalled()
    }

    /// Returns whether in nearly every tick a thread waited, and each thread that waited did little else.
    fn has_stalled(&self) -> bool {
        let stalled = self.ticks.iter().filter(|tick| tick.waited >= tick.elapsed.mul_f64(STALLED)).count();
        let sum = |of: fn(&Tick) -> Duration| self.ticks.iter().map(of).sum::<Duration>().as_secs_f64();
        let (elapsed, waited) = (sum(|tick| tick.elapsed), sum(|tick| tick.waited));
        // The ticks of engines are not aligned with these: there may be one more of them.
        let engine_ticks = (elapsed / TICK.as_secs_f64()).ceil();
        let threads = self.ticks.iter().map(|tick| tick.threads).sum::<u64>() as f64 / engine_ticks;
        stalled as f64 > STALLED * self.window as f64 && waited >= STALLED * elapsed * threads.max(1.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Samples every 20 ms for `seconds`: when does it strike?
    fn strikes(seconds: u64, mut state: impl FnMut(u64) -> Waited) -> Option<u64> {
        let start = Instant::now();
        let mut stall = Stall::new(Duration::from_secs(1), start);
        (1..seconds * 50)
            .map(|nth| nth * 20)
            .find(|&millis| stall.sample(start + Duration::from_millis(millis), state(millis)))
    }

    /// `threads` that each have waited that many of 1000 parts of the time.
    fn busy(threads: u64, parts: u64) -> impl Fn(u64) -> Waited {
        move |millis| Waited {
            nanos: threads * parts * millis * 1000,
            ticks: threads * (millis / 100),
            now: false,
        }
    }

    fn stuck(now: bool) -> Waited {
        Waited { now, ..Waited::default() }
    }

    #[test]
    fn a_run_strikes_when_it_stalled_for_the_whole_window() {
        assert_eq!(strikes(10, |_| stuck(true)), Some(1000));
        assert_eq!(strikes(10, busy(1, 950)), Some(1000));
        assert_eq!(strikes(10, busy(4, 950)), Some(1000));
        assert_eq!(strikes(10, |millis| stuck(millis > 3000)), Some(4000));
    }

    #[test]
    fn a_run_that_gets_on_does_not() {
        assert_eq!(strikes(10, |_| stuck(false)), None);
        assert_eq!(strikes(10, busy(1, 500)), None);
        // One of them is always waiting, and all get on.
        assert_eq!(strikes(10, |millis| Waited { now: true, ..busy(8, 500)(millis) }), None);
        assert_eq!(strikes(10, |millis| stuck(millis % 500 != 0)), None);
        // It waits with four threads half of the time, and not at all in the other half.
        let by_halves = |millis: u64| busy(4, 950)(millis / 1000 * 500 + (millis % 1000).min(500));
        assert_eq!(strikes(10, by_halves), None);
    }
}
