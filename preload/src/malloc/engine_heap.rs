//! Objects of the engine's heap, behind a header that C callers do not see.

use super::ALIGN;
use std::alloc::{GlobalAlloc, Layout};
use std::ffi::c_void;
use std::ptr::null_mut;

/// Bytes before an object of the engine's heap: its layout.
const HEADER: usize = 16;

pub(super) unsafe fn allocate(size: usize, align: usize) -> *mut c_void {
    let align = align.max(ALIGN);
    let Some(total) = size.checked_add(align) else { return null_mut() };
    let Ok(layout) = Layout::from_size_align(total, align) else { return null_mut() };
    // SAFETY: the layout is not of size zero.
    let base = unsafe { crate::HEAP.alloc_zeroed(layout) };
    if base.is_null() {
        return null_mut();
    }
    // SAFETY: `align` ≥ 16 bytes lie before the object.
    unsafe {
        let object = base.add(align);
        object.sub(HEADER).cast::<[usize; 2]>().write([size, align]);
        object.cast()
    }
}

pub(super) unsafe fn layout(object: *mut c_void) -> (usize, usize) {
    // SAFETY: `allocate` wrote it there.
    let [size, align] = unsafe { object.cast::<u8>().sub(HEADER).cast::<[usize; 2]>().read() };
    (size, align)
}

pub(super) unsafe fn free(object: *mut c_void) {
    // SAFETY: the object came from `allocate`.
    unsafe {
        let (size, align) = layout(object);
        let layout = Layout::from_size_align_unchecked(size + align, align);
        crate::HEAP.dealloc(object.cast::<u8>().sub(align), layout);
    }
}
