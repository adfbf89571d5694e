//! The sieve: a cluster of address space through which memory leaves that MOVE does not take from where it lies.
//!
//! MOVE alone refuses pages that are pinned, and it takes none of memory that may not be written. Such memory goes to
//! the sieve by `mremap`, which takes whatever is there, is made writable there, where only the engine reaches it, and
//! goes on to a slot by MOVE. Pinned pages are left in the sieve, and `mremap` puts them back: they stay the same
//! frames all the time, so a device that writes to one writes to what the program sees. Whoever touches a page
//! meanwhile waits in a fault, and nobody can come to pin a page that is in the sieve: no address of the program leads
//! to it.

use crate::lock::lock;
use crate::mapping::{self, Reservation, Restored, remap};
use crate::maps::Maps;
use crate::pagemap::Pagemap;
use crate::task;
use crate::uffd::Uffd;
use pagetide_page::{CLUSTER_SIZE, PAGE_SIZE, PageSet};
use rustix::io::Errno;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard};

const DONTUNMAP: i32 = 4;

/// Attempts to put a page back where the process has as many mappings as it may.
const TRIES: usize = 1000;

/// One cluster of staging. Whoever takes pages out holds it.
#[derive(Debug)]
pub struct Sieve {
    /// The area of which it is a part.
    _area: Arc<Reservation>,
    base: usize,
    /// Whether it can be used: not once a part of it may be another's mapping.
    whole: Mutex<bool>,
}

impl Sieve {
    /// The cluster at `base`, which must be the caller's and a part of `area`.
    pub(crate) fn new(area: Arc<Reservation>, base: usize) -> Self {
        Self { _area: area, base, whole: Mutex::new(true) }
    }

    /// One that takes nothing.
    pub(crate) fn none() -> Self {
        Self { _area: Arc::new(Reservation::none()), base: 0, whole: Mutex::new(false) }
    }

    /// Returns whether all of it is the engine's.
    pub(crate) fn is_whole(&self) -> bool {
        *self.lock()
    }

    fn lock(&self) -> MutexGuard<'_, bool> {
        lock(&self.whole)
    }

    /// The sieve for one take-out.
    pub(crate) fn hold(&self) -> Result<Held<'_>, Errno> {
        let whole = self.lock();
        if *whole {
            Ok(Held { base: self.base, whole, brought: PageSet::default() })
        } else {
            Err(Errno::NOMEM)
        }
    }
}

/// The sieve, while a take-out uses it. It is empty before and after.
pub(crate) struct Held<'a> {
    base: usize,
    whole: MutexGuard<'a, bool>,
    /// Pages whose place is the program's mapping.
    brought: PageSet,
}

impl Held<'_> {
    /// Returns its address.
    pub(crate) fn base(&self) -> usize {
        self.base
    }

    /// Pages whose place has been taken by what was brought.
    pub(crate) fn brought(&self) -> PageSet {
        self.brought
    }

    /// Brings what is in `[start, start + length)`, which lies in one cluster, mapping by mapping. After an error what
    /// was brought before it is here.
    ///
    /// # Safety
    /// The range must be registered program memory whose faults the caller answers.
    pub(crate) unsafe fn bring(
        &mut self,
        start: usize,
        length: usize,
        pagemap: &Pagemap,
    ) -> Result<(), Errno> {
        let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED | DONTUNMAP;
        let to = self.base + start % CLUSTER_SIZE;
        // SAFETY: the source is the program's and stays mapped; nothing refers to the target, which is ours.
        let Err(error) = (unsafe { remap(start, length, length, flags, to) }) else {
            self.brought = self.brought.or(PageSet::of(start, length));
            return Ok(());
        };
        // SAFETY: the target was ours, and nothing refers to it.
        if unsafe { mapping::restore_target(to, length, error) } == Restored::Lost {
            *self.whole = false;
            return Err(error);
        }
        // EFAULT: the range is not one mapping.
        if error != Errno::FAULT || length == PAGE_SIZE || pagemap.presence(start, length)?.present.is_empty()
        {
            return Err(error);
        }
        let half = (length / 2).next_multiple_of(PAGE_SIZE);
        // SAFETY: the caller's contract holds for parts of the range.
        unsafe {
            let first = self.bring(start, half, pagemap);
            first.and(self.bring(start + half, length - half, pagemap))
        }
    }

    /// Puts `pages` back into the program's cluster at `cluster`, with the access that the program has there.
    ///
    /// # Safety
    /// The pages must have been brought from there, and all of them must be here.
    pub(crate) unsafe fn put_back(&mut self, cluster: usize, pages: PageSet, uffd: &Uffd, maps: &Maps) {
        for Range { start, end } in pages.runs() {
            let mut first = start;
            while first < end {
                let at = cluster + first * PAGE_SIZE;
                let found = maps.find(at).unwrap_or_else(|error| {
                    task::say(&format!("a page that is pinned cannot go back: {error} (/proc/self/maps)"));
                    task::kill_self();
                });
                let Some(mapping) = found else {
                    // It was unmapped by a call that nobody told us of.
                    // SAFETY: the page is ours, and nothing refers to it.
                    unsafe { mapping::discard(self.base + first * PAGE_SIZE, PAGE_SIZE) };
                    first += 1;
                    continue;
                };
                let last = end.min((mapping.end - cluster) / PAGE_SIZE);
                // SAFETY: the caller's contract. No page of the run is missing: nobody faults there in the moment in
                // which the mapping is back and not yet registered.
                unsafe { self.put_back_run(at, (last - first) * PAGE_SIZE, mapping.protection, uffd) };
                first = last;
            }
        }
    }

    /// Puts a run back that lies in one mapping of the program.
    ///
    /// # Safety
    /// As for [`Held::put_back`].
    unsafe fn put_back_run(&mut self, to: usize, length: usize, protection: i32, uffd: &Uffd) {
        let from = self.base + to % CLUSTER_SIZE;
        let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
        // SAFETY: the part is ours; the target is what the pages were brought from, and empty. The mapping that comes
        // to lie there is a copy of the one that it replaces.
        unsafe {
            insist("cannot be protected", || mapping::protect(from, length, protection));
            insist("cannot go back", || remap(from, length, length, flags, to).map(drop));
            insist("cannot be registered", || uffd.register_watched(to, length));
            if mapping::take_hole(from, length).is_err() {
                *self.whole = false;
            }
        }
    }
}

/// Does what must not fail: a page of the program is in the sieve. Where there are as many mappings as there may be, or
/// no memory for one, others end.
fn insist(what: &str, step: impl Fn() -> Result<(), Errno>) {
    let mut result = step();
    for _ in 0..TRIES {
        if result != Err(Errno::NOMEM) && result != Err(Errno::AGAIN) {
            break;
        }
        std::thread::yield_now();
        result = step();
    }
    if let Err(error) = result {
        task::say(&format!("a page that is pinned {what}: {error} (vm.max_map_count)"));
        task::kill_self();
    }
}
