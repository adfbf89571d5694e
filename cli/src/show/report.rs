//! Report on a run, as JSON.

use crate::accounts::gathered::Gathered;
use crate::accounts::most::Most;
use crate::accounts::pages::Pages;
use crate::processes::killed::Killer;
use crate::processes::os::Usage;
use crate::sampler::outside::Outside;
use crate::units::PAGE;
use pagetide::census::Reason;
use pagetide::group::Ended;
use pagetide::latency;
use pagetide_swap::Counter;
use serde_json::{Value, json};
use std::time::Duration;

const VERSION: u64 = 1;

/// A report on a run. Fields that only the launcher knows are `None` in reports of others.
#[derive(Clone, Debug)]
pub(crate) struct Report {
    /// The launcher.
    pub(crate) pid: u32,
    /// CMD and its arguments.
    pub(crate) command: Vec<String>,
    /// The exit status, when it has ended.
    pub(crate) exit_status: Option<u8>,
    /// How long it has run.
    pub(crate) elapsed: Duration,
    /// What the kernel tells of the processes that have ended; known to the launcher.
    pub(crate) usage: Option<Usage>,
    /// The cap, in pages, and how often it was changed while the run went on.
    pub(crate) cap_pages: u64,
    pub(crate) cap_changes: u64,
    /// Counters, memory and disk at this time.
    pub(crate) now: Gathered,
    /// The peak of each figure; known to the launcher.
    pub(crate) peak: Option<Pages>,
    /// The figures when the run held the most memory.
    pub(crate) most: Most,
    /// Who killed the run, if anybody did.
    pub(crate) killer: Option<Killer>,
    /// Page bytes divided by payload bytes in the pool, now or when it held the most.
    pub(crate) ratio: Option<f64>,
    /// Fault latencies.
    pub(crate) latencies: [u64; latency::WORDS],
    /// The programs that run without Pagetide.
    pub(crate) outside: Outside,
    /// The longest time between two looks for processes without a slot, if it was too long; known to the launcher.
    pub(crate) latest_look: Option<Duration>,
    /// The processes that ended for want of memory, if any did.
    pub(crate) ended: Option<Ended>,
}

fn ended_json(ended: Ended) -> Value {
    let counted = Reason::ALL.iter().map(|&reason| (reason.name(), ended.stuck.get(reason)));
    let stuck: serde_json::Map<_, _> = counted
        .chain([("unmanaged", ended.unmanaged)])
        .map(|(name, pages)| (name.to_owned(), (pages * PAGE).into()))
        .collect();
    json!({ "processes": ended.processes, "stuck_bytes": stuck })
}

impl Report {
    /// Returns what is said at the end of the run.
    fn summary_json(&self) -> Value {
        self.summary().iter().map(|line| json!({ "warning": line.warning, "text": line.text })).collect()
    }

    /// Returns the report as JSON.
    pub(crate) fn json(&self) -> Value {
        let counters: serde_json::Map<_, _> = Counter::ALL
            .iter()
            .map(|&counter| (counter.name().to_owned(), self.now.counter(counter).into()))
            .collect();
        let micros = |quantile| latency::quantile_ns(&self.latencies, quantile) as f64 / 1e3;
        let maximum = self.latencies[latency::BUCKETS] as f64 / 1e3;
        json!({
            "version": VERSION,
            "pid": self.pid,
            "command": self.command,
            "running": self.exit_status.is_none(),
            "exit_status": self.exit_status,
            "elapsed_s": self.elapsed.as_secs_f64(),
            "cpu_s": self.usage.map(|Usage { cpu: (user, system), .. }| json!({ "user": user, "system": system })),
            "max_rss_bytes": self.usage.map(|usage| usage.max_rss),
            "cap_bytes": self.cap_pages * PAGE,
            "cap_changes": self.cap_changes,
            "counters": counters,
            "refault_distances": self.now.distances(),
            "zswap": self.now.zswap(),
            "swap_file": self.now.swap_file(),
            "remote": self.now.remote_tier(),
            "nr_swapped": self.now.pages.swapped,
            "nr_swapcached": self.now.pages.cached,
            "bytes": { "now": self.now.pages.json(), "peak": self.peak.map(Pages::json) },
            "needed_bytes": self.peak.map(|peak| peak.needed * PAGE),
            "disk_bytes_written": self.now.counter(Counter::pswpout).saturating_mul(PAGE),
            "compression_ratio": self.ratio,
            "stalled_s": self.now.counter(Counter::stalled_ns) as f64 / 1e9,
            "stalled_threads": self.now.counter(Counter::stalled_threads),
            "rested_s": self.now.counter(Counter::rested_ns) as f64 / 1e9,
            "fault_latency_us": { "p50": micros(0.5), "p99": micros(0.99), "p99_9": micros(0.999), "max": maximum },
            "processes": self.now.processes,
            "unmanaged_programs": self.outside.json(),
            "latest_look_s": self.latest_look.map(|time| time.as_secs_f64()),
            "counted": self.most.counted.map(|counted| json!({ "bytes": self.most.held_bytes(), "looks": counted.looks })),
            "cap_held": self.peak.map(|_| self.most.held_bytes() <= self.cap_pages * PAGE),
            "killed_by": self.killer.as_ref().map(Killer::name),
            "out_of_memory": self.ended.map(ended_json),
            "summary": self.exit_status.map(|_| self.summary_json()),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::show::testing::{group, report};
    use pagetide::group::Field;
    use pagetide_sys::procfs::Identity;

    #[test]
    fn the_summary_adds_up_the_living_and_the_dead() {
        let (_fd, group) = group();
        let [one, two] = [1, 2].map(|pid| group.claim(Identity { pid, ..Identity::own() }).unwrap());
        for (slot, share) in [(one, 1), (two, 2)] {
            let counters = slot.counters();
            counters.add(Counter::pgsteal, 70_000 * share);
            counters.add(Counter::swpout_zero, 21_000 * share);
            counters.add(Counter::zswpout, 42_000 * share);
            counters.add(Counter::pswpout, 7_500 * share);
            counters.add(Counter::zswpwb, 500 * share);
            counters.add(Counter::zswpin, 50_000 * share);
            counters.add(Counter::swap_cache_hit, 4_000 * share);
            counters.add(Counter::stalled_ns, 400_000_000 * share);
            counters.add(Counter::stalled_threads, share);
            slot.latency().record(Duration::from_micros(11 * share));
            slot.set(Field::StoredPages, 340);
            slot.set(Field::StoredBytes, 100 * PAGE);
            slot.set(Field::SameFilled, 7);
        }
        group.release([one]);
        let peak = Pages { total: 63_744, needed: 179_712, swapped: 115_456, ..Pages::default() };
        let report = report(&group, peak);
        let summary: Vec<String> = report.summary().into_iter().map(|line| line.text).collect();
        assert_eq!(
            summary,
            [
                "the cap of 250 MiB held: 249 MiB in memory at most; 702 MiB were needed (2.8 ×), 451 MiB swapped",
                "out 210 k pages (30 % zero, 60 % pool at 3.4:1, 10 % disk 88 MiB written), \
                 in 150 k pages, 12 k hits on probation",
                "threads waited 1.2 s for pages (3 threads, 33.1 s of wall time); \
                 fault latency p50 12 µs, p99 22 µs, max 22 µs",
            ]
        );

        let json = report.json();
        assert_eq!(json["counters"]["zswpout"], 126_000);
        assert_eq!((&json["stalled_s"], &json["stalled_threads"]), (&1.2.into(), &3.into()));
        assert_eq!(json["disk_bytes_written"], 22_500 * PAGE);
        assert_eq!(json["zswap"]["written_back_pages"], 1500);
        assert_eq!(
            (&json["zswap"]["stored_pages"], &json["zswap"]["same_filled_pages"]),
            (&340.into(), &7.into())
        );
        assert_eq!(json["bytes"]["peak"]["swapped"], 115_456 * PAGE);
        assert_eq!((&json["running"], &json["processes"]), (&true.into(), &1.into()));
    }
}
