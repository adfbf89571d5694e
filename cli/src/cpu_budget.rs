//! Processor time that the launcher may spend on one of its tasks.

use rustix::time::{ClockId, clock_gettime};
use std::time::{Duration, Instant};

/// Unspent time is saved up to this much.
const SAVED_MAX: Duration = Duration::from_millis(5);

/// A share of one processor's time. Unspent time is saved, up to 5 ms; overspent time has to be earned before more
/// can be spent.
#[derive(Debug)]
pub(crate) struct CpuBudget {
    /// The budget grows by one part in this many of the time that passes.
    share: u32,
    /// Nanoseconds that are left; negative when overspent.
    left: i64,
    earned: Instant,
}

impl CpuBudget {
    /// Returns a budget that grows by one part in `share` of the time from `now` on.
    pub(crate) fn new(share: u32, now: Instant) -> Self {
        Self { share, left: SAVED_MAX.as_nanos() as i64, earned: now }
    }

    /// Adds the time earned until `now`, and returns whether any is left to spend.
    pub(crate) fn lasts(&mut self, now: Instant) -> bool {
        let earned = now.saturating_duration_since(self.earned) / self.share;
        self.left = (self.left + earned.as_nanos() as i64).min(SAVED_MAX.as_nanos() as i64);
        self.earned = now;
        self.left > 0
    }

    /// Runs `work`, and takes its processor time off the budget.
    pub(crate) fn spend<T>(&mut self, work: impl FnOnce() -> T) -> T {
        let before = thread_time();
        let result = work();
        self.left -= thread_time().saturating_sub(before).as_nanos() as i64;
        result
    }
}

/// Returns the processor time of the calling thread.
fn thread_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_spent_has_to_be_earned() {
        let start = Instant::now();
        let mut cpu_budget = CpuBudget::new(100, start);
        assert!(cpu_budget.lasts(start));
        cpu_budget.left -= 15_000_000;
        assert!(!cpu_budget.lasts(start + Duration::from_millis(900)), "9 ms of 10 are earned");
        assert!(cpu_budget.lasts(start + Duration::from_millis(1001)));
        assert!(cpu_budget.lasts(start + Duration::from_secs(1000)));
        assert_eq!(cpu_budget.left, SAVED_MAX.as_nanos() as i64, "only so much is saved");
    }

    #[test]
    fn time_that_is_slept_costs_nothing() {
        let mut cpu_budget = CpuBudget::new(100, Instant::now());
        cpu_budget.spend(|| std::thread::sleep(Duration::from_millis(30)));
        assert!(cpu_budget.left > 0);
        cpu_budget.spend(|| {
            let start = thread_time();
            while thread_time() - start < 2 * SAVED_MAX {}
        });
        assert!(cpu_budget.left < 0);
    }
}
