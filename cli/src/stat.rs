//! `pagetide stat`: shows a run from its group page, while it goes on.

use crate::Cli;
use crate::failure::Failure;
use crate::report::{Gathered, Pages, Report, latencies};
use crate::size::{parse_time, show_bytes};
use crate::tree;
use clap::Parser;
use pagetide::group::{Field, Group, OpenError, Slot};
use pagetide_swap::Counter;
use pagetide_sys::procfs;
use serde_json::{Value, json};
use std::ffi::OsString;
use std::fmt::Write as _;
use std::fs;
use std::io::{IsTerminal, Write as _};
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;
use std::time::Duration;

const PAGE: u64 = pagetide_sys::PAGE as u64;
/// No such run, or which one?
const WHICH: u8 = 1;
const CLEAR_SCREEN: &str = "\x1b[H\x1b[2J";

/// Show how a run fares
#[derive(clap::Args, Debug)]
pub struct StatArgs {
    /// The launcher of the run, if there are several
    pid: Option<u32>,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Repeat
    #[arg(long, value_name = "SECS", value_parser = parse_time)]
    watch: Option<Duration>,
}

/// Shows a run. Returns the exit status.
pub fn stat(args: &StatArgs) -> Result<u8, Failure> {
    let (pid, group) = open_run(args.pid)?;
    let born = procfs::start_time(pid);
    loop {
        let report = report(pid, &group, born);
        let text = if args.json { format!("{:#}\n", json(&report, &group)) } else { table(&report, &group) };
        let clear = args.watch.is_some() && !args.json && std::io::stdout().is_terminal();
        // Whoever reads may have seen enough.
        if write!(std::io::stdout(), "{}{text}", if clear { CLEAR_SCREEN } else { "" }).is_err() {
            return Ok(0);
        }
        let Some(pause) = args.watch else { return Ok(0) };
        std::thread::sleep(pause);
        if procfs::start_time(pid) != born {
            return Ok(0);
        }
    }
}

/// The run of a launcher, or the only one that goes on, with its launcher.
pub fn open_run(pid: Option<u32>) -> Result<(u32, Group), Failure> {
    let pid = match pid {
        Some(pid) => pid,
        None => the_only_launcher()?,
    };
    let path =
        group_page(pid).ok_or_else(|| Failure::new(WHICH, format!("{pid} launched no run, or not yours")))?;
    match Group::open(&path) {
        Ok(group) => Ok((pid, group)),
        Err(OpenError::System(error)) if error.kind() == std::io::ErrorKind::NotFound => {
            Err(Failure::new(WHICH, format!("the run of {pid} has just ended")))
        }
        Err(error) => Err(Failure::new(WHICH, error.to_string())),
    }
}

/// What a launcher runs, for messages.
pub fn program(launcher: u32) -> String {
    command(launcher).join(" ")
}

fn the_only_launcher() -> Result<u32, Failure> {
    let mut found: Vec<u32> = tree::pids().filter(|&pid| group_page(pid).is_some()).collect();
    found.sort_unstable();
    match found[..] {
        [] => Err(Failure::new(WHICH, "no run goes on")),
        [pid] => Ok(pid),
        _ => {
            let mut message = "several runs go on; which one?".to_owned();
            for pid in found {
                let _ = write!(message, "\n  pagetide stat {pid}    {}", program(pid));
            }
            Err(Failure::new(WHICH, message))
        }
    }
}

/// The group page that a process launched a run with.
fn group_page(pid: u32) -> Option<PathBuf> {
    fs::read_dir(format!("/proc/{pid}/fd")).ok()?.flatten().map(|entry| entry.path()).find(|path| {
        fs::read_link(path)
            .is_ok_and(|target| target.as_os_str().as_encoded_bytes().starts_with(b"/memfd:pagetide-group"))
    })
}

/// CMD, from the launcher's command line.
fn command(launcher: u32) -> Vec<String> {
    let line = fs::read(format!("/proc/{launcher}/cmdline")).unwrap_or_default();
    let line = line.strip_suffix(b"\0").unwrap_or(&line);
    let words: Vec<_> = line.split(|&byte| byte == 0).map(|word| OsString::from_vec(word.to_vec())).collect();
    match Cli::try_parse_from(&words) {
        Ok(Cli { command: crate::Verb::Run(args) }) => args.command(),
        _ => words.iter().map(|word| word.to_string_lossy().into_owned()).collect(),
    }
}

fn report(pid: u32, group: &Group, born: Option<u64>) -> Report {
    let now = Gathered::from(group);
    Report {
        pid,
        command: command(pid),
        exit_status: None,
        elapsed: born.and_then(age).unwrap_or_default(),
        cpu: None,
        cap_pages: group.setup().cap_pages,
        now,
        peak: None,
        ratio: now.ratio(),
        latencies: latencies(group),
    }
}

/// The time since `born`, in ticks since boot.
fn age(born: u64) -> Option<Duration> {
    let uptime = fs::read_to_string("/proc/uptime").ok()?;
    let uptime: f64 = uptime.split(' ').next()?.parse().ok()?;
    let born = born as f64 / rustix::param::clock_ticks_per_second() as f64;
    Duration::try_from_secs_f64(uptime - born).ok()
}

/// What a process is called.
fn name(pid: u64) -> String {
    fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default().trim_end().to_owned()
}

fn json(report: &Report, group: &Group) -> Value {
    let process = |slot: Slot| {
        let pages = Pages::of(slot);
        let pid = slot.known_as();
        json!({
            "pid": pid,
            "name": name(pid),
            "armed": slot.get(Field::Armed) != 0,
            "grant_bytes": slot.granted().max(0) as u64 * PAGE,
            "asked_bytes": slot.get(Field::Asked) * PAGE,
            "total_bytes": pages.total * PAGE,
            "resident_bytes": pages.resident * PAGE,
            "pool_bytes": pages.pool * PAGE,
            "swapped_bytes": pages.swapped * PAGE,
            "disk_bytes": pages.disk * PAGE,
            "stalled": slot.get(Field::Stalled),
        })
    };
    let mut value = report.json();
    value["free_bytes"] = (group.free() * PAGE as i64).into();
    value["process_list"] = group.live().map(process).collect();
    value
}

fn table(report: &Report, group: &Group) -> String {
    let bytes = |pages: u64| show_bytes(pages * PAGE);
    let now = report.now.pages;
    let mut out = format!("run {}: {}\n", report.pid, report.command.join(" "));
    let free = bytes(group.free().max(0) as u64);
    let _ = writeln!(
        out,
        "{:.1} s, cap {}, free {free}\n",
        report.elapsed.as_secs_f64(),
        bytes(report.cap_pages)
    );
    for (label, pages) in [
        ("in memory", now.total),
        ("  resident", now.resident),
        ("  pool", now.pool),
        ("  frames", now.frames),
        ("  metadata", now.metadata),
        ("  unmanaged", now.unmanaged),
        ("swapped", now.swapped),
        ("  on disk", now.disk),
    ] {
        let _ = writeln!(out, "{label:<14}{:>10}", bytes(pages));
    }
    let _ = writeln!(out, "\n{}\n{}\n", report.pages_line(), report.time_line());
    let counted = Counter::ALL.iter().map(|&counter| (counter.name(), report.now.counter(counter)));
    let mut columns = 0;
    for (name, count) in counted.filter(|&(_, count)| count > 0) {
        columns += 1;
        let _ = write!(out, "{name:<22}{count:>14}{}", if columns % 2 == 0 { "\n" } else { "    " });
    }
    out.push_str(if columns % 2 == 1 {
        "\n\n"
    } else if columns > 0 {
        "\n"
    } else {
        ""
    });
    let _ = writeln!(
        out,
        "{:>8}  {:<16}{:>9}{:>9}{:>9}{:>9}{:>9}{:>9}  engine",
        "pid", "name", "grant", "memory", "resident", "pool", "swapped", "disk"
    );
    for slot in group.live() {
        let pages = Pages::of(slot);
        let engine = match (slot.get(Field::Armed), slot.get(Field::Stalled)) {
            (0, _) => "asleep".to_owned(),
            (_, 0) => "runs".to_owned(),
            (_, waiting) => format!("{waiting} wait"),
        };
        let pid = slot.known_as();
        let _ = write!(out, "{pid:>8}  {:<16}", name(pid));
        for pages in
            [slot.granted().max(0) as u64, pages.total, pages.resident, pages.pool, pages.swapped, pages.disk]
        {
            let _ = write!(out, "{:>9}", bytes(pages));
        }
        let _ = writeln!(out, "  {engine}");
    }
    out
}
