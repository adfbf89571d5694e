//! The memory that a running engine serves: that of the program whose process it is in, or the objects of shared memory
//! of a run.

use crate::memory::{Mapped, Memory, PageSet, Presence, TakeOutWay};
use crate::object_memory::ObjectMemory;
use crate::program_memory::{PoolMemory, ProgramMemory};
use pagetide_page::{PAGE_SIZE, PageIndex};
use pagetide_sys::{staging, task, uffd};
use std::io;
use std::ops::Range;

/// The memory of an engine.
#[derive(Debug)]
pub enum EngineMemory {
    /// The private memory of this process.
    Program(ProgramMemory),
    /// Shared memory, of which this process is the keeper.
    Objects(ObjectMemory),
}

macro_rules! either {
    ($self:ident, $memory:ident => $does:expr) => {
        match $self {
            EngineMemory::Program($memory) => $does,
            EngineMemory::Objects($memory) => $does,
        }
    };
}

impl EngineMemory {
    /// Waits for a fault.
    ///
    /// # Errors
    /// INTR: a signal came. AGAIN: there was none after all.
    pub fn wait(&self) -> io::Result<Option<uffd::Fault>> {
        match self {
            Self::Program(memory) => Ok(memory.kernel().wait()?),
            Self::Objects(memory) => memory.wait(),
        }
    }

    /// Makes a thread that waits for a page look again, on that processor.
    pub fn wake_at(&self, tid: u32, processor: usize, page: PageIndex) {
        match self {
            Self::Program(memory) => {
                task::wake_at(tid, processor, || memory.kernel().wake(page.address(), PAGE_SIZE));
            }
            Self::Objects(memory) => memory.wake(page, 1),
        }
    }

    /// Does what the calling thread has put off while the memory was quiet ([`EngineMemory::set_quiet`]).
    pub fn catch_up(&self) {
        if let Self::Program(memory) = self {
            memory.kernel().catch_up();
        }
    }

    /// From now on pages come in, and threads are woken, only when whoever answers them catches up; or no longer so.
    pub fn set_quiet(&self, quiet: bool) {
        if let Self::Program(memory) = self {
            memory.kernel().set_quiet(quiet);
        }
    }

    /// Looks whether anything is open through which the kernel may pin pages.
    pub fn look_for_pins(&self) {
        match self {
            Self::Program(memory) => memory.look_for_pins(),
            Self::Objects(memory) => memory.look_for_pins(),
        }
    }

    /// Whether this is shared memory, whose pages belong to no process.
    pub fn is_shared(&self) -> bool {
        matches!(self, Self::Objects(_))
    }

    /// Registers a range.
    ///
    /// # Errors
    /// What the kernel says; a range with another kind of mapping in it is EINVAL.
    pub fn register(&self, range: Range<PageIndex>) -> io::Result<()> {
        match self {
            Self::Program(memory) => memory.register(range),
            Self::Objects(memory) if memory.holds(&range) => Ok(()),
            Self::Objects(_) => Err(io::ErrorKind::InvalidInput.into()),
        }
    }

    /// Takes a range out of our care until it is registered anew: for a mapping call that moves it.
    ///
    /// # Errors
    /// What the kernel says; INVAL for shared memory, which does not move.
    pub fn unregister(&self, range: Range<PageIndex>) -> io::Result<()> {
        match self {
            Self::Program(memory) => memory.unregister(range),
            Self::Objects(_) => Err(io::ErrorKind::InvalidInput.into()),
        }
    }
}

impl Memory for EngineMemory {
    type Slot = staging::Slot;
    type Spans = PoolMemory;

    fn can_move(&self) -> bool {
        either!(self, memory => memory.can_move())
    }

    fn copies_out(&self) -> bool {
        either!(self, memory => memory.copies_out())
    }

    fn begin_taking(&self) -> bool {
        either!(self, memory => memory.begin_taking())
    }

    fn is_crossed(&self) -> bool {
        either!(self, memory => memory.is_crossed())
    }

    fn end_taking(&self, pins: bool) {
        either!(self, memory => memory.end_taking(pins));
    }

    fn wake(&self, page: PageIndex, count: usize) {
        either!(self, memory => memory.wake(page, count));
    }

    fn wake_late(&self, page: PageIndex, count: usize) {
        either!(self, memory => memory.wake_late(page, count));
    }

    fn ring(&self) -> bool {
        either!(self, memory => memory.ring())
    }

    fn scans(&self) -> usize {
        either!(self, memory => memory.scans())
    }

    fn copy_in(&self, page: PageIndex, bytes: &[u8]) -> Mapped {
        either!(self, memory => memory.copy_in(page, bytes))
    }

    fn has_zero_page(&self) -> bool {
        either!(self, memory => memory.has_zero_page())
    }

    fn map_zero_page(&self, page: PageIndex, count: usize) -> Mapped {
        either!(self, memory => memory.map_zero_page(page, count))
    }

    fn poison(&self, page: PageIndex) -> bool {
        either!(self, memory => memory.poison(page))
    }

    fn take_out(
        &self,
        range: Range<PageIndex>,
        writable: bool,
        way: TakeOutWay,
        slot: &mut Self::Slot,
    ) -> bool {
        either!(self, memory => memory.take_out(range, writable, way, slot))
    }

    fn unshare(&self, range: Range<PageIndex>) -> bool {
        either!(self, memory => memory.unshare(range))
    }

    fn presence(&self, range: Range<PageIndex>) -> Presence {
        either!(self, memory => memory.presence(range))
    }

    fn first_present(&self, range: Range<PageIndex>) -> PageIndex {
        either!(self, memory => memory.first_present(range))
    }

    fn written(&self, range: Range<PageIndex>, watch: bool) -> Option<PageSet> {
        either!(self, memory => memory.written(range, watch))
    }

    fn can_lend(&self) -> bool {
        either!(self, memory => memory.can_lend())
    }

    fn stop_writes(&self, range: Range<PageIndex>) -> bool {
        either!(self, memory => memory.stop_writes(range))
    }

    fn allow_writes(&self, range: Range<PageIndex>) {
        either!(self, memory => memory.allow_writes(range));
    }

    fn shared(&self, range: Range<PageIndex>) -> PageSet {
        either!(self, memory => memory.shared(range))
    }

    fn copy_from(&self, slot: &Self::Slot, frame: usize, count: usize, to: PageIndex) -> Mapped {
        either!(self, memory => memory.copy_from(slot, frame, count, to))
    }

    fn move_from(&self, slot: &mut Self::Slot, frame: usize, count: usize, to: PageIndex) -> Mapped {
        either!(self, memory => memory.move_from(slot, frame, count, to))
    }
}
