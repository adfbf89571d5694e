//! System calls straight to the kernel, since the C library's names of them are ours here, and their results as C has
//! them.

pub(crate) use pagetide_sys::arch::system_call as kernel;
use std::ffi::{c_int, c_void};

/// Sets `errno`.
pub(crate) fn set_errno(error: c_int) {
    // SAFETY: the location is the calling thread's own.
    unsafe { *libc::__errno_location() = error };
}

/// Returns `errno`.
pub(crate) fn errno() -> c_int {
    // SAFETY: the location is the calling thread's own.
    unsafe { *libc::__errno_location() }
}

/// Runs `call`, and leaves `errno` as it was.
pub(crate) fn keeping_errno<T>(call: impl FnOnce() -> T) -> T {
    let errno = errno();
    let result = call();
    set_errno(errno);
    result
}

/// Passes an error to `errno`.
fn answer(result: Result<usize, c_int>) -> Result<usize, ()> {
    result.map_err(set_errno)
}

/// The result of a call that maps, as C has it.
pub(crate) fn pointer(result: Result<usize, c_int>) -> *mut c_void {
    answer(result).map_or(libc::MAP_FAILED, |address| address as *mut c_void)
}

/// The result of a call that succeeds or fails, as C has it.
pub(crate) fn status(result: Result<usize, c_int>) -> c_int {
    answer(result).map_or(-1, |_| 0)
}

/// The result of a call that counts bytes, as C has it.
pub(crate) fn count(result: Result<usize, c_int>) -> isize {
    answer(result).map_or(-1, |count| count as isize)
}
