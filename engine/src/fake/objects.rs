//! Objects of shared memory in a map, and what several processes see of them: the memory of a keeper, without a kernel.
//!
//! It does what the kernel and [`crate::object_memory`] do together, as far as the engine can tell:
//! - A process that touches a page which is in the object but not in its page table maps it, and the engine hears
//!   nothing of it. Only a page that is not in the object either is a fault.
//! - A thread looks, and then begins to wait: a page that comes in between is in the object, and yet the thread waits,
//!   for it is not in *its* page table.
//! - Mapping wakes those who wait in the process by which it is done, and those whose faults the engine has heard of.
//! - A page that leaves leaves every page table.

use super::{Bytes, FakeSlot, FaultToken, HeapSpans, Miss, Page, lock, numbers};
use crate::memory::{MapError, Mapped, Memory, PageSet, Presence, TakeOutWay};
use pagetide_swap::{PAGE_SIZE, PageIndex};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

/// Take-outs stop after so many pages when a process begins to pin: the pieces in which objects are punched.
const PIECE_PAGES: usize = 16;

/// A process: its mappings, which are where the objects' numbers are, and its page table.
#[derive(Debug, Default)]
struct Process {
    mappings: Vec<Range<u64>>,
    table: BTreeSet<u64>,
    poisoned: BTreeSet<u64>,
}

/// A thread that waits for a page.
#[derive(Debug)]
struct Waiter {
    process: usize,
    page: u64,
    /// Whether the engine has heard of its fault.
    heard: bool,
}

#[derive(Debug, Default)]
struct State {
    /// The first pages of the objects, and where they end.
    objects: BTreeMap<u64, u64>,
    pages: BTreeMap<u64, Box<Bytes>>,
    processes: Vec<Process>,
    waiting: BTreeMap<FaultToken, Waiter>,
    next_token: u64,
}

/// The memory of objects that processes share, none of which runs: all pages are in a map.
#[derive(Debug, Default)]
pub struct FakeObjects {
    state: Mutex<State>,
    woken: Condvar,
    /// The number of mappings of which one fails for want of memory; 0 for none.
    no_memory_every: AtomicU64,
    mappings: AtomicU64,
    /// The number of pieces that may leave until a process begins to pin, plus one; 0 if none does.
    pieces_until_pin: AtomicU64,
    frames: Arc<AtomicI64>,
}

impl Process {
    fn maps(&self, page: u64) -> bool {
        self.mappings.iter().any(|mapping| mapping.contains(&page))
    }
}

impl State {
    /// Whether a process reaches a page now; where it is in the object, it is in the process's page table from now on.
    fn look(&mut self, process: usize, page: u64) -> Result<bool, Miss> {
        let viewer = &mut self.processes[process];
        assert!(viewer.maps(page), "process {process} does not map page {page:#x}");
        if viewer.poisoned.contains(&page) {
            return Err(Miss::Poisoned);
        }
        if self.pages.contains_key(&page) {
            viewer.table.insert(page);
        }
        Ok(viewer.table.contains(&page))
    }

    fn object(&self, page: u64) -> Option<Range<u64>> {
        let (&first, &end) = self.objects.range(..=page).next_back()?;
        (page < end).then_some(first..end)
    }
}

impl FakeObjects {
    /// Returns slots of staging whose frames this memory counts.
    pub fn slots(&self, count: usize) -> Vec<FakeSlot> {
        (0..count).map(|_| FakeSlot { frames: Arc::clone(&self.frames), ..FakeSlot::default() }).collect()
    }

    /// Returns the number of frames that take memory, of all slots.
    pub fn frames(&self) -> i64 {
        self.frames.load(Relaxed)
    }

    /// Makes an object of these pages, none of which is there.
    ///
    /// # Panics
    /// If one of them is another's.
    pub fn create(&self, range: Range<PageIndex>) {
        let mut state = lock(&self.state);
        assert!(numbers(&range).all(|page| state.object(page).is_none()), "two objects of one page");
        state.objects.insert(range.start.0, range.end.0);
    }

    /// Gives an object up, with its pages.
    ///
    /// # Panics
    /// If a process maps a part of it.
    pub fn remove(&self, first: PageIndex) {
        let mut state = lock(&self.state);
        let end = state.objects.remove(&first.0).expect("there is such an object");
        let range = first.0..end;
        assert!(state.processes.iter().all(|process| !range.clone().any(|page| process.maps(page))));
        state.pages.retain(|page, _| !range.contains(page));
    }

    /// Makes a process that maps nothing. Returns its number.
    pub fn start(&self) -> usize {
        let mut state = lock(&self.state);
        state.processes.push(Process::default());
        state.processes.len() - 1
    }

    /// Has a process map a range of an object.
    pub fn attach(&self, process: usize, range: Range<PageIndex>) {
        lock(&self.state).processes[process].mappings.push(numbers(&range));
    }

    /// Has a process unmap a range, as it attached it: who waits there looks again.
    pub fn detach(&self, process: usize, range: Range<PageIndex>) {
        let mut state = lock(&self.state);
        let range = numbers(&range);
        let viewer = &mut state.processes[process];
        viewer.mappings.retain(|mapping| *mapping != range);
        viewer.table.retain(|page| !range.contains(page));
        viewer.poisoned.retain(|page| !range.contains(page));
        state.waiting.retain(|_, waiter| waiter.process != process || !range.contains(&waiter.page));
        self.woken.notify_all();
    }

    /// Ends a process, whatever its threads do.
    pub fn kill(&self, process: usize) {
        let mut state = lock(&self.state);
        state.processes[process] = Process::default();
        state.waiting.retain(|_, waiter| waiter.process != process);
        self.woken.notify_all();
    }

    /// Returns whether a page is missing for a process. It is in its page table from now on if it is not.
    ///
    /// # Errors
    /// [`Miss::Poisoned`] if its contents are lost.
    pub fn is_missing(&self, process: usize, page: PageIndex) -> Result<bool, Miss> {
        Ok(!lock(&self.state).look(process, page.0)?)
    }

    /// A thread that has found a page missing begins to wait for it, unless it is in its process's page table by now.
    pub fn begin_to_wait(&self, process: usize, page: PageIndex) -> Option<FaultToken> {
        let mut state = lock(&self.state);
        let viewer = &state.processes[process];
        if viewer.table.contains(&page.0) || viewer.poisoned.contains(&page.0) || !viewer.maps(page.0) {
            return None;
        }
        let token = FaultToken(state.next_token);
        state.next_token += 1;
        state.waiting.insert(token, Waiter { process, page: page.0, heard: false });
        Some(token)
    }

    /// The engine hears of a fault. Returns false if the thread does not wait any more.
    pub fn hear(&self, token: FaultToken) -> bool {
        lock(&self.state).waiting.get_mut(&token).is_some_and(|waiter| {
            waiter.heard = true;
            true
        })
    }

    /// Changes a page in one step, as a process does. `None` if the page is missing for it.
    ///
    /// # Errors
    /// [`Miss::Poisoned`] if its contents are lost.
    pub fn update<T>(
        &self,
        process: usize,
        page: PageIndex,
        change: impl FnOnce(&mut Bytes) -> T,
    ) -> Result<Option<T>, Miss> {
        let mut state = lock(&self.state);
        let is_there = state.look(process, page.0)?;
        Ok(is_there.then(|| change(state.pages.get_mut(&page.0).expect("it is in a page table"))))
    }

    /// Returns the contents of a page if it is in its object.
    pub fn peek(&self, page: PageIndex) -> Option<Box<Bytes>> {
        lock(&self.state).pages.get(&page.0).cloned()
    }

    /// Returns the pages that are in their objects, ascending.
    pub fn present(&self) -> Vec<PageIndex> {
        lock(&self.state).pages.keys().map(|&page| PageIndex(page)).collect()
    }

    /// Returns whether a thread may touch its page again.
    pub fn is_woken(&self, token: FaultToken) -> bool {
        !lock(&self.state).waiting.contains_key(&token)
    }

    /// Waits until a thread may touch its page again. Returns false if that took longer than `guard`.
    pub fn wait_woken(&self, token: FaultToken, guard: Duration) -> bool {
        let waits = |state: &mut State| state.waiting.contains_key(&token);
        let outcome = self.woken.wait_timeout_while(lock(&self.state), guard, waits);
        !outcome.unwrap_or_else(PoisonError::into_inner).1.timed_out()
    }

    /// Returns the number of threads that wait.
    pub fn waiting(&self) -> usize {
        lock(&self.state).waiting.len()
    }

    /// Takes contents of an object away for all, as MADV_REMOVE does.
    pub fn punch(&self, range: Range<PageIndex>) {
        let mut state = lock(&self.state);
        let range = numbers(&range);
        state.pages.retain(|page, _| !range.contains(page));
        for process in &mut state.processes {
            process.table.retain(|page| !range.contains(page));
            process.poisoned.retain(|page| !range.contains(page));
        }
    }

    /// Makes every `nth` mapping fail for want of memory (0: none).
    pub fn set_no_memory_every(&self, nth: u64) {
        self.no_memory_every.store(nth, Relaxed);
    }

    /// Has a process begin to pin memory after so many more pieces of 16 pages have left; `None`: no process pins.
    pub fn pin_after(&self, pieces: Option<u64>) {
        self.pieces_until_pin.store(pieces.map_or(0, |pieces| pieces + 1), Relaxed);
    }

    fn is_out_of_memory(&self) -> bool {
        let nth = self.no_memory_every.load(Relaxed);
        nth != 0 && (self.mappings.fetch_add(1, Relaxed) + 1).is_multiple_of(nth)
    }

    fn wake_where(&self, state: &mut State, is_woken: impl Fn(&Waiter) -> bool) {
        let before = state.waiting.len();
        state.waiting.retain(|_, waiter| !is_woken(waiter));
        if state.waiting.len() != before {
            self.woken.notify_all();
        }
    }
}

impl Memory for FakeObjects {
    type Slot = FakeSlot;
    type Spans = HeapSpans;

    fn can_move(&self) -> bool {
        false
    }

    fn copies_out(&self) -> bool {
        true
    }

    fn begin_taking(&self) -> bool {
        self.pieces_until_pin.load(Relaxed) == 1
    }

    fn wake(&self, page: PageIndex, count: usize) {
        let range = page.0..page.0 + count as u64;
        self.wake_where(&mut lock(&self.state), |waiter| waiter.heard && range.contains(&waiter.page));
    }

    fn wake_late(&self, page: PageIndex, count: usize) {
        self.wake(page, count);
    }

    fn copy_in(&self, page: PageIndex, bytes: &[u8]) -> Mapped {
        assert!(!bytes.is_empty() && bytes.len().is_multiple_of(PAGE_SIZE));
        if self.is_out_of_memory() {
            std::thread::yield_now();
            return Mapped { pages: 0, error: Some(MapError::NoMemory) };
        }
        let mut state = lock(&self.state);
        let state = &mut *state;
        let count = bytes.len() / PAGE_SIZE;
        let all = page.0..page.0 + count as u64;
        let is_of = |waiter: &&Waiter| waiter.heard && all.contains(&waiter.page);
        let by = state.waiting.values().find(is_of).map(|waiter| waiter.process);
        let by = by.filter(|&process| all.clone().all(|page| state.processes[process].maps(page)));
        let mut mapped = Mapped { pages: 0, error: None };
        for (number, bytes) in all.zip(bytes.chunks_exact(PAGE_SIZE)) {
            mapped.error = match () {
                () if state.object(number).is_none() => Some(MapError::Gone),
                () if state.pages.contains_key(&number) => Some(MapError::Exists),
                () => None,
            };
            if mapped.error.is_some() {
                break;
            }
            state.pages.insert(number, Box::new(bytes.try_into().expect("a page")));
            by.map(|process| state.processes[process].table.insert(number));
            mapped.pages += 1;
        }
        let done = page.0..page.0 + mapped.pages as u64;
        self.wake_where(state, |waiter| {
            done.contains(&waiter.page) && (waiter.heard || Some(waiter.process) == by)
        });
        mapped
    }

    fn poison(&self, page: PageIndex) -> bool {
        let mut state = lock(&self.state);
        let state = &mut *state;
        for waiter in state.waiting.values().filter(|waiter| waiter.heard && waiter.page == page.0) {
            state.processes[waiter.process].poisoned.insert(page.0);
        }
        self.wake_where(state, |waiter| waiter.heard && waiter.page == page.0);
        true
    }

    fn take_out(&self, range: Range<PageIndex>, _: bool, way: TakeOutWay, slot: &mut FakeSlot) -> bool {
        assert_eq!(range.start.cluster(), PageIndex(range.end.0 - 1).cluster());
        if way != TakeOutWay::Remap {
            return false;
        }
        let mut state = lock(&self.state);
        let state = &mut *state;
        let there: Vec<u64> = state.pages.range(numbers(&range)).map(|(&page, _)| page).collect();
        for piece in there.chunks(PIECE_PAGES) {
            if self.begin_taking() {
                return false;
            }
            let left = self.pieces_until_pin.load(Relaxed);
            self.pieces_until_pin.store(left.saturating_sub(1), Relaxed);
            for &page in piece {
                let contents = state.pages.remove(&page).expect("listed above");
                state.processes.iter_mut().for_each(|process| _ = process.table.remove(&page));
                slot.put(PageIndex(page).offset(), &Page::Own(contents));
            }
        }
        true
    }

    fn unshare(&self, _: Range<PageIndex>) -> bool {
        false
    }

    fn presence(&self, range: Range<PageIndex>) -> Presence {
        assert_eq!(range.start.cluster(), PageIndex(range.end.0 - 1).cluster());
        let state = lock(&self.state);
        let present = state.pages.range(numbers(&range)).map(|(&page, _)| PageIndex(page).offset()).collect();
        Presence { present, zero: PageSet::default() }
    }

    fn written(&self, _: Range<PageIndex>, _: bool) -> Option<PageSet> {
        None
    }

    fn copy_from(&self, slot: &FakeSlot, frame: usize, count: usize, to: PageIndex) -> Mapped {
        assert!((frame..frame + count).all(|frame| slot.populated.contains(frame)), "a frame that is none");
        self.copy_in(to, &slot.bytes[frame * PAGE_SIZE..][..count * PAGE_SIZE])
    }

    fn move_from(&self, slot: &mut FakeSlot, frame: usize, count: usize, to: PageIndex) -> Mapped {
        self.copy_from(slot, frame, count, to)
    }
}
