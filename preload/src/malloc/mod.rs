//! `malloc` and its family: mimalloc, confined to arenas that the engine manages.
//!
//! Engine threads never get memory from here: they are told by their thread pointer and served from the
//! engine's own heap. Pointers of neither go to the next library's `free`.

mod arena;
mod engine_heap;
mod figures;
mod mapped;
mod others;
mod state;
mod statistics;

pub(crate) use self::arena::join;
use self::arena::{ARENAS, arena_length, grow, in_arena};
use self::mapped::{
    GROWN_FROM, GROWN_MIN_MAX, LARGE, grow_out, large_allocate, large_resize, mapped_header, note_size,
};
use self::state::{FIRST, From, from, is_ready, start_once};
use crate::call::{keeping_errno, set_errno};
use libmimalloc_sys as mi;
use pagetide_swap::PAGE_SIZE;
use pagetide_sys::{engine_thread, heap};
use std::ffi::{c_int, c_void};
use std::ptr::null_mut;
use std::sync::atomic::Ordering::Relaxed;

/// Larger objects are mappings of their own: mimalloc keeps them out of arenas.
const OBJECT_MAX: usize = 1 << 30;
/// An object that is a mapping stays one unless it shrinks below this.
const MAPPED_MIN: usize = 256 << 10;
const ALIGN: usize = 16;
/// The largest alignment for which mimalloc does not go to the system.
const MIMALLOC_ALIGN_MAX: usize = 64 << 10;

/// Starts mimalloc, if it has not started. A process that never needs it is spared that, unless
/// - it has a `malloc` of its own: which of its threads would start ours (by another function of the family) cannot be
///   told, and mimalloc takes that thread for the main one, which must not end before others;
/// - it is about to give up what the start needs: see `confined.rs`.
pub(crate) fn start() {
    if !is_ready() && !engine_thread::is_engine_thread() {
        start_once();
        // Its first object takes another mapping of its books.
        // SAFETY: the object is freed once.
        unsafe { free(std::hint::black_box(malloc(1))) };
    }
}

#[cold]
unsafe fn again(size: usize, align: usize, zero: bool) -> *mut c_void {
    // Where arenas are small, an object that does not fit into what there is would take a large part of the next.
    let large_align = align > MIMALLOC_ALIGN_MAX;
    if large_align || size > OBJECT_MAX.min(ARENAS[0].1.load(Relaxed) / 8) {
        // SAFETY: no conditions.
        let object = unsafe { large_allocate(size.max(1), align, 0) };
        if !object.is_null() {
            return object;
        }
    }
    // No arena is added in vain: nobody gives it back.
    let largest = ARENAS[0].1.load(Relaxed).max(arena_length());
    while !large_align && size <= OBJECT_MAX.min(largest) && grow() {
        // SAFETY: plain calls of the allocator.
        let object = unsafe {
            if zero { mi::mi_zalloc_aligned(size, align) } else { mi::mi_malloc_aligned(size, align) }
        };
        if !object.is_null() {
            return object;
        }
    }
    set_errno(libc::ENOMEM);
    null_mut()
}

/// `malloc(3)`.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn malloc(size: usize) -> *mut c_void {
    match from(size, ALIGN) {
        From::Program if size <= OBJECT_MAX => {
            // SAFETY: a plain call of the allocator.
            let object = unsafe { mi::mi_malloc(size) };
            // SAFETY: no conditions.
            if !object.is_null() { object } else { unsafe { again(size, ALIGN, false) } }
        }
        // SAFETY: no conditions.
        From::Program => unsafe { again(size, ALIGN, false) },
        // SAFETY: no conditions.
        From::Engine => unsafe { engine_heap::allocate(size, ALIGN) },
        From::First(object) => object,
    }
}

/// `calloc(3)`.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn calloc(count: usize, size: usize) -> *mut c_void {
    let Some(total) = count.checked_mul(size) else {
        set_errno(libc::ENOMEM);
        return null_mut();
    };
    match from(total, ALIGN) {
        From::Program if total <= OBJECT_MAX => {
            // SAFETY: a plain call of the allocator.
            let object = unsafe { mi::mi_zalloc(total) };
            // SAFETY: no conditions.
            if !object.is_null() { object } else { unsafe { again(total, ALIGN, true) } }
        }
        // SAFETY: no conditions; new mappings are zero.
        From::Program => unsafe { again(total, ALIGN, true) },
        // SAFETY: no conditions.
        From::Engine => unsafe { engine_heap::allocate(total, ALIGN) },
        From::First(object) => {
            // SAFETY: so many bytes lie there.
            unsafe { object.write_bytes(0, total) };
            object
        }
    }
}

unsafe fn aligned(align: usize, size: usize) -> *mut c_void {
    match from(size, align) {
        From::Program if size <= OBJECT_MAX && align <= MIMALLOC_ALIGN_MAX => {
            // SAFETY: a plain call of the allocator; the callers check `align`.
            let object = unsafe { mi::mi_malloc_aligned(size, align) };
            // SAFETY: no conditions.
            if !object.is_null() { object } else { unsafe { again(size, align, false) } }
        }
        // SAFETY: no conditions.
        From::Program => unsafe { again(size, align, false) },
        // SAFETY: no conditions.
        From::Engine => unsafe { engine_heap::allocate(size, align) },
        From::First(object) => object,
    }
}

/// `free(3)`.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn free(object: *mut c_void) {
    let address = object as usize;
    // SAFETY: each allocator gets what it gave.
    unsafe {
        if address.wrapping_sub(ARENAS[0].0.load(Relaxed)) < ARENAS[0].1.load(Relaxed) {
            mi::mi_free(object);
        } else if object.is_null() {
        } else if FIRST.contains(address) {
            FIRST.free(object);
        } else if in_arena(address) {
            mi::mi_free(object);
        } else if heap::contains(address) {
            engine_heap::free(object);
        } else if let Some(header) = mapped_header(object) {
            if header.size <= GROWN_MIN_MAX {
                GROWN_FROM.fetch_max(header.size, Relaxed);
            }
            LARGE.remove(address);
            header.release();
            figures::MAPPED.fall(1);
            note_size(address, header.size, 0);
        } else {
            others::free(object);
        }
    }
}

/// Returns whether an object is from here.
unsafe fn is_ours(object: *mut c_void) -> bool {
    let address = object as usize;
    // SAFETY: as for `free`.
    FIRST.contains(address)
        || in_arena(address)
        || heap::contains(address)
        || unsafe { mapped_header(object) }.is_some()
}

/// The bytes that may be used of an object.
unsafe fn usable(object: *mut c_void) -> usize {
    // SAFETY: as for `free`.
    unsafe {
        if in_arena(object as usize) {
            mi::mi_usable_size(object)
        } else if FIRST.contains(object as usize) {
            FIRST.size(object)
        } else if heap::contains(object as usize) {
            engine_heap::layout(object).0
        } else if let Some(header) = mapped_header(object) {
            header.size
        } else {
            others::usable(object)
        }
    }
}

/// `malloc_usable_size(3)`.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn malloc_usable_size(object: *mut c_void) -> usize {
    // SAFETY: the caller's contract.
    if object.is_null() { 0 } else { unsafe { usable(object) } }
}

/// `realloc(3)`.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn realloc(object: *mut c_void, size: usize) -> *mut c_void {
    // SAFETY: the caller's contract; each allocator gets what it gave.
    unsafe {
        if object.is_null() {
            return malloc(size);
        }
        let program = !engine_thread::is_engine_thread();
        if size == 0 {
            free(object);
            return null_mut();
        }
        if program && size <= OBJECT_MAX && in_arena(object as usize) {
            let grown = size >= GROWN_FROM.load(Relaxed) && size > mi::mi_usable_size(object);
            let moved = if grown { grow_out(object, size) } else { null_mut() };
            let moved = if moved.is_null() { mi::mi_realloc(object, size) } else { moved };
            if !moved.is_null() {
                return moved;
            }
        }
        if program
            && size >= MAPPED_MIN
            && let Some(header) = mapped_header(object)
        {
            let moved = large_resize(object, header, size);
            if moved.is_null() {
                set_errno(libc::ENOMEM);
            }
            return moved;
        }
        if !is_ours(object) {
            return others::realloc(object, size);
        }
        if FIRST.contains(object as usize) && FIRST.resize(object, size) {
            return object;
        }
        let old = usable(object);
        let moved = malloc(size);
        if !moved.is_null() {
            std::ptr::copy_nonoverlapping(object.cast::<u8>(), moved.cast::<u8>(), old.min(size));
            free(object);
        }
        moved
    }
}

/// `reallocarray(3)`.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn reallocarray(object: *mut c_void, count: usize, size: usize) -> *mut c_void {
    match count.checked_mul(size) {
        // SAFETY: the caller's contract.
        Some(total) => unsafe { realloc(object, total) },
        None => {
            set_errno(libc::ENOMEM);
            null_mut()
        }
    }
}

/// `posix_memalign(3)`.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn posix_memalign(result: *mut *mut c_void, align: usize, size: usize) -> c_int {
    if !align.is_power_of_two() || align < size_of::<*mut c_void>() {
        return libc::EINVAL;
    }
    // POSIX wants errno unchanged.
    // SAFETY: checked above.
    let object = keeping_errno(|| unsafe { aligned(align, size) });
    if object.is_null() {
        return libc::ENOMEM;
    }
    // SAFETY: the caller's contract.
    unsafe { result.write(object) };
    0
}

/// `aligned_alloc(3)`.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn aligned_alloc(align: usize, size: usize) -> *mut c_void {
    // As glibc has it up to 2.37.
    let Some(align) = align.checked_next_power_of_two() else {
        set_errno(libc::EINVAL);
        return null_mut();
    };
    // SAFETY: a power of two.
    unsafe { aligned(align, size) }
}

/// `memalign(3)`.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn memalign(align: usize, size: usize) -> *mut c_void {
    // SAFETY: checked there.
    unsafe { aligned_alloc(align, size) }
}

/// `valloc(3)`.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn valloc(size: usize) -> *mut c_void {
    // SAFETY: a page is a power of two.
    unsafe { aligned(PAGE_SIZE, size) }
}

/// `pvalloc(3)`.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn pvalloc(size: usize) -> *mut c_void {
    match size.checked_next_multiple_of(PAGE_SIZE) {
        // SAFETY: a page is a power of two.
        Some(size) => unsafe { aligned(PAGE_SIZE, size) },
        None => {
            set_errno(libc::ENOMEM);
            null_mut()
        }
    }
}

/// `cfree(3)`, of old programs.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn cfree(object: *mut c_void) {
    // SAFETY: the caller's contract.
    unsafe { free(object) };
}

/// `malloc_trim(3)`: asks the allocator to give back what it can.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn malloc_trim(_pad: usize) -> c_int {
    if is_ready() {
        // SAFETY: no conditions.
        unsafe { mi::mi_collect(true) };
    }
    1
}
