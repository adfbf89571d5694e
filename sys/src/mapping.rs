//! Mappings of our own: reserved ranges of private anonymous memory.

use crate::procfs;
use pagetide_page::PAGE_SIZE;
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, MprotectFlags, ProtFlags};
use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicUsize, Ordering::Relaxed, Ordering::SeqCst};

/// Ranges whose pages the engine counts one by one: staging and the pool.
static COUNTED: [(AtomicUsize, AtomicUsize); 64] = [const { (AtomicUsize::new(0), AtomicUsize::new(0)) }; 64];

/// Returns whether a range holds pages that the engine counts one by one.
pub fn is_counted(start: usize, end: usize) -> bool {
    COUNTED.iter().any(|(from, to)| from.load(Relaxed) < end && start < to.load(Relaxed))
}

/// Returns the memory of this machine, in bytes.
pub fn machine_bytes() -> usize {
    let told = rustix::system::sysinfo();
    (told.totalram as usize).saturating_mul(told.mem_unit as usize)
}

/// Address space that this process may still take: by RLIMIT_AS, and by what the kernel has left to promise where it
/// promises no more than it has (`vm.overcommit_memory` 2). `usize::MAX` where nothing limits it. Allocates nothing.
pub fn room() -> usize {
    use crate::procfs::{field, read};
    use rustix::process::{Resource, getrlimit};
    let mut text = [0; pagetide_page::PAGE_SIZE];
    let limit = getrlimit(Resource::As).current.map_or(usize::MAX, |limit| limit as usize);
    let limited = if limit == usize::MAX {
        limit
    } else {
        let pages = read(c"/proc/thread-self/statm", &mut text)
            .split(' ')
            .next()
            .and_then(|pages| pages.parse().ok());
        limit.saturating_sub(pages.unwrap_or(0) * PAGE_SIZE)
    };
    // Read once: a process that starts asks several times, and each takes it 12 µs.
    static PROMISES_ALL: AtomicBool = AtomicBool::new(false);
    if PROMISES_ALL.load(Relaxed) || read(c"/proc/sys/vm/overcommit_memory", &mut text).trim() != "2" {
        PROMISES_ALL.store(true, Relaxed);
        return limited;
    }
    let said = read(c"/proc/meminfo", &mut text);
    let kilobytes = |name| field(said, name).unwrap_or(0) as usize;
    limited.min((kilobytes("CommitLimit:") << 10).saturating_sub(kilobytes("Committed_AS:") << 10))
}

/// A reserved range of private anonymous memory, readable and writable, charged only where touched.
/// Unmapped when dropped.
#[derive(Debug)]
pub struct Reservation {
    base: usize,
    length: usize,
}

impl Reservation {
    /// Reserves `length` bytes aligned to `align` (a power of two, at least a page).
    ///
    /// ```
    /// let range = pagetide_sys::mapping::Reservation::new(64 << 20, 2 << 20)?;
    /// assert_eq!((range.len(), range.base() % (2 << 20)), (64 << 20, 0));
    /// # Ok::<(), rustix::io::Errno>(())
    /// ```
    ///
    /// # Errors
    /// NOMEM if there is not so much address space.
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
        for (from, to) in [(start, base), (base + length, start + whole)] {
            if from < to {
                // SAFETY: a part of the new mapping, which nobody knows. An error leaves it to waste.
                let _ = unsafe { rustix::mm::munmap(from as *mut c_void, to - from) };
            }
        }
        Ok(Self { base, length })
    }

    /// A range of no bytes: nothing is reserved.
    pub const fn none() -> Self {
        Self { base: 0, length: 0 }
    }

    /// The same for the engine's own use: without huge pages, since what is moved page by page must not be split
    /// first, and in no core dump, which would be as large as what is reserved.
    ///
    /// # Errors
    /// As for [`Reservation::new`].
    pub fn small_pages(length: usize, align: usize) -> Result<Self, Errno> {
        let this = Self::new(length, align)?;
        // SAFETY: advice on our own new mapping; it changes no contents. An error means a kernel without
        // huge pages, which is what we want.
        let advise = |advice| unsafe { rustix::mm::madvise(this.base as *mut c_void, length, advice) };
        let _ = (advise(Advice::LinuxNoHugepage), advise(Advice::LinuxDontDump));
        Ok(this)
    }

    /// Notes that the engine counts the pages of this range one by one.
    pub fn counted(self) -> Self {
        let free = |(from, _): &&(AtomicUsize, AtomicUsize)| {
            from.compare_exchange(0, self.base, Relaxed, Relaxed).is_ok()
        };
        // With the table full it counts as any other memory of the engine: in doubt twice.
        if let Some((_, to)) = COUNTED.iter().find(free) {
            to.store(self.base + self.length, Relaxed);
        }
        self
    }

    /// The first address.
    pub fn base(&self) -> usize {
        self.base
    }
    /// Bytes reserved.
    pub fn len(&self) -> usize {
        self.length
    }
    /// Returns whether nothing is reserved.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Gives the memory of a part back; it reads as zeroes afterwards.
    ///
    /// # Panics
    /// If the part does not lie in the mapping.
    ///
    /// # Safety
    /// Nothing may hold a reference into the part.
    pub unsafe fn discard(&self, offset: usize, length: usize) {
        assert!(offset + length <= self.length);
        // SAFETY: the range lies in our own mapping; the caller vouches for references into it.
        unsafe { discard(self.base + offset, length) };
    }

    /// Gives the memory of several parts back, by as few calls as the kernel allows; they read as zeroes afterwards. A
    /// part is an offset and a length.
    ///
    /// # Panics
    /// If a part does not lie in the mapping.
    ///
    /// # Safety
    /// Nothing may hold a reference into a part.
    pub unsafe fn discard_all(&self, parts: impl Iterator<Item = (usize, usize)>) {
        let mut vector = [libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 }; DISCARDS_MAX];
        let mut count = 0;
        for (offset, length) in parts {
            assert!(offset + length <= self.length);
            if count == DISCARDS_MAX {
                // SAFETY: the ranges lie in our own mapping; the caller vouches for references into them.
                unsafe { discard_vector(&vector) };
                count = 0;
            }
            vector[count] = libc::iovec { iov_base: (self.base + offset) as *mut c_void, iov_len: length };
            count += 1;
        }
        // SAFETY: as above.
        unsafe { discard_vector(&vector[..count]) };
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
        if self.length == 0 {
            return;
        }
        if let Some((from, to)) = COUNTED.iter().find(|(from, _)| from.load(Relaxed) == self.base) {
            to.store(0, Relaxed);
            from.store(0, Relaxed);
        }
        // SAFETY: the mapping is ours and whoever borrowed from it is gone with `self`.
        let _ = unsafe { rustix::mm::munmap(self.base as *mut c_void, self.length) };
    }
}

/// Maps fresh private anonymous memory at a range, without huge pages; `how` is FIXED or FIXED_NOREPLACE.
///
/// # Safety
/// With FIXED the range must belong to the caller, and nothing may refer to its contents.
unsafe fn map_at(address: usize, length: usize, how: MapFlags) -> Result<(), Errno> {
    let at = address as *mut c_void;
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | how;
    // SAFETY: the caller owns what is there; FIXED_NOREPLACE maps only where nothing is. Then: advice on a
    // new mapping of our own, of which an error means a kernel without huge pages.
    unsafe {
        rustix::mm::mmap_anonymous(at, length, ProtFlags::READ | ProtFlags::WRITE, flags)?;
        let _ = rustix::mm::madvise(at, length, Advice::LinuxNoHugepage);
    }
    Ok(())
}

/// Replaces a range by fresh private anonymous memory, without huge pages.
///
/// # Errors
/// NOMEM: a limit on address space is exceeded already.
///
/// # Safety
/// The range must belong to the caller, and nothing may refer to its contents.
pub unsafe fn replace(address: usize, length: usize) -> Result<(), Errno> {
    // SAFETY: the caller owns the range.
    unsafe { map_at(address, length, MapFlags::FIXED) }
}

/// The target of an `mremap` that has failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Restored {
    /// It is what it was.
    Untouched,
    /// It had been unmapped, and is fresh memory now.
    Anew,
    /// It had been unmapped, and may be another mapping now.
    Lost,
}

/// Takes a range of ours again, onto which an `mremap` failed with `error`.
///
/// Before Linux 6.17 the target is unmapped before the source is looked at (`mremap_to`), and for a moment
/// any thread may map there.
///
/// # Safety
/// The range must have been the caller's, and nothing may refer to its contents.
pub unsafe fn restore_target(address: usize, length: usize, error: Errno) -> Restored {
    match take_hole(address, length) {
        Ok(()) => Restored::Anew,
        // With too many mappings it fails before anything else.
        Err(Errno::EXIST) if error == Errno::NOMEM || !unmaps_first() => Restored::Untouched,
        Err(_) => Restored::Lost,
    }
}

/// Returns whether `mremap` unmaps its target before it looks at its source.
fn unmaps_first() -> bool {
    kernel_version() < (6, 17)
}

/// Returns the version of the kernel, for what it does not tell otherwise.
pub fn kernel_version() -> (u32, u32) {
    let release = rustix::system::uname();
    let text = release.release().to_string_lossy();
    let mut numbers = text.split(|char: char| !char.is_ascii_digit()).map(|part| part.parse().unwrap_or(0));
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0))
}

/// Gives the memory of a range back; it reads as zeroes afterwards.
///
/// # Safety
/// The range must belong to the caller, and nothing may refer to its contents.
pub unsafe fn discard(address: usize, length: usize) {
    // SAFETY: the caller owns the range.
    let result = unsafe { rustix::mm::madvise(address as *mut c_void, length, Advice::LinuxDontNeed) };
    debug_assert_eq!(result, Ok(()));
}

/// Ranges that are given back by one call at most.
const DISCARDS_MAX: usize = 64;

/// Whether several ranges are given back by one call: one of the following.
static VECTORED: AtomicU8 = AtomicU8::new(UNKNOWN);
const UNKNOWN: u8 = 0;
const YES: u8 = 1;
const NO: u8 = 2;
/// Threads that are in such a call, or about to make it.
static UNDER_WAY: AtomicUsize = AtomicUsize::new(0);

/// Has ranges be given back one by one from now on, and waits for calls of another kind that are under way: the program is
/// about to put itself into a sandbox (seccomp), which may end it for a call that it does not make itself.
pub fn discard_one_by_one() {
    VECTORED.store(NO, SeqCst);
    // A forked child may have calls counted that were its parent's.
    for _ in 0..1000 {
        if UNDER_WAY.load(SeqCst) == 0 {
            return;
        }
        rustix::thread::sched_yield();
    }
}

/// Returns whether several ranges may be given back by one call just now: not in a sandbox.
fn may_vector() -> bool {
    if VECTORED.load(SeqCst) == UNKNOWN {
        let first = if procfs::is_sandboxed() { NO } else { YES };
        // The program may have put itself into one meanwhile.
        let _ = VECTORED.compare_exchange(UNKNOWN, first, SeqCst, SeqCst);
    }
    VECTORED.load(SeqCst) == YES
}

/// Gives the memory of ranges back: by one call (Linux 6.13), which interrupts the other processors once, or one by one.
///
/// # Safety
/// As for [`discard`].
unsafe fn discard_vector(ranges: &[libc::iovec]) {
    /// `PIDFD_SELF_THREAD_GROUP`: the calling process.
    const SELF: libc::c_int = -10001;
    let mut done = 0;
    if ranges.len() > 1 {
        UNDER_WAY.fetch_add(1, SeqCst);
        if may_vector() {
            let (first, count) = (ranges.as_ptr(), ranges.len());
            // SAFETY: the vector is live for the call; the caller owns the ranges.
            let result = unsafe {
                libc::syscall(libc::SYS_process_madvise, SELF, first, count, libc::MADV_DONTNEED, 0)
            };
            if result < 0 {
                VECTORED.store(NO, SeqCst);
            }
            done = result.max(0) as usize;
        }
        UNDER_WAY.fetch_sub(1, SeqCst);
    }
    for range in ranges {
        // Where it was stopped the rest goes one by one, what was done in part once more.
        if range.iov_len <= done {
            done -= range.iov_len;
        } else {
            done = 0;
            // SAFETY: the caller's contract.
            unsafe { discard(range.iov_base.addr(), range.iov_len) };
        }
    }
}

/// Makes a range readable and writable.
///
/// # Errors
/// NOMEM: the process has as many mappings as it may.
///
/// # Safety
/// The range must belong to the caller.
pub unsafe fn make_writable(address: usize, length: usize) -> Result<(), Errno> {
    // SAFETY: the caller owns the range; more access cannot invalidate a reference.
    unsafe {
        rustix::mm::mprotect(address as *mut c_void, length, MprotectFlags::READ | MprotectFlags::WRITE)
    }
}

/// Gives a range the access that `protection` says (`PROT_*`).
///
/// # Errors
/// NOMEM: the process has as many mappings as it may.
///
/// # Safety
/// The range must belong to the caller, and nothing may refer to its contents.
pub unsafe fn protect(address: usize, length: usize, protection: i32) -> Result<(), Errno> {
    let flags = MprotectFlags::from_bits_retain(protection as u32);
    // SAFETY: the caller owns the range.
    unsafe { rustix::mm::mprotect(address as *mut c_void, length, flags) }
}

/// Maps fresh memory where a range of ours was unmapped. EEXIST if it is another mapping already.
///
/// # Errors
/// EXIST if another mapping is there.
pub fn take_hole(address: usize, length: usize) -> Result<(), Errno> {
    // SAFETY: the mapping comes about only where there is none.
    unsafe { map_at(address, length, MapFlags::FIXED_NOREPLACE) }
}

/// `mremap` with all its arguments, as the kernel has it.
///
/// # Errors
/// As for `mremap(2)`.
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

/// Keeps a value out of core dumps and in memory, with what else lies on its pages. Best effort: a process that may
/// lock nothing goes without the lock.
pub fn keep_secret<T>(value: &T) {
    let start = std::ptr::from_ref(value).addr() / PAGE_SIZE * PAGE_SIZE;
    let end = (std::ptr::from_ref(value).addr() + size_of::<T>()).next_multiple_of(PAGE_SIZE);
    // SAFETY: neither changes contents or mappings.
    unsafe {
        let _ = rustix::mm::mlock(start as *mut c_void, end - start);
        let _ = rustix::mm::madvise(start as *mut c_void, end - start, Advice::LinuxDontDump);
    }
}

pub(crate) fn last_errno() -> Errno {
    Errno::from_raw_os_error(std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_that_a_failed_mremap_unmapped_is_taken_again() {
        let range = Reservation::new(4 * PAGE_SIZE, PAGE_SIZE).unwrap();
        let target = range.base() + PAGE_SIZE;
        // SAFETY: memory of this test, to which nothing refers.
        unsafe {
            rustix::mm::munmap(target as *mut c_void, 2 * PAGE_SIZE).unwrap();
            assert_eq!(restore_target(target, 2 * PAGE_SIZE, Errno::FAULT), Restored::Anew);
            *(target as *mut u64) = 7;
            // It is there: not unmapped, or somebody else's where the kernel unmaps first.
            assert_eq!(restore_target(target, 2 * PAGE_SIZE, Errno::NOMEM), Restored::Untouched);
            let now = if unmaps_first() { Restored::Lost } else { Restored::Untouched };
            assert_eq!(restore_target(target, 2 * PAGE_SIZE, Errno::FAULT), now);
            assert_eq!(*(target as *const u64), 7);
        }
    }
}
