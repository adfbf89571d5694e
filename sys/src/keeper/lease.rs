//! Leases: who opens a file waits until its lease has ended, and the keeper is told beforehand (fcntl(2), `F_SETLEASE`).
//!
//! A write lease is granted only where no other open file description of the file exists. O_PATH descriptors are none,
//! and neither wait nor count.

use rustix::io::Errno;
use std::ffi::c_int;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

const F_SETOWN_EX: c_int = 15;
const F_OWNER_TID: c_int = 0;

/// `struct f_owner_ex`.
#[repr(C)]
struct Owner {
    kind: c_int,
    id: libc::pid_t,
}

fn last_error() -> Errno {
    // SAFETY: the location is the calling thread's own.
    Errno::from_raw_os_error(unsafe { *libc::__errno_location() })
}

fn control(fd: BorrowedFd<'_>, command: c_int, argument: c_int) -> Result<c_int, Errno> {
    // SAFETY: no memory is passed.
    let result = unsafe { libc::fcntl(fd.as_raw_fd(), command, argument) };
    if result < 0 { Err(last_error()) } else { Ok(result) }
}

/// Takes a lease. SIGIO comes to the calling thread when somebody opens or truncates the file.
///
/// # Errors
/// AGAIN if somebody else has it open; ACCESS if it is another user's, and CAP_LEASE is missing; what the file system
/// says.
pub(super) fn take(fd: impl AsFd) -> Result<(), Errno> {
    control(fd.as_fd(), libc::F_SETLEASE, libc::F_WRLCK)?;
    // The process as such would be found by a thread that does not block the signal, and end by it.
    let owner = Owner { kind: F_OWNER_TID, id: rustix::thread::gettid().as_raw_nonzero().get() };
    // SAFETY: the kernel reads one structure.
    let result = unsafe { libc::fcntl(fd.as_fd().as_raw_fd(), F_SETOWN_EX, &raw const owner) };
    if result < 0 { Err(last_error()) } else { Ok(()) }
}

/// Ends a lease: whoever waits to open the file goes on.
pub(super) fn end(fd: impl AsFd) {
    let _ = control(fd.as_fd(), libc::F_SETLEASE, libc::F_UNLCK);
}

/// Whether nobody waits to open the file.
pub(super) fn holds(fd: impl AsFd) -> bool {
    control(fd.as_fd(), libc::F_GETLEASE, 0) == Ok(libc::F_WRLCK)
}

/// A descriptor that can be read when a lease is to end.
#[derive(Debug)]
pub struct Breaks(OwnedFd);

impl Breaks {
    /// Blocks SIGIO in this thread, which is to take the leases, and returns the descriptor.
    ///
    /// # Errors
    /// There is no descriptor.
    pub fn watch() -> Result<Self, Errno> {
        // SAFETY: the set is initialised before it is used, and nothing else is passed.
        let fd = unsafe {
            let mut signals: libc::sigset_t = std::mem::zeroed();
            libc::sigemptyset(&raw mut signals);
            libc::sigaddset(&raw mut signals, libc::SIGIO);
            libc::pthread_sigmask(libc::SIG_BLOCK, &raw const signals, std::ptr::null_mut());
            libc::signalfd(-1, &raw const signals, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK)
        };
        if fd < 0 {
            return Err(last_error());
        }
        // SAFETY: the call has returned a new descriptor.
        Ok(Self(unsafe { std::os::fd::FromRawFd::from_raw_fd(fd) }))
    }

    /// Forgets what has come so far.
    pub fn clear(&self) {
        let mut read = [0; 128];
        while rustix::io::read(&self.0, &mut read).is_ok_and(|length| length > 0) {}
    }
}

impl AsFd for Breaks {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{Mode, OFlags};
    use std::sync::mpsc;
    use std::time::Duration;

    #[test]
    fn who_opens_a_file_waits_for_its_lease_to_end() {
        let memfd = rustix::fs::memfd_create("leased", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        let path = format!("/proc/self/fd/{}", memfd.as_raw_fd());
        let open = |path: &str, flags| rustix::fs::open(path, flags | OFlags::CLOEXEC, Mode::empty());
        let (one, other) = (open(&path, OFlags::RDWR).unwrap(), open(&path, OFlags::RDONLY).unwrap());
        assert_eq!(take(&one), Err(Errno::AGAIN), "somebody else has it open");
        drop(other);
        let breaks = Breaks::watch().unwrap();
        take(&one).unwrap();
        let front = open(&path, OFlags::PATH).unwrap();
        assert!(holds(&one), "O_PATH opens nothing");
        let (sent, opened) = mpsc::channel();
        let opener = std::thread::spawn(move || {
            let file = rustix::fs::open(
                format!("/proc/self/fd/{}", front.as_raw_fd()),
                OFlags::RDONLY,
                Mode::empty(),
            );
            sent.send(file.is_ok()).unwrap();
        });
        let mut polled = [rustix::event::PollFd::new(&breaks, rustix::event::PollFlags::IN)];
        assert_eq!(rustix::event::poll(&mut polled, None), Ok(1));
        breaks.clear();
        assert!(!holds(&one));
        assert!(opened.recv_timeout(Duration::from_millis(50)).is_err(), "it waits");
        end(&one);
        assert!(opened.recv().unwrap());
        opener.join().unwrap();
    }
}
