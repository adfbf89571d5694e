//! What the sampler knows of the process that has a slot: whether it lives, answers, or idles.

use crate::processes::tree;
use pagetide::group::{Field, ProcessSlot};
use pagetide_sys::procfs::{self, Identity};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Resource, getrlimit, pidfd_open};
use std::os::fd::{AsRawFd, OwnedFd};

/// Descriptors that are not spent on pidfds.
const FREE_FDS: u64 = 8;
/// Samples in a row in which a process has given nothing of what it was asked for, after which nobody counts on it: it
/// is stopped, or another program by now, without an engine.
pub(crate) const DEAF_SAMPLES: u32 = 100;
/// Samples in a row in which a small process without an engine takes nothing, after which only what it holds is
/// charged.
const IDLE_SAMPLES: u32 = 5;
/// A fork is done after so many samples, or never will be. Samples, not time: a run may be stopped in a fork.
pub(crate) const FORK_SAMPLES: u32 = 250;
/// The same where nobody knows whose fork it is: making room for the child may take a slow disk a while,
/// and a slot that is released too early is worse than one that is lost.
const NAMELESS_FORK_SAMPLES: u32 = 3000;

/// What tells when a slot's process dies.
#[derive(Debug)]
pub(crate) struct Watch {
    pub(crate) process: Identity,
    /// An exec makes the same process another tenant.
    pub(crate) tenant: u64,
    /// As it is called here; 0 if that is not known.
    pub(crate) pid: u32,
    /// Samples that a fork has been under way, and of them those since whoever forked is dead.
    pub(crate) samples: u32,
    pub(crate) samples_dead: u32,
    pub(crate) pidfd: Option<OwnedFd>,
    pub(crate) gone: bool,
    pub(crate) memory: procfs::Watched,
    /// What it was asked for, and the samples since that has changed.
    pub(crate) asked: (u64, u32),
    /// What it held and was granted, and the samples since that has changed.
    pub(crate) held: ([i64; 2], u32),
    /// By how much it holds more than the kernel's count says, once it idles, if that can be told.
    pub(crate) uncounted: Option<i64>,
}

impl Watch {
    pub(crate) fn new(slot: ProcessSlot) -> Self {
        let process = slot.process();
        let mut this = Self {
            process,
            tenant: slot.tenant(),
            pid: 0,
            samples: 0,
            samples_dead: 0,
            pidfd: None,
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

    /// Finds out what the process is called here, and whether it lives. A slot can name anybody: only a process that
    /// descends from the launcher is looked at, and sent signals.
    fn find(&mut self) {
        let Ok(found) = self.process.pids() else { return };
        self.gone = found.is_empty();
        if let [pid] = found[..]
            && tree::descends(pid, std::process::id())
        {
            self.pid = pid;
            self.pidfd = pidfd(pid).ok();
            // Of whom is that pidfd? The pid may have been used again before it was opened.
            if self.pidfd.is_some() && self.process.pids().as_deref() != Ok(&found) {
                self.pidfd = None;
            }
        }
    }

    /// Whether it is the process that is called so here; also once that is dead.
    pub(crate) fn is(&self, pid: u32) -> bool {
        let here = || Identity::own().namespace == self.process.namespace;
        pid != 0 && (self.pid == pid || self.process.pid == pid && here())
    }

    /// Looks again, where no pidfd tells.
    pub(crate) fn look(&mut self, nobody_forks: bool) {
        if self.process.start_time == 0 {
            self.samples += 1;
            let forks = self.process.pid == 0;
            let dead =
                if forks { nobody_forks } else { self.process.pids().is_ok_and(|pids| pids.is_empty()) };
            self.samples_dead = if dead { self.samples_dead + 1 } else { 0 };
            let nameless = forks && self.samples > NAMELESS_FORK_SAMPLES;
            self.gone = self.samples_dead > FORK_SAMPLES || nameless;
        } else if self.pidfd.is_none() {
            // No pidfd tells, for want of descriptors or because it may be several.
            self.find();
        }
    }

    /// Whether a process has held and been granted the same for a while.
    pub(crate) fn idles(&mut self, held: [i64; 2]) -> bool {
        let samples = if held == self.held.0 { self.held.1 + 1 } else { 0 };
        self.held = (held, samples);
        samples >= IDLE_SAMPLES
    }

    /// By how much a process that idles may hold more than the kernel's count says. It is counted but once.
    pub(crate) fn uncounted(&mut self, counted: u64, inexact: i64) -> i64 {
        if self.held.1 == IDLE_SAMPLES {
            let found = procfs::counted_anonymous(self.pid);
            self.uncounted = found.map(|pages| (pages as i64 - counted as i64).max(0));
        }
        self.uncounted.unwrap_or(inexact)
    }

    /// Notes that a process does not answer. An engine that does says so anew.
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
    let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    // Some are left for looking at `/proc`.
    if pidfd.as_raw_fd() as u64 + FREE_FDS > limit { Err(Errno::MFILE) } else { Ok(pidfd) }
}
