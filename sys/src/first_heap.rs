//! The first heap: what a process allocates before it has used up 64 KiB.
//!
//! Most processes live for milliseconds and never allocate more. A full allocator would cost each of them a third of
//! its start: mimalloc asks the processor and the kernel what they are, and keeps books of twenty pages. Here objects
//! lie one behind another, and only the place of the last one is used again.

use std::cell::UnsafeCell;
use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// Bytes of it. What is never reached takes no memory; what is reached stays.
pub const SIZE: usize = 64 << 10;
/// A larger object would leave little for others.
pub const OBJECT_MAX: usize = SIZE / 4;
/// The least alignment of objects, and the greatest.
const ALIGN: usize = 16;
const ALIGN_MAX: usize = 4096;
/// Bytes before an object: its size.
const HEADER: usize = 16;

#[repr(C, align(4096))]
struct Memory(UnsafeCell<[u8; SIZE]>);

/// A heap for the life of a process: a static variable, which costs it no call.
///
/// ```text
/// │ size │ object … │ size │ object … │      free      │
///                                     used
/// ```
pub struct FirstHeap {
    memory: Memory,
    /// Bytes from its beginning that are taken.
    used: AtomicUsize,
}

// SAFETY: the memory below `used` belongs to the holders of objects, each to one, and no part of it is taken twice.
unsafe impl Sync for FirstHeap {}

impl FirstHeap {
    /// An empty heap.
    pub const fn new() -> Self {
        Self { memory: Memory(UnsafeCell::new([0; SIZE])), used: AtomicUsize::new(0) }
    }

    fn start(&self) -> usize {
        self.memory.0.get().addr()
    }

    /// Returns whether an address lies in it.
    pub fn contains(&self, address: usize) -> bool {
        address.wrapping_sub(self.start()) < SIZE
    }

    /// Bytes that are taken, with what is lost between objects.
    pub fn used(&self) -> usize {
        self.used.load(Relaxed)
    }

    /// A new object of `size` bytes at a multiple of `align`, a power of two. Its contents may be anything. Null if it
    /// is larger than [`OBJECT_MAX`], or finds no room.
    pub fn allocate(&self, size: usize, align: usize) -> *mut c_void {
        if size > OBJECT_MAX || align > ALIGN_MAX {
            return null_mut();
        }
        // An object of none would lie beyond the heap if it were the last.
        let size = size.max(1);
        let place = |used: usize| (used + HEADER).next_multiple_of(align.max(ALIGN));
        let take =
            |used: usize| Some((place(used) + size).next_multiple_of(ALIGN)).filter(|&end| end <= SIZE);
        let Ok(used) = self.used.fetch_update(Relaxed, Relaxed, take) else { return null_mut() };
        // SAFETY: what lies from `used` to the end of the object is this call's alone, and within the memory.
        unsafe {
            let object = self.memory.0.get().cast::<u8>().add(place(used));
            object.sub(HEADER).cast::<usize>().write(size);
            object.cast()
        }
    }

    /// The bytes that may be used of an object.
    ///
    /// # Safety
    /// It is a live object of this heap.
    pub unsafe fn size(&self, object: *mut c_void) -> usize {
        // SAFETY: `allocate` wrote it there.
        unsafe { object.cast::<u8>().sub(HEADER).cast::<usize>().read() }
    }

    /// Returns the offset at which an object of that size ends, as `used` counts.
    fn end(&self, object: *mut c_void, size: usize) -> usize {
        (object.addr() - self.start() + size).next_multiple_of(ALIGN)
    }

    /// Gives an object up.
    ///
    /// # Safety
    /// It is a live object of this heap.
    pub unsafe fn free(&self, object: *mut c_void) {
        // SAFETY: the caller's contract.
        let end = self.end(object, unsafe { self.size(object) });
        // Not if another lies behind it. What an alignment left before it is lost.
        let _ = self.used.compare_exchange(end, object.addr() - self.start() - HEADER, Relaxed, Relaxed);
    }

    /// Gives an object another size where it lies. False if it grows and is not the last, or finds no room.
    ///
    /// # Safety
    /// It is a live object of this heap.
    pub unsafe fn resize(&self, object: *mut c_void, size: usize) -> bool {
        if size > OBJECT_MAX {
            return false;
        }
        let size = size.max(1);
        // SAFETY: the caller's contract.
        let old = unsafe { self.size(object) };
        let (old_end, end) = (self.end(object, old), self.end(object, size));
        let resized = end <= SIZE && self.used.compare_exchange(old_end, end, Relaxed, Relaxed).is_ok();
        if resized {
            // SAFETY: as in `allocate`.
            unsafe { object.cast::<u8>().sub(HEADER).cast::<usize>().write(size) };
        }
        resized || size <= old
    }
}

impl Default for FirstHeap {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An object as the holder sees it: where, how large, and the byte that it is full of.
    type Object = (*mut c_void, usize, u8);

    fn fill(object: Object) -> Object {
        // SAFETY: so many bytes are the holder's.
        unsafe { object.0.cast::<u8>().write_bytes(object.2, object.1) };
        object
    }

    fn check(heap: &FirstHeap, (object, bytes, byte): Object) {
        assert!(heap.contains(object.addr()) && heap.contains(object.addr() + bytes.saturating_sub(1)));
        // SAFETY: it is live.
        unsafe {
            assert!(heap.size(object) >= bytes);
            assert!(std::slice::from_raw_parts(object.cast::<u8>(), bytes).iter().all(|&held| held == byte));
        }
    }

    /// A holder of objects keeps what it wrote, whatever it and others allocate, resize and free.
    fn hold(heap: &FirstHeap, seed: u64) {
        let mut random = seed;
        let mut next = |below: usize| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (random >> 33) as usize % below
        };
        let mut held: Vec<Object> = Vec::new();
        for step in 0..400 {
            let (size, align) = ([0, 7, 100, 3000][next(4)] + next(20), 1 << next(13));
            match next(4) {
                0 | 1 => {
                    let object = heap.allocate(size, align);
                    if !object.is_null() {
                        assert!(object.addr().is_multiple_of(align.max(ALIGN)));
                        held.push(fill((object, size, step as u8)));
                    }
                }
                // SAFETY: what is held is live, and given up once.
                2 if !held.is_empty() => unsafe { heap.free(held.pop().unwrap().0) },
                3 if !held.is_empty() => {
                    let (object, before, byte) = held.pop().unwrap();
                    // SAFETY: it is live.
                    let resized = unsafe { heap.resize(object, size) };
                    assert!(resized || size > before);
                    check(heap, (object, before.min(size), byte));
                    held.push(fill((object, if resized { size } else { before }, byte)));
                }
                _ => {}
            }
            held.iter().for_each(|&object| check(heap, object));
        }
    }

    #[test]
    fn objects_keep_what_is_written_whoever_allocates_beside_them() {
        for seed in 0..40 {
            let heap = FirstHeap::new();
            std::thread::scope(|scope| {
                for thread in 0..1 + seed % 3 {
                    let heap = &heap;
                    scope.spawn(move || hold(heap, seed << 8 | thread));
                }
            });
        }
    }

    #[test]
    fn the_place_of_the_last_object_is_used_again() {
        let heap = FirstHeap::new();
        let (first, last) = (heap.allocate(1, 16), heap.allocate(17, 16));
        // SAFETY: these are live; what is given up is not used any more.
        unsafe {
            assert!(!heap.resize(first, 17) && heap.resize(last, 1000) && heap.size(last) == 1000);
            assert!(!heap.resize(last, OBJECT_MAX + 1) && !heap.resize(last, usize::MAX));
            let before = heap.used();
            heap.free(first);
            assert_eq!(heap.used(), before, "another lies behind it");
            heap.free(last);
        }
        assert_eq!(heap.allocate(40, 16), last);
    }

    #[test]
    fn what_finds_no_room_is_refused() {
        let heap = FirstHeap::new();
        assert!(heap.allocate(OBJECT_MAX + 1, 16).is_null() && heap.allocate(usize::MAX, 16).is_null());
        assert!(heap.allocate(1, 2 * ALIGN_MAX).is_null());
        let objects = std::iter::from_fn(|| Some(heap.allocate(1008, 16)).filter(|object| !object.is_null()));
        assert_eq!(objects.count(), SIZE / 1024);
        assert!(heap.allocate(0, 16).is_null());
        assert!(!heap.contains(heap.start() - 1) && !heap.contains(heap.start() + SIZE));
    }
}
