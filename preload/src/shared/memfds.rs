//! The memfds of the program.

use super::fds::{close, reopen, replace, stat};
use rustix::fs::{OFlags, Stat};
use std::ffi::c_int;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

/// memfds of the program that are remembered: the youngest.
const MEMFDS: usize = 1024;

/// The inodes of memfds whose first description, which no lease knows of, was closed at once.
static OWN_MEMFDS: [AtomicU64; MEMFDS] = [const { AtomicU64::new(0) }; MEMFDS];
static OWN_MEMFDS_NEXT: AtomicUsize = AtomicUsize::new(0);

/// Has a new memfd be known by its name in `/proc` alone: a description that was not opened is none that a lease counts.
pub(crate) fn note_memfd(fd: c_int) {
    let Some(stat) = stat(fd) else { return };
    let Ok(opened) = reopen(fd, libc::O_RDWR) else { return };
    let replaced = replace(fd, opened);
    close(opened);
    if replaced.is_ok() {
        let at = OWN_MEMFDS_NEXT.fetch_add(1, Relaxed) % MEMFDS;
        OWN_MEMFDS[at].store(stat.st_ino, Relaxed);
    }
}

/// The device of memfds.
fn device() -> Option<u64> {
    static DEVICE: AtomicU64 = AtomicU64::new(u64::MAX);
    let mut device = DEVICE.load(Relaxed);
    if device == u64::MAX {
        let memfd = rustix::fs::memfd_create(c"pagetide", rustix::fs::MemfdFlags::CLOEXEC).ok()?;
        device = rustix::fs::fstat(&memfd).ok()?.st_dev;
        DEVICE.store(device, Relaxed);
    }
    Some(device)
}

fn is_noted(stat: &Stat) -> bool {
    OWN_MEMFDS.iter().any(|inode| inode.load(Relaxed) == stat.st_ino)
}

/// Whether nobody has a description of a file that a lease would not know of.
pub(super) fn is_leasable(stat: &Stat) -> bool {
    device().is_some_and(|device| stat.st_dev != device || is_noted(stat))
}

/// Sets memory aside in a memfd, as `fallocate` does, without taking any: the file is as long as it has to be, and pages
/// come when they are touched. A heap that is set aside at once and mapped later (Java's ZGC) would pass the cap.
/// Returns false if the call is for the kernel.
pub(crate) fn set_aside(fd: c_int, mode: c_int, offset: i64, length: i64) -> bool {
    let Some(end) = offset.checked_add(length).filter(|_| offset >= 0 && length > 0) else { return false };
    if mode & !libc::FALLOC_FL_KEEP_SIZE != 0 {
        return false;
    }
    let stat = stat(fd)
        .filter(|stat| OWN_MEMFDS_NEXT.load(Relaxed) > 0 && device() == Some(stat.st_dev) && is_noted(stat));
    let is_open = |stat: &Stat| {
        // SAFETY: the descriptor was open just now; a number that is none any more is an error of the call.
        let fd = unsafe { BorrowedFd::borrow_raw(fd) };
        // Those that may not write to it get the kernel's error, as does one that may not make a sealed one longer.
        let may_write = rustix::fs::fcntl_getfl(fd).is_ok_and(|flags| flags.contains(OFlags::RDWR));
        may_write && (end <= stat.st_size || mode != 0 || rustix::fs::ftruncate(fd, end as u64).is_ok())
    };
    stat.as_ref().is_some_and(is_open)
}
