//! `pagetide run`: sets a run up, starts CMD, and stays beside it.

use crate::command;
use crate::descriptor_server::{DescriptorServer, Place, Things};
use crate::failure::{Failure, NOT_EXECUTABLE, NOT_FOUND, OURS};
use crate::growth::{News, Use};
use crate::killed::{BY_SIGKILL, Killer, OomWatch};
use crate::library;
use crate::limits::Limits;
use crate::os::{self, Received, Signals};
use crate::report::{Report, ended, latencies};
use crate::sampler::{INTERVAL, Sampler};
use crate::set::{POOL_PERCENT, parse_shrinker};
use crate::size::{Size, parse_size, parse_time, show_bytes};
use crate::statfile::{Stage, StatFile};
use crate::strict::{Passed, Strict};
use crate::summary::Line;
use crate::swapfile::SwapFile;
use crate::tree;
use crate::verbosity::Verbosity;
use pagetide::group::{ENVIRONMENT, Group, Knobs, Setup};
use pagetide::injection::{self, Injection};
use pagetide::mask::Mask;
use pagetide::ticket::{self, Ticket};
use pagetide_swap::config::PAGE_CLUSTER_MAX;
use pagetide_swap::frontier::Frontier;
use pagetide_swap::trace;
use pagetide_swap::zswap::shrinker::Shrinker;
use pagetide_swap::{Allocator, Compression, Counter, Readahead, Reclaim, Switches};
use pagetide_sys::procfs::{Identity, Stat};
use pagetide_sys::task::say;
use pagetide_sys::uffd::Uffd;
use rustix::io::Errno;
use rustix::process::{Pid, WaitOptions, WaitStatus, getpid};
use std::ffi::OsString;
use std::fs::File;
use std::io::Write;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

const PAGE: u64 = pagetide_sys::PAGE as u64;
/// With less, an engine has no room to work in.
const MEMORY_MIN: u64 = 16 << 20;
/// The cap, in percent of what this process may have, when none is given.
const MEMORY_DEFAULT: f64 = 80.0;
const STATS_INTERVAL: Duration = Duration::from_secs(1);
/// Between SIGTERM and SIGKILL.
const GRACE: Duration = Duration::from_secs(2);

/// Run a program in less memory than it needs
#[derive(clap::Args, Debug)]
#[command(after_help = "\
SIZE is a number with K, M, G or T (binary), or a percentage of the memory that this process may have: the \
smallest limit on its cgroup path, or the machine's memory. TIME is a number with ms, s, m or h.

The exit status is that of CMD, 128 + N if signal N ended it, 125 if Pagetide failed, 126 if CMD cannot be \
executed, 127 if it was not found.")]
pub struct RunArgs {
    /// The cap on the memory of all processes of the run [default: 80%]
    #[arg(short, long, value_name = "SIZE", value_parser = parse_size)]
    memory: Option<Size>,
    /// Where the swap file lies [default: $TMPDIR, or /var/tmp]
    #[arg(long, value_name = "DIR", conflicts_with = "no_disk")]
    swap_dir: Option<PathBuf>,
    /// The size of the swap file [default: it grows to half of what is free; in a container to 4 times the cap]
    #[arg(long, value_name = "SIZE", value_parser = parse_size, conflicts_with = "no_disk")]
    swap_size: Option<Size>,
    /// Swap into compressed memory only
    #[arg(long)]
    no_disk: bool,
    /// Write pages to the swap file as they are, not encrypted
    #[arg(long, conflicts_with = "no_disk")]
    no_encrypt: bool,
    /// The share of the cap that compressed pages may take
    #[arg(long, value_name = "N", default_value_t = 80, value_parser = clap::value_parser!(u64).range(POOL_PERCENT))]
    max_pool_percent: u64,
    /// How pages are compressed: lz4, zstd, zstd:LEVEL (-7 to 19) or none
    #[arg(long, value_name = "NAME", default_value_t)]
    compressor: Compression,
    /// Pages that compress to more than N percent do not go to the pool
    #[arg(long, value_name = "N", default_value_t = Switches::default().max_compression_ratio, value_parser = clap::value_parser!(u8).range(1..=100))]
    max_compression_ratio: u8,
    /// A pool that was full takes pages again below N percent of its limit
    #[arg(long, value_name = "N", default_value_t = Switches::default().accept_threshold_percent, value_parser = clap::value_parser!(u8).range(1..=100))]
    accept_threshold_percent: u8,
    /// What of the pool is written back under pressure: second-chance, decay or none
    #[arg(long, value_name = "SCHEME", default_value = "second-chance", value_parser = parse_shrinker)]
    shrinker: Shrinker,
    /// The pool may take that share whatever misses cost, and the shrinker is asked whenever pages leave
    #[arg(long)]
    fixed_share: bool,
    /// The allocator of the pool
    #[arg(long, value_name = "NAME", default_value = "zsmalloc")]
    zpool: Zpool,
    /// Store no pages in the compressed pool
    #[arg(long, conflicts_with = "no_disk")]
    no_pool: bool,
    /// What decides which memory leaves
    #[arg(long, value_name = "POLICY", default_value = "second-chance")]
    reclaim: Policy,
    /// Have all processes run at once, however little there is for each
    #[arg(long)]
    no_load_control: bool,
    /// Which neighbours of a page come in with it
    #[arg(long, value_name = "RULE", default_value = "object")]
    readahead: Neighbours,
    /// log2 of the pages that are read from the swap file at once, at most
    #[arg(long, value_name = "N", default_value_t = PAGE_CLUSTER_MAX, value_parser = clap::value_parser!(u32).range(0..=PAGE_CLUSTER_MAX as i64))]
    page_cluster: u32,
    /// Write statistics to FILE as JSON, every second and at the end (-: standard output, at the end)
    #[arg(long, value_name = "FILE")]
    stats: Option<PathBuf>,
    /// Write down what happens to FILE, for `pagetide replay`
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// End the run when it did little but wait for its pages for TIME
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    max_stall: Option<Duration>,
    /// End the run when it passes the cap and stays above it, after all that can leave was asked for
    #[arg(long)]
    strict: bool,
    /// Say nothing but errors and warnings
    #[arg(short, long, conflicts_with = "verbose")]
    quiet: bool,
    /// Tell the setup too
    #[arg(short, long)]
    verbose: bool,
    /// The program, and its arguments
    #[arg(value_name = "CMD", required = true, trailing_var_arg = true)]
    command: Vec<OsString>,
}

#[derive(clap::ValueEnum, Clone, Copy, Debug)]
enum Zpool {
    Zsmalloc,
    Zbud,
}

/// What decides which memory leaves.
#[derive(clap::ValueEnum, Clone, Copy, Debug)]
pub enum Policy {
    /// What came back goes round once more
    SecondChance,
    /// What came first leaves first
    Fifo,
}

impl From<Policy> for Reclaim {
    fn from(policy: Policy) -> Self {
        match policy {
            Policy::SecondChance => Self::SecondChance,
            Policy::Fifo => Self::Fifo,
        }
    }
}

/// Which neighbours of a page come in with it.
#[derive(clap::ValueEnum, Clone, Copy, Debug)]
pub enum Neighbours {
    /// As scans show
    Object,
    /// The aligned block around it
    Cluster,
    /// None from the device
    None,
}

impl From<Neighbours> for Readahead {
    fn from(neighbours: Neighbours) -> Self {
        match neighbours {
            Neighbours::Object => Self::Object,
            Neighbours::Cluster => Self::Cluster,
            Neighbours::None => Self::None,
        }
    }
}

impl RunArgs {
    /// CMD and its arguments.
    pub fn command(&self) -> Vec<String> {
        self.command.iter().map(|word| word.to_string_lossy().into_owned()).collect()
    }

    fn knobs(&self) -> Knobs {
        let switches = Switches {
            enabled: !self.no_pool,
            compression: self.compressor,
            max_compression_ratio: self.max_compression_ratio,
            accept_threshold_percent: self.accept_threshold_percent,
            shrinker: self.shrinker,
            fixed_share: self.fixed_share,
        };
        Knobs { switches, max_pool_percent: self.max_pool_percent }
    }

    fn verbosity(&self) -> Verbosity {
        match (self.quiet, self.verbose) {
            (true, _) => Verbosity::Quiet,
            (_, true) => Verbosity::Verbose,
            _ => Verbosity::Normal,
        }
    }
}

/// Runs CMD. Returns the exit status.
pub fn run(args: &RunArgs) -> Result<u8, Failure> {
    let path = std::env::var_os("PATH");
    let file = command::find(&args.command[0], path.as_deref())?;
    command::check(&file, path.as_deref())?;
    let library = library::find()?;
    let mask = mask_from_environment()?;
    let injection = injection()?;
    let log = crate::dump::Log::from_environment()?;
    Uffd::open().map_err(explain_userfaultfd)?;

    let verbosity = args.verbosity();
    let memory = memory(args, verbosity)?;
    let mut swap = swap_file(args, memory, verbosity)?;
    let trace = args.trace.as_deref().map(|path| create_trace(path, memory, args)).transpose()?;
    let setup = Setup {
        cap_pages: memory / PAGE,
        knobs: args.knobs(),
        zpool: match args.zpool {
            Zpool::Zsmalloc => Allocator::Zsmalloc,
            Zpool::Zbud => Allocator::Zbud,
        } as u64,
        reclaim: Reclaim::from(args.reclaim) as u64,
        readahead: Readahead::from(args.readahead) as u64,
        page_cluster: args.page_cluster.into(),
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

    log.begin(&group);
    if let Some(swap) = &mut swap {
        swap.look_now(group.frontier(), Use { held: 0, refused: 0 });
        if group.frontier().allowed() == 0 {
            let directory = swap.directory.display();
            verbosity.warn(&format!(
                "{directory} is 95 % full: no page goes to the swap file until there is room (--swap-dir, --swap-size)"
            ));
        }
    }

    let pool = show_bytes(memory / 100 * args.max_pool_percent);
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

/// Creates a trace: what processes see is added to it.
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

/// What went wrong, and the knob.
fn hinted(error: &std::io::Error) -> String {
    match Errno::from_io_error(error) {
        Some(Errno::FBIG) => format!("{error}: raise the limit on the size of files (ulimit -f)"),
        _ => error.to_string(),
    }
}

fn mask_from_environment() -> Result<Mask, String> {
    let list = std::env::var_os("PAGETIDE_MASK").unwrap_or_default();
    let list = list.to_string_lossy();
    Mask::parse(&list).map_err(|name| {
        let known: Vec<_> = Mask::NAMES.iter().map(|(name, _)| *name).collect();
        format!("PAGETIDE_MASK: there is no way {name:?}; there are {}", known.join(", "))
    })
}

fn injection() -> Result<Injection, String> {
    let text = std::env::var_os("PAGETIDE_FAIL").unwrap_or_default();
    Injection::parse(&text.to_string_lossy()).ok_or_else(|| {
        let known: Vec<_> = injection::NAMES.iter().map(|(name, _)| *name).collect();
        format!("PAGETIDE_FAIL: {text:?} is not NAME:N, with a NAME of {}", known.join(", "))
    })
}

fn explain_userfaultfd(error: Errno) -> String {
    if error == Errno::NOSYS {
        return "this kernel has no userfaultfd (CONFIG_USERFAULTFD), without which Pagetide cannot work"
            .into();
    }
    format!(
        "no permission for userfaultfd ({}). One of these gives it:\n  \
         - run as root, or with CAP_SYS_PTRACE\n  \
         - sysctl vm.unprivileged_userfaultfd=1\n  \
         - access to /dev/userfaultfd: chmod or a udev rule; in a container, --device /dev/userfaultfd",
        std::io::Error::from(error)
    )
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

/// The process beside CMD.
struct Launcher<'a> {
    args: &'a RunArgs,
    signals: Signals,
    child: u32,
    started: Instant,
    group: Group,
    sampler: Sampler,
    stats: Option<StatFile>,
    /// That they cannot be written was said.
    stats_failed: bool,
    next_sample: Instant,
    next_stats: Instant,
    ending: Option<Ending>,
    strict: Option<Strict>,
    oom: OomWatch,
    /// Processes of the run open these two through `/proc`.
    group_fd: OwnedFd,
    swap: Option<SwapFile>,
    /// Where those that cannot ask for them.
    _place: Option<Place>,
}

/// A run that is being ended.
#[derive(Clone, Copy)]
enum Ending {
    /// It was asked to, and has until then.
    Asked(Instant),
    /// It was killed, and should be gone by then.
    Killed(Instant),
    /// So it was for passing its cap.
    KilledByStrict(Instant),
}

impl<'a> Launcher<'a> {
    fn start(
        args: &'a RunArgs,
        mut command: Command,
        group: Group,
        group_fd: OwnedFd,
        swap: Option<SwapFile>,
        descriptor_server: Option<(DescriptorServer, Option<OwnedFd>)>,
    ) -> Result<Self, Failure> {
        // Best effort: where it is forbidden, orphans go to init as ever.
        let _ = rustix::process::set_child_subreaper(Some(getpid()));
        let now = Instant::now();
        let mut this = Self {
            args,
            signals: Signals::block(),
            child: 0,
            started: now,
            group,
            sampler: Sampler::new(group, &group_fd, args.max_stall, !args.no_load_control),
            stats: args.stats.as_deref().map(StatFile::new).transpose()?,
            stats_failed: false,
            next_sample: now + INTERVAL,
            next_stats: now + STATS_INTERVAL,
            ending: None,
            strict: args.strict.then(Strict::default),
            oom: OomWatch::new(),
            group_fd,
            swap,
            _place: None,
        };
        // With all signals blocked, which are the other thread's.
        if let Some((descriptor_server, trace)) = descriptor_server {
            this._place = descriptor_server.start(this.things(trace)?);
        }
        this.sampler.charge_own(&this.group_fd);
        let report = this.report(None);
        if let Some(stats) = &this.stats {
            stats.write(&report.json(), Stage::Running)?;
        }
        this.child = this.signals.spawn(&mut command).map_err(|error| {
            let status =
                if error.kind() == std::io::ErrorKind::NotFound { NOT_FOUND } else { NOT_EXECUTABLE };
            Failure::new(status, format!("{}: {error}", args.command[0].display()))
        })?;
        this.sampler.note_command(this.child);
        Ok(this)
    }

    /// What is handed out.
    fn things(&self, trace: Option<OwnedFd>) -> Result<Things, String> {
        let clone = |fd: &OwnedFd| fd.try_clone().map_err(|error| format!("no descriptor is left: {error}"));
        let swap = self.swap.as_ref().map(|swap| clone(&swap.fd)).transpose()?;
        Ok(Things { group: clone(&self.group_fd)?, swap, trace })
    }

    fn stay(mut self) -> Result<u8, Failure> {
        let status = loop {
            let timeout = self.next_sample.saturating_duration_since(Instant::now());
            match self.signals.wait(timeout) {
                Some(Received { signal: libc::SIGCHLD, .. }) => {
                    if let Some(status) = self.reap() {
                        break status;
                    }
                }
                Some(received) => self.relay(received),
                None => {}
            }
            self.sample_if_due();
            if let Some(status) = self.end_if_due() {
                break status;
            }
        };
        Ok(self.finish(status))
    }

    /// Collects children, ours and orphans. Returns the exit status when CMD has ended.
    fn reap(&mut self) -> Option<u8> {
        let mut status = None;
        while let Ok(Some((pid, change))) = rustix::process::wait(WaitOptions::NOHANG | WaitOptions::UNTRACED)
        {
            if pid.as_raw_nonzero().get() as u32 != self.child {
                continue;
            }
            if change.stopped() {
                self.stop_with_child();
            } else {
                status = Some(exit_status(change));
            }
        }
        // A run that is being ended ends when all its processes have.
        status.filter(|_| self.ending.is_none())
    }

    /// CMD was stopped: so is the launcher, for whoever started it to see. Whichever is continued, both go on.
    fn stop_with_child(&mut self) {
        // Init cannot be stopped. And whoever continued CMD meanwhile wants it to run.
        if getpid() == Pid::INIT || !tree::is_stopped(self.child) {
            return;
        }
        os::stop_until(|| !tree::is_stopped(self.child));
        self.sampler.note_stop();
        // Here we are again. SIGCONT to the whole group has reached CMD already.
        if tree::is_stopped(self.child) {
            os::send(self.child, libc::SIGCONT, None);
        }
    }

    /// Hands a signal on that was sent to the launcher alone.
    fn relay(&self, received: Received) {
        let Received { signal, sender } = received;
        if self.ending.is_some() {
            // CMD may be reaped, and its pid another's.
            return;
        }
        let forward = match sender {
            // CMD sent it to its whole group, or to its parent.
            Some(sender) if sender.pid != 0 => !self.sampler.knows(sender.pid),
            Some(_) => true,
            // A key on the terminal reached the whole group. Only a hangup is sent to the session's leader alone.
            None => signal == libc::SIGHUP && leads_session(),
        };
        // One SIGCONT continued the launcher, and CMD with it.
        if forward && (signal != libc::SIGCONT || tree::is_stopped(self.child)) {
            os::send(self.child, signal, sender.and_then(|sender| sender.value));
        }
    }

    fn sample_if_due(&mut self) {
        let now = Instant::now();
        if now < self.next_sample {
            return;
        }
        self.sampler.charge_own(&self.group_fd);
        // Before the sample, which answers whoever is about to end for want of a place.
        self.look_at_swap(SwapFile::look);
        let stalled = self.sampler.sample();
        self.tell_news();
        if stalled && self.ending.is_none() {
            let window = self.args.max_stall.unwrap_or_default();
            say(&format!(
                "threads of the run did little but wait for their pages in the last {window:?} (--max-stall): ending it"
            ));
            self.send_all(libc::SIGTERM);
            self.ending = Some(Ending::Asked(now + GRACE));
        }
        self.oom.follow(&self.child.to_string());
        self.check_cap(now);
        self.next_sample = Instant::now() + INTERVAL;
        if now >= self.next_stats {
            self.next_stats = now + STATS_INTERVAL;
            self.write_stats(None);
        }
    }

    /// Lets the swap file grow, or not.
    fn look_at_swap(&mut self, look: fn(&mut SwapFile, Frontier, Use) -> Vec<News>) {
        let Some(swap) = &mut self.swap else { return };
        let now = self.sampler.now();
        let now = Use { held: now.pages.disk, refused: now.counter(Counter::write_full) };
        for news in look(swap, self.group.frontier(), now) {
            match news {
                News::Passed(line) => self.args.verbosity().tell(&line),
                News::Full(line) => self.args.verbosity().warn(&line),
            }
        }
    }

    /// Says which programs were found to run without Pagetide: once, and at once.
    fn tell_news(&mut self) {
        for line in self.sampler.outside().news() {
            self.args.verbosity().warn(&line);
        }
    }

    /// Ends a run that `--strict` forbids.
    fn check_cap(&mut self, now: Instant) {
        let Some(strict) = self.strict.as_mut().filter(|_| self.ending.is_none()) else { return };
        let (held, processes) = (self.sampler.now().pages, || self.sampler.processes());
        let Some(Passed { bytes, most: (pid, name, most) }) = strict.sample(&self.group, held, processes)
        else {
            return;
        };
        say(&format!(
            "the run holds {}, its cap is {}, and no more can leave (--strict): ending it; {name} (pid {pid}) holds most, {}",
            show_bytes(bytes),
            show_bytes(self.group.setup().cap_pages * PAGE),
            show_bytes(most),
        ));
        self.send_all(libc::SIGKILL);
        self.ending = Some(Ending::KilledByStrict(now + GRACE));
    }

    /// Sees a run off that is being ended.
    fn end_if_due(&mut self) -> Option<u8> {
        let (deadline, status) = match self.ending? {
            Ending::Asked(deadline) | Ending::Killed(deadline) => (deadline, OURS),
            Ending::KilledByStrict(deadline) => (deadline, BY_SIGKILL),
        };
        if self.sampler.processes().is_empty() {
            return Some(status);
        }
        if Instant::now() < deadline {
            return None;
        }
        if !matches!(self.ending, Some(Ending::Asked(_))) {
            return Some(status);
        }
        self.send_all(libc::SIGKILL);
        self.ending = Some(Ending::Killed(Instant::now() + GRACE));
        None
    }

    fn send_all(&self, signal: i32) {
        for pid in self.sampler.processes() {
            // One that is stopped could not act on it.
            os::send_to_descendant(pid, &[signal, libc::SIGCONT]);
        }
    }

    fn finish(mut self, status: u8) -> u8 {
        self.sampler.sample_last();
        self.look_at_swap(SwapFile::look_now);
        // Who was killed may have been so before it could answer.
        if status < 128 {
            self.sampler.note_end(&self.args.command[0].to_string_lossy());
        }
        self.tell_news();
        let report = self.report(Some(status));
        self.write_stats(Some(status));
        for Line { warning, text } in report.summary() {
            if warning {
                self.args.verbosity().warn(&text);
            } else {
                self.args.verbosity().tell(&text);
            }
        }
        status
    }

    fn report(&mut self, exit_status: Option<u8>) -> Report {
        Report {
            pid: std::process::id(),
            command: self.args.command(),
            exit_status,
            elapsed: self.started.elapsed(),
            cpu: Some(os::children_cpu()),
            cap_pages: self.group.setup().cap_pages,
            now: self.sampler.now(),
            peak: Some(self.sampler.peak()),
            most: self.sampler.most(),
            killer: exit_status.and_then(|status| {
                let strict = matches!(self.ending, Some(Ending::KilledByStrict(_)));
                Killer::find(strict, self.group.ended().processes, &self.oom, status)
            }),
            ratio: self.sampler.ratio(),
            latencies: latencies(&self.group),
            outside: self.sampler.outside().clone(),
            latest_look: self.sampler.latest_look(),
            ended: ended(&self.group),
        }
    }

    fn write_stats(&mut self, exit_status: Option<u8>) {
        if self.stats.is_none() {
            return;
        }
        let report = self.report(exit_status);
        let Some(stats) = &self.stats else { return };
        let stage = if exit_status.is_some() { Stage::Ended } else { Stage::Running };
        if let Err(error) = stats.write(&report.json(), stage) {
            // Once is enough, but for the last report, which is lost.
            if !self.stats_failed || stage == Stage::Ended {
                self.args.verbosity().warn(&error);
            }
            self.stats_failed = true;
        }
    }
}

/// Whether this process leads its session.
fn leads_session() -> bool {
    let leader = Stat::of("self").and_then(|stat| stat.session);
    leader.is_some() && leader == Some(Identity::own().pid)
}

fn exit_status(change: WaitStatus) -> u8 {
    match (change.exit_status(), change.terminating_signal()) {
        (Some(status), _) => status as u8,
        (None, Some(signal)) => 128 + signal as u8,
        (None, None) => OURS,
    }
}
