//! What the engine needs of a program's memory: the seam between policy and the kernel.
//!
//! [`crate::program_memory`] implements it with userfaultfd; [`crate::fake`] with a map in memory, so that the
//! whole engine runs under a model, without a kernel.

pub use pagetide_page::PageSet;
use pagetide_swap::{PageIndex, SpanSource};
pub use pagetide_sys::pagemap::Presence;
pub use pagetide_sys::staging::TakeOutWay;
use std::ops::Range;

/// How mapping a run of pages ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Mapped {
    /// Pages mapped, from the first on.
    pub pages: usize,
    /// What stopped it.
    pub error: Option<MapError>,
}

/// Why a page was not mapped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MapError {
    /// There is a page already.
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
    /// Pages of the slot that are there: its frames.
    fn populated(&self) -> PageSet;
    /// Frames that take memory.
    fn memory_pages(&self) -> usize;
    /// A frame's bytes.
    fn frame(&self, page: usize) -> Option<&[u8]>;
    /// A run of frames to be overwritten, if each is memory of its own.
    fn frames_mut(&mut self, first: usize, count: usize) -> Option<&mut [u8]>;
    /// Gives all frames back to the system but those of `kept`.
    fn retain(&mut self, kept: PageSet);
    /// Gives the slot itself back: it is not used any more.
    fn abandon(&mut self);
}

/// A program's memory.
pub trait Memory: Send + Sync + 'static {
    /// Staging.
    type Slot: StagingSlot;
    /// Memory for the pool.
    type Spans: SpanSource + Send;

    /// Whether frames can be moved into the program.
    fn can_move(&self) -> bool;
    /// Whether the kernel may hold pages of the program for I/O just now: then only ways that refuse those may take
    /// any.
    fn may_pin(&self) -> bool;
    /// Makes whoever waits for these pages look again.
    fn wake(&self, page: PageIndex, count: usize);
    /// Copies bytes to missing pages and wakes.
    fn copy_in(&self, page: PageIndex, bytes: &[u8]) -> Mapped;
    /// Makes a page unreadable and wakes. False if the system cannot.
    fn poison(&self, page: PageIndex) -> bool;
    /// Takes the pages of `range`, which lies in one cluster, out of the program into `slot`. False if
    /// this way did not work at all; with [`TakeOutWay::Move`] and [`TakeOutWay::Sift`] some pages may stay.
    fn take_out(
        &self,
        range: Range<PageIndex>,
        writable: bool,
        way: TakeOutWay,
        slot: &mut Self::Slot,
    ) -> bool;
    /// Gives the program pages of its own where it shares them with other processes since a fork: what is shared
    /// does not leave by [`TakeOutWay::Move`]. Takes memory for each such page. If a page is missing after all,
    /// the calling thread faults, like one of the program's. False if nothing was done, since a mapping is moving.
    fn unshare(&self, range: Range<PageIndex>) -> bool;
    /// Which pages of `range`, which lies in one cluster, are in the program. A page may be said to be there
    /// that is not, never the other way round.
    fn presence(&self, range: Range<PageIndex>) -> Presence;
    /// Copies frames of `slot` to missing pages and wakes.
    fn copy_from(&self, slot: &Self::Slot, frame: usize, count: usize, to: PageIndex) -> Mapped;
    /// Moves frames of `slot` to missing pages and wakes.
    fn move_from(&self, slot: &mut Self::Slot, frame: usize, count: usize, to: PageIndex) -> Mapped;
}
