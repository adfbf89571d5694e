//! Processes that a run has beside the program, of which the launcher starts this program once more: the keeper of shared
//! memory, and the one that has the connection to the remote tier.

use crate::failure::{Failure, OURS};
use pagetide::group::{ENVIRONMENT, Group};
use pagetide::ticket::{self, Ticket};
use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

/// Returns the command of such a process: this program with `word`, which finds the run by these variables.
///
/// # Errors
/// The system does not say where this program lies.
pub(crate) fn command(word: &str, environment: &[(String, OsString)]) -> std::io::Result<Command> {
    let mut command = Command::new(std::env::current_exe()?);
    command.arg(word).env_remove("LD_PRELOAD").envs(environment.iter().cloned());
    // Of a group of its own: what stops the program at a terminal must not stop who answers its faults.
    command.process_group(0);
    Ok(command)
}

/// Returns a failure of the process that is started with `word`.
pub(crate) fn failure(word: &str, text: &str) -> Failure {
    Failure::new(OURS, format!("{text}: `pagetide {word}` is started by `pagetide run`"))
}

/// Joins the run that the environment names, in the process that is started with `word`.
pub(crate) fn join(word: &str) -> Result<Group, Failure> {
    let no_run = || failure(word, "no run is named");
    let path: PathBuf = std::env::var_os(ENVIRONMENT).ok_or_else(no_run)?.into();
    let ticket = std::env::var(ticket::ENVIRONMENT).ok().and_then(|text| text.parse::<Ticket>().ok());
    let ticket = ticket.ok_or_else(no_run)?;
    Group::join(&path, &ticket).map_err(|error| failure(word, &error.to_string()))
}
