//! Ranges of the program's addresses, as pages.

use crate::call::kernel;
use pagetide_swap::{PAGE_SIZE, PageIndex};
use std::ffi::c_int;
use std::ops::Range;

/// Advice as MADV_DONTNEED, also for memory that is locked (5.18).
pub(crate) const MADV_DONTNEED_LOCKED: c_int = 24;

/// The pages that bytes lie in, from the page of `address` on; `None` beyond the end of address space.
pub(crate) fn pages(address: usize, length: usize) -> Option<Range<PageIndex>> {
    let end = address.checked_add(length)?.checked_next_multiple_of(PAGE_SIZE)?;
    Some(PageIndex::of_address(address)..PageIndex::of_address(end))
}

/// The address at which a range begins, and its bytes.
pub(crate) fn bytes(range: &Range<PageIndex>) -> (usize, usize) {
    (range.start.address(), range.end.address() - range.start.address())
}

/// Passes advice for a range to the kernel.
pub(crate) fn advise(range: &Range<PageIndex>, advice: c_int) -> Result<usize, c_int> {
    let (start, length) = bytes(range);
    // SAFETY: the callers' contract: they pass advice that the program gave, or drop what nobody needs.
    unsafe { kernel(libc::SYS_madvise, [start, length, advice as usize, 0, 0, 0]) }
}

/// Drops pages in the kernel.
///
/// # Safety
/// Nothing may rely on the contents of the pages.
pub(crate) unsafe fn drop_pages(range: Range<PageIndex>) {
    if advise(&range, libc::MADV_DONTNEED).is_err() {
        // The program has locked them.
        let _ = advise(&range, MADV_DONTNEED_LOCKED);
    }
}
