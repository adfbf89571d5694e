//! The C library's own functions of names that lead here: `loader.rs` notes them, `next.rs` finds them.

use std::ffi::{CStr, c_char, c_void};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};

/// Names that this library defines, at most.
const NAMES_MAX: usize = 192;

/// The C library's own functions of names that lead here: the name, and the function.
static ORIGINALS: [(AtomicPtr<c_char>, AtomicUsize); NAMES_MAX] =
    [const { (AtomicPtr::new(null_mut()), AtomicUsize::new(0)) }; NAMES_MAX];
static ORIGINALS_COUNT: AtomicUsize = AtomicUsize::new(0);

/// The C library's own function of a name that leads here by now.
pub(crate) fn find(name: &CStr) -> Option<*mut c_void> {
    ORIGINALS[..ORIGINALS_COUNT.load(Acquire)].iter().find_map(|(known, function)| {
        // SAFETY: the names are those of this library's own table.
        (unsafe { CStr::from_ptr(known.load(Relaxed)) } == name)
            .then(|| function.load(Relaxed) as *mut c_void)
    })
}

/// Notes the C library's function of a name, which is about to lead here. False if there is no room.
///
/// Only one thread may call it.
pub(crate) fn note(name: &'static CStr, function: usize) -> bool {
    let count = ORIGINALS_COUNT.load(Relaxed);
    let Some(entry) = ORIGINALS.get(count) else { return false };
    entry.0.store(name.as_ptr().cast_mut(), Relaxed);
    entry.1.store(function, Relaxed);
    ORIGINALS_COUNT.store(count + 1, Release);
    true
}
