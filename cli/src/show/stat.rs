//! `pagetide stat`: shows a run from its group page, while it goes on.

use crate::accounts::gathered::{Gathered, ended, latencies};
use crate::accounts::most::Most;
use crate::accounts::pages::Pages;
use crate::failure::Failure;
use crate::out::{self, Audience};
use crate::processes::runs::{Purpose, Run, command};
use crate::sampler::outside::Program;
use crate::sampler::unmanaged;
use crate::show::report::Report;
use crate::units::{parse_time, show_bytes};
use pagetide::group::{Field, Group, ProcessSlot};
use pagetide_swap::Counter;
use pagetide_sys::procfs;
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::fs;
use std::io::IsTerminal;
use std::time::Duration;

const PAGE: u64 = pagetide_sys::PAGE as u64;
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
    let run = Run::open(args.pid, Purpose::Look)?;
    loop {
        let (report, group) = (report(&run), &run.group);
        let text = if args.json { format!("{:#}\n", json(&report, group)) } else { table(&report, group) };
        let clear = args.watch.is_some() && !args.json && std::io::stdout().is_terminal();
        let shown = out::print(&format!("{}{text}", if clear { CLEAR_SCREEN } else { "" }))?;
        if shown == Audience::Gone {
            return Ok(0);
        }
        let Some(pause) = args.watch else { return Ok(0) };
        std::thread::sleep(pause);
        if !run.goes_on() {
            return Ok(0);
        }
    }
}

fn report(run: &Run) -> Report {
    let group = &run.group;
    let now = Gathered::from(group);
    Report {
        pid: run.pid,
        command: command(run.pid),
        exit_status: None,
        elapsed: run.born().and_then(procfs::age).unwrap_or_default(),
        cpu: None,
        cap_pages: group.setup().cap_pages,
        now,
        peak: None,
        most: Most::default(),
        killer: None,
        ratio: now.ratio(),
        latencies: latencies(group),
        outside: unmanaged::survey(group, run.pid),
        latest_look: None,
        ended: ended(group),
    }
}

/// What a process is called.
fn name(pid: u64) -> String {
    fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default().trim_end().to_owned()
}

fn json(report: &Report, group: &Group) -> Value {
    let process = |slot: ProcessSlot| {
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
        ("    shared", now.shared),
        ("swapped", now.swapped),
        ("  on disk", now.disk),
    ] {
        let _ = writeln!(out, "{label:<14}{:>10}", bytes(pages));
    }
    let [size, allowed, most] = report.now.file;
    if most > 0 {
        let _ = write!(out, "{:<14}{:>10}", "  file", bytes(size));
        let now = if allowed > size || size == most { "" } else { ", not just now" };
        let _ = writeln!(out, "  (may grow to {}{now})", bytes(most));
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
    for Program { name, pid, reason, pages, .. } in report.outside.iter() {
        let _ = writeln!(out, "{pid:>8}  {name}: {} without Pagetide: {}", bytes(*pages), reason.text());
    }
    out
}
