//! The launcher's side of the keeper: it starts when the first process asks for it.

use crate::beside;
use pagetide_sys::keeper::wire::{self, Ask, Message};
use pagetide_sys::lock;
use pagetide_sys::procfs::Stat;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use rustix::process::Pid;
use std::ffi::OsString;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

/// The word after which this program is a keeper. It is not among the commands, for it is not for users.
pub(crate) const COMMAND: &str = "keeper";

/// How the keeper of a run is reached, and started.
#[derive(Debug)]
pub(crate) struct KeeperLink {
    /// The variables by which it finds the run; without any there is no keeper.
    environment: Vec<(String, OsString)>,
    handle: KeeperHandle,
}

/// What the launcher knows of the keeper.
#[derive(Clone, Debug, Default)]
pub(crate) struct KeeperHandle {
    state: Arc<Mutex<State>>,
    pid: Arc<AtomicU32>,
}

#[derive(Debug, Default)]
enum State {
    #[default]
    NotStarted,
    /// With the socket on which it is told who comes.
    Started(OwnedFd),
    /// The run is over: there is no keeper any more, or it ends.
    Over,
}

impl KeeperHandle {
    /// Whether it was started, and has this pid.
    pub(crate) fn is(&self, pid: u32) -> bool {
        pid != 0 && self.pid.load(Relaxed) == pid
    }

    /// Whether it has ended, or is ending: the processes whose memory it had may know that before it can be reaped.
    pub(crate) fn has_ended(&self) -> bool {
        let pid = self.pid.load(Relaxed);
        pid != 0 && Stat::of(pid).is_some_and(|stat| stat.is_exiting || stat.is_dead())
    }

    /// Lets the keeper end as soon as nobody needs it. Returns its pid, if there is one.
    pub(crate) fn let_go(&self) -> Option<Pid> {
        *lock(&self.state) = State::Over;
        Pid::from_raw(self.pid.load(Relaxed) as i32)
    }
}

impl KeeperLink {
    /// A link to the keeper of the run that these variables name. It does not run yet.
    pub(crate) fn new(environment: Vec<(String, OsString)>) -> Self {
        Self { environment, handle: KeeperHandle::default() }
    }

    /// A link for a run in which shared memory stays where it is.
    pub(crate) fn none() -> Self {
        Self::new(Vec::new())
    }

    /// Returns a handle on the keeper.
    pub(crate) fn handle(&self) -> KeeperHandle {
        self.handle.clone()
    }

    /// Returns a connection to the keeper for the process `pid`.
    pub(crate) fn connect(&self, pid: u32) -> Result<OwnedFd, Errno> {
        if self.environment.is_empty() {
            return Err(Errno::NOENT);
        }
        let (theirs, keepers) = pair()?;
        let mut state = lock(&self.handle.state);
        if matches!(*state, State::NotStarted) {
            let (ours, control) = pair()?;
            self.start(control)?;
            *state = State::Started(ours);
        }
        let State::Started(control) = &*state else { return Err(Errno::NOENT) };
        wire::send(control, &Message::ask(Ask::Admit, [pid.into(), 0, 0, 0]), Some(keepers.as_fd()))?;
        Ok(theirs)
    }

    fn start(&self, control: OwnedFd) -> Result<(), Errno> {
        let mut command = beside::command(COMMAND, &self.environment).map_err(|_| Errno::NOENT)?;
        let child = command
            .stdin(control)
            .spawn()
            .map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::AGAIN))?;
        self.handle.pid.store(child.id(), Relaxed);
        Ok(())
    }
}

fn pair() -> Result<(OwnedFd, OwnedFd), Errno> {
    socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
}
