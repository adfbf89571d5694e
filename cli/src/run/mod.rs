//! `pagetide run`: sets a run up, starts CMD, and stays beside it.

pub(crate) mod command;
pub(crate) mod descriptor_server;
mod environment;
mod launcher;
pub(crate) mod library;
mod setup;
pub(crate) mod statfile;

use crate::disk::growth::Use;
use crate::disk::swapfile::SwapFile;
use crate::failure::Failure;
use crate::run::descriptor_server::DescriptorServer;
use crate::run::environment::{explain_userfaultfd, injection, mask_from_environment};
use crate::run::launcher::Launcher;
use crate::run::setup::{create_trace, hinted, knobs, memory, swap_file};
use crate::units::show_bytes;
use crate::verbosity::Verbosity;
use pagetide::group::{ENVIRONMENT, Group, Setup};
use pagetide::ticket::{self, Ticket};
use pagetide_cli::options::RunArgs;
use pagetide_swap::{Allocator, Readahead, Reclaim};
use pagetide_sys::procfs::Identity;
use pagetide_sys::uffd::Uffd;
use std::fs::File;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::Command;

const PAGE: u64 = pagetide_sys::PAGE as u64;

/// Runs CMD. Returns the exit status.
pub(crate) fn run(args: &RunArgs) -> Result<u8, Failure> {
    let path = std::env::var_os("PATH");
    let file = command::find(&args.command[0], path.as_deref())?;
    command::check(&file, path.as_deref())?;
    let library = library::find()?;
    let mask = mask_from_environment()?;
    let injection = injection()?;
    Uffd::open().map_err(explain_userfaultfd)?;

    let verbosity = Verbosity::of(args);
    let memory = memory(args, verbosity)?;
    let mut swap = swap_file(args, memory, verbosity)?;
    let trace = args.trace.as_deref().map(|path| create_trace(path, memory, args)).transpose()?;
    let setup = Setup {
        cap_pages: memory / PAGE,
        knobs: knobs(args),
        zpool: Allocator::from(args.zpool) as u64,
        reclaim: Reclaim::from(args.rules.reclaim) as u64,
        readahead: Readahead::from(args.rules.readahead) as u64,
        page_cluster: args.rules.page_cluster.into(),
        blocks: swap.as_ref().map_or(0, SwapFile::blocks),
        launcher: Identity::own(),
        swap_fd: swap.as_ref().map_or(0, |swap| swap.fd.as_raw_fd() as u64),
        swap_identity: swap.as_ref().map_or(Ok((0, 0)), SwapFile::identity)?,
        trace_fd: trace.as_ref().map(|file| file.as_raw_fd() as u64),
        mask: mask.bits(),
        encrypt: (!args.no_encrypt).into(),
        injection: injection.bits(),
    };
    let (group_fd, group) = Group::create(setup)
        .map_err(|error| format!("cannot create the run's group page: {}", hinted(&error)))?;

    if let Some(swap) = &mut swap {
        swap.look_now(group.frontier(), Use { held: 0, refused: 0 });
        if group.frontier().allowed() == 0 {
            let directory = swap.directory.display();
            verbosity.warn(&format!(
                "{directory} is 95 % full: no page goes to the swap file until there is room (--swap-dir, --swap-size)"
            ));
        }
    }

    let pool = show_bytes(memory / 100 * args.rules.max_pool_percent);
    verbosity.detail(&format!("memory {}, of which the pool may take {pool}", show_bytes(memory)));
    verbosity.detail(&swap.as_ref().map_or_else(
        || "no swap file".to_owned(),
        |swap| {
            format!(
                "swap file in {}, up to {}, {}",
                swap.directory.display(),
                show_bytes(swap.bytes),
                swap.bound
            )
        },
    ));
    verbosity.detail(&format!("preloading {}", library.display()));

    let descriptor_server = DescriptorServer::new();
    if descriptor_server.is_none() {
        verbosity
            .detail("no socket can be made: processes that give up their privileges run without Pagetide");
    }
    let address = descriptor_server.as_ref().map(|descriptor_server| descriptor_server.address().clone());
    let ticket = Ticket::new(&setup, group_fd.as_raw_fd() as u64, address);
    let mut command = Command::new(&file);
    command
        .arg0(&args.command[0])
        .args(&args.command[1..])
        .env(ENVIRONMENT, format!("/proc/{}/fd/{}", std::process::id(), group_fd.as_raw_fd()))
        .env(ticket::ENVIRONMENT, ticket.to_string())
        .env("LD_PRELOAD", library::ld_preload(std::env::var_os("LD_PRELOAD").as_deref(), &library));
    // Open for as long as this process lives: those that can open it by its number.
    let trace = trace
        .as_ref()
        .map(File::try_clone)
        .transpose()
        .map_err(|error| error.to_string())?
        .map(OwnedFd::from);
    let handed = descriptor_server.map(|descriptor_server| (descriptor_server, trace));
    Launcher::start(args, command, group, group_fd, swap, handed)?.stay()
}
