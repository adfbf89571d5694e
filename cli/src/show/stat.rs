//! `pagetide stat`: shows a run from its group page, while it goes on.

use crate::accounts::gathered::{Gathered, ended, latencies};
use crate::accounts::most::Most;
use crate::accounts::pages::Pages;
use crate::failure::Failure;
use crate::out::{self, Audience};
use crate::processes::runs::{Pids, Purpose, Run, command};
use crate::sampler::unmanaged;
use crate::show::prometheus;
use crate::show::report::Report;
use crate::show::table::table;
use crate::units::PAGE;
use pagetide::group::{Field, Group, ProcessSlot};
use pagetide_cli::options::StatArgs;
use pagetide_sys::procfs;
use serde_json::{Value, json};
use std::io::IsTerminal;

const CLEAR_SCREEN: &str = "\x1b[H\x1b[2J";

/// Shows a run, once or until it ends. Returns the exit status.
pub(crate) fn stat(args: &StatArgs) -> Result<u8, Failure> {
    let run = Run::open(args.pid, Purpose::Look, "pagetide stat PID")?;
    loop {
        let (report, group) = (report(&run), &run.group);
        let text = match (args.json, args.prometheus) {
            (true, _) => format!("{:#}\n", json(&report, group)),
            (_, true) => prometheus::text(&report.json()),
            _ => table(&report, group),
        };
        let is_table = !args.json && !args.prometheus;
        let clear = args.watch.is_some() && is_table && std::io::stdout().is_terminal();
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

/// Returns a report on a run that goes on, as others than its launcher see it.
pub(crate) fn report(run: &Run) -> Report {
    let group = &run.group;
    let now = Gathered::from(group);
    Report {
        pid: run.pid,
        command: command(run.pid),
        exit_status: None,
        elapsed: run.born().and_then(procfs::age).unwrap_or_default(),
        usage: None,
        cap_pages: group.cap_pages(),
        cap_changes: group.cap_changes(),
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

fn json(report: &Report, group: &Group) -> Value {
    let pids = Pids::of(group);
    let process = |slot: ProcessSlot| {
        let pages = Pages::of(slot);
        let (pid, name) = pids.named(slot);
        json!({
            "pid": pid,
            "name": name,
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
