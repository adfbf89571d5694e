//! Mappings of our own: reserved ranges of private anonymous memory.

use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, MprotectFlags, ProtFlags};
use std::ffi::c_void;

/// A reserved range of private anonymous memory, readable and writable, charged only where touched.
/// Unmapped when dropped.
#[derive(Debug)]
pub struct Reservation {
    base: usize,
    length: usize,
    whole: (usize, usize),
}

impl Reservation {
    /// Reserves `length` bytes aligned to `align` (a power of two, at least a page).
    pub fn new(length: usize, align: usize) -> Result<Self, Errno> {
        let whole = length.checked_add(align).ok_or(Errno::NOMEM)?;
        // SAFETY: a new mapping at an address of the kernel's choice touches nothing that exists.
        let start = unsafe {
            rustix::mm::mmap_anonymous(
                std::ptr::null_mut(),
                whole,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE | MapFlags::NORESERVE,
            )?
        } as usize;
        let base = start.next_multiple_of(align);
        Ok(Self { base, length, whole: (start, whole) })
    }

    /// The same, without huge pages: what is moved page by page must not be split first.
    pub fn small_pages(length: usize, align: usize) -> Result<Self, Errno> {
        let this = Self::new(length, align)?;
        // SAFETY: advice on our own new mapping; it changes no contents. An error means a kernel without
        // huge pages, which is what we want.
        let _ = unsafe { rustix::mm::madvise(this.base as *mut c_void, length, Advice::LinuxNoHugepage) };
        Ok(this)
    }

    /// The first address.
    pub fn base(&self) -> usize {
        self.base
    }
    /// Bytes reserved.
    pub fn len(&self) -> usize {
        self.length
    }
    /// Whether nothing is reserved.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Gives the memory of a part back; it reads as zeroes afterwards.
    ///
    /// # Safety
    /// Nothing may hold a reference into the part.
    pub unsafe fn discard(&self, offset: usize, length: usize) {
        assert!(offset + length <= self.length);
        // SAFETY: the range lies in our own mapping; the caller vouches for references into it.
        let result = unsafe {
            rustix::mm::madvise((self.base + offset) as *mut c_void, length, Advice::LinuxDontNeed)
        };
        debug_assert_eq!(result, Ok(()));
    }

    /// Gives a range to whoever calls and never unmaps it.
    pub fn leak(self) -> usize {
        let base = self.base;
        std::mem::forget(self);
        base
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours and whoever borrowed from it is gone with `self`.
        let _ = unsafe { rustix::mm::munmap(self.whole.0 as *mut c_void, self.whole.1) };
    }
}

/// Replaces a range by fresh private anonymous memory.
///
/// # Safety
/// The range must belong to the caller, and nothing may refer to its contents.
pub unsafe fn replace(address: usize, length: usize) -> Result<(), Errno> {
    // SAFETY: the caller owns the range.
    unsafe {
        rustix::mm::mmap_anonymous(
            address as *mut c_void,
            length,
            ProtFlags::READ | ProtFlags::WRITE,
            MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED,
        )?;
    }
    Ok(())
}

/// Makes a range readable and writable.
///
/// # Safety
/// The range must belong to the caller.
pub unsafe fn make_writable(address: usize, length: usize) -> Result<(), Errno> {
    // SAFETY: the caller owns the range; more access cannot invalidate a reference.
    unsafe {
        rustix::mm::mprotect(address as *mut c_void, length, MprotectFlags::READ | MprotectFlags::WRITE)
    }
}

/// `mremap` with all its arguments, as the kernel has it.
///
/// # Safety
/// As for the system call: memory may vanish or appear at both ranges.
pub unsafe fn remap(
    old: usize,
    old_len: usize,
    new_len: usize,
    flags: i32,
    new: usize,
) -> Result<usize, Errno> {
    // SAFETY: the caller vouches for both ranges.
    let result = unsafe { libc::syscall(libc::SYS_mremap, old, old_len, new_len, flags as usize, new) };
    if result == -1 { Err(last_errno()) } else { Ok(result as usize) }
}

pub(crate) fn last_errno() -> Errno {
    Errno::from_raw_os_error(std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO))
}
