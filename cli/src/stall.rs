//! `--max-stall`: notices a run that waits for its own pages nearly all the time.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

const TICK: Duration = Duration::from_millis(100);
/// The share of a tick that faults must have waited, and the share of ticks.
const STALLED: f64 = 0.9;

/// The ticks of the last while, and which of them were stalled.
#[derive(Debug)]
pub struct Stall {
    window: usize,
    ticks: VecDeque<bool>,
    started: Instant,
    nanos: u64,
    throughout: bool,
}

impl Stall {
    /// Watches the last `window`.
    pub fn new(window: Duration, now: Instant) -> Self {
        let window = window.as_millis().div_ceil(TICK.as_millis()) as usize;
        Self { window, ticks: VecDeque::new(), started: now, nanos: 0, throughout: true }
    }

    /// Takes a sample: nanoseconds that faults have waited in all, and whether one waits now. True if the
    /// run has stalled for the whole window.
    pub fn sample(&mut self, now: Instant, nanos: u64, waits: bool) -> bool {
        self.throughout &= waits;
        let elapsed = now.saturating_duration_since(self.started);
        if elapsed < TICK {
            return false;
        }
        let waited = nanos.saturating_sub(self.nanos) as f64;
        self.ticks.push_back(self.throughout || waited >= STALLED * elapsed.as_nanos() as f64);
        if self.ticks.len() > self.window {
            self.ticks.pop_front();
        }
        (self.started, self.nanos, self.throughout) = (now, nanos, true);
        let stalled = self.ticks.iter().filter(|&&stalled| stalled).count();
        self.ticks.len() == self.window && stalled as f64 > STALLED * self.window as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Samples every 20 ms for `seconds`: when does it strike?
    fn strikes(seconds: u64, mut state: impl FnMut(u64) -> (u64, bool)) -> Option<u64> {
        let start = Instant::now();
        let mut stall = Stall::new(Duration::from_secs(1), start);
        (1..seconds * 50).map(|nth| nth * 20).find(|&millis| {
            let (nanos, waits) = state(millis);
            stall.sample(start + Duration::from_millis(millis), nanos, waits)
        })
    }

    #[test]
    fn a_run_strikes_when_it_stalled_for_the_whole_window() {
        assert_eq!(strikes(10, |_| (0, true)), Some(1000));
        assert_eq!(strikes(10, |millis| (millis * 950_000, false)), Some(1000));
        assert_eq!(strikes(10, |millis| (0, millis > 3000)), Some(4000));
    }

    #[test]
    fn a_run_that_gets_on_does_not() {
        assert_eq!(strikes(10, |_| (0, false)), None);
        assert_eq!(strikes(10, |millis| (millis * 500_000, false)), None);
        assert_eq!(strikes(10, |millis| (0, millis % 500 != 0)), None);
    }
}
