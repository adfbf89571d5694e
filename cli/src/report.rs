//! What a run has done and holds: gathered from its group page, and as JSON.

use crate::killed::Killer;
use crate::outside::Outside;
use crate::summary::Most;
use pagetide::census::Reason;
use pagetide::group::{Ended, Field, Group, ProcessSlot};
use pagetide::latency;
use pagetide_swap::{Counter, Counters};
use serde_json::{Value, json};
use std::time::Duration;

const PAGE: u64 = pagetide_sys::PAGE as u64;
const VERSION: u64 = 1;

macro_rules! pages {
    ($($(#[$doc:meta])* $name:ident),+ $(,)?) => {
        /// Memory and disk of a run, in pages. Processes share what a fork left in common: sums over
        /// processes are upper bounds.
        #[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
        pub struct Pages { $($(#[$doc])* pub $name: u64),+ }

        impl Pages {
            /// The larger of each.
            pub fn max(self, other: Self) -> Self {
                Self { $($name: self.$name.max(other.$name)),+ }
            }
            fn add(&mut self, other: Self) {
                $(self.$name += other.$name;)+
            }
        }
    };
}

pages! {
    /// Charged to the processes, as the kernel has it.
    total,
    /// In the programs.
    resident,
    /// Of the compressed pool.
    pool,
    /// Of the engines' own data.
    metadata,
    /// In frames.
    frames,
    /// That the engine does not manage.
    unmanaged,
    /// Of those, in shared memory, each once.
    shared,
    /// On the device.
    disk,
    /// Out of the programs, at a place.
    swapped,
    /// On probation.
    cached,
    /// What the run would take without an engine.
    needed,
    /// In the programs and in the pool.
    working,
}

impl Pages {
    /// What one process holds.
    pub fn of(slot: ProcessSlot) -> Self {
        let get = |field| slot.get(field);
        let (observed, armed) = (get(Field::Observed), get(Field::Armed) != 0);
        let mut pages = Self {
            total: observed,
            resident: get(Field::Resident),
            pool: get(Field::Pool),
            metadata: get(Field::Metadata),
            frames: get(Field::Frames),
            unmanaged: get(Field::Unmanaged),
            disk: get(Field::Disk),
            swapped: get(Field::Swapped),
            cached: get(Field::Cached),
            ..Self::default()
        };
        if armed {
            pages.needed = pages.resident + pages.swapped + pages.cached + pages.unmanaged;
        } else {
            // It was handed out `resident` pages, and has touched some of them.
            pages.resident = pages.resident.min(observed);
            pages.unmanaged = observed - pages.resident;
            pages.needed = observed;
        }
        pages.working = pages.resident + pages.pool;
        pages
    }

    /// What the group page, the launcher and processes without a slot hold.
    pub fn of_strangers(pages: u64) -> Self {
        Self { total: pages, unmanaged: pages, needed: pages, ..Self::default() }
    }

    /// What the run has of shared memory.
    pub fn of_shared(pages: u64) -> Self {
        Self { shared: pages, ..Self::of_strangers(pages) }
    }

    fn json(self) -> Value {
        json!({
            "total": self.total * PAGE,
            "resident": self.resident * PAGE,
            "pool": self.pool * PAGE,
            "metadata": self.metadata * PAGE,
            "frames": self.frames * PAGE,
            "unmanaged": self.unmanaged * PAGE,
            "shared": self.shared * PAGE,
            "disk": self.disk * PAGE,
            "swapped": self.swapped * PAGE,
        })
    }
}

/// What the group page says at one time.
#[derive(Clone, Copy, Debug)]
pub struct Gathered {
    /// Counters of the living and the dead.
    pub counters: [u64; Counters::CELLS],
    /// What the living hold.
    pub pages: Pages,
    /// Pages stored in the pool, and the bytes of their payload.
    pub stored: (u64, u64),
    /// Those of them that are stored as they are.
    pub stored_raw: u64,
    /// Pages that are a repeated word.
    pub same_filled: u64,
    /// Pages of the pool that would be free if its entries lay together.
    pub loose: u64,
    /// Blocks of the swap file: what it has grown to, what it may grow to just now, and what it may ever.
    pub file: [u64; 3],
    /// Faults that wait.
    pub stalled: u64,
    /// Processes that live.
    pub processes: usize,
    /// Of them, those whose engine runs.
    pub armed: usize,
}

impl Gathered {
    /// Reads the group page.
    pub fn from(group: &Group) -> Self {
        let mut this = Self {
            counters: [0; Counters::CELLS],
            pages: Pages::default(),
            stored: (0, 0),
            stored_raw: 0,
            same_filled: 0,
            loose: 0,
            file: [group.frontier().open(), group.frontier().allowed(), group.setup().blocks],
            stalled: 0,
            processes: 0,
            armed: 0,
        };
        this.count(group.dead());
        let (shared, launcher) = group.own_pages();
        this.pages.add(Pages::of_strangers(shared + launcher + group.unmanaged_pages()));
        this.pages.add(Pages::of_shared(group.shared_pages()));
        for slot in group.live() {
            this.count(slot);
            this.pages.add(Pages::of(slot));
            this.stored.0 += slot.get(Field::StoredPages);
            this.stored.1 += slot.get(Field::StoredBytes);
            this.stored_raw += slot.get(Field::StoredRaw);
            this.same_filled += slot.get(Field::SameFilled);
            this.loose += slot.get(Field::Loose);
            this.stalled += slot.get(Field::Stalled);
            this.processes += 1;
            this.armed += usize::from(slot.get(Field::Armed) != 0);
        }
        this
    }

    fn count(&mut self, slot: ProcessSlot) {
        for &counter in Counter::ALL {
            let count = &mut self.counters[counter as usize];
            *count = count.saturating_add(slot.counters().get(counter));
        }
    }

    /// The pool, under the names of `/sys/kernel/debug/zswap`; and the bytes of payload and of what lies loose.
    fn zswap(&self) -> Value {
        let mut zswap = json!({
            "pool_total_size": self.pages.pool * PAGE,
            "stored_pages": self.stored.0,
            "stored_incompressible_pages": self.stored_raw,
            "same_filled_pages": self.same_filled,
            "written_back_pages": self.counter(Counter::zswpwb),
            "stored_bytes": self.stored.1,
            "loose_bytes": self.loose * PAGE,
        });
        for counter in [
            Counter::pool_limit_hit,
            Counter::reject_reclaim_fail,
            Counter::reject_alloc_fail,
            Counter::reject_compress_fail,
            Counter::reject_compress_poor,
            Counter::decompress_fail,
        ] {
            zswap[counter.name()] = self.counter(counter).into();
        }
        zswap
    }

    /// The swap file, in bytes.
    fn swap_file(&self) -> Value {
        let [size, allowed, most] = self.file.map(|blocks| blocks * PAGE);
        json!({ "size": size, "may_grow_to_now": allowed.max(size), "may_grow_to": most })
    }

    /// A counter.
    pub fn counter(&self, counter: Counter) -> u64 {
        self.counters[counter as usize]
    }

    /// What the pool's compression gains, if it holds anything.
    pub fn ratio(&self) -> Option<f64> {
        let (pages, bytes) = self.stored;
        (bytes > 0).then(|| (pages * PAGE) as f64 / bytes as f64)
    }
}

/// The latencies of all faults of a run.
pub fn latencies(group: &Group) -> [u64; latency::WORDS] {
    let mut sum = [0; latency::WORDS];
    group.dead().latency().add_to(&mut sum);
    for slot in group.live() {
        slot.latency().add_to(&mut sum);
    }
    sum
}

/// A report on a run.
#[derive(Clone, Debug)]
pub struct Report {
    /// The launcher.
    pub pid: u32,
    /// CMD and its arguments.
    pub command: Vec<String>,
    /// The exit status, when it has ended.
    pub exit_status: Option<u8>,
    /// How long it has run.
    pub elapsed: Duration,
    /// User and system seconds of the processes that have ended. Only the launcher knows.
    pub cpu: Option<(f64, f64)>,
    /// The cap, in pages.
    pub cap_pages: u64,
    /// Counters, and what is held now.
    pub now: Gathered,
    /// The most that was held. Only the launcher knows.
    pub peak: Option<Pages>,
    /// What was held when that was the most, and by whom.
    pub most: Most,
    /// Who killed it, if somebody did.
    pub killer: Option<Killer>,
    /// What the pool's compression gains, or did when it held the most.
    pub ratio: Option<f64>,
    /// Fault latencies.
    pub latencies: [u64; latency::WORDS],
    /// The programs that run without Pagetide.
    pub outside: Outside,
    /// How long nobody looked for processes without a slot at most, if that was too long. Only the launcher knows.
    pub latest_look: Option<Duration>,
    /// The processes that ended for want of memory, if any did.
    pub ended: Option<Ended>,
}

fn ended_json(ended: Ended) -> Value {
    let counted = Reason::ALL.iter().map(|&reason| (reason.name(), ended.stuck.get(reason)));
    let stuck: serde_json::Map<_, _> = counted
        .chain([("unmanaged", ended.unmanaged)])
        .map(|(name, pages)| (name.to_owned(), (pages * PAGE).into()))
        .collect();
    json!({ "processes": ended.processes, "stuck_bytes": stuck })
}

/// The processes of a run that ended for want of memory, if any did.
pub fn ended(group: &Group) -> Option<Ended> {
    Some(group.ended()).filter(|ended| ended.processes > 0)
}

impl Report {
    /// The report as JSON.
    pub fn json(&self) -> Value {
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
            "cpu_s": self.cpu.map(|(user, system)| json!({ "user": user, "system": system })),
            "cap_bytes": self.cap_pages * PAGE,
            "counters": counters,
            "zswap": self.now.zswap(),
            "swap_file": self.now.swap_file(),
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
            "counted": self.most.counted.map(|counted| json!({ "bytes": counted.bytes, "looks": counted.looks })),
            "cap_held": self.peak.map(|_| self.held_bytes() <= self.cap_pages * PAGE),
            "killed_by": self.killer.as_ref().map(Killer::name),
            "out_of_memory": self.ended.map(ended_json),
        })
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use pagetide::group::Setup;
    use pagetide_sys::procfs::Identity;

    /// The group page of a run of 250 MiB.
    pub fn group() -> (std::os::fd::OwnedFd, Group) {
        let setup = Setup::new(64_000, Identity::own());
        Group::create(setup).unwrap()
    }

    /// A report on it, after 33.1 s.
    pub fn report(group: &Group, peak: Pages) -> Report {
        let now = Gathered::from(group);
        Report {
            pid: 7,
            command: vec!["prog".into()],
            exit_status: None,
            elapsed: Duration::from_millis(33_100),
            cpu: None,
            cap_pages: 64_000,
            now,
            peak: Some(peak),
            most: Most { pages: peak, ..Most::default() },
            killer: None,
            ratio: now.ratio(),
            latencies: latencies(group),
            outside: Outside::default(),
            latest_look: None,
            ended: ended(group),
        }
    }

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

    #[test]
    fn memory_that_was_handed_out_and_not_touched_is_not_resident() {
        let (_fd, group) = group();
        let slot = group.claim(Identity::own()).unwrap();
        slot.set(Field::Resident, 1000);
        slot.set(Field::Observed, 300);
        let pages = Pages::of(slot);
        assert_eq!((pages.resident, pages.unmanaged, pages.needed), (300, 0, 300));
        slot.set(Field::Armed, 1);
        slot.set(Field::Swapped, 500);
        assert_eq!(Pages::of(slot).needed, 1500);
    }
}
