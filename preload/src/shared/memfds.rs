//! The memfds of the program.

use super::fds::{close, descriptor_flags, reopen, replace, stat};
use crate::call::kernel;
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

/// Sets memory aside in a memfd, as `fallocate` does, but takes one page at most: the others come when they are touched. A
/// heap that is set aside at once and mapped later (Java's ZGC) would pass the cap. `None` if the call is for the kernel.
pub(crate) fn set_aside(fd: c_int, mode: c_int, offset: i64, length: i64) -> Option<Result<(), c_int>> {
    let end = offset.checked_add(length).filter(|_| offset >= 0 && length > 0)?;
    if mode & !libc::FALLOC_FL_KEEP_SIZE != 0 || OWN_MEMFDS_NEXT.load(Relaxed) == 0 {
        return None;
    }
    let stat = stat(fd).filter(|stat| device() == Some(stat.st_dev) && is_noted(stat))?;
    if descriptor_flags(fd).ok()? & (libc::O_ACCMODE | libc::O_PATH) != libc::O_RDWR {
        return None;
    }
    if end <= stat.st_size {
        return Some(Ok(()));
    }
    // The last page alone tells the kernel all that matters: how long the file becomes, by whom else it has become longer
    // since, seals and limits.
    let arguments = [fd as usize, mode as usize, (end - 1) as usize, 1, 0, 0];
    // SAFETY: no memory is passed.
    Some(unsafe { kernel(libc::SYS_fallocate, arguments) }.map(drop))
}
