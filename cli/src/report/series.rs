//! How a run went, look by look: read from its statistics.

use crate::accounts::memory::Memory;
use crate::thinned::Thinned;
use serde_json::Value;
use std::fmt;
use std::io::{BufRead, Read as _};

/// The most looks that are kept: an hour's page stays small.
const LOOKS_MAX: usize = 720;
/// A longer line is no report, in bytes.
const LINE_MAX: u64 = 4 << 20;
/// So many lines that are no reports, and none that is one: it is some other file.
const WRONG_MAX: usize = 100_000;
/// Larger numbers are no statistics of a run.
const NUMBER_MAX: f64 = 1e18;

/// What was seen of a run at one time.
#[derive(Clone, Copy, Default, PartialEq, Debug)]
pub(super) struct Look {
    /// Seconds since the start.
    pub(super) at: f64,
    /// In bytes.
    pub(super) cap: f64,
    pub(super) memory: Memory,
    /// Faults for pages that were out, so far.
    pub(super) faults: f64,
    /// Seconds that threads have waited, so far.
    pub(super) waited: f64,
    pub(super) processes: f64,
}

/// Returns a number of a report; `None` if it is none that a run can have.
pub(super) fn number(value: &Value) -> Option<f64> {
    value.as_f64().filter(|number| (0.0..=NUMBER_MAX).contains(number))
}

impl Look {
    fn of(report: &Value) -> Option<Self> {
        let bytes = |name: &str| number(&report["bytes"]["now"][name]).map(|bytes| bytes as u64);
        Some(Self {
            at: number(&report["elapsed_s"])?,
            cap: number(&report["cap_bytes"])?,
            memory: Memory::new(bytes("total")?, bytes("resident")?, bytes("pool")?, bytes("disk")?),
            faults: number(&report["counters"]["pgmajfault"])?,
            waited: number(&report["stalled_s"])?,
            processes: number(&report["processes"])?,
        })
    }

    /// Returns one look for two that follow each other: what was largest, at the later time.
    fn joined(self, later: Self) -> Self {
        let largest = if later.memory.in_memory() < self.memory.in_memory() { self } else { later };
        let disk = self.memory.disk.max(later.memory.disk);
        Self {
            cap: largest.cap,
            memory: Memory { disk, ..largest.memory },
            processes: self.processes.max(later.processes),
            ..later
        }
    }
}

/// The looks at a run.
#[derive(Clone, Debug)]
pub(crate) struct Series {
    looks: Thinned<Look>,
    /// The last report.
    last: Value,
    /// Lines of the file that were no reports.
    wrong: usize,
}

impl Series {
    pub(super) fn new() -> Self {
        Self { looks: Thinned::new(LOOKS_MAX, Look::joined), last: Value::Null, wrong: 0 }
    }

    /// Reads the statistics of a run: a report, or one a line.
    ///
    /// # Errors
    /// It cannot be read, or nothing in it is a report.
    pub(super) fn read(mut reader: impl BufRead) -> Result<Self, String> {
        let mut this = Self::new();
        let (mut line, mut whole) = (Vec::new(), Vec::new());
        // A file of weeks does not fit into memory, and not every file has lines.
        while {
            line.clear();
            let read = reader.by_ref().take(LINE_MAX).read_until(b'\n', &mut line);
            read.map_err(|error| error.to_string())? > 0
        } {
            if line.len() as u64 == LINE_MAX {
                return Err(format!("it has a line of more than {} MiB", LINE_MAX >> 20));
            }
            match serde_json::from_slice(&line) {
                Ok(report) => this.add(&report),
                Err(_) if line.trim_ascii().is_empty() => {}
                Err(_) => this.wrong += 1,
            }
            if this.looks().is_empty() && this.wrong > WRONG_MAX {
                break;
            }
            if this.looks().is_empty() && (whole.len() as u64) < LINE_MAX {
                whole.extend_from_slice(&line);
            }
        }
        if this.looks().is_empty() {
            // One report, over several lines.
            this.wrong = 0;
            if let Ok(report) = serde_json::from_slice(&whole) {
                this.add(&report);
            }
        }
        if this.looks().is_empty() {
            return Err("it has no statistics of `pagetide run --stats FILE.jsonl`".to_owned());
        }
        Ok(this)
    }

    /// Adds a report.
    pub(super) fn add(&mut self, report: &Value) {
        // Time does not go back: that would be another run's.
        let look = Look::of(report).filter(|look| self.looks().last().is_none_or(|last| last.at <= look.at));
        let Some(look) = look else {
            self.wrong += 1;
            return;
        };
        self.last = report.clone();
        self.looks.push(look);
    }

    /// Says what of the file was left out.
    pub(super) fn left_out(&self) -> Option<impl fmt::Display> {
        let lines = if self.wrong == 1 { "line is" } else { "lines are" };
        (self.wrong > 0).then(|| format!("{} {lines} no statistics of this run, and left out", self.wrong))
    }

    pub(super) fn looks(&self) -> &[Look] {
        self.looks.samples()
    }

    /// Returns the last report.
    pub(super) fn last(&self) -> &Value {
        &self.last
    }

    /// Returns a number of the last report; 0 if it has none of this name.
    pub(super) fn number(&self, pointer: &str) -> f64 {
        self.last.pointer(pointer).and_then(number).unwrap_or(0.0)
    }

    /// Returns bytes in programs and in the pool when pages came back, as an average over those; at the last look if none did.
    pub(super) fn memory_at_faults(&self) -> (f64, f64) {
        let (mut faults, mut resident, mut pool) = (0.0, 0.0, 0.0);
        for two in self.looks().windows(2) {
            // The last look is at a run that has ended, and holds nothing any more.
            let held = |look: &&Look| look.memory.in_memory();
            let memory = two.iter().max_by_key(held).map_or(two[1].memory, |look| look.memory);
            let weight = (two[1].faults - two[0].faults).max(0.0);
            faults += weight;
            resident += weight * memory.resident as f64;
            pool += weight * memory.pool as f64;
        }
        match self.looks().last() {
            _ if faults > 0.0 => (resident / faults, pool / faults),
            last => last.map_or((0.0, 0.0), |look| (look.memory.resident as f64, look.memory.pool as f64)),
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
        let mut series = Series::new();
        for second in 0..36_000 {
            series.add(&report(f64::from(second), if second == 17_001 { 5000 } else { 100 }));
        }
        let looks = series.looks();
        assert!(looks.len() <= LOOKS_MAX, "{}", looks.len());
        assert_eq!(looks.iter().filter(|look| look.memory.in_memory() == 5000).count(), 1);
        assert_eq!(looks.last().unwrap().at, 35_999.0);
        assert!(looks.is_sorted_by(|one, next| one.at < next.at && one.faults <= next.faults));
    }

    #[test]
    fn a_file_with_a_damaged_line_is_read_without_it() {
        let text = format!(
            "{}\n{{\"elapsed_s\": 3\nnull\n\n{}\n{}\n",
            report(5.0, 1),
            report(6.0, 2),
            report(1.0, 2)
        );
        let series = Series::read(text.as_bytes()).unwrap();
        assert_eq!(series.looks().len(), 2);
        assert_eq!(
            series.left_out().unwrap().to_string(),
            "3 lines are no statistics of this run, and left out"
        );
        assert!([&b""[..], b"{}", b"[1, 2", b"\xff\xfe\n"].iter().all(|text| Series::read(*text).is_err()));
        // A report by itself, as `--stats FILE.json` has it.
        let by_itself = Series::read(format!("{:#}", report(1.0, 2)).as_bytes()).unwrap();
        assert_eq!((by_itself.looks().len(), by_itself.left_out().is_none()), (1, true));
        // What never ends is not read for ever.
        let endless = Series::read(std::io::BufReader::new(std::fs::File::open("/dev/zero").unwrap()));
        assert!(endless.unwrap_err().contains("4 MiB"));
    }

    #[test]
    fn memory_at_faults_is_that_of_the_looks_at_which_pages_came_back() {
        let mut series = Series::new();
        for (at, total, faults) in
            [(0.0, 20, 0), (1.0, 100, 0), (2.0, 200, 30), (3.0, 400, 40), (4.0, 30, 40)]
        {
            let mut report = report(at, total);
            report["counters"]["pgmajfault"] = faults.into();
            series.add(&report);
        }
        assert_eq!(series.memory_at_faults(), ((100.0 * 30.0 + 200.0 * 10.0) / 40.0, 10.0));
    }
}
