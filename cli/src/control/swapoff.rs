//! `pagetide swapoff` and `swapon`: takes the swap file of a run out of use while it goes on, and into use again.

use crate::failure::Failure;
use crate::out;
use crate::processes::runs::{Purpose, Run};
use crate::units::{PAGE, show_bytes};
use pagetide::group::{DeviceKind, Field, Group, OffState, ProcessSlot};
use pagetide_cli::options::{SwapoffArgs, SwaponArgs};
use std::time::Duration;

/// Exit status: there is no swap file, or it stays in use.
const NOT_DONE: u8 = 1;
const LOOK: Duration = Duration::from_millis(20);

/// Brings back all pages that a run has in its swap file. Returns the exit status when none is left there.
pub(crate) fn swapoff(args: &SwapoffArgs) -> Result<u8, Failure> {
    let run = with_file(args.pid, "pagetide swapoff PID")?;
    let (name, group, device) = (run.name(), run.group, device(run.group));
    let before: u64 = group.live().map(|slot| slot.get(Field::Disk)).sum();
    group.set_swapped_off(true);
    loop {
        if !run.goes_on() {
            return Err(Failure::new(NOT_DONE, format!("{name} has ended")));
        }
        // `pagetide swapon` may have run meanwhile.
        if !group.is_swapped_off() {
            return Err(Failure::new(NOT_DONE, format!("the {device} of {name} was put into use again")));
        }
        if let Some(slot) = group.live().find(|&slot| group.off_state(slot) == OffState::NoRoom) {
            let left = show_bytes(slot.get(Field::Disk) * PAGE);
            group.set_swapped_off(false);
            let process = slot.get(Field::Pid);
            return Err(Failure::new(
                NOT_DONE,
                format!(
                    "{name}: {left} of process {process} cannot come back from the {device}, which stays in use: there is no room \
                     (end something, or start the run with more --memory), or it cannot be read"
                ),
            ));
        }
        if group.live().all(|slot| is_off(&group, slot)) {
            let before = show_bytes(before * PAGE);
            out::print(&format!("{name}: {before} came back; the {device} is out of use\n"))?;
            return Ok(0);
        }
        std::thread::sleep(LOOK);
    }
}

/// Uses the swap file again. Returns the exit status.
pub(crate) fn swapon(args: &SwaponArgs) -> Result<u8, Failure> {
    let run = with_file(args.pid, "pagetide swapon PID")?;
    let was_off = run.group.is_swapped_off();
    run.group.set_swapped_off(false);
    let done = if was_off { "in use again" } else { "in use, as it was" };
    out::print(&format!("{}: the {} is {done}\n", run.name(), device(run.group)))?;
    Ok(0)
}

fn with_file(pid: Option<u32>, usage: &str) -> Result<Run, Failure> {
    let run = Run::open(pid, Purpose::Change, usage)?;
    if run.group.setup().blocks() == 0 {
        return Err(Failure::new(NOT_DONE, format!("{} has no swap file and no remote tier", run.name())));
    }
    Ok(run)
}

/// Returns what the device of a run is called.
fn device(group: Group) -> &'static str {
    let has = |kind| group.setup().tier(kind).is_some();
    match (has(DeviceKind::File), has(DeviceKind::Remote)) {
        (true, true) => "swap file with the remote tier",
        (false, true) => "remote tier",
        _ => "swap file",
    }
}

/// Returns whether a process has left the swap file. One without an engine has nothing there, and its engine will
/// look before it writes much.
fn is_off(group: &Group, slot: ProcessSlot) -> bool {
    slot.get(Field::Armed) == 0 || (group.off_state(slot) == OffState::Off && slot.get(Field::Disk) == 0)
}
