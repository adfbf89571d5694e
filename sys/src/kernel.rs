//! The program's memory as the kernel sees it: userfaultfd and page tables of this process.

use crate::pagemap::Pagemap;
use crate::staging::{Slot, Staging, TakeOutWay};
use crate::uffd::{FEATURE_MOVE, Fault, Partial, Uffd};
use rustix::io::Errno;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// A handle on the memory of the calling process.
#[derive(Debug)]
pub struct Kernel {
    uffd: Uffd,
    pagemap: Pagemap,
    no_remap: Backoff,
}

/// Leaves out attempts at what has failed, twice as many after each failure.
#[derive(Debug, Default)]
struct Backoff {
    left: AtomicU32,
    next: AtomicU32,
}

impl Backoff {
    const FIRST: u32 = 1024;

    /// Whether this attempt is to be left out.
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
    /// # Safety
    /// From now on the safe methods may take memory away and bring it back at any address that is passed
    /// to them: the caller must pass only ranges of the *program's* private memory that were registered
    /// here, and must answer every fault there.
    pub unsafe fn open() -> Result<Self, Errno> {
        Ok(Self { uffd: Uffd::open()?, pagemap: Pagemap::open()?, no_remap: Backoff::default() })
    }

    /// Whether pages can be moved (UFFDIO_MOVE, Linux 6.8).
    pub fn can_move(&self) -> bool {
        self.uffd.features() & FEATURE_MOVE != 0
    }

    /// The view of the page tables.
    pub fn pagemap(&self) -> &Pagemap {
        &self.pagemap
    }

    /// Slots for pages on their way out.
    pub fn slots(count: u16) -> Result<Vec<Slot>, Errno> {
        Staging::slots(count)
    }

    /// Waits for a fault.
    pub fn wait(&self) -> Result<Option<Fault>, Errno> {
        self.uffd.read()
    }

    /// Registers a range; huge pages are switched off there, and pages in it stay.
    pub fn register(&self, start: usize, length: usize) -> Result<(), Errno> {
        // SAFETY: advice changes no contents. An error means a kernel without huge pages.
        let _ = unsafe { rustix::mm::madvise(start as *mut _, length, rustix::mm::Advice::LinuxNoHugepage) };
        // SAFETY: the contract of `open`.
        unsafe { self.uffd.register(start, length) }
    }

    /// Takes a range out of our care, for a mapping call that moves it.
    ///
    /// Moved while it is registered, it could become one with a registered neighbour, whose registration would
    /// be lost with its own.
    pub fn unregister(&self, start: usize, length: usize) -> Result<(), Errno> {
        // SAFETY: the caller registers it anew before the program can look at it again.
        unsafe { self.uffd.unregister(start, length) }
    }

    /// Wakes whoever waits in the range.
    pub fn wake(&self, start: usize, length: usize) {
        self.uffd.wake(start, length);
    }

    /// From now on nobody is woken but by [`Kernel::wake_due`], or no longer so.
    pub fn set_quiet(&self, quiet: bool) {
        self.uffd.set_quiet(quiet);
    }

    /// Whether nobody is woken but by [`Kernel::wake_due`].
    pub fn is_quiet(&self) -> bool {
        self.uffd.is_quiet()
    }

    /// Wakes whom the calling thread was to wake while it was quiet.
    pub fn wake_due(&self) {
        self.uffd.wake_due();
    }

    /// Copies bytes to missing pages and wakes.
    pub fn copy_in(&self, dst: usize, bytes: &[u8]) -> Partial {
        // SAFETY: the contract of `open`.
        unsafe { self.uffd.copy(dst, bytes) }
    }

    /// Maps zero pages at missing pages and wakes.
    pub fn zero_in(&self, dst: usize, length: usize) -> Partial {
        // SAFETY: the contract of `open`.
        unsafe { self.uffd.zero(dst, length) }
    }

    /// Makes pages unreadable.
    pub fn poison(&self, start: usize, length: usize) -> bool {
        // SAFETY: the contract of `open`.
        unsafe { self.uffd.poison(start, length) }
    }

    /// Takes pages out of the program into `slot`.
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
        // SAFETY: the contract of `open`.
        let result = unsafe { slot.take_out(start, length, writable, way, &self.uffd, &self.pagemap) };
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
        unsafe { slot.copy_in(page, count, dst, &self.uffd) }
    }

    /// Moves frames of `slot` to missing pages.
    pub fn move_from(&self, slot: &mut Slot, page: usize, count: usize, dst: usize) -> Partial {
        // SAFETY: the contract of `open`.
        unsafe { slot.move_in(page, count, dst, &self.uffd) }
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
