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
/// The address at which this process's own objects begin: what lies below was the parent's.
static OWN: AtomicUsize = AtomicUsize::new(0);

struct Segment;

// SAFETY: `alloc` hands out each byte of a reserved, readable and writable mapping once.
unsafe impl Allocator for Segment {
    fn alloc(&self, size: usize) -> (*mut u8, usize, u32) {
        // Called with the heap's lock held: no other thread reserves or takes.
        if BASE.load(Relaxed) == 0 && !reserve() {
            return (null_mut(), 0, 0);
        }
        let size = size.next_multiple_of(pagetide_page::PAGE_SIZE);
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
        pagetide_page::PAGE_SIZE
    }
}

fn reserve() -> bool {
    let most = crate::mapping::room() / 64 / pagetide_page::PAGE_SIZE * pagetide_page::PAGE_SIZE;
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

/// Returns where the heap begins and ends; both 0 if there is none yet.
pub fn range() -> (usize, usize) {
    match BASE.load(Acquire) {
        0 => (0, 0),
        base => (base, END.load(Relaxed)),
    }
}

/// Returns whether `address` lies in the heap.
pub fn contains(address: usize) -> bool {
    let base = BASE.load(Acquire);
    base != 0 && address >= base && address < END.load(Relaxed)
}

/// Returns whether an object was allocated by this process, not by one that it was forked from.
fn is_own(object: *mut u8) -> bool {
    object.addr() >= OWN.load(Relaxed)
}

impl Heap {
    /// An empty heap.
    pub const fn new() -> Self {
        Self { lock: AtomicU32::new(0), inner: UnsafeCell::new(Dlmalloc::new_with_allocator(Segment)) }
    }

    /// Begins anew, in a forked child: a thread of the parent may have been at work on the heap. What the parent
    /// allocated stays where it is, for good.
    ///
    /// # Safety
    /// No other thread may run.
    pub unsafe fn begin_anew(&self) {
        // SAFETY: nobody else refers to `inner`: the caller's contract, and this thread is not within. What it holds
        // is forgotten, not dropped: it may be half written.
        unsafe { self.inner.get().write(Dlmalloc::new_with_allocator(Segment)) };
        OWN.store(BASE.load(Relaxed) + USED.load(Relaxed), Relaxed);
        self.lock.store(0, Release);
    }

    fn lock(&self) {
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

    fn with<T>(&self, run: impl FnOnce(&mut Dlmalloc<Segment>) -> T) -> T {
        self.lock();
        // SAFETY: the lock is ours, so nobody else refers to `inner`.
        let result = run(unsafe { &mut *self.inner.get() });
        self.lock.store(0, Release);
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
        if is_own(pointer) {
            // SAFETY: the caller passes what `alloc` returned.
            self.with(|heap| unsafe { heap.free(pointer, layout.size(), layout.align()) });
        }
    }
    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        if !is_own(pointer) {
            // SAFETY: the caller's contract, with another size.
            let new = unsafe { self.alloc(Layout::from_size_align_unchecked(size, layout.align())) };
            if !new.is_null() {
                // SAFETY: both objects are as large, and the new one is nobody else's.
                unsafe { new.copy_from_nonoverlapping(pointer, size.min(layout.size())) };
            }
            return new;
        }
        // SAFETY: the caller passes what `alloc` returned.
        self.with(|heap| unsafe { heap.realloc(pointer, layout.size(), layout.align(), size) })
    }
}

/// The start of a range of address space that is set aside and never returned, for an arena of the
/// program's allocator: `None` where limits forbid it.
pub fn set_aside(length: usize, align: usize) -> Option<usize> {
    Some(crate::mapping::Reservation::new(length, align).ok()?.leak())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_heap_that_begins_anew_leaves_old_objects_alone() {
        static HEAP: Heap = Heap::new();
        let layout = Layout::from_size_align(100, 8).unwrap();
        let grown = Layout::from_size_align(5000, 8).unwrap();
        // SAFETY: each object is used within its size, and passed on with its layout.
        unsafe {
            let [kept, moved] = [1, 2].map(|byte| {
                let object = HEAP.alloc(layout);
                object.write_bytes(byte, 100);
                object
            });
            // Somebody was within.
            HEAP.lock();
            HEAP.begin_anew();
            let new: Vec<_> = (0..100).map(|_| HEAP.alloc_zeroed(layout)).collect();
            assert!(new.iter().all(|&object| object > kept.max(moved)));
            HEAP.dealloc(kept, layout);
            let moved = HEAP.realloc(moved, layout, 5000);
            assert!(moved > kept && (0..100).all(|at| moved.add(at).read() == 2));
            for object in new {
                assert_eq!(object.read(), 0);
                object.write_bytes(3, 100);
                HEAP.dealloc(object, layout);
            }
            assert!((0..100).all(|at| kept.add(at).read() == 1));
            HEAP.dealloc(moved, grown);
        }
    }
}
