//! The tide: a run's memory over time, in as many steps as a terminal has columns.

use crate::accounts::memory::Memory;
use crate::show::report::Report;
use crate::thinned::Thinned;
use crate::units::PAGE;
use pagetide_swap::Counter;
use std::time::Duration;

/// The most samples that are kept.
const SAMPLES_MAX: usize = 512;

/// Memory and the cap at one time, in bytes.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(super) struct Sample {
    pub(super) memory: Memory,
    pub(super) cap: u64,
}

impl Sample {
    fn of(report: &Report) -> Self {
        let pages = report.now.pages;
        let [total, resident, pool, disk, cap] =
            [pages.total, pages.resident, pages.pool, pages.disk, report.cap_pages].map(|pages| pages * PAGE);
        Self { memory: Memory::new(total, resident, pool, disk), cap }
    }

    /// Returns the larger of each figure.
    fn max(self, other: Self) -> Self {
        Self { memory: self.memory.max(other.memory), cap: self.cap.max(other.cap) }
    }
}

/// Figures of the last interval.
#[derive(Clone, Copy, Default, PartialEq, Debug)]
pub(super) struct Rates {
    /// Faults for pages that were out, a second.
    pub(super) faults: f64,
    /// Pages that left, and that came, a second.
    pub(super) out: f64,
    pub(super) back: f64,
    /// Threads that waited for pages, on average.
    pub(super) waiting: f64,
}

/// Totals since the start of the run.
#[derive(Clone, Copy, Default, Debug)]
struct Totals {
    elapsed: Duration,
    faults: u64,
    out: u64,
    back: u64,
    stalled_ns: u64,
}

impl Totals {
    fn of(report: &Report) -> Self {
        let count = |counter| report.now.counter(counter);
        Self {
            elapsed: report.elapsed,
            faults: count(Counter::pgmajfault),
            out: count(Counter::pgsteal),
            back: count(Counter::pswpin) + count(Counter::zswpin) + count(Counter::swpin_zero),
            stalled_ns: count(Counter::stalled_ns),
        }
    }
}

/// Samples since `top` began, and the rates of the last interval.
#[derive(Clone, Debug)]
pub(super) struct Tide {
    samples: Thinned<Sample>,
    totals: Option<Totals>,
    rates: Rates,
    began: Option<Duration>,
}

impl Tide {
    pub(super) fn new() -> Self {
        Self {
            samples: Thinned::new(SAMPLES_MAX, Sample::max),
            totals: None,
            rates: Rates::default(),
            began: None,
        }
    }

    /// Adds a look at the run.
    pub(super) fn add(&mut self, report: &Report) {
        let now = Totals::of(report);
        if let Some(before) = self.totals.replace(now) {
            let seconds = now.elapsed.saturating_sub(before.elapsed).as_secs_f64();
            let per_second = |now: u64, before: u64| {
                if seconds > 0.0 { now.saturating_sub(before) as f64 / seconds } else { 0.0 }
            };
            self.rates = Rates {
                faults: per_second(now.faults, before.faults),
                out: per_second(now.out, before.out),
                back: per_second(now.back, before.back),
                waiting: per_second(now.stalled_ns, before.stalled_ns) / 1e9,
            };
        }
        self.began.get_or_insert(report.elapsed);
        self.samples.push(Sample::of(report));
    }

    /// Returns the rates of the last interval.
    pub(super) fn rates(&self) -> Rates {
        self.rates
    }

    /// Returns the time that the samples cover.
    pub(super) fn covered(&self) -> Duration {
        let ended = self.totals.map_or(Duration::ZERO, |totals| totals.elapsed);
        ended.saturating_sub(self.began.unwrap_or_default())
    }

    /// Returns a sample for each of at most `columns` columns, the newest last: the highest figures of its time.
    pub(super) fn columns(&self, columns: usize) -> Vec<Sample> {
        let samples = self.samples.samples();
        let count = samples.len();
        if count <= columns {
            return samples.to_vec();
        }
        (0..columns)
            .map(|column| {
                let part = &samples[column * count / columns..(column + 1) * count / columns];
                part.iter().fold(Sample::default(), |highest, &sample| highest.max(sample))
            })
            .collect()
    }

    /// Returns the newest sample.
    pub(super) fn newest(&self) -> Sample {
        self.samples.samples().last().copied().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(resident: u64) -> Sample {
        Sample { memory: Memory::new(resident, resident, 0, 0), cap: 100 }
    }

    #[test]
    fn a_long_run_keeps_its_peaks_in_a_bounded_number_of_samples() {
        let mut tide = Tide::new();
        for look in 0..100_000 {
            tide.samples.push(sample(if look == 777 { 99 } else { look % 50 }));
        }
        for columns in [1, 7, 80, 400] {
            let shown = tide.columns(columns);
            assert_eq!(shown.len(), columns.min(tide.samples.samples().len()));
            assert_eq!(shown.iter().map(|sample| sample.memory.resident).max(), Some(99));
        }
    }

    #[test]
    fn a_short_run_is_shown_as_it_was() {
        let mut tide = Tide::new();
        (1..4).for_each(|look| tide.samples.push(sample(look)));
        assert_eq!(tide.columns(80), [sample(1), sample(2), sample(3)]);
        assert_eq!(tide.newest(), sample(3));
    }
}
