//! The program's memory as the kernel sees it: userfaultfd and page tables of this process.

use crate::arch::thread_pointer;
use crate::lock::lock;
use crate::maps::Maps;
use crate::pagemap::Pagemap;
use crate::staging::{Slot, Staging, TakeOutWay, Views};
use crate::uffd::{FEATURE_MOVE, FEATURE_PAGEFAULT_WP, FEATURE_WP_ASYNC, Fault, Partial, Uffd};
use rustix::io::Errno;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering::Relaxed, Ordering::SeqCst};

/// The use of the protection of pages against writes: a userfaultfd has one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Writes {
    /// Writes go on, and the kernel notes them ([`Pagemap::written`], 6.7).
    Noted,
    /// A write to a protected page is a fault that waits for an answer ([`Kernel::stop_writes`], 5.7).
    Stopped,
}

/// A handle on the memory of the calling process.
#[derive(Debug)]
pub struct Kernel {
    uffd: Uffd,
    pagemap: Pagemap,
    maps: Maps,
    has_zero_page: bool,
    no_remap: Backoff,
    quiet: AtomicBool,
    due: Mutex<Vec<Due>>,
    /// The number of those.
    put_off: AtomicUsize,
}

/// Work that a thread has put off: a page that comes in, or a wake.
#[derive(Debug)]
struct Due {
    thread: usize,
    start: usize,
    length: usize,
    /// The bytes that come in; none if they are there already.
    bytes: Box<[u8]>,
}

/// Leaves out attempts at what has failed, twice as many after each failure.
#[derive(Debug, Default)]
struct Backoff {
    left: AtomicU32,
    next: AtomicU32,
}

impl Backoff {
    const FIRST: u32 = 1024;

    /// Returns whether this attempt is to be left out.
    fn skips(&self) -> bool {
        self.left.load(Relaxed) > 0
            && self.left.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(1)).is_ok()
    }

    fn failed(&self) {
        let next = self.next.load(Relaxed).max(Self::FIRST);
        self.left.store(next, Relaxed);
        self.next.store(next.saturating_mul(2), Relaxed);
    }
}

impl Kernel {
    /// Opens it. Descriptors land in the table of the calling thread.
    ///
    /// # Errors
    /// The error of [`Uffd::open`] or [`Uffd::open_stopping_writes`], or of the files in `/proc` that show the memory of this process.
    ///
    /// # Safety
    /// From now on the safe methods may take memory away and bring it back at any address that is passed
    /// to them: the caller must pass only ranges of the *program's* private memory that were registered
    /// here, and must answer every fault there.
    pub unsafe fn open(writes: Writes) -> Result<Self, Errno> {
        let uffd = match writes {
            Writes::Noted => Uffd::open()?,
            Writes::Stopped => Uffd::open_stopping_writes()?,
        };
        let pagemap = Pagemap::open()?;
        let version = crate::mapping::kernel_version();
        let moves_zero = uffd.features() & FEATURE_MOVE == 0 || version >= (6, 9);
        let has_zero_page = version >= (6, 7) && moves_zero;
        Ok(Self {
            uffd,
            pagemap,
            has_zero_page,
            maps: Maps::open()?,
            no_remap: Backoff::default(),
            quiet: AtomicBool::new(false),
            due: Mutex::default(),
            put_off: AtomicUsize::new(0),
        })
    }

    /// Returns whether pages can be moved (UFFDIO_MOVE, Linux 6.8).
    pub fn can_move(&self) -> bool {
        self.uffd.features() & FEATURE_MOVE != 0
    }

    /// The view of the page tables.
    pub fn pagemap(&self) -> &Pagemap {
        &self.pagemap
    }

    /// Slots for pages on their way out.
    ///
    /// # Errors
    /// NOMEM if there is not so much address space.
    pub fn slots(count: u16) -> Result<Vec<Slot>, Errno> {
        Staging::slots(count)
    }

    /// Waits for a fault.
    ///
    /// # Errors
    /// INTR: a signal came.
    pub fn wait(&self) -> Result<Option<Fault>, Errno> {
        self.uffd.read()
    }

    /// Registers a range; huge pages are switched off there, and pages in it stay.
    ///
    /// # Errors
    /// INVAL if something else than private anonymous memory is mapped there; BUSY if another userfaultfd has it.
    pub fn register(&self, start: usize, length: usize) -> Result<(), Errno> {
        // SAFETY: advice changes no contents. An error means a kernel without huge pages.
        let _ = unsafe { rustix::mm::madvise(start as *mut _, length, rustix::mm::Advice::LinuxNoHugepage) };
        // SAFETY: the contract of `open`.
        unsafe { self.uffd.register_watched(start, length) }
    }

    /// Returns whether the kernel tells which pages were written ([`Pagemap::written`]).
    pub fn can_watch(&self) -> bool {
        self.uffd.features() & FEATURE_WP_ASYNC != 0
    }

    /// Returns whether writes to protected pages are stopped.
    pub fn can_stop_writes(&self) -> bool {
        self.uffd.features() & FEATURE_PAGEFAULT_WP != 0
    }

    /// Stops writes to those pages of a range that are there, until [`Kernel::allow_writes`].
    ///
    /// # Errors
    /// NOENT if a part of what is mapped there is not registered, or nothing is.
    pub fn stop_writes(&self, start: usize, length: usize) -> Result<(), Errno> {
        debug_assert!(self.can_stop_writes());
        self.uffd.write_protect(start, length, true)
    }

    /// Allows writes to a range again, and wakes nobody. What is not mapped or not registered any more is left alone.
    pub fn allow_writes(&self, start: usize, length: usize) {
        let _ = self.uffd.end_protection(start, length);
    }

    /// Takes a range out of our care, for a mapping call that moves it.
    ///
    /// Moved while it is registered, it could become one with a registered neighbour, whose registration would
    /// be lost with its own.
    ///
    /// # Errors
    /// INVAL if something is mapped there that could not be registered.
    pub fn unregister(&self, start: usize, length: usize) -> Result<(), Errno> {
        // SAFETY: the caller registers it anew before the program can look at it again.
        unsafe { self.uffd.unregister(start, length) }
    }

    /// Wakes whoever waits in the range.
    pub fn wake(&self, start: usize, length: usize) {
        if !self.puts_off(start, length, &[]) {
            self.uffd.wake(start, length);
        }
    }

    /// From now on pages come in, and threads are woken, only when whoever answers them calls [`Kernel::catch_up`]; or
    /// no longer so.
    pub fn set_quiet(&self, quiet: bool) {
        self.quiet.store(quiet, SeqCst);
    }

    /// Does what the calling thread has put off while it was quiet.
    pub fn catch_up(&self) {
        if self.put_off.load(SeqCst) == 0 {
            return;
        }
        let own = |due: &mut Due| due.thread == thread_pointer();
        let mine: Vec<Due> = lock(&self.due).extract_if(.., own).collect();
        self.put_off.fetch_sub(mine.len(), SeqCst);
        for Due { start, bytes, length, .. } in mine {
            // SAFETY: the contract of `open`.
            let mut copied = unsafe { self.uffd.copy(start, &bytes) };
            while let (_, Some(Errno::NOMEM)) = copied {
                rustix::thread::sched_yield();
                // SAFETY: as above.
                copied = unsafe { self.uffd.copy(start, &bytes) };
            }
            if bytes.is_empty() || copied.1.is_some() {
                self.uffd.wake(start, length);
            }
        }
    }

    /// Puts off, while it is quiet, that these bytes come in at `start` and whoever waits there wakes.
    fn puts_off(&self, start: usize, length: usize, bytes: &[u8]) -> bool {
        let quiet = self.quiet.load(SeqCst);
        if quiet {
            let due = Due { thread: thread_pointer(), start, length, bytes: bytes.into() };
            lock(&self.due).push(due);
            self.put_off.fetch_add(1, SeqCst);
        }
        quiet
    }

    /// Copies bytes to missing pages and wakes.
    pub fn copy_in(&self, dst: usize, bytes: &[u8]) -> Partial {
        if self.puts_off(dst, bytes.len(), bytes) {
            return (bytes.len(), None);
        }
        // SAFETY: the contract of `open`.
        unsafe { self.uffd.copy(dst, bytes) }
    }

    /// Returns whether pages may be the kernel's zero page: where the kernel says which are (6.7), and moves them if it moves
    /// pages at all (6.9; before they would stay where only MOVE takes pages out).
    pub fn has_zero_page(&self) -> bool {
        self.has_zero_page && self.pagemap.scans()
    }

    /// Maps the kernel's zero page at missing pages, and wakes. NOTSUP while it is quiet.
    pub fn map_zero_page(&self, dst: usize, length: usize) -> Partial {
        if self.quiet.load(SeqCst) {
            return (0, Some(Errno::NOTSUP));
        }
        // SAFETY: the contract of `open`.
        unsafe { self.uffd.zero_page(dst, length) }
    }

    /// Makes pages unreadable.
    pub fn poison(&self, start: usize, length: usize) -> bool {
        // SAFETY: the contract of `open`.
        unsafe { self.uffd.poison(start, length) }
    }

    /// Takes pages out of the program into `slot`.
    ///
    /// # Errors
    /// What stopped it: see [`Slot::take_out`].
    pub fn take_out(
        &self,
        start: usize,
        length: usize,
        writable: bool,
        way: TakeOutWay,
        slot: &mut Slot,
    ) -> Result<(), Errno> {
        if way == TakeOutWay::Remap && self.no_remap.skips() {
            return Err(Errno::NOMEM);
        }
        let views = Views { uffd: &self.uffd, pagemap: &self.pagemap, maps: &self.maps };
        // SAFETY: the contract of `open`.
        let result = unsafe { slot.take_out(start, length, writable, way, views) };
        if way == TakeOutWay::Remap && result == Err(Errno::NOMEM) {
            // The program has limited its address space, or has as many mappings as it may. The kernel has
            // unmapped the target then, and each attempt can lose a part of a slot for good.
            self.no_remap.failed();
        }
        result
    }

    /// Copies frames of `slot` to missing pages.
    pub fn copy_from(&self, slot: &Slot, page: usize, count: usize, dst: usize) -> Partial {
        // SAFETY: the contract of `open`.
        unsafe { self.uffd.copy(dst, slot.frames(page, count)) }
    }

    /// Moves frames of `slot` to missing pages.
    pub fn move_from(&self, slot: &mut Slot, page: usize, count: usize, dst: usize) -> Partial {
        // SAFETY: the contract of `open`.
        unsafe { slot.move_from(page, count, dst, &self.uffd, &self.pagemap) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_fails_is_tried_more_and_more_seldom() {
        let backoff = Backoff::default();
        assert!(!backoff.skips());
        for expected in [1024, 2048, 4096] {
            backoff.failed();
            assert_eq!((0..10_000).take_while(|_| backoff.skips()).count(), expected);
        }
    }
}
