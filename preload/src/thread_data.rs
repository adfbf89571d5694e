//! Thread-local data of this library itself, without the C library.
//!
//! The loader finds them by a table that each thread has, and makes or mends it with the program's `malloc` when
//! libraries come and go. An engine thread has no such table ([`pagetide_sys::engine_thread`]), and a thread of the
//! program may be within `malloc` when it comes to us. We are there from the start, so ours lie at the same distance
//! below the thread pointer in all threads: the linker leads this library's calls of these names here (`--wrap`, see
//! `build.rs`).

use pagetide_sys::engine_thread;
use std::ffi::{c_int, c_void};

/// The argument of a call for the address of thread-local data.
#[repr(C)]
struct Index {
    library: usize,
    offset: usize,
}

std::arch::global_asm!(".hidden __wrap___tls_get_addr", ".hidden __wrap___cxa_thread_atexit_impl");

unsafe extern "C" {
    fn __real___tls_get_addr(index: *const Index) -> *mut c_void;
}

/// # Safety
/// As of `__tls_get_addr`, of data of this library.
#[unsafe(no_mangle)]
unsafe extern "C" fn __wrap___tls_get_addr(index: *const Index) -> *mut c_void {
    match engine_thread::own_below() {
        // SAFETY: the caller passes an index.
        Some(below) => (engine_thread::thread_pointer() - below + unsafe { (*index).offset }) as *mut c_void,
        // SAFETY: the caller's contract.
        None => unsafe { __real___tls_get_addr(index) },
    }
}

/// Takes a function that is to be called when a thread ends. None is: the C library would allocate, and ours leave
/// nothing behind but a few bytes of the engine's heap where the standard library has named a thread.
#[unsafe(no_mangle)]
extern "C" fn __wrap___cxa_thread_atexit_impl(_: *mut c_void, _: *mut c_void, _: *mut c_void) -> c_int {
    0
}
