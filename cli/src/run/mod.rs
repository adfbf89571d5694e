//! `pagetide run`: sets a run up, starts CMD, and stays beside it.

mod carried;
pub(crate) mod command;
pub(crate) mod descriptor_server;
mod environment;
mod launcher;
pub(crate) mod library;
pub(crate) mod setup;
pub(crate) mod statfile;

use crate::dump::Log;
use crate::failure::Failure;
use crate::keeper::link::KeeperLink;
use crate::permission::device;
use crate::remote::target::PASSWORD;
use crate::run::descriptor_server::DescriptorServer;
use crate::run::environment::{injection, mask_from_environment};
use crate::run::launcher::Launcher;
use crate::run::setup::Resources;
use crate::verbosity::Verbosity;
use pagetide::group::ENVIRONMENT;
use pagetide::mask::Mask;
use pagetide::ticket;
use pagetide_cli::options::RunArgs;
use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

/// Runs CMD. Returns the exit status.
pub(crate) fn run(args: &RunArgs) -> Result<u8, Failure> {
    let path = std::env::var_os("PATH");
    let file = command::find(&args.command[0], path.as_deref())?;
    command::check(&file, path.as_deref())?;
    let library = library::find()?;
    let (mask, injection) = (mask_from_environment()?, injection()?);
    let log = Log::from_environment()?;
    let verbosity = Verbosity::of(args);
    let device = device::obtain(verbosity)?;

    let mut resources = Resources::create(args, mask, injection, device, verbosity)?;
    log.begin(&resources.group);
    resources.tell(args, verbosity);
    verbosity.detail(&format!("preloading {}", library.display()));
    let server = DescriptorServer::new();
    if server.is_none() {
        verbosity
            .detail("no socket can be made: processes that give up their privileges run without Pagetide");
    }
    let command = command_line(args, &file, &library, &resources, server.as_ref());
    let environment = run_environment(&command);
    resources.start_remote(&environment)?;
    let keeper = if mask.masks(Mask::NO_SHARED) { KeeperLink::none() } else { KeeperLink::new(environment) };
    Launcher::start(args, command, resources, server, keeper)?.stay()
}

/// Returns the variables by which CMD, the keeper and the process of the remote tier find the run.
fn run_environment(command: &Command) -> Vec<(String, OsString)> {
    let named = |name: &str| name == ENVIRONMENT || name == ticket::ENVIRONMENT;
    let variables = command.get_envs().filter_map(|(name, value)| Some((name.to_str()?, value?)));
    variables.filter(|(name, _)| named(name)).map(|(name, value)| (name.into(), value.into())).collect()
}

/// Returns CMD, with the environment by which its processes find the library and the run.
fn command_line(
    args: &RunArgs,
    file: &Path,
    library: &Path,
    resources: &Resources,
    server: Option<&DescriptorServer>,
) -> Command {
    let ticket = resources.ticket(server.map(|server| server.address().clone()));
    let mut command = Command::new(file);
    command
        .arg0(&args.command[0])
        .args(&args.command[1..])
        .env_remove(PASSWORD)
        .env(ENVIRONMENT, resources.group_page())
        .env(ticket::ENVIRONMENT, ticket.to_string())
        .env("LD_PRELOAD", library::ld_preload(std::env::var_os("LD_PRELOAD").as_deref(), library));
    command
}
