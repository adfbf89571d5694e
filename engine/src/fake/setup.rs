//! An engine on a fake memory, with settings that tests choose.

use super::spans::HeapSpans;
use super::{FakeMemory, FakeObjects, FakeSlot};
use crate::engine::{Engine, Limits, Parts};
use crate::latency::{self, Latency};
use crate::mask::Mask;
use crate::memory::Memory;
use crate::regions::Regions;
use pagetide_device::Device;
use pagetide_swap::blocks::Blocks;
use pagetide_swap::cipher::Cipher;
use pagetide_swap::hash::HashKey;
use pagetide_swap::swap::Keys;
use pagetide_swap::{Config, Counters, Swap};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Returns the time of a clock that advances by 1 µs whenever it is read.
pub fn clock() -> u64 {
    static NOW: AtomicU64 = AtomicU64::new(0);
    NOW.fetch_add(1000, Relaxed)
}

/// The settings of an engine on a fake memory.
#[derive(Debug)]
pub struct Setup {
    /// The number of slots of staging.
    pub slots: usize,
    /// The limits of probation and of free pages.
    pub limits: Limits,
    /// The number of pages that the pool may take.
    pub pool_pages_max: usize,
    /// The number of pages that there are for the pool.
    pub span_pages: usize,
    /// Settings of the swap subsystem.
    pub config: Config,
    /// The device, if there is one.
    pub device: Option<Box<dyn Device>>,
    /// Blocks of each tier of the device; none says that it is one.
    pub tiers: Vec<usize>,
    /// The ways of moving pages that are masked.
    pub mask: Mask,
}

impl Default for Setup {
    fn default() -> Self {
        Self {
            slots: 6,
            limits: Limits { low: 16, high: 32, probation: 1 },
            pool_pages_max: 64,
            span_pages: 1 << 16,
            config: Config::for_cap(4096),
            device: None,
            tiers: Vec::new(),
            mask: Mask::default(),
        }
    }
}

/// Returns an engine on a fake memory, with an empty budget and no region. For tests: its counters are never freed.
///
/// ```
/// use pagetide::engine::Workspace;
/// use pagetide::fake::{self, Miss, Setup};
/// use pagetide::regions::{Access, Attributes, Charging};
/// use pagetide_swap::PageIndex;
///
/// let engine = fake::engine(Setup::default());
/// engine.budget().give(100);
/// let (page, end) = (PageIndex(512), PageIndex(600));
/// engine.regions.write().unwrap().insert(page..end, Attributes::new(Access::Write, Charging::ByMapping));
///
/// // The program touches a page, and the engine answers the fault with a zero page.
/// let Err(Miss::Fault(token)) = engine.memory().read(page) else { panic!("it is there already") };
/// engine.fault(page, false, fake::clock(), &mut Workspace::default());
/// assert!(engine.memory().is_woken(token));
/// assert_eq!(engine.memory().read(page).map(|bytes| bytes[0]), Ok(0));
/// assert_eq!((engine.usage().resident, engine.budget().free()), (1, 99));
/// ```
pub fn engine(setup: Setup) -> Engine<FakeMemory> {
    let memory = FakeMemory::default();
    let slots = memory.slots(setup.slots);
    engine_of(memory, slots, setup)
}

/// Returns the engine of a keeper on fake objects, as [`engine`] does of a program.
pub fn keeper(setup: Setup) -> Engine<FakeObjects> {
    let memory = FakeObjects::default();
    let slots = memory.slots(setup.slots);
    engine_of(memory, slots, setup)
}

fn engine_of<M>(memory: M, slots: Vec<FakeSlot>, setup: Setup) -> Engine<M>
where
    M: Memory<Slot = FakeSlot, Spans = HeapSpans>,
{
    let Setup { limits, pool_pages_max, span_pages, config, device, mut tiers, mask, .. } = setup;
    if tiers.is_empty() {
        tiers.push(device.as_ref().map_or(0, |device| device.blocks()) as usize);
    }
    let swap = Swap::new(
        HeapSpans::new(span_pages),
        Blocks::private_tiers(&tiers),
        Keys { hash: HashKey::new([1, 2, 3, 4]), cipher: Some(Cipher::new([5, 6])) },
        config,
        Counters::new(words(Counters::CELLS)),
    );
    swap.zswap().set_pages_max(pool_pages_max);
    Engine::new(Parts {
        swap,
        slots,
        memory,
        device,
        regions: Regions::default(),
        limits,
        latency: Latency::new(words(latency::WORDS)),
        clock,
        mask,
        recorder: None,
    })
}

fn words(count: usize) -> &'static [AtomicU64] {
    Vec::leak((0..count).map(|_| AtomicU64::new(0)).collect())
}
