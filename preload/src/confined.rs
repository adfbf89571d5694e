//! Calls after which a process may do less than before: the allocator starts ahead of them. When it starts it maps
//! address space, opens files and asks the kernel what it is; later it only uses what it has.

use crate::call::{count, kernel, status};
use crate::current::process;
use crate::malloc;
use std::ffi::{c_int, c_long, c_uint};

/// Starts the allocator ahead of a call by number, if it is such a call.
pub(crate) fn by_number(number: c_long, [a, b, c, ..]: [usize; 6]) {
    match number {
        libc::SYS_prctl => before_prctl(a as c_int, b, c),
        libc::SYS_seccomp => before_seccomp(a as c_uint, c),
        libc::SYS_setrlimit => before_limit(a as c_int),
        libc::SYS_prlimit64 if c != 0 => before_limit(b as c_int),
        _ => {}
    }
}

fn before_prctl(option: c_int, mode: usize, filter: usize) {
    if option == libc::PR_SET_SECCOMP {
        before_sandbox(mode == libc::SECCOMP_MODE_STRICT as usize || filter != 0);
    }
}

fn before_seccomp(operation: c_uint, filter: usize) {
    match operation {
        libc::SECCOMP_SET_MODE_STRICT => before_sandbox(true),
        libc::SECCOMP_SET_MODE_FILTER => before_sandbox(filter != 0),
        // A question.
        _ => {}
    }
}

/// Programs ask what there is by a filter that is null.
fn before_sandbox(is_meant: bool) {
    malloc::start();
    if let Some(process) = process().filter(|_| is_meant) {
        process.confine();
    }
}

/// A limit on a resource, by its number in the C library and the kernel.
fn before_limit(resource: c_int) {
    if [libc::RLIMIT_AS as c_int, libc::RLIMIT_DATA as c_int].contains(&resource) {
        malloc::start();
    }
}

/// `prctl(2)`.
///
/// # Safety
/// As for the call.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn prctl(option: c_int, a: usize, b: usize, c: usize, d: usize) -> c_int {
    before_prctl(option, a, b);
    // SAFETY: the caller's contract.
    count(unsafe { kernel(libc::SYS_prctl, [option as usize, a, b, c, d, 0]) }) as c_int
}

/// `setrlimit(2)`.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn setrlimit(resource: c_int, limit: *const libc::rlimit) -> c_int {
    before_limit(resource);
    // SAFETY: the caller's contract.
    status(unsafe { kernel(libc::SYS_setrlimit, [resource as usize, limit.addr(), 0, 0, 0, 0]) })
}

/// `setrlimit64`: the same.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn setrlimit64(resource: c_int, limit: *const libc::rlimit64) -> c_int {
    // SAFETY: the structures are the same.
    unsafe { setrlimit(resource, limit.cast()) }
}

/// `prlimit(2)`.
///
/// # Safety
/// As for the call.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn prlimit(
    pid: libc::pid_t,
    resource: c_int,
    new: *const libc::rlimit,
    old: *mut libc::rlimit,
) -> c_int {
    if !new.is_null() {
        before_limit(resource);
    }
    let arguments = [pid as usize, resource as usize, new.addr(), old.addr(), 0, 0];
    // SAFETY: the caller's contract.
    status(unsafe { kernel(libc::SYS_prlimit64, arguments) })
}

/// `prlimit64`: the same.
///
/// # Safety
/// As for the call.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn prlimit64(
    pid: libc::pid_t,
    resource: c_int,
    new: *const libc::rlimit64,
    old: *mut libc::rlimit64,
) -> c_int {
    // SAFETY: the structures are the same.
    unsafe { prlimit(pid, resource, new.cast(), old.cast()) }
}
