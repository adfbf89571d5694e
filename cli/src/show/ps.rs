//! `pagetide ps`: the runs of this machine that the caller may look at, a line each.

use crate::accounts::gathered::Gathered;
use crate::failure::Failure;
use crate::out;
use crate::processes::runs::{Run, command, program};
use crate::units::{PAGE, show_bytes};
use pagetide_cli::options::PsArgs;
use pagetide_swap::Counter;
use pagetide_sys::procfs;
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::time::Duration;

/// What is shown of a run.
struct Line {
    pid: u32,
    command: Vec<String>,
    /// The command as one line, cut.
    name: String,
    age: Duration,
    cap: u64,
    used: u64,
    pool: u64,
    /// What lies in the pool, before compression.
    compressed: u64,
    disk: u64,
    /// Seconds that its threads have waited for pages.
    stalled: f64,
}

impl Line {
    fn of(run: &Run) -> Self {
        let now = Gathered::from(&run.group);
        Self {
            pid: run.pid,
            command: command(run.pid),
            name: program(run.pid),
            age: run.born().and_then(procfs::age).unwrap_or_default(),
            cap: run.group.cap_pages() * PAGE,
            used: now.pages.total * PAGE,
            pool: now.pages.pool * PAGE,
            compressed: now.stored.0 * PAGE,
            disk: now.pages.disk * PAGE,
            stalled: now.counter(Counter::stalled_ns) as f64 / 1e9,
        }
    }

    /// Returns the part of the time since its start that its threads have waited, in percent: two threads that do
    /// nothing else are 200 %.
    fn stalled_percent(&self) -> f64 {
        match self.age.as_secs_f64() {
            age if age > 0.0 => 100.0 * self.stalled / age,
            _ => 0.0,
        }
    }

    fn json(&self) -> Value {
        json!({
            "pid": self.pid,
            "command": self.command,
            "elapsed_s": self.age.as_secs_f64(),
            "cap_bytes": self.cap,
            "used_bytes": self.used,
            "pool_bytes": self.pool,
            "compressed_bytes": self.compressed,
            "disk_bytes": self.disk,
            "stalled_s": self.stalled,
        })
    }
}

/// Formats a duration in at most six characters.
pub(crate) fn show_age(age: Duration) -> String {
    let seconds = age.as_secs();
    match seconds {
        0..60 => format!("{seconds} s"),
        60..3600 => format!("{}:{:02}", seconds / 60, seconds % 60),
        3600..86400 => format!("{} h {:02}", seconds / 3600, seconds / 60 % 60),
        _ => format!("{} d {:02}", seconds / 86400, seconds / 3600 % 24),
    }
}

fn table(lines: &[Line]) -> String {
    if lines.is_empty() {
        return "no run is active\n".to_owned();
    }
    let mut text = format!(
        "{:>8}{:>8}{:>9}{:>9}{:>12}{:>9}{:>9}  {}\n",
        "pid", "time", "cap", "used", "compressed", "disk", "stalled", "command"
    );
    for line in lines {
        let [cap, used, compressed, disk] = [line.cap, line.used, line.compressed, line.disk].map(show_bytes);
        let (pid, age, stalled, name) = (line.pid, show_age(line.age), line.stalled_percent(), &line.name);
        let _ = writeln!(
            text,
            "{pid:>8}{age:>8}{cap:>9}{used:>9}{compressed:>12}{disk:>9}{stalled:>7.0} %  {name}"
        );
    }
    text
}

/// Shows the runs. Returns the exit status.
pub(crate) fn ps(args: &PsArgs) -> Result<u8, Failure> {
    let lines: Vec<Line> = Run::all().iter().map(Line::of).collect();
    let text = if args.json {
        format!("{:#}\n", Value::from(lines.iter().map(Line::json).collect::<Vec<_>>()))
    } else {
        table(&lines)
    };
    out::print(&text)?;
    Ok(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_takes_one_line_of_eighty_columns_before_its_command() {
        let line = Line {
            pid: 4_194_304,
            command: vec!["job".to_owned()],
            name: "job".to_owned(),
            age: Duration::from_secs(200),
            cap: 512 << 20,
            used: 511 << 20,
            pool: 100 << 20,
            compressed: 300 << 20,
            disk: 3 << 30,
            stalled: 76.0,
        };
        assert_eq!(
            table(&[line]),
            "     pid    time      cap     used  compressed     disk  stalled  command\n \
             4194304    3:20  512 MiB  511 MiB     300 MiB    3 GiB     38 %  job\n"
        );
        assert_eq!(table(&[]), "no run is active\n");
    }

    #[test]
    fn ages_are_short() {
        let shown =
            [0, 59, 60, 3599, 3600, 86399, 86400, 8_640_000].map(|s| show_age(Duration::from_secs(s)));
        assert_eq!(shown, ["0 s", "59 s", "1:00", "59:59", "1 h 00", "23 h 59", "1 d 00", "100 d 00"]);
    }
}
