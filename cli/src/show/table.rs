//! Table of a run, for people.

use crate::accounts::pages::Pages;
use crate::processes::runs::Pids;
use crate::sampler::outside::{Program, of_several};
use crate::show::report::Report;
use crate::units::{PAGE, show_bytes};
use pagetide::group::{Field, Group, ProcessSlot};
use pagetide_swap::Counter;
use std::fmt::Write as _;

/// Returns the table that `pagetide stat` prints.
pub(crate) fn table(report: &Report, group: &Group) -> String {
    let mut out = format!("run {}: {}\n", report.pid, report.command.join(" "));
    let (elapsed, cap) = (report.elapsed.as_secs_f64(), bytes(report.cap_pages));
    let free = bytes(group.free().max(0) as u64);
    let _ = writeln!(out, "{elapsed:.1} s, cap {cap}, free {free}\n");
    memory(&mut out, report);
    let _ = writeln!(out, "\n{}\n{}\n", report.pages_line(), report.time_line());
    counters(&mut out, report);
    processes(&mut out, report, group);
    out
}

/// Formats pages for people.
fn bytes(pages: u64) -> String {
    show_bytes(pages * PAGE)
}

/// Appends memory and disk of the run.
fn memory(out: &mut String, report: &Report) {
    let now = report.now.pages;
    for (label, pages) in [
        ("in memory", now.total),
        ("  resident", now.resident),
        ("  pool", now.pool),
        ("    shared", now.pool_shared),
        ("  frames", now.frames),
        ("  metadata", now.metadata),
        ("  unmanaged", now.unmanaged),
        ("    shared", now.shared),
        ("swapped", now.swapped),
    ] {
        let _ = writeln!(out, "{label:<14}{:>10}", bytes(pages));
    }
    let ([size, allowed, most], remote) = (report.now.file, report.now.remote_line());
    if most > 0 || remote.is_none() {
        let _ = writeln!(out, "{:<14}{:>10}", "  on disk", bytes(now.disk.saturating_sub(now.on_server)));
    }
    if let Some(line) = remote {
        let _ = writeln!(out, "{:<14}{:>10}", "  on server", bytes(now.on_server));
        let _ = writeln!(out, "{line}");
    }
    if most > 0 {
        let _ = write!(out, "{:<14}{:>10}", "  file", bytes(size));
        let now = if allowed > size || size == most { "" } else { ", not just now" };
        let _ = writeln!(out, "  (may grow to {}{now})", bytes(most));
    }
}

/// Appends the counters that are not 0, in two columns, and an empty line.
fn counters(out: &mut String, report: &Report) {
    let counted = Counter::ALL.iter().map(|&counter| (counter.name(), report.now.counter(counter)));
    let mut columns = 0;
    for (name, count) in counted.filter(|&(_, count)| count > 0) {
        columns += 1;
        let _ = write!(out, "{name:<22}{count:>14}{}", if columns % 2 == 0 { "\n" } else { "    " });
    }
    out.push_str(match columns {
        0 => "",
        odd if odd % 2 == 1 => "\n\n",
        _ => "\n",
    });
}

/// Appends the processes of the run, and the programs without Pagetide.
fn processes(out: &mut String, report: &Report, group: &Group) {
    let _ = writeln!(
        out,
        "{:>8}  {:<16}{:>9}{:>9}{:>9}{:>9}{:>9}{:>9}  engine",
        "pid", "name", "grant", "memory", "resident", "pool", "swapped", "disk"
    );
    let pids = Pids::of(group);
    for slot in group.live() {
        let Pages { total, resident, pool, swapped, disk, .. } = Pages::of(slot);
        let engine = engine(slot);
        let (pid, name) = pids.named(slot);
        let _ = write!(out, "{pid:>8}  {name:<16}");
        for pages in [slot.granted().max(0) as u64, total, resident, pool, swapped, disk] {
            let _ = write!(out, "{:>9}", bytes(pages));
        }
        let _ = writeln!(out, "  {engine}");
    }
    for Program { name, pid, reason, pages, processes, .. } in report.outside.iter() {
        let (pages, of) = (bytes(*pages), of_several(*processes));
        let _ = writeln!(out, "{pid:>8}  {name}: {pages}{of} without Pagetide: {}", reason.text());
    }
}

/// Says what the engine of a process does.
pub(crate) fn engine(slot: ProcessSlot) -> String {
    match (slot.get(Field::Armed), slot.get(Field::Stalled)) {
        (0, _) => "asleep".to_owned(),
        (_, 0) => "runs".to_owned(),
        (_, waiting) => format!("{waiting} wait"),
    }
}
