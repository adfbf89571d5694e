//! What the kernel writes when a thread ends: it waits for nobody then, so it must find that memory there.
//!
//! The word that `pthread_join` waits for lies in the thread's control block, at the end of its stack; a robust mutex
//! is marked where it lies. Where such memory is managed, its pages are kept.

use crate::current::managed;
use crate::next::Next;
use crate::range::pages;
use crate::{shared, small_mappings};
use pagetide_swap::PAGE_SIZE;
use pagetide_sys::task;
use std::ffi::{c_int, c_void};
use std::ptr::null_mut;

/// More than glibc's `struct pthread` (2.3 KiB), which ends where the stack does, or its alignment before that.
const CONTROL_BLOCK: usize = 2 * PAGE_SIZE;

type Start = extern "C" fn(*mut c_void) -> *mut c_void;
type Create =
    unsafe extern "C" fn(*mut libc::pthread_t, *const libc::pthread_attr_t, Start, *mut c_void) -> c_int;
type MutexInit = unsafe extern "C" fn(*mut libc::pthread_mutex_t, *const libc::pthread_mutexattr_t) -> c_int;

static CREATE: Next = Next::new(c"pthread_create");
static MUTEX_INIT: Next = Next::new(c"pthread_mutex_init");

/// Brings in the pages of some bytes, and keeps them in memory, as far as they are managed or served.
pub(crate) fn keep(address: usize, length: usize) {
    let start = address - address % PAGE_SIZE;
    let Some((process, end)) = managed().zip(address.checked_add(length)) else { return };
    let Some(range) = pages(start, end - start) else { return };
    let entered = process.enter();
    small_mappings::changed(&entered, address, length);
    let (managed, served) = (entered.manages(range.clone()), shared::serves(&entered, &range));
    if served {
        // Where the cap leaves no room for more that stays, nobody can be told.
        shared::hold(&range);
    }
    if managed {
        entered.keep(range);
    }
    drop(entered);
    if managed || served {
        task::populate(start, end - start);
    }
}

/// `pthread_create(3)`: a stack of the program's own may be managed.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn pthread_create(
    thread: *mut libc::pthread_t,
    attributes: *const libc::pthread_attr_t,
    start: Start,
    argument: *mut c_void,
) -> c_int {
    let (mut stack, mut length) = (null_mut(), 0);
    // SAFETY: the caller passes attributes, or none.
    let known = !attributes.is_null()
        && unsafe { libc::pthread_attr_getstack(attributes, &raw mut stack, &raw mut length) } == 0;
    if known && let Some(end) = (stack as usize).checked_add(length).filter(|&end| end > CONTROL_BLOCK) {
        keep(end - CONTROL_BLOCK, CONTROL_BLOCK);
    }
    // SAFETY: the function of that name has this type; the rest is the caller's contract.
    unsafe { std::mem::transmute::<*mut c_void, Create>(CREATE.get())(thread, attributes, start, argument) }
}

/// `pthread_mutex_init(3)`: a robust mutex.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn pthread_mutex_init(
    mutex: *mut libc::pthread_mutex_t,
    attributes: *const libc::pthread_mutexattr_t,
) -> c_int {
    let mut robust = libc::PTHREAD_MUTEX_STALLED;
    // SAFETY: the caller passes attributes, or none.
    let known = !attributes.is_null()
        && unsafe { libc::pthread_mutexattr_getrobust(attributes, &raw mut robust) } == 0;
    if known && robust == libc::PTHREAD_MUTEX_ROBUST {
        keep(mutex as usize, size_of::<libc::pthread_mutex_t>());
    }
    // SAFETY: the function of that name has this type; the rest is the caller's contract.
    unsafe { std::mem::transmute::<*mut c_void, MutexInit>(MUTEX_INIT.get())(mutex, attributes) }
}
