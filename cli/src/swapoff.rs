//! `pagetide swapoff` and `swapon`: takes the swap file of a run out of use while it goes on, and into use again.

use crate::failure::Failure;
use crate::size::show_bytes;
use crate::stat::{open_run, program};
use pagetide::group::{Field, Group, OffState, Slot};
use std::time::Duration;

const PAGE: u64 = pagetide_sys::PAGE as u64;
/// There is no swap file, or it is in use as before.
const NOT_DONE: u8 = 1;
const LOOK: Duration = Duration::from_millis(20);

/// Take the swap file of a run out of use
#[derive(clap::Args, Debug)]
pub struct SwapoffArgs {
    /// The launcher of the run, if there are several
    pid: Option<u32>,
}

/// Use the swap file of a run again
#[derive(clap::Args, Debug)]
pub struct SwaponArgs {
    /// The launcher of the run, if there are several
    pid: Option<u32>,
}

/// Brings back what a run has in its swap file. Returns when nothing is there, with the exit status.
pub fn swapoff(args: &SwapoffArgs) -> Result<u8, Failure> {
    let (pid, group) = with_file(args.pid)?;
    let before: u64 = group.live().map(|slot| slot.get(Field::Disk)).sum();
    let born = pagetide_sys::procfs::start_time(pid);
    group.set_swapped_off(true);
    loop {
        if pagetide_sys::procfs::start_time(pid) != born {
            return Err(Failure::new(NOT_DONE, format!("the run of {pid} has ended")));
        }
        // Somebody else may have put it into use again.
        if !group.is_swapped_off() {
            return Err(Failure::new(NOT_DONE, "the swap file was put into use again".to_owned()));
        }
        if let Some(slot) = group.live().find(|&slot| group.off_state(slot) == OffState::NoRoom) {
            let left = show_bytes(slot.get(Field::Disk) * PAGE);
            group.set_swapped_off(false);
            let process = slot.get(Field::Pid);
            return Err(Failure::new(
                NOT_DONE,
                format!(
                    "process {process} has no room for {left} that it has in the swap file, which stays in use (end \
                     something, or start the run with more --memory)"
                ),
            ));
        }
        if group.live().all(|slot| is_off(&group, slot)) {
            println!("{} came back; the swap file is out of use", show_bytes(before * PAGE));
            return Ok(0);
        }
        std::thread::sleep(LOOK);
    }
}

/// Uses the swap file again. Returns the exit status.
pub fn swapon(args: &SwaponArgs) -> Result<u8, Failure> {
    let (_, group) = with_file(args.pid)?;
    group.set_swapped_off(false);
    Ok(0)
}

fn with_file(pid: Option<u32>) -> Result<(u32, Group), Failure> {
    let (pid, group) = open_run(pid)?;
    if group.setup().blocks == 0 {
        return Err(Failure::new(NOT_DONE, format!("{} has no swap file", program(pid))));
    }
    Ok((pid, group))
}

/// A process without an engine has nothing there, and its engine will look before it writes much.
fn is_off(group: &Group, slot: Slot) -> bool {
    slot.get(Field::Armed) == 0 || (group.off_state(slot) == OffState::Off && slot.get(Field::Disk) == 0)
}
