//! Descriptors that one process hands out to others, over a socket: how they are asked for, and how they come.
//!
//! ```text
//! ask     │ magic │ version │ thing │
//! answer  │ magic │ version │ error │   and, with error 0, one descriptor (SCM_RIGHTS)
//! ```
//!
//! A connection (`SOCK_SEQPACKET`: a message is whole or not there) carries one question and one answer. The socket has
//! two names: a path, which is found from every network namespace, and an abstract name, which is found from every
//! root. Who hands out must find out whom it talks to by the socket (`SO_PEERPIDFD`, `SO_PEERCRED`), not by what is said.
//!
//! Two hand out: the launcher of a run, to its processes ([`ask`]); and the broker of a machine, to users who may have
//! `/dev/userfaultfd` ([`Question`]). The broker has a path only.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
};
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::Duration;

const MAGIC: [u8; 8] = *b"pagetide";
const VERSION: u32 = 1;
/// Bytes of a message.
const LENGTH: usize = 16;

pagetide_page::numbered_enum! {
    /// A thing of which a descriptor can be handed out.
    pub enum Thing: u32 {
        /// The group page.
        GroupPage = 1,
        /// The swap file, with a position and flags of its own.
        SwapFile = 2,
        /// The trace, to append.
        Trace = 3,
        /// The device that makes userfaultfds. Whoever has it may make one, with all rights.
        Userfaultfd = 4,
        /// The page tables of whoever asks.
        Pagemap = 5,
        /// The mappings of whoever asks.
        Maps = 6,
        /// A connection to the keeper of the run's shared memory, see [`crate::keeper::wire`].
        Keeper = 7,
        /// The ring by which the remote tier is asked.
        RemoteRing = 8,
    }
}

/// The address of a process that hands out descriptors.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Address {
    /// The path, if there is a place for one.
    pub path: Option<PathBuf>,
    /// The abstract name.
    pub name: String,
}

impl Address {
    /// Reads an address from its text, as [`Address`] is displayed.
    ///
    /// ```
    /// use pagetide_sys::handout::Address;
    ///
    /// let address = Address::parse("/run/pagetide-7/socket");
    /// assert_eq!(address.name, "pagetide-7");
    /// assert_eq!(Address::parse("@pagetide-7").path, None);
    /// ```
    pub fn parse(text: &str) -> Self {
        match text.strip_prefix('@') {
            Some(name) => Self { path: None, name: name.into() },
            None => Self { path: Some(text.into()), name: Self::name_of(Path::new(text)) },
        }
    }

    /// The abstract name that goes with a path: that of its directory.
    fn name_of(path: &Path) -> String {
        let directory = path.parent().and_then(Path::file_name).unwrap_or_default();
        directory.to_string_lossy().into_owned()
    }
}

impl std::fmt::Display for Address {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.path {
            Some(path) => write!(f, "{}", path.display()),
            None => write!(f, "@{}", self.name),
        }
    }
}

fn encode(number: u32) -> [u8; LENGTH] {
    let mut bytes = [0; LENGTH];
    bytes[..8].copy_from_slice(&MAGIC);
    bytes[8..12].copy_from_slice(&VERSION.to_le_bytes());
    bytes[12..].copy_from_slice(&number.to_le_bytes());
    bytes
}

/// The number in a message, if it is one of ours.
fn decode(bytes: &[u8]) -> Option<u32> {
    let number = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"));
    (bytes.len() == LENGTH && bytes[..8] == MAGIC && number(8) == VERSION).then(|| number(12))
}

fn socket(flags: SocketFlags) -> Result<OwnedFd, Errno> {
    rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC | flags, None)
}

/// Sockets that wait for whoever asks at an address: for its path, if it has one, and its abstract name.
///
/// # Errors
/// ADDRINUSE if a name is taken; another error if a socket cannot be made or bound.
pub fn listen(address: &Address) -> Result<Vec<OwnedFd>, Errno> {
    let names = address.path.as_deref().map(SocketAddrUnix::new).into_iter();
    names
        .chain([SocketAddrUnix::new_abstract_name(address.name.as_bytes())])
        .map(|name| bind(&name?))
        .collect()
}

/// A socket that waits for whoever asks at a path.
///
/// # Errors
/// ADDRINUSE if there is a file of that name; NAMETOOLONG; another error if the socket cannot be made or bound.
pub fn listen_at(path: &Path) -> Result<OwnedFd, Errno> {
    bind(&SocketAddrUnix::new(path)?)
}

fn bind(name: &SocketAddrUnix) -> Result<OwnedFd, Errno> {
    // A queue that is full makes whoever comes wait; it takes nothing.
    const QUEUE: i32 = 1024;
    let socket = socket(SocketFlags::NONBLOCK)?;
    rustix::net::bind(&socket, name)?;
    rustix::net::listen(&socket, QUEUE)?;
    Ok(socket)
}

/// Takes the next connection at such a socket, without waiting.
///
/// # Errors
/// AGAIN if no process has connected.
pub fn accept(listener: impl AsFd) -> Result<OwnedFd, Errno> {
    rustix::net::accept_with(listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK)
}

/// Receives what a connection asks for, without waiting.
///
/// # Errors
/// AGAIN if the process has not asked yet; BADMSG if it asks for a thing that is not known; CONNRESET if it has closed
/// the connection.
pub fn asked(connection: impl AsFd) -> Result<Thing, Errno> {
    let mut bytes = [0; LENGTH + 1];
    let (_, length) = rustix::net::recv(connection, &mut bytes[..], RecvFlags::DONTWAIT)?;
    if length == 0 {
        return Err(Errno::CONNRESET);
    }
    let number = decode(&bytes[..length.min(bytes.len())]).ok_or(Errno::BADMSG)?;
    Thing::from_bits(number).ok_or(Errno::BADMSG)
}

/// Answers a connection, without waiting.
///
/// # Errors
/// It does not take the answer.
pub fn answer(connection: impl AsFd, given: Result<BorrowedFd<'_>, Errno>) -> Result<(), Errno> {
    let bytes = encode(given.err().map_or(0, |error| error.raw_os_error() as u32));
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let descriptors = given.map(|fd| [fd]);
    if let Ok(descriptors) = &descriptors {
        control.push(SendAncillaryMessage::ScmRights(descriptors));
    }
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    rustix::net::sendmsg(connection, &[IoSlice::new(&bytes)], &mut control, flags).map(drop)
}

/// The address where this process asks, and the pid of the process that hands out there.
static GIVER: OnceLock<(Address, u32)> = OnceLock::new();

/// Remembers where this process can ask, and who hands out there.
pub fn remember(address: Address, pid: u32) {
    let _ = GIVER.set((address, pid));
}

/// Asks for a thing, and waits for it: as long as whoever hands out lives.
///
/// # Errors
/// NOENT if no launcher was named; the error of connecting to it; the error that it answers.
pub fn ask(thing: Thing) -> Result<OwnedFd, Errno> {
    let (address, pid) = GIVER.get().ok_or(Errno::NOENT)?;
    let connection = connect(address, *pid)?;
    send_question(&connection, thing)?;
    receive_answer(&connection)
}

/// A question put to whoever hands out at a path; it waits for its answer.
#[derive(Debug)]
pub struct Question(OwnedFd);

impl Question {
    /// Connects to whoever hands out at `path`, and asks for `thing`.
    ///
    /// # Errors
    /// NOENT or CONNREFUSED if nobody listens there; ACCESS if this user may not connect; NAMETOOLONG.
    pub fn ask(path: &Path, thing: Thing) -> Result<Self, Errno> {
        let connection = socket(SocketFlags::empty())?;
        let name = SocketAddrUnix::new(path)?;
        rustix::io::retry_on_intr(|| rustix::net::connect(&connection, &name))?;
        send_question(&connection, thing)?;
        Ok(Self(connection))
    }

    /// Returns whether the answer has come, after waiting for it for at most `timeout`.
    pub fn is_answered(&self, timeout: Duration) -> bool {
        let timeout = Timespec { tv_sec: timeout.as_secs() as i64, tv_nsec: timeout.subsec_nanos().into() };
        let wait = || poll(&mut [PollFd::new(&self.0, PollFlags::IN)], Some(&timeout));
        rustix::io::retry_on_intr(wait).is_ok_and(|ready| ready > 0)
    }

    /// Waits for the answer.
    ///
    /// # Errors
    /// CONNRESET if whoever hands out has ended or closed the connection; the error that it answers.
    pub fn answer(self) -> Result<OwnedFd, Errno> {
        receive_answer(&self.0)
    }
}

fn send_question(connection: &OwnedFd, thing: Thing) -> Result<(), Errno> {
    let request = encode(thing.to_bits());
    rustix::io::retry_on_intr(|| rustix::net::send(connection, &request, SendFlags::NOSIGNAL)).map(drop)
}

fn receive_answer(connection: &OwnedFd) -> Result<OwnedFd, Errno> {
    let mut bytes = [0; LENGTH + 1];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let received = rustix::io::retry_on_intr(|| {
        let mut buffers = [IoSliceMut::new(&mut bytes)];
        rustix::net::recvmsg(connection, &mut buffers, &mut control, RecvFlags::CMSG_CLOEXEC)
    })?;
    match decode(&bytes[..received.bytes.min(LENGTH + 1)]) {
        // It has ended, or says what is none of ours.
        None => Err(Errno::CONNRESET),
        Some(0) => {
            let mut descriptors = control.drain().filter_map(|message| match message {
                RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
                _ => None,
            });
            descriptors.next().ok_or(Errno::BADMSG)
        }
        Some(error) => Err(Errno::from_raw_os_error(error as i32)),
    }
}

/// Returns whether somebody hands out where this process asks. False also where no name of the socket leads there: from
/// another root and another network namespace at once.
pub fn is_there() -> bool {
    GIVER.get().is_some_and(|(address, pid)| connect(address, *pid).is_ok())
}

/// A connection to whoever hands out.
fn connect(address: &Address, pid: u32) -> Result<OwnedFd, Errno> {
    let connect = |name: SocketAddrUnix| {
        let socket = socket(SocketFlags::empty())?;
        rustix::io::retry_on_intr(|| rustix::net::connect(&socket, &name))?;
        Ok(socket)
    };
    if let Some(path) = &address.path
        && let Ok(socket) = SocketAddrUnix::new(path.as_path()).and_then(connect)
    {
        return Ok(socket);
    }
    let socket = connect(SocketAddrUnix::new_abstract_name(address.name.as_bytes())?)?;
    // In another network namespace that name is anybody's. (From another pid namespace whoever listens cannot be told.)
    let listens = peer_pid(&socket);
    if listens.is_some_and(|listens| listens != pid) { Err(Errno::CONNREFUSED) } else { Ok(socket) }
}

/// The pid of whoever is at the other end of a socket, if it is seen here.
pub fn peer_pid(socket: impl AsFd) -> Option<u32> {
    peer(socket).ok().map(|credentials| credentials.pid as u32).filter(|&pid| pid > 0)
}

/// The user of whoever is at the other end of a socket, as it was when it connected, in this user namespace: the
/// overflow user (65534) if it has none here.
///
/// # Errors
/// NOTSOCK, if `socket` is none.
pub fn peer_user(socket: impl AsFd) -> Result<u32, Errno> {
    peer(socket).map(|credentials| credentials.uid)
}

fn peer(socket: impl AsFd) -> Result<libc::ucred, Errno> {
    use std::os::fd::AsRawFd;
    let mut credentials = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut length = size_of::<libc::ucred>() as libc::socklen_t;
    let arguments = (libc::SOL_SOCKET, libc::SO_PEERCRED);
    // SAFETY: the kernel fills a structure of that length. (`rustix` has a type for it in which no pid can be 0.)
    let result = unsafe {
        libc::syscall(
            libc::SYS_getsockopt,
            socket.as_fd().as_raw_fd(),
            arguments.0,
            arguments.1,
            &raw mut credentials,
            &raw mut length,
        )
    };
    if result == 0 { Ok(credentials) } else { Err(crate::mapping::last_errno()) }
}

/// The sockets that a service manager has opened for this process
/// ([sd_listen_fds(3)](https://man7.org/linux/man-pages/man3/sd_listen_fds.3.html)): `LISTEN_FDS` descriptors from 3 on,
/// if `LISTEN_PID` is this process. Returns duplicates, close-on-exec and non-blocking.
///
/// # Errors
/// BADF if a number is none of an open descriptor; NOTSOCK if one is no socket; OPNOTSUPP if one does not listen for
/// connections that keep messages apart; INVAL if a variable is no number.
pub fn inherited_listeners() -> Result<Vec<OwnedFd>, Errno> {
    const FIRST: i32 = 3;
    const MOST: i32 = 16;
    let number = |name: &str| match std::env::var(name) {
        Ok(text) => text.parse::<i32>().map(Some).map_err(|_| Errno::INVAL),
        Err(_) => Ok(None),
    };
    if number("LISTEN_PID")? != Some(std::process::id() as i32) {
        return Ok(Vec::new());
    }
    let count = number("LISTEN_FDS")?.unwrap_or(0);
    if !(0..=MOST).contains(&count) {
        return Err(Errno::INVAL);
    }
    let duplicate = |number: i32| {
        // SAFETY: the borrow ends here, and the calls below change nothing of a descriptor that is somebody else's: what is
        // no listening socket is refused before its flags are set.
        let inherited = unsafe { BorrowedFd::borrow_raw(number) };
        if rustix::net::sockopt::socket_type(inherited)? != SocketType::SEQPACKET
            || !rustix::net::sockopt::socket_acceptconn(inherited)?
        {
            return Err(Errno::OPNOTSUPP);
        }
        let flags = rustix::fs::fcntl_getfl(inherited)?;
        rustix::fs::fcntl_setfl(inherited, flags | rustix::fs::OFlags::NONBLOCK)?;
        rustix::io::fcntl_dupfd_cloexec(inherited, FIRST)
    };
    (FIRST..FIRST + count).map(duplicate).collect()
}

/// A descriptor of the process at the other end of a socket, as it was when it connected.
///
/// # Errors
/// NOPROTOOPT before Linux 6.5.
pub fn peer_pidfd(socket: impl AsFd) -> Result<OwnedFd, Errno> {
    use std::os::fd::{AsRawFd, FromRawFd};
    const SO_PEERPIDFD: libc::c_int = 77;
    let mut pidfd: libc::c_int = -1;
    let mut length = size_of::<libc::c_int>() as libc::socklen_t;
    let socket = socket.as_fd().as_raw_fd();
    // SAFETY: the kernel fills an integer of that length.
    let result = unsafe {
        libc::syscall(
            libc::SYS_getsockopt,
            socket,
            libc::SOL_SOCKET,
            SO_PEERPIDFD,
            &raw mut pidfd,
            &raw mut length,
        )
    };
    if result != 0 || pidfd < 0 {
        return Err(if result != 0 { crate::mapping::last_errno() } else { Errno::NOPROTOOPT });
    }
    // SAFETY: the descriptor is new, and nobody else's.
    Ok(unsafe { OwnedFd::from_raw_fd(pidfd) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_what_it_says() {
        for (text, path, name) in [
            ("/tmp/pagetide-7/socket", Some("/tmp/pagetide-7/socket"), "pagetide-7"),
            ("@pagetide-8", None, "pagetide-8"),
        ] {
            let address = Address::parse(text);
            assert_eq!((address.path.clone(), &*address.name), (path.map(PathBuf::from), name));
            assert_eq!(address.to_string(), text);
        }
    }

    #[test]
    fn what_is_asked_for_is_handed_out_or_refused_and_nonsense_is_neither() {
        let name = format!("pagetide-test-{:016x}", crate::random::words()[0]);
        let address = Address { path: None, name };
        let listeners = listen(&address).unwrap();
        assert_eq!(accept(&listeners[0]).err(), Some(Errno::AGAIN));
        remember(address.clone(), std::process::id());
        let asker = std::thread::spawn(|| [Thing::SwapFile, Thing::Trace].map(ask));
        let file = std::fs::File::open("/dev/zero").unwrap();
        for (thing, given) in [(Thing::SwapFile, Ok(file.as_fd())), (Thing::Trace, Err(Errno::NOSPC))] {
            let connection = loop {
                if let Ok(connection) = accept(&listeners[0]) {
                    break connection;
                }
                std::thread::yield_now();
            };
            assert_eq!(peer_pid(&connection), Some(std::process::id()));
            let asked = loop {
                match asked(&connection) {
                    Err(Errno::AGAIN) => std::thread::yield_now(),
                    other => break other,
                }
            };
            assert_eq!(asked, Ok(thing));
            answer(&connection, given).unwrap();
        }
        let [zero, refused] = asker.join().unwrap();
        let mut byte = [1];
        rustix::io::read(zero.unwrap(), &mut byte).unwrap();
        assert_eq!((byte, refused.err()), ([0], Some(Errno::NOSPC)));
        let other = connect(&address, std::process::id()).unwrap();
        rustix::net::send(&other, b"nonsense", SendFlags::empty()).unwrap();
        assert_eq!(asked(accept(&listeners[0]).unwrap()), Err(Errno::BADMSG));
        assert!(connect(&address, 1).is_err(), "somebody else listens there");
        assert!(is_there());
        drop(listeners);
        // What other tests start holds it, too, until its exec.
        while is_there() {
            std::thread::yield_now();
        }
    }
}
