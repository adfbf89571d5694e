//! Arenas: the address space that mimalloc has, and what of it is committed.

use super::figures;
use crate::current::process;
use crate::locks::Lock;
use pagetide::regions::{Access, Attributes, Charging};
use pagetide_swap::{PAGE_SIZE, PageIndex};
use pagetide_sys::heap;
use std::ffi::{c_int, c_void};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};

/// Address space that is set aside at a time. mimalloc gets it in pieces, each as large as all before it:
/// for each it commits a 500th at once, to keep its books. The first piece is the least that it takes, with 128 KiB of
/// books: most processes need no more. Where address space is limited, about a sixteenth of what is left.
const ARENA: usize = 8 << 30;
const ARENA_MIN: usize = 64 << 20;
const PIECE_FIRST: usize = 32 << 20;
const PIECE_MIN: usize = 256 << 20;
const ARENAS_MAX: usize = 64;
const ARENA_ALIGN: usize = 64 << 20;

/// The least that mimalloc commits: its slices, in bytes.
const SLICE: usize = 64 << 10;
const SLICE_WORDS: usize = ARENA / SLICE / u64::BITS as usize;
/// The slices of each arena that are committed, a bit each. mimalloc may commit one again that is.
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
}

pub(super) static ARENAS: [(AtomicUsize, AtomicUsize); ARENAS_MAX] =
    [const { (AtomicUsize::new(0), AtomicUsize::new(0)) }; ARENAS_MAX];
static ARENA_COUNT: AtomicUsize = AtomicUsize::new(0);
/// Pieces that mimalloc has, of all arenas; and its part of the last arena, in bytes.
static PIECES: AtomicUsize = AtomicUsize::new(0);
static HANDED: AtomicUsize = AtomicUsize::new(0);
static ARENA_LOCK: Lock = Lock::new();
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
        figures::COMMITTED.rise(changed * SLICE);
    } else {
        figures::COMMITTED.fall(changed * SLICE);
    }
    changed * (SLICE / PAGE_SIZE)
}

std::arch::global_asm!(".hidden __wrap_mprotect");

/// Commits pages of mimalloc that it uses up one by one. All of an arena is writable from the beginning.
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
pub(super) fn grow() -> bool {
    let seen = PIECES.load(Acquire);
    ARENA_LOCK.take();
    let grown = PIECES.load(Relaxed) > seen || add_piece();
    ARENA_LOCK.release();
    grown
}

/// Hands a piece to mimalloc. Call it under the lock, or while one thread runs.
pub(super) fn add_piece() -> bool {
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

/// Returns the length of the next arena, if it can be had.
pub(super) fn arena_length() -> usize {
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

pub(super) fn in_arena(address: usize) -> bool {
    arena_of(address).is_some()
}
