//! The locks of mimalloc, in place of the C library's: a sanitizer has functions of those names, which are not ready
//! when the loader first allocates.
//!
//! A lock is the first word of the mutex, which is zero when it is new: 0 free, 1 held, 2 held and waited for (Drepper,
//! "Futexes Are Tricky", 2011, section 5). Linked by `--wrap`, as in `wraps`.

use crate::call::kernel;
use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicU32, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};

std::arch::global_asm!(
    ".hidden __wrap_pthread_mutex_init",
    ".hidden __wrap_pthread_mutex_destroy",
    ".hidden __wrap_pthread_mutex_lock",
    ".hidden __wrap_pthread_mutex_trylock",
    ".hidden __wrap_pthread_mutex_unlock",
);

const FREE: u32 = 0;
const HELD: u32 = 1;
const WAITED_FOR: u32 = 2;

fn futex(word: &AtomicU32, operation: c_int, value: u32) {
    let operation = operation | libc::FUTEX_PRIVATE_FLAG;
    // SAFETY: the word lives while it is waited for; no other memory is passed.
    let _ = unsafe {
        kernel(libc::SYS_futex, [word.as_ptr().addr(), operation as usize, value as usize, 0, 0, 0])
    };
}

#[unsafe(no_mangle)]
unsafe extern "C" fn __wrap_pthread_mutex_init(mutex: *mut AtomicU32, _: *const c_void) -> c_int {
    // SAFETY: mimalloc passes room for a mutex, which nobody uses yet.
    unsafe { mutex.write(AtomicU32::new(FREE)) };
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn __wrap_pthread_mutex_destroy(_: *mut AtomicU32) -> c_int {
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn __wrap_pthread_mutex_lock(mutex: *mut AtomicU32) -> c_int {
    // SAFETY: mimalloc passes a mutex of its own.
    let word = unsafe { &*mutex };
    if word.compare_exchange(FREE, HELD, Acquire, Relaxed).is_err() {
        while word.swap(WAITED_FOR, Acquire) != FREE {
            futex(word, libc::FUTEX_WAIT, WAITED_FOR);
        }
    }
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn __wrap_pthread_mutex_trylock(mutex: *mut AtomicU32) -> c_int {
    // SAFETY: mimalloc passes a mutex of its own.
    let word = unsafe { &*mutex };
    if word.compare_exchange(FREE, HELD, Acquire, Relaxed).is_ok() { 0 } else { libc::EBUSY }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn __wrap_pthread_mutex_unlock(mutex: *mut AtomicU32) -> c_int {
    // SAFETY: mimalloc passes a mutex of its own.
    let word = unsafe { &*mutex };
    if word.swap(FREE, Release) == WAITED_FOR {
        futex(word, libc::FUTEX_WAKE, 1);
    }
    0
}
