//! A program's memory in a map: the whole engine runs on it, under a model, without a kernel.
//!
//! It does what the kernel does as far as the engine can tell: a thread that touches a missing page is parked until
//! that page is woken, in the same step in which it looks; mapping stops at the first page that is there; only MOVE
//! refuses. Changes that a kernel makes without the engine's knowledge, a test makes by hand:
//! [`FakeMemory::drop_pages`], [`FakeMemory::put`].
//!
//! It owns the program's pages and counts its frames. It does *not* know regions: a test keeps
//! [`crate::regions`] and this memory in step.

mod objects;
mod setup;
mod slot;
mod spans;

pub use objects::FakeObjects;
pub use setup::{Setup, clock, engine, keeper};
pub use slot::FakeSlot;
pub use spans::{HeapSpan, HeapSpans};

use crate::memory::{MapError, Mapped, Memory, PageSet, Presence, StagingSlot, TakeOutWay};
use pagetide_swap::{PAGE_SIZE, PageIndex};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// A page's contents.
pub type Bytes = [u8; PAGE_SIZE];

/// A page of the program.
#[derive(Clone, Debug)]
enum Page {
    /// The kernel's shared zero page: read, never written, no memory of its own.
    Zero,
    /// Memory of its own.
    Own(Box<Bytes>),
}

/// The reason for which a page was not reached.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Miss {
    /// The page is missing: the thread is parked until [`FakeMemory::is_woken`], and touches the page again then.
    Fault(FaultToken),
    /// The page is there, and writes to it are stopped: as for [`Miss::Fault`].
    Stopped(FaultToken),
    /// The page was poisoned: a real access would get SIGBUS.
    Poisoned,
}

/// A token that names a parked thread.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct FaultToken(u64);

#[derive(Debug, Default)]
struct State {
    pages: BTreeMap<u64, Page>,
    poisoned: BTreeSet<u64>,
    /// No mapping there.
    gone: BTreeSet<u64>,
    read_only: BTreeSet<u64>,
    pinned: BTreeSet<u64>,
    /// Shared since a fork.
    shared: BTreeSet<u64>,
    /// Writes to these are faults.
    stopped: BTreeSet<u64>,
    /// Not written, and there, since it was watched.
    unwritten: BTreeSet<u64>,
    parked: BTreeMap<FaultToken, u64>,
    next_ticket: u64,
}

/// The memory of a program that does not run: its pages are in a map.
#[derive(Debug, Default)]
pub struct FakeMemory {
    state: Mutex<State>,
    woken: Condvar,
    wakes: AtomicU64,
    no_move: AtomicBool,
    no_remap: AtomicBool,
    pins: AtomicBool,
    /// The number of mappings of which one fails for want of memory; 0 for none.
    no_memory_every: AtomicU64,
    mappings: AtomicU64,
    frames: Arc<AtomicI64>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn numbers(range: &Range<PageIndex>) -> Range<u64> {
    range.start.0..range.end.0
}

impl State {
    fn reach(&mut self, page: PageIndex) -> Result<&mut Page, Miss> {
        if self.poisoned.contains(&page.0) {
            return Err(Miss::Poisoned);
        }
        if !self.pages.contains_key(&page.0) {
            return Err(Miss::Fault(self.park(page)));
        }
        Ok(self.pages.get_mut(&page.0).expect("looked at above"))
    }

    fn park(&mut self, page: PageIndex) -> FaultToken {
        let token = FaultToken(self.next_ticket);
        self.next_ticket += 1;
        self.parked.insert(token, page.0);
        token
    }

    /// Takes a page out of the page table.
    fn unmap(&mut self, page: u64) -> Option<Page> {
        self.shared.remove(&page);
        self.stopped.remove(&page);
        self.pages.remove(&page)
    }

    /// Returns the error that stops a mapping at `page`, if there is one.
    fn obstacle(&self, page: u64) -> Option<MapError> {
        if self.gone.contains(&page) {
            Some(MapError::Gone)
        } else if self.pages.contains_key(&page) || self.poisoned.contains(&page) {
            Some(MapError::Exists)
        } else {
            None
        }
    }
}

impl FakeMemory {
    /// Returns slots of staging whose frames this memory counts.
    pub fn slots(&self, count: usize) -> Vec<FakeSlot> {
        (0..count).map(|_| FakeSlot { frames: Arc::clone(&self.frames), ..FakeSlot::default() }).collect()
    }

    /// Returns the number of frames that take memory, of all slots.
    pub fn frames(&self) -> i64 {
        self.frames.load(Relaxed)
    }

    // ---- the program ----------------------------------------------------------------------------

    /// Reads a page as the program does.
    ///
    /// # Errors
    /// [`Miss::Fault`] with a token if the page is not there: the thread counts as parked until the engine has answered
    /// the fault. [`Miss::Poisoned`] if its contents are lost.
    pub fn read(&self, page: PageIndex) -> Result<Box<Bytes>, Miss> {
        Ok(match lock(&self.state).reach(page)? {
            Page::Zero => Box::new([0; PAGE_SIZE]),
            Page::Own(bytes) => bytes.clone(),
        })
    }

    /// Overwrites a page as the program does.
    ///
    /// # Errors
    /// As for [`FakeMemory::read`].
    pub fn write(&self, page: PageIndex, bytes: &Bytes) -> Result<(), Miss> {
        self.update(page, |old| old.copy_from_slice(bytes))
    }

    /// Changes a page in one step as the program does. Returns the result of `change`.
    ///
    /// # Errors
    /// As for [`FakeMemory::read`].
    ///
    /// # Panics
    /// If the page is read-only.
    pub fn update<T>(&self, page: PageIndex, change: impl FnOnce(&mut Bytes) -> T) -> Result<T, Miss> {
        let mut state = lock(&self.state);
        assert!(!state.read_only.contains(&page.0), "a write to {page:?}, which is read-only");
        if state.stopped.contains(&page.0) {
            return Err(Miss::Stopped(state.park(page)));
        }
        state.unwritten.remove(&page.0);
        state.shared.remove(&page.0);
        let page = state.reach(page)?;
        if let Page::Zero = page {
            *page = Page::Own(Box::new([0; PAGE_SIZE]));
        }
        let Page::Own(bytes) = page else { unreachable!("made above") };
        Ok(change(bytes))
    }

    /// Returns the contents of a page if it is in the program. Parks no thread.
    pub fn peek(&self, page: PageIndex) -> Option<Box<Bytes>> {
        match lock(&self.state).pages.get(&page.0)? {
            Page::Zero => Some(Box::new([0; PAGE_SIZE])),
            Page::Own(bytes) => Some(bytes.clone()),
        }
    }

    /// Returns whether the parked thread was woken: it may touch its page again.
    pub fn is_woken(&self, token: FaultToken) -> bool {
        !lock(&self.state).parked.contains_key(&token)
    }

    /// Waits until the parked thread is woken. Returns false if that took longer than `guard`.
    pub fn wait_woken(&self, token: FaultToken, guard: Duration) -> bool {
        let state = lock(&self.state);
        let parked = |state: &mut State| state.parked.contains_key(&token);
        let (_state, outcome) =
            self.woken.wait_timeout_while(state, guard, parked).unwrap_or_else(PoisonError::into_inner);
        !outcome.timed_out()
    }

    /// Returns the number of threads that are parked.
    pub fn parked(&self) -> usize {
        lock(&self.state).parked.len()
    }

    /// Returns the number of wake-ups so far.
    pub fn wakes(&self) -> u64 {
        self.wakes.load(Relaxed)
    }

    /// Returns the pages in the program, ascending.
    pub fn present(&self) -> Vec<PageIndex> {
        lock(&self.state).pages.keys().map(|&page| PageIndex(page)).collect()
    }

    /// Returns the poisoned pages, ascending.
    pub fn poisoned(&self) -> Vec<PageIndex> {
        lock(&self.state).poisoned.iter().map(|&page| PageIndex(page)).collect()
    }

    // ---- system calls ---------------------------------------------------------------------------

    /// Drops pages, as MADV_DONTNEED does.
    pub fn drop_pages(&self, range: Range<PageIndex>) {
        let mut state = lock(&self.state);
        for page in numbers(&range) {
            state.unmap(page);
            state.poisoned.remove(&page);
        }
    }

    /// Unmaps a range, as `munmap` does.
    pub fn unmap(&self, range: Range<PageIndex>) {
        self.drop_pages(range.clone());
        let mut state = lock(&self.state);
        for page in numbers(&range) {
            state.gone.insert(page);
            state.read_only.remove(&page);
            state.pinned.remove(&page);
        }
    }

    /// Maps a range anew, as `mmap` does, over any mapping that is there.
    pub fn map(&self, range: Range<PageIndex>) {
        self.unmap(range.clone());
        let mut state = lock(&self.state);
        numbers(&range).for_each(|page| _ = state.gone.remove(&page));
    }

    /// Sets whether the program may write to a range, as `mprotect` does.
    pub fn protect(&self, range: Range<PageIndex>, writable: bool) {
        let mut state = lock(&self.state);
        for page in numbers(&range) {
            if writable {
                state.read_only.remove(&page);
            } else {
                state.read_only.insert(page);
            }
        }
    }

    /// Moves `length` pages, as `mremap` does, and leaves the old mapping in place.
    pub fn remap(&self, from: PageIndex, to: PageIndex, length: u64) {
        let mut state = lock(&self.state);
        for nth in 0..length {
            let (from, to) = (from.0 + nth, to.0 + nth);
            state.gone.remove(&to);
            state.poisoned.remove(&to);
            state.unmap(to);
            if let Some(page) = state.unmap(from) {
                state.pages.insert(to, page);
            }
            if state.poisoned.remove(&from) {
                state.poisoned.insert(to);
            }
            if state.read_only.contains(&from) {
                state.read_only.insert(to);
            } else {
                state.read_only.remove(&to);
            }
        }
    }

    /// Returns whether writes to a page, which is there, are stopped.
    pub fn is_stopped(&self, page: PageIndex) -> bool {
        lock(&self.state).stopped.contains(&page.0)
    }

    /// Returns whether a page is there, and the kernel's zero page.
    pub fn is_zero(&self, page: PageIndex) -> bool {
        matches!(lock(&self.state).pages.get(&page.0), Some(Page::Zero))
    }

    /// Puts a page into the program without the engine's knowledge. `None` stands for the kernel's zero page.
    pub fn put(&self, page: PageIndex, bytes: Option<&Bytes>) {
        let page_contents = bytes.map_or(Page::Zero, |bytes| Page::Own(Box::new(*bytes)));
        let mut state = lock(&self.state);
        state.pages.insert(page.0, page_contents);
        state.unwritten.remove(&page.0);
        drop(state);
        self.wake(page, 1);
    }

    // ---- switches -------------------------------------------------------------------------------

    /// Sets whether MOVE works.
    pub fn set_can_move(&self, on: bool) {
        self.no_move.store(!on, Relaxed);
    }

    /// Sets whether `mremap(DONTUNMAP)` works.
    pub fn set_can_remap(&self, on: bool) {
        self.no_remap.store(!on, Relaxed);
    }

    /// Sets whether pages may be pinned.
    pub fn set_may_pin(&self, on: bool) {
        self.pins.store(on, Relaxed);
    }

    /// Shares every page with a child, as a fork does: MOVE refuses them.
    pub fn share(&self) {
        let mut state = lock(&self.state);
        state.shared = state.pages.keys().copied().collect();
    }

    /// Pins a page, which MOVE then refuses, or lets it go.
    pub fn pin(&self, page: PageIndex, on: bool) {
        let mut state = lock(&self.state);
        if on {
            state.pinned.insert(page.0);
        } else {
            state.pinned.remove(&page.0);
        }
    }

    /// Makes every `nth` mapping fail for want of memory (0: none).
    pub fn set_no_memory_every(&self, nth: u64) {
        self.no_memory_every.store(nth, Relaxed);
    }

    fn is_out_of_memory(&self) -> bool {
        let nth = self.no_memory_every.load(Relaxed);
        nth != 0 && (self.mappings.fetch_add(1, Relaxed) + 1).is_multiple_of(nth)
    }

    fn wake_locked(&self, state: &mut State, pages: Range<u64>) {
        self.wakes.fetch_add(1, Relaxed);
        let before = state.parked.len();
        state.parked.retain(|_, page| !pages.contains(page));
        if state.parked.len() != before {
            self.woken.notify_all();
        }
    }

    /// Maps pages one by one until there is an obstacle. `contents` gives their contents, one by one.
    fn map_run(
        &self,
        to: PageIndex,
        count: usize,
        moves: bool,
        mut contents: impl FnMut(usize) -> Page,
    ) -> Mapped {
        if self.is_out_of_memory() {
            // Others run meanwhile.
            std::thread::yield_now();
            return Mapped { pages: 0, error: Some(MapError::NoMemory) };
        }
        let mut state = lock(&self.state);
        let mut mapped = Mapped { pages: 0, error: None };
        while mapped.pages < count {
            let page = to.0 + mapped.pages as u64;
            mapped.error = state.obstacle(page);
            if moves && mapped.error.is_none() && state.read_only.contains(&page) {
                mapped.error = Some(MapError::Refused);
            }
            if mapped.error.is_some() {
                break;
            }
            state.pages.insert(page, contents(mapped.pages));
            state.unwritten.remove(&page);
            mapped.pages += 1;
        }
        if mapped.pages > 0 {
            self.wake_locked(&mut state, to.0..to.0 + mapped.pages as u64);
        }
        mapped
    }
}

fn own(bytes: &[u8]) -> Page {
    Page::Own(Box::new(bytes.try_into().expect("a page")))
}

impl Memory for FakeMemory {
    type Slot = FakeSlot;
    type Spans = HeapSpans;

    fn can_move(&self) -> bool {
        !self.no_move.load(Relaxed)
    }

    fn begin_taking(&self) -> bool {
        self.pins.load(Relaxed)
    }

    fn wake(&self, page: PageIndex, count: usize) {
        self.wake_locked(&mut lock(&self.state), page.0..page.0 + count as u64);
    }

    fn copy_in(&self, page: PageIndex, bytes: &[u8]) -> Mapped {
        assert!(!bytes.is_empty() && bytes.len().is_multiple_of(PAGE_SIZE));
        self.map_run(page, bytes.len() / PAGE_SIZE, false, |nth| own(&bytes[nth * PAGE_SIZE..][..PAGE_SIZE]))
    }

    fn has_zero_page(&self) -> bool {
        true
    }

    fn map_zero_page(&self, page: PageIndex, count: usize) -> Mapped {
        self.map_run(page, count, false, |_| Page::Zero)
    }

    fn poison(&self, page: PageIndex) -> bool {
        let mut state = lock(&self.state);
        if state.obstacle(page.0).is_none() {
            state.poisoned.insert(page.0);
        }
        self.wake_locked(&mut state, page.0..page.0 + 1);
        true
    }

    fn take_out(
        &self,
        range: Range<PageIndex>,
        writable: bool,
        way: TakeOutWay,
        slot: &mut FakeSlot,
    ) -> bool {
        assert_eq!(range.start.cluster(), PageIndex(range.end.0 - 1).cluster());
        if match way {
            TakeOutWay::Remap => self.no_remap.load(Relaxed),
            TakeOutWay::Move | TakeOutWay::Sift => self.no_move.load(Relaxed),
        } {
            return false;
        }
        let mut state = lock(&self.state);
        let poison = state.poisoned.range(numbers(&range)).next();
        assert_eq!(poison, None, "a poisoned page would travel and be read");
        let mut all = true;
        let there: Vec<u64> = state.pages.range(numbers(&range)).map(|(&page, _)| page).collect();
        for page in there {
            let read_only = state.read_only.contains(&page);
            assert!(!(writable && read_only), "page {page:#x} is read-only");
            let pinned = state.pinned.contains(&page);
            let stays = match way {
                TakeOutWay::Remap => false,
                TakeOutWay::Move => read_only || pinned || state.shared.contains(&page),
                TakeOutWay::Sift => pinned,
            };
            if stays {
                all = false;
                continue;
            }
            assert!(
                way != TakeOutWay::Remap || !(self.pins.load(Relaxed) && pinned),
                "page {page:#x} is pinned: its memory must not be reused"
            );
            let contents = state.unmap(page).expect("listed above");
            slot.put(PageIndex(page).offset(), &contents);
        }
        all
    }

    fn unshare(&self, range: Range<PageIndex>) -> bool {
        let state = &mut *lock(&self.state);
        state.shared.retain(|page| !numbers(&range).contains(page));
        for (_, page) in state.pages.range_mut(numbers(&range)) {
            if let Page::Zero = page {
                *page = own(&[0; PAGE_SIZE]);
            }
        }
        true
    }

    fn presence(&self, range: Range<PageIndex>) -> Presence {
        assert_eq!(range.start.cluster(), PageIndex(range.end.0 - 1).cluster());
        let mut presence = Presence::default();
        for (&page, contents) in lock(&self.state).pages.range(numbers(&range)) {
            presence.present.insert(PageIndex(page).offset());
            if let Page::Zero = contents {
                presence.zero.insert(PageIndex(page).offset());
            }
        }
        presence
    }

    fn first_present(&self, range: Range<PageIndex>) -> PageIndex {
        let state = lock(&self.state);
        state.pages.range(numbers(&range)).next().map_or(range.end, |(&page, _)| PageIndex(page))
    }

    fn written(&self, range: Range<PageIndex>, watch: bool) -> Option<PageSet> {
        assert_eq!(range.start.cluster(), PageIndex(range.end.0 - 1).cluster());
        let mut state = lock(&self.state);
        let there = state.pages.range(numbers(&range)).map(|(&page, _)| page);
        let written: Vec<u64> = there.filter(|page| !state.unwritten.contains(page)).collect();
        if watch {
            state.unwritten.extend(&written);
        }
        Some(written.into_iter().map(|page| PageIndex(page).offset()).collect())
    }

    fn can_lend(&self) -> bool {
        true
    }

    fn stop_writes(&self, range: Range<PageIndex>) -> bool {
        let state = &mut *lock(&self.state);
        state.stopped.extend(state.pages.range(numbers(&range)).map(|(&page, _)| page));
        true
    }

    fn allow_writes(&self, range: Range<PageIndex>) {
        let mut state = lock(&self.state);
        numbers(&range).for_each(|page| _ = state.stopped.remove(&page));
    }

    fn shared(&self, range: Range<PageIndex>) -> PageSet {
        let state = lock(&self.state);
        state.shared.range(numbers(&range)).map(|&page| PageIndex(page).offset()).collect()
    }

    fn copy_from(&self, slot: &FakeSlot, frame: usize, count: usize, to: PageIndex) -> Mapped {
        assert!((frame..frame + count).all(|frame| slot.populated.contains(frame)), "a frame that is none");
        self.map_run(to, count, false, |nth| own(slot.frame(frame + nth).expect("checked above")))
    }

    fn move_from(&self, slot: &mut FakeSlot, frame: usize, count: usize, to: PageIndex) -> Mapped {
        assert!((frame..frame + count).all(|frame| slot.populated.contains(frame)), "a frame that is none");
        if !self.can_move() {
            return Mapped { pages: 0, error: Some(MapError::Refused) };
        }
        self.map_run(to, count, true, |nth| slot.take(frame + nth))
    }
}
