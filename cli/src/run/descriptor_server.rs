//! Server of descriptors for processes of the run that cannot open files themselves: the group page, the swap file,
//! the trace, userfaultfd.
//!
//! A process that has given up its privileges, or is in another root, has no access to `/proc/LAUNCHER/fd`. It asks
//! at a socket ([`pagetide_sys::handout`]). The kernel names the process that connected; it gets descriptors if it
//! descends from the launcher, to which orphans of the run come back. Others get nothing, and no secret is needed.
//!
//! The server is a thread that waits at `poll` only. A peer that sends nothing, or never reads, takes one of a
//! limited number of connections, of which each process may have some.

use crate::keeper::link::KeeperLink;
use crate::processes::tree;
use pagetide_sys::handout::{self, Address, Thing};
use pagetide_sys::uffd::DEVICE;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::collections::HashMap;
use std::fs;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The most open connections, and the most of one process.
const CONNECTIONS_MAX: usize = 64;
const OF_ONE_MAX: usize = 4;
/// Connections accepted in a row before open ones are served again.
const ACCEPTED_MAX: usize = 16;
/// Pause when no descriptor is left for another connection.
const PAUSE: Duration = Duration::from_millis(10);
const STACK: usize = 256 << 10;

/// Sockets of a server that does not run yet. Their path is removed on drop.
#[derive(Debug)]
pub(crate) struct DescriptorServer {
    address: Address,
    listeners: Vec<OwnedFd>,
    place: Option<SocketDirectory>,
}

/// The directory of the socket, removed on drop.
#[derive(Debug)]
pub(crate) struct SocketDirectory(PathBuf);

impl Drop for SocketDirectory {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Descriptors that are handed out.
#[derive(Debug)]
pub(crate) struct Descriptors {
    /// The group page.
    pub(crate) group: OwnedFd,
    /// The swap file, if there is one.
    pub(crate) swap: Option<OwnedFd>,
    /// The trace, if there is one.
    pub(crate) trace: Option<OwnedFd>,
}

/// A connected process.
#[derive(Debug)]
struct Connection {
    socket: OwnedFd,
    pid: u32,
    process: OwnedFd,
    answered: bool,
}

impl DescriptorServer {
    /// Opens the sockets, where that is possible.
    pub(crate) fn new() -> Option<Self> {
        let [a, b, ..] = pagetide_sys::random::words();
        let name = format!("pagetide-{a:016x}{b:08x}", b = b as u32);
        if let Some(descriptor_server) = Self::with_path(&name) {
            return Some(descriptor_server);
        }
        let address = Address { path: None, name };
        let listeners = handout::listen(&address).ok()?;
        Some(Self { address, listeners, place: None })
    }

    /// Opens a socket at a path that every user reaches, in a directory that only this user writes to.
    fn with_path(name: &str) -> Option<Self> {
        const OTHERS_PASS: u32 = 0o001;
        let temporary = std::env::temp_dir();
        let places = [Path::new("/run"), Path::new("/tmp"), Path::new("/var/tmp"), &temporary];
        let passes = |place: &&Path| fs::metadata(place).is_ok_and(|found| found.mode() & OTHERS_PASS != 0);
        let directory = places
            .into_iter()
            .filter(passes)
            .map(|place| place.join(name))
            .find(|directory| fs::DirBuilder::new().mode(0o711).create(directory).is_ok())?;
        let place = SocketDirectory(directory);
        let path = place.0.join("socket");
        let address = Address { path: Some(path.clone()), name: name.into() };
        // Regardless of the umask.
        let open = |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode)).ok();
        open(&place.0, 0o711)?;
        let listeners = handout::listen(&address).ok()?;
        open(&path, 0o666)?;
        Some(Self { address, listeners, place: Some(place) })
    }

    /// Returns the address of the sockets.
    pub(crate) fn address(&self) -> &Address {
        &self.address
    }

    /// Starts the server, for as long as this process lives. Returns the directory of its socket.
    pub(crate) fn start(self, descriptors: Descriptors, keeper: KeeperLink) -> Option<SocketDirectory> {
        let Self { listeners, place, .. } = self;
        let launcher = std::process::id();
        let serve = move || Server { descriptors, keeper, launcher, open: Vec::new() }.serve(&listeners);
        let thread = std::thread::Builder::new().name("pagetide-handout".into()).stack_size(STACK);
        // Without the thread the sockets are closed, and connections to them fail.
        thread.spawn(serve).ok().and(place)
    }
}

struct Server {
    descriptors: Descriptors,
    keeper: KeeperLink,
    launcher: u32,
    open: Vec<Connection>,
}

impl Server {
    fn serve(mut self, listeners: &[OwnedFd]) {
        loop {
            let ready: Vec<bool> = {
                let sockets = listeners.iter().chain(self.open.iter().map(|open| &open.socket));
                let mut polled: Vec<_> = sockets.map(|fd| PollFd::new(fd, PollFlags::IN)).collect();
                if poll(&mut polled, None).is_err() {
                    continue;
                }
                polled.iter().map(|polled| !polled.revents().is_empty()).collect()
            };
            let (called, spoke) = ready.split_at(listeners.len());
            let mut spoke = spoke.iter();
            let Self { descriptors, keeper, open, .. } = &mut self;
            open.retain_mut(|open| {
                !spoke.next().is_some_and(|&spoke| spoke) || open.goes_on(descriptors, keeper)
            });
            for (listener, _) in listeners.iter().zip(called).filter(|&(_, &called)| called) {
                self.accept(listener);
            }
        }
    }

    fn accept(&mut self, listener: &OwnedFd) {
        for _ in 0..ACCEPTED_MAX {
            match handout::accept(listener) {
                Ok(socket) => self.admit(socket),
                Err(Errno::AGAIN | Errno::INTR | Errno::CONNABORTED) => return,
                // No descriptor is left.
                Err(_) if self.open.is_empty() => return std::thread::sleep(PAUSE),
                Err(_) => self.drop_one(),
            }
        }
    }

    /// Keeps a connection of a process of the run.
    fn admit(&mut self, socket: OwnedFd) {
        let Some((pid, process)) = self.member(&socket) else { return };
        if self.open.iter().filter(|open| open.pid == pid).count() >= OF_ONE_MAX {
            return;
        }
        if self.open.len() >= CONNECTIONS_MAX {
            self.drop_one();
        }
        self.open.push(Connection { socket, pid, process, answered: false });
    }

    /// Makes room: the process with the most connections loses its oldest.
    fn drop_one(&mut self) {
        let mut counts = HashMap::<u32, usize>::new();
        self.open.iter().for_each(|open| *counts.entry(open.pid).or_default() += 1);
        let oldest =
            self.open.iter().enumerate().max_by_key(|(nth, open)| (counts[&open.pid], usize::MAX - nth));
        if let Some((nth, _)) = oldest {
            self.open.remove(nth);
        }
    }

    /// Returns the process that connected, if it is of the run.
    fn member(&self, socket: &OwnedFd) -> Option<(u32, OwnedFd)> {
        let pid = handout::peer_pid(socket)?;
        let process = handout::peer_pidfd(socket).or_else(|_| {
            // Before Linux 6.5.
            pidfd_open(Pid::from_raw(pid as i32).ok_or(Errno::SRCH)?, PidfdFlags::empty())
        });
        let process = process.ok()?;
        // If it still lives, the pid was its own all the while.
        (tree::descends(pid, self.launcher) && lives(&process)).then_some((pid, process))
    }
}

impl Connection {
    /// Answers a request. Returns false if the connection is done.
    fn goes_on(&mut self, descriptors: &Descriptors, keeper: &mut KeeperLink) -> bool {
        match handout::asked(&self.socket) {
            Ok(thing) if !self.answered => {
                self.answered = true;
                let given = match thing {
                    Thing::Keeper => keeper.connect(self.pid),
                    _ => descriptors.give(thing, self),
                };
                let given = given.as_ref().map(AsFd::as_fd).map_err(|&error| error);
                handout::answer(&self.socket, given).is_ok()
            }
            Err(Errno::AGAIN | Errno::INTR) => true,
            // The peer has closed, failed, or asks a second time.
            _ => false,
        }
    }
}

impl Descriptors {
    /// Opens a file anew, so that it shares neither position nor flags with others.
    fn give(&self, thing: Thing, to: &Connection) -> Result<OwnedFd, Errno> {
        let open = |path: &str, flags| rustix::fs::open(path, flags | OFlags::CLOEXEC, Mode::empty());
        let again = |file: &Option<OwnedFd>, flags| {
            let number = file.as_ref().ok_or(Errno::NOENT)?.as_raw_fd();
            open(&format!("/proc/self/fd/{number}"), flags)
        };
        let of = |to: &Connection, name: &str| {
            let file = open(&format!("/proc/{}/{name}", to.pid), OFlags::RDONLY)?;
            // Else the pid may be another process's by now.
            if lives(&to.process) { Ok(file) } else { Err(Errno::SRCH) }
        };
        match thing {
            Thing::GroupPage => rustix::io::fcntl_dupfd_cloexec(&self.group, 0),
            Thing::SwapFile => match again(&self.swap, OFlags::RDWR | OFlags::DIRECT) {
                // The file system has no direct transfers.
                Err(Errno::INVAL) => again(&self.swap, OFlags::RDWR),
                other => other,
            },
            Thing::Trace => again(&self.trace, OFlags::WRONLY | OFlags::APPEND),
            Thing::Userfaultfd => open(DEVICE, OFlags::RDWR),
            Thing::Pagemap => of(to, "pagemap"),
            Thing::Maps => of(to, "maps"),
            Thing::Keeper => Err(Errno::NOENT),
        }
    }
}

fn lives(process: &OwnedFd) -> bool {
    let mut polled = [PollFd::new(process, PollFlags::IN)];
    poll(&mut polled, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })) == Ok(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn strangers_get_nothing() {
        let descriptor_server = DescriptorServer::new().unwrap();
        let (_fd, zero) = (0, fs::File::open("/dev/zero").unwrap());
        let server = Server {
            descriptors: Descriptors { group: zero.into(), swap: None, trace: None },
            keeper: KeeperLink::none(),
            launcher: std::process::id(),
            open: Vec::new(),
        };
        // This process is no descendant of itself; nor is whoever is dead.
        handout::remember(descriptor_server.address().clone(), std::process::id());
        let asker = std::thread::spawn(|| handout::ask(Thing::GroupPage).map(drop));
        let socket = loop {
            if let Some(socket) =
                descriptor_server.listeners.iter().find_map(|listener| handout::accept(listener).ok())
            {
                break socket;
            }
        };
        assert!(server.member(&socket).is_none());
        drop(socket);
        assert!(asker.join().unwrap().is_err());
        let child = Command::new("true").spawn().unwrap();
        let process = pidfd_open(Pid::from_raw(child.id() as i32).unwrap(), PidfdFlags::empty()).unwrap();
        let mut child = child;
        child.wait().unwrap();
        assert!(!lives(&process));
        let path = descriptor_server.address().path.clone().unwrap();
        drop(descriptor_server);
        assert!(!path.parent().unwrap().exists());
    }
}
