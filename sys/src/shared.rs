//! Memory that the processes of a run share: a sealed-size memfd, seen as atomic words.

use crate::mapping::last_errno;
use rustix::fs::{MemfdFlags, Mode, OFlags};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};
use rustix::process::Resource;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::{AtomicU8, AtomicU64};

/// A mapping of shared memory, kept for the life of the process.
#[derive(Clone, Copy, Debug)]
pub struct Shared {
    base: usize,
    length: usize,
}

impl Shared {
    /// Creates shared memory of `length` bytes, named for `/proc/*/fd`.
    ///
    /// ```
    /// use pagetide_sys::shared::Shared;
    /// use std::sync::atomic::Ordering::Relaxed;
    ///
    /// let (fd, shared) = Shared::create("example", 4096)?;
    /// shared.words(0, 512)[3].store(7, Relaxed);
    /// // As another process sees it, which has the descriptor.
    /// assert_eq!(Shared::adopt(&fd)?.words(24, 1)[0].load(Relaxed), 7);
    /// # Ok::<(), rustix::io::Errno>(())
    /// ```
    ///
    /// # Errors
    /// NOMEM if there is no memory; MFILE or NFILE if there is no descriptor.
    pub fn create(name: &str, length: usize) -> Result<(OwnedFd, Self), Errno> {
        // The kernel would not just refuse, but send SIGXFSZ.
        if rustix::process::getrlimit(Resource::Fsize).current.is_some_and(|most| most < length as u64) {
            return Err(Errno::FBIG);
        }
        let fd = rustix::fs::memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        rustix::fs::ftruncate(&fd, length as u64)?;
        // Nobody can cut it short under a process that has it mapped.
        // Nor can a member keep others from writing to it.
        let this = Self::map(&fd, length)?;
        use rustix::fs::SealFlags;
        rustix::fs::fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        Ok((fd, this))
    }

    /// Maps shared memory that another process created, by its name under `/proc`.
    ///
    /// # Errors
    /// The error of the call that failed: the path cannot be opened, or its file not mapped.
    pub fn open(path: &Path) -> Result<Self, Errno> {
        Self::adopt(&rustix::fs::open(path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?)
    }

    /// Maps shared memory of which this process was handed a descriptor.
    ///
    /// # Errors
    /// The error of the call that failed: the file cannot be mapped.
    pub fn adopt(fd: &OwnedFd) -> Result<Self, Errno> {
        let length = rustix::fs::fstat(fd)?.st_size as usize;
        Self::map(fd, length)
    }

    fn map(fd: impl AsFd, length: usize) -> Result<Self, Errno> {
        // SAFETY: a new mapping at an address of the kernel's choice.
        let base = unsafe {
            rustix::mm::mmap(
                std::ptr::null_mut(),
                length,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED | MapFlags::NORESERVE,
                fd,
                0,
            )?
        };
        Ok(Self { base: base as usize, length })
    }

    /// Bytes mapped.
    pub fn len(&self) -> usize {
        self.length
    }

    /// Returns whether nothing is mapped.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// `count` words from byte `offset` on.
    ///
    /// # Panics
    /// If they do not lie in the mapping, or `offset` is not a multiple of 8.
    pub fn words(&self, offset: usize, count: usize) -> &'static [AtomicU64] {
        assert!(offset.is_multiple_of(8) && count <= self.length / 8 && offset <= self.length - count * 8);
        // SAFETY: (1) in bounds and aligned, as checked; (2) never unmapped; (3) other processes change it
        // by atomic operations only, and any bytes are valid.
        unsafe { std::slice::from_raw_parts((self.base + offset) as *const AtomicU64, count) }
    }

    /// `count` bytes from byte `offset` on.
    ///
    /// # Panics
    /// If they do not lie in the mapping.
    pub fn bytes(&self, offset: usize, count: usize) -> &'static [AtomicU8] {
        assert!(count <= self.length && offset <= self.length - count);
        // SAFETY: as for `words`.
        unsafe { std::slice::from_raw_parts((self.base + offset) as *const AtomicU8, count) }
    }
}

/// Waits until `word`'s low half is no longer `seen`, or `timeout` has passed. Spurious returns happen.
pub fn futex_wait(word: &AtomicU64, seen: u32, timeout: std::time::Duration) {
    let spec = libc::timespec {
        tv_sec: timeout.as_secs() as libc::time_t,
        tv_nsec: timeout.subsec_nanos() as libc::c_long,
    };
    // SAFETY: the word is a live, aligned u32 (the low half, on a little-endian machine).
    unsafe {
        libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAIT, seen, &raw const spec, 0, 0);
    }
}

/// Wakes everyone who waits on `word`.
pub fn futex_wake(word: &AtomicU64) {
    wake(word, i32::MAX);
}

/// Wakes one of those who wait on `word`.
pub fn futex_wake_one(word: &AtomicU64) {
    wake(word, 1);
}

fn wake(word: &AtomicU64, most: i32) {
    // SAFETY: as above; the kernel only looks the address up.
    let woken = unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAKE, most, 0, 0, 0) };
    debug_assert!(woken >= 0, "{}", last_errno());
}
const _: () = assert!(cfg!(target_endian = "little"));
