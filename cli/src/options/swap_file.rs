//! Options of `pagetide swapoff` and `pagetide swapon`.

use super::section::help;

/// Options of `pagetide swapoff`.
#[derive(clap::Args, Debug)]
#[command(override_usage = "pagetide swapoff [PID]", after_help = help(super::manual::SWAPOFF))]
pub struct SwapoffArgs {
    /// Launcher of the run, if it is not the only one of this user and session
    #[arg(value_name = "PID")]
    pub pid: Option<u32>,
}

/// Options of `pagetide swapon`.
#[derive(clap::Args, Debug)]
#[command(override_usage = "pagetide swapon [PID]", after_help = help(super::manual::SWAPON))]
pub struct SwaponArgs {
    /// Launcher of the run, if it is not the only one of this user and session
    #[arg(value_name = "PID")]
    pub pid: Option<u32>,
}
