//! A program's memory, as the kernel has it: userfaultfd, `mremap`, page tables.

use crate::group::{Group, ProcessSlot};
use crate::injection::{Fault, Injection};
use crate::mask::Mask;
use crate::memory::{MapError, Mapped, Memory, PageSet, Presence, StagingSlot, TakeOutWay};
use pagetide_swap::{PAGE_SIZE, PageIndex};
use pagetide_swap::{SpanMemory, SpanSource};
use pagetide_sys::kernel::Kernel;
use pagetide_sys::procfs;
use pagetide_sys::spans::{Span, Spans};
use pagetide_sys::staging;
use std::io::ErrorKind;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex};

const _: () = assert!(PAGE_SIZE == pagetide_page::PAGE_SIZE);

/// The memory of this process.
#[derive(Debug)]
pub struct ProgramMemory {
    kernel: Kernel,
    mask: Mask,
    may_pin: Arc<AtomicBool>,
    /// Whether nobody could look when it was to be looked last.
    unsure: AtomicBool,
    layout: Arc<Mutex<()>>,
    group: Group,
    slot: ProcessSlot,
}

/// The source of the pool's memory in this process.
#[derive(Clone, Debug)]
pub struct PoolMemory {
    /// The address space that spans are taken from.
    pub spans: Spans,
    /// The faults that are injected, for tests.
    pub injection: Arc<Injection>,
}

/// A span of the pool's memory.
#[derive(Debug)]
pub struct PoolSpan(Span);

impl SpanSource for PoolMemory {
    type Span = PoolSpan;
    fn take(&self, bytes: usize) -> Option<PoolSpan> {
        if self.injection.happens(Fault::Pool) { None } else { self.spans.take(bytes).map(PoolSpan) }
    }
}

impl SpanMemory for PoolSpan {
    fn trim(&mut self, used: usize) {
        self.0.trim(used);
    }
}

impl std::ops::Deref for PoolSpan {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.0
    }
}

impl std::ops::DerefMut for PoolSpan {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.0
    }
}

impl ProgramMemory {
    /// Returns the memory behind `kernel`, which moves pages in ways that are not masked. `may_pin` tells whether the
    /// kernel may pin pages of it through a descriptor; `layout` is held while a mapping moves. The process has `slot`.
    pub fn new(
        kernel: Kernel,
        may_pin: Arc<AtomicBool>,
        layout: Arc<Mutex<()>>,
        group: Group,
        slot: ProcessSlot,
    ) -> Self {
        let mask = group.setup().mask;
        if mask.masks(Mask::NO_SCAN) {
            kernel.pagemap().mask_scan();
        }
        Self { kernel, mask, may_pin, unsure: AtomicBool::new(false), layout, group, slot }
    }

    /// Returns the kernel's side of the memory.
    pub fn kernel(&self) -> &Kernel {
        &self.kernel
    }

    /// Looks whether the program has opened a descriptor through which the kernel may pin its pages. Where it had it stays so.
    pub fn look_for_pins(&self) {
        if self.may_pin.load(SeqCst) {
            return;
        }
        let pins = procfs::may_pin(procfs::own_pid());
        if pins == Some(true) {
            self.may_pin.store(true, SeqCst);
        }
        self.unsure.store(pins.is_none(), SeqCst);
    }

    /// Registers a range with the userfaultfd.
    ///
    /// # Errors
    /// EINVAL if something else than private anonymous memory, or nothing, is mapped in a part of the range; EBUSY if
    /// another userfaultfd has it.
    pub fn register(&self, range: Range<PageIndex>) -> Result<(), std::io::Error> {
        let (start, length) = bytes(&range);
        Ok(self.kernel.register(start, length)?)
    }

    /// Takes a range out of our care until it is registered anew: for a mapping call that moves it.
    ///
    /// # Errors
    /// EINVAL if something is mapped in the range that could not be registered.
    pub fn unregister(&self, range: Range<PageIndex>) -> Result<(), std::io::Error> {
        let (start, length) = bytes(&range);
        Ok(self.kernel.unregister(start, length)?)
    }
}

fn bytes(range: &Range<PageIndex>) -> (usize, usize) {
    (range.start.address(), range.end.address() - range.start.address())
}

pub(crate) fn mapped((done, error): pagetide_sys::uffd::Partial) -> Mapped {
    let error = error.map(|error| match std::io::Error::from(error).kind() {
        ErrorKind::AlreadyExists => MapError::Exists,
        ErrorKind::OutOfMemory => MapError::NoMemory,
        // EBUSY: pinned or shared. EINVAL: a mapping that MOVE does not take (read-only, locked).
        ErrorKind::ResourceBusy | ErrorKind::InvalidInput => MapError::Refused,
        _ => MapError::Gone,
    });
    Mapped { pages: done / PAGE_SIZE, error }
}

impl Memory for ProgramMemory {
    type Slot = staging::Slot;
    type Spans = PoolMemory;

    fn can_move(&self) -> bool {
        self.kernel.can_move() && !self.mask.masks(Mask::NO_MOVE)
    }

    fn begin_taking(&self) -> bool {
        self.may_pin.load(SeqCst) || self.unsure.load(SeqCst) || !self.group.begin_taking(self.slot)
    }

    fn is_crossed(&self) -> bool {
        !self.can_move() && self.group.is_crossing()
    }

    fn end_taking(&self, pins: bool) {
        if !pins {
            self.group.end_taking(self.slot);
        }
    }

    fn wake(&self, page: PageIndex, count: usize) {
        self.kernel.wake(page.address(), count * PAGE_SIZE);
    }

    fn copy_in(&self, page: PageIndex, bytes: &[u8]) -> Mapped {
        debug_assert!(
            pagetide_sys::engine_thread::is_engine_thread(),
            "descriptors are in the engine threads' table"
        );
        mapped(self.kernel.copy_in(page.address(), bytes))
    }

    fn has_zero_page(&self) -> bool {
        self.kernel.has_zero_page()
    }

    fn map_zero_page(&self, page: PageIndex, count: usize) -> Mapped {
        mapped(self.kernel.map_zero_page(page.address(), count * PAGE_SIZE))
    }

    fn poison(&self, page: PageIndex) -> bool {
        self.kernel.poison(page.address(), PAGE_SIZE)
    }

    fn take_out(
        &self,
        range: Range<PageIndex>,
        writable: bool,
        way: TakeOutWay,
        slot: &mut Self::Slot,
    ) -> bool {
        debug_assert!(
            pagetide_sys::engine_thread::is_engine_thread(),
            "descriptors are in the engine threads' table"
        );
        let (start, length) = bytes(&range);
        self.kernel.take_out(start, length, writable, way, slot).is_ok()
    }

    fn unshare(&self, range: Range<PageIndex>) -> bool {
        // A mapping that is moving is nobody's: a page of it that is out would be filled with zeroes. Whoever moves it
        // may wait for us.
        let Ok(_layout) = self.layout.try_lock() else { return false };
        let (start, length) = bytes(&range);
        pagetide_sys::task::populate(start, length);
        true
    }

    fn presence(&self, range: Range<PageIndex>) -> Presence {
        debug_assert!(
            pagetide_sys::engine_thread::is_engine_thread(),
            "descriptors are in the engine threads' table"
        );
        let (start, length) = bytes(&range);
        self.kernel.pagemap().presence(start, length).unwrap_or_else(|error| {
            // What is there cannot be told from what is not: one wrong guess would be a wrong byte.
            let error = std::io::Error::from(error);
            pagetide_sys::task::say(&format!("cannot see which pages are in memory: {error}"));
            pagetide_sys::task::kill_self();
        })
    }

    fn first_present(&self, range: Range<PageIndex>) -> PageIndex {
        let (start, length) = bytes(&range);
        let found = self.kernel.pagemap().first_present(start, length);
        found.map_or(range.start, |address| PageIndex((address / PAGE_SIZE) as u64))
    }

    fn written(&self, range: Range<PageIndex>, watch: bool) -> Option<PageSet> {
        if !self.kernel.can_watch() || self.mask.masks(Mask::NO_WATCH) {
            return None;
        }
        let (start, length) = bytes(&range);
        self.kernel.pagemap().written(start, length, watch).ok()
    }

    fn can_lend(&self) -> bool {
        // MOVE is younger than what stops writes.
        self.kernel.can_move()
    }

    fn stop_writes(&self, range: Range<PageIndex>) -> bool {
        let (start, length) = bytes(&range);
        self.kernel.can_stop_writes() && self.kernel.stop_writes(start, length).is_ok()
    }

    fn allow_writes(&self, range: Range<PageIndex>) {
        if self.kernel.can_stop_writes() {
            let (start, length) = bytes(&range);
            self.kernel.allow_writes(start, length);
        }
    }

    fn shared(&self, range: Range<PageIndex>) -> PageSet {
        let (start, length) = bytes(&range);
        // What is not known to be shared was lent anew: it is charged once more.
        self.kernel.pagemap().shared(start, length).unwrap_or_default()
    }

    fn copy_from(&self, slot: &Self::Slot, frame: usize, count: usize, to: PageIndex) -> Mapped {
        mapped(self.kernel.copy_from(slot, frame, count, to.address()))
    }

    fn move_from(&self, slot: &mut Self::Slot, frame: usize, count: usize, to: PageIndex) -> Mapped {
        mapped(self.kernel.move_from(slot, frame, count, to.address()))
    }
}

impl StagingSlot for staging::Slot {
    fn populated(&self) -> PageSet {
        staging::Slot::populated(self)
    }
    fn memory_pages(&self) -> usize {
        staging::Slot::memory_pages(self)
    }
    fn zero(&self) -> PageSet {
        staging::Slot::zero(self)
    }
    fn frame(&self, page: usize) -> Option<&[u8]> {
        staging::Slot::frame(self, page)
    }
    fn frames_mut(&mut self, first: usize, count: usize) -> Option<&mut [u8]> {
        staging::Slot::frames_mut(self, first, count)
    }
    fn spare_pages(&self) -> usize {
        staging::Slot::spare_pages(self)
    }
    fn set_aside(&mut self, pages: PageSet) {
        staging::Slot::set_aside(self, pages);
    }
    fn drop_spare(&mut self) -> usize {
        staging::Slot::drop_spare(self)
    }
    fn retain(&mut self, kept: PageSet) {
        staging::Slot::retain(self, kept);
    }
    fn abandon(&mut self) {
        staging::Slot::abandon(self);
    }
}
