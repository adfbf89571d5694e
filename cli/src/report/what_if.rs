//! What more memory would have changed: an estimate from the refault distances of a run.
//!
//! A page comes back after `d` evictions, at most so many of different pages: `d` more memory for programs, or as much as was
//! out at most, would have kept it (Mattson et al. 1970; [`pagetide_swap::distances`]). With `more` of it
//!
//! - a page with `d < more` does not leave;
//! - one with `d < more + c` comes from the pool, which holds the `c` bytes that left last; others come from the device;
//! - the pool keeps its size, unless less than that is out.
//!
//! Of what threads waited, the part of these faults falls as what they cost; the rest – new pages, probation – stays until
//! all fits. So the estimate errs on the side of too little gain: evictions of the same page count each time, and more memory
//! has fewer of them. It says nothing
//!
//! - of a smaller cap: an engine sees no access to a page that is in memory;
//! - of runs that needed more than [`REACH`] times their cap: the clock of evictions goes round after 16 times.

use super::series::{Series, number};
use pagetide_swap::cost::{POOL_FAULT_NS, PROBATION_FAULT_NS};
use pagetide_swap::distances::{BUCKETS, growth};
use serde_json::Value;

/// Sizes for which an estimate is made.
const STEPS: u32 = 24;
/// Times its cap that a run may have needed.
const REACH: f64 = 10.0;
/// What threads wait for is worth a larger cap from this part of the time on.
const WORTH: f64 = 0.05;
/// A larger cap is worth its memory if it leaves this part of the wait, or less.
const LEFT: f64 = 0.2;
const MIB: f64 = 1_048_576.0;

/// What threads would have waited under a cap.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Point {
    /// The cap, in bytes.
    pub(super) cap: f64,
    /// Seconds that threads wait for pages.
    pub(super) waited: f64,
}

/// The estimates for larger caps.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct WhatIf {
    /// From the run's cap to the one under which nothing is swapped.
    pub(super) points: Vec<Point>,
    /// Seconds that the run took.
    elapsed: f64,
    is_of_one_thread: bool,
}

/// Faults of one distance.
#[derive(Clone, Copy, Debug)]
struct Faults {
    /// Bytes of memory beyond what programs had that would have spared them.
    distance: f64,
    pool: f64,
    device: f64,
}

/// What a run was, in bytes and nanoseconds.
#[derive(Clone, Debug)]
struct Model {
    faults: Vec<Faults>,
    /// The pool, and the pages in it.
    pool: f64,
    ratio: f64,
    /// Pages that were out at most.
    out: f64,
    device_ns: f64,
}

impl Model {
    fn of(series: &Series) -> Option<Self> {
        let (resident, pool) = series.memory_at_faults();
        let out = series.number("/bytes/peak/swapped");
        let amount = |value: &Value| number(value).unwrap_or(0.0);
        let mut faults = Vec::new();
        for bucket in series.last()["refault_distances"].as_array()? {
            let upper = amount(&bucket["growth"]);
            // The middle of the bucket; the last one has all that lies beyond.
            let nth = (0..BUCKETS).find(|&nth| growth(nth) >= upper).unwrap_or(BUCKETS - 1);
            let lower = if nth == 0 { 1.0 } else { growth(nth - 1) };
            let far = if nth == BUCKETS - 1 { out } else { resident * ((lower + upper) / 2.0 - 1.0) };
            let [pool, device] = ["pool", "device"].map(|tier| amount(&bucket[tier]));
            faults.push(Faults { distance: far.min(out), pool, device });
        }
        let device: f64 = faults.iter().map(|faults| faults.device).sum();
        Some(Self {
            faults,
            pool,
            ratio: series.last()["compression_ratio"].as_f64().filter(|ratio| *ratio >= 1.0).unwrap_or(1.0),
            out,
            device_ns: series.number("/counters/pswpin_ns") / device.max(1.0),
        })
    }

    /// Returns what faults cost if programs have `more` memory.
    fn cost(&self, more: f64) -> f64 {
        let compressed = self.pool * self.ratio;
        let left = self.faults.iter().filter(|faults| faults.distance >= more);
        left.map(|faults| {
            let comes_closer = (compressed..more + compressed).contains(&faults.distance);
            let device_ns = if comes_closer { POOL_FAULT_NS.min(self.device_ns) } else { self.device_ns };
            faults.pool * POOL_FAULT_NS + faults.device * device_ns
        })
        .fold(0.0, |sum, cost| sum + cost)
    }

    /// Returns how much larger the cap is then.
    fn larger(&self, more: f64) -> f64 {
        more + self.pool.min((self.out - more) / self.ratio) - self.pool
    }
}

impl WhatIf {
    /// Returns the estimates for a run; `None` if nothing can be told: no page came back, or the cap was changed.
    pub(super) fn of(series: &Series) -> Option<Self> {
        let (cap, needed, waited) =
            (series.number("/cap_bytes"), series.number("/needed_bytes"), series.number("/stalled_s"));
        let model = Model::of(series)?;
        let refaults = model.cost(0.0);
        let is_told = needed > cap && needed <= REACH * cap && series.number("/cap_changes") == 0.0;
        if !is_told || refaults <= 0.0 || waited <= 0.0 {
            return None;
        }
        let others: f64 = ["pgalloc", "swap_cache_hit"]
            .map(|name| series.number(&format!("/counters/{name}")))
            .iter()
            .sum();
        let others = others * PROBATION_FAULT_NS;
        let mut points = vec![Point { cap, waited }];
        for step in 1..STEPS {
            let more = model.out * f64::from(step) / f64::from(STEPS);
            let larger = cap + model.larger(more);
            if larger >= needed {
                break;
            }
            if points.last().is_some_and(|point| point.cap < larger) {
                points.push(Point {
                    cap: larger,
                    waited: waited * (others + model.cost(more)) / (others + refaults),
                });
            }
        }
        points.push(Point { cap: needed, waited: 0.0 });
        let is_of_one_thread =
            series.number("/stalled_threads") == 1.0 && waited <= series.number("/elapsed_s");
        Some(Self { points, elapsed: series.number("/elapsed_s"), is_of_one_thread })
    }

    fn first(&self) -> Point {
        self.points[0]
    }

    /// Returns the part of a run's time that a thread waits, if one waits at a time.
    pub(super) fn share(&self, point: Point) -> f64 {
        // What is not waited for any more is not taken either.
        let elapsed = (self.elapsed - (self.first().waited - point.waited)).max(point.waited);
        if elapsed > 0.0 { point.waited / elapsed } else { 0.0 }
    }

    /// Returns whether only one thread has waited.
    pub(super) fn is_of_one_thread(&self) -> bool {
        self.is_of_one_thread
    }

    /// Returns the smallest cap that is worth its memory, rounded up to what people write; `None` if the run waited too
    /// little for that.
    pub(super) fn advice(&self) -> Option<Point> {
        let first = self.first();
        if first.waited < WORTH * self.elapsed {
            return None;
        }
        let enough = |point: &&Point| point.waited <= LEFT * first.waited || self.share(**point) < WORTH;
        let found = self.points[1..].iter().find(enough)?;
        Some(Point { cap: written(found.cap), ..*found })
    }
}

/// Rounds a size up to two digits of MiB.
fn written(bytes: f64) -> f64 {
    let mib = bytes / MIB;
    let step = 10f64.powf((mib.max(1.0).log10().floor() - 1.0).max(0.0));
    (mib / step).ceil() * step * MIB
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// A run of 100 MiB that needs 440: 80 are in programs and 20 in the pool, at 4 : 1, and 360 were out.
    fn series(distances: &Value, device_ns: u64) -> Series {
        let mib = |count: u64| count << 20;
        let mut series = Series::new();
        for (at, faults) in [(0, 0), (10, 1000)] {
            series.add(&json!({
                "elapsed_s": at, "cap_bytes": mib(100), "cap_changes": 0, "stalled_s": 5.0, "stalled_threads": 1, "processes": 1,
                "needed_bytes": mib(440), "compression_ratio": 4.0, "refault_distances": distances,
                "bytes": {
                    "now": { "total": mib(100), "resident": mib(80), "pool": mib(20), "disk": 0 },
                    "peak": { "swapped": mib(360) },
                },
                "counters": { "pgmajfault": faults, "pswpin_ns": device_ns },
            }));
        }
        series
    }

    fn at(found: &WhatIf, mib: f64) -> f64 {
        found.points.iter().rev().find(|point| point.cap <= mib * MIB).unwrap().waited
    }

    #[test]
    fn what_is_waited_falls_with_the_faults_that_more_memory_spares() {
        // 35 and 90 MiB more would have kept the first and the second.
        let distances = json!([
            { "growth": 1.5, "pool": 600, "device": 0 },
            { "growth": 2.25, "pool": 300, "device": 0 },
            { "growth": 16.0, "pool": 100, "device": 0 },
        ]);
        let found = WhatIf::of(&series(&distances, 0)).unwrap();
        let waited = [100.0, 131.0, 146.0, 205.0, 439.0, 440.0].map(|mib| at(&found, mib));
        assert_eq!(waited.map(|seconds| (seconds * 10.0).round() / 10.0), [5.0, 5.0, 2.0, 0.5, 0.5, 0.0]);
        assert!(found.points.is_sorted_by(|one, next| one.cap < next.cap && one.waited >= next.waited));
        let advice = found.advice().unwrap();
        assert!((190.0..=210.0).contains(&(advice.cap / MIB)), "{advice:?}");
        assert!(found.is_of_one_thread() && found.share(advice) < 0.1, "{}", found.share(advice));
    }

    #[test]
    fn what_was_on_the_device_comes_into_the_pool_first() {
        // 130 MiB: 80 of them are what the pool holds.
        let distances = json!([{ "growth": 2.75, "pool": 0, "device": 100 }]);
        let found = WhatIf::of(&series(&distances, 100 * 120_000)).unwrap();
        let waited = [100.0, 131.0, 161.0, 229.0, 250.0].map(|mib| at(&found, mib));
        assert_eq!(waited, [5.0, 5.0, 0.5, 0.5, 0.0]);
    }

    #[test]
    fn nothing_is_said_of_a_run_to_which_nothing_came_back() {
        assert_eq!(WhatIf::of(&series(&json!([]), 0)), None);
        assert_eq!(WhatIf::of(&series(&Value::Null, 0)), None);
    }

    #[test]
    fn sizes_are_rounded_up_to_what_people_write() {
        for (bytes, mib) in
            [(0.3, 1.0), (9.2, 10.0), (64.1, 65.0), (128.0, 130.0), (701.0, 710.0), (1025.0, 1100.0)]
        {
            assert!((written(bytes * MIB) / MIB - mib).abs() < 1e-6, "{bytes}");
        }
    }
}
