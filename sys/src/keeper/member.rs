//! A process that maps objects: where, and by which userfaultfd.

use super::mappings::Mappings;
use crate::procfs::may_pin;
use crate::uffd::Uffd;
use pagetide_page::{PAGE_SIZE, PageIndex};
use rustix::io::Errno;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

/// Tells whether a process may have pinned its memory, or is about to.
pub type Pins = Box<dyn Fn() -> bool + Send + Sync>;

/// A process that maps objects.
pub(super) struct Member {
    pub(super) uffd: Uffd,
    pub(super) pid: u32,
    pub(super) pins: Pins,
    /// Whether it was seen to have something open that pins.
    pinned: AtomicBool,
    /// Whether nobody could look when it was to be looked at last.
    unsure: AtomicBool,
    /// What it maps.
    pub(super) mappings: Mappings,
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

impl Member {
    /// A process that maps nothing yet. It may have inherited what pins, through exec, and nothing of it may leave before that
    /// was looked for.
    pub(super) fn new(uffd: Uffd, pid: u32, pins: Pins) -> Self {
        let (pinned, unsure) = Default::default();
        let this = Self { uffd, pid, pins, pinned, unsure, mappings: Mappings::default(), gone: false };
        this.look_for_pins();
        this
    }

    pub(super) fn may_pin(&self) -> bool {
        let seen = || self.pinned.load(SeqCst) || self.unsure.load(SeqCst);
        !self.gone && (seen() || (self.pins)())
    }

    /// Looks whether it has something open that pins its memory. Who had stays so.
    pub(super) fn look_for_pins(&self) {
        if self.gone || self.pinned.load(SeqCst) || (self.pins)() {
            return;
        }
        let pins = may_pin(self.pid);
        self.pinned.store(pins == Some(true), SeqCst);
        self.unsure.store(pins.is_none(), SeqCst);
    }

    /// The address of a run of pages, where all of it is mapped in one piece.
    pub(super) fn address(&self, page: PageIndex, count: usize) -> Option<usize> {
        self.mappings
            .parts(&(page..page.plus(count as u64)))
            .find(|(_, length)| *length == count * PAGE_SIZE)
            .map(|(address, _)| address)
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
