//! `syscall(2)`: calls that have a wrapper here go through it, also when a program makes them by number.
//!
//! What a program does with the instruction itself is beyond our sight (see the limits in the documentation).

use crate::advice::{madvise, mlock, mlock2, mlockall, munlock, munlockall, process_madvise};
use crate::call::{Next, count, kernel};
use crate::mappings::{change_access, mmap, mremap, munmap, pkey_mprotect};
use crate::process::{fork_by, managed};
use crate::references::{note_pins, opening, setsockopt, vmsplice};
use crate::threads::keep;
use std::ffi::{c_int, c_long};

/// Whether a call makes a process with a copy of our memory, on a copy of our stack.
///
/// # Safety
/// As for the call.
unsafe fn forks(number: c_long, a: usize, b: usize) -> bool {
    let vm = libc::CLONE_VM as usize;
    match number {
        libc::SYS_fork => true,
        libc::SYS_clone => a & vm == 0 && b == 0,
        libc::SYS_clone3 if b >= size_of::<libc::clone_args>() => {
            // SAFETY: the caller passes a structure of this size. (One that cannot be read faults here, where the
            // kernel would say EFAULT.)
            let arguments = unsafe { &*(a as *const libc::clone_args) };
            arguments.flags as usize & vm == 0 && arguments.stack == 0
        }
        _ => false,
    }
}

/// `_Fork(3)`: the C library's, with our handlers around it, though not with others'.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn _Fork() -> libc::pid_t {
    static NEXT: Next = Next::new(c"_Fork");
    // SAFETY: the caller's contract.
    let fork = || unsafe { NEXT.fork() };
    count(if managed().is_none() { fork() } else { fork_by(fork) }) as libc::pid_t
}

/// `syscall(2)`.
///
/// # Safety
/// As for the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn syscall(
    number: c_long,
    a: usize,
    b: usize,
    c: usize,
    d: usize,
    e: usize,
    f: usize,
) -> c_long {
    let int = |status: c_int| c_long::from(status);
    // SAFETY: the caller's contract is that of the call, which is that of its wrapper.
    unsafe {
        match number {
            libc::SYS_mmap => mmap(a as *mut _, b, c as c_int, d as c_int, e as c_int, f as i64) as c_long,
            libc::SYS_munmap => int(munmap(a as *mut _, b)),
            libc::SYS_mremap => mremap(a as *mut _, b, c, d as c_int, e as *mut _) as c_long,
            libc::SYS_mprotect => int(change_access(a, b, c as c_int)),
            libc::SYS_pkey_mprotect => int(pkey_mprotect(a as *mut _, b, c as c_int, d as c_int)),
            libc::SYS_madvise => int(madvise(a as *mut _, b, c as c_int)),
            libc::SYS_process_madvise => {
                process_madvise(a as c_int, b as *const _, c, d as c_int, e as u32) as c_long
            }
            libc::SYS_mlock => int(mlock(a as *const _, b)),
            libc::SYS_mlock2 => int(mlock2(a as *const _, b, c as u32)),
            libc::SYS_munlock => int(munlock(a as *const _, b)),
            libc::SYS_mlockall => int(mlockall(a as c_int)),
            libc::SYS_munlockall => int(munlockall()),
            libc::SYS_vmsplice => vmsplice(a as c_int, b as *const _, c, d as u32) as c_long,
            libc::SYS_setsockopt => {
                int(setsockopt(a as c_int, b as c_int, c as c_int, d as *const _, e as u32))
            }
            _ if managed().is_some() && forks(number, a, b) => {
                count(fork_by(|| kernel(number, [a, b, c, d, e, f]))) as c_long
            }
            _ => {
                match number {
                    libc::SYS_open => opening(b as c_int),
                    libc::SYS_openat => opening(c as c_int),
                    libc::SYS_io_uring_setup | libc::SYS_io_setup => note_pins(),
                    libc::SYS_set_tid_address => keep(a, size_of::<c_int>()),
                    libc::SYS_set_robust_list => keep(a, b),
                    _ => {}
                }
                count(kernel(number, [a, b, c, d, e, f])) as c_long
            }
        }
    }
}
