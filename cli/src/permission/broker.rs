//! `pagetide broker`: hands `/dev/userfaultfd` to members of a group, and nothing else.

use crate::failure::Failure;
use crate::handout_server::{Giver, Server};
use crate::permission::broker_socket::listeners;
use crate::permission::members::{Members, name_of};
use crate::permission::socket;
use pagetide_cli::options::BrokerArgs;
use pagetide_sys::handout::{self, Thing};
use pagetide_sys::task;
use pagetide_sys::uffd::DEVICE;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use std::collections::HashSet;
use std::os::fd::OwnedFd;
use std::time::Duration;

/// A broker that the service manager starts again when somebody connects ends after this time without connections.
const IDLE: Duration = Duration::from_secs(60);
/// Users who are named in the log, each once: others could fill it.
const NAMED_MAX: usize = 1024;

/// Serves until it is ended by a signal; or, if the service manager opened its socket, until nobody has come for a minute.
pub(crate) fn broker(args: &BrokerArgs) -> Result<u8, Failure> {
    open_device().map_err(|error| {
        let error = std::io::Error::from(error);
        format!("cannot open {DEVICE}: {error}. The broker must run as a user who may, as root can")
    })?;
    let members = if args.anyone { Members::Anyone } else { Members::Group(args.group.clone()) };
    let listening = listeners(args.socket.clone().unwrap_or_else(socket))?;
    task::say(&match &members {
        Members::Anyone => format!("{DEVICE} goes to whoever connects to {}", listening.name),
        Members::Group(group) => {
            format!("{DEVICE} goes to members of the group {group}, at {}", listening.name)
        }
    });
    let mut server = Server::new(BrokerGiver { members, named: HashSet::new() });
    server.serve(&listening.sockets, listening.is_inherited.then_some(IDLE));
    Ok(0)
}

/// Opens the device anew, so that no two users share an open file.
fn open_device() -> Result<OwnedFd, Errno> {
    rustix::fs::open(DEVICE, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())
}

/// Gives the device to members.
struct BrokerGiver {
    members: Members,
    named: HashSet<(u32, bool)>,
}

impl BrokerGiver {
    fn tell(&mut self, user: u32, is_member: bool) {
        if self.named.len() < NAMED_MAX && self.named.insert((user, is_member)) {
            let what = if is_member { "gets" } else { "does not get" };
            task::say(&format!("user {} {what} {DEVICE}", name_of(user)));
        }
    }
}

impl Giver for BrokerGiver {
    /// The user, by number.
    type Peer = u32;

    fn admit(&self, socket: &OwnedFd) -> Option<(u32, u32)> {
        handout::peer_user(socket).ok().map(|user| (user, user))
    }

    fn give(&mut self, thing: Thing, user: &u32) -> Result<OwnedFd, Errno> {
        if thing != Thing::Userfaultfd {
            return Err(Errno::ACCESS);
        }
        let is_member = self.members.has(*user)?;
        self.tell(*user, is_member);
        if is_member { open_device() } else { Err(Errno::ACCESS) }
    }
}
