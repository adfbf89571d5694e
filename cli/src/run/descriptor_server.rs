//! Server of descriptors for processes of the run that cannot open files themselves: the group page, the swap file,
//! the trace, userfaultfd.
//!
//! A process that has given up its privileges, or is in another root, has no access to `/proc/LAUNCHER/fd`. It asks
//! at a socket ([`pagetide_sys::handout`]). The kernel names the process that connected; it gets descriptors if it
//! descends from the launcher, to which orphans of the run come back. Others get nothing, and no secret is needed.

use crate::handout_server::{Giver, Server};
use crate::keeper::link::KeeperLink;
use crate::processes::tree;
use pagetide_sys::handout::{self, Address, Thing};
use pagetide_sys::procfs::{self, Stat};
use pagetide_sys::uffd::DEVICE;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::fs;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

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
    /// The ring of the remote tier, if there is one.
    pub(crate) ring: Option<OwnedFd>,
    /// The trace, if there is one.
    pub(crate) trace: Option<OwnedFd>,
    /// The device that makes userfaultfds, if the broker gave it.
    pub(crate) device: Option<OwnedFd>,
}

/// A connected process of the run.
#[derive(Debug)]
struct Member {
    pid: u32,
    process: OwnedFd,
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
        let giver = RunGiver { descriptors, keeper, launcher };
        let serve = move || Server::new(giver).serve(&listeners, None);
        let thread = std::thread::Builder::new().name("pagetide-handout".into()).stack_size(STACK);
        // Without the thread the sockets are closed, and connections to them fail.
        thread.spawn(serve).ok().and(place)
    }
}

/// Gives to the processes that descend from the launcher.
struct RunGiver {
    descriptors: Descriptors,
    keeper: KeeperLink,
    launcher: u32,
}

impl Giver for RunGiver {
    type Peer = Member;

    fn admit(&self, socket: &OwnedFd) -> Option<(u32, Member)> {
        self.member(socket).map(|member| (member.pid, member))
    }

    fn give(&mut self, thing: Thing, to: &Member) -> Result<OwnedFd, Errno> {
        match thing {
            Thing::Keeper => self.keeper.connect(to.pid),
            _ => self.descriptors.give(thing, to),
        }
    }
}

impl RunGiver {
    /// Returns the process that connected, if it is of the run.
    fn member(&self, socket: &OwnedFd) -> Option<Member> {
        let pid = handout::peer_pid(socket)?;
        let process = handout::peer_pidfd(socket).or_else(|_| {
            // Before Linux 6.5.
            pidfd_open(Pid::from_raw(pid as i32).ok_or(Errno::SRCH)?, PidfdFlags::empty())
        });
        let process = process.ok()?;
        // If it still lives, the pid was its own all the while.
        (tree::descends(pid, self.launcher) && lives(&process)).then_some(Member { pid, process })
    }
}

impl Descriptors {
    /// Opens a file anew, so that it shares neither position nor flags with others.
    fn give(&self, thing: Thing, to: &Member) -> Result<OwnedFd, Errno> {
        let open = |path: &str, flags| rustix::fs::open(path, flags | OFlags::CLOEXEC, Mode::empty());
        let again = |file: &Option<OwnedFd>, flags| {
            let number = file.as_ref().ok_or(Errno::NOENT)?.as_raw_fd();
            open(&format!("/proc/self/fd/{number}"), flags)
        };
        let of = |to: &Member, name: &str| {
            let process = format!("/proc/{}", to.pid);
            let open = |task: &str| open(&format!("{task}/{name}"), OFlags::RDONLY);
            // A first thread that has ended shows no memory of its process, though older kernels open its files.
            let file = match Stat::of(to.pid).is_some_and(|stat| stat.state == b'Z') {
                false => open(&process)?,
                true => {
                    let first = format!("/task/{}", to.pid);
                    let mut others = procfs::tasks(&process).filter(|task| !task.ends_with(&first));
                    others.find_map(|task| open(&task).ok()).ok_or(Errno::SRCH)?
                }
            };
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
            Thing::RemoteRing => again(&self.ring, OFlags::RDWR),
            Thing::Trace => again(&self.trace, OFlags::WRONLY | OFlags::APPEND),
            Thing::Userfaultfd => match &self.device {
                Some(device) => rustix::io::fcntl_dupfd_cloexec(device, 0),
                None => open(DEVICE, OFlags::RDWR),
            },
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
        let giver = RunGiver {
            descriptors: Descriptors {
                group: zero.into(),
                swap: None,
                ring: None,
                trace: None,
                device: None,
            },
            keeper: KeeperLink::none(),
            launcher: std::process::id(),
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
        assert!(giver.member(&socket).is_none());
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
