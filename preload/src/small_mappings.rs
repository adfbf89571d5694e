//! Private mappings under 16 KiB: not managed until there are many, or one grows.

use pagetide_swap::PAGE_SIZE;
use pagetide_sys::maps::Maps;
use std::ffi::c_int;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;

/// Smaller mappings are not worth managing while they are few: 16 KiB. (A compiler may hold a seventh of its memory in such of 16
/// to 60.)
const MANAGED_MIN: usize = 4 * PAGE_SIZE;
/// Small mappings are many from 1 MiB on. One that is mapped, touched and unmapped again costs a fault through the engine more if it
/// is managed, so those that come and go are left out.
const MANY: usize = (1 << 20) / PAGE_SIZE;

/// Pages of small mappings that are not managed; about, for parts of mappings come and go as well.
static UNMANAGED: AtomicUsize = AtomicUsize::new(0);

/// Returns whether a private mapping of `length` bytes is worth managing.
pub(crate) fn is_worth_managing(length: usize) -> bool {
    length >= MANAGED_MIN || UNMANAGED.load(Relaxed) >= MANY
}

/// Counts a private mapping that was not worth managing.
pub(crate) fn count_mapped(length: usize) {
    UNMANAGED.fetch_add(length.div_ceil(PAGE_SIZE), Relaxed);
}

/// Counts memory that was not managed and is not mapped any more.
pub(crate) fn count_unmapped(length: usize) {
    if length < MANAGED_MIN {
        let less = |pages: usize| Some(pages.saturating_sub(length.div_ceil(PAGE_SIZE)));
        let _ = UNMANAGED.fetch_update(Relaxed, Relaxed, less);
    }
}

/// Returns the access to a mapping at `start` that was small and is of `length` bytes now, if it is worth managing and the kernel
/// has it as one piece of private anonymous memory.
pub(crate) fn grown(old_length: usize, start: usize, length: usize) -> Option<c_int> {
    if old_length >= MANAGED_MIN || length < MANAGED_MIN {
        return None;
    }
    count_unmapped(old_length);
    let mapping = Maps::open().ok()?.find(start).ok()??;
    (mapping.is_private_anonymous && mapping.end >= start + length).then_some(mapping.protection)
}
