//! `malloc` and its family: mimalloc, confined to arenas that the engine manages.
//!
//! Engine threads never get memory from here: they are told by their thread pointer and served from the
//! engine's own heap. Pointers of neither go to the next library's `free`.

use crate::current::process;
use crate::statistics;
use libmimalloc_sys as mi;
use pagetide::regions::{Access, Attributes, Charging};
use pagetide_swap::{PAGE_SIZE, PageIndex};
use pagetide_sys::first_heap::FirstHeap;
use pagetide_sys::{engine_thread, heap};
use std::alloc::{GlobalAlloc, Layout};
use std::ffi::{c_int, c_void};
use std::ptr::null_mut;
use std::sync::atomic::{
    AtomicU8, AtomicU64, AtomicUsize, Ordering::Acquire, Ordering::Relaxed, Ordering::Release,
};

/// Address space that is set aside at a time. mimalloc gets it in pieces, each as large as all before it:
/// for each it commits a 500th at once, to keep its books. The first piece is the least that it takes, with 128 KiB of
/// books: most processes need no more. Where address space is limited, about a sixteenth of what is left.
const ARENA: usize = 8 << 30;
const ARENA_MIN: usize = 64 << 20;
const PIECE_FIRST: usize = 32 << 20;
const PIECE_MIN: usize = 256 << 20;
const ARENAS_MAX: usize = 64;
const ARENA_ALIGN: usize = 64 << 20;
/// Larger objects are mappings of their own: mimalloc keeps them out of arenas.
const OBJECT_MAX: usize = 1 << 30;
/// An object that grows to this size, or to the largest so far that was given back having grown, becomes a
/// mapping of its own, with room to grow: copying it again and again would bring all of it in each time.
const GROWN_MIN: usize = 1 << 20;
const GROWN_MIN_MAX: usize = 32 << 20;
/// An object that is a mapping stays one unless it shrinks below this.
const MAPPED_MIN: usize = 256 << 10;
const ALIGN: usize = 16;

const OPTION_PURGE_DELAY: mi::mi_option_t = 15;
const OPTION_DISALLOW_OS_ALLOC: mi::mi_option_t = 17;
const OPTION_PAGE_COMMIT_ON_DEMAND: mi::mi_option_t = 40;

/// What mimalloc commits at least: its slices.
const SLICE: usize = 64 << 10;
const SLICE_WORDS: usize = ARENA / SLICE / u64::BITS as usize;
/// Which slices of each arena are committed. mimalloc may commit one again that is.
static COMMITTED: [[AtomicU64; SLICE_WORDS]; ARENAS_MAX] =
    [const { [const { AtomicU64::new(0) }; SLICE_WORDS] }; ARENAS_MAX];

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
    /// Its constructor, which `build.rs` leaves out.
    fn _mi_auto_process_init();
}

/// Whether mimalloc serves the program. Until then the first heap does, as far as it goes.
const UNREADY: u8 = 0;
const STARTING: u8 = 1;
const READY: u8 = 2;
static STATE: AtomicU8 = AtomicU8::new(UNREADY);
/// What served the program before.
pub(crate) static FIRST: FirstHeap = FirstHeap::new();

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
        let _ = entered.mapped(
            pages_of(arena.0.load(Relaxed), arena.1.load(Relaxed)),
            Attributes::new(Access::Write, Charging::ByCommit),
        );
    }
    drop(entered);
    process.charge_committed(COMMITTED_EARLY.swap(0, Relaxed) as i64);
}

/// Notes that a range of an arena is committed, or not any more. Returns how many pages that changes.
fn note_committed(on: bool, start: usize, length: usize) -> usize {
    let Some(arena) = arena_of(start) else { return 0 };
    let base = ARENAS[arena].0.load(Relaxed);
    let mut slices = (start - base) / SLICE..(start + length - base).div_ceil(SLICE);
    let mut changed = 0;
    while !slices.is_empty() {
        let (word, bit) = (slices.start / 64, slices.start % 64);
        let count = slices.len().min(64 - bit);
        let mask = u64::MAX >> (64 - count) << bit;
        let committed = &COMMITTED[arena][word];
        let differs =
            if on { !committed.fetch_or(mask, Relaxed) } else { committed.fetch_and(!mask, Relaxed) };
        changed += (differs & mask).count_ones() as usize;
        slices.start += count;
    }
    if on {
        statistics::COMMITTED.rise(changed * SLICE);
    } else {
        statistics::COMMITTED.fall(changed * SLICE);
    }
    changed * (SLICE / PAGE_SIZE)
}

std::arch::global_asm!(".hidden __wrap_mprotect");

/// What mimalloc commits page by page of its own, as it uses them up. All of an arena is writable from the beginning.
///
/// # Safety
/// As of `mprotect(2)`. By the linker all calls of this name in this library come here, and (hidden) no others.
#[unsafe(no_mangle)]
unsafe extern "C" fn __wrap_mprotect(address: *mut c_void, length: usize, protection: c_int) -> c_int {
    if in_arena(address as usize) {
        // SAFETY: mimalloc owns the range.
        unsafe { commit(true, address, length, null_mut(), null_mut()) };
        return 0;
    }
    // SAFETY: the caller's contract.
    unsafe { crate::mappings::change_access(address as usize, length, protection) }
}

/// mimalloc commits memory before it hands it out, and decommits what it does not need for a while.
unsafe extern "C" fn commit(
    on: bool,
    start: *mut c_void,
    size: usize,
    is_zero: *mut bool,
    _: *mut c_void,
) -> bool {
    let changed = || note_committed(on, start as usize, size);
    match process() {
        None if on => drop(COMMITTED_EARLY.fetch_add(changed(), Relaxed)),
        None => {}
        Some(process) if on => process.charge_committed(changed() as i64),
        Some(process) => {
            process.enter().dropping(pages_of(start as usize, size), |part| {
                // SAFETY: mimalloc gives the range up; nothing in it is in use.
                unsafe { crate::range::drop_pages(part) };
            });
            process.uncharge_committed(changed() as i64);
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
    // It keeps no more than 160 pieces.
    let before = ARENAS[..arena].iter().map(|arena| arena.1.load(Relaxed)).sum::<usize>() + handed;
    let length = if before == 0 { PIECE_FIRST } else { before.max(PIECE_MIN) }.min(whole - handed);
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

/// How long the next arena is, if it can be had.
fn arena_length() -> usize {
    let room = pagetide_sys::mapping::room() / 16;
    ARENA.min((room / 2 + 1).next_power_of_two()).max(ARENA_MIN)
}

fn add_arena() -> bool {
    let index = ARENA_COUNT.load(Relaxed);
    if index == ARENAS_MAX {
        return false;
    }
    let mut length = arena_length();
    let start = loop {
        match heap::set_aside(length, ARENA_ALIGN) {
            Some(start) => break start,
            None if length > ARENA_MIN => length /= 2,
            None => return false,
        }
    };
    if let Some(process) = process() {
        let attributes = Attributes::new(Access::Write, Charging::ByCommit);
        let released = process.enter().mapped(pages_of(start, length), attributes);
        process.uncharge(released);
    }
    ARENAS[index].0.store(start, Relaxed);
    ARENAS[index].1.store(length, Relaxed);
    ARENA_COUNT.store(index + 1, Release);
    true
}

fn arena_of(address: usize) -> Option<usize> {
    ARENAS[..ARENA_COUNT.load(Relaxed)]
        .iter()
        .position(|arena| address.wrapping_sub(arena.0.load(Relaxed)) < arena.1.load(Relaxed))
}

fn in_arena(address: usize) -> bool {
    arena_of(address).is_some()
}

/// Where a call for memory is served from.
enum From {
    Program,
    Engine,
    /// The first heap has served it.
    First(*mut c_void),
}

#[inline(always)]
fn from(size: usize, align: usize) -> From {
    if is_ready() && !engine_thread::is_engine_thread() { From::Program } else { slow_from(size, align) }
}

/// Whether mimalloc has started.
#[inline(always)]
pub(crate) fn is_ready() -> bool {
    STATE.load(Acquire) == READY
}

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
fn slow_from(size: usize, align: usize) -> From {
    if engine_thread::is_engine_thread() {
        return From::Engine;
    }
    // It starts before there is a second thread: the C library allocates for that, when it has said that there will be
    // two.
    if STATE.load(Acquire) == UNREADY && crate::glibc::has_one_thread() {
        let object = FIRST.allocate(size, align);
        if !object.is_null() {
            return From::First(object);
        }
    }
    start_once()
}

fn start_once() -> From {
    match STATE.compare_exchange(UNREADY, STARTING, Acquire, Acquire) {
        Ok(_) => {
            // SAFETY: the location is the calling thread's own.
            let errno = unsafe { *libc::__errno_location() };
            // SAFETY: options may be set at any time, and it may start at any time.
            unsafe {
                mi::mi_option_set(OPTION_DISALLOW_OS_ALLOC, 1);
                // Decommitting interrupts every processor: not for memory that is wanted again at once.
                mi::mi_option_set(OPTION_PURGE_DELAY, 1000);
                // What small processes commit and never touch is the most of what they hold.
                mi::mi_option_set(OPTION_PAGE_COMMIT_ON_DEMAND, 1);
                _mi_auto_process_init();
            }
            add_piece();
            STATE.store(READY, Release);
            set_errno(errno);
            From::Program
        }
        // Its own start, or a signal handler in the midst of that, calls back.
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

// ---- objects that are mappings of their own: too large for an arena, or grown ------------------------

/// The layout of such an object, and what its header holds. The mapping is managed like any other.
///
/// ```text
/// base          object              open end              base + reserved
///   │ … header │ contents …             │ reserved to grow into │
/// ```
#[derive(Clone, Copy)]
struct Header {
    base: usize,
    /// Bytes of address space from `base` on. What lies beyond the open end has no access.
    reserved: usize,
    size: usize,
}

impl Header {
    /// Of an object of `size` bytes that lies `front` bytes into its mapping, with room to grow by `room`.
    fn plan(front: usize, size: usize, room: usize) -> Option<Self> {
        let reserved = size.checked_add(front)?.checked_add(room)?.checked_next_multiple_of(PAGE_SIZE)?;
        Some(Self { base: 0, reserved, size })
    }

    fn end(&self) -> usize {
        self.base + self.reserved
    }

    /// Where access ends, for an object at `object`.
    fn open_end(object: usize, size: usize) -> usize {
        (object + size).next_multiple_of(PAGE_SIZE)
    }

    /// Sets the mapping's address space aside.
    unsafe fn reserve(mut self) -> Option<Self> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: a new mapping.
        let base = unsafe { crate::mappings::map(null_mut(), self.reserved, libc::PROT_NONE, flags, -1, 0) };
        self.base = base as usize;
        (base != libc::MAP_FAILED).then_some(self)
    }

    unsafe fn release(self) {
        // SAFETY: the caller gives the mapping up.
        unsafe { crate::mappings::unmap(self.base as *mut c_void, self.reserved) };
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
fn note_size(object: usize, before: usize, size: usize) {
    let bytes = |size| Header::open_end(object, size) - object;
    if size > before {
        statistics::MAPPED_BYTES.rise(bytes(size) - bytes(before));
    } else {
        statistics::MAPPED_BYTES.fall(bytes(before) - bytes(size));
    }
}

unsafe fn open(start: usize, end: usize) -> bool {
    let access = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: the range is the caller's.
    end <= start || unsafe { crate::mappings::change_access(start, end - start, access) } == 0
}

/// The largest alignment for which mimalloc does not go to the system.
const MIMALLOC_ALIGN_MAX: usize = 64 << 10;
const MAPPED_MAGIC: usize = 0x7061_6765_7469_6465;

/// The header of an object that is a mapping of its own.
unsafe fn mapped_header(object: *mut c_void) -> Option<Header> {
    if !(object as usize).is_multiple_of(PAGE_SIZE) || !LARGE.contains(object as usize) {
        return None;
    }
    // SAFETY: the table names it.
    Some(unsafe { Header::read(object as usize) })
}

/// The addresses of live objects that are mappings: few, so a table that is looked through as far as it was ever
/// filled.
struct Large {
    cells: [AtomicUsize; 4096],
    end: AtomicUsize,
}
static LARGE: Large = Large { cells: [const { AtomicUsize::new(0) }; 4096], end: AtomicUsize::new(0) };
/// From which size on an object that grows becomes a mapping. As with glibc's threshold for mappings, what is
/// given back raises it: a program that grows such an object over and over wants memory that stays.
static GROWN_FROM: AtomicUsize = AtomicUsize::new(GROWN_MIN);

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
    fn remove(&self, address: usize) {
        Self::take(self.filled(), address, 0);
    }
    /// Takes the object's cell, so that no other object at the same address, once it has moved, is taken for
    /// it.
    fn begin_move(&self, address: usize) -> Option<&AtomicUsize> {
        Self::take(self.filled(), address, Self::TAKEN).map(|at| &self.cells[at])
    }
}

/// A new object that is a mapping, with room to grow by `room`; null if that cannot be had.
unsafe fn large_allocate(size: usize, align: usize, room: usize) -> *mut c_void {
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
        statistics::MAPPED.rise(1);
        note_size(object, 0, size);
        object as *mut c_void
    }
}

/// Changes the size of an object that is a mapping with this header. Null if that cannot be had.
unsafe fn large_resize(object: *mut c_void, header: Header, size: usize) -> *mut c_void {
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
        if size < header.size / 2
            && is < header.end()
            && crate::mappings::unmap(is as *mut c_void, header.end() - is) == 0
        {
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
        let moved = crate::mappings::mremap(
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
        crate::mappings::change_access(open_end, mapping.end() - open_end, libc::PROT_NONE);
        for (start, end) in [(header.base, first), (was, header.end())] {
            if start < end {
                crate::mappings::unmap(start as *mut c_void, end - start);
            }
        }
        mapping.write(object);
        cell.store(object, Relaxed);
        note_size(object, header.size, size);
        object as *mut c_void
    }
}

// ---- the C interface -------------------------------------------------------------------------------

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
    match from(size, ALIGN) {
        From::Program if size <= OBJECT_MAX => {
            // SAFETY: a plain call of the allocator.
            let object = unsafe { mi::mi_malloc(size) };
            if !object.is_null() { object } else { unsafe { again(size, ALIGN, false) } }
        }
        // SAFETY: no conditions.
        From::Program => unsafe { again(size, ALIGN, false) },
        // SAFETY: no conditions.
        From::Engine => unsafe { engine_allocate(size, ALIGN) },
        From::First(object) => object,
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
    match from(total, ALIGN) {
        From::Program if total <= OBJECT_MAX => {
            // SAFETY: a plain call of the allocator.
            let object = unsafe { mi::mi_zalloc(total) };
            if !object.is_null() { object } else { unsafe { again(total, ALIGN, true) } }
        }
        // SAFETY: no conditions; new mappings are zero.
        From::Program => unsafe { again(total, ALIGN, true) },
        // SAFETY: no conditions.
        From::Engine => unsafe { engine_allocate(total, ALIGN) },
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
            if !object.is_null() { object } else { unsafe { again(size, align, false) } }
        }
        // SAFETY: no conditions.
        From::Program => unsafe { again(size, align, false) },
        // SAFETY: no conditions.
        From::Engine => unsafe { engine_allocate(size, align) },
        From::First(object) => object,
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
        } else if FIRST.contains(address) {
            FIRST.free(object);
        } else if in_arena(address) {
            mi::mi_free(object);
        } else if heap::contains(address) {
            engine_free(object);
        } else if let Some(header) = mapped_header(object) {
            if header.size <= GROWN_MIN_MAX {
                GROWN_FROM.fetch_max(header.size, Relaxed);
            }
            LARGE.remove(address);
            header.release();
            statistics::MAPPED.fall(1);
            note_size(address, header.size, 0);
        } else {
            others::free(object);
        }
    }
}

/// Functions of the allocator that served the program before us, or serves a part of it: objects of neither of ours are
/// its.
mod others {
    use crate::next::Next;
    use std::ffi::c_void;

    static FREE: Next = Next::new(c"free");
    static REALLOC: Next = Next::new(c"realloc");
    static USABLE: Next = Next::new(c"malloc_usable_size");

    /// Frees an object.
    #[cold]
    pub(super) unsafe fn free(object: *mut c_void) {
        if let Some(next) = FREE.find() {
            // SAFETY: a function named `free` has this type, and the object is nobody else's.
            unsafe { std::mem::transmute::<*mut c_void, unsafe extern "C" fn(*mut c_void)>(next)(object) };
        }
    }

    /// Changes an object's size.
    #[cold]
    pub(super) unsafe fn realloc(object: *mut c_void, size: usize) -> *mut c_void {
        type Realloc = unsafe extern "C" fn(*mut c_void, usize) -> *mut c_void;
        // SAFETY: as above.
        unsafe { std::mem::transmute::<*mut c_void, Realloc>(REALLOC.get())(object, size) }
    }

    /// The bytes that may be used of an object; 0 if nobody can tell.
    #[cold]
    pub(super) unsafe fn usable(object: *mut c_void) -> usize {
        USABLE.find().map_or(0, |next| {
            // SAFETY: as above.
            unsafe {
                std::mem::transmute::<*mut c_void, unsafe extern "C" fn(*mut c_void) -> usize>(next)(object)
            }
        })
    }
}

/// Whether an object is from here.
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
            engine_layout(object).0
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
pub unsafe extern "C" fn malloc_usable_size(object: *mut c_void) -> usize {
    // SAFETY: the caller's contract.
    if object.is_null() { 0 } else { unsafe { usable(object) } }
}

/// Moves an object out of mimalloc's arenas into a mapping of its own. Null if that cannot be had.
unsafe fn grow_out(object: *mut c_void, size: usize) -> *mut c_void {
    // SAFETY: the object is mimalloc's; the new one is at least as large as what is copied.
    unsafe {
        let moved = large_allocate(size, ALIGN, size);
        if !moved.is_null() {
            let old = mi::mi_usable_size(object).min(size);
            std::ptr::copy_nonoverlapping(object.cast::<u8>(), moved.cast::<u8>(), old);
            mi::mi_free(object);
        }
        moved
    }
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
    if is_ready() {
        // SAFETY: no conditions.
        unsafe { mi::mi_collect(true) };
    }
    1
}
