//! Buffers for device I/O: whole pages, aligned for O_DIRECT.
//!
//! They lie in a range of their own. What many requests under way have taken once would stay on the heap; here the
//! pages of a dropped buffer go back to the system, but for those of the lowest places while there is much to do
//! ([`keep`]): to give a page back and take it again costs more than to copy it.

use crate::mapping::Reservation;
use pagetide_page::PAGE_SIZE;
use rustix::mm::Advice;
use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::ops::{Deref, DerefMut};
use std::sync::OnceLock;
use std::sync::atomic::{
    AtomicU64, AtomicUsize, Ordering::AcqRel, Ordering::Acquire, Ordering::Relaxed, Ordering::Release,
};

/// Places in the range, a bit each, and their size. What finds none, or is larger, lies on the heap.
const PLACES: usize = u64::BITS as usize;
const PLACE: usize = 64 * PAGE_SIZE;
/// Places whose first page stays in any case: most requests are of one page, and the lowest place is taken first.
const SMALL_KEPT: usize = 8;
/// Places whose pages stay at most: 4 MiB.
const KEPT_MAX: usize = 16;

static RANGE: OnceLock<usize> = OnceLock::new();
static TAKEN: AtomicU64 = AtomicU64::new(0);
/// Places whose pages stay, from the lowest on.
static KEPT: AtomicUsize = AtomicUsize::new(0);
/// Places of which pages have stayed.
static FULL: AtomicU64 = AtomicU64::new(0);

/// The range's first address, or 0 where address space is short.
fn range() -> usize {
    *RANGE.get_or_init(|| match crate::mapping::room() / 64 {
        room if room < PLACES * PLACE => 0,
        _ => Reservation::small_pages(PLACES * PLACE, PAGE_SIZE).map_or(0, Reservation::leak),
    })
}

/// Takes a place. `None` if all are taken.
fn take() -> Option<usize> {
    let base = range();
    let lowest = |taken: u64| (base != 0 && taken != u64::MAX).then(|| taken | (taken + 1));
    let before = TAKEN.fetch_update(AcqRel, Acquire, lowest).ok()?;
    Some(base + before.trailing_ones() as usize * PLACE)
}

/// Gives back the place at `start`, of which `length` bytes were used.
fn give(start: usize, length: usize) {
    let place = (start - range()) / PLACE;
    let bit = 1 << place;
    if place < KEPT.load(Relaxed) {
        FULL.fetch_or(bit, Relaxed);
    } else {
        let length = if FULL.fetch_and(!bit, Relaxed) & bit == 0 { length } else { PLACE };
        let kept = if place < SMALL_KEPT { PAGE_SIZE } else { 0 };
        if length > kept {
            // SAFETY: part of a place that we have; nothing refers to its contents any more.
            unsafe { empty(start + kept, length - kept) };
        }
    }
    TAKEN.fetch_and(!bit, AcqRel);
}

/// From now on the pages of some places stay when their buffers are dropped: as many as `bytes` hold, at most 16 (4
/// MiB). What others have goes back now; that of buffers in use when they are dropped, or at the next call.
pub fn keep(bytes: usize) {
    let kept = (bytes / PLACE).min(KEPT_MAX);
    KEPT.store(kept, Relaxed);
    for place in kept..KEPT_MAX {
        let bit = 1 << place;
        if FULL.load(Relaxed) & bit != 0 && TAKEN.fetch_or(bit, AcqRel) & bit == 0 {
            give(range() + place * PLACE, PLACE);
        }
    }
}

/// Gives memory back to the system. An error leaves it.
///
/// # Safety
/// The pages must be part of a place that the caller has, with contents that nothing refers to.
unsafe fn empty(start: usize, length: usize) {
    // SAFETY: the caller's contract.
    let _ = unsafe { rustix::mm::madvise(start as *mut _, length, Advice::LinuxDontNeed) };
}

/// Frees all places, in a forked child: the threads that had buffers are not there. Their contents stay until the
/// places are used again.
pub fn forget_all() {
    TAKEN.store(0, Release);
}

/// An owned, page-aligned run of bytes.
pub struct Buffer {
    pointer: *mut u8,
    length: usize,
    /// Bytes on the heap; 0 for a place in the range.
    on_heap: usize,
}

// SAFETY: a buffer owns its bytes like a boxed slice.
unsafe impl Send for Buffer {}
// SAFETY: shared access only reads.
unsafe impl Sync for Buffer {}

impl Buffer {
    /// A buffer of `pages` pages. What is in it is of no meaning.
    ///
    /// ```
    /// let mut buffer = pagetide_sys::buffer::Buffer::new(2);
    /// buffer.fill(7);
    /// buffer.truncate(1);
    /// assert_eq!(buffer[..], [7; 4096]);
    /// ```
    ///
    /// # Panics
    /// If `pages` is zero.
    pub fn new(pages: usize) -> Self {
        assert!(pages > 0);
        let length = pages * PAGE_SIZE;
        if length <= PLACE
            && let Some(start) = take()
        {
            return Self { pointer: start as *mut u8, length, on_heap: 0 };
        }
        // SAFETY: the layout is not of size zero.
        let pointer = unsafe { alloc_zeroed(Self::layout(length)) };
        if pointer.is_null() {
            handle_alloc_error(Self::layout(length));
        }
        Self { pointer, length, on_heap: length }
    }

    /// Shortens it to its first `pages`.
    ///
    /// # Panics
    /// If there are fewer, or `pages` is zero.
    pub fn truncate(&mut self, pages: usize) {
        assert!((1..=self.length / PAGE_SIZE).contains(&pages));
        self.length = pages * PAGE_SIZE;
    }

    fn layout(length: usize) -> Layout {
        Layout::from_size_align(length, PAGE_SIZE).expect("a page multiple is a valid layout")
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
        match self.on_heap {
            0 => give(self.pointer as usize, self.length),
            // SAFETY: allocated with this layout in `new`.
            length => unsafe { dealloc(self.pointer, Self::layout(length)) },
        }
    }
}

impl std::fmt::Debug for Buffer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Buffer({} bytes)", self.length)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::{Mutex, MutexGuard, PoisonError};

    /// Keeps other tests from taking places meanwhile.
    fn alone() -> MutexGuard<'static, ()> {
        static ALONE: Mutex<()> = Mutex::new(());
        ALONE.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns whether the page at `address` is in memory.
    fn is_resident(address: usize) -> bool {
        let mut state = [0u8];
        // SAFETY: one page of a mapping of ours, and a byte for its state.
        let result = unsafe { libc::mincore(address as *mut _, PAGE_SIZE, state.as_mut_ptr()) };
        assert_eq!(result, 0);
        state[0] & 1 != 0
    }

    #[test]
    fn more_buffers_than_places_are_all_distinct_and_leave_nothing_behind() {
        let _alone = alone();
        let mut buffers: Vec<_> = (0..2 * PLACES).map(|nth| Buffer::new(1 + nth % 64)).collect();
        buffers.push(Buffer::new(65));
        for (nth, buffer) in buffers.iter_mut().enumerate() {
            assert_eq!(buffer.as_ptr() as usize % PAGE_SIZE, 0);
            buffer.fill(nth as u8);
        }
        for (nth, buffer) in buffers.iter().enumerate() {
            assert!(buffer.iter().all(|&byte| byte == nth as u8), "{nth}");
        }
        let places: Vec<usize> = buffers
            .iter()
            .filter(|buffer| buffer.on_heap == 0)
            .map(|buffer| buffer.as_ptr() as usize)
            .collect();
        assert!(places.len() > PLACES / 2);
        drop(buffers);
        for start in places.into_iter().filter(|start| (start - range()) / PLACE >= SMALL_KEPT) {
            assert!((0..PLACE / PAGE_SIZE).all(|page| !is_resident(start + page * PAGE_SIZE)));
        }
    }

    #[test]
    fn what_was_kept_goes_back_when_it_is_not_to_be_kept() {
        let _alone = alone();
        keep(2 * PLACE);
        drop((0..8).map(|_| Buffer::new(64)).collect::<Vec<_>>());
        keep(0);
        assert!(FULL.load(Relaxed) & !TAKEN.load(Relaxed) == 0);
    }

    #[test]
    fn a_shortened_buffer_keeps_what_is_left() {
        let _alone = alone();
        for pages in [8, 100] {
            let mut buffer = Buffer::new(pages);
            buffer.fill(7);
            buffer.truncate(3);
            assert_eq!((buffer.len(), buffer.iter().all(|&byte| byte == 7)), (3 * PAGE_SIZE, true));
        }
    }
}
