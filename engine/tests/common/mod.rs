//! What the tests of the engine share: contents, chance, and a device that is seen from both sides.
#![allow(dead_code, reason = "each test uses a part of it")]

use pagetide::engine::Engine;
use pagetide::fake::{Bytes, FakeMemory};
use pagetide::memory::Memory;
use pagetide::regions::{Access, Attributes, Charging};
use pagetide_device::{Completion, Cost, Device, Request};
use pagetide_swap::PageIndex;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

pub(crate) struct Random(pub u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        // Seeds that follow each other start far apart.
        let mut this = Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        (0..4).for_each(|_| _ = this.next());
        this
    }
    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }
    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        (self.next() >> 11) % limit
    }
    pub(crate) fn one_in(&mut self, count: u64) -> bool {
        self.below(count) == 0
    }
}

/// A page whose contents follow from `stamp`: zero, one word repeated, text, digits that only Zstandard makes smaller, or
/// incompressible.
pub(crate) fn compose(stamp: u64) -> Box<Bytes> {
    let mut page = Box::new([0; 4096]);
    let mut random = Random::new(stamp);
    match stamp % 8 {
        0 => {}
        1 => page.as_chunks_mut::<4>().0.iter_mut().for_each(|word| *word = (stamp as u32).to_ne_bytes()),
        2..=4 => {
            for (nth, word) in page.as_chunks_mut::<8>().0.iter_mut().enumerate() {
                *word = if nth % 8 == 0 { random.next().to_ne_bytes() } else { *b"the page" };
            }
        }
        5 => page.as_chunks_mut::<8>().0.iter_mut().for_each(|word| {
            *word = (random.next() & 0x0f0f_0f0f_0f0f_0f0f | 0x3030_3030_3030_3030).to_ne_bytes();
        }),
        _ => page.as_chunks_mut::<8>().0.iter_mut().for_each(|word| *word = random.next().to_ne_bytes()),
    }
    page
}

/// A page that no codec makes smaller.
pub(crate) fn noise(stamp: u64) -> Box<Bytes> {
    compose(stamp * 8 + 7)
}

/// A page that compresses to a part of itself.
pub(crate) fn prose(stamp: u64) -> Box<Bytes> {
    compose(stamp * 8 + 2)
}

pub(crate) fn page(number: u64) -> PageIndex {
    PageIndex(number)
}

pub(crate) fn pages(range: Range<u64>) -> Range<PageIndex> {
    PageIndex(range.start)..PageIndex(range.end)
}

pub(crate) fn manage<M: Memory>(engine: &Engine<M>, range: Range<u64>, access: Access) {
    let attributes = Attributes::new(access, Charging::ByMapping);
    engine.regions.write().unwrap().insert(pages(range), attributes);
}

/// From now on this is a forked child, which has borrowed what was in memory. Nothing is under way meanwhile.
pub(crate) fn borrow(engine: &Engine<FakeMemory>) {
    engine.pay_all();
    engine.memory().share();
    engine.end_lending();
    engine.lend(0, &[]);
    let lent = engine.lent();
    engine.borrow_from(engine, 0);
    assert_eq!(engine.borrowed(), lent);
    // A child was never charged for it.
    engine.budget().give(lent);
}

/// All that was granted is in use or free.
pub(crate) fn balances<M: Memory>(engine: &Engine<M>, granted: i64) {
    engine.charge_pool();
    let usage = engine.usage();
    let used = usage.resident - usage.borrowed + usage.frames + usage.pool;
    assert_eq!(engine.budget().free() + used, granted, "{usage:?}");
}

/// A device that the test and the engine both hold. It refuses every so many requests, as a full queue does.
#[derive(Debug)]
pub(crate) struct Shared<D> {
    pub device: Arc<D>,
    pub refuse_every: u64,
    count: AtomicU64,
}

impl<D: Device> Shared<D> {
    pub(crate) fn new(device: &Arc<D>) -> Box<Self> {
        Self::refusing(device, 0)
    }
    pub(crate) fn refusing(device: &Arc<D>, refuse_every: u64) -> Box<Self> {
        Box::new(Self { device: Arc::clone(device), refuse_every, count: AtomicU64::new(0) })
    }
}

impl<D: Device> Device for Shared<D> {
    fn blocks(&self) -> u64 {
        self.device.blocks()
    }
    fn cost(&self, block: u64) -> Cost {
        self.device.cost(block)
    }
    fn submit(&self, request: Request) -> Result<(), Request> {
        let refuses = self.refuse_every != 0
            && (self.count.fetch_add(1, Relaxed) + 1).is_multiple_of(self.refuse_every);
        if refuses { Err(request) } else { self.device.submit(request) }
    }
    fn wait(&self, into: &mut Vec<Completion>) {
        self.device.wait(into);
    }
    fn nudge(&self) {
        self.device.nudge();
    }
}
