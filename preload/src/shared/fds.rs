//! The program's descriptors, by system calls.

use crate::call::kernel;
use pagetide_sys::mapped_files::FileId;
use pagetide_sys::task;
use rustix::fs::Stat;
use std::ffi::c_int;
use std::io::Write;
use std::os::fd::BorrowedFd;

const KCMP_FILE: usize = 0;

pub(super) fn descriptor_flags(fd: c_int) -> Result<c_int, c_int> {
    // SAFETY: no memory is passed.
    unsafe { kernel(libc::SYS_fcntl, [fd as usize, libc::F_GETFL as usize, 0, 0, 0, 0]) }
        .map(|flags| flags as c_int)
}

pub(super) fn stat(fd: c_int) -> Option<Stat> {
    // SAFETY: a number that is no descriptor is an error of the call; none is closed.
    let fd = (fd >= 0).then(|| unsafe { BorrowedFd::borrow_raw(fd) })?;
    rustix::fs::fstat(fd).ok()
}

pub(super) fn close(fd: c_int) {
    // SAFETY: the callers have opened it.
    let _ = unsafe { kernel(libc::SYS_close, [fd as usize, 0, 0, 0, 0, 0]) };
}

/// Opens a descriptor's file anew.
pub(super) fn reopen(fd: c_int, flags: c_int) -> Result<c_int, c_int> {
    let mut path = [0; 64];
    let _ = write!(&mut path[..], "/proc/thread-self/fd/{fd}\0");
    let arguments =
        [libc::AT_FDCWD as usize, path.as_ptr().addr(), (flags | libc::O_CLOEXEC) as usize, 0, 0, 0];
    // SAFETY: the path is a C string.
    unsafe { kernel(libc::SYS_openat, arguments) }.map(|fd| fd as c_int)
}

/// Puts an open file into the place of a descriptor, which keeps its close-on-exec flag.
pub(super) fn replace(fd: c_int, by: c_int) -> Result<(), c_int> {
    // SAFETY: no memory is passed.
    let flags = unsafe { kernel(libc::SYS_fcntl, [fd as usize, libc::F_GETFD as usize, 0, 0, 0, 0])? };
    let flags = if flags as c_int & libc::FD_CLOEXEC != 0 { libc::O_CLOEXEC } else { 0 };
    // SAFETY: as above; the descriptor is the program's, and goes on being of the same file.
    unsafe { kernel(libc::SYS_dup3, [by as usize, fd as usize, flags as usize, 0, 0, 0]) }.map(drop)
}

/// Whether two descriptors are of one open file description, if the kernel tells.
pub(super) fn is_same(a: c_int, b: c_int) -> bool {
    let pid = task::tid() as usize;
    // SAFETY: no memory is passed.
    a == b || unsafe { kernel(libc::SYS_kcmp, [pid, pid, KCMP_FILE, a as usize, b as usize, 0]) } == Ok(0)
}

/// The descriptors of a file in this thread's table.
pub(super) fn numbers(file: FileId) -> Option<Vec<c_int>> {
    let directory = rustix::fs::open(
        c"/proc/thread-self/fd",
        rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::DIRECTORY | rustix::fs::OFlags::CLOEXEC,
        rustix::fs::Mode::empty(),
    )
    .ok()?;
    let entries = rustix::fs::Dir::read_from(&directory).ok()?;
    let number = |entry: rustix::fs::DirEntry| entry.file_name().to_str().ok()?.parse::<c_int>().ok();
    let all = entries.flatten().filter_map(number);
    Some(all.filter(|&fd| stat(fd).is_some_and(|stat| FileId::of(&stat) == file)).collect())
}
