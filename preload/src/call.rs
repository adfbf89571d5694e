//! Straight to the kernel: the C library's names of these calls are ours.

use std::arch::asm;
use std::ffi::{c_int, c_void};

/// A system call.
///
/// # Safety
/// As for the call.
pub(crate) unsafe fn kernel(call: i64, arguments: [usize; 6]) -> Result<usize, c_int> {
    let result: isize;
    // SAFETY: the caller vouches for the call and its arguments.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") call as isize => result,
            in("rdi") arguments[0], in("rsi") arguments[1], in("rdx") arguments[2],
            in("r10") arguments[3], in("r8") arguments[4], in("r9") arguments[5],
            lateout("rcx") _, lateout("r11") _,
            options(nostack),
        );
    }
    if (-4095..0).contains(&result) { Err(-result as c_int) } else { Ok(result as usize) }
}

/// Sets `errno`.
pub(crate) fn set_errno(error: c_int) {
    // SAFETY: the location is the calling thread's own.
    unsafe { *libc::__errno_location() = error };
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
