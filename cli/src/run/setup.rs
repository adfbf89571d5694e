//! Setup of a run before CMD starts: cap, swap file, trace, group page.

use crate::disk::growth::Use;
use crate::disk::swapfile::SwapFile;
use crate::machine::limits::Limits;
use crate::remote;
use crate::remote::link::RemoteTier;
use crate::run::descriptor_server::Descriptors;
use crate::units::{PAGE, show_bytes};
use crate::verbosity::Verbosity;
use pagetide::group::{Group, Knobs, Setup, TierSpec};
use pagetide::injection::Plan;
use pagetide::mask::Mask;
use pagetide::ticket::Ticket;
use pagetide_cli::options::RunArgs;
use pagetide_cli::options::size::Size;
use pagetide_swap::frontier::TIERS;
use pagetide_swap::{Switches, trace};
use pagetide_sys::handout::Address;
use pagetide_sys::procfs::Identity;
use rustix::io::Errno;
use std::ffi::OsString;
use std::fs::File;
use std::io::Write;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;

/// Bytes of the smallest cap: with less, an engine has no room to work in.
pub(crate) const MEMORY_MIN: u64 = 16 << 20;
/// The cap, in percent of what this process may have, when none is given.
const MEMORY_DEFAULT: f64 = 80.0;

/// Files of a run. Its processes open them by their numbers in the launcher, for as long as that lives.
pub(crate) struct Resources {
    /// The setup written in the group page.
    setup: Setup,
    /// The group page.
    pub(crate) group: Group,
    /// The file of the group page.
    pub(crate) group_fd: OwnedFd,
    /// The swap file, if there is one.
    pub(crate) swap: Option<SwapFile>,
    /// The remote tier, if there is one.
    pub(crate) remote: Option<RemoteTier>,
    /// The trace, if there is one.
    pub(crate) trace: Option<File>,
    /// The device that makes userfaultfds, if the broker gave it: processes that start later need it, too.
    pub(crate) uffd_device: Option<OwnedFd>,
}

impl Resources {
    /// Creates the files of a run.
    pub(crate) fn create(
        args: &RunArgs,
        mask: Mask,
        injection: Plan,
        uffd_device: Option<OwnedFd>,
        verbosity: Verbosity,
    ) -> Result<Self, String> {
        let memory = memory(args, verbosity)?;
        let remote = RemoteTier::create(&args.remote, memory, Limits::read()?.whole(), verbosity)?;
        // A server alone is in place of a file; a file that is asked for is a tier beside it.
        let has_file = remote.is_none() || args.swap_dir.is_some() || args.swap_size.is_some();
        let mut swap = if has_file { swap_file(args, memory, verbosity)? } else { None };
        let mut tiers = Vec::new();
        if let Some(swap) = &mut swap {
            if remote.is_some() {
                swap.end_with_extent()?;
            }
            tiers.push(swap.spec()?);
        }
        if let Some(remote) = &remote {
            tiers.push(remote.spec()?);
        }
        tiers.resize(TIERS, TierSpec::default());
        let most = if remote.is_some() { remote::link::PAGE_CLUSTER_MAX } else { u32::MAX };
        let trace = args.trace.as_deref().map(|path| create_trace(path, memory, args)).transpose()?;
        let setup = Setup {
            cap_pages: memory / PAGE,
            knobs: knobs(args),
            zpool: args.zpool.into(),
            reclaim: args.rules.reclaim.into(),
            readahead: args.rules.readahead.into(),
            page_cluster: args.rules.page_cluster.min(most),
            launcher: Identity::own(),
            tiers: std::array::from_fn(|tier| tiers[tier]),
            trace_fd: trace.as_ref().map(|file| file.as_raw_fd() as u64),
            mask,
            encrypt: !args.no_encrypt,
            injection,
        };
        let (group_fd, group) = Group::create(setup)
            .map_err(|error| format!("cannot create the run's group page: {}", hinted(&error)))?;
        if let Some(swap) = &mut swap {
            look_first(swap, group, verbosity);
        }
        Ok(Self { setup, group, group_fd, swap, remote, trace, uffd_device })
    }

    /// Starts the process of the remote tier, if there is one, which finds the run by these variables.
    pub(crate) fn start_remote(&mut self, environment: &[(String, OsString)]) -> Result<(), String> {
        self.remote.as_mut().map_or(Ok(()), |remote| remote.start(environment))
    }

    /// Says what the setup is, if verbose.
    pub(crate) fn tell(&self, args: &RunArgs, verbosity: Verbosity) {
        let memory = self.setup.cap_pages * PAGE;
        let pool = show_bytes(memory / 100 * args.rules.max_pool_percent);
        verbosity.detail(&format!("memory {}, of which the pool may take {pool}", show_bytes(memory)));
        match &self.swap {
            Some(swap) => {
                let (directory, bytes) = (swap.directory.display(), show_bytes(swap.bytes));
                verbosity.detail(&format!("swap file in {directory}, up to {bytes}, {}", swap.bound));
            }
            None => verbosity.detail("no swap file"),
        }
        if let Some(remote) = &self.remote {
            verbosity.detail(&remote.describe());
        }
    }

    /// Returns the ticket by which processes find the run; `address` is that of the descriptor server.
    pub(crate) fn ticket(&self, address: Option<Address>) -> Ticket {
        Ticket::new(&self.setup, self.group_fd.as_raw_fd() as u64, address)
    }

    /// Returns the files of memory that all processes of the run map.
    pub(crate) fn shared_files(&self) -> impl Iterator<Item = &OwnedFd> {
        [&self.group_fd].into_iter().chain(self.remote.as_ref().map(|remote| &remote.fd))
    }

    /// Returns the path of the group page for processes of the run.
    pub(crate) fn group_page(&self) -> String {
        format!("/proc/{}/fd/{}", std::process::id(), self.group_fd.as_raw_fd())
    }

    /// Returns duplicates of the descriptors, to be handed out.
    pub(crate) fn descriptors(&self) -> Result<Descriptors, String> {
        let clone = |fd: BorrowedFd<'_>| {
            fd.try_clone_to_owned().map_err(|error| format!("no descriptor is left: {error}"))
        };
        Ok(Descriptors {
            group: clone(self.group_fd.as_fd())?,
            swap: self.swap.as_ref().map(|swap| clone(swap.fd.as_fd())).transpose()?,
            ring: self.remote.as_ref().map(|remote| clone(remote.fd.as_fd())).transpose()?,
            trace: self.trace.as_ref().map(|trace| clone(trace.as_fd())).transpose()?,
            device: self.uffd_device.as_ref().map(|device| clone(device.as_fd())).transpose()?,
        })
    }
}

/// Takes the first look at a swap file, and warns if it may not grow.
fn look_first(swap: &mut SwapFile, group: Group, verbosity: Verbosity) {
    swap.look_now(group.frontier(0), Use { held: 0, refused: 0 });
    if group.frontier(0).allowed() == 0 {
        let directory = swap.directory.display();
        verbosity.warn(&format!(
            "{directory} is 95 % full: no page goes to the swap file until there is room (--swap-dir, --swap-size)"
        ));
    }
}

/// Creates a trace, to which processes add events.
fn create_trace(path: &Path, memory: u64, args: &RunArgs) -> Result<File, String> {
    let about = serde_json::json!({ "cap_bytes": memory, "command": args.command() });
    let create = || {
        let mut file = File::create(path)?;
        file.write_all(trace::HEADER)?;
        writeln!(file, "{about}")?;
        Ok(file)
    };
    create().map_err(|error: std::io::Error| format!("--trace: {}: {error}", path.display()))
}

/// Words an error, with the limit to raise.
fn hinted(error: &std::io::Error) -> String {
    match Errno::from_io_error(error) {
        Some(Errno::FBIG) => format!("{error}: raise the limit on the size of files (ulimit -f)"),
        _ => error.to_string(),
    }
}

fn memory(args: &RunArgs, verbosity: Verbosity) -> Result<u64, String> {
    let limits = Limits::read()?;
    let memory = args.memory.unwrap_or(Size::Percent(MEMORY_DEFAULT)).bytes(limits.whole());
    if args.memory.is_none() {
        verbosity.tell(&format!(
            "--memory is {}: {MEMORY_DEFAULT} % of what this process may have",
            show_bytes(memory)
        ));
    }
    if memory < MEMORY_MIN {
        let (given, least) = (show_bytes(memory), show_bytes(MEMORY_MIN));
        return Err(format!("--memory is {given}; it takes {least} at least"));
    }
    if memory > limits.whole() {
        let what = if limits.cgroup.is_some() { "this cgroup may have" } else { "this machine has" };
        verbosity.warn(&format!(
            "--memory is {}, and {what} {}: the kernel may kill the run before it is swapped",
            show_bytes(memory),
            show_bytes(limits.whole())
        ));
    }
    Ok(memory)
}

fn swap_file(args: &RunArgs, memory: u64, verbosity: Verbosity) -> Result<Option<SwapFile>, String> {
    if args.no_disk {
        return Ok(None);
    }
    let size = match args.swap_size {
        None => None,
        Some(size) => Some(size.bytes(Limits::read()?.whole())),
    };
    SwapFile::create(args.swap_dir.as_deref(), size, memory, verbosity)
}

/// Returns the initial settings that may change while the run goes on.
fn knobs(args: &RunArgs) -> Knobs {
    let switches = Switches {
        enabled: !args.no_pool,
        compression: args.compressor,
        recompression: args.recompressor,
        max_compression_ratio: args.max_compression_ratio,
        accept_threshold_percent: args.accept_threshold_percent,
        shrinker: args.rules.shrinker.into(),
        fixed_share: args.rules.fixed_share,
    };
    Knobs { switches, max_pool_percent: args.rules.max_pool_percent }
}
