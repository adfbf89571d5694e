//! `pagetide dump`: shows what the engines of a run do and wait for, also where the run hangs.
//!
//! It asks no process for anything: boards lie in the group page, all else is read from outside. `look.rs` gathers,
//! `page.rs` looks one page up, `verdict.rs` says what is stuck, `text.rs` and `json.rs` show it; `log.rs` is
//! `PAGETIDE_LOG`.

mod json;
mod log;
mod look;
mod memory;
mod page;
mod text;
mod verdict;

pub(crate) use log::Log;

use crate::failure::Failure;
use crate::out;
use crate::processes::runs::{Purpose, Run, command};
use look::Process;
use pagetide::group::ProcessSlot;
use pagetide_cli::options::DumpArgs;

/// No such run, process or page.
const WHICH: u8 = 1;

/// The run as it was seen.
struct Dump {
    pid: u32,
    command: String,
    cap_pages: u64,
    free_pages: i64,
    inquiry: u64,
    /// The kernel's clock at the look.
    now: u64,
    processes: Vec<Process>,
}

/// Shows a run, or a process. Returns the exit status.
pub(crate) fn dump(args: &DumpArgs) -> Result<u8, Failure> {
    let (run, only) = find(args.pid)?;
    let group = &run.group;
    let now = pagetide_sys::log::now();
    let chosen = |slot: &ProcessSlot| only.is_none_or(|only| only == slot.index());
    let mut processes: Vec<_> =
        group.live().filter(chosen).map(|slot| Process::look(group, slot, args.page)).collect();
    // What waits longest comes first.
    processes.sort_by_key(|process| {
        (verdict::oldest(process, now).map_or(u64::MAX, |wait| wait.since), process.pid)
    });
    let line = command(run.pid).join(" ");
    let dump = Dump {
        pid: run.pid,
        command: line.chars().map(|char| if char.is_control() { '?' } else { char }).collect(),
        cap_pages: group.cap_pages(),
        free_pages: group.free(),
        inquiry: group.inquiry(),
        now,
        processes,
    };
    let text = if args.json { format!("{:#}\n", json::json(&dump)) } else { text::text(&dump) };
    out::print(&text)?;
    Ok(0)
}

/// The run that is meant, and the number of the slot if one process is.
fn find(pid: Option<u32>) -> Result<(Run, Option<usize>), Failure> {
    let failure = match Run::open(pid, Purpose::Look, "pagetide dump") {
        Ok(run) => return Ok((run, None)),
        Err(failure) => failure,
    };
    let Some(pid) = pid else { return Err(failure) };
    if let Some((run, slot)) = Run::with_process(pid) {
        return Ok((run, Some(slot)));
    }
    if !std::path::Path::new(&format!("/proc/{pid}")).exists() {
        return Err(Failure::new(WHICH, format!("there is no process {pid}")));
    }
    Err(Failure::new(WHICH, format!("{pid} launched no run and belongs to none, or not to yours")))
}
