//! The calls that move the end of the heap (the *program break*): what it grows by is managed.
//!
//! The C library's `malloc` takes memory so, and ours does not; a program's own may. The C library's functions move it,
//! which remember where it is.

use crate::current::managed;
use crate::next::Next;
use pagetide::regions::{Access, Attributes, Charging};
use pagetide_swap::{PAGE_SIZE, PageIndex};
use std::ffi::{c_int, c_void};
use std::ops::Range;

/// The function of the name that allocators leave to the C library: their own `sbrk` calls it, and so comes to ours.
static SBRK: Next = Next::new(c"__sbrk");

/// # Safety
/// As of `sbrk`.
unsafe fn next(increment: isize) -> *mut c_void {
    // SAFETY: the function of that name has this type.
    unsafe {
        std::mem::transmute::<*mut c_void, unsafe extern "C" fn(isize) -> *mut c_void>(SBRK.get())(increment)
    }
}

const FAILED: *mut c_void = usize::MAX as *mut c_void;

fn pages(start: usize, end: usize) -> Range<PageIndex> {
    let up = |address: usize| PageIndex::of_address(address.next_multiple_of(PAGE_SIZE));
    up(start)..up(end)
}

/// `sbrk(2)`.
///
/// # Safety
/// As in C: above all, no thread may call it while another does.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn sbrk(increment: isize) -> *mut c_void {
    // SAFETY: the caller's contract.
    let call = || unsafe { next(increment) };
    let Some(process) = managed().filter(|_| increment != 0) else { return call() };
    // SAFETY: it moves nothing.
    let old = unsafe { next(0) }.addr();
    let Some(new) = old.checked_add_signed(increment) else { return call() };
    let (grown, gone) = (pages(old, new), pages(new, old));
    if grown.is_empty() && gone.is_empty() {
        return call();
    }
    let charged = (grown.end.0.saturating_sub(grown.start.0)) as i64;
    process.charge(charged);
    let entered = process.enter();
    let mut result = FAILED;
    let mut released = 0;
    if gone.is_empty() {
        result = call();
        if result != FAILED {
            released = entered.mapped(grown, Attributes::new(Access::Write, Charging::ByMapping));
        }
    } else if entered.manages(gone.clone()) {
        let mut run = || {
            result = call();
            if result == FAILED { Err(libc::ENOMEM) } else { Ok(()) }
        };
        (_, released) = entered.unmapping(gone, &mut run);
    } else {
        result = call();
    }
    drop(entered);
    process.uncharge(released + if result == FAILED { charged } else { 0 });
    result
}

/// `sbrk` by the name by which allocators that take its place call it.
///
/// # Safety
/// As of [`sbrk`].
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn __sbrk(increment: isize) -> *mut c_void {
    // SAFETY: the caller's contract.
    unsafe { sbrk(increment) }
}

/// `brk(2)`.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn brk(end: *mut c_void) -> c_int {
    // SAFETY: it moves nothing.
    let old = unsafe { next(0) }.addr();
    let increment = end.addr().wrapping_sub(old) as isize;
    // SAFETY: the caller's contract.
    if increment != 0 && unsafe { sbrk(increment) } == FAILED { -1 } else { 0 }
}
