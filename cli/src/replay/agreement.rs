//! The same accesses give the same counters through a replay and through the engine.
//!
//! The engine runs on its fake memory, driven by one thread, with a device that has answered by the next step. What the
//! replay does not know is switched off there: frames that are kept for runs, and copies out of frames that stay for a
//! while. The cap is so small that no frames are kept for runs ([`MEMORY`]).

use super::events::{Said, Step, Steps};
use super::machine::{TICK_FAULTS, replay};
use super::setting::{Outcome, Setting};
use pagetide::engine::{Engine, Limits, Progress, Workspace};
use pagetide::fake::{self, Bytes, FakeMemory, Miss};
use pagetide::mask::Mask;
use pagetide::regions::{self, Attributes, Charging};
use pagetide_device::ram::Ram;
use pagetide_page::{PAGE_SIZE, PageIndex};
use pagetide_swap::balance::Balance;
use pagetide_swap::{Config, Counter, Place, Readahead, Reclaim, Scratch, Stored, Switches};
use std::collections::HashMap;

/// Pages of memory: 63 of them are kept free, and a donor of frames has 64.
const MEMORY: u64 = 63 * 64;
/// What the pool takes of it at most.
const POOL_MAX: f64 = 0.5;
/// Counters of time and of threads, of which a replay has none.
const NOT_REPLAYED: [Counter; 6] = [
    Counter::parked_ns,
    Counter::pswpin_ns,
    Counter::rested_ns,
    Counter::stalled_ns,
    Counter::stalled_threads,
    Counter::stalled_ticks,
];

/// Numbers that are the same for the same seed.
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        // SplitMix64 (Steele, Lea and Flood 2014).
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (z ^ (z >> 31)) % end
    }

    /// A page of which so many bytes are noise.
    fn page(&mut self, noise: usize) -> Box<Bytes> {
        let mut bytes = Box::new([0; PAGE_SIZE]);
        bytes[..noise].iter_mut().for_each(|byte| *byte = self.below(256) as u8);
        bytes
    }
}

/// An access: a read, or a write of new contents.
type Access = (PageIndex, Option<Box<Bytes>>);

/// Scans of all pages, and accesses of which most are to few pages. A part is written to once: pages of a folio are all
/// zero, or none is, for what a zero page takes in a folio of others a trace does not tell.
fn accesses(pages: u64, count: usize, random: &mut Random) -> Vec<Access> {
    let mut all = Vec::with_capacity(count);
    let mut touched = vec![false; pages as usize];
    while all.len() < count {
        let scan = random.below(4) == 0;
        let (start, length) = (random.below(pages), 1 + random.below(2000));
        for nth in 0..length {
            let page = match (scan, random.below(8)) {
                (true, _) => (start + nth) % pages,
                (false, 0) => random.below(pages),
                (false, _) => random.below(pages / 8),
            };
            let noise = [0, 60, 500, 1800, 3000, PAGE_SIZE][(page / 16 % 6) as usize];
            let first = !std::mem::replace(&mut touched[page as usize], true);
            let write = first || (page % 5 > 0 && random.below(3) == 0);
            all.push((PageIndex(page), write.then(|| random.page(noise))));
        }
    }
    all
}

/// The engine, driven by hand.
struct Driven {
    engine: Engine<FakeMemory>,
    work: Workspace,
    balance: Balance,
    metadata: i64,
    faults: u64,
}

impl Driven {
    fn new(pages: u64, setting: Setting) -> Self {
        let device = (setting.device_ns > 0.0).then(|| Ram::new(2 * pages + 4096));
        let limits = Limits::for_cap(setting.memory);
        let engine = fake::engine(fake::Setup {
            slots: limits.slots().into(),
            limits,
            pool_pages_max: 0,
            config: setting.config,
            device: device.map(|device| Box::new(device) as _),
            mask: Mask::NO_COPY,
            ..fake::Setup::default()
        });
        engine.budget().give(setting.memory as i64);
        engine.regions.write().unwrap().insert(
            PageIndex(0)..PageIndex(pages),
            Attributes::new(regions::Access::Write, Charging::ByMapping),
        );
        let mut this =
            Self { engine, work: Workspace::default(), balance: Balance::default(), metadata: 0, faults: 0 };
        this.tick(setting);
        this
    }

    fn tick(&mut self, setting: Setting) {
        let swap = self.engine.swap();
        let metadata = swap.metadata_bytes().div_ceil(PAGE_SIZE) as i64;
        self.engine.budget().take(metadata - std::mem::replace(&mut self.metadata, metadata));
        swap.observe();
        if setting.device_ns > 0.0 {
            self.balance.fixed(setting.pool_max);
        }
        let (memory, room) = (setting.memory as f64, setting.memory * 7 / 8);
        swap.zswap().set_pages_max(((memory * setting.pool_max) as usize).min(room as usize));
        self.engine.set_pool_pressure(self.balance.pressure());
    }

    /// Ends all requests.
    fn complete(&mut self) {
        let mut done = Vec::new();
        while self.engine.requests() > 0 {
            self.engine.device().expect("it has the requests").wait(&mut done);
            self.engine.complete(&mut done, &mut self.work);
        }
    }

    fn reclaim(&mut self) -> bool {
        let mut in_vain = 0;
        while self.engine.budget().free() < self.engine.limits().high {
            let progress = self.engine.reclaim(&mut self.work);
            self.complete();
            in_vain = if matches!(progress, Progress::Freed(_)) { 0 } else { in_vain + 1 };
            if progress == Progress::Nothing || in_vain > self.engine.swap().queue().len() + 64 {
                return false;
            }
        }
        true
    }

    fn touch(&self, access: &Access) -> Result<(), Miss> {
        match access {
            (page, Some(bytes)) => self.engine.memory().write(*page, bytes),
            (page, None) => self.engine.memory().read(*page).map(drop),
        }
    }

    fn access(&mut self, access: &Access, setting: Setting) {
        let Err(miss) = self.touch(access) else { return };
        assert!(matches!(miss, Miss::Fault(_)), "{miss:?}");
        self.engine.fault(access.0, access.1.is_some(), 0, &mut self.work);
        self.complete();
        while self.engine.waiting() > 0 {
            if self.reclaim() {
                self.engine.retry_waiting(&mut self.work);
            } else {
                self.engine.overdraw(&mut self.work);
            }
            self.complete();
        }
        self.touch(access).expect("the fault was answered");
        self.faults += 1;
        if self.faults.is_multiple_of(TICK_FAULTS) {
            self.tick(setting);
        }
        if self.engine.is_short() {
            self.reclaim();
        }
    }
}

/// What contents compress to, 0 for a repeated word.
fn compressed(bytes: &Bytes, engine: &Engine<FakeMemory>, scratch: &mut Scratch) -> u16 {
    let zswap = engine.swap().zswap();
    zswap.set_pages_max(64);
    match engine.swap().store(bytes, None, false, scratch) {
        Stored::New(Place::Same(_)) => 0,
        Stored::New(Place::Pool(handle)) => {
            let length = zswap.length(handle).unwrap();
            zswap.free(handle);
            length as u16
        }
        Stored::Refused(..) => PAGE_SIZE as u16,
        other => unreachable!("nothing is kept: {other:?}"),
    }
}

/// The accesses as a replay has them.
fn steps(pages: u64, accesses: &[Access]) -> Steps {
    let ruler = fake::engine(fake::Setup::default());
    let mut scratch = Scratch::default();
    let mut known = HashMap::new();
    let mut steps = Vec::new();
    for (page, contents) in accesses {
        let number = page.0 as u32;
        if let Some(bytes) = contents {
            let bytes_when_stored =
                *known.entry(bytes.as_slice()).or_insert_with(|| compressed(bytes, &ruler, &mut scratch));
            steps.push(Step::new(number, Said::Size(bytes_when_stored)));
        }
        steps.push(Step::new(number, Said::Access { write: contents.is_some() }));
    }
    let sizes = vec![0; pages as usize];
    Steps { steps, pages: pages as u32, footprint: pages as usize, recorded_cap: None, sizes, damage: None }
}

fn differences(outcome: &Outcome, engine: &Engine<FakeMemory>) -> Vec<String> {
    let counters = engine.swap().counters();
    let replayed = Counter::ALL.iter().filter(|counter| !NOT_REPLAYED.contains(counter));
    replayed
        .map(|&counter| (counter.name(), outcome.get(counter), counters.get(counter)))
        .filter(|(_, replayed, engine)| replayed != engine)
        .map(|(name, replayed, engine)| format!("{name}: {replayed} replayed, {engine} by the engine"))
        .collect()
}

#[test]
fn a_replay_counts_what_the_engine_does() {
    const PAGES: u64 = 16 * 512;
    let configs = [
        Config::for_cap(MEMORY),
        Config { reclaim: Reclaim::Fifo, ..Config::for_cap(MEMORY) },
        Config { readahead: Readahead::None, page_cluster: 0, ..Config::for_cap(MEMORY) },
    ];
    for (seed, (config, device_ns)) in
        (1..).zip(configs.into_iter().flat_map(|config| [(config, 80_000.0), (config, 0.0)]))
    {
        let switches = Switches { fixed_share: true, ..config.switches };
        let config = Config { switches, ..config };
        let setting =
            Setting { memory: MEMORY, config, pool_max: POOL_MAX, device_ns, device_page_ns: 2_000.0 };
        let accesses = accesses(PAGES, 120_000, &mut Random(seed));
        let outcome = replay(&steps(PAGES, &accesses), setting);
        let mut driven = Driven::new(PAGES, setting);
        accesses.iter().for_each(|access| driven.access(access, setting));
        let differ = differences(&outcome, &driven.engine);
        assert!(differ.is_empty(), "seed {seed}, {setting:?}: {differ:#?}");
        let left = outcome.get(Counter::pgsteal);
        assert!(left > MEMORY, "{left} pages left");
        println!("seed {seed}: {left} left, {:?}", outcome.counters);
    }
}
