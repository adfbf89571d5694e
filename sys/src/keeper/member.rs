//! A process that maps objects: where, and by which userfaultfd.

use crate::uffd::Uffd;
use pagetide_page::{PAGE_SIZE, PageIndex};
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

/// Tells whether a process may have pinned its memory, or is about to.
pub type Pins = Box<dyn Fn() -> bool + Send + Sync>;

/// A process that maps objects.
pub(super) struct Member {
    pub(super) uffd: Uffd,
    pub(super) pid: u32,
    pub(super) pins: Pins,
    /// Whether it was seen to have something open that pins.
    pub(super) pinned: AtomicBool,
    /// By their first addresses.
    pub(super) mappings: BTreeMap<usize, Mapping>,
    /// Whether the process has left: it may still run for an instant.
    pub(super) gone: bool,
}

impl std::fmt::Debug for Member {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Member")
            .field("mappings", &self.mappings)
            .field("gone", &self.gone)
            .finish_non_exhaustive()
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Mapping {
    pub(super) end: usize,
    pub(super) to: PageIndex,
}

impl Member {
    pub(super) fn may_pin(&self) -> bool {
        !self.gone && (self.pinned.load(SeqCst) || (self.pins)())
    }

    /// The page of an address.
    pub(super) fn page(&self, address: usize) -> Option<PageIndex> {
        let (&start, mapping) = self.mappings.range(..=address).next_back()?;
        (address < mapping.end).then(|| mapping.to.plus(((address - start) / PAGE_SIZE) as u64))
    }

    /// The address of a run of pages, where all of it is mapped in one piece.
    pub(super) fn address(&self, page: PageIndex, count: usize) -> Option<usize> {
        self.parts(&(page..page.plus(count as u64)))
            .find(|(_, length)| *length == count * PAGE_SIZE)
            .map(|(address, _)| address)
    }

    /// Where parts of a range of pages are mapped: address and bytes.
    pub(super) fn parts(&self, range: &Range<PageIndex>) -> impl Iterator<Item = (usize, usize)> {
        let range = range.clone();
        self.mappings.iter().filter_map(move |(&start, mapping)| {
            let pages = (mapping.end - start) / PAGE_SIZE;
            let first = range.start.max(mapping.to);
            let end = range.end.min(mapping.to.plus(pages as u64));
            (first < end).then(|| {
                let address = start + (first.0 - mapping.to.0) as usize * PAGE_SIZE;
                (address, (end.0 - first.0) as usize * PAGE_SIZE)
            })
        })
    }

    /// Removes what is mapped in `addresses`.
    pub(super) fn remove(&mut self, addresses: &Range<usize>) {
        let overlap: Vec<_> = self
            .mappings
            .range(..addresses.end)
            .filter(|(_, mapping)| mapping.end > addresses.start)
            .map(|(&start, &mapping)| (start, mapping))
            .collect();
        for (start, mapping) in overlap {
            self.mappings.remove(&start);
            if start < addresses.start {
                self.mappings.insert(start, Mapping { end: addresses.start, ..mapping });
            }
            if mapping.end > addresses.end {
                let to = mapping.to.plus(((addresses.end - start) / PAGE_SIZE) as u64);
                self.mappings.insert(addresses.end, Mapping { end: mapping.end, to });
            }
        }
    }

    /// Ends the protection of a range, part by part if something else is mapped in it by now.
    pub(super) fn unprotect(&self, address: usize, length: usize) {
        if let Err(Errno::NOENT) = self.uffd.write_protect(address, length, false)
            && length > PAGE_SIZE
        {
            let half = (length / 2).next_multiple_of(PAGE_SIZE);
            self.unprotect(address, half);
            self.unprotect(address + half, length - half);
        }
    }
}
