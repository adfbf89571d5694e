//! The engine's own heap: dlmalloc on memory that is never managed.
//!
//! A preloaded library must not allocate from the program's `malloc`: that memory is managed, and an
//! engine thread that faults on it waits for itself.

use dlmalloc::{Allocator, Dlmalloc};
use rustix::mm::{Advice, MapFlags, ProtFlags};
use std::alloc::{GlobalAlloc, Layout};
use std::cell::UnsafeCell;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};

/// Address space for the heap: a 64th of what there is where it is limited, halved until the reservation
/// succeeds.
const RESERVE_MAX: usize = 64 << 30;
const RESERVE_MIN: usize = 16 << 20;

/// A heap behind one lock. Usable as the global allocator.
pub struct Heap {
    lock: AtomicU32,
    inner: UnsafeCell<Dlmalloc<Segment>>,
}

// SAFETY: `inner` is touched only with `lock` held.
unsafe impl Sync for Heap {}

static BASE: AtomicUsize = AtomicUsize::new(0);
static END: AtomicUsize = AtomicUsize::new(0);
static USED: AtomicUsize = AtomicUsize::new(0);

struct Segment;

// SAFETY: `alloc` hands out each byte of a reserved, readable and writable mapping once.
unsafe impl Allocator for Segment {
    fn alloc(&self, size: usize) -> (*mut u8, usize, u32) {
        // Called with the heap's lock held: no other thread reserves or takes.
        if BASE.load(Relaxed) == 0 && !reserve() {
            return (null_mut(), 0, 0);
        }
        let size = size.next_multiple_of(crate::PAGE);
        let start = BASE.load(Relaxed) + USED.load(Relaxed);
        if start + size > END.load(Relaxed) {
            return (null_mut(), 0, 0);
        }
        USED.fetch_add(size, Relaxed);
        (start as *mut u8, size, 0)
    }
    fn remap(&self, _: *mut u8, _: usize, _: usize, _: bool) -> *mut u8 {
        null_mut()
    }
    fn free_part(&self, _: *mut u8, _: usize, _: usize) -> bool {
        false
    }
    fn free(&self, _: *mut u8, _: usize) -> bool {
        false
    }
    fn can_release_part(&self, _: u32) -> bool {
        false
    }
    fn allocates_zeros(&self) -> bool {
        true
    }
    fn page_size(&self) -> usize {
        crate::PAGE
    }
}

fn reserve() -> bool {
    let most = crate::mapping::room() / 64 / crate::PAGE * crate::PAGE;
    let mut length = most.clamp(RESERVE_MIN, RESERVE_MAX);
    while length >= RESERVE_MIN {
        // SAFETY: a new mapping at an address of the kernel's choice.
        let mapped = unsafe {
            rustix::mm::mmap_anonymous(
                null_mut(),
                length,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE | MapFlags::NORESERVE,
            )
        };
        if let Ok(base) = mapped {
            // SAFETY: advice on our own mapping.
            let _ = unsafe {
                // A core dump would be as large as what is reserved.
                let _ = rustix::mm::madvise(base, length, Advice::LinuxDontDump);
                rustix::mm::madvise(base, length, Advice::LinuxNoHugepage)
            };
            END.store(base as usize + length, Relaxed);
            BASE.store(base as usize, Release);
            return true;
        }
        length /= 2;
    }
    false
}

/// Whether `address` lies in the heap.
pub fn contains(address: usize) -> bool {
    let base = BASE.load(Acquire);
    base != 0 && address >= base && address < END.load(Relaxed)
}

/// Bytes that the heap has taken so far.
pub fn bytes() -> usize {
    USED.load(Relaxed)
}

impl Heap {
    /// An empty heap.
    pub const fn new() -> Self {
        Self { lock: AtomicU32::new(0), inner: UnsafeCell::new(Dlmalloc::new_with_allocator(Segment)) }
    }

    /// Takes the heap's lock: around a fork, so that the child finds the heap whole.
    pub fn lock(&self) {
        while self.lock.compare_exchange(0, 1, Acquire, Relaxed).is_err() {
            // Held for tens of nanoseconds: spin a little, then let the holder run.
            for _ in 0..64 {
                if self.lock.load(Relaxed) == 0 {
                    break;
                }
                std::hint::spin_loop();
            }
            if self.lock.load(Relaxed) != 0 {
                rustix::thread::sched_yield();
            }
        }
    }

    /// Releases the lock.
    ///
    /// # Safety
    /// The caller, or the parent that it was forked from, must hold it.
    pub unsafe fn unlock(&self) {
        self.lock.store(0, Release);
    }

    fn with<T>(&self, run: impl FnOnce(&mut Dlmalloc<Segment>) -> T) -> T {
        self.lock();
        // SAFETY: the lock is ours, so nobody else refers to `inner`.
        let result = run(unsafe { &mut *self.inner.get() });
        // SAFETY: taken above.
        unsafe { self.unlock() };
        result
    }
}

impl Default for Heap {
    fn default() -> Self {
        Self::new()
    }
}

// SAFETY: dlmalloc keeps the contract of an allocator under the lock.
unsafe impl GlobalAlloc for Heap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the layout is passed on.
        self.with(|heap| unsafe { heap.malloc(layout.size(), layout.align()) })
    }
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the layout is passed on.
        self.with(|heap| unsafe { heap.calloc(layout.size(), layout.align()) })
    }
    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller passes what `alloc` returned.
        self.with(|heap| unsafe { heap.free(pointer, layout.size(), layout.align()) });
    }
    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: the caller passes what `alloc` returned.
        self.with(|heap| unsafe { heap.realloc(pointer, layout.size(), layout.align(), size) })
    }
}

/// The start of a range of address space that is set aside and never returned, for an arena of the
/// program's allocator: `None` where limits forbid it.
pub fn set_aside(length: usize, align: usize) -> Option<usize> {
    Some(crate::mapping::Reservation::new(length, align).ok()?.leak())
}
