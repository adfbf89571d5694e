//! A dump for people, on 80 columns.

use super::Dump;
use super::look::{EngineThread, Locked, LockedRun, Process};
use super::page::{self, PageSeen};
use super::verdict::{activity, age, counted, is_busy, verdict};
use crate::units::show_bytes;
use pagetide::dump::board::{ParkedFault, RequestShown};
use pagetide::dump::reading::Counts;
use pagetide::group::Field;
use std::fmt::Write as _;

/// Columns of a line.
const WIDTH: usize = 80;
/// Faults, and requests, that are listed.
const LISTED: usize = 8;

/// Shows a run.
pub(crate) fn text(dump: &Dump) -> String {
    let mut out = String::new();
    let name: String = dump.command.chars().take(WIDTH - 16).collect();
    let _ = writeln!(out, "run {}: {name}", dump.pid);
    let free = free(dump.free_pages);
    let _ = writeln!(
        out,
        "cap {}, {free}, {}",
        pages(dump.cap_pages),
        if dump.processes.len() == 1 {
            "1 process".to_owned()
        } else {
            format!("{} processes", dump.processes.len())
        }
    );
    for process in &dump.processes {
        out.push('\n');
        one(&mut out, process, dump);
    }
    let _ = write!(out, "\n{}", wrapped(&verdict(dump), ""));
    out
}

fn one(out: &mut String, process: &Process, dump: &Dump) {
    let now = dump.now;
    let state = match process.state {
        None => "gone",
        Some('T' | 't') => "STOPPED",
        Some('Z' | 'X') => "dead",
        _ if process.armed => "engine runs",
        _ => "engine asleep",
    };
    let _ = match process.pid {
        // What it is to have is set aside already.
        0 => write!(out, "a child that is being forked: not there yet"),
        pid => write!(out, "process {pid} {}: {state}", process.name),
    };
    match process.faulting {
        None | Some(0) => out.push('\n'),
        Some(1) => out.push_str(", 1 thread sleeps in a page fault\n"),
        Some(count) => _ = writeln!(out, ", {count} threads sleep in a page fault"),
    }
    if let Some(seen) = &process.page {
        match seen {
            Ok(seen) => page(out, seen, now),
            Err(error) => out.push_str(&wrapped(&format!("  page      {error}"), "            ")),
        }
    }
    faults(out, process, now);
    threads(out, &process.threads, now);
    requests(out, &process.requests, now);
    if let Some(counts) = &process.counts {
        fork(out, counts, now);
    }
    if process.slot.is_resting() {
        let _ = writeln!(out, "  rest      load control has the process rest");
    }
    if let Some(locked) = &process.locked {
        locked_pages(out, locked);
    }
    memory(out, process, dump);
    for missing in &process.missing {
        out.push_str(&wrapped(&format!("  missing   {missing}"), "            "));
    }
}

fn faults(out: &mut String, process: &Process, now: u64) {
    if process.parked.is_empty() && process.parked_more == 0 {
        return;
    }
    let _ = writeln!(out, "  faults    {} parked", process.parked.len() as u64 + process.parked_more);
    for fault in process.parked.iter().take(LISTED) {
        let _ = writeln!(out, "{}", fault_line(fault, now));
    }
    rest(out, process.parked.len());
}

fn fault_line(fault: &ParkedFault, now: u64) -> String {
    let ParkedFault { page, write, why, since, .. } = *fault;
    let kind = if write { "write" } else { "read" };
    format!("  {:>9}  {:#x}  {kind:<5}  waits for {}", age(now, since), page.0.wrapping_mul(4096), why.text())
}

fn rest(out: &mut String, count: usize) {
    if count > LISTED {
        let _ = writeln!(out, "  {:>9}  and {} more", "", count - LISTED);
    }
}

fn threads(out: &mut String, threads: &[EngineThread], now: u64) {
    if threads.is_empty() {
        return;
    }
    let _ = writeln!(out, "  threads   of the engine");
    let mut order: Vec<_> = threads.iter().collect();
    // Who is at work for long comes first, who has nothing to do last.
    order.sort_by_key(|thread| (!is_busy(thread), thread.shown.map_or(u64::MAX, |shown| shown.since)));
    for thread in order {
        let EngineThread { task, shown, name } = thread;
        let since = shown.filter(|_| is_busy(thread)).map_or(String::new(), |shown| age(now, shown.since));
        let does = shown.map_or_else(|| "shows nothing".to_owned(), |shown| activity(&shown));
        let kernel = match task {
            None => "gone".to_owned(),
            Some(task) if task.state == 'S' => task.wchan.clone(),
            Some(task) => format!("{} {}", task.state, task.wchan),
        };
        let line = format!("  {since:>9}  {name:<7}  {does:<35}");
        // Where it is in the kernel comes last, if there is room.
        let room = WIDTH.saturating_sub(line.chars().count() + 1);
        let line = if kernel.len() <= room { format!("{line} {kernel}") } else { line };
        let _ = writeln!(out, "{}", line.trim_end());
    }
}

fn requests(out: &mut String, requests: &[RequestShown], now: u64) {
    if requests.is_empty() {
        return;
    }
    let _ = writeln!(out, "  device    {} under way", counted(requests.len() as u64, "request"));
    for request in requests.iter().take(LISTED) {
        let _ = writeln!(out, "{}", request_line(request, now));
    }
    rest(out, requests.len());
}

fn request_line(request: &RequestShown, now: u64) -> String {
    let RequestShown { purpose, first, pages, block, since, .. } = *request;
    let last = block.wrapping_add(pages.saturating_sub(1));
    format!(
        "  {:>9}  {:<9}  {} from {:#x}, block{}",
        age(now, since),
        purpose.text(),
        counted(pages, "page"),
        first.0.wrapping_mul(4096),
        if pages == 1 { format!(" {block}") } else { format!("s {block}-{last}") }
    )
}

fn fork(out: &mut String, counts: &Counts, now: u64) {
    if let Some(fork) = counts.fork {
        let how = match (fork.frozen, fork.serving) {
            (false, _) => "waits for mapping calls to end",
            (true, true) => "work is stopped, faults are served",
            (true, false) => "work is stopped",
        };
        let _ = writeln!(out, "  fork      {} ago thread {} began: {how}", age(now, fork.since), fork.tid);
    }
    let held = if counts.held { ", faults held back" } else { "" };
    if counts.fork.is_some() || counts.calls > 0 {
        let _ = writeln!(
            out,
            "            under way: {}, {} of work, {}{held}",
            counted(counts.calls, "call"),
            counted(counts.working, "piece"),
            counted(counts.completing, "completion")
        );
    }
}

fn locked_pages(out: &mut String, locked: &Locked) {
    let Locked { pages, writeback, held, runs, complete } = locked;
    if *pages == 0 && *writeback == 0 && held.is_empty() {
        return;
    }
    let part = if *complete { "" } else { ", of those that were looked at" };
    let _ = writeln!(out, "  locked    {}, {writeback} in writeback{part}", counted(*pages, "page"));
    for LockedRun { first, pages, word } in runs {
        let flags = page::flags(*word).join(", ");
        let _ = writeln!(out, "  {:>9}  {:#x}  {}; {flags}", pages, first.address(), page::state(*word));
    }
    for cluster in held.iter().take(LISTED) {
        let _ = writeln!(out, "  {:>9}  {:#x}  somebody holds the latch of its 2 MiB", "", cluster.address());
    }
}

fn memory(out: &mut String, process: &Process, dump: &Dump) {
    const INDENT: &str = "            ";
    let slot = process.slot;
    let get = |field| pages(slot.get(field));
    let mut line = format!("  memory    granted {}", pages(slot.granted().max(0) as u64));
    if let Some(counts) = &process.counts {
        let (low, high) = (pages(counts.low.max(0) as u64), pages(counts.high.max(0) as u64));
        let _ = write!(line, ", {} (reclaim keeps {low} to {high})", free(counts.free));
    }
    out.push_str(&wrapped(&line, INDENT));
    let shared = match slot.get(Field::PoolShared) {
        0 => String::new(),
        shared => format!(" and {} that forks share", pages(shared)),
    };
    let held = format!(
        "            resident {}, frames {}, pool {}{shared}, unmanaged {}",
        get(Field::Resident),
        get(Field::Frames),
        get(Field::Pool),
        get(Field::Unmanaged)
    );
    out.push_str(&wrapped(&held, INDENT));
    let _ = writeln!(out, "{INDENT}out {}, and {} of the device", get(Field::Swapped), get(Field::Disk));
    if slot.get(Field::Asked) > 0 {
        let _ = writeln!(out, "  asked     others want {}", get(Field::Asked));
    }
    if process.armed && dump.inquiry > slot.get(Field::Answered) {
        let _ = writeln!(out, "  inquiry   {} is not answered yet", dump.inquiry);
    }
    let Some(counts) = &process.counts else { return };
    let late = counts.used.iter().filter(|slot| slot.late).count();
    let queued = counts.used.iter().filter(|slot| slot.queued).count();
    let on_probation = pages(slot.get(Field::Cached));
    let _ = writeln!(
        out,
        "  probation {on_probation} in {} of {} slots, {queued} queued, {late} late",
        counts.used.len(),
        counts.slots
    );
    if counts.device_failed {
        let _ = writeln!(out, "  device    a write failed: pages stay in memory");
    }
    if counts.device_off {
        let _ = writeln!(out, "  device    goes out of use (swapoff)");
    }
}

fn page(out: &mut String, seen: &PageSeen, now: u64) {
    let flags = page::flags(seen.word);
    let flags = if flags.is_empty() { String::new() } else { format!(" [{}]", flags.join(", ")) };
    let _ = writeln!(out, "  page      {:#x}: {}{flags}", seen.page.address(), seen.state());
    let indent = "            ";
    if seen.torn {
        let _ = writeln!(out, "{indent}(its cluster changed while it was read)");
    }
    match &seen.mapping {
        None => _ = writeln!(out, "{indent}no mapping is there, or it is not to be seen"),
        Some(mapping) => {
            let name = if mapping.name.is_empty() { "anonymous" } else { &mapping.name };
            let (start, end) = mapping.range;
            let _ = writeln!(out, "{indent}in {start:#x}-{end:#x} {} {name}", mapping.access);
            if !mapping.flags.is_empty() {
                let _ = writeln!(out, "{indent}which is {}", mapping.flags.join(", "));
            }
        }
    }
    match seen.mapped {
        Some(true) => _ = writeln!(out, "{indent}the kernel has it in the program's page tables"),
        Some(false) => _ = writeln!(out, "{indent}the kernel does not have it in the page tables"),
        None => {}
    }
    if let Some(why) = seen.stays() {
        let _ = writeln!(out, "{indent}it stays: {why}");
    }
    let history = seen.history;
    let latch = match (seen.held, seen.parked) {
        (true, true) => "latch held, others wait for it",
        (true, false) => "latch held",
        _ => "latch free",
    };
    let queues = match (history.queued, history.pooled) {
        (true, true) => "queued for reclaim and writeback",
        (true, false) => "queued for reclaim",
        (false, true) => "queued for writeback",
        (false, false) => "in no queue",
    };
    let set = if history.workingset { ", in the working set" } else { "" };
    let _ = writeln!(out, "{indent}its 2 MiB: {latch}; {queues}{set}");
    let _ = writeln!(
        out,
        "{indent}{} came back of {} that left last",
        counted(history.heat.into(), "page"),
        history.taken
    );
    if let Some(slot) = seen.slot {
        let late = if slot.late { ", late for the device" } else { "" };
        let queued = if slot.queued { "queued" } else { "being processed" };
        let _ = writeln!(out, "{indent}slot {}: {queued}{late}, {} references", slot.number, slot.references);
    }
    for fault in &seen.faults {
        let _ = writeln!(out, "{}", fault_line(fault, now));
    }
    for request in &seen.requests {
        let _ = writeln!(out, "{}", request_line(request, now));
    }
}

/// What is free of a budget, or by how much that is overdrawn.
fn free(count: i64) -> String {
    let size = pages(count.unsigned_abs());
    if count < 0 { format!("overdrawn by {size}") } else { format!("free {size}") }
}

fn pages(pages: u64) -> String {
    show_bytes(pages.saturating_mul(4096))
}

/// Breaks a text into lines; all but the first begin with `indent`.
fn wrapped(text: &str, indent: &str) -> String {
    let mut out = String::new();
    let mut column = 0;
    let lead = text.len() - text.trim_start().len();
    out.push_str(&text[..lead]);
    // The label of the first line keeps its place.
    let (label, words) = if lead > 0 { text[lead..].split_at(indent.len() - lead) } else { ("", text) };
    out.push_str(label);
    column += lead + label.len();
    let mut first = true;
    // A number stays with its unit.
    let words = words.replace(" s;", "\u{a0}s;").replace(" s:", "\u{a0}s:").replace(" ms", "\u{a0}ms");
    for word in words.split_ascii_whitespace() {
        let length = word.chars().count();
        if !first && column + 1 + length > WIDTH {
            out.push('\n');
            out.push_str(indent);
            column = indent.len();
        } else if !first {
            out.push(' ');
            column += 1;
        }
        out.push_str(&word.replace('\u{a0}', " "));
        column += length;
        first = false;
    }
    out.push('\n');
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_lines_are_broken_between_words() {
        let text = wrapped(&format!("  missing   {}", "word ".repeat(40)), "            ");
        assert!(text.lines().all(|line| line.chars().count() <= WIDTH), "{text}");
        assert!(
            text.starts_with("  missing   word word")
                && text.lines().nth(1).unwrap().starts_with("            word")
        );
        assert_eq!(text.matches("word").count(), 40);
        assert_eq!(wrapped("short", ""), "short\n");
    }

    #[test]
    fn ages_are_short() {
        let ms = 1_000_000;
        let shown = [0, 999, 1000, 4250, 99_999, 100_000, 3_600_000].map(|age_ms: u64| age(age_ms * ms, 0));
        assert_eq!(shown, ["0 ms", "999 ms", "1.0 s", "4.2 s", "99.9 s", "100 s", "3600 s"]);
        assert_eq!(age(0, 5), "0 ms", "clocks that do not agree");
    }
}
