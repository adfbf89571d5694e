//! `ioctl`, for programs that have a userfaultfd of their own.
//!
//! A mapping has one userfaultfd. What a program registers with its own is handed over to it: the kernel would say
//! EBUSY, since it is registered with ours. And what it moves away (UFFDIO_MOVE) has to be in memory.

use crate::call::{count, kernel};
use crate::current::managed;
use crate::range::pages;
use pagetide::process::Process;
use std::ffi::{c_int, c_ulong};

/// The letter of requests to a userfaultfd, and those that are looked at.
const LETTER: u32 = 0xaa;
const REGISTER: u32 = 0xc020_aa00;
const MOVE: u32 = 0xc028_aa05;
const API: u32 = 0xc018_aa3f;
const FEATURE_EVENT_FORK: u64 = 1 << 1;

/// `ioctl(2)`. It is no point of cancellation.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ioctl(fd: c_int, request: c_ulong, argument: usize) -> c_int {
    // SAFETY: the caller's contract.
    unsafe { control(fd, request, argument) }
}

/// `ioctl(2)` for this library itself: its calls by that name go to the kernel (see `wraps`).
///
/// # Safety
/// As of `ioctl`.
pub(crate) unsafe fn control(fd: c_int, request: c_ulong, argument: usize) -> c_int {
    // SAFETY: the caller's contract.
    let call = || unsafe { kernel(libc::SYS_ioctl, [fd as usize, request as usize, argument, 0, 0, 0]) };
    // The kernel looks at 32 bits.
    let request = request as u32;
    let result = match managed().filter(|_| request >> 8 & 0xff == LETTER) {
        None => call(),
        Some(process) => match request {
            // SAFETY: the caller passes the structure of this request.
            REGISTER => unsafe { register(process, argument, call) },
            // SAFETY: as above.
            MOVE => unsafe { take_away(process, argument, call) },
            // SAFETY: as above. (One that cannot be read faults here, where the kernel would say EFAULT.)
            API if unsafe { announces_forks(argument) } => Err(libc::EPERM),
            _ => call(),
        },
    };
    count(result) as c_int
}

/// UFFDIO_REGISTER: `struct uffdio_register` begins with start and length.
///
/// # Safety
/// `argument` must be what the request takes.
unsafe fn register(
    process: &Process,
    argument: usize,
    call: impl Fn() -> Result<usize, c_int>,
) -> Result<usize, c_int> {
    // The engine does not start meanwhile.
    let entered = process.enter();
    let result = call();
    if !matches!(result, Ok(_) | Err(libc::EBUSY)) {
        return result;
    }
    // SAFETY: the kernel has read the structure.
    let [start, length] = unsafe { (argument as *const [u64; 2]).read_unaligned() };
    let Some(range) = pages(start as usize, length as usize) else { return result };
    if !entered.manages(range.clone()) {
        return result;
    }
    entered.hand_over(range);
    // Without an engine nothing stood in its way.
    result.or_else(|_| call())
}

/// UFFDIO_MOVE: `struct uffdio_move` begins with target, source and length.
///
/// # Safety
/// `argument` must be what the request takes. (One that cannot be read faults here, where the kernel would say EFAULT.)
unsafe fn take_away(
    process: &Process,
    argument: usize,
    call: impl FnOnce() -> Result<usize, c_int>,
) -> Result<usize, c_int> {
    // SAFETY: the caller's contract.
    let [_, source, length] = unsafe { (argument as *const [u64; 3]).read_unaligned() };
    let entered = process.enter();
    match pages(source as usize, length as usize).filter(|range| entered.manages(range.clone())) {
        Some(range) => entered.lending(range, call),
        None => {
            drop(entered);
            call()
        }
    }
}

/// Returns whether a userfaultfd would tell of forks (`struct uffdio_api` has the features second). A fork waits until
/// that message was read, and its reader may wait for a page until the fork is over. So this takes a privilege that no
/// program has here.
///
/// # Safety
/// `argument` must be what UFFDIO_API takes.
unsafe fn announces_forks(argument: usize) -> bool {
    // SAFETY: the caller's contract.
    let [_, features] = unsafe { (argument as *const [u64; 2]).read_unaligned() };
    features & FEATURE_EVENT_FORK != 0
}
