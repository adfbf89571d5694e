//! Objects of shared memory, as the engine of their keeper sees them: userfaultfds of several processes, and memfds.
//!
//! Its page numbers are those of [`Objects`]. What is unlike a program's own memory:
//! - Pages come in by copies: a frame cannot be moved into another process.
//! - A cluster leaves by a copy too, with its mappings protected against writes meanwhile.
//! - While a process that maps objects may pin memory, nothing leaves: a hole takes pinned pages away without a word.

use crate::group::Group;
use crate::memory::{Mapped, Memory, Presence, TakeOutWay};
use crate::program_memory::{PoolMemory, mapped};
use pagetide_page::{PageIndex, PageSet};
use pagetide_sys::keeper::Objects;
use pagetide_sys::{staging, uffd};
use std::ops::Range;
use std::sync::Arc;

/// Scans that are told from each other: each process may have one of its own.
const SCANS: usize = 64;

/// The memory of all objects of a run.
#[derive(Clone, Debug)]
pub struct ObjectMemory {
    objects: Arc<Objects>,
    group: Group,
}

impl ObjectMemory {
    /// The memory of these objects, which processes of the group map.
    pub fn new(objects: Arc<Objects>, group: Group) -> Self {
        Self { objects, group }
    }

    /// Returns whether a range is of an object, whose mappings are registered when processes attach them.
    pub fn holds(&self, range: &Range<PageIndex>) -> bool {
        self.objects.object_of(range.start).is_some_and(|object| range.end <= object.end)
    }

    /// Looks whether a process that maps objects has something open that pins its memory.
    pub fn look_for_pins(&self) {
        self.objects.look_for_pins();
    }

    /// Waits for a fault, whose address is that of its page.
    ///
    /// # Errors
    /// INTR: a signal came.
    pub fn wait(&self) -> std::io::Result<Option<uffd::Fault>> {
        Ok(self.objects.wait()?)
    }
}

impl Memory for ObjectMemory {
    type Slot = staging::Slot;
    type Spans = PoolMemory;

    fn can_move(&self) -> bool {
        false
    }

    fn copies_out(&self) -> bool {
        true
    }

    fn begin_taking(&self) -> bool {
        // Cross-memory attach is looked for once writes are held up: see `Objects::take_out`.
        self.objects.may_pin()
    }

    fn is_crossed(&self) -> bool {
        self.group.is_crossing()
    }

    fn wake(&self, page: PageIndex, count: usize) {
        self.objects.wake(page, count);
    }

    fn wake_late(&self, page: PageIndex, count: usize) {
        self.objects.wake(page, count);
    }

    fn ring(&self) -> bool {
        self.objects.ring();
        true
    }

    fn scans(&self) -> usize {
        SCANS
    }

    fn copy_in(&self, page: PageIndex, bytes: &[u8]) -> Mapped {
        mapped(self.objects.copy_in(page, bytes))
    }

    fn poison(&self, page: PageIndex) -> bool {
        self.objects.poison(page)
    }

    fn take_out(&self, range: Range<PageIndex>, _: bool, way: TakeOutWay, slot: &mut staging::Slot) -> bool {
        way == TakeOutWay::Remap && self.objects.take_out(range, slot, &|| !self.group.may_take()).is_ok()
    }

    fn unshare(&self, _: Range<PageIndex>) -> bool {
        false
    }

    fn presence(&self, range: Range<PageIndex>) -> Presence {
        let present = self.objects.present(range).unwrap_or_else(|error| {
            // What is there cannot be told from what is not: one wrong guess would be a wrong byte.
            let error = std::io::Error::from(error);
            pagetide_sys::task::say(&format!("cannot see which pages of shared memory there are: {error}"));
            pagetide_sys::task::kill_self();
        });
        Presence { present, zero: PageSet::default() }
    }

    fn written(&self, _: Range<PageIndex>, _: bool) -> Option<PageSet> {
        // Each process that maps an object has page tables of its own.
        None
    }

    fn copy_from(&self, slot: &staging::Slot, frame: usize, count: usize, to: PageIndex) -> Mapped {
        self.copy_in(to, slot.frames(frame, count))
    }

    fn move_from(&self, slot: &mut staging::Slot, frame: usize, count: usize, to: PageIndex) -> Mapped {
        self.copy_in(to, slot.frames(frame, count))
    }
}
