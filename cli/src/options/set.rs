//! Options of `pagetide set`.

use super::section::help;

/// Options of `pagetide set`.
#[derive(clap::Args, Debug)]
#[command(override_usage = "pagetide set [--pid PID] [NAME=VALUE]...", after_help = help(super::manual::SET))]
pub struct SetArgs {
    /// Launcher of the run, if there are several
    ///
    /// To change something it must be named unless it is the only one of this user and session.
    #[arg(long, value_name = "PID")]
    pub pid: Option<u32>,
    /// What to change
    #[arg(value_name = "NAME=VALUE")]
    pub settings: Vec<String>,
}
