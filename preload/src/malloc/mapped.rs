//! Objects that are mappings of their own: too large for an arena, or grown.

use super::figures;
use crate::mappings::{change_access, map, mremap, unmap};
use libmimalloc_sys as mi;
use pagetide_swap::PAGE_SIZE;
use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicUsize, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};

/// An object that grows to this size, or to the largest so far that was given back having grown, becomes a
/// mapping of its own, with room to grow: copying it again and again would bring all of it in each time.
const GROWN_MIN: usize = 1 << 20;
pub(super) const GROWN_MIN_MAX: usize = 32 << 20;

/// The layout of such an object, and what its header holds. The mapping is managed like any other.
///
/// ```text
/// base          object              open end              base + reserved
///   │ … header │ contents …             │ reserved to grow into │
/// ```
#[derive(Clone, Copy)]
pub(super) struct Header {
    base: usize,
    /// Bytes of address space from `base` on. What lies beyond the open end has no access.
    reserved: usize,
    pub(super) size: usize,
}

impl Header {
    /// Returns the header of an object of `size` bytes that lies `front` bytes into its mapping, with room to grow by
    /// `room`.
    fn plan(front: usize, size: usize, room: usize) -> Option<Self> {
        let reserved = size.checked_add(front)?.checked_add(room)?.checked_next_multiple_of(PAGE_SIZE)?;
        Some(Self { base: 0, reserved, size })
    }

    fn end(&self) -> usize {
        self.base + self.reserved
    }

    /// Returns the address at which access ends, for an object at `object`.
    fn open_end(object: usize, size: usize) -> usize {
        (object + size).next_multiple_of(PAGE_SIZE)
    }

    /// Sets the mapping's address space aside.
    unsafe fn reserve(mut self) -> Option<Self> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: a new mapping.
        let base = unsafe { map(null_mut(), self.reserved, libc::PROT_NONE, flags, -1, 0) };
        self.base = base as usize;
        (base != libc::MAP_FAILED).then_some(self)
    }

    pub(super) unsafe fn release(self) {
        // SAFETY: the caller gives the mapping up.
        unsafe { unmap(self.base as *mut c_void, self.reserved) };
    }

    /// Writes the header before the object.
    unsafe fn write(&self, object: usize) {
        let words = [MAPPED_MAGIC, self.base, self.reserved, self.size];
        // SAFETY: a page that is open lies before the object.
        unsafe { ((object - PAGE_SIZE) as *mut [usize; 4]).write(words) };
    }

    /// The header of an object.
    unsafe fn read(object: usize) -> Self {
        // SAFETY: the caller names such an object, which has a page before it.
        let [magic, base, reserved, size] = unsafe { ((object - PAGE_SIZE) as *const [usize; 4]).read() };
        assert_eq!(magic, MAPPED_MAGIC, "the header of a large object is overwritten");
        Self { base, reserved, size }
    }
}

/// Counts for statistics that an object that is a mapping has another size.
pub(super) fn note_size(object: usize, before: usize, size: usize) {
    let bytes = |size| Header::open_end(object, size) - object;
    if size > before {
        figures::MAPPED_BYTES.rise(bytes(size) - bytes(before));
    } else {
        figures::MAPPED_BYTES.fall(bytes(before) - bytes(size));
    }
}

unsafe fn open(start: usize, end: usize) -> bool {
    let access = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: the range is the caller's.
    end <= start || unsafe { change_access(start, end - start, access) } == 0
}

const MAPPED_MAGIC: usize = 0x7061_6765_7469_6465;

/// The header of an object that is a mapping of its own.
pub(super) unsafe fn mapped_header(object: *mut c_void) -> Option<Header> {
    if !(object as usize).is_multiple_of(PAGE_SIZE) || !LARGE.contains(object as usize) {
        return None;
    }
    // SAFETY: the table names it.
    Some(unsafe { Header::read(object as usize) })
}

/// The addresses of live objects that are mappings: few, so a table that is looked through as far as it was ever
/// filled.
pub(super) struct Large {
    cells: [AtomicUsize; 4096],
    end: AtomicUsize,
}
pub(super) static LARGE: Large =
    Large { cells: [const { AtomicUsize::new(0) }; 4096], end: AtomicUsize::new(0) };
/// The size from which on an object that grows becomes a mapping. As with glibc's threshold for mappings, what is
/// given back raises it: a program that grows such an object over and over wants memory that stays.
pub(super) static GROWN_FROM: AtomicUsize = AtomicUsize::new(GROWN_MIN);

impl Large {
    /// A cell that is taken and names no object.
    const TAKEN: usize = 1;

    fn filled(&self) -> &[AtomicUsize] {
        &self.cells[..self.end.load(Acquire)]
    }
    fn contains(&self, address: usize) -> bool {
        self.filled().iter().any(|cell| cell.load(Relaxed) == address)
    }
    fn take(cells: &[AtomicUsize], what: usize, leave: usize) -> Option<usize> {
        cells.iter().position(|cell| {
            cell.load(Relaxed) == what && cell.compare_exchange(what, leave, Relaxed, Relaxed).is_ok()
        })
    }
    fn insert(&self, address: usize) -> bool {
        let taken = Self::take(&self.cells, 0, address);
        if let Some(at) = taken {
            self.end.fetch_max(at + 1, Release);
        }
        taken.is_some()
    }
    pub(super) fn remove(&self, address: usize) {
        Self::take(self.filled(), address, 0);
    }
    /// Takes the object's cell, so that no other object at the same address, once it has moved, is taken for
    /// it.
    fn begin_move(&self, address: usize) -> Option<&AtomicUsize> {
        Self::take(self.filled(), address, Self::TAKEN).map(|at| &self.cells[at])
    }
}

/// A new object that is a mapping, with room to grow by `room`; null if that cannot be had.
pub(super) unsafe fn large_allocate(size: usize, align: usize, room: usize) -> *mut c_void {
    // As much before the object as it takes for a page before an aligned address.
    let front = align.max(PAGE_SIZE);
    let plan = Header::plan(PAGE_SIZE + front, size, room);
    // SAFETY: a new mapping, of which nobody else knows.
    unsafe {
        let Some(mapping) = plan.and_then(|plan| plan.reserve()) else { return null_mut() };
        let object = (mapping.base + PAGE_SIZE).next_multiple_of(front);
        if !open(object - PAGE_SIZE, Header::open_end(object, size)) {
            mapping.release();
            return null_mut();
        }
        mapping.write(object);
        if !LARGE.insert(object) {
            mapping.release();
            return null_mut();
        }
        figures::MAPPED.rise(1);
        note_size(object, 0, size);
        object as *mut c_void
    }
}

/// Changes the size of an object that is a mapping with this header. Null if that cannot be had.
pub(super) unsafe fn large_resize(object: *mut c_void, header: Header, size: usize) -> *mut c_void {
    let address = object as usize;
    if size > header.end() - address {
        // SAFETY: the caller's contract.
        return unsafe { large_move(address, header, size) };
    }
    let (was, is) = (Header::open_end(address, header.size), Header::open_end(address, size));
    let mut reserved = header.reserved;
    // SAFETY: all of it is the object's.
    unsafe {
        if !open(was, is) {
            return null_mut();
        }
        if size < header.size / 2 && is < header.end() && unmap(is as *mut c_void, header.end() - is) == 0 {
            reserved = is - header.base;
        }
        Header { size, reserved, ..header }.write(address);
    }
    note_size(address, header.size, size);
    object
}

/// Moves an object to a place where it may grow to twice the size.
unsafe fn large_move(address: usize, header: Header, size: usize) -> *mut c_void {
    let was = Header::open_end(address, header.size);
    // The header's page and the contents; what an alignment left before them stays behind.
    let first = address - PAGE_SIZE;
    let plan = Header::plan(PAGE_SIZE, size, size);
    // SAFETY: the mappings are the object's, old and new.
    unsafe {
        let Some(mapping) = plan.and_then(|plan| plan.reserve()) else { return null_mut() };
        let Some(cell) = LARGE.begin_move(address) else {
            mapping.release();
            return null_mut();
        };
        let object = mapping.base + PAGE_SIZE;
        // All of it moves and is open for a moment: what is opened by and by would be mappings of their own,
        // which no later move takes together.
        let moved = mremap(
            first as *mut c_void,
            was - first,
            mapping.reserved,
            libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED,
            mapping.base as *mut c_void,
        );
        if moved == libc::MAP_FAILED {
            cell.store(address, Relaxed);
            mapping.release();
            return null_mut();
        }
        let open_end = Header::open_end(object, size);
        // Should this fail, the room is open already.
        change_access(open_end, mapping.end() - open_end, libc::PROT_NONE);
        for (start, end) in [(header.base, first), (was, header.end())] {
            if start < end {
                unmap(start as *mut c_void, end - start);
            }
        }
        mapping.write(object);
        cell.store(object, Relaxed);
        note_size(object, header.size, size);
        object as *mut c_void
    }
}

/// Moves an object out of mimalloc's arenas into a mapping of its own. Null if that cannot be had.
pub(super) unsafe fn grow_out(object: *mut c_void, size: usize) -> *mut c_void {
    // SAFETY: the object is mimalloc's; the new one is at least as large as what is copied.
    unsafe {
        let moved = large_allocate(size, super::ALIGN, size);
        if !moved.is_null() {
            let old = mi::mi_usable_size(object).min(size);
            std::ptr::copy_nonoverlapping(object.cast::<u8>(), moved.cast::<u8>(), old);
            mi::mi_free(object);
        }
        moved
    }
}
