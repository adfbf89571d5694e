//! The engine of one process: serves faults, takes pages out, stores them, talks to the device.
//!
//! It owns staging, the budget and requests under way; the swap crate owns every decision about a page's
//! word. No method waits for I/O: a fault whose page is on the device, or for which there is no room, is
//! left parked, and whoever brings the page or makes the room answers it.
//!
//! Lock order: regions → cluster → slot → staging lists, requests, waiting faults (leaves). The cluster
//! lock is held across a take-out (about 10 µs), never across a codec or I/O.

mod swapoff;

pub use swapoff::Swapoff;

use crate::budget::Budget;
use crate::latency::Latency;
use crate::memory::{MapError, Mapped, Memory, PageSet, Slot, TakeOutWay};
use crate::recorder::Recorder;
use crate::regions::{Access, Attributes, Regions};
use crate::ways::Ways;
use pagetide_device::{BLOCK, Buffer, Completion, Device, Direction, Request};
use pagetide_swap::blocks::BlockRun;
use pagetide_swap::config::WRITE_BATCH_PAGES;
use pagetide_swap::hash::PageHash;
use pagetide_swap::streams::{Look, Streams};
use pagetide_swap::swap::Met;
use pagetide_swap::trace::{Event, Found};
use pagetide_swap::workingset::Shadow;
use pagetide_swap::{
    CLUSTER_PAGES, ClusterNumber, Counter, FOLIO_PAGES, Handle, LoadError, Of, PAGE_SIZE, PageIndex, Place,
    Scratch, Source, State, StoreError, StoreOutcome, Stored, Swap, Swapin, Transfer, WINDOW_MAX, Window,
};
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::atomic::{
    AtomicBool, AtomicI64, AtomicU16, AtomicU32, AtomicU64, AtomicUsize, Ordering::Relaxed, Ordering::SeqCst,
    fence,
};
use std::sync::{Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Duration;

/// Runs of at least this many pages come in by MOVE into frames; shorter ones by COPY, which needs no
/// frame and interrupts no other processor.
const MOVE_RUN_MIN: usize = 8;
/// What storing a page is taken to cost before it has been seen.
const STORE_NS_FIRST: u64 = 5_000;
/// Batches on their way to the device at most.
const WRITES: std::ops::RangeInclusive<i64> = 4..=8;
/// Entries that one step of reclaim drops or writes back at most to make room in the pool: more than a step
/// stores.
pub const TRIM_ENTRIES: usize = 2 * CLUSTER_PAGES;
/// Entries of the pool that the shrinker's hand passes in one step of that at most.
pub const TRIM_SCAN: usize = 16 * TRIM_ENTRIES;
/// Entries that are on their way to the device count as pages that will be free: so many as one, more or less.
const ENTRIES_A_PAGE: usize = 4;
/// Clusters whose entries in the pool one step of reclaim moves together at most.
pub const COMPACT_CLUSTERS: usize = 32;
/// Requests under way beyond which nothing is read that nobody waits for: the device's queue is for demand.
const AHEAD_MAX: usize = 16;
/// Pages to and from the device between two looks with which buffers keep their memory.
const BUSY_PAGES: u64 = 256;
/// Free pages that a process keeps at least, however many share the cap.
const FREE_MIN: i64 = 16;
/// One page in so many keeps its copy although copies are not worth it just now.
const COPY_SAMPLE: u64 = 16;
/// Frames of a slot are given back before the last of its pages has left if that takes no more calls.
const PARTS_MAX: usize = 64;
/// Slots kept full of free frames for runs that come in.
const DONORS_MAX: usize = 4;
/// A donor with fewer frames is not worth its slot.
const DONOR_MIN: usize = 64;
static ZERO_PAGES: [u8; WINDOW_MAX * PAGE_SIZE] = [0; WINDOW_MAX * PAGE_SIZE];

/// A source of time in nanoseconds: the kernel's, or a test's.
pub type Clock = fn() -> u64;

/// Memory that a thread of the engine works in.
#[derive(Debug)]
pub struct Workspace {
    scratch: Scratch,
    pages: Buffer,
    entries: Vec<(PageIndex, Handle)>,
}

impl Pending {
    fn is_write(&self) -> bool {
        matches!(self, Self::Store { .. } | Self::Writeback { .. })
    }
}

impl Default for Workspace {
    fn default() -> Self {
        Self { scratch: Scratch::default(), pages: Buffer::new(1), entries: Vec::with_capacity(256) }
    }
}

impl Workspace {
    /// Grows with the windows that a thread reads: most threads of most processes read single pages.
    fn make_room(&mut self, pages: usize) {
        if self.pages.len() < pages * PAGE_SIZE {
            self.pages = Buffer::new(pages.next_power_of_two());
        }
    }
}

/// What a step of reclaim achieved.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Progress {
    /// This many pages became free, or are being written.
    Freed(usize),
    /// Pages moved on, but none is free yet.
    Moved,
    /// What could leave waits for the device, which has as much to write as it may.
    Waits,
    /// There is nothing that could leave.
    Nothing,
}

/// Parameters of an engine.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Free pages below which reclaim starts.
    pub low: i64,
    /// Free pages at which it stops.
    pub high: i64,
    /// Slots that pages stay in on probation, at most.
    pub probation: usize,
}

impl Limits {
    /// Limits for a cap of this many pages.
    pub fn for_cap(pages: u64) -> Self {
        // 1/128 of the cap, between 1 and 16 MiB: what faults use up while reclaim wakes. Where that would be a
        // large part of the cap, 1/64 of it: each process of the run keeps as much.
        let low = (pages as i64 / 128).clamp(256, 4096).min(pages as i64 / 64);
        // A quarter of the cap: which part of it is the policy's to say. Clusters of which little is in memory need more.
        let probation = (pages as usize / 4 / CLUSTER_PAGES).clamp(32, 256);
        Self { low, high: 2 * low, probation }
    }
}

struct Staged<S> {
    slot: Mutex<S>,
    /// Pages that are cached here, and one for whoever processes the slot.
    refs: AtomicUsize,
    cluster: AtomicU64,
    /// Whether the slot stands among those on probation.
    queued: AtomicBool,
    /// Whether the device was too busy for it.
    late: AtomicBool,
    /// What its pages leave behind.
    shadow: AtomicU16,
    /// Pages that were found not to compress: they are not tried again.
    poor: Mutex<PageSet>,
}

#[derive(Debug, Default)]
struct Lists {
    empty: Vec<u16>,
    probation: VecDeque<u16>,
    donors: Vec<u16>,
}

#[derive(Debug)]
enum Pending {
    Read {
        transfer: Transfer,
        write: bool,
        since: u64,
    },
    /// From the device to the pool.
    Move {
        transfer: Transfer,
    },
    Store {
        slot: u16,
        pages: Vec<PageIndex>,
        block: u64,
    },
    Writeback {
        entries: Vec<(PageIndex, Handle, PageHash)>,
        block: u64,
    },
}

#[derive(Debug, Default)]
struct Requests {
    slots: Vec<Option<Pending>>,
    free: Vec<usize>,
    count: usize,
    writes: usize,
}

/// A fault that waits for room.
#[derive(Clone, Copy, Debug)]
struct Waiting {
    page: PageIndex,
    write: bool,
    /// When the fault came, and when it was parked last.
    since: u64,
    parked: u64,
}

/// Counts of the engine's own, in pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Usage {
    /// In the program.
    pub resident: i64,
    /// In frames.
    pub frames: i64,
    /// In the pool, without what is shared by fork.
    pub pool: i64,
    /// In the pool, shared by fork.
    pub pool_shared: i64,
    /// Tables and hashes.
    pub metadata: i64,
}

/// The engine of one process.
pub struct Engine<M: Memory> {
    swap: Swap<M::Spans>,
    memory: M,
    device: Option<Box<dyn Device>>,
    /// The program's managed memory. Writers are the program's own mapping calls.
    pub regions: RwLock<Regions>,
    budget: Budget,
    limits: Limits,
    /// What of `limits` this process keeps free, with others that share the cap.
    low: AtomicI64,
    high: AtomicI64,
    /// Pages that had gone to and from the device at the last look.
    moved: AtomicU64,
    staged: Box<[Staged<M::Slot>]>,
    lists: Mutex<Lists>,
    requests: Mutex<Requests>,
    waiting: Mutex<VecDeque<Waiting>>,
    /// Faults that wait while the process rests.
    resting: Mutex<VecDeque<Waiting>>,
    streams: Streams,
    latency: Latency,
    clock: Clock,
    ways: Ways,
    recorder: Option<Recorder>,
    frames: AtomicI64,
    /// Runs that came in since the last donor was made.
    runs_wanted: AtomicUsize,
    /// Set when a write failed: no more are tried, what is stored stays readable.
    device_failed: AtomicBool,
    /// Whether the device is, or goes, out of use.
    device_off: AtomicBool,
    leaving: Mutex<swapoff::Leaving>,
    /// What was charged for the pool at last look.
    pool_charged: AtomicI64,
    /// Faults parked for room or for the device.
    stalled: AtomicI64,
    /// Nanoseconds that reads have taken.
    read_ns: AtomicU64,
    /// What it costs to store a page anew, of late, in nanoseconds.
    store_ns: AtomicU64,
    /// How hard the pool is pressed to give memory, as bits of a float.
    pool_pressure: AtomicU64,
    /// Whether copies of pages that come in from the pool stay there.
    copies_kept: AtomicBool,
    /// Whether a donor was asked for since the last look.
    donors_used: AtomicBool,
    /// Clusters that no take-out may touch just now: they hold the stack of a thread that has a lock.
    protected: [AtomicU64; 64],
    /// The cluster of the take-out under way.
    taking: AtomicU64,
    /// Pages for which there was no place since reclaim last looked.
    refused: AtomicUsize,
    /// Whether waiting faults are held back.
    held: AtomicBool,
    /// Whether faults are served although the budget is spent.
    overdrawing: AtomicBool,
    /// Clusters that should leave whatever room there is.
    hastened: AtomicUsize,
    /// The thread that gives the program pages of its own just now, and may fault; 0 if there is none.
    unsharing: AtomicU32,
    /// One more than the cluster that was unshared last.
    unshared: AtomicU64,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A panic ends the process: no lock outlives one.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<M: Memory> std::fmt::Debug for Engine<M> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Engine({:?}, {} free)", self.usage(), self.budget.free())
    }
}

/// Everything that an engine is made of.
#[derive(Debug)]
pub struct Parts<M: Memory> {
    /// The swap subsystem.
    pub swap: Swap<M::Spans>,
    /// The program's memory.
    pub memory: M,
    /// Staging, empty.
    pub slots: Vec<M::Slot>,
    /// The device, if there is one.
    pub device: Option<Box<dyn Device>>,
    /// The managed ranges.
    pub regions: Regions,
    /// Limits.
    pub limits: Limits,
    /// Where latencies are counted.
    pub latency: Latency,
    /// The clock.
    pub clock: Clock,
    /// Masked ways.
    pub ways: Ways,
    /// Where what happens is written down, if it is.
    pub recorder: Option<Recorder>,
}

impl<M: Memory> Engine<M> {
    /// An engine with nothing to spend: give it a budget.
    pub fn new(parts: Parts<M>) -> Self {
        let Parts { swap, memory, slots, device, regions, limits, latency, clock, ways, recorder } = parts;
        let empty = (0..slots.len() as u16).rev().collect();
        let pool_charged =
            AtomicI64::new(swap.zswap().pool_pages() as i64 - swap.zswap().frozen_pages() as i64);
        Self {
            swap,
            memory,
            device,
            regions: RwLock::new(regions),
            budget: Budget::default(),
            limits,
            low: AtomicI64::new(limits.low),
            high: AtomicI64::new(limits.high),
            moved: AtomicU64::new(0),
            staged: slots
                .into_iter()
                .map(|slot| Staged {
                    slot: Mutex::new(slot),
                    refs: AtomicUsize::new(0),
                    cluster: AtomicU64::new(0),
                    queued: AtomicBool::new(false),
                    late: AtomicBool::new(false),
                    shadow: AtomicU16::new(0),
                    poor: Mutex::default(),
                })
                .collect(),
            lists: Mutex::new(Lists { empty, ..Lists::default() }),
            requests: Mutex::default(),
            waiting: Mutex::new(VecDeque::with_capacity(64)),
            resting: Mutex::new(VecDeque::with_capacity(64)),
            streams: Streams::default(),
            latency,
            clock,
            ways,
            recorder,
            frames: AtomicI64::new(0),
            runs_wanted: AtomicUsize::new(0),
            device_failed: AtomicBool::new(false),
            device_off: AtomicBool::new(false),
            leaving: Mutex::default(),
            pool_charged,
            stalled: AtomicI64::new(0),
            read_ns: AtomicU64::new(0),
            store_ns: AtomicU64::new(STORE_NS_FIRST),
            pool_pressure: AtomicU64::new(0),
            copies_kept: AtomicBool::new(true),
            donors_used: AtomicBool::new(false),
            protected: std::array::from_fn(|_| AtomicU64::new(0)),
            taking: AtomicU64::new(0),
            refused: AtomicUsize::new(0),
            held: AtomicBool::new(false),
            overdrawing: AtomicBool::new(false),
            hastened: AtomicUsize::new(0),
            unsharing: AtomicU32::new(0),
            unshared: AtomicU64::new(0),
        }
    }

    /// The swap subsystem.
    pub fn swap(&self) -> &Swap<M::Spans> {
        &self.swap
    }
    /// The program's memory.
    pub fn memory(&self) -> &M {
        &self.memory
    }
    /// The device.
    pub fn device(&self) -> Option<&dyn Device> {
        self.device.as_deref()
    }
    /// What may still be used.
    pub fn budget(&self) -> &Budget {
        &self.budget
    }
    /// The limits, as they are just now.
    pub fn limits(&self) -> Limits {
        Limits { low: self.low.load(Relaxed), high: self.high.load(Relaxed), ..self.limits }
    }
    /// Sets how many processes share the cap.
    pub fn set_sharers(&self, processes: usize) {
        let Limits { low, high, .. } = self.limits;
        // Each of many processes keeps less free: together they would keep all there is.
        let share = |pages: i64| (pages / processes.max(1) as i64).max(pages.min(FREE_MIN));
        self.low.store(share(low), Relaxed);
        self.high.store(share(low) + share(high - low), Relaxed);
    }
    /// Whether buffers for I/O keep their memory: while much goes to and from the device. To be called a few times a
    /// second.
    pub fn settle_buffers(&self) {
        let counters = self.swap.counters();
        let moved = counters.get(Counter::pswpin) + counters.get(Counter::pswpout);
        let busy = moved - self.moved.swap(moved, Relaxed) >= BUSY_PAGES;
        pagetide_device::keep_buffers(if busy { self.high.load(Relaxed) as usize * PAGE_SIZE } else { 0 });
    }
    /// Faults that are parked just now.
    pub fn stalled(&self) -> i64 {
        self.stalled.load(Relaxed)
    }
    /// What it costs to store a page anew, of late, in nanoseconds.
    pub fn store_ns(&self) -> u64 {
        self.store_ns.load(Relaxed)
    }
    /// Says whether copies of pages that come in from the pool stay there.
    pub fn keep_copies(&self, keep: bool) {
        self.copies_kept.store(keep, Relaxed);
    }
    /// Gives back frames that are kept for runs if no run came in since the last call.
    pub fn drop_idle_donor(&self) {
        if self.donors_used.swap(false, Relaxed) {
            return;
        }
        self.drop_donor();
    }
    /// Nanoseconds that reads have taken so far.
    pub fn read_ns(&self) -> u64 {
        self.read_ns.load(Relaxed)
    }
    /// Whether nothing is written to the device any more, since a write failed.
    pub fn has_failed_writes(&self) -> bool {
        self.device_failed.load(Relaxed)
    }
    /// Requests on their way to or from the device.
    pub fn requests(&self) -> usize {
        lock(&self.requests).count
    }
    /// Faults that wait for room.
    pub fn waiting(&self) -> usize {
        lock(&self.waiting).len()
    }
    /// Whether reclaim should run.
    pub fn is_short(&self) -> bool {
        self.budget.free() < self.low.load(Relaxed) || self.waiting() > 0 || self.is_hastened()
    }

    /// Whether clusters should leave whatever room there is.
    pub fn is_hastened(&self) -> bool {
        self.hastened.load(Relaxed) > 0
    }

    /// The clusters of a range are the next to leave; `at_once`, they leave although there is room.
    pub fn hasten(&self, range: Range<PageIndex>, at_once: bool) {
        let count = self.swap.hasten(range);
        if at_once {
            self.hastened.fetch_add(count, Relaxed);
        }
    }

    /// What is in use.
    pub fn usage(&self) -> Usage {
        let shared = self.swap.zswap().frozen_pages() as i64;
        Usage {
            resident: self.swap.present(),
            frames: self.frames.load(Relaxed),
            pool: self.swap.zswap().pool_pages() as i64 - shared,
            pool_shared: shared,
            metadata: self.swap.metadata_bytes().div_ceil(PAGE_SIZE) as i64,
        }
    }

    fn now(&self) -> u64 {
        (self.clock)()
    }

    /// What happens is written down here, if it is.
    pub fn recorder(&self) -> Option<&Recorder> {
        self.recorder.as_ref()
    }

    fn note(&self, event: impl FnOnce() -> Event) {
        if let Some(recorder) = &self.recorder {
            recorder.note(event());
        }
    }

    /// Notes what a page takes that was stored.
    fn note_stored(&self, page: PageIndex, stored: Stored) {
        let length = |handle| self.swap.zswap().length(handle).unwrap_or(PAGE_SIZE);
        let bytes = match stored {
            Stored::New(Place::Same(_)) => 0,
            Stored::New(Place::Pool(handle)) => length(handle),
            Stored::Refused(StoreError::Incompressible, _) => PAGE_SIZE,
            // It is known, or not known.
            Stored::New(Place::Device(_)) | Stored::Clean(_) | Stored::Refused(..) => return,
        };
        self.note(|| Event::Stored { page, bytes: bytes as u32 });
    }

    fn c(&self, counter: Counter, count: usize) {
        self.swap.counters().add(counter, count as u64);
    }

    /// Charges or releases what the pool has grown or shrunk by.
    pub fn settle_pool(&self) {
        let shared = self.swap.zswap().frozen_pages() as i64;
        let now = self.swap.zswap().pool_pages() as i64 - shared;
        let before = self.pool_charged.swap(now, Relaxed);
        self.budget.take(now - before);
    }

    // ---- faults ---------------------------------------------------------------------------------

    /// Answers a fault, or leaves it parked for whoever can. `since` is when it was read.
    pub fn fault(&self, page: PageIndex, write: bool, since: u64, work: &mut Workspace) {
        // Held until the pages are claimed: a mapping call that removes the region then waits for the claim,
        // and no fault claims a page of a mapping that is moving.
        let regions = self.regions.read().unwrap_or_else(PoisonError::into_inner);
        let Some((around, attributes)) = regions.around(page) else {
            // Not ours (any more): the kernel decides when the thread looks again.
            drop(regions);
            self.memory.wake(page, 1);
            return;
        };
        // What a forking thread touches at last, that page and no more: staging is empty and stays so.
        let held = self.held.load(SeqCst);
        let look = if held { Look::default() } else { self.streams.look(page) };
        let found = self.swap.swapin(page, around, look.window);
        drop(regions);
        match found {
            Swapin::Present => {
                // Usually mapped since the thread faulted. But a system call that nobody told us of may
                // have dropped the page: then it is a hole, and the thread faults again.
                let absent = || !self.memory.presence(page..page.plus(1)).present.contains(page.offset());
                if self.swap.lost(page, absent) {
                    self.budget.give(1);
                }
                self.memory.wake(page, 1);
            }
            Swapin::Pending => {
                if !held && let Some(ahead) = self.streams.caught_up(page) {
                    let window = Window::ahead((ahead.end.0 - page.0) as usize);
                    let stop = page.plus(self.swap.reach_ahead(window) as u64);
                    let end = self.read_on(ahead.start, stop, work);
                    self.streams.went_on(page, end);
                }
            }
            Swapin::Poisoned => self.poison(page, None),
            Swapin::Inserted(transfer) => {
                let (source, mut pages) = (transfer.source, transfer.pages());
                self.note(|| Event::Access { page, write, from: found_in(source) });
                self.bring_in(transfer, write, since, attributes.access == Access::Write, work);
                if held {
                    return;
                }
                if matches!(source, Source::Device { .. } | Source::Zero) {
                    let stop = page.plus(1 + self.swap.reach(page, source, look.window).after as u64);
                    pages.end = self.read_on(pages.end, stop, work);
                }
                self.c(Counter::swap_ra_hit, look.passed);
                let is_ahead = !matches!(source, Source::Hole | Source::Frames { .. });
                let ahead = if is_ahead { (pages.end.0 - pages.start.0) as usize - 1 } else { 0 };
                self.streams.brought_in(page, look, pages, ahead);
            }
        }
    }

    /// Reads pages from `next` on that nobody has asked for, up to `stop`, as long as there is room and nobody waits. What
    /// lies on the device arrives piece by piece, each mapped while the next is read. Returns the first page that was not
    /// asked for.
    fn read_on(&self, mut next: PageIndex, stop: PageIndex, work: &mut Workspace) -> PageIndex {
        while next < stop && self.may_read_ahead() {
            let regions = self.regions.read().unwrap_or_else(PoisonError::into_inner);
            let Some((around, attributes)) = regions.around(next) else { break };
            let window = Window::ahead((stop.0 - next.0) as usize);
            let found = self.swap.swapin(next, next..around.end, window);
            drop(regions);
            let Swapin::Inserted(mut transfer) = found else { break };
            transfer.ahead = true;
            let end = transfer.pages().end;
            match transfer.source {
                Source::Zero => {
                    if attributes.access != Access::Write || !self.bring_by_move(&transfer, work) {
                        if !self.budget.try_take(transfer.length) {
                            self.release(&transfer);
                            break;
                        }
                        self.bring_zeroes(&transfer);
                    }
                }
                Source::Device { block } if self.budget.try_take(transfer.length) => {
                    if !self.read(transfer, block, false, 0) {
                        break;
                    }
                }
                _ => {
                    self.release(&transfer);
                    break;
                }
            }
            next = end;
        }
        next
    }

    /// Whether pages may be read that nobody waits for.
    fn may_read_ahead(&self) -> bool {
        self.requests() < AHEAD_MAX && self.waiting() == 0 && !self.held.load(SeqCst)
    }

    /// Leaves a fault parked until [`Engine::retry_waiting`].
    pub fn park(&self, page: PageIndex, write: bool, since: u64) {
        self.c(Counter::allocstall, 1);
        self.stalled.fetch_add(1, Relaxed);
        lock(&self.waiting).push_back(Waiting { page, write, since, parked: self.now() });
    }

    /// Leaves a fault parked until [`Engine::end_rest`], however much room there is: the process makes way for others.
    pub fn rest(&self, page: PageIndex, write: bool) {
        let now = self.now();
        lock(&self.resting).push_back(Waiting { page, write, since: now, parked: now });
    }

    /// Has the faults that rest wait for no more than room. False if there are none. They are answered by
    /// [`Engine::retry_waiting`]; how long they rested is counted apart from what they wait for memory.
    pub fn end_rest(&self) -> bool {
        let now = self.now();
        let mut resting = std::mem::take(&mut *lock(&self.resting));
        let any = !resting.is_empty();
        for fault in &mut resting {
            self.swap.counters().add(Counter::rested_ns, now.saturating_sub(fault.parked));
            (fault.since, fault.parked) = (now, now);
            self.stalled.fetch_add(1, Relaxed);
        }
        lock(&self.waiting).append(&mut resting);
        any
    }

    /// Holds back (or lets go) the faults that wait: while a fork is under way.
    pub fn hold_waiting(&self, on: bool) {
        self.held.store(on, SeqCst);
    }

    /// Answers waiting faults although the budget is spent: for a process that has next to nothing in
    /// memory, whose charge is mostly what it may come to copy of its parent's.
    pub fn overdraw(&self, work: &mut Workspace) {
        self.overdrawing.store(true, SeqCst);
        self.retry_waiting(work);
        self.overdrawing.store(false, SeqCst);
    }

    /// Answers all faults that wait, also while they are held back and there is no room: a fork waits for those threads,
    /// which may have locks that it needs.
    pub fn answer_waiting(&self, work: &mut Workspace) {
        debug_assert!(self.cannot_wait(), "a fault that waits again would wait for the end of the fork");
        for _ in 0..self.waiting() {
            let Some(Waiting { page, write, since, .. }) = lock(&self.waiting).pop_front() else { return };
            self.stalled.fetch_sub(1, Relaxed);
            self.fault(page, write, since, work);
        }
    }

    /// Answers faults that waited for room. Called when there is some.
    pub fn retry_waiting(&self, work: &mut Workspace) {
        // Each is tried once a call: what finds no room waits again, behind the others.
        for _ in 0..self.waiting() {
            let overdrawing = self.overdrawing.load(SeqCst);
            if (self.budget.free() <= 0 && !overdrawing) || self.held.load(SeqCst) {
                return;
            }
            let Some(Waiting { page, write, since, parked }) = lock(&self.waiting).pop_front() else {
                return;
            };
            self.stalled.fetch_sub(1, Relaxed);
            self.swap.counters().add(Counter::stalled_ns, self.now().saturating_sub(parked));
            self.fault(page, write, since, work);
        }
    }

    fn bring_in(
        &self,
        mut transfer: Transfer,
        write: bool,
        since: u64,
        writable: bool,
        work: &mut Workspace,
    ) {
        if let Source::Frames { slot } = transfer.source {
            self.bring_from_frames(&transfer, slot, writable);
            self.latency.record(Duration::from_nanos(self.now().saturating_sub(since)));
            return;
        }
        if transfer.length >= MOVE_RUN_MIN && writable && !matches!(transfer.source, Source::Device { .. }) {
            self.runs_wanted.fetch_add(1, Relaxed);
            self.donors_used.store(true, Relaxed);
            if self.bring_by_move(&transfer, work) {
                self.latency.record(Duration::from_nanos(self.now().saturating_sub(since)));
                return;
            }
        }
        if !self.budget.try_take(transfer.length) {
            // No room for the window: the page that is waited for, at least.
            self.narrow(&mut transfer);
            if self.cannot_wait() {
                self.budget.take(1);
            } else if !self.budget.try_take(1) {
                self.swap.finish_swapin(&transfer, 0, true);
                self.park(transfer.first, write, since);
                return;
            }
        }
        match transfer.source {
            Source::Hole | Source::Zero => self.bring_zeroes(&transfer),
            Source::Memory => {
                work.make_room(transfer.length);
                let Workspace { pages, scratch, .. } = work;
                let (mut loaded, mut error) = self.load(&transfer, pages, scratch);
                if loaded <= transfer.demand && transfer.length > 1 {
                    // One of the neighbours is damaged: that is for whoever wants it.
                    self.budget.give(transfer.length as i64 - 1);
                    self.narrow(&mut transfer);
                    (loaded, error) = self.load(&transfer, pages, scratch);
                }
                self.map_loaded(&transfer, loaded, error, pages);
            }
            Source::Device { block } => {
                self.read(transfer, block, write, since);
                return;
            }
            Source::Frames { .. } => unreachable!("handled above"),
        }
        self.latency.record(Duration::from_nanos(self.now().saturating_sub(since)));
    }

    /// Whether a fault must be answered though there is no room. The forking thread's own: nobody would retry it
    /// before the fork, which waits for it. Or reclaim's: nobody else makes room.
    fn cannot_wait(&self) -> bool {
        self.held.load(SeqCst) || self.overdrawing.load(SeqCst) || self.unsharing.load(SeqCst) != 0
    }

    /// Lets go of all pages of a transfer but the one that is waited for.
    fn narrow(&self, transfer: &mut Transfer) {
        if let Some(rest) = transfer.split_off(transfer.demand) {
            self.release(&std::mem::replace(transfer, rest));
        }
        if let Some(tail) = transfer.split_off(1) {
            self.release(&tail);
        }
    }

    /// Lets go of a transfer's pages.
    fn release(&self, transfer: &Transfer) {
        let end = || {
            let wanted = self.swap.finish_swapin(transfer, 0, true);
            self.wake_wanted(transfer, wanted);
        };
        match transfer.source {
            Source::Frames { slot } => self.let_go(slot, end),
            _ => end(),
        }
    }

    /// Maps zeroes for a transfer that was paid for.
    fn bring_zeroes(&self, transfer: &Transfer) {
        let mapped = self.memory.copy_in(transfer.first, &ZERO_PAGES[..transfer.length * PAGE_SIZE]);
        self.conclude(transfer, mapped, transfer.length);
    }

    /// Faults that wait for pages which were not brought in after all look again.
    fn wake_wanted(&self, transfer: &Transfer, wanted: u64) {
        for nth in 0..transfer.length {
            if wanted >> nth & 1 == 1 {
                self.memory.wake(transfer.first.plus(nth as u64), 1);
            }
        }
    }

    fn load(
        &self,
        transfer: &Transfer,
        into: &mut [u8],
        scratch: &mut Scratch,
    ) -> (usize, Option<LoadError>) {
        for (nth, page) in into.chunks_exact_mut(PAGE_SIZE).take(transfer.length).enumerate() {
            if let Err(error) = self.swap.load(transfer, nth, page, scratch) {
                return (nth, Some(error));
            }
        }
        (transfer.length, None)
    }

    /// Maps the first `loaded` pages of a transfer for whose whole length was paid.
    fn map_loaded(&self, transfer: &Transfer, loaded: usize, error: Option<LoadError>, bytes: &[u8]) {
        if loaded == 0 {
            self.budget.give(transfer.length as i64);
            return match error.expect("a load that stopped has a reason") {
                error if transfer.length == 1 => self.fail(transfer, error),
                _ => self.release(transfer),
            };
        }
        let mapped = self.memory.copy_in(transfer.first, &bytes[..loaded * PAGE_SIZE]);
        self.conclude(transfer, mapped, transfer.length);
    }

    /// Whether stored copies of pages that come in are kept.
    fn keeps_copies(&self, transfer: &Transfer) -> bool {
        match transfer.source {
            Source::Memory => {
                // As long as the pool has room: copies are the first to go when it has not.
                // Some are kept in any case, to see what becomes of them.
                let keep = self.copies_kept.load(Relaxed) || transfer.first.0.is_multiple_of(COPY_SAMPLE);
                keep && !self.swap.zswap().is_nearly_full()
            }
            Source::Device { .. } => {
                self.can_write() && self.swap.blocks().used() * 2 < self.swap.blocks().total()
            }
            _ => false,
        }
    }

    /// Ends a transfer for which `paid` pages were taken from the budget.
    fn conclude(&self, transfer: &Transfer, mapped: Mapped, paid: usize) {
        let (keep, met) = (self.keeps_copies(transfer), met(transfer, mapped));
        let wanted = self.swap.finish_swapin_at(transfer, mapped.pages, keep, met);
        self.budget.give((paid - mapped.pages) as i64);
        self.settle_pool();
        if let Some(error) = mapped.error {
            let page = transfer.first.plus(mapped.pages as u64);
            if error == MapError::Exists {
                self.budget.take(1);
            } else if error == MapError::NoMemory && mapped.pages == 0 {
                // The machine is out of memory for a moment: the thread faults again.
                std::thread::yield_now();
            }
            self.memory.wake(page, 1);
        }
        if !transfer.ahead && transfer.demand >= mapped.pages {
            self.memory.wake(transfer.demanded(), 1);
        }
        self.wake_wanted(transfer, wanted);
    }

    fn fail(&self, transfer: &Transfer, error: LoadError) {
        match error {
            LoadError::Io(_) => self.c(Counter::read_error, 1),
            LoadError::Decompress | LoadError::Hash => self.c(Counter::decompress_fail, 1),
        }
        self.swap.fail_swapin(transfer);
        self.poison(transfer.first, Some(error));
    }

    fn poison(&self, page: PageIndex, error: Option<LoadError>) {
        if let Some(error) = error {
            let regions = self.regions.read().unwrap_or_else(PoisonError::into_inner);
            let whole = PageIndex(0)..PageIndex(u64::MAX);
            let place = regions.pieces(whole).find(|(part, _)| part.contains(&page)).map(|(part, _)| {
                let (start, end) = (part.start.address(), part.end.address());
                format!(" (offset {:#x} in the mapping {start:#x}-{end:#x})", page.address() - start)
            });
            drop(regions);
            pagetide_sys::task::say(&format!(
                "the page at {:#x}{} is lost: {error}; an access to it gets SIGBUS",
                page.address(),
                place.unwrap_or_default()
            ));
        }
        // Unless the program has dropped the page meanwhile: what is there now is new.
        if self.swap.if_poisoned(page, || self.memory.poison(page)) == Some(false) {
            // Before Linux 6.6 one page cannot be made unreadable; zeroes would be worse than an end.
            pagetide_sys::task::say("this kernel cannot poison a page (6.6): ending the program");
            pagetide_sys::task::kill_self();
        }
        self.memory.wake(page, 1);
    }

    /// Brings pages back from probation.
    fn bring_from_frames(&self, transfer: &Transfer, slot_id: u16, writable: bool) {
        let first = transfer.first.offset();
        let staged = &self.staged[usize::from(slot_id)];
        // A copy's frame is free only when all of the slot is: where there is no room for both, the page moves.
        let room =
            self.budget.free() >= transfer.length as i64 && self.idle_frames() < self.low.load(Relaxed);
        let moves = self.memory.can_move()
            && writable
            && (transfer.length >= MOVE_RUN_MIN || !room || self.ways.masks(Ways::NO_COPY));
        let mut paid = 0;
        let mapped = {
            let mut slot = lock(&staged.slot);
            let mut mapped = Mapped { pages: 0, error: None };
            if moves {
                let before = slot.memory_pages();
                mapped = self.memory.move_from(&mut slot, first, transfer.length, transfer.first);
                let gone = (before - slot.memory_pages()) as i64;
                self.frames.fetch_sub(gone, Relaxed);
                // A zero page takes no frame, but counts once it is in the program.
                self.budget.take(mapped.pages as i64 - gone);
                paid = mapped.pages;
            }
            let rest = transfer.length - mapped.pages;
            // That a mapping is gone only COPY says for sure.
            let again = matches!(mapped.error, Some(MapError::Refused | MapError::Gone));
            if rest > 0 && (!moves || again) {
                self.c(Counter::move_refused, usize::from(mapped.error == Some(MapError::Refused)));
                // The frame is free again soon: overdrawing is bounded by what is on probation.
                self.budget.take(rest as i64);
                paid += rest;
                let done = mapped.pages;
                let copied =
                    self.memory.copy_from(&slot, first + done, rest, transfer.first.plus(done as u64));
                mapped = Mapped { pages: done + copied.pages, error: copied.error };
            }
            mapped
        };
        let left = mapped.pages + usize::from(met(transfer, mapped).is_some());
        let conclude = || self.conclude(transfer, mapped, paid.max(mapped.pages));
        if left < transfer.length {
            self.let_go(slot_id, conclude)
        } else {
            conclude()
        }
        self.unref(slot_id, left);
    }

    /// Brings a run in through free frames: read into them, then moved as one.
    fn bring_by_move(&self, transfer: &Transfer, work: &mut Workspace) -> bool {
        if !self.memory.can_move() {
            return false;
        }
        let Some(donor) = lock(&self.lists).donors.pop() else { return false };
        let mut slot = lock(&self.staged[usize::from(donor)].slot);
        let Some(frame) = slot.populated().find_run(0, transfer.length) else {
            self.drop_frames(donor, slot);
            return false;
        };
        let done = match slot.frames_mut(frame, transfer.length) {
            None => None,
            Some(bytes) => match transfer.source {
                Source::Memory => Some(self.load(transfer, bytes, &mut work.scratch)),
                _ => {
                    bytes.fill(0);
                    Some((transfer.length, None))
                }
            },
        };
        let mut mapped = Mapped { pages: 0, error: None };
        if let Some((loaded, _)) = done
            && loaded > 0
        {
            mapped = self.memory.move_from(&mut slot, frame, loaded, transfer.first);
            self.frames.fetch_sub(mapped.pages as i64, Relaxed);
        }
        drop(slot);
        lock(&self.lists).donors.push(donor);
        if mapped.pages == 0 && mapped.error.is_none_or(|error| error == MapError::Refused) {
            // Nothing was mapped: the ordinary way says why.
            return false;
        }
        self.conclude(transfer, mapped, mapped.pages);
        true
    }

    /// Starts to read a transfer that was paid for. False if the device has too much to do: then it has been let go, and
    /// the fault waits.
    fn read(&self, transfer: Transfer, block: u64, write: bool, since: u64) -> bool {
        let asked = i64::from(!transfer.ahead);
        self.stalled.fetch_add(asked, Relaxed);
        if self.submit_read(Pending::Read { transfer, write, since }, &transfer, block) {
            return true;
        }
        self.stalled.fetch_sub(asked, Relaxed);
        // The queue is full of requests: each that ends lets a waiting fault try again.
        if !transfer.ahead {
            self.park(transfer.demanded(), write, since);
        }
        false
    }

    /// Hands a read to the device. If that has too much to do the transfer has been let go, and what was paid for it
    /// given back.
    fn submit_read(&self, pending: Pending, transfer: &Transfer, block: u64) -> bool {
        let device = self.device.as_ref().expect("a page on the device has a device");
        let token = self.begin(pending);
        let buffer = Buffer::new(transfer.length);
        if device.submit(Request { token, direction: Direction::Read, block, buffer }).is_ok() {
            return true;
        }
        self.end(token);
        self.release(transfer);
        self.budget.give(transfer.length as i64);
        false
    }

    fn begin(&self, pending: Pending) -> u64 {
        let mut requests = lock(&self.requests);
        requests.count += 1;
        requests.writes += usize::from(pending.is_write());
        let at = match requests.free.pop() {
            Some(at) => at,
            None => {
                requests.slots.push(None);
                requests.slots.len() - 1
            }
        };
        requests.slots[at] = Some(pending);
        at as u64
    }

    fn end(&self, token: u64) -> Pending {
        let mut requests = lock(&self.requests);
        let pending = requests.slots[token as usize].take().expect("a request ends once");
        requests.free.push(token as usize);
        requests.count -= 1;
        requests.writes -= usize::from(pending.is_write());
        pending
    }

    /// Handles requests that have ended.
    pub fn complete(&self, done: &mut Vec<Completion>, work: &mut Workspace) {
        for completion in done.drain(..) {
            let Completion { token, mut buffer, result } = completion;
            // The request counts as under way until all it led to is done: a fork waits for that.
            let pending = lock(&self.requests).slots[token as usize].take().expect("a request ends once");
            let is_write = pending.is_write();
            match pending {
                Pending::Read { transfer, write, since } => {
                    self.read_ended(transfer, write, since, &mut buffer, result);
                }
                Pending::Move { transfer } => self.move_ended(&transfer, &mut buffer, &result, work),
                Pending::Store { slot, pages, block } => self.store_ended(slot, &pages, block, result),
                Pending::Writeback { entries, block } => self.writeback_ended(&entries, block, result),
            }
            let mut requests = lock(&self.requests);
            requests.free.push(token as usize);
            requests.count -= 1;
            requests.writes -= usize::from(is_write);
        }
        self.settle_pool();
        self.retry_waiting(work);
    }

    fn read_ended(
        &self,
        mut transfer: Transfer,
        write: bool,
        since: u64,
        bytes: &mut [u8],
        result: std::io::Result<()>,
    ) {
        let waited = self.now().saturating_sub(since);
        if !transfer.ahead {
            self.stalled.fetch_sub(1, Relaxed);
            self.swap.counters().add(Counter::stalled_ns, waited);
            self.read_ns.fetch_add(waited, Relaxed);
        }
        let (loaded, error) = match result {
            Err(error) => (0, Some(LoadError::Io(error.raw_os_error().unwrap_or(5)))),
            Ok(()) => {
                let mut pages = bytes.chunks_exact_mut(PAGE_SIZE).take(transfer.length).enumerate();
                let bad = pages.find_map(|(nth, page)| {
                    self.swap.open(&transfer, nth, page).err().map(|error| (nth, error))
                });
                bad.map_or((transfer.length, None), |(nth, error)| (nth, Some(error)))
            }
        };
        if loaded <= transfer.demand && transfer.length > 1 && !transfer.ahead {
            // Which of them cannot be read is not known, or it is a neighbour: what is waited for is read alone.
            self.budget.give(transfer.length as i64 - 1);
            self.narrow(&mut transfer);
            let Source::Device { block } = transfer.source else {
                unreachable!("it was read from the device")
            };
            self.read(transfer, block, write, since);
            return;
        }
        self.map_loaded(&transfer, loaded, error, bytes);
        if !transfer.ahead {
            self.latency.record(Duration::from_nanos(self.now().saturating_sub(since)));
        }
    }

    // ---- out ------------------------------------------------------------------------------------

    /// Keeps a cluster where it is until [`Engine::unprotect`]: the caller's stack is there, and the
    /// caller is about to take a lock. Returns a token.
    pub fn protect(&self, cluster: ClusterNumber) -> Option<usize> {
        let value = cluster.0 + 1;
        let at = self.protected.iter().position(|cell| {
            cell.load(Relaxed) == 0 && cell.compare_exchange(0, value, SeqCst, SeqCst).is_ok()
        })?;
        // A take-out announces its cluster before it looks at the list: either it sees this entry, or it
        // is seen here and waited for. It holds no lock that the caller has.
        self.await_end_of_taking(value);
        Some(at)
    }

    /// Waits for the end of a take-out under way, which may not have seen what the caller did before.
    pub fn await_taken(&self) {
        let value = self.taking.load(SeqCst);
        if value != 0 {
            self.await_end_of_taking(value);
        }
    }

    fn await_end_of_taking(&self, value: u64) {
        while self.taking.load(SeqCst) == value {
            std::thread::yield_now();
        }
    }

    /// Ends a protection.
    pub fn unprotect(&self, token: usize) {
        self.protected[token].store(0, SeqCst);
    }

    /// Takes the next cluster out of the program. `None` if nothing can be taken.
    fn take_out(&self) -> Option<usize> {
        let slot_id = lock(&self.lists).empty.pop()?;
        let mut shared = Vec::new();
        let taken = self.take_out_into(slot_id, &mut shared);
        let hastened = if taken.is_none() { 0 } else { self.hastened.load(Relaxed).saturating_sub(1) };
        self.hastened.store(hastened, Relaxed);
        if taken.is_none_or(|taken| taken == 0) {
            // Behind the others: it may be the slot that is at fault, having lost a part.
            lock(&self.lists).empty.insert(0, slot_id);
        }
        if !shared.is_empty() {
            self.unshare(&shared);
        }
        taken
    }

    /// Pages that would not move, all of one cluster: shared since a fork, or pinned. What was shared moves from
    /// now on.
    fn unshare(&self, runs: &[Range<PageIndex>]) {
        // With no lock of the engine held: a page that a call has dropped that nobody told us of is brought in by a reader.
        self.unsharing.store(pagetide_sys::task::tid(), SeqCst);
        let all = runs.iter().all(|run| self.memory.unshare(run.clone()));
        self.unsharing.store(0, SeqCst);
        if !all {
            return;
        }
        let whole = runs[0].start..runs[runs.len() - 1].end;
        // Pinned pages stay: the cluster waits for its turn like all others.
        if self.unshared.swap(whole.start.cluster().0 + 1, Relaxed) != whole.start.cluster().0 + 1 {
            self.swap.hasten(whole);
        }
    }

    /// Whether a thread is one that reclaims and faults itself ([`Memory::unshare`]): its faults are answered
    /// whatever the others wait for.
    pub fn is_unsharing(&self, tid: u32) -> bool {
        self.unsharing.load(SeqCst) == tid
    }

    /// Notes in `shared` runs of pages that would not move.
    fn take_out_into(&self, slot_id: u16, shared: &mut Vec<Range<PageIndex>>) -> Option<usize> {
        let regions = self.regions.read().unwrap_or_else(PoisonError::into_inner);
        let mut cluster = self.swap.victim()?;
        let number = cluster.number();
        self.taking.store(number.0 + 1, SeqCst);
        let protected = self.protected.iter().any(|cell| cell.load(SeqCst) == number.0 + 1);
        let pins = self.memory.may_pin();
        if protected || (pins && !self.memory.can_move()) {
            self.taking.store(0, SeqCst);
            self.swap.put_back(cluster);
            self.c(Counter::pgsteal_fail, 1);
            return Some(0);
        }
        let staged = &self.staged[usize::from(slot_id)];
        let mut slot = lock(&staged.slot);
        assert_eq!(slot.memory_pages(), 0, "pages of others would be lost");
        let whole = 0..CLUSTER_PAGES;
        let way = if pins || self.ways.masks(Ways::NO_REMAP) { TakeOutWay::Move } else { TakeOutWay::Remap };
        let mut moving = PageSet::default();
        let poisoned = match cluster.poisoned() {
            0 => PageSet::default(),
            _ => (0..CLUSTER_PAGES).filter(|&at| cluster.get(at).state() == State::Poisoned).collect(),
        };
        for (range, region) in regions.pieces_of(number) {
            let Attributes { access, locked, kept, .. } = region.attributes;
            if locked || kept || (access == Access::None && way == TakeOutWay::Move) {
                continue;
            }
            let start = range.start.offset();
            let part = PageSet::range(start..start + (range.end.0 - range.start.0) as usize);
            // Poison would travel with the others, and be read.
            for run in part.minus(poisoned).runs() {
                let moved = self.take_out_run(number, run.clone(), access == Access::Write, way, &mut slot);
                if moved && access == Access::Write {
                    moving = moving.or(PageSet::range(run));
                }
            }
        }
        let populated = slot.populated();
        // What is neither here nor there was dropped by a call that nobody told us of.
        let first = number.page(0);
        let expected = way == TakeOutWay::Remap && populated.len() == cluster.present();
        let still = match expected {
            true => PageSet::default(),
            false => {
                let found = self.memory.presence(first..first.plus(CLUSTER_PAGES as u64));
                let page = |offset: usize| first.plus(offset as u64);
                let stuck = found.present.minus(found.zero).and(moving);
                shared.extend(stuck.runs().map(|run| page(run.start)..page(run.end)));
                found.present
            }
        };
        let out = self.swap.taken_out(
            &mut cluster,
            slot_id,
            whole,
            |offset| populated.contains(offset),
            |offset| !still.contains(offset),
        );
        self.taking.store(0, SeqCst);
        self.note(|| Event::TakenOut { page: first, pages: out.taken as u64 });
        if out.taken == 0 && cluster.present() > 0 {
            self.c(Counter::pgsteal_fail, 1);
        }
        let memory = slot.memory_pages() as i64;
        self.frames.fetch_add(memory, Relaxed);
        self.budget.take(out.adopted as i64);
        self.budget.give(out.taken as i64 - memory + out.dropped as i64);
        if out.taken == 0 {
            self.drop_bytes(&mut slot, PageSet::default());
            return Some(0);
        }
        // Before the cluster is unlocked: a fault may bring the first page back at once.
        staged.cluster.store(number.0, Relaxed);
        staged.shadow.store(out.shadow.0, Relaxed);
        *lock(&staged.poor) = PageSet::default();
        staged.refs.store(out.taken + 1, SeqCst);
        staged.queued.store(true, SeqCst);
        drop(cluster);
        drop(slot);
        lock(&self.lists).probation.push_back(slot_id);
        for (slot, count) in out.left {
            self.unref(slot, count);
        }
        Some(out.taken)
    }

    /// Takes a run of a cluster out. Whether that was (also) tried by MOVE, which some pages may have refused.
    fn take_out_run(
        &self,
        number: ClusterNumber,
        run: Range<usize>,
        writable: bool,
        way: TakeOutWay,
        slot: &mut M::Slot,
    ) -> bool {
        let range = number.page(run.start)..number.page(0).plus(run.end as u64);
        if self.memory.take_out(range.clone(), writable, way, slot) || way == TakeOutWay::Move {
            return way == TakeOutWay::Move;
        }
        self.memory.can_move() && {
            self.memory.take_out(range, writable, TakeOutWay::Move, slot);
            true
        }
    }

    /// Gives a slot's frames back to the system but those of `kept`.
    fn drop_bytes(&self, slot: &mut M::Slot, kept: PageSet) -> usize {
        let before = slot.memory_pages();
        slot.retain(kept);
        let pages = before - slot.memory_pages();
        self.frames.fetch_sub(pages as i64, Relaxed);
        self.budget.give(pages as i64);
        pages
    }

    /// Gives a donor's frames back to the system, if there is a donor.
    fn drop_donor(&self) -> Option<usize> {
        let donor = lock(&self.lists).donors.pop()?;
        Some(self.drop_frames(donor, lock(&self.staged[usize::from(donor)].slot)))
    }

    /// Gives a slot's frames back to the system.
    fn drop_frames(&self, slot_id: u16, mut slot: MutexGuard<'_, M::Slot>) -> usize {
        let pages = self.drop_bytes(&mut slot, PageSet::default());
        drop(slot);
        lock(&self.lists).empty.push(slot_id);
        pages
    }

    /// `count` pages are no longer cached in the slot (or its processing has ended).
    fn unref(&self, slot_id: u16, count: usize) -> usize {
        if count == 0 || self.staged[usize::from(slot_id)].refs.fetch_sub(count, SeqCst) != count {
            return 0;
        }
        // Nobody refers to its frames: they are free, and populated.
        let mut slot = lock(&self.staged[usize::from(slot_id)].slot);
        let pages = slot.memory_pages();
        if pages >= CLUSTER_PAGES / 2 && self.memory.can_move() && self.runs_wanted.swap(0, Relaxed) > 0 {
            let others = self.idle_frames() - pages as i64;
            let most = (self.low.load(Relaxed) - others).clamp(0, pages as i64) as usize;
            if most >= DONOR_MIN && lock(&self.lists).donors.len() < DONORS_MAX {
                let kept = slot.populated().iter().take(most).collect();
                self.drop_bytes(&mut slot, kept);
                drop(slot);
                lock(&self.lists).donors.push(slot_id);
                return pages;
            }
        }
        self.drop_frames(slot_id, slot)
    }

    /// Frames that no page on probation is in: of copies that were mapped, of pages that were stored just now, and of
    /// donors. They are memory like any other, and save work only: so they are few.
    fn idle_frames(&self) -> i64 {
        self.frames.load(Relaxed) - self.swap.cached()
    }

    /// Lets go of pages of a slot, by `end`, which stay on probation: they could not be mapped, or were not wanted after
    /// all.
    fn let_go(&self, slot_id: u16, end: impl FnOnce()) {
        // Others may take them at once, and the slot would be free.
        self.staged[usize::from(slot_id)].refs.fetch_add(1, SeqCst);
        end();
        self.requeue(slot_id);
        self.unref(slot_id, 1);
    }

    /// Pages of a slot stay on probation, whether or not the slot was processed before. The caller holds a reference of
    /// the slot, which is not that of a page that others may take.
    fn requeue(&self, slot_id: u16) {
        let staged = &self.staged[usize::from(slot_id)];
        if !staged.queued.swap(true, SeqCst) {
            let others = staged.refs.fetch_add(1, SeqCst);
            assert!(others > 0, "nothing keeps the slot from being used anew");
            lock(&self.lists).probation.push_back(slot_id);
        }
    }

    /// One step towards free memory. A bounded piece of work; never waits for I/O.
    pub fn reclaim(&self, work: &mut Workspace) -> Progress {
        let mut freed = self.trim_pool(work);
        let taken = if self.is_probation_full() { Some(0) } else { self.take_out() };
        if let Some(taken) = taken.filter(|&taken| taken > 0) {
            freed += self.press_pool(taken, work);
        }
        let waits = self.waiting() > 0;
        let ripe = self.is_probation_full();
        let oldest = {
            let mut lists = lock(&self.lists);
            // Where somebody waits, a cluster of which nothing would leave is no reason to keep others waiting.
            let stuck = taken.is_none() || (taken == Some(0) && waits);
            if ripe || stuck { lists.probation.pop_front() } else { None }
        };
        let mut waits_for_device = false;
        if let Some(slot) = oldest {
            freed += self.store_slot(slot, Busy::Wait, work);
            waits_for_device = self.staged[usize::from(slot)].late.load(Relaxed);
        }
        if freed == 0 && self.waiting() > 0 {
            // Somebody waits: frames that were kept for runs are worth more as room.
            freed += self.drop_donor().unwrap_or(0);
        }
        if freed == 0 && taken.is_none() && oldest.is_none() {
            // All that is left to leave is in the pool.
            return self.reclaim_pool(work);
        }
        match (freed, taken, oldest) {
            (1.., _, _) => Progress::Freed(freed),
            (0, None, None) => Progress::Nothing,
            (0, _, _) if waits_for_device => Progress::Waits,
            (0, _, _) => Progress::Moved,
        }
    }

    /// Whether the oldest slot on probation should be stored. One may wait there however many pages it has.
    fn is_probation_full(&self) -> bool {
        let slots = lock(&self.lists).probation.len();
        slots > self.limits.probation || (slots > 1 && self.swap.is_probation_full())
    }

    /// Does a step of work on memory that the pool could give.
    pub fn reclaim_pool(&self, work: &mut Workspace) -> Progress {
        match self.shrink_pool(work, Of::Own, || true) {
            0 => Progress::Nothing,
            freed => Progress::Freed(freed),
        }
    }

    /// Whether pages can go to the device.
    pub fn can_write(&self) -> bool {
        self.device.is_some() && !self.device_failed.load(Relaxed) && !self.is_swapped_off()
    }

    /// Stores every page that is still on probation in a slot. Returns the pages that became free or are
    /// on their way to the device.
    fn store_slot(&self, slot_id: u16, busy: Busy, work: &mut Workspace) -> usize {
        let staged = &self.staged[usize::from(slot_id)];
        staged.queued.store(false, SeqCst);
        if busy == Busy::Wait && staged.late.load(Relaxed) && self.is_writing() {
            // Nothing has changed.
            self.requeue(slot_id);
            self.unref(slot_id, 1);
            return 0;
        }
        let number = ClusterNumber(staged.cluster.load(Relaxed));
        let populated = lock(&staged.slot).populated();
        let mut stored = 0;
        let mut outgoing = Outgoing::default();
        for first in (0..CLUSTER_PAGES).step_by(FOLIO_PAGES) {
            let folio = populated.and(PageSet::range(first..first + FOLIO_PAGES));
            if !folio.is_empty() {
                stored += self.store_folio(slot_id, number.page(first), folio, &mut outgoing, work);
                self.settle_pool();
                if self.waiting() > 0 && busy == Busy::Wait {
                    // Nobody waits for the rest of the cluster.
                    self.drop_stored(slot_id, number);
                    self.retry_waiting(work);
                }
            }
        }
        let Outgoing { mut batch, mut unsent } = outgoing;
        stored += self.write(slot_id, &mut batch, &mut unsent);
        if busy == Busy::Refuse {
            unsent.refused.append(&mut unsent.deferred);
        }
        self.give_up(slot_id, &unsent.refused);
        staged.late.store(!unsent.deferred.is_empty(), Relaxed);
        unsent.deferred.iter().for_each(|&page| self.end_store(page, slot_id, None));
        if !unsent.deferred.is_empty() {
            self.requeue(slot_id);
        }
        if staged.refs.load(SeqCst) > 1 {
            self.drop_stored(slot_id, number);
        }
        self.unref(slot_id, 1);
        stored
    }

    /// Stores those of the sixteen pages from `first` on that are in `populated` and still on probation in a slot.
    /// Returns how many became free or are on their way to the device.
    fn store_folio(
        &self,
        slot_id: u16,
        first: PageIndex,
        populated: PageSet,
        outgoing: &mut Outgoing,
        work: &mut Workspace,
    ) -> usize {
        let staged = &self.staged[usize::from(slot_id)];
        let mut begun = [(0usize, None::<Place>); FOLIO_PAGES];
        let mut count = 0;
        if let Some(mut cluster) = self.swap.table().lock(first.cluster()) {
            for run in populated.runs() {
                self.swap.begin_store(&mut cluster, slot_id, run, |offset, kept| {
                    begun[count] = (offset, kept);
                    count += 1;
                });
            }
        }
        let started = self.now();
        let poor = *lock(&staged.poor);
        let is_poor = |offset| poor.contains(offset);
        let whole = (count == FOLIO_PAGES && !begun.iter().any(|&(offset, _)| is_poor(offset))).then(|| {
            let slot = lock(&staged.slot);
            let frame = |nth| slot.frame(first.offset() + nth).expect("a cached page has its frame");
            self.swap.store_folio(frame, &begun.map(|(_, kept)| kept), &mut work.scratch)
        });
        if self.recorder.is_some() {
            let outcomes = whole.iter().flatten();
            outcomes.zip(&begun).for_each(|(&stored, &(offset, _))| {
                self.note_stored(first.cluster().page(offset), stored);
            });
        }
        if let Some(place) = whole.as_ref().and_then(|outcomes| Stored::run(outcomes))
            && self.end_store_run(first, slot_id, place)
        {
            self.note_store_time(started, FOLIO_PAGES);
            return FOLIO_PAGES;
        }
        let Outgoing { batch, unsent } = outgoing;
        let (mut stored, mut new) = (0, 0);
        for (nth, &(offset, kept)) in begun[..count].iter().enumerate() {
            let page = first.cluster().page(offset);
            let outcome = {
                let slot = lock(&staged.slot);
                let bytes = slot.frame(offset).expect("a cached page has its frame");
                let outcome = match &whole {
                    Some(outcomes) => outcomes[nth],
                    None => {
                        let stored = self.swap.store(bytes, kept, is_poor(offset), &mut work.scratch);
                        self.note_stored(page, stored);
                        stored
                    }
                };
                if let Stored::Refused(why, hash) = outcome {
                    self.note_refusal(staged, offset, why);
                    if self.device.is_some() {
                        batch.push(page, hash, bytes);
                    }
                }
                outcome
            };
            match outcome {
                Stored::Clean(place) | Stored::New(place) => {
                    stored += 1;
                    new += usize::from(matches!(outcome, Stored::New(_)));
                    self.end_store(page, slot_id, Some(place));
                }
                Stored::Refused(..) if self.device.is_some() => {
                    if batch.pages.len() == WRITE_BATCH_PAGES {
                        stored += self.write(slot_id, batch, unsent);
                    }
                }
                Stored::Refused(..) => {
                    self.refused.fetch_add(1, Relaxed);
                    unsent.refused.push(page);
                }
            }
        }
        if new > 0 && new == count {
            self.note_store_time(started, new);
        }
        stored
    }

    /// Notes why the pool would not have a page.
    fn note_refusal(&self, staged: &Staged<M::Slot>, offset: usize, why: StoreError) {
        match why {
            StoreError::Incompressible => lock(&staged.poor).insert(offset),
            StoreError::PoolLimit if !self.can_write() => self.c(Counter::reject_reclaim_fail, 1),
            _ => {}
        }
    }

    /// Notes what storing a page takes: `pages` took the time since `started`.
    fn note_store_time(&self, started: u64, pages: usize) {
        let each = self.now().saturating_sub(started) / pages as u64;
        let mean = self.store_ns.load(Relaxed);
        // Only reclaim stores, or a fork while reclaim is frozen.
        self.store_ns.store(mean - mean / 16 + each / 16, Relaxed);
    }

    /// Ends the stores of a folio at once. False if they must end one by one.
    fn end_store_run(&self, first: PageIndex, slot_id: u16, place: Place) -> bool {
        let shadow = Shadow(self.staged[usize::from(slot_id)].shadow.load(Relaxed));
        let ended = self.swap.finish_store_run(first, FOLIO_PAGES, place, shadow);
        if ended {
            self.unref(slot_id, FOLIO_PAGES);
        }
        ended
    }

    /// Gives back the frames of pages that have left a slot, while others still wait there for the device.
    /// The caller holds a reference of the slot.
    fn drop_stored(&self, slot_id: u16, number: ClusterNumber) {
        let staged = &self.staged[usize::from(slot_id)];
        let mut kept = lock(&staged.slot).populated();
        if let Some(cluster) = self.swap.table().lock(number) {
            for offset in kept.iter() {
                let word = cluster.get(offset);
                if word.state() != State::Cached || word.slot() != slot_id {
                    kept.remove(offset);
                }
            }
        }
        // No page comes into a slot but by a take-out, for which it must be empty: what has left stays away.
        if kept.runs().count() <= PARTS_MAX {
            self.drop_bytes(&mut lock(&staged.slot), kept);
        }
    }

    /// Pages that found no place go back to the program.
    fn give_up(&self, slot_id: u16, pages: &[PageIndex]) {
        for &page in pages {
            match self.swap.abandon_store(page) {
                StoreOutcome::Wanted => self.map_wanted(page, slot_id),
                StoreOutcome::Swapped => self.bring_back(page),
            }
        }
    }

    /// Brings a page that is on probation back into the program, unless a fault is faster, or it is being stored.
    fn bring_back(&self, page: PageIndex) {
        if let Some(transfer) = self.swap.swapin_cached(page)
            && let Source::Frames { slot } = transfer.source
        {
            self.bring_from_frames(&transfer, slot, true);
        }
    }

    /// Pages for which there was no place since the last call.
    pub fn take_refused(&self) -> usize {
        self.refused.swap(0, Relaxed)
    }

    fn end_store(&self, page: PageIndex, slot_id: u16, place: Option<Place>) {
        let outcome = match place {
            Some(place) => {
                let shadow = Shadow(self.staged[usize::from(slot_id)].shadow.load(Relaxed));
                self.swap.finish_store(page, place, shadow)
            }
            None => self.swap.abandon_store(page),
        };
        match outcome {
            StoreOutcome::Wanted => self.map_wanted(page, slot_id),
            StoreOutcome::Swapped if place.is_some() => drop(self.unref(slot_id, 1)),
            StoreOutcome::Swapped => {}
        }
    }

    /// Maps a page for which a fault waited until its store had ended.
    fn map_wanted(&self, page: PageIndex, slot_id: u16) {
        self.budget.take(1);
        let mapped = {
            let slot = lock(&self.staged[usize::from(slot_id)].slot);
            self.memory.copy_from(&slot, page.offset(), 1, page)
        };
        let exists = mapped.error == Some(MapError::Exists);
        if mapped.pages == 1 || exists {
            self.swap.finish_hit(page);
            self.unref(slot_id, 1);
        } else {
            // No memory, or the mapping is gone: the page stays on probation and the thread looks again.
            self.budget.give(1);
            self.let_go(slot_id, || self.swap.release_hit(page));
        }
        if mapped.pages == 0 {
            self.memory.wake(page, 1);
        }
    }

    /// Whether as many writes are under way as may be: what they write is in memory twice, which must not be a large
    /// part of the memory of one process among many.
    fn is_writing(&self) -> bool {
        let most = (self.high.load(Relaxed) / WRITE_BATCH_PAGES as i64).clamp(*WRITES.start(), *WRITES.end());
        lock(&self.requests).writes as i64 >= most
    }

    /// Blocks to write to, while the device is in use.
    fn allocate(&self, count: usize) -> Option<BlockRun> {
        let run = self.swap.blocks().allocate(count)?;
        // Either this is seen, or whoever takes the device out of use sees that blocks are held.
        fence(SeqCst);
        if self.is_swapped_off() {
            self.free_blocks(run.start, run.length);
            return None;
        }
        Some(run)
    }

    fn free_blocks(&self, first: u64, count: usize) {
        (first..).take(count).for_each(|block| self.swap.blocks().free(block));
    }

    /// Sends a batch of refused pages to the device. Returns how many are on their way.
    fn write(&self, slot_id: u16, batch: &mut Batch, unsent: &mut Unsent) -> usize {
        let mut sent = 0;
        while !batch.pages.is_empty() {
            let busy = self.is_writing();
            let room = !busy && self.can_write();
            let run = if room { self.allocate(batch.pages.len()) } else { None };
            let Some(run) = run else {
                // A device that is busy has room later.
                self.refused.fetch_add(if busy { 0 } else { batch.pages.len() }, Relaxed);
                let later = if busy { &mut unsent.deferred } else { &mut unsent.refused };
                later.extend(batch.pages.drain(..).map(|(page, _)| page));
                batch.buffer = None;
                break;
            };
            let pages: Vec<_> = batch.pages.drain(..run.length).collect();
            let mut buffer = batch.split_off(run.length);
            for ((block, (_, hash)), page) in (run.start..).zip(&pages).zip(buffer.chunks_exact_mut(BLOCK)) {
                self.swap.seal(block, *hash, page);
            }
            let pages: Vec<PageIndex> = pages.into_iter().map(|(page, _)| page).collect();
            let count = pages.len();
            let token = self.begin(Pending::Store { slot: slot_id, pages, block: run.start });
            let request = Request { token, direction: Direction::Write, block: run.start, buffer };
            if self.device.as_ref().expect("checked by the caller").submit(request).is_err() {
                if let Pending::Store { pages, .. } = self.end(token) {
                    unsent.deferred.extend(pages);
                }
                self.free_blocks(run.start, count);
            } else {
                sent += count;
            }
        }
        sent
    }

    fn store_ended(&self, slot_id: u16, pages: &[PageIndex], block: u64, result: std::io::Result<()>) {
        match result {
            Ok(()) => {
                self.c(Counter::pswpout, pages.len());
                let mut nth = 0;
                while let Some(&page) = pages.get(nth) {
                    let place = Place::Device(block + nth as u64);
                    // They ascend.
                    let last = page.plus(FOLIO_PAGES as u64 - 1);
                    let whole = page.offset().is_multiple_of(FOLIO_PAGES)
                        && pages.get(nth + FOLIO_PAGES - 1) == Some(&last);
                    if whole && self.end_store_run(page, slot_id, place) {
                        nth += FOLIO_PAGES;
                    } else {
                        self.end_store(page, slot_id, Some(place));
                        nth += 1;
                    }
                }
            }
            Err(error) => {
                self.write_failed(&error);
                self.refused.fetch_add(pages.len(), Relaxed);
                self.free_blocks(block, pages.len());
                self.give_up(slot_id, pages);
            }
        }
    }

    fn write_failed(&self, error: &std::io::Error) {
        self.c(Counter::write_error, 1);
        if !self.device_failed.swap(true, Relaxed) {
            pagetide_sys::task::say(&format!(
                "cannot write to the swap file: {error}; pages stay in memory from now on (--swap-dir, --swap-size)"
            ));
        }
    }

    /// Makes room in a pool that nears its limit. Returns the pages that were freed at once, or will be soon.
    fn trim_pool(&self, work: &mut Workspace) -> usize {
        if self.swap.compact(COMPACT_CLUSTERS) > 0 {
            self.settle_pool();
        }
        let is_full = || self.swap.zswap().is_nearly_full();
        if is_full() { self.shrink_pool(work, Of::All, is_full) } else { 0 }
    }

    /// Gives up a part of the pool: kept copies go, and where there are none, the entries under the clock hand are
    /// written to the device while there should be `more`.
    fn shrink_pool(&self, work: &mut Workspace, of: Of, more: impl Fn() -> bool) -> usize {
        let zswap = self.swap.zswap();
        let pages = || zswap.pool_pages() - if of == Of::Own { zswap.frozen_pages() } else { 0 };
        let before = pages();
        let mut sent = 0;
        if self.swap.drop_copies(TRIM_ENTRIES) == 0 {
            // Where nothing else can leave, all entries are looked at.
            let scan = if of == Of::Own { usize::MAX } else { TRIM_SCAN };
            while sent < TRIM_ENTRIES && more() {
                let step = self.write_back_scanned(scan, of, work);
                if step == 0 {
                    break;
                }
                sent += step;
            }
        }
        self.settle_pool();
        before.saturating_sub(pages()) + sent / ENTRIES_A_PAGE
    }

    /// Passes the shrinker's hand over so many entries of the pool, and writes back what it finds, up to a few batches.
    /// Returns how many are on their way.
    fn write_back_scanned(&self, scan: usize, of: Of, work: &mut Workspace) -> usize {
        if !self.can_write() || self.is_writing() {
            return 0;
        }
        let mut entries = std::mem::take(&mut work.entries);
        entries.clear();
        self.swap.scan(scan, 4 * WRITE_BATCH_PAGES, of, &mut entries);
        let sent =
            entries.chunks(WRITE_BATCH_PAGES).map(|chunk| self.write_back(chunk, &mut work.scratch)).sum();
        work.entries = entries;
        sent
    }

    /// `taken` pages have left the program: the pool gives its part, if the shrinker has it so. Returns about how many
    /// pages become free.
    fn press_pool(&self, taken: usize, work: &mut Workspace) -> usize {
        let weight = f64::from_bits(self.pool_pressure.load(Relaxed));
        if weight <= 0.0 || !self.can_write() || self.is_writing() {
            return 0;
        }
        let scan = self.swap.pressure(taken, weight);
        if scan == 0 { 0 } else { self.write_back_scanned(scan, Of::Own, work) / ENTRIES_A_PAGE }
    }

    /// Sets how hard the pool is pressed to give memory, against the program: 0 not at all.
    pub fn set_pool_pressure(&self, weight: f64) {
        self.pool_pressure.store(weight.to_bits(), Relaxed);
    }

    fn write_back(&self, entries: &[(PageIndex, Handle)], scratch: &mut Scratch) -> usize {
        let Some(device) = &self.device else { return 0 };
        if !self.can_write() || self.is_writing() {
            return 0;
        }
        let Some(run) = self.allocate(entries.len()) else { return 0 };
        let mut buffer = Buffer::new(run.length);
        let mut begun = Vec::with_capacity(run.length);
        for &(owner, handle) in entries {
            if begun.len() == run.length {
                break;
            }
            let bytes = &mut buffer[begun.len() * BLOCK..][..BLOCK];
            if let Some(hash) = self.swap.begin_writeback(owner, handle, bytes, scratch) {
                self.swap.seal(run.start + begun.len() as u64, hash, bytes);
                begun.push((owner, handle, hash));
            }
        }
        let count = begun.len();
        self.free_blocks(run.start + count as u64, run.length - count);
        if count == 0 {
            return 0;
        }
        buffer.truncate(count);
        let token = self.begin(Pending::Writeback { entries: begun, block: run.start });
        let request = Request { token, direction: Direction::Write, block: run.start, buffer };
        if device.submit(request).is_err() {
            if let Pending::Writeback { entries, block } = self.end(token) {
                self.cancel_writeback(&entries, block);
            }
            return 0;
        }
        count
    }

    fn cancel_writeback(&self, entries: &[(PageIndex, Handle, PageHash)], block: u64) {
        for (&(owner, handle, hash), block) in entries.iter().zip(block..) {
            self.swap.finish_writeback(owner, handle, hash, None);
            self.swap.blocks().free(block);
        }
    }

    fn writeback_ended(
        &self,
        entries: &[(PageIndex, Handle, PageHash)],
        block: u64,
        result: std::io::Result<()>,
    ) {
        if let Err(error) = result {
            self.write_failed(&error);
            self.cancel_writeback(entries, block);
            return;
        }
        self.c(Counter::pswpout, entries.len());
        for (&(owner, handle, hash), block) in entries.iter().zip(block..) {
            if !self.swap.finish_writeback(owner, handle, hash, Some(block)) {
                self.swap.blocks().free(block);
            }
        }
    }

    /// Stores or returns everything that is on probation and gives up free frames: before a fork, when
    /// no other thread of the engine works. False if requests are under way, or staging is not empty yet:
    /// call again when they have ended.
    pub fn drain(&self, work: &mut Workspace) -> bool {
        // Each slot once a call: one whose pages could not be put back comes again.
        let staged = lock(&self.lists).probation.len();
        for _ in 0..staged {
            let Some(slot) = lock(&self.lists).probation.pop_front() else { break };
            self.store_slot(slot, Busy::Refuse, work);
        }
        while self.drop_donor().is_some() {}
        self.requests() == 0 && lock(&self.lists).empty.len() == self.staged.len()
    }

    /// In a forked child, which has its own engine: gives up the address space of staging, which the fork found
    /// empty.
    pub fn abandon_staging(&self) {
        self.staged.iter().for_each(|staged| lock(&staged.slot).abandon());
    }

    // ---- changes by the program -----------------------------------------------------------------

    /// Forgets `range`: its pages read as zeroes, or are gone. `also` is called for each part, in order,
    /// when no fault can come between: the place for the system call that drops the program's pages.
    pub fn discard(&self, range: Range<PageIndex>, mut also: impl FnMut(Range<PageIndex>)) {
        self.note(|| Event::Discard { page: range.start, pages: range.end.0.saturating_sub(range.start.0) });
        let mut done = range.start;
        for number in
            self.swap.table().touched(range.start.cluster().0..range.end.0.div_ceil(CLUSTER_PAGES as u64))
        {
            let first = number.page(0).max(range.start);
            let last = number.page(0).plus(CLUSTER_PAGES as u64).min(range.end);
            if done < first {
                also(done..first);
            }
            done = last;
            let offsets = first.offset()..first.offset() + (last.0 - first.0) as usize;
            let mut freed = Vec::new();
            let discarded =
                self.swap.discard(number, offsets, |slot, _| freed.push(slot), || also(first..last));
            self.budget.give(discarded.present as i64);
            for slot in freed {
                self.unref(slot, 1);
            }
        }
        if done < range.end {
            also(done..range.end);
        }
        self.settle_pool();
    }

    /// Brings every page of `range` that is on probation back into the program: before its mapping moves.
    pub fn recall(&self, range: Range<PageIndex>) {
        for number in
            self.swap.table().touched(range.start.cluster().0..range.end.0.div_ceil(CLUSTER_PAGES as u64))
        {
            let first = number.page(0).max(range.start);
            let last = number.page(0).plus(CLUSTER_PAGES as u64).min(range.end);
            let mut page = first;
            while page < last {
                // Waits until nothing moves there, then claims what is cached.
                let offset = page.offset();
                let Some(cluster) = self.swap.lock_settled(number, offset..offset + 1) else { break };
                let cached = cluster.get(offset).state() == State::Cached;
                drop(cluster);
                if cached {
                    // Looked at again: it may be stored meanwhile, or have failed for want of memory, which passes.
                    self.bring_back(page);
                    std::thread::yield_now();
                    continue;
                }
                page = page.plus(1);
            }
        }
    }

    /// Moves the words of `length` pages from one place in the address space to another: the mapping
    /// moved. Both ranges must be quiet: no region, so no fault and no take-out.
    pub fn rename(&self, from: PageIndex, to: PageIndex, length: u64) {
        for nth in 0..length {
            let page = from.plus(nth);
            if self.swap.table().peek(page) != pagetide_swap::Word::HOLE {
                self.swap.rename(page, to.plus(nth));
            }
        }
    }

    /// Takes pages that are in the program already into account: a region that becomes managed late.
    pub fn adopt(&self, range: Range<PageIndex>) -> usize {
        let mut count = 0;
        let mut page = range.start;
        while page < range.end {
            let number = page.cluster();
            let end = number.page(0).plus(CLUSTER_PAGES as u64).min(range.end);
            let present = self.memory.presence(page..end).present;
            if !present.is_empty() {
                count += self.swap.adopt_present(number, present.iter());
            }
            page = end;
        }
        self.budget.take(count as i64);
        count
    }
}

/// What stopped a transfer at the page behind those that were mapped. That no mapping is there is sure where one page
/// alone was to come from its frame: a run may only reach past the end of one.
fn met(transfer: &Transfer, mapped: Mapped) -> Option<Met> {
    match mapped.error? {
        MapError::Exists => Some(Met::Page),
        MapError::Gone if transfer.length == 1 && matches!(transfer.source, Source::Frames { .. }) => {
            Some(Met::Nothing)
        }
        _ => None,
    }
}

fn found_in(source: Source) -> Found {
    match source {
        Source::Hole => Found::Hole,
        Source::Frames { .. } => Found::Probation,
        Source::Zero => Found::Same,
        Source::Memory => Found::Pool,
        Source::Device { .. } => Found::Device,
    }
}

/// What becomes of pages for which the device has no time.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Busy {
    /// They wait on probation.
    Wait,
    /// They go back to the program.
    Refuse,
}

/// Pages that were not sent to the device.
#[derive(Default)]
struct Unsent {
    /// There is no place for them.
    refused: Vec<PageIndex>,
    /// There will be.
    deferred: Vec<PageIndex>,
}

/// Pages gathered for one write.
#[derive(Default)]
struct Batch {
    pages: Vec<(PageIndex, PageHash)>,
    /// Their bytes, in its first pages.
    buffer: Option<Buffer>,
}

/// What does not go to the pool.
#[derive(Default)]
struct Outgoing {
    batch: Batch,
    unsent: Unsent,
}

impl Batch {
    fn push(&mut self, page: PageIndex, hash: PageHash, bytes: &[u8]) {
        let buffer = self.buffer.get_or_insert_with(|| Buffer::new(WRITE_BATCH_PAGES));
        buffer[self.pages.len() * BLOCK..][..BLOCK].copy_from_slice(bytes);
        self.pages.push((page, hash));
    }

    /// The bytes of the first `count` pages, which are gone from the list already.
    fn split_off(&mut self, count: usize) -> Buffer {
        let mut all = self.buffer.take().expect("there are pages");
        if self.pages.is_empty() {
            all.truncate(count);
            return all;
        }
        let mut first = Buffer::new(count);
        let (head, rest) = (count * BLOCK, self.pages.len() * BLOCK);
        first.copy_from_slice(&all[..head]);
        all.copy_within(head..head + rest, 0);
        self.buffer = Some(all);
        first
    }
}
