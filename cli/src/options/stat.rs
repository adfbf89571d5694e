//! Options of `pagetide stat`.

use super::section::help;
use super::size::parse_time;
use std::time::Duration;

/// Options of `pagetide stat`.
#[derive(clap::Args, Debug)]
#[command(override_usage = "pagetide stat [PID] [--json | --prometheus] [--watch TIME]", after_help = help(super::manual::STAT))]
pub struct StatArgs {
    /// Launcher of the run
    #[arg(value_name = "PID")]
    pub pid: Option<u32>,
    /// Print JSON: the object of `run --stats`, with free_bytes and process_list
    #[arg(long)]
    pub json: bool,
    /// Print Prometheus text
    #[arg(long, conflicts_with = "json")]
    pub prometheus: bool,
    /// Repeat every TIME until the run ends
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    pub watch: Option<Duration>,
}
