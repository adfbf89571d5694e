//! `syscall(2)`: calls that have a wrapper here go through it, also when a program makes them by number.
//!
//! What a program does with the instruction itself is beyond our sight (see the limits in the documentation).

use crate::advice::{mlockall, munlockall, process_madvise, take_advice};
use crate::call::count;
use crate::clones;
use crate::confined;
use crate::cross_memory;
use crate::current::managed;
use crate::descriptors;
use crate::exec::{execve_by_number, execveat_by_number};
use crate::mappings::{change_access, map, mremap, pkey_mprotect, remap_file_pages, unmap};
use crate::memory_locks::{mlock, mlock2, munlock};
use crate::references::{self, setsockopt, vmsplice};
use crate::threads::keep;
use crate::userfault::control;
use std::ffi::{c_int, c_long};

/// `syscall(2)`.
///
/// # Safety
/// As for the call.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn syscall(
    number: c_long,
    a: usize,
    b: usize,
    c: usize,
    d: usize,
    e: usize,
    f: usize,
) -> c_long {
    let int = |status: c_int| c_long::from(status);
    if managed().is_some() {
        // SAFETY: the caller's contract.
        let child = unsafe { clones::by_number(number, [a, b, c, d, e, f]) };
        if let Some(child) = child {
            return count(child) as c_long;
        }
    }
    // SAFETY: the caller's contract is that of the call, which is that of its wrapper.
    unsafe {
        match number {
            libc::SYS_mmap => map(a as *mut _, b, c as c_int, d as c_int, e as c_int, f as i64) as c_long,
            libc::SYS_munmap => int(unmap(a as *mut _, b)),
            libc::SYS_mremap => mremap(a as *mut _, b, c, d as c_int, e as *mut _) as c_long,
            libc::SYS_remap_file_pages => int(remap_file_pages(a as *mut _, b, c as c_int, d, e as c_int)),
            libc::SYS_mprotect => int(change_access(a, b, c as c_int)),
            libc::SYS_pkey_mprotect => int(pkey_mprotect(a as *mut _, b, c as c_int, d as c_int)),
            libc::SYS_madvise => int(take_advice(a as *mut _, b, c as c_int)),
            libc::SYS_process_madvise => {
                process_madvise(a as c_int, b as *const _, c, d as c_int, e as u32) as c_long
            }
            libc::SYS_mlock => int(mlock(a as *const _, b)),
            libc::SYS_mlock2 => int(mlock2(a as *const _, b, c as u32)),
            libc::SYS_munlock => int(munlock(a as *const _, b)),
            libc::SYS_mlockall => int(mlockall(a as c_int)),
            libc::SYS_munlockall => int(munlockall()),
            libc::SYS_vmsplice => vmsplice(a as c_int, b as *const _, c, d as u32) as c_long,
            libc::SYS_process_vm_readv | libc::SYS_process_vm_writev => {
                cross_memory::by_number(number, [a, b, c, d, e, f]) as c_long
            }
            libc::SYS_setsockopt => {
                int(setsockopt(a as c_int, b as c_int, c as c_int, d as *const _, e as u32))
            }
            libc::SYS_memfd_create => int(descriptors::memfd_create(a as *const _, b as u32)),
            libc::SYS_fallocate => int(descriptors::fallocate(a as c_int, b as c_int, c as i64, d as i64)),
            libc::SYS_ioctl => int(control(a as c_int, b as u64, c)),
            libc::SYS_execve => int(execve_by_number(a, b, c)),
            libc::SYS_execveat => int(execveat_by_number([a, b, c, d, e])),
            _ => {
                confined::by_number(number, [a, b, c, d, e, f]);
                references::by_number(number, [a, b, c, d, e, f]);
                match number {
                    libc::SYS_set_tid_address => keep(a, size_of::<c_int>()),
                    libc::SYS_set_robust_list => keep(a, b),
                    _ => {}
                }
                let result = count(descriptors::by_descriptor(number, [a, b, c, d, e, f]));
                references::done_by_number(number, result as c_long)
            }
        }
    }
}
