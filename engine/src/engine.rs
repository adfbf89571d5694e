//! The engine of one process: serves faults, takes pages out, stores them, talks to the device.
//!
//! It owns staging, the budget and requests under way; the swap crate owns every decision about a page's
//! word. No method waits for I/O: a fault whose page is on the device, or for which there is no room, is
//! left parked, and the thread that brings the page or makes the room answers it.
//!
//! Lock order: regions → cluster → slot → lists of probation, donors, requests, waiting faults (leaves). The cluster
//! lock is held across a take-out (about 10 µs, and a few more for each run of hot pages that is put back), never across a
//! codec or I/O.

mod announced;
mod bring_in;
mod census;
mod dump;
mod fault;
mod full;
mod lending;
mod limits;
mod moves;
mod parts;
mod program;
mod protection;
mod reclaim;
mod requests;
mod staging;
mod store;
mod swapoff;
mod takeout;
mod tiers;
mod wait_list;
mod waits;
mod write;
mod writeback;
mod zero_page;

pub use census::Round;
pub use lending::Ledger;
pub use limits::Limits;
pub use pagetide_swap::reclaimer::Progress;
pub use swapoff::Swapoff;
pub use waits::TICK_NS;

use crate::budget::Budget;
use crate::latency::Latency;
use crate::mask::Mask;
use crate::memory::Memory;
use crate::recorder::Recorder;
use crate::regions::Regions;
use lending::Lending;
use limits::Watermarks;
use moves::Moves;
use pagetide_device::{Buffer, Device};
use pagetide_swap::frontier::TIERS;
use pagetide_swap::probation::Probation;
use pagetide_swap::reclaimer::Reclaimer;
use pagetide_swap::streams::Streams;
use pagetide_swap::trace::Event;
use pagetide_swap::{Counter, Handle, PAGE_SIZE, PageIndex, Place, Scratch, StoreError, Stored, Swap};
use protection::Protection;
use requests::Requests;
use staging::Staging;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError, RwLock};
use wait_list::WaitList;
use zero_page::ZeroPages;

/// The time in nanoseconds that storing a page is taken to cost before any store was measured.
const STORE_NS_FIRST: u64 = 5_000;
/// The number of pages that must go to and from the device between two looks for buffers to keep their memory.
const BUSY_PAGES: u64 = 256;

/// A source of time in nanoseconds: the kernel's, or a test's.
pub type Clock = fn() -> u64;

/// The memory in which a thread of the engine works: buffers for pages, codecs and lists. Each thread has one.
#[derive(Debug)]
pub struct Workspace {
    scratch: Scratch,
    pages: Buffer,
    entries: Vec<(PageIndex, Handle)>,
}

impl Default for Workspace {
    fn default() -> Self {
        Self { scratch: Scratch::default(), pages: Buffer::new(1), entries: Vec::with_capacity(256) }
    }
}

impl Workspace {
    /// Makes room for a window of `pages` pages. It grows by need: most threads of most processes read single pages.
    fn make_room(&mut self, pages: usize) {
        if self.pages.len() < pages * PAGE_SIZE {
            self.pages = Buffer::new(pages.next_power_of_two());
        }
    }
}

/// The memory that an engine accounts for, in pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Usage {
    /// Pages in the program.
    pub resident: i64,
    /// Those of them that are borrowed since a fork, and not charged.
    pub borrowed: i64,
    /// Pages in frames: on probation, or kept for runs that come in.
    pub frames: i64,
    /// Pages of the pool that are not shared by fork.
    pub pool: i64,
    /// Pages of the pool that are shared by fork.
    pub pool_shared: i64,
    /// Pages of tables, hashes and the pool's index.
    pub metadata: i64,
}

/// The reasons for which pages do not go to the device.
#[derive(Debug, Default)]
struct Outage {
    /// Of each tier.
    tiers: [tiers::TierOutage; TIERS],
    /// Whether a write to each tier has failed.
    failed: AtomicBool,
    /// Whether the device is, or goes, out of use.
    off: AtomicBool,
    leaving: Mutex<swapoff::Leaving>,
    /// Pages for which there was no place since reclaim last looked.
    refused: AtomicUsize,
    /// How often it was looked whether the device takes what it had refused.
    completions: AtomicU64,
}

/// Measurements of the engine.
struct Meters {
    clock: Clock,
    latency: Latency,
    waits: waits::Waits,
    /// Faults parked for room or for the device.
    stalled: AtomicI64,
    /// Nanoseconds that reads have taken.
    read_ns: AtomicU64,
    /// The time that it takes to store a page anew, of late, in nanoseconds.
    store_ns: AtomicU64,
}

/// The progress of giving the program pages of its own in place of those that it shares since a fork.
#[derive(Debug, Default)]
struct Unsharing {
    /// The thread that does so just now, and may fault; 0 if there is none.
    thread: AtomicU32,
    /// One more than the cluster that was done last.
    last: AtomicU64,
}

/// The engine of one process.
pub struct Engine<M: Memory> {
    swap: Swap<M::Spans>,
    memory: M,
    device: Option<Box<dyn Device>>,
    /// The program's managed memory. Writers are the program's own mapping calls.
    pub regions: RwLock<Regions>,
    budget: Budget,
    watermarks: Watermarks,
    staging: Staging<M::Slot>,
    reclaimer: Reclaimer,
    direct: reclaim::DirectStores,
    requests: Requests,
    parked: WaitList,
    streams: Streams,
    outage: Outage,
    meters: Meters,
    protection: Protection,
    unsharing: Unsharing,
    lending: Lending,
    mask: Mask,
    recorder: Option<Recorder>,
    /// The pages that were charged for the pool at the last look.
    pool_charged: AtomicI64,
    /// Whether copies of pages that come in from the pool stay there.
    copies_kept: AtomicBool,
    zero_pages: ZeroPages,
    moves: Moves,
    /// The number of clusters that should leave however much room there is.
    hastened: AtomicUsize,
    /// Pages that had gone to and from the device when buffers were looked at last.
    buffers_moved: AtomicU64,
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

/// The parts of which an engine is made.
#[derive(Debug)]
pub struct Parts<M: Memory> {
    /// The swap subsystem.
    pub swap: Swap<M::Spans>,
    /// The program's memory.
    pub memory: M,
    /// The slots of staging, all empty.
    pub slots: Vec<M::Slot>,
    /// The device, if there is one.
    pub device: Option<Box<dyn Device>>,
    /// The managed ranges.
    pub regions: Regions,
    /// The limits of probation and of free pages.
    pub limits: Limits,
    /// The histogram in which latencies of faults are counted.
    pub latency: Latency,
    /// The clock, in nanoseconds.
    pub clock: Clock,
    /// The ways of moving pages that are masked.
    pub mask: Mask,
    /// The recorder of the run's trace, if there is one.
    pub recorder: Option<Recorder>,
}

impl<M: Memory> Engine<M> {
    /// Returns an engine whose budget is empty: give it some pages before it serves faults.
    pub fn new(parts: Parts<M>) -> Self {
        let Parts { swap, memory, slots, device, regions, limits, latency, clock, mask, recorder } = parts;
        let pool_charged = AtomicI64::new(swap.zswap().own_pages() as i64);
        let meters = Meters {
            clock,
            latency,
            waits: waits::Waits::new(),
            stalled: AtomicI64::new(0),
            read_ns: AtomicU64::new(0),
            store_ns: AtomicU64::new(STORE_NS_FIRST),
        };
        let streams = Streams::new(memory.scans());
        let second_tier = (swap.blocks().tiers() > 1).then(|| swap.blocks().first_of(1));
        Self {
            swap,
            memory,
            device,
            regions: RwLock::new(regions),
            budget: Budget::default(),
            watermarks: Watermarks::new(limits),
            reclaimer: Reclaimer::new(slots.len() as u16, limits.probation),
            staging: Staging::new(slots),
            direct: reclaim::DirectStores::default(),
            requests: Requests::new(second_tier),
            parked: WaitList::new(),
            streams,
            outage: Outage::default(),
            meters,
            protection: Protection::default(),
            unsharing: Unsharing::default(),
            lending: Lending::default(),
            mask,
            recorder,
            pool_charged,
            copies_kept: AtomicBool::new(true),
            zero_pages: ZeroPages::default(),
            moves: Moves::default(),
            hastened: AtomicUsize::new(0),
            buffers_moved: AtomicU64::new(0),
        }
    }

    /// Returns the swap subsystem.
    pub fn swap(&self) -> &Swap<M::Spans> {
        &self.swap
    }
    /// Returns the program's memory.
    pub fn memory(&self) -> &M {
        &self.memory
    }
    /// Returns the device, if there is one.
    pub fn device(&self) -> Option<&dyn Device> {
        self.device.as_deref()
    }
    /// Returns the budget: the pages that may still be used.
    pub fn budget(&self) -> &Budget {
        &self.budget
    }
    /// Has buffers for I/O keep their memory while many pages go to and from the device, and give it back otherwise. To
    /// be called a few times a second.
    pub fn size_buffers(&self) {
        let counters = self.swap.counters();
        let moved = counters.get(Counter::pswpin) + counters.get(Counter::pswpout);
        let busy = moved.saturating_sub(self.buffers_moved.swap(moved, Relaxed)) >= BUSY_PAGES;
        pagetide_device::keep_buffers(if busy { self.watermarks.high() as usize * PAGE_SIZE } else { 0 });
    }
    /// Returns the number of faults that are parked, for room or for the device.
    pub fn stalled(&self) -> i64 {
        self.meters.stalled.load(Relaxed)
    }
    /// Returns the time that it takes to store a page anew, of late, in nanoseconds.
    pub fn store_ns(&self) -> u64 {
        self.meters.store_ns.load(Relaxed)
    }
    /// Sets whether copies of pages that come in from the pool stay there.
    pub fn keep_copies(&self, keep: bool) {
        self.copies_kept.store(keep, Relaxed);
    }
    /// Returns the time that reads from the device have taken so far, in nanoseconds.
    pub fn read_ns(&self) -> u64 {
        self.meters.read_ns.load(Relaxed)
    }
    /// Returns the number of requests to the device that are under way.
    pub fn requests(&self) -> usize {
        self.requests.count()
    }
    /// Returns the number of faults that wait for room.
    pub fn waiting(&self) -> usize {
        self.parked.waiting()
    }
    /// Returns the number of faults for which the device had too much to do.
    pub fn waiting_for_device(&self) -> usize {
        self.parked.refused()
    }

    /// Returns whether there are clusters that should leave however much room there is.
    pub fn is_hastened(&self) -> bool {
        self.hastened.load(Relaxed) > 0
    }

    /// Makes the clusters of a range the next to leave. With `at_once` they leave although there is room.
    pub fn hasten(&self, range: Range<PageIndex>, at_once: bool) {
        let count = self.swap.hasten(range);
        if at_once {
            self.hastened.fetch_add(count, Relaxed);
        }
    }

    /// Returns the memory that is in use.
    pub fn usage(&self) -> Usage {
        Usage {
            resident: self.swap.present(),
            borrowed: self.borrowed(),
            frames: self.staging.frames(),
            pool: self.swap.zswap().own_pages() as i64,
            pool_shared: self.swap.zswap().frozen_pages() as i64,
            metadata: self.swap.metadata_bytes().div_ceil(PAGE_SIZE) as i64,
        }
    }

    fn now(&self) -> u64 {
        (self.meters.clock)()
    }

    /// Returns the recorder of the run's trace, if there is one.
    pub fn recorder(&self) -> Option<&Recorder> {
        self.recorder.as_ref()
    }

    fn note(&self, event: impl FnOnce() -> Event) {
        if let Some(recorder) = &self.recorder {
            recorder.note(event());
        }
    }

    /// Notes in the trace how many bytes a page takes that was stored.
    fn note_stored(&self, page: PageIndex, stored: Stored) {
        if self.recorder.is_none() {
            return;
        }
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

    fn count(&self, counter: Counter, count: usize) {
        self.swap.counters().add(counter, count as u64);
    }

    /// Charges the budget for the pages by which the pool has grown since the last call, or gives it those by which the
    /// pool has shrunk.
    pub fn charge_pool(&self) {
        let now = self.swap.zswap().own_pages() as i64;
        let before = self.pool_charged.swap(now, Relaxed);
        self.budget.take(now - before);
    }

    /// Returns the slots with pages on probation.
    fn probation(&self) -> &Probation {
        &self.reclaimer.probation
    }
}
