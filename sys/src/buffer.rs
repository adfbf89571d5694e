//! Buffers for device I/O: whole pages, aligned for O_DIRECT.

use crate::PAGE;
use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::ops::{Deref, DerefMut};

/// An owned, page-aligned run of bytes.
pub struct Buffer {
    pointer: *mut u8,
    length: usize,
}

// SAFETY: a buffer owns its bytes like a boxed slice.
unsafe impl Send for Buffer {}
// SAFETY: shared access only reads.
unsafe impl Sync for Buffer {}

impl Buffer {
    /// A zeroed buffer of `pages` pages.
    ///
    /// # Panics
    /// If `pages` is zero.
    pub fn new(pages: usize) -> Self {
        assert!(pages > 0);
        let length = pages * PAGE;
        // SAFETY: the layout is not of size zero.
        let pointer = unsafe { alloc_zeroed(Self::layout(length)) };
        if pointer.is_null() {
            handle_alloc_error(Self::layout(length));
        }
        Self { pointer, length }
    }

    fn layout(length: usize) -> Layout {
        Layout::from_size_align(length, PAGE).expect("a page multiple is a valid layout")
    }
}

impl Deref for Buffer {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: we own `length` initialised bytes at `pointer`.
        unsafe { std::slice::from_raw_parts(self.pointer, self.length) }
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, borrowed mutably.
        unsafe { std::slice::from_raw_parts_mut(self.pointer, self.length) }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout in `new`.
        unsafe { dealloc(self.pointer, Self::layout(self.length)) };
    }
}

impl std::fmt::Debug for Buffer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Buffer({} bytes)", self.length)
    }
}
