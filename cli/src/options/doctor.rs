//! Options of `pagetide doctor`.

use super::section::help;
use clap::ValueHint;
use std::path::PathBuf;

/// Options of `pagetide doctor`.
#[derive(clap::Args, Debug)]
#[command(override_usage = "pagetide doctor [--swap-dir DIR] [--remote URL] [--json | --fix]", after_help = help(super::manual::DOCTOR))]
pub struct DoctorArgs {
    /// Where a swap file would lie [default: $TMPDIR, or /var/tmp]
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub swap_dir: Option<PathBuf>,
    /// A Valkey or Redis server, or seeds of a cluster, that pages would go to
    #[arg(long, value_name = "URL", value_hint = ValueHint::Url)]
    pub remote: Vec<String>,
    /// Read the password of the remote server from FILE
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, requires = "remote")]
    pub remote_password_file: Option<PathBuf>,
    /// Print JSON
    #[arg(long, conflicts_with = "fix")]
    pub json: bool,
    /// Mend what a command can mend, after asking
    #[arg(long)]
    pub fix: bool,
}
