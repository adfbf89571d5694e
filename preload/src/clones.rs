//! `clone(2)` and `clone3(2)` without CLONE_VM: forks, of which the C library tells no handler.
//!
//! The child is made on a copy of the calling stack, so that the handlers have room whatever stack it is to run on, and
//! goes there when its engine runs.

use crate::call::{count, kernel};
use crate::current::managed;
use crate::fork::fork_by;
use crate::next::Next;
use crate::threads::keep;
use pagetide_page::PAGE_SIZE;
use pagetide_sys::arch::run_on_stack;
use pagetide_sys::task;
use std::ffi::{c_int, c_long, c_void};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

const VM: u64 = libc::CLONE_VM as u64;
const VFORK: u64 = libc::CLONE_VFORK as u64;
const SETTLS: u64 = libc::CLONE_SETTLS as u64;
const TELLS_CHILD: u64 = (libc::CLONE_CHILD_SETTID | libc::CLONE_CHILD_CLEARTID) as u64;
/// The first version of `clone_args`, and the one that is known here: up to the cgroup.
const ARGUMENTS_MIN: usize = 64;
const ARGUMENTS: usize = size_of::<libc::clone_args>();
const ARCH_SET_FS: usize = 0x1002;

/// A child to be made with a copy of this process's memory.
#[derive(Clone, Copy)]
struct Copying {
    flags: u64,
    child_tid: u64,
    tls: u64,
}

impl Copying {
    /// Makes the child by `call`, which gets the flags that the kernel is to see. Returns its pid, 0 in the child.
    fn make(self, call: impl FnOnce(u64) -> Result<usize, c_int>) -> Result<usize, c_int> {
        // The parent must not be suspended while its engine is frozen: it waits afterwards. No other thread forks while it has the
        // writing end: that child would hold it open.
        let mut vfork_end = None;
        let result = fork_by(|| {
            let ends = if self.flags & VFORK != 0 { Some(pipe()?) } else { None };
            if self.flags & TELLS_CHILD != 0 {
                // The kernel writes there in the child, where nobody answers its faults yet.
                task::populate(self.child_tid as usize & !(PAGE_SIZE - 1), PAGE_SIZE);
            }
            let pid = call(self.flags & !(VFORK | SETTLS))?;
            if let Some((read, write)) = ends {
                vfork_end = Some(read);
                if pid == 0 {
                    // It stays open until the child executes a program, or ends.
                    std::mem::forget(write);
                }
            }
            Ok(pid)
        });
        match (result, vfork_end) {
            (Ok(0), _) => {
                if self.flags & libc::CLONE_CHILD_CLEARTID as u64 != 0 {
                    keep(self.child_tid as usize, size_of::<c_int>());
                }
                if self.flags & SETTLS != 0 {
                    // SAFETY: the caller passes a thread's block to the child, as it would to the kernel.
                    let _ =
                        unsafe { kernel(libc::SYS_arch_prctl, [ARCH_SET_FS, self.tls as usize, 0, 0, 0, 0]) };
                }
            }
            (Ok(_), Some(read)) => {
                let mut byte = 0u8;
                let arguments = [read.as_raw_fd() as usize, (&raw mut byte).addr(), 1, 0, 0, 0];
                // SAFETY: there is room for a byte.
                while unsafe { kernel(libc::SYS_read, arguments) } == Err(libc::EINTR) {}
            }
            _ => {}
        }
        result
    }
}

/// A pipe whose ends go with an exec: what is read, and what is written.
fn pipe() -> Result<(OwnedFd, OwnedFd), c_int> {
    let mut ends = [0; 2];
    let arguments = [(&raw mut ends).addr(), libc::O_CLOEXEC as usize, 0, 0, 0, 0];
    // SAFETY: there is room for two descriptors, which are nobody else's.
    unsafe {
        kernel(libc::SYS_pipe2, arguments)?;
        Ok((OwnedFd::from_raw_fd(ends[0]), OwnedFd::from_raw_fd(ends[1])))
    }
}

/// The kernel clears that word when a thread in the same memory ends, and waits for nobody.
fn keep_word(flags: u64, child_tid: usize) {
    if flags & VM != 0 && flags & libc::CLONE_CHILD_CLEARTID as u64 != 0 {
        keep(child_tid, size_of::<c_int>());
    }
}

type Entry = extern "C" fn(*mut c_void) -> c_int;
type Clone = unsafe extern "C" fn(
    Option<Entry>,
    *mut c_void,
    c_int,
    *mut c_void,
    *mut c_int,
    *mut c_void,
    *mut c_int,
) -> c_int;

/// `clone(3)`. The last three arguments are there as the flags have it; on x86-64 they are passed alike either way.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn clone(
    entry: Option<Entry>,
    stack: *mut c_void,
    flags: c_int,
    argument: *mut c_void,
    parent_tid: *mut c_int,
    tls: *mut c_void,
    child_tid: *mut c_int,
) -> c_int {
    static NEXT: Next = Next::new(c"clone");
    let bits = u64::from(flags as u32);
    let (Some(function), false, true) = (entry, stack.is_null() || bits & VM != 0, managed().is_some())
    else {
        keep_word(bits, child_tid.addr());
        // SAFETY: the function of that name has this type; the rest is the caller's contract.
        return unsafe {
            let next = std::mem::transmute::<*mut c_void, Clone>(NEXT.get());
            next(entry, stack, flags, argument, parent_tid, tls, child_tid)
        };
    };
    let child = Copying { flags: bits, child_tid: child_tid.addr() as u64, tls: tls.addr() as u64 };
    let result = child.make(|flags| {
        let arguments = [flags as usize, 0, parent_tid.addr(), child_tid.addr(), tls.addr(), 0];
        // SAFETY: the caller's contract; the child goes on here, on a copy of this stack.
        unsafe { kernel(libc::SYS_clone, arguments) }
    });
    if result == Ok(0) {
        // SAFETY: the caller passes the end of a stack that nobody else uses in the child.
        unsafe { run_on_stack(stack, function, argument) }
    }
    count(result) as c_int
}

/// `__clone`: the same, under the name that it has in old programs.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn __clone(
    entry: Option<Entry>,
    stack: *mut c_void,
    flags: c_int,
    argument: *mut c_void,
    parent_tid: *mut c_int,
    tls: *mut c_void,
    child_tid: *mut c_int,
) -> c_int {
    // SAFETY: the caller's contract.
    unsafe { clone(entry, stack, flags, argument, parent_tid, tls, child_tid) }
}

/// The calls of `syscall(2)` that make a child with a copy of our memory. `None` if this is no such call.
///
/// # Safety
/// As for the call.
pub(crate) unsafe fn by_number(number: c_long, arguments: [usize; 6]) -> Option<Result<usize, c_int>> {
    let [a, b, _, child_tid, tls, _] = arguments;
    match number {
        // SAFETY: the caller's contract.
        libc::SYS_fork => Some(fork_by(|| unsafe { kernel(number, arguments) })),
        libc::SYS_clone if a as u64 & VM == 0 => {
            let child = Copying { flags: a as u64, child_tid: child_tid as u64, tls: tls as u64 };
            Some(on_this_stack(b as u64).and_then(|()| {
                // SAFETY: the caller's contract.
                child.make(|flags| unsafe {
                    kernel(number, [flags as usize, b, arguments[2], child_tid, tls, 0])
                })
            }))
        }
        libc::SYS_clone => {
            keep_word(a as u64, child_tid);
            None
        }
        // SAFETY: the caller's contract.
        libc::SYS_clone3 => unsafe { by_structure(a, b) },
        _ => None,
    }
}

/// `clone3(2)`.
///
/// # Safety
/// `address` is that of a structure of `size` bytes. (One that cannot be read faults, where the kernel would say
/// EFAULT.)
unsafe fn by_structure(address: usize, size: usize) -> Option<Result<usize, c_int>> {
    // The kernel refuses the others.
    if !(ARGUMENTS_MIN..=4096).contains(&size) {
        return None;
    }
    // SAFETY: all zero is a value of the structure, of which the caller passes so many bytes.
    let (mut given, rest) = unsafe {
        let mut given: libc::clone_args = std::mem::zeroed();
        let known = size.min(ARGUMENTS);
        std::ptr::copy_nonoverlapping(address as *const u8, (&raw mut given).cast(), known);
        (given, std::slice::from_raw_parts((address + known) as *const u8, size - known))
    };
    if given.flags & VM != 0 {
        keep_word(given.flags, given.child_tid as usize);
        return None;
    }
    if rest.iter().any(|&byte| byte != 0) {
        return Some(Err(libc::E2BIG));
    }
    let child = Copying { flags: given.flags, child_tid: given.child_tid, tls: given.tls };
    Some(on_this_stack(given.stack).and_then(|()| {
        child.make(|flags| {
            given.flags = flags;
            // SAFETY: the structure is ours, what it names the caller's.
            unsafe { kernel(libc::SYS_clone3, [(&raw const given).addr(), ARGUMENTS.min(size), 0, 0, 0, 0]) }
        })
    }))
}

/// A child that returned from `syscall` on another stack would find nothing there of the functions that called it.
fn on_this_stack(stack: u64) -> Result<(), c_int> {
    if stack == 0 { Ok(()) } else { Err(libc::EINVAL) }
}
