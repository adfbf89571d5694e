//! The process beside CMD: waits for signals, samples, ends the run, and reports.

use crate::accounts::gathered::{ended, latencies};
use crate::disk::growth::{News, Use};
use crate::disk::swapfile::SwapFile;
use crate::failure::{Failure, NOT_EXECUTABLE, NOT_FOUND, OURS};
use crate::keeper::link::{KeeperHandle, KeeperLink};
use crate::processes::killed::{BY_SIGKILL, Killer, OomWatch};
use crate::processes::os::{self, Continued, Received, Signals};
use crate::processes::tree;
use crate::report::ReportFile;
use crate::run::descriptor_server::{DescriptorServer, SocketDirectory};
use crate::run::setup::Resources;
use crate::run::statfile::{Stage, StatFile};
use crate::sampler::strict::{Passed, Strict};
use crate::sampler::{INTERVAL, Sampler};
use crate::show::notices::Notices;
use crate::show::report::Report;
use crate::show::summary::Line;
use crate::units::{PAGE, show_bytes};
use crate::verbosity::Verbosity;
use pagetide_cli::options::RunArgs;
use pagetide_swap::Counter;
use pagetide_swap::frontier::Frontier;
use pagetide_sys::procfs::{Identity, Stat};
use pagetide_sys::task::say;
use rustix::process::{Pid, WaitOptions, WaitStatus, getpid};
use std::io::IsTerminal;
use std::process::Command;
use std::time::{Duration, Instant};

/// Between SIGTERM and SIGKILL.
const GRACE: Duration = Duration::from_secs(2);

/// The process beside CMD.
pub(crate) struct Launcher<'a> {
    args: &'a RunArgs,
    signals: Signals,
    child: u32,
    started: Instant,
    /// Processes of the run open its files through `/proc`.
    resources: Resources,
    sampler: Sampler,
    stats: Option<StatFile>,
    page: Option<ReportFile>,
    /// Whether it was said that statistics cannot be written.
    stats_failed: bool,
    next_sample: Instant,
    /// `None` where only the last report is still to come: the next one lies beyond what the clock can tell.
    next_stats: Option<Instant>,
    ending: Option<Ending>,
    strict: Option<Strict>,
    oom: OomWatch,
    /// The directory of the socket of the descriptor server.
    _socket: Option<SocketDirectory>,
    keeper: KeeperHandle,
    /// Whether it has ended.
    lost_keeper: bool,
    notices: Notices,
}

/// A run that is being ended.
#[derive(Clone, Copy)]
enum Ending {
    /// SIGTERM was sent; SIGKILL follows at that time.
    Asked(Instant),
    /// SIGKILL was sent; processes are not waited for beyond that time.
    Killed(Instant),
    /// The same, for passing its cap.
    KilledByStrict(Instant),
}

impl<'a> Launcher<'a> {
    /// Starts CMD.
    pub(crate) fn start(
        args: &'a RunArgs,
        mut command: Command,
        resources: Resources,
        server: Option<DescriptorServer>,
        keeper: KeeperLink,
    ) -> Result<Self, Failure> {
        // Best effort: where it is forbidden, orphans go to init.
        let _ = rustix::process::set_child_subreaper(Some(getpid()));
        let now = Instant::now();
        let mut this = Self {
            args,
            signals: Signals::block(),
            child: 0,
            started: now,
            sampler: Sampler::new(
                resources.group,
                &resources.group_fd,
                args.max_stall,
                !args.no_load_control,
            ),
            stats: args.stats.as_deref().map(StatFile::new).transpose()?,
            page: args.report.as_deref().map(ReportFile::new).transpose()?,
            stats_failed: false,
            next_sample: now + INTERVAL,
            next_stats: now.checked_add(args.stats_interval),
            ending: None,
            strict: args.strict.then(Strict::default),
            oom: OomWatch::new(),
            resources,
            _socket: None,
            keeper: keeper.handle(),
            lost_keeper: false,
            notices: Notices::new(
                Verbosity::of(args) >= Verbosity::Normal && std::io::stderr().is_terminal(),
                now,
            ),
        };
        // After signals are blocked: the thread of the server inherits the mask.
        if let Some(server) = server {
            this._socket = server.start(this.resources.descriptors()?, keeper);
        }
        if let Some(remote) = &this.resources.remote {
            this.sampler.note_ring(&remote.fd);
        }
        this.sampler.charge_own(this.resources.shared_files());
        let report = this.report(None).json();
        if let Some(stats) = &this.stats {
            stats.write(&report, Stage::Running)?;
        }
        if let Some(page) = &mut this.page {
            page.add(&report);
        }
        this.child = this.signals.spawn(&mut command).map_err(|error| {
            let status =
                if error.kind() == std::io::ErrorKind::NotFound { NOT_FOUND } else { NOT_EXECUTABLE };
            Failure::new(status, format!("{}: {error}", args.command[0].display()))
        })?;
        this.sampler.note_command(this.child);
        Ok(this)
    }

    /// Stays until the run has ended. Returns the exit status.
    pub(crate) fn stay(mut self) -> Result<u8, Failure> {
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

    /// Reaps children, orphans of the run among them. Returns the exit status when CMD has ended.
    fn reap(&mut self) -> Option<u8> {
        let mut status = None;
        while let Ok(Some((pid, change))) = rustix::process::wait(WaitOptions::NOHANG | WaitOptions::UNTRACED)
        {
            let pid = pid.as_raw_nonzero().get() as u32;
            if self.keeper.is(pid) && !change.stopped() {
                self.note_lost_keeper();
            }
            if let Some(remote) = self.resources.remote.as_mut().filter(|remote| remote.is(pid))
                && !change.stopped()
            {
                remote.note_lost();
                say("the process of the remote tier has ended: pages that are there are lost");
            }
            if pid != self.child {
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

    fn note_lost_keeper(&mut self) {
        if !std::mem::replace(&mut self.lost_keeper, true) {
            say("the keeper of the run's shared memory has ended: processes that map such memory end");
        }
    }

    /// Stops the launcher after CMD was stopped, so that its own parent sees it. When either is continued, both go
    /// on.
    fn stop_with_child(&mut self) {
        // Init cannot be stopped; and CMD may have been continued meanwhile.
        if getpid() == Pid::INIT || !tree::is_stopped(self.child) {
            return;
        }
        let continued = os::stop_until(|| !tree::is_stopped(self.child));
        self.sampler.note_stop();
        // What continued the launcher is done with here.
        self.signals.drop_pending(libc::SIGCONT);
        // A SIGCONT to the whole group has reached CMD already. Where CMD went on by itself, a stop is a new one.
        if continued == Continued::BySomebody && tree::is_stopped(self.child) {
            os::send(self.child, libc::SIGCONT, None);
        }
    }

    /// Sends a signal on to CMD, if it was sent to the launcher alone.
    fn relay(&self, received: Received) {
        let Received { signal, sender } = received;
        if self.ending.is_some() {
            // CMD may be reaped, and its pid another process's.
            return;
        }
        let forward = match sender {
            // A process of the run sent it, to its whole group or to its parent.
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
        self.sampler.charge_own(self.resources.shared_files());
        // Before the sample, which answers processes that are about to end for want of a place.
        self.look_at_swap(SwapFile::look);
        let stalled = self.sampler.sample();
        self.tell_news();
        let (group, seen) = (self.resources.group, self.sampler.now());
        if let Some(line) = self.notices.look(now, std::process::id(), group.cap_pages(), &seen) {
            say(&line);
        }
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
        if self.next_stats.is_some_and(|next| now >= next) {
            self.next_stats = now.checked_add(self.args.stats_interval);
            self.write_stats(None);
        }
    }

    /// Sets how far the swap file may grow.
    fn look_at_swap(&mut self, look: fn(&mut SwapFile, Frontier, Use) -> Vec<News>) {
        let Some(swap) = &mut self.resources.swap else { return };
        let now = self.sampler.now();
        let now = Use {
            held: now.pages.disk.saturating_sub(now.pages.on_server),
            refused: now.counter(Counter::write_full),
        };
        for news in look(swap, self.resources.group.frontier(0), now) {
            match news {
                News::Passed(line) => self.verbosity().tell(&line),
                News::Full(line) => self.verbosity().warn(&line),
            }
        }
    }

    /// Says which programs were newly found to run without Pagetide.
    fn tell_news(&mut self) {
        for line in self.sampler.outside().news() {
            self.verbosity().warn(&line);
        }
    }

    /// Ends a run that `--strict` forbids.
    fn check_cap(&mut self, now: Instant) {
        let Some(strict) = self.strict.as_mut().filter(|_| self.ending.is_none()) else { return };
        let (held, processes) = (self.sampler.now().pages, || self.sampler.processes());
        let Some(Passed { bytes, most: (pid, name, most) }) =
            strict.sample(&self.resources.group, held, processes)
        else {
            return;
        };
        say(&format!(
            "the run holds {}, its cap is {}, and no more can leave (--strict): ending it; {name} (pid {pid}) holds most, {}",
            show_bytes(bytes),
            show_bytes(self.resources.group.cap_pages() * PAGE),
            show_bytes(most),
        ));
        self.send_all(libc::SIGKILL);
        self.ending = Some(Ending::KilledByStrict(now + GRACE));
    }

    /// Goes on with the end of a run. Returns the exit status when it is over.
    fn end_if_due(&mut self) -> Option<u8> {
        let (deadline, status) = match self.ending? {
            Ending::Asked(deadline) | Ending::Killed(deadline) => (deadline, OURS),
            Ending::KilledByStrict(deadline) => (deadline, BY_SIGKILL),
        };
        if self.has_ended() {
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

    /// Whether a process is one that Pagetide has beside the program's.
    fn is_ours(&self, pid: u32) -> bool {
        self.keeper.is(pid) || self.resources.remote.as_ref().is_some_and(|remote| remote.is(pid))
    }

    /// Whether no process of the program is left.
    fn has_ended(&self) -> bool {
        self.sampler.processes().into_iter().all(|pid| self.is_ours(pid))
    }

    fn send_all(&self, signal: i32) {
        // The keeper has files to bring back when the others have ended, and the remote tier values to delete.
        for pid in self.sampler.processes().into_iter().filter(|&pid| !self.is_ours(pid)) {
            // A stopped process could not act on it.
            os::send_to_descendant(pid, &[signal, libc::SIGCONT]);
        }
    }

    fn finish(mut self, status: u8) -> u8 {
        if self.keeper.has_ended() {
            self.note_lost_keeper();
        }
        self.sampler.sample_last();
        self.look_at_swap(SwapFile::look_now);
        // A CMD that was killed may have been so before the library could answer.
        if status < 128 {
            self.sampler.note_end(&self.args.command[0].to_string_lossy());
        }
        self.tell_news();
        let report = self.report(Some(status));
        self.write_stats(Some(status));
        for Line { warning, text } in report.summary() {
            if warning {
                self.verbosity().warn(&text);
            } else {
                self.verbosity().tell(&text);
            }
        }
        if let Some(page) = &self.page
            && let Err(error) = page.write()
        {
            self.verbosity().warn(&error);
        }
        self.let_keeper_go();
        let ended = self.has_ended();
        if let Some(remote) = &mut self.resources.remote {
            remote.let_go(ended);
        }
        status
    }

    /// Waits for the keeper to bring back what the run leaves behind in files, unless processes go on that map it.
    fn let_keeper_go(&self) {
        let Some(keeper) = self.keeper.let_go().filter(|_| !self.lost_keeper) else { return };
        if self.has_ended() {
            let _ =
                rustix::io::retry_on_intr(|| rustix::process::waitpid(Some(keeper), WaitOptions::empty()));
        }
    }

    fn report(&mut self, exit_status: Option<u8>) -> Report {
        Report {
            pid: std::process::id(),
            command: self.args.command(),
            exit_status,
            elapsed: self.started.elapsed(),
            usage: Some(os::children_usage()),
            cap_pages: self.resources.group.cap_pages(),
            cap_changes: self.resources.group.cap_changes(),
            now: self.sampler.now(),
            peak: Some(self.sampler.peak()),
            most: self.sampler.most(),
            killer: exit_status.and_then(|status| {
                let strict = matches!(self.ending, Some(Ending::KilledByStrict(_)));
                Killer::find(
                    strict,
                    self.lost_keeper,
                    self.resources.group.ended().processes,
                    self.resources.group.kills(),
                    &self.oom,
                    status,
                )
            }),
            ratio: self.sampler.ratio(),
            latencies: latencies(&self.resources.group),
            outside: self.sampler.outside().clone(),
            latest_look: self.sampler.latest_look(),
            ended: ended(&self.resources.group),
        }
    }

    fn verbosity(&self) -> Verbosity {
        Verbosity::of(self.args)
    }

    fn write_stats(&mut self, exit_status: Option<u8>) {
        if self.stats.is_none() && self.page.is_none() {
            return;
        }
        let report = self.report(exit_status).json();
        if let Some(page) = &mut self.page {
            page.add(&report);
        }
        let Some(stats) = &self.stats else { return };
        let stage = if exit_status.is_some() { Stage::Ended } else { Stage::Running };
        if let Err(error) = stats.write(&report, stage) {
            // Said once, and for the last report, which is lost.
            if !self.stats_failed || stage == Stage::Ended {
                self.verbosity().warn(&error);
            }
            self.stats_failed = true;
        }
    }
}

/// Returns whether this process leads its session.
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
