//! The places of engine threads: their stacks lie together in one range, with the thread pointers, which alone tell
//! engine threads from the program's threads. An allocator asks that at every call.

use crate::arch::thread_pointer;
use crate::block::Layout;
use crate::mapping::Reservation;
use std::io;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};

const STACK: usize = 512 * 1024;
pub(crate) const ENGINE_THREADS_MAX: usize = 32;

/// The range of the stacks, once there is one.
static BASE: AtomicUsize = AtomicUsize::new(0);
static LENGTH: AtomicUsize = AtomicUsize::new(0);
pub(crate) static USED: AtomicUsize = AtomicUsize::new(0);
/// The kernel's number of each engine thread, which it clears when the engine thread ends; [`STARTING`] before there is
/// one.
pub(crate) static NUMBERS: [AtomicU32; ENGINE_THREADS_MAX] =
    [const { AtomicU32::new(0) }; ENGINE_THREADS_MAX];
pub(crate) const STARTING: u32 = u32::MAX;

/// Returns whether the calling thread is an engine thread.
#[inline]
pub fn is_engine_thread() -> bool {
    // Before the first engine thread the length is zero.
    thread_pointer().wrapping_sub(BASE.load(Relaxed)) < LENGTH.load(Relaxed)
}

/// The length of a stack with the block at its end.
pub(crate) fn stride(layout: &Layout) -> usize {
    STACK + layout.length().next_multiple_of(pagetide_page::PAGE_SIZE)
}

/// Returns the address of the range of the stacks, which the first call reserves.
pub(crate) fn stacks(stride: usize) -> io::Result<usize> {
    if LENGTH.load(Acquire) == 0 {
        // Two threads may come here at a time: one range is dropped. A lock could be held in a forked child for ever.
        let range = Reservation::small_pages(ENGINE_THREADS_MAX * stride, STACK)?;
        if BASE.compare_exchange(0, range.base(), Relaxed, Relaxed).is_ok() {
            LENGTH.store(range.len(), Release);
            range.leak();
        }
    }
    Ok(BASE.load(Relaxed))
}

/// Calls `each` with the place of every engine thread that there may be, and its number if it has one by now; until it
/// says that it is done with that engine thread.
pub(crate) fn for_each(mut each: impl FnMut(usize, Option<u32>) -> bool) {
    let mut index = 0;
    // An engine thread may start another meanwhile.
    while index < USED.load(Acquire).min(ENGINE_THREADS_MAX) {
        let number = NUMBERS[index].load(Acquire);
        if number == 0 || each(index, Some(number).filter(|&number| number != STARTING)) {
            index += 1;
        }
    }
}

/// The place of the calling engine thread.
pub(crate) fn own_place() -> usize {
    (thread_pointer() - BASE.load(Relaxed)) / (LENGTH.load(Relaxed) / ENGINE_THREADS_MAX)
}

/// Frees all places, in a forked child.
pub(crate) fn forget_all() {
    USED.store(0, Relaxed);
    NUMBERS.iter().for_each(|number| number.store(0, Relaxed));
}
