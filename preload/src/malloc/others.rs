//! Functions of the allocator that served the program before us, or serves a part of it: objects of neither of ours are
//! its.

use crate::next::Next;
use std::ffi::c_void;

static FREE: Next = Next::new(c"free");
static REALLOC: Next = Next::new(c"realloc");
static USABLE: Next = Next::new(c"malloc_usable_size");

/// Frees an object.
#[cold]
pub(super) unsafe fn free(object: *mut c_void) {
    if let Some(next) = FREE.find() {
        // SAFETY: a function named `free` has this type, and the object is nobody else's.
        unsafe { std::mem::transmute::<*mut c_void, unsafe extern "C" fn(*mut c_void)>(next)(object) };
    }
}

/// Changes an object's size.
#[cold]
pub(super) unsafe fn realloc(object: *mut c_void, size: usize) -> *mut c_void {
    type Realloc = unsafe extern "C" fn(*mut c_void, usize) -> *mut c_void;
    // SAFETY: as above.
    unsafe { std::mem::transmute::<*mut c_void, Realloc>(REALLOC.get())(object, size) }
}

/// The bytes that may be used of an object; 0 if nobody can tell.
#[cold]
pub(super) unsafe fn usable(object: *mut c_void) -> usize {
    USABLE.find().map_or(0, |next| {
        // SAFETY: as above.
        unsafe {
            std::mem::transmute::<*mut c_void, unsafe extern "C" fn(*mut c_void) -> usize>(next)(object)
        }
    })
}
