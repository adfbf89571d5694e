//! Options of `pagetide top`.

use super::section::help;
use super::size::parse_time;
use std::time::Duration;

/// Options of `pagetide top`.
#[derive(clap::Args, Debug)]
#[command(override_usage = "pagetide top [PID] [--interval TIME]", after_help = help(super::manual::TOP))]
pub struct TopArgs {
    /// Launcher of the run
    #[arg(value_name = "PID")]
    pub pid: Option<u32>,
    /// Look every TIME
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = parse_time)]
    pub interval: Duration,
}
