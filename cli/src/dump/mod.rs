//! `pagetide dump`: shows what the engines of a run do and wait for, also where the run hangs.
//!
//! It asks no process for anything: boards lie in the group page, all else is read from outside. `look.rs` gathers,
//! `page.rs` looks one page up, `verdict.rs` says what is stuck, `text.rs` and `json.rs` show it; `log.rs` is
//! `PAGETIDE_LOG`.

mod json;
mod log;
mod look;
mod page;
mod text;
mod verdict;

pub use log::Log;

use crate::failure::Failure;
use crate::out;
use crate::runs::{Purpose, Run, command};
use look::Process;
use pagetide::group::ProcessSlot;

/// No such run, process or page.
const WHICH: u8 = 1;

/// Show what a run does and waits for, also one that hangs
#[derive(clap::Args, Debug)]
#[command(after_help = "\
What waits longest comes first, and the last line says what is most likely stuck. No process of the run is asked for \
anything, so it works on one that is stopped or hangs. Counts and pages are read from the memory of the processes, which \
takes the same user and kernel.yama.ptrace_scope=0, or root; the rest does not.")]
pub struct DumpArgs {
    /// The launcher of the run, or a process of it
    pid: Option<u32>,
    /// Tell all that is known of the page at ADDR (hexadecimal)
    #[arg(long, value_name = "ADDR", value_parser = parse_address)]
    page: Option<u64>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

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

fn parse_address(text: &str) -> Result<u64, String> {
    let digits = text.strip_prefix("0x").unwrap_or(text);
    match u64::from_str_radix(digits, 16) {
        Ok(address) if address < 1 << 47 => Ok(address),
        Ok(_) => Err("no program has memory there: addresses have 47 bits".to_owned()),
        Err(error) => Err(format!("it is a hexadecimal number, as 0x7f0012345000 ({error})")),
    }
}

/// Shows a run, or a process. Returns the exit status.
pub fn dump(args: &DumpArgs) -> Result<u8, Failure> {
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
        cap_pages: group.setup().cap_pages,
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
    let failure = match Run::open(pid, Purpose::Look) {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_hexadecimal_and_have_47_bits() {
        assert_eq!(parse_address("0x7f0012345678"), Ok(0x7f00_1234_5678));
        assert_eq!(parse_address("1000"), Ok(4096));
        for wrong in ["", "0x", "page", "-1", "0x800000000000", "ffffffffffffffffff"] {
            assert!(parse_address(wrong).is_err(), "{wrong}");
        }
    }
}
