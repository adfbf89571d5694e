//! The memory of a program, as the engine needs it: the seam between policy and the kernel.
//!
//! [`crate::program_memory`] implements it with userfaultfd; [`crate::fake`] with a map in memory, so that the
//! whole engine runs under a model, without a kernel.

pub use pagetide_page::PageSet;
use pagetide_swap::streams::STREAMS;
use pagetide_swap::{PageIndex, SpanSource};
pub use pagetide_sys::pagemap::Presence;
pub use pagetide_sys::staging::TakeOutWay;
use std::ops::Range;

/// The outcome of mapping a run of pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Mapped {
    /// The number of pages that were mapped, from the first on.
    pub pages: usize,
    /// The error that stopped it at the next page.
    pub error: Option<MapError>,
}

/// The reason for which a page was not mapped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MapError {
    /// A page is mapped there already.
    Exists,
    /// The frame would not move: it is pinned, or shared by fork, or the mapping is read-only.
    Refused,
    /// The mapping is gone.
    Gone,
    /// The kernel is out of memory.
    NoMemory,
}

/// A slot of staging memory that the engine owns.
pub trait StagingSlot: Send {
    /// Returns the pages of the slot that are there: its frames.
    fn populated(&self) -> PageSet;
    /// Returns the number of frames that take memory: those of the kernel's zero page do not.
    fn memory_pages(&self) -> usize;
    /// Returns the frames that are the kernel's zero page.
    fn zero(&self) -> PageSet;
    /// Returns the bytes of a frame; `None` if it is not there.
    fn frame(&self, page: usize) -> Option<&[u8]>;
    /// Returns a run of `count` frames to be overwritten; `None` unless each is there and has memory of its own.
    fn frames_mut(&mut self, first: usize, count: usize) -> Option<&mut [u8]>;
    /// Returns the number of *spare* frames: they hold nothing, and stay for the next pages there.
    fn spare_pages(&self) -> usize;
    /// Makes the frames of these pages, as far as there are, spare ones. Only where [`Memory::copies_out`].
    fn set_aside(&mut self, pages: PageSet);
    /// Gives the spare frames back to the system. Returns how many there were.
    fn drop_spare(&mut self) -> usize;
    /// Gives all frames back to the system but those of `kept` and the spare ones.
    fn retain(&mut self, kept: PageSet);
    /// Gives the slot itself back: it is not used any more.
    fn abandon(&mut self);
}

/// The memory of a program.
pub trait Memory: Send + Sync + 'static {
    /// A slot of staging.
    type Slot: StagingSlot;
    /// The source of memory for the pool.
    type Spans: SpanSource + Send;

    /// Returns whether frames can be moved into the program.
    fn can_move(&self) -> bool;
    /// Returns whether pages leave by copies into frames, so that frames can serve again, and a page takes no memory any
    /// more once it is in one.
    fn copies_out(&self) -> bool {
        false
    }
    /// Begins a take-out. Returns whether the kernel may hold pages of the program until its end, for I/O or for another
    /// process: then only ways that refuse those may take any.
    fn begin_taking(&self) -> bool;
    /// Returns whether a call is under way for which nothing may be taken out, and whose faults would so wait for room for ever.
    fn is_crossed(&self) -> bool {
        false
    }
    /// Ends a take-out that began with this answer.
    fn end_taking(&self, _pins: bool) {}
    /// Wakes the threads that wait for `count` pages from `page` on: they touch their page again.
    fn wake(&self, page: PageIndex, count: usize);
    /// Wakes the threads that have come to wait for pages since these were copied or moved in; they were unlocked just
    /// now. Of private memory there are none: a page that is in the program is in the page table of all its threads. A
    /// page of shared memory may be in the page tables of some processes only.
    fn wake_late(&self, _page: PageIndex, _count: usize) {}
    /// Has another thread answer the faults that wait for room ([`crate::engine::Engine::retry_waiting`]). Returns false
    /// if there is none: a program's readers wait for its faults alone.
    fn ring(&self) -> bool {
        false
    }
    /// The number of scans that are told from each other.
    fn scans(&self) -> usize {
        STREAMS
    }
    /// Copies bytes to missing pages, and wakes the threads that wait for them.
    fn copy_in(&self, page: PageIndex, bytes: &[u8]) -> Mapped;
    /// Returns whether pages of the program may be the kernel's zero page.
    fn has_zero_page(&self) -> bool {
        false
    }
    /// Maps the kernel's zero page, which takes no memory until it is written to, at missing pages, and wakes the threads
    /// that wait for them. It may refuse at any page.
    fn map_zero_page(&self, _page: PageIndex, _count: usize) -> Mapped {
        Mapped { pages: 0, error: Some(MapError::Refused) }
    }
    /// Makes a page unreadable, and wakes the threads that wait for it. Returns false if the system cannot do so.
    fn poison(&self, page: PageIndex) -> bool;
    /// Takes the pages of `range`, which lies in one cluster, out of the program into `slot`. Returns
    /// false if this way did not work at all; with [`TakeOutWay::Move`] and [`TakeOutWay::Sift`] some pages may stay.
    fn take_out(
        &self,
        range: Range<PageIndex>,
        writable: bool,
        way: TakeOutWay,
        slot: &mut Self::Slot,
    ) -> bool;
    /// Gives the program pages of its own where it shares them with other processes since a fork: what is shared does
    /// not leave by [`TakeOutWay::Move`]. Takes memory for each such page. If a page is missing after all, the calling
    /// thread faults, like one of the program's. Returns false if nothing was done, since a mapping is moving.
    fn unshare(&self, range: Range<PageIndex>) -> bool;
    /// Returns the pages of `range`, which lies in one cluster, that are in the program. It may name a page that is not
    /// there, but leaves out none that is.
    fn presence(&self, range: Range<PageIndex>) -> Presence;
    /// Returns the first page of `range` that may be in the program, its end if none is. Pages before it are not there.
    fn first_present(&self, range: Range<PageIndex>) -> PageIndex {
        range.start
    }
    /// Returns the pages of `range`, which lies in one cluster, that are in the program, and that were written or have come
    /// there since this was last asked with `watch`. `None` if that is not known.
    fn written(&self, range: Range<PageIndex>, watch: bool) -> Option<PageSet>;
    /// Returns whether a forked child's writes can be stopped ([`Memory::stop_writes`]).
    fn can_lend(&self) -> bool {
        false
    }
    /// Stops writes to those pages of `range` that are in the program: each is a fault, until [`Memory::allow_writes`]. Returns
    /// false where that cannot be done.
    fn stop_writes(&self, _range: Range<PageIndex>) -> bool {
        false
    }
    /// Allows writes to `range` again. Wakes nobody.
    fn allow_writes(&self, _range: Range<PageIndex>) {}
    /// Returns the pages of `range`, which lies in one cluster, that are in the program and that other processes share since
    /// a fork.
    fn shared(&self, _range: Range<PageIndex>) -> PageSet {
        PageSet::default()
    }
    /// Copies `count` frames of `slot` to missing pages, and wakes the threads that wait for them.
    fn copy_from(&self, slot: &Self::Slot, frame: usize, count: usize, to: PageIndex) -> Mapped;
    /// Moves `count` frames of `slot` to missing pages, and wakes the threads that wait for them.
    fn move_from(&self, slot: &mut Self::Slot, frame: usize, count: usize, to: PageIndex) -> Mapped;
}
