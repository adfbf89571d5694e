//! What `include/pagetide.h` finds here: figures of the run, for the program itself.

use crate::call::status;
use crate::current::process;
use pagetide::group::Figures;
use std::ffi::{c_int, c_void};

/// Writes the figures of the run and of this process to `out`, as many bytes of `struct pagetide_stats` as there are both
/// here and there; what this library does not know is 0.
///
/// Fails with ENOSYS in a process that does not belong to a run, and with EINVAL if `length` is no number of whole words.
///
/// # Safety
/// `out` has `length` bytes that may be written.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn pagetide_fill_stats(out: *mut c_void, length: usize) -> c_int {
    let Some(process) = process() else { return status(Err(libc::ENOSYS)) };
    if !length.is_multiple_of(size_of::<u64>()) {
        return status(Err(libc::EINVAL));
    }
    let figures = process.group().figures(process.slot());
    let known = length.min(size_of::<Figures>());
    // SAFETY: both have `known` bytes, and the rest of `out` is within `length`; `Figures` has no padding.
    unsafe {
        std::ptr::copy_nonoverlapping((&raw const figures).cast::<u8>(), out.cast(), known);
        std::ptr::write_bytes(out.cast::<u8>().add(known), 0, length - known);
    }
    status(Ok(0))
}
