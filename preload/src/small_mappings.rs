//! Private mappings under 16 KiB: not managed until there are many, or one grows.
//!
//! One that grows is managed only if nothing was set on it meanwhile that management would have to know (locks, advice, access):
//! those that may grow are remembered, and forgotten with the first such call.

use pagetide::process::Entered;
use pagetide_swap::PAGE_SIZE;
use pagetide_sys::lock;
use std::ffi::c_int;
use std::sync::Mutex;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;

/// Smaller mappings are not worth managing while they are few: 16 KiB. (A compiler may hold a seventh of its memory in such of 16
/// to 60.)
const MANAGED_MIN: usize = 4 * PAGE_SIZE;
/// Small mappings are many from 1 MiB on. One that is mapped, touched and unmapped again costs a fault through the engine more if it
/// is managed, so those that come and go are left out.
const MANY: usize = (1 << 20) / PAGE_SIZE;
/// So many are remembered, the last ones.
const REMEMBERED: usize = 64;

/// Pages of small mappings that are not managed, about: one that is unmapped when it is not remembered any more still counts.
static UNMANAGED: AtomicUsize = AtomicUsize::new(0);
/// Whether any was ever remembered: most programs have none.
static ANY: AtomicUsize = AtomicUsize::new(0);
/// Those that are remembered. Locked in mapping calls only, whose ends a fork waits for.
static LATEST: Mutex<Latest> = Mutex::new(Latest { mappings: [Small::NONE; REMEMBERED], next: 0 });

/// A mapping that is as `mmap` made it.
#[derive(Clone, Copy)]
struct Small {
    start: usize,
    length: usize,
    protection: c_int,
}

impl Small {
    const NONE: Self = Self { start: 0, length: 0, protection: 0 };

    fn meets(&self, start: usize, length: usize) -> bool {
        self.start < start.saturating_add(length) && start < self.start + self.length
    }
}

struct Latest {
    mappings: [Small; REMEMBERED],
    next: usize,
}

fn whole(length: usize) -> usize {
    length.next_multiple_of(PAGE_SIZE)
}

/// Returns whether a private mapping of `length` bytes is worth managing.
pub(crate) fn is_worth_managing(length: usize) -> bool {
    length >= MANAGED_MIN || UNMANAGED.load(Relaxed) >= MANY
}

/// Remembers a private mapping that was not worth managing.
pub(crate) fn mapped(_: &Entered<'_>, start: usize, length: usize, protection: c_int) {
    UNMANAGED.fetch_add(length.div_ceil(PAGE_SIZE), Relaxed);
    ANY.store(1, Relaxed);
    let mut latest = lock(&LATEST);
    let next = latest.next;
    latest.mappings[next] = Small { start, length: whole(length), protection };
    latest.next = (next + 1) % REMEMBERED;
}

/// Forgets mappings of which a part was changed. Returns the number of their pages.
pub(crate) fn forget(_: &Entered<'_>, start: usize, length: usize) -> usize {
    if ANY.load(Relaxed) == 0 {
        return 0;
    }
    let mut pages = 0;
    for mapping in lock(&LATEST).mappings.iter_mut().filter(|mapping| mapping.meets(start, length)) {
        pages += mapping.length / PAGE_SIZE;
        *mapping = Small::NONE;
    }
    pages
}

/// Forgets all mappings: something was set on all of the process's memory.
pub(crate) fn forget_all(entered: &Entered<'_>) {
    forget(entered, 0, usize::MAX);
}

/// Forgets mappings of which a part is not there any more.
pub(crate) fn unmapped(entered: &Entered<'_>, start: usize, length: usize) {
    let gone = forget(entered, start, length);
    if gone > 0 {
        let _ = UNMANAGED.fetch_update(Relaxed, Relaxed, |pages| Some(pages.saturating_sub(gone)));
    }
}

/// Notes that a mapping of `old_length` bytes has become one of `length` bytes at `start`. Returns the access to it, if it was small and
/// is worth managing now.
pub(crate) fn resized(
    entered: &Entered<'_>,
    [old, old_length]: [usize; 2],
    [start, length]: [usize; 2],
) -> Option<c_int> {
    if ANY.load(Relaxed) == 0 {
        return None;
    }
    let is_it = |mapping: &&Small| mapping.start == old && mapping.length == whole(old_length);
    let found = lock(&LATEST).mappings.iter().find(is_it).copied();
    unmapped(entered, old, old_length);
    unmapped(entered, start, length);
    let Small { protection, .. } = found.filter(|_| old_length > 0)?;
    if !is_worth_managing(length) {
        mapped(entered, start, length, protection);
        return None;
    }
    Some(protection)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_meet_where_they_have_a_byte_in_common() {
        let mapping = Small { start: 0x5000, length: 0x2000, protection: 3 };
        for (start, length, meets) in [
            (0x4000, 0x1000, false),
            (0x4000, 0x1001, true),
            (0x6fff, 1, true),
            (0x7000, 0x1000, false),
            (0, usize::MAX, true),
        ] {
            assert_eq!(mapping.meets(start, length), meets, "{start:#x} {length:#x}");
        }
        assert!(!Small::NONE.meets(0, usize::MAX));
    }
}
