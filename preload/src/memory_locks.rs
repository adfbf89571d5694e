//! Locks of a range of memory: its pages stay in memory from then on.

use crate::call::{kernel, status};
use crate::current::managed;
use crate::range::pages;
use crate::{shared, small_mappings};
use pagetide_swap::PAGE_SIZE;
use std::ffi::{c_int, c_uint, c_void};

/// Runs `call`, which locks a range: its pages stay in memory from then on.
fn lock(address: usize, length: usize, call: impl Fn() -> Result<usize, c_int>) -> c_int {
    let start = address - address % PAGE_SIZE;
    let (Some(process), Some(range)) =
        (managed(), length.checked_add(address - start).and_then(|length| pages(start, length)))
    else {
        return status(call());
    };
    let before = {
        let entered = process.enter();
        small_mappings::changed(&entered, start, length + address - start);
        if !process.lock_more(entered.unlocked(range.clone())) {
            // As beyond RLIMIT_MEMLOCK: it could never leave again.
            return status(Err(libc::ENOMEM));
        }
        if !shared::hold(&range) {
            entered.recount_locked();
            return status(Err(libc::ENOMEM));
        }
        let before = entered.holds(range.clone());
        entered.hold(range.clone(), true);
        before
    };
    // The kernel touches every page: what is out comes in. Nothing may be entered meanwhile.
    let result = call();
    if result.is_err() && !before {
        // It may have locked a part (up to a hole, ENOMEM), which could not leave by any way of ours.
        // SAFETY: to be locked is no state that anybody relies on after an error.
        let _ = unsafe { kernel(libc::SYS_munlock, [start, length + address - start, 0, 0, 0, 0]) };
        process.enter().hold(range, false);
    }
    status(result)
}

/// `mlock(2)`.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn mlock(address: *const c_void, length: usize) -> c_int {
    lock(address as usize, length, || {
        // SAFETY: the caller's contract.
        unsafe { kernel(libc::SYS_mlock, [address as usize, length, 0, 0, 0, 0]) }
    })
}

/// `mlock2(2)`.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn mlock2(address: *const c_void, length: usize, flags: c_uint) -> c_int {
    lock(address as usize, length, || {
        // SAFETY: the caller's contract.
        unsafe { kernel(libc::SYS_mlock2, [address as usize, length, flags as usize, 0, 0, 0]) }
    })
}

/// `munlock(2)`.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn munlock(address: *const c_void, length: usize) -> c_int {
    // SAFETY: the caller's contract.
    let result = unsafe { kernel(libc::SYS_munlock, [address as usize, length, 0, 0, 0, 0]) };
    let start = address as usize - address as usize % PAGE_SIZE;
    if result.is_ok()
        && let Some(process) = managed()
        && let Some(range) = pages(start, length + address as usize - start)
    {
        process.enter().hold(range, false);
    }
    status(result)
}
