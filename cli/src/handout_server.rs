//! The loop that hands out descriptors at a socket: to the processes of a run, or to users of a machine.
//!
//! Whoever connects is named by the kernel; what he gets a [`Giver`] decides. A peer that sends nothing, or never reads,
//! takes one of a limited number of connections, of which each party may have some. The loop waits at `poll` only.

use pagetide_sys::handout::{self, Thing};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use std::collections::HashMap;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

/// The most open connections, and the most of one party.
const CONNECTIONS_MAX: usize = 64;
const OF_ONE_MAX: usize = 4;
/// Connections accepted in a row before open ones are served again.
const ACCEPTED_MAX: usize = 16;
/// Pause when no descriptor is left for another connection.
const PAUSE: Duration = Duration::from_millis(10);

/// Decides who gets what.
pub(crate) trait Giver {
    /// What is known of a peer.
    type Peer;

    /// Returns the party that a new connection is counted for, and what is known of the peer; `None` if it is closed
    /// without an answer.
    fn admit(&self, socket: &OwnedFd) -> Option<(u32, Self::Peer)>;

    /// Returns a descriptor of `thing` for `peer`, or the error that it is answered.
    fn give(&mut self, thing: Thing, peer: &Self::Peer) -> Result<OwnedFd, Errno>;
}

/// A connected peer.
#[derive(Debug)]
struct Connection<P> {
    socket: OwnedFd,
    party: u32,
    peer: P,
    answered: bool,
}

/// Hands out what its giver gives.
#[derive(Debug)]
pub(crate) struct Server<G: Giver> {
    giver: G,
    open: Vec<Connection<G::Peer>>,
}

impl<G: Giver> Server<G> {
    /// Returns a server to which nobody is connected.
    pub(crate) fn new(giver: G) -> Self {
        Self { giver, open: Vec::new() }
    }

    /// Serves until nobody has been connected for the time `idle`; without one, for ever.
    pub(crate) fn serve(&mut self, listeners: &[OwnedFd], idle: Option<Duration>) {
        let idle = idle.map(|idle| Timespec { tv_sec: idle.as_secs() as i64, tv_nsec: 0 });
        loop {
            let ready: Vec<bool> = {
                let sockets = listeners.iter().chain(self.open.iter().map(|open| &open.socket));
                let mut polled: Vec<_> = sockets.map(|fd| PollFd::new(fd, PollFlags::IN)).collect();
                match poll(&mut polled, idle.as_ref().filter(|_| self.open.is_empty())) {
                    Ok(0) => return,
                    Ok(_) => polled.iter().map(|polled| !polled.revents().is_empty()).collect(),
                    Err(_) => continue,
                }
            };
            let (called, spoke) = ready.split_at(listeners.len());
            let mut spoke = spoke.iter();
            let Self { giver, open } = self;
            open.retain_mut(|open| !spoke.next().is_some_and(|&spoke| spoke) || open.goes_on(giver));
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

    fn admit(&mut self, socket: OwnedFd) {
        let Some((party, peer)) = self.giver.admit(&socket) else { return };
        if self.open.iter().filter(|open| open.party == party).count() >= OF_ONE_MAX {
            return;
        }
        if self.open.len() >= CONNECTIONS_MAX {
            self.drop_one();
        }
        self.open.push(Connection { socket, party, peer, answered: false });
    }

    /// Makes room: the party with the most connections loses its oldest.
    fn drop_one(&mut self) {
        let mut counts = HashMap::<u32, usize>::new();
        self.open.iter().for_each(|open| *counts.entry(open.party).or_default() += 1);
        let oldest =
            self.open.iter().enumerate().max_by_key(|(nth, open)| (counts[&open.party], usize::MAX - nth));
        if let Some((nth, _)) = oldest {
            self.open.remove(nth);
        }
    }
}

impl<P> Connection<P> {
    /// Answers a request. Returns false if the connection is done.
    fn goes_on(&mut self, giver: &mut impl Giver<Peer = P>) -> bool {
        match handout::asked(&self.socket) {
            Ok(thing) if !self.answered => {
                self.answered = true;
                let given = giver.give(thing, &self.peer);
                let given = given.as_ref().map(AsFd::as_fd).map_err(|&error| error);
                handout::answer(&self.socket, given).is_ok()
            }
            Err(Errno::AGAIN | Errno::INTR) => true,
            // The peer has closed, failed, or asks a second time.
            _ => false,
        }
    }
}
