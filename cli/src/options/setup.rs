//! Options of `pagetide setup`.

use super::section::help;

/// Options of `pagetide setup`.
#[derive(clap::Args, Debug)]
#[command(override_usage = "pagetide setup [--user NAME]... [--undo]", after_help = help(super::manual::SETUP))]
pub struct SetupArgs {
    /// A user who is to have permission; may be repeated [default: who called sudo]
    #[arg(long, value_name = "NAME")]
    pub user: Vec<String>,
    /// Remove what setup has made
    #[arg(long, conflicts_with = "user")]
    pub undo: bool,
}
