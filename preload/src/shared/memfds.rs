//! The memfds of the program.

use super::fds::{close, reopen, replace, stat};
use rustix::fs::Stat;
use std::ffi::c_int;
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

/// Whether nobody has a description of a file that a lease would not know of.
pub(super) fn is_leasable(stat: &Stat) -> bool {
    static MEMFD_DEVICE: AtomicU64 = AtomicU64::new(u64::MAX);
    let mut device = MEMFD_DEVICE.load(Relaxed);
    if device == u64::MAX {
        let Ok(memfd) = rustix::fs::memfd_create(c"pagetide", rustix::fs::MemfdFlags::CLOEXEC) else {
            return false;
        };
        let Ok(stat) = rustix::fs::fstat(&memfd) else { return false };
        device = stat.st_dev;
        MEMFD_DEVICE.store(device, Relaxed);
    }
    stat.st_dev != device || OWN_MEMFDS.iter().any(|inode| inode.load(Relaxed) == stat.st_ino)
}
