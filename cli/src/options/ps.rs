//! Options of `pagetide ps`.

use super::section::help;

/// Options of `pagetide ps`.
#[derive(clap::Args, Debug)]
#[command(override_usage = "pagetide ps [--json]", after_help = help(super::manual::PS))]
pub struct PsArgs {
    /// Print JSON: an array with an object a run
    #[arg(long)]
    pub json: bool,
}
