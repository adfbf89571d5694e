//! The launcher's side of the keeper: it starts when the first process asks for it.

use pagetide_sys::keeper::wire::{self, Ask, Message};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use std::ffi::OsString;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// The word after which this program is a keeper. It is not among the commands, for it is not for users.
pub(crate) const COMMAND: &str = "keeper";

/// How the keeper of a run is reached, and started.
#[derive(Debug)]
pub(crate) struct KeeperLink {
    /// The variables by which it finds the run; without any there is no keeper.
    environment: Vec<(String, OsString)>,
    /// The socket on which it is told who comes, once it was started.
    control: Option<OwnedFd>,
    pid: Arc<AtomicU32>,
}

impl KeeperLink {
    /// A link to the keeper of the run that these variables name. It does not run yet.
    pub(crate) fn new(environment: Vec<(String, OsString)>) -> Self {
        Self { environment, control: None, pid: Arc::default() }
    }

    /// A link for a run in which shared memory stays where it is.
    pub(crate) fn none() -> Self {
        Self::new(Vec::new())
    }

    /// Returns where its pid will be; 0 until it was started.
    pub(crate) fn pid(&self) -> Arc<AtomicU32> {
        Arc::clone(&self.pid)
    }

    /// Returns a connection to the keeper for the process `pid`.
    pub(crate) fn connect(&mut self, pid: u32) -> Result<OwnedFd, Errno> {
        if self.environment.is_empty() {
            return Err(Errno::NOENT);
        }
        let (theirs, keepers) = pair()?;
        let control = match &self.control {
            Some(control) => control,
            None => {
                let (ours, control) = pair()?;
                self.start(control)?;
                self.control.insert(ours)
            }
        };
        wire::send(control, &Message::ask(Ask::Admit, [pid.into(), 0, 0, 0]), Some(keepers.as_fd()))?;
        Ok(theirs)
    }

    fn start(&self, control: OwnedFd) -> Result<(), Errno> {
        let own = std::env::current_exe().map_err(|_| Errno::NOENT)?;
        let mut command = Command::new(own);
        command.arg(COMMAND).env_remove("LD_PRELOAD").envs(self.environment.iter().cloned());
        // Of a group of its own: what stops the program at a terminal must not stop who answers its faults.
        command.stdin(control).process_group(0);
        let child = command.spawn().map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::AGAIN))?;
        self.pid.store(child.id(), Relaxed);
        Ok(())
    }
}

fn pair() -> Result<(OwnedFd, OwnedFd), Errno> {
    socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
}
