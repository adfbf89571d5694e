//! How a run went, look by look: read from its statistics.

use serde_json::Value;
use std::fmt;

/// The most looks that are kept. When they are full, each two become one: an hour's page stays small.
const LOOKS_MAX: usize = 720;

/// Memory at a look, in bytes.
#[derive(Clone, Copy, Default, PartialEq, Debug)]
pub(super) struct Memory {
    /// Managed memory in the programs.
    pub(super) resident: f64,
    /// What no engine manages, and what the engines take themselves.
    pub(super) other: f64,
    /// The compressed pool.
    pub(super) pool: f64,
    /// On disk.
    pub(super) disk: f64,
}

/// What was seen of a run at one time.
#[derive(Clone, Copy, Default, PartialEq, Debug)]
pub(super) struct Look {
    /// Seconds since the start.
    pub(super) at: f64,
    pub(super) cap: f64,
    pub(super) memory: Memory,
    /// Faults for pages that were out, so far.
    pub(super) faults: f64,
    /// Seconds that threads have waited, so far.
    pub(super) waited: f64,
    pub(super) processes: f64,
}

impl Memory {
    /// Returns what is in memory.
    pub(super) fn in_memory(&self) -> f64 {
        self.resident + self.other + self.pool
    }
}

impl Look {
    fn of(report: &Value) -> Option<Self> {
        let number = |value: &Value| value.as_f64().filter(|number| number.is_finite() && *number >= 0.0);
        let bytes = |name: &str| number(&report["bytes"]["now"][name]);
        let (total, pool) = (bytes("total")?, bytes("pool")?);
        // Processes share pages after a fork: parts may sum up to more than the whole.
        let resident = bytes("resident")?.min((total - pool).max(0.0));
        let memory =
            Memory { resident, other: (total - resident - pool).max(0.0), pool, disk: bytes("disk")? };
        Some(Self {
            at: number(&report["elapsed_s"])?,
            cap: number(&report["cap_bytes"])?,
            memory,
            faults: number(&report["counters"]["pgmajfault"])?,
            waited: number(&report["stalled_s"])?,
            processes: number(&report["processes"])?,
        })
    }

    /// Returns one look for two that follow each other: what was largest, at the later time.
    fn joined(self, later: Self) -> Self {
        let largest = if later.memory.in_memory() < self.memory.in_memory() { self } else { later };
        Self {
            cap: largest.cap,
            memory: Memory { disk: self.memory.disk.max(later.memory.disk), ..largest.memory },
            processes: self.processes.max(later.processes),
            ..later
        }
    }
}

/// The looks at a run.
#[derive(Clone, Default, Debug)]
pub(crate) struct Series {
    looks: Vec<Look>,
    /// Looks that one stands for, and those that the last one has.
    each: usize,
    latest: usize,
    /// The last report.
    last: Value,
    /// Lines of the file that were no reports.
    wrong: usize,
}

impl Series {
    /// Reads the statistics of a run: a report, or one a line.
    ///
    /// # Errors
    /// Nothing in the text is a report.
    pub(super) fn read(text: &str) -> Result<Self, String> {
        let mut this = Self::default();
        if let Ok(report) = serde_json::from_str::<Value>(text) {
            this.add(&report);
        } else {
            for line in text.lines().filter(|line| !line.trim().is_empty()) {
                match serde_json::from_str(line) {
                    Ok(report) => this.add(&report),
                    Err(_) => this.wrong += 1,
                }
            }
        }
        if this.looks.is_empty() {
            return Err("it has no statistics of `pagetide run --stats FILE.jsonl`".to_owned());
        }
        Ok(this)
    }

    /// Adds a report.
    pub(super) fn add(&mut self, report: &Value) {
        let Some(look) = Look::of(report) else {
            self.wrong += 1;
            return;
        };
        self.last = report.clone();
        if self.latest > 0 && self.latest < self.each {
            let last = self.looks.last_mut().expect("it has looks");
            *last = last.joined(look);
            self.latest += 1;
            return;
        }
        if self.looks.len() == LOOKS_MAX {
            self.looks = self.looks.chunks(2).map(|two| two[0].joined(two[two.len() - 1])).collect();
            self.each *= 2;
        }
        self.each = self.each.max(1);
        self.looks.push(look);
        self.latest = 1;
    }

    /// Says what of the file was left out.
    pub(super) fn left_out(&self) -> Option<impl fmt::Display> {
        let lines = if self.wrong == 1 { "line is" } else { "lines are" };
        (self.wrong > 0).then(|| format!("{} {lines} no statistics, and left out", self.wrong))
    }

    pub(super) fn looks(&self) -> &[Look] {
        &self.looks
    }

    /// Returns the last report.
    pub(super) fn last(&self) -> &Value {
        &self.last
    }

    /// Returns a number of the last report; 0 if it has none of this name.
    pub(super) fn number(&self, pointer: &str) -> f64 {
        self.last.pointer(pointer).and_then(Value::as_f64).unwrap_or(0.0)
    }

    /// Returns memory at the time when pages came back, as an average over those; that of the last look if none did.
    pub(super) fn memory_at_faults(&self) -> Memory {
        let mut sum = Memory::default();
        let mut faults = 0.0;
        for two in self.looks.windows(2) {
            let (weight, memory) = ((two[1].faults - two[0].faults).max(0.0), two[1].memory);
            faults += weight;
            sum.resident += weight * memory.resident;
            sum.other += weight * memory.other;
            sum.pool += weight * memory.pool;
            sum.disk += weight * memory.disk;
        }
        match self.looks.last() {
            _ if faults > 0.0 => Memory {
                resident: sum.resident / faults,
                other: sum.other / faults,
                pool: sum.pool / faults,
                disk: sum.disk / faults,
            },
            last => last.map(|look| look.memory).unwrap_or_default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn report(at: f64, total: u64) -> Value {
        json!({
            "elapsed_s": at, "cap_bytes": 1000, "stalled_s": at / 2.0, "processes": 1,
            "bytes": { "now": { "total": total, "resident": total / 2, "pool": 10, "disk": 5 } },
            "counters": { "pgmajfault": 10.0 * at },
        })
    }

    #[test]
    fn many_looks_become_few_and_keep_what_was_largest_and_last() {
        let mut series = Series::default();
        for second in 0..36_000 {
            series.add(&report(f64::from(second), if second == 17_001 { 5000 } else { 100 }));
        }
        let looks = series.looks();
        assert!((LOOKS_MAX / 2..=LOOKS_MAX).contains(&looks.len()), "{}", looks.len());
        assert_eq!(looks.iter().filter(|look| look.memory.in_memory() == 5000.0).count(), 1);
        assert_eq!(looks.last().unwrap().at, 35_999.0);
        assert!(looks.is_sorted_by(|one, next| one.at < next.at && one.faults <= next.faults));
    }

    #[test]
    fn a_file_with_a_damaged_line_is_read_without_it() {
        let text = format!("{}\n{{\"elapsed_s\": 3\nnull\n\n{}\n", report(0.0, 1), report(1.0, 2));
        let series = Series::read(&text).unwrap();
        assert_eq!(series.looks().len(), 2);
        assert_eq!(series.left_out().unwrap().to_string(), "2 lines are no statistics, and left out");
        assert!(Series::read("").is_err() && Series::read("{}").is_err() && Series::read("[1, 2").is_err());
        // A report by itself, as `--stats FILE.json` has it.
        assert_eq!(Series::read(&format!("{:#}", report(1.0, 2))).unwrap().looks().len(), 1);
    }

    #[test]
    fn memory_at_faults_is_that_of_the_looks_at_which_pages_came_back() {
        let mut series = Series::default();
        for (at, total, faults) in
            [(0.0, 20, 0), (1.0, 100, 0), (2.0, 200, 30), (3.0, 400, 40), (4.0, 30, 40)]
        {
            let mut report = report(at, total);
            report["counters"]["pgmajfault"] = faults.into();
            series.add(&report);
        }
        assert_eq!(series.memory_at_faults().resident, (100.0 * 30.0 + 200.0 * 10.0) / 40.0);
    }
}
