//! The process of a slot, as the sampler knows it: whether it lives, answers, or idles.

use crate::processes::tree;
use pagetide::group::{Field, ProcessSlot};
use pagetide_sys::procfs::{self, Identity, Memory};
use rustix::fs::{Mode, OFlags, open};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Resource, getrlimit, pidfd_open};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

/// Descriptors that are not spent on pidfds: they are left for reading `/proc`.
const FREE_FDS: u64 = 8;
/// A process that has given nothing for this many samples, although it was asked, is not asked any more: it is
/// stopped, or has become another program without an engine.
pub(crate) const DEAF_SAMPLES: u32 = 100;
/// A small process without an engine that has taken nothing for this many samples is charged for the pages that it
/// holds, not for its grant.
const IDLE_SAMPLES: u32 = 5;
/// A fork whose parent is dead is given up after this many samples. Not a time: a run may be stopped in a fork.
pub(crate) const FORK_SAMPLES: u32 = 250;
/// The same where the parent may live. Making room for the child may take long on a slow disk, and a slot that
/// is released too early is worse than one that is lost.
const NAMELESS_FORK_SAMPLES: u32 = 3000;

/// State by which the death of the process of a slot is noticed.
#[derive(Debug)]
pub(crate) struct Watch {
    /// The process.
    pub(crate) process: Identity,
    /// The tenant of the slot: it changes when the process calls exec.
    pub(crate) tenant: u64,
    /// Its pid in the namespace of the launcher; 0 if that is not known.
    pub(crate) pid: u32,
    /// Samples since a fork began, and samples since its parent is dead.
    samples: u32,
    samples_dead: u32,
    /// Its pidfd, if one could be opened.
    pub(crate) pidfd: Option<OwnedFd>,
    /// Its file `statm`, if a descriptor could be spent on that.
    statm: Option<OwnedFd>,
    /// Whether it has died.
    pub(crate) gone: bool,
    /// Its memory at the last looks.
    pub(crate) memory: procfs::Watched,
    /// Pages that it was asked for, and samples since that has changed.
    asked: (u64, u32),
    /// Pages that it held and was granted, and samples since either has changed.
    held: ([i64; 2], u32),
    /// Pages by which the kernel's count is too low, found once when it idles; `None` if that cannot be told.
    uncounted: Option<i64>,
}

impl Watch {
    /// Begins to watch the process of a slot.
    pub(crate) fn new(slot: ProcessSlot) -> Self {
        let process = slot.process();
        let mut this = Self {
            process,
            tenant: slot.tenant(),
            pid: 0,
            samples: 0,
            samples_dead: 0,
            pidfd: None,
            statm: None,
            gone: false,
            memory: procfs::Watched::default(),
            asked: (0, 0),
            held: ([0; 2], 0),
            uncounted: None,
        };
        if process.start_time != 0 {
            this.find();
        }
        this
    }

    /// Finds the pid of the process, and whether it lives. A slot can name any process: only a descendant of the
    /// launcher is looked at, and sent signals.
    fn find(&mut self) {
        let Ok(found) = self.process.pids() else { return };
        self.gone = found.is_empty();
        if let [pid] = found[..]
            && tree::descends(pid, std::process::id())
        {
            self.pid = pid;
            self.pidfd = pidfd(pid).ok();
            self.statm = self.pidfd.as_ref().and_then(|_| statm(pid).ok());
            // The pid may have been used again before they were opened.
            if self.pidfd.is_some() && self.process.pids().as_deref() != Ok(&found) {
                (self.pidfd, self.statm) = (None, None);
            }
        }
    }

    /// Looks at its memory. A running engine (`armed`) accounts for its process; without one the launcher alone sees what the
    /// process takes.
    pub(crate) fn look_at_memory(&mut self, armed: bool) -> Option<Memory> {
        let pid = self.pid.to_string();
        if armed {
            self.memory.look(&pid)
        } else {
            self.memory.look_closely(&pid, self.statm.as_ref().map(AsFd::as_fd))
        }
    }

    /// Returns whether this is the process `pid`, dead or alive.
    pub(crate) fn is(&self, pid: u32) -> bool {
        let here = || Identity::own().namespace == self.process.namespace;
        pid != 0 && (self.pid == pid || self.process.pid == pid && here())
    }

    /// Looks again at a process without a pidfd. `no_fork` says whether nobody is left who could be forking it.
    pub(crate) fn look(&mut self, no_fork: bool) {
        if self.process.start_time == 0 {
            self.samples += 1;
            let forks = self.process.pid == 0;
            let dead = if forks { no_fork } else { self.process.pids().is_ok_and(|pids| pids.is_empty()) };
            self.samples_dead = if dead { self.samples_dead + 1 } else { 0 };
            let nameless = forks && self.samples > NAMELESS_FORK_SAMPLES;
            self.gone = self.samples_dead > FORK_SAMPLES || nameless;
        } else if self.pidfd.is_none() {
            // There is no pidfd, for want of descriptors or because several pids match.
            self.find();
        }
    }

    /// Returns whether a process has held and been granted the same for [`IDLE_SAMPLES`].
    pub(crate) fn idles(&mut self, held: [i64; 2]) -> bool {
        let samples = if held == self.held.0 { self.held.1 + 1 } else { 0 };
        self.held = (held, samples);
        samples >= IDLE_SAMPLES
    }

    /// Returns the pages by which the kernel's count of an idle process may be too low. They are counted once.
    pub(crate) fn uncounted(&mut self, counted: u64, inexact: i64) -> i64 {
        if self.held.1 == IDLE_SAMPLES {
            let found = procfs::counted_anonymous(&self.pid.to_string());
            self.uncounted = found.map(|pages| (pages as i64 - counted as i64).max(0));
        }
        self.uncounted.unwrap_or(inexact)
    }

    /// Counts the samples in which a process does not answer, and stops asking it. An engine that answers again says
    /// so.
    pub(crate) fn listen(&mut self, slot: ProcessSlot) {
        let asked = slot.get(Field::Asked);
        let samples = if asked > 0 && asked == self.asked.0 { self.asked.1 + 1 } else { 0 };
        self.asked = (asked, samples);
        if samples > DEAF_SAMPLES {
            slot.set(Field::Listens, 0);
        }
    }
}

fn pidfd(pid: u32) -> Result<OwnedFd, Errno> {
    let pidfd = pidfd_open(Pid::from_raw(pid as i32).ok_or(Errno::SRCH)?, PidfdFlags::empty())?;
    // Some descriptors are left for reading `/proc`.
    if pidfd.as_raw_fd() as u64 + FREE_FDS > fds_max() { Err(Errno::MFILE) } else { Ok(pidfd) }
}

fn statm(pid: u32) -> Result<OwnedFd, Errno> {
    let statm = open(format!("/proc/{pid}/statm"), OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
    // It saves work only: half of the descriptors are left for pidfds.
    if statm.as_raw_fd() as u64 > fds_max() / 2 { Err(Errno::MFILE) } else { Ok(statm) }
}

/// Returns the number of descriptors that this process may have.
fn fds_max() -> u64 {
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}
