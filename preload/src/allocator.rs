//! `malloc` and its family: mimalloc, confined to arenas that the engine manages.
//!
//! Engine threads never get memory from here: they are told by their thread pointer and served from the
//! engine's own heap. Pointers of neither go to the next library's `free`.

use crate::process::process;
use libmimalloc_sys as mi;
use pagetide::regions::{Access, Charging};
use pagetide_swap::{PAGE_SIZE, PageIndex};
use pagetide_sys::{guest, heap};
use std::alloc::{GlobalAlloc, Layout};
use std::ffi::{c_int, c_void};
use std::ptr::null_mut;
use std::sync::atomic::{
    AtomicPtr, AtomicU8, AtomicUsize, Ordering::Acquire, Ordering::Relaxed, Ordering::Release,
};

/// Address space that is set aside at a time. mimalloc gets it in pieces, each as large as all before it:
/// for each it commits a 500th at once, to keep its books.
const ARENA: usize = 8 << 30;
const ARENA_MIN: usize = 256 << 20;
const PIECE_MIN: usize = 256 << 20;
const ARENAS_MAX: usize = 64;
const ARENA_ALIGN: usize = 64 << 20;
/// Larger objects are mappings of their own: mimalloc keeps them out of arenas.
const OBJECT_MAX: usize = 1 << 30;
const ALIGN: usize = 16;

const OPTION_PURGE_DELAY: mi::mi_option_t = 15;
const OPTION_DISALLOW_OS_ALLOC: mi::mi_option_t = 17;

type CommitFunction = unsafe extern "C" fn(bool, *mut c_void, usize, *mut bool, *mut c_void) -> bool;
unsafe extern "C" {
    // mimalloc 3; not in libmimalloc-sys.
    #[allow(clippy::too_many_arguments)]
    fn mi_manage_memory(
        start: *mut c_void,
        size: usize,
        is_committed: bool,
        is_pinned: bool,
        is_zero: bool,
        numa_node: c_int,
        exclusive: bool,
        commit: CommitFunction,
        argument: *mut c_void,
        arena: *mut c_void,
    ) -> bool;
}

const UNREADY: u8 = 0;
const STARTING: u8 = 1;
const READY: u8 = 2;
static STATE: AtomicU8 = AtomicU8::new(UNREADY);

static ARENAS: [(AtomicUsize, AtomicUsize); ARENAS_MAX] =
    [const { (AtomicUsize::new(0), AtomicUsize::new(0)) }; ARENAS_MAX];
static ARENA_COUNT: AtomicUsize = AtomicUsize::new(0);
/// Pieces that mimalloc has, of all arenas; and its part of the last arena, in bytes.
static PIECES: AtomicUsize = AtomicUsize::new(0);
static HANDED: AtomicUsize = AtomicUsize::new(0);
static ARENA_LOCK: AtomicU8 = AtomicU8::new(0);
/// Pages committed before the process joined the run.
static COMMITTED_EARLY: AtomicUsize = AtomicUsize::new(0);

fn pages_of(start: usize, length: usize) -> std::ops::Range<PageIndex> {
    PageIndex::of_address(start)..PageIndex::of_address(start + length)
}

/// Makes the arenas the run's: from the constructor.
pub(crate) fn join() {
    let Some(process) = process() else { return };
    let entered = process.enter();
    for arena in &ARENAS[..ARENA_COUNT.load(Acquire)] {
        entered.mapped(
            pages_of(arena.0.load(Relaxed), arena.1.load(Relaxed)),
            Access::Write,
            Charging::ByCommit,
        );
    }
    drop(entered);
    process.charge(COMMITTED_EARLY.swap(0, Relaxed) as i64);
}

/// mimalloc commits memory before it hands it out, and decommits what it does not need for a while.
unsafe extern "C" fn commit(
    on: bool,
    start: *mut c_void,
    size: usize,
    is_zero: *mut bool,
    _: *mut c_void,
) -> bool {
    let range = pages_of(start as usize, size);
    let pages = (range.end.0 - range.start.0) as i64;
    match process() {
        None if on => drop(COMMITTED_EARLY.fetch_add(pages as usize, Relaxed)),
        None => {}
        Some(process) if on => process.charge(pages),
        Some(process) => {
            process.enter().dropping(range, |part| {
                // SAFETY: mimalloc gives the range up; nothing in it is in use.
                unsafe { crate::mappings::drop_pages(part) };
            });
            process.uncharge(pages);
        }
    }
    if on && !is_zero.is_null() {
        // It may have been in use before.
        // SAFETY: mimalloc passes a valid pointer or null.
        unsafe { is_zero.write(false) };
    }
    true
}

/// Gives mimalloc more address space. False if that (or a limit on it) is used up.
fn grow() -> bool {
    let seen = PIECES.load(Acquire);
    while ARENA_LOCK.compare_exchange(0, 1, Acquire, Relaxed).is_err() {
        std::thread::yield_now();
    }
    let grown = PIECES.load(Relaxed) > seen || add_piece();
    ARENA_LOCK.store(0, Release);
    grown
}

/// Under the lock, or while one thread runs.
fn add_piece() -> bool {
    let last = ARENA_COUNT.load(Relaxed).checked_sub(1);
    let (arena, handed) = match last.map(|last| (last, HANDED.load(Relaxed))) {
        Some((last, handed)) if handed < ARENAS[last].1.load(Relaxed) => (last, handed),
        _ if add_arena() => (ARENA_COUNT.load(Relaxed) - 1, 0),
        _ => return false,
    };
    let (start, whole) = (ARENAS[arena].0.load(Relaxed), ARENAS[arena].1.load(Relaxed));
    let length = handed.max(PIECE_MIN).min(whole - handed);
    HANDED.store(handed + length, Relaxed);
    PIECES.fetch_add(1, Release);
    // SAFETY: the range is set aside for mimalloc alone, zero, and never unmapped.
    unsafe {
        mi_manage_memory(
            (start + handed) as *mut c_void,
            length,
            false,
            false,
            true,
            -1,
            false,
            commit,
            null_mut(),
            null_mut(),
        )
    }
}

fn add_arena() -> bool {
    let index = ARENA_COUNT.load(Relaxed);
    if index == ARENAS_MAX {
        return false;
    }
    let mut length = ARENA;
    let start = loop {
        match heap::set_aside(length, ARENA_ALIGN) {
            Some(start) => break start,
            None if length > ARENA_MIN => length /= 2,
            None => return false,
        }
    };
    if let Some(process) = process() {
        process.enter().mapped(pages_of(start, length), Access::Write, Charging::ByCommit);
    }
    ARENAS[index].0.store(start, Relaxed);
    ARENAS[index].1.store(length, Relaxed);
    ARENA_COUNT.store(index + 1, Release);
    true
}

fn in_arena(address: usize) -> bool {
    ARENAS[..ARENA_COUNT.load(Relaxed)]
        .iter()
        .any(|arena| address.wrapping_sub(arena.0.load(Relaxed)) < arena.1.load(Relaxed))
}

/// Where a call for memory is served from.
enum From {
    Program,
    Engine,
}

#[inline(always)]
fn from() -> From {
    if STATE.load(Acquire) == READY && !guest::is_guest() { From::Program } else { slow_from() }
}

#[cold]
fn slow_from() -> From {
    if guest::is_guest() {
        return From::Engine;
    }
    match STATE.compare_exchange(UNREADY, STARTING, Acquire, Acquire) {
        Ok(_) => {
            // SAFETY: options may be set at any time.
            unsafe {
                mi::mi_option_set(OPTION_DISALLOW_OS_ALLOC, 1);
                // Decommitting interrupts every processor: not for memory that is wanted again at once.
                mi::mi_option_set(OPTION_PURGE_DELAY, 1000);
            }
            add_piece();
            STATE.store(READY, Release);
            From::Program
        }
        // mimalloc's own start calls back, or another thread starts it: one program thread runs then.
        Err(STARTING) => From::Engine,
        Err(_) => From::Program,
    }
}

// ---- the engine's heap, behind a header that C callers do not see -----------------------------------

/// Bytes before an object of the engine's heap: its layout.
const HEADER: usize = 16;

unsafe fn engine_allocate(size: usize, align: usize) -> *mut c_void {
    let align = align.max(ALIGN);
    let Some(total) = size.checked_add(align) else { return null_mut() };
    let Ok(layout) = Layout::from_size_align(total, align) else { return null_mut() };
    // SAFETY: the layout is not of size zero.
    let base = unsafe { crate::HEAP.alloc_zeroed(layout) };
    if base.is_null() {
        return null_mut();
    }
    // SAFETY: `align` ≥ 16 bytes lie before the object.
    unsafe {
        let object = base.add(align);
        object.sub(HEADER).cast::<[usize; 2]>().write([size, align]);
        object.cast()
    }
}

unsafe fn engine_layout(object: *mut c_void) -> (usize, usize) {
    // SAFETY: `engine_allocate` wrote it there.
    let [size, align] = unsafe { object.cast::<u8>().sub(HEADER).cast::<[usize; 2]>().read() };
    (size, align)
}

unsafe fn engine_free(object: *mut c_void) {
    // SAFETY: the object came from `engine_allocate`.
    unsafe {
        let (size, align) = engine_layout(object);
        let layout = Layout::from_size_align_unchecked(size + align, align);
        crate::HEAP.dealloc(object.cast::<u8>().sub(align), layout);
    }
}

// ---- objects too large for an arena: mappings of their own -------------------------------------------

/// A page before the object holds its size; the mapping is managed like any other.
unsafe fn mapped_allocate(size: usize, align: usize) -> *mut c_void {
    let front = align.max(PAGE_SIZE);
    let Some(total) = size.checked_add(2 * front).and_then(|total| total.checked_next_multiple_of(PAGE_SIZE))
    else {
        return null_mut();
    };
    // SAFETY: a new mapping.
    let base = unsafe {
        crate::mappings::mmap(
            null_mut(),
            total,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
            -1,
            0,
        )
    };
    if base == libc::MAP_FAILED {
        return null_mut();
    }
    let object = (base as usize + PAGE_SIZE).next_multiple_of(front);
    // SAFETY: the page before the object is in the mapping.
    unsafe { ((object - PAGE_SIZE) as *mut [usize; 4]).write([MAPPED_MAGIC, base as usize, total, size]) };
    object as *mut c_void
}

const MAPPED_MAGIC: usize = 0x7061_6765_7469_6465;

/// The header of an object that is a mapping of its own.
unsafe fn mapped_header(object: *mut c_void) -> Option<[usize; 4]> {
    if !(object as usize).is_multiple_of(PAGE_SIZE) || !LARGE.contains(object as usize) {
        return None;
    }
    // SAFETY: such an object has a page before it.
    Some(unsafe { ((object as usize - PAGE_SIZE) as *const [usize; 4]).read() })
}

/// The addresses of live objects that are mappings: few, so a small table.
struct Large([AtomicUsize; 256]);
static LARGE: Large = Large([const { AtomicUsize::new(0) }; 256]);

impl Large {
    fn contains(&self, address: usize) -> bool {
        self.0.iter().any(|cell| cell.load(Relaxed) == address)
    }
    fn insert(&self, address: usize) -> bool {
        self.0.iter().any(|cell| cell.compare_exchange(0, address, Relaxed, Relaxed).is_ok())
    }
    fn remove(&self, address: usize) {
        for cell in &self.0 {
            let _ = cell.compare_exchange(address, 0, Relaxed, Relaxed);
        }
    }
}

// ---- the C interface -------------------------------------------------------------------------------

#[cold]
unsafe fn again(size: usize, align: usize, zero: bool) -> *mut c_void {
    if size > OBJECT_MAX {
        // SAFETY: no conditions.
        let object = unsafe { mapped_allocate(size, align) };
        if !object.is_null() && !LARGE.insert(object as usize) {
            // SAFETY: just made, known to nobody.
            unsafe {
                let [_, base, total, _] = ((object as usize - PAGE_SIZE) as *const [usize; 4]).read();
                crate::mappings::munmap(base as *mut c_void, total);
            }
            set_errno(libc::ENOMEM);
            return null_mut();
        }
        return object;
    }
    while grow() {
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

fn set_errno(error: c_int) {
    // SAFETY: the location is the calling thread's own.
    unsafe { *libc::__errno_location() = error };
}

/// `malloc(3)`.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn malloc(size: usize) -> *mut c_void {
    match from() {
        From::Program if size <= OBJECT_MAX => {
            // SAFETY: a plain call of the allocator.
            let object = unsafe { mi::mi_malloc(size) };
            if !object.is_null() { object } else { unsafe { again(size, ALIGN, false) } }
        }
        // SAFETY: no conditions.
        From::Program => unsafe { again(size, ALIGN, false) },
        // SAFETY: no conditions.
        From::Engine => unsafe { engine_allocate(size, ALIGN) },
    }
}

/// `calloc(3)`.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn calloc(count: usize, size: usize) -> *mut c_void {
    let Some(total) = count.checked_mul(size) else {
        set_errno(libc::ENOMEM);
        return null_mut();
    };
    match from() {
        From::Program if total <= OBJECT_MAX => {
            // SAFETY: a plain call of the allocator.
            let object = unsafe { mi::mi_zalloc(total) };
            if !object.is_null() { object } else { unsafe { again(total, ALIGN, true) } }
        }
        // SAFETY: no conditions; new mappings are zero.
        From::Program => unsafe { again(total, ALIGN, true) },
        // SAFETY: no conditions.
        From::Engine => unsafe { engine_allocate(total, ALIGN) },
    }
}

unsafe fn aligned(align: usize, size: usize) -> *mut c_void {
    match from() {
        From::Program if size <= OBJECT_MAX => {
            // SAFETY: a plain call of the allocator; the callers check `align`.
            let object = unsafe { mi::mi_malloc_aligned(size, align) };
            if !object.is_null() { object } else { unsafe { again(size, align, false) } }
        }
        // SAFETY: no conditions.
        From::Program => unsafe { again(size, align, false) },
        // SAFETY: no conditions.
        From::Engine => unsafe { engine_allocate(size, align) },
    }
}

/// `free(3)`.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn free(object: *mut c_void) {
    let address = object as usize;
    // SAFETY: each allocator gets what it gave.
    unsafe {
        if address.wrapping_sub(ARENAS[0].0.load(Relaxed)) < ARENAS[0].1.load(Relaxed) {
            mi::mi_free(object);
        } else if object.is_null() {
        } else if in_arena(address) {
            mi::mi_free(object);
        } else if heap::contains(address) {
            engine_free(object);
        } else if let Some([_, base, total, _]) = mapped_header(object) {
            LARGE.remove(address);
            crate::mappings::munmap(base as *mut c_void, total);
        } else {
            next_free(object);
        }
    }
}

/// A pointer of another allocator, most likely one that served the program before us.
#[cold]
unsafe fn next_free(object: *mut c_void) {
    static NEXT: AtomicPtr<c_void> = AtomicPtr::new(null_mut());
    let mut next = NEXT.load(Relaxed);
    if next.is_null() {
        // SAFETY: the name is a C string.
        next = unsafe { libc::dlsym(libc::RTLD_NEXT, c"free".as_ptr()) };
        NEXT.store(next, Relaxed);
    }
    if !next.is_null() {
        // SAFETY: a function named `free` has this type.
        let free: unsafe extern "C" fn(*mut c_void) = unsafe { std::mem::transmute(next) };
        // SAFETY: the pointer is nobody else's.
        unsafe { free(object) };
    }
}

/// The bytes that may be used of an object.
unsafe fn usable(object: *mut c_void) -> usize {
    // SAFETY: as for `free`.
    unsafe {
        if in_arena(object as usize) {
            mi::mi_usable_size(object)
        } else if heap::contains(object as usize) {
            engine_layout(object).0
        } else if let Some([_, _, _, size]) = mapped_header(object) {
            size
        } else {
            0
        }
    }
}

/// `malloc_usable_size(3)`.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn malloc_usable_size(object: *mut c_void) -> usize {
    // SAFETY: the caller's contract.
    if object.is_null() { 0 } else { unsafe { usable(object) } }
}

/// `realloc(3)`.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn realloc(object: *mut c_void, size: usize) -> *mut c_void {
    // SAFETY: the caller's contract; each allocator gets what it gave.
    unsafe {
        if object.is_null() {
            return malloc(size);
        }
        let program = matches!(from(), From::Program);
        if program && size <= OBJECT_MAX && in_arena(object as usize) {
            if size == 0 {
                mi::mi_free(object);
                return null_mut();
            }
            let moved = mi::mi_realloc(object, size);
            if !moved.is_null() {
                return moved;
            }
        }
        if size == 0 {
            free(object);
            return null_mut();
        }
        if program
            && size > OBJECT_MAX
            && let Some([_, base, total, _]) = mapped_header(object)
        {
            let front = object as usize - base;
            if let Some(wanted) =
                size.checked_add(2 * front).and_then(|n| n.checked_next_multiple_of(PAGE_SIZE))
            {
                let moved = crate::mappings::mremap(
                    base as *mut c_void,
                    total,
                    wanted,
                    libc::MREMAP_MAYMOVE,
                    null_mut(),
                );
                if moved != libc::MAP_FAILED {
                    LARGE.remove(object as usize);
                    let object = moved as usize + front;
                    ((object - PAGE_SIZE) as *mut [usize; 4]).write([
                        MAPPED_MAGIC,
                        moved as usize,
                        wanted,
                        size,
                    ]);
                    LARGE.insert(object);
                    return object as *mut c_void;
                }
            }
            set_errno(libc::ENOMEM);
            return null_mut();
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
pub unsafe extern "C" fn reallocarray(object: *mut c_void, count: usize, size: usize) -> *mut c_void {
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
pub unsafe extern "C" fn posix_memalign(result: *mut *mut c_void, align: usize, size: usize) -> c_int {
    if !align.is_power_of_two() || align < size_of::<*mut c_void>() {
        return libc::EINVAL;
    }
    // SAFETY: errno is the calling thread's; POSIX wants it unchanged.
    let errno = unsafe { *libc::__errno_location() };
    // SAFETY: checked above.
    let object = unsafe { aligned(align, size) };
    set_errno(errno);
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
pub unsafe extern "C" fn aligned_alloc(align: usize, size: usize) -> *mut c_void {
    if !align.is_power_of_two() {
        set_errno(libc::EINVAL);
        return null_mut();
    }
    // SAFETY: checked above.
    unsafe { aligned(align, size) }
}

/// `memalign(3)`.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memalign(align: usize, size: usize) -> *mut c_void {
    // SAFETY: checked there.
    unsafe { aligned_alloc(align, size) }
}

/// `valloc(3)`.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn valloc(size: usize) -> *mut c_void {
    // SAFETY: a page is a power of two.
    unsafe { aligned(PAGE_SIZE, size) }
}

/// `pvalloc(3)`.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pvalloc(size: usize) -> *mut c_void {
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
pub unsafe extern "C" fn cfree(object: *mut c_void) {
    // SAFETY: the caller's contract.
    unsafe { free(object) };
}

/// `malloc_trim(3)`: asks the allocator to give back what it can.
#[unsafe(no_mangle)]
pub extern "C" fn malloc_trim(_pad: usize) -> c_int {
    // SAFETY: no conditions.
    unsafe { mi::mi_collect(true) };
    1
}
