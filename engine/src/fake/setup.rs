//! An engine on a fake memory, as tests make it.

use super::FakeMemory;
use super::spans::HeapSpans;
use crate::engine::{Engine, Limits, Parts};
use crate::latency::{self, Latency};
use crate::mask::Mask;
use crate::regions::Regions;
use pagetide_device::Device;
use pagetide_swap::blocks::Blocks;
use pagetide_swap::cipher::Cipher;
use pagetide_swap::hash::HashKey;
use pagetide_swap::swap::Keys;
use pagetide_swap::{Config, Counter, Counters, Swap};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// A clock that counts how often it was read.
pub fn clock() -> u64 {
    static NOW: AtomicU64 = AtomicU64::new(0);
    NOW.fetch_add(1000, Relaxed)
}

/// What an engine on a fake memory is made of.
#[derive(Debug)]
pub struct Setup {
    /// Slots of staging.
    pub slots: usize,
    /// Limits.
    pub limits: Limits,
    /// Pages that the pool may take.
    pub pool_pages_max: usize,
    /// Pages that the pool can get.
    pub span_pages: usize,
    /// Settings of the swap subsystem.
    pub config: Config,
    /// The device.
    pub device: Option<Box<dyn Device>>,
    /// What is masked.
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
            mask: Mask::default(),
        }
    }
}

/// An engine on a fake memory, with nothing to spend and no region. What it shares with no other process
/// is never freed: for tests.
pub fn engine(setup: Setup) -> Engine<FakeMemory> {
    let Setup { slots, limits, pool_pages_max, span_pages, config, device, mask } = setup;
    let memory = FakeMemory::default();
    let count = device.as_ref().map_or(0, |device| device.blocks()) as usize;
    let swap = Swap::new(
        HeapSpans::new(span_pages),
        Blocks::private(count),
        Keys { hash: HashKey::new([1, 2, 3, 4]), cipher: Some(Cipher::new([5, 6])) },
        config,
        Counters::new(words(Counter::ALL.len())),
    );
    swap.zswap().set_pages_max(pool_pages_max);
    Engine::new(Parts {
        swap,
        slots: memory.slots(slots),
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
