//! The tide: a run's memory over time, in as many steps as a terminal has columns.

use crate::show::report::Report;
use crate::units::PAGE;
use pagetide_swap::Counter;
use std::time::Duration;

/// The most samples that are kept. When they are full, each two become one.
const SAMPLES_MAX: usize = 512;

/// Memory at one time, in bytes.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(super) struct Sample {
    /// Managed memory in the programs.
    pub(super) resident: u64,
    /// What no engine manages, and what the engines take themselves.
    pub(super) other: u64,
    /// The compressed pool.
    pub(super) pool: u64,
    /// On disk.
    pub(super) disk: u64,
    /// The cap.
    pub(super) cap: u64,
}

impl Sample {
    fn of(report: &Report) -> Self {
        let pages = report.now.pages;
        let [total, resident, pool, disk, cap] =
            [pages.total, pages.resident, pages.pool, pages.disk, report.cap_pages].map(|pages| pages * PAGE);
        // Processes share pages after a fork: parts may sum up to more than the whole.
        let resident = resident.min(total.saturating_sub(pool));
        Self { resident, other: total.saturating_sub(resident + pool), pool, disk, cap }
    }

    /// Returns the larger of each figure.
    fn max(self, other: Self) -> Self {
        Self {
            resident: self.resident.max(other.resident),
            other: self.other.max(other.other),
            pool: self.pool.max(other.pool),
            disk: self.disk.max(other.disk),
            cap: self.cap.max(other.cap),
        }
    }

    /// Returns what is in memory.
    pub(super) fn in_memory(&self) -> u64 {
        self.resident + self.other + self.pool
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
    samples: Vec<Sample>,
    /// Looks that one sample stands for, and those that the last one has.
    looks_each: usize,
    looks: usize,
    totals: Option<Totals>,
    rates: Rates,
    began: Option<Duration>,
}

impl Tide {
    pub(super) fn new() -> Self {
        Self {
            samples: Vec::new(),
            looks_each: 1,
            looks: 0,
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
        self.push(Sample::of(report));
    }

    fn push(&mut self, sample: Sample) {
        match self.samples.last_mut() {
            Some(last) if self.looks < self.looks_each => {
                *last = last.max(sample);
                self.looks += 1;
            }
            _ => {
                if self.samples.len() == SAMPLES_MAX {
                    self.samples = self.samples.chunks(2).map(|two| two[0].max(two[two.len() - 1])).collect();
                    self.looks_each *= 2;
                }
                self.samples.push(sample);
                self.looks = 1;
            }
        }
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
        let count = self.samples.len();
        if count <= columns {
            return self.samples.clone();
        }
        (0..columns)
            .map(|column| {
                let part = &self.samples[column * count / columns..(column + 1) * count / columns];
                part.iter().fold(Sample::default(), |highest, &sample| highest.max(sample))
            })
            .collect()
    }

    /// Returns the newest sample.
    pub(super) fn newest(&self) -> Sample {
        self.samples.last().copied().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(resident: u64) -> Sample {
        Sample { resident, cap: 100, ..Sample::default() }
    }

    #[test]
    fn a_long_run_keeps_its_peaks_in_a_bounded_number_of_samples() {
        let mut tide = Tide::new();
        for look in 0..100_000 {
            tide.push(sample(if look == 777 { 99 } else { look % 50 }));
        }
        assert!((SAMPLES_MAX / 2..=SAMPLES_MAX).contains(&tide.samples.len()));
        for columns in [1, 7, 80, 400] {
            let shown = tide.columns(columns);
            assert_eq!(shown.len(), columns.min(tide.samples.len()));
            assert_eq!(shown.iter().map(|sample| sample.resident).max(), Some(99));
        }
    }

    #[test]
    fn a_short_run_is_shown_as_it_was() {
        let mut tide = Tide::new();
        (1..4).for_each(|look| tide.push(sample(look)));
        assert_eq!(tide.columns(80), [sample(1), sample(2), sample(3)]);
        assert_eq!(tide.newest(), sample(3));
    }
}
