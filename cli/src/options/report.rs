//! Options of `pagetide report`.

use super::section::help;
use clap::ValueHint;
use std::path::PathBuf;

/// Options of `pagetide report`.
#[derive(clap::Args, Debug)]
#[command(override_usage = "pagetide report FILE.jsonl [--output FILE.html]", after_help = help(super::manual::REPORT))]
pub struct ReportArgs {
    /// The statistics of a run, of `pagetide run --stats FILE.jsonl`
    #[arg(value_name = "FILE.jsonl", value_hint = ValueHint::FilePath)]
    pub file: PathBuf,
    /// Write the page to FILE.html; `-` is standard output [default: beside the statistics, as .html]
    #[arg(short, long, value_name = "FILE.html", value_hint = ValueHint::FilePath)]
    pub output: Option<PathBuf>,
}
