//! The start of an engine and of its threads.

use super::sample::Discount;
use super::sharing::Sharing;
use super::wakeup::Wakeup;
use super::{RunningEngine, Runtime, clock, lock};
use crate::engine::{Engine, Limits, Parts};
use crate::engine_memory::EngineMemory;
use crate::group::{Access, Field, Group, OpenDevice, ProcessSlot};
use crate::injection::Injection;
use crate::mask::Mask;
use crate::object_memory::ObjectMemory;
use crate::pause::Pause;
use crate::program_memory::{PoolMemory, ProgramMemory};
use crate::readers::Readers;
use crate::recorder::{Recorder, Writer};
use crate::regions::{AtFork, Region, Regions};
use pagetide_device::ring::Member;
use pagetide_device::tiered::Tiered;
use pagetide_device::{Device, FileKind};
use pagetide_swap::balance::Balance;
use pagetide_swap::blocks::Blocks;
use pagetide_swap::cipher::Cipher;
use pagetide_swap::frontier::TIERS;
use pagetide_swap::hash::HashKey;
use pagetide_swap::swap::Keys;
use pagetide_swap::zswap::pool::{FOLIO_SPAN_BYTES, SPAN_BYTES};
use pagetide_swap::{CLUSTER_PAGES, Config, PAGE_SIZE, PageIndex, Swap};
use pagetide_sys::keeper::Objects;
use pagetide_sys::kernel::{Kernel, Writes};
use pagetide_sys::patience::{passes, patiently};
use pagetide_sys::spans::Spans;
use pagetide_sys::{engine_thread, procfs, task};
use std::ops::Range;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, AtomicU64, Ordering::SeqCst, fence};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Instant;

/// Clusters and units for whose finer words there is memory beforehand: making room must not need any.
pub(super) const RESERVED_CLUSTERS: u32 = 2;
pub(super) const RESERVED_UNITS: u32 = 32;

/// The reason for which an engine did not start.
#[derive(Debug)]
pub enum StartError {
    /// No userfaultfd can be had.
    Userfault(std::io::Error),
    /// A tier of the device cannot be opened.
    Device(pagetide_device::OpenError),
    /// There is no memory or no thread.
    Resources(std::io::Error),
}

impl std::fmt::Display for StartError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Userfault(error) => write!(
                f,
                "cannot open a userfaultfd: {error} (without privileges it takes a /dev/userfaultfd that this process, or \
                 the launcher, may open, or vm.unprivileged_userfaultfd=1)"
            ),
            Self::Device(error) => {
                write!(f, "cannot open the swap file or the ring of the remote tier: {error}")
            }
            Self::Resources(error) => write!(f, "cannot start the engine: {error}"),
        }
    }
}

impl std::error::Error for StartError {}

/// A running engine, or the reason for which there is none.
pub type Started = Result<&'static Runtime, StartError>;

/// Makes the calling thread an engine thread (a descriptor table of its own) and opens the kernel's side of the
/// program's memory. The preloaded library gives this function, and vouches for its conditions.
pub type OpenKernel = fn(Writes) -> std::io::Result<Kernel>;

/// The memory that an engine is to serve.
#[derive(Clone, Debug)]
pub enum MemorySource {
    /// That of the program in whose process the engine runs.
    Program(OpenKernel),
    /// Shared memory, of which this process is the keeper.
    Objects(Arc<Objects>),
}

/// The arguments with which an engine starts.
pub struct StartArgs {
    /// The group page of the run.
    pub group: Group,
    /// The process's slot.
    pub slot: ProcessSlot,
    /// The state that it takes over.
    pub mode: StartMode,
    /// The memory.
    pub source: MemorySource,
    /// Whether the program has opened a descriptor through which its pages may be pinned.
    pub pins: Arc<AtomicBool>,
    /// Whether other processes may share memory of this one since a fork.
    pub has_family: Arc<AtomicBool>,
    /// The lock that is held while a mapping moves.
    pub layout: Arc<Mutex<()>>,
    /// Called when the threads are there: keeps threads of the program from changing the managed ranges, and returns
    /// these. The engine registers them, and takes the pages in them into account.
    pub stop: Box<dyn FnOnce() -> Regions + Send>,
    /// Called when the engine is about to answer faults, or will not.
    pub ended: Box<dyn FnOnce(Started) + Send>,
}

impl std::fmt::Debug for StartArgs {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("StartArgs")
    }
}

/// The gate at which threads of an engine wait until there is one, or will be none.
#[derive(Debug, Default)]
struct Gate {
    pub(super) engine: Mutex<Option<Option<&'static Runtime>>>,
    pub(super) opened: Condvar,
}

impl Gate {
    pub(super) fn open(&self, engine: Option<&'static Runtime>) {
        *lock(&self.engine) = Some(engine);
        self.opened.notify_all();
    }

    pub(super) fn wait(&self) -> Option<&'static Runtime> {
        let mut engine = lock(&self.engine);
        loop {
            match *engine {
                Some(engine) => return engine,
                None => engine = pagetide_sys::wait(&self.opened, engine),
            }
        }
    }
}

/// The state that a new engine takes over.
pub enum StartMode {
    /// Nothing: the first engine of a process.
    None,
    /// A forked child's: the parent's subsystem, and the pages that are in the program.
    Forked(&'static Runtime),
}

/// Returns what the protection of pages is for: in a process that borrows, writes to what is borrowed are stopped.
fn writes(slot: ProcessSlot) -> Writes {
    if slot.get(Field::Borrowed) > 0 { Writes::Stopped } else { Writes::Noted }
}

/// Makes a call that an engine needs to start: again where the kernel lacks memory for it and the engine is a forked child's, which
/// cannot go on without.
fn if_forked<T>(mode: &StartMode, mut call: impl FnMut() -> std::io::Result<T>) -> std::io::Result<T> {
    match mode {
        StartMode::Forked(_) => patiently(call),
        StartMode::None => call(),
    }
}

impl Runtime {
    /// Does what takes a lock that a forked child could inherit, while the process has one thread.
    pub fn prepare() {
        // It begins now.
        clock();
        // Engine threads have no descriptor 2: the standard hook would say nothing.
        std::panic::set_hook(Box::new(|panic| {
            task::say(&format!("a defect of Pagetide: {panic}"));
            pagetide_sys::log!(Error, "a panic: {panic}");
            // Nobody would do what this thread has to, and a lock that it holds may be another's to wait for.
            task::kill_self();
        }));
    }

    /// Starts an engine, on a thread of its own which becomes its control thread.
    ///
    /// # Errors
    /// [`StartError::Resources`] if there is no thread for it: then no function of `args` was called.
    pub fn start(args: StartArgs) -> Result<(), StartError> {
        let control = move || {
            if let Some(runtime) = Self::build(args) {
                runtime.control();
            }
        };
        engine_thread::spawn_patiently("pagetide", Box::new(control)).map_err(StartError::Resources)
    }

    fn build(args: StartArgs) -> Option<&'static Self> {
        let StartArgs { group, slot, mode, source, pins, has_family, layout, stop, ended } = args;
        let gate = Arc::new(Gate::default());
        let memory = match source {
            MemorySource::Program(open) => if_forked(&mode, || open(writes(slot)))
                .map(|kernel| EngineMemory::Program(ProgramMemory::new(kernel, pins, layout, group, slot)))
                .map_err(StartError::Userfault),
            MemorySource::Objects(objects) => Ok(EngineMemory::Objects(ObjectMemory::new(objects, group))),
        };
        let started = memory.and_then(|memory| {
            group.join_log();
            let forked = matches!(mode, StartMode::Forked(_));
            pagetide_sys::log!(Info, "the engine starts{}", if forked { ", in a forked child" } else { "" });
            let readers = Readers::new(task::processors());
            // First, while the program goes on.
            Self::spawn_threads(&gate, readers.count(), group.setup().blocks() != 0)?;
            Self::assemble(group, slot, mode, memory, readers, has_family, stop)
        });
        match &started {
            Ok(_) => pagetide_sys::log!(Info, "the engine runs"),
            Err(error) => pagetide_sys::log!(Error, "the engine does not start: {error}"),
        }
        let runtime = started.as_ref().ok().copied();
        // Before anything leaves: whoever finds no engine and goes on to pin pages does so before the first look at
        // `pins`.
        ended(started);
        fence(SeqCst);
        gate.open(runtime);
        runtime
    }

    /// The engine itself, with which the threads that wait for it then work. `stop` gives the managed ranges, which
    /// nobody changes from then on.
    fn assemble(
        group: Group,
        slot: ProcessSlot,
        mode: StartMode,
        memory: EngineMemory,
        readers: Readers,
        has_family: Arc<AtomicBool>,
        stop: Box<dyn FnOnce() -> Regions + Send>,
    ) -> Started {
        let setup = group.setup();
        let injection = Injection::new(setup.injection);
        let OpenTiers { device, paths: tier_paths } = open_tiers(&group, slot, &mode)?;
        let device = device.map(|device| injection.device(device));
        let (swap, sharing) = match &mode {
            StartMode::Forked(parent) => inherit(parent, &group, slot),
            StartMode::None => (new_swap(&group, slot)?, Sharing::default()),
        };
        let limits = Limits::for_cap(group.cap_pages());
        let trace = open_trace(&group, slot);
        let slots = if_forked(&mode, || Ok(Kernel::slots(limits.slots())?)).map_err(StartError::Resources)?;
        let limits = if memory.is_shared() { limits.without_probation() } else { limits };
        let engine = Engine::new(Parts {
            swap,
            memory,
            slots,
            device,
            regions: Regions::default(),
            limits,
            latency: slot.latency(),
            clock,
            mask: setup.mask,
            recorder: trace.is_some().then(Recorder::default),
        });
        let runtime: &'static Self = Box::leak(Box::new(Self {
            sharing: Mutex::new(sharing),
            has_family,
            tier_paths,
            trace: Mutex::new(trace),
            ..Self::new(engine, group, slot, readers, injection)
        }));
        runtime.engine.show_on(runtime.board);
        runtime.pause.show_on(runtime.board);
        runtime.board.open();
        pagetide_sys::mapping::keep_secret(runtime.engine.swap().keys());
        runtime.take_over(stop(), mode);
        slot.set(Field::Armed, 1);
        slot.listen();
        Ok(runtime)
    }

    /// A runtime of an engine in which nothing has happened yet: it shares nothing, and writes no trace.
    fn new(
        engine: RunningEngine,
        group: Group,
        slot: ProcessSlot,
        readers: Readers,
        injection: Injection,
    ) -> Self {
        let read_ns = engine.device().map(|device| device.cost(0).read_ns as f64);
        Self {
            engine,
            pause: Pause::default(),
            group,
            slot,
            board: group.begin_board(slot, clock()),
            wakeup: Wakeup::default(),
            readers,
            faults: AtomicU64::new(0),
            control_tasks: Mutex::default(),
            unmanaged: AtomicI64::new(0),
            watched: Mutex::default(),
            metadata: AtomicI64::new(0),
            sharing: Mutex::default(),
            balance: Mutex::new(read_ns.map_or_else(Balance::default, Balance::new)),
            copies: Mutex::default(),
            worked: AtomicU64::new(0),
            waited_awake: AtomicU64::new(0),
            reclaimer: AtomicU32::new(0),
            injection,
            pins_due: AtomicU64::new(0),
            zero_due: AtomicU64::new(0),
            relief_after: AtomicU64::new(0),
            borrow_after: AtomicU64::new(0),
            busy_grant: AtomicI64::new(0),
            lifted: AtomicBool::new(false),
            in_need: AtomicBool::new(false),
            tier_paths: Default::default(),
            trace: Mutex::default(),
            discount: Mutex::new(Discount {
                pages: 0,
                next: Instant::now(),
                changed: Instant::now(),
                living: 0,
            }),
            has_family: Arc::default(),
        }
    }

    /// Registers a range in which something may have been unmapped or replaced. Returns false if so. A child's pages may be out,
    /// so where the kernel has no memory just now it is asked again, and the child ends if that does not help: without the range
    /// it would read zeroes there.
    fn registers(&self, range: Range<PageIndex>, forked: bool) -> bool {
        let register = || self.engine.memory().register(range.clone());
        match if forked { patiently(register) } else { register() } {
            Err(error) if forked && passes(&error) => {
                task::say(&format!(
                    "a forked child cannot register what it has inherited: {error} (vm.max_map_count)"
                ));
                task::kill_self();
            }
            registered => registered.is_ok(),
        }
    }

    /// Registers the regions and charges what is in them.
    fn take_over(&self, regions: Regions, mode: StartMode) {
        let forked = matches!(mode, StartMode::Forked(_));
        let mut managed = Regions::default();
        let free = self.engine.budget().free();
        // What a child does not inherit: its words are the parent's.
        let forget = |range: Range<PageIndex>| {
            if forked {
                self.engine.discard(range, |_| {});
            }
        };
        for (start, Region { end, mut attributes }) in regions.iter() {
            // Locks are not inherited: mlock(2).
            attributes.locked &= !forked;
            if forked && attributes.at_fork != AtFork::default() {
                forget(start..end);
            }
            if forked && attributes.at_fork.omit {
                continue;
            }
            if self.engine.memory().register(start..end).is_ok() {
                managed.insert(start..end, attributes);
                continue;
            }
            // A part was unmapped or replaced by a call that nobody told us of: what is left of the range is
            // found cluster by cluster.
            let mut page = start;
            while page < end {
                let next = page.cluster().page(0).plus(CLUSTER_PAGES as u64).min(end);
                if self.registers(page..next, forked) {
                    managed.insert(page..next, attributes);
                } else {
                    forget(page..next);
                }
                page = next;
            }
        }
        // Nothing has been charged yet.
        self.engine.budget().take(self.engine.budget().free() - free);
        let ranges: Vec<_> = managed.iter().map(|(start, region)| start..region.end).collect();
        *self.engine.regions.write().unwrap_or_else(PoisonError::into_inner) = managed;
        if let StartMode::Forked(parent) = mode {
            if self.slot.get(Field::Borrowed) > 0 {
                self.engine.borrow_from(&parent.engine, self.slot.index());
            }
            self.slot.set(Field::Borrowed, self.engine.borrowed() as u64);
            // The table knows them already.
            let usage = self.engine.usage();
            self.engine.budget().take(usage.resident - usage.borrowed);
        } else {
            for range in ranges {
                self.engine.adopt(range);
            }
        }
        let usage = self.engine.usage();
        self.engine.budget().take(usage.pool);
        self.engine.budget().give(self.slot.get(Field::Grant) as i64);
        self.absorb();
        self.sample();
        self.set_pool_max();
    }

    /// Starts the threads of an engine, which wait for it behind the gate.
    fn spawn_threads(gate: &Arc<Gate>, readers: usize, device: bool) -> Result<(), StartError> {
        let spawn = |name: &str, run: Box<dyn FnOnce(&'static Self) + Send>| {
            let gate = Arc::clone(gate);
            let run = Box::new(move || {
                if let Some(runtime) = gate.wait() {
                    run(runtime);
                }
            });
            engine_thread::spawn_patiently(name, run).map_err(StartError::Resources)
        };
        for number in 0..readers {
            spawn("pagetide-fault", Box::new(move |runtime| runtime.serve_faults(number)))?;
        }
        if device {
            spawn("pagetide-io", Box::new(|runtime| runtime.complete_io()))?;
        }
        spawn("pagetide-reclaim", Box::new(|runtime| runtime.reclaim()))?;
        Ok(())
    }
}

/// The device of a process.
#[derive(Default)]
struct OpenTiers {
    /// Its tiers in one, if there are any.
    device: Option<Box<dyn Device>>,
    /// The paths by which a forked child finds each tier.
    paths: [Vec<PathBuf>; TIERS],
}

/// Opens the tiers of the device.
fn open_tiers(group: &Group, slot: ProcessSlot, mode: &StartMode) -> Result<OpenTiers, StartError> {
    let setup = group.setup();
    let kind = if setup.mask.masks(Mask::NO_RING) { FileKind::Positioned } else { FileKind::Auto };
    let member = Member { index: slot.index(), tenancy: slot.get(Field::Tenancy) };
    let (mut devices, mut own_paths) = (Vec::new(), <[Vec<PathBuf>; TIERS]>::default());
    for (number, tier) in setup.tiers.iter().enumerate().filter(|(_, tier)| tier.blocks > 0) {
        let mut paths = vec![group.tier_path(number)];
        if let StartMode::Forked(parent) = mode {
            // The launcher is gone, or `/proc` is another one.
            paths.extend_from_slice(&parent.tier_paths[number]);
        }
        let opened = tier.open(&paths, Access { kind, member });
        let OpenDevice { device, number: fd } = opened.map_err(StartError::Device)?;
        pagetide_sys::log!(Info, "the {} is open, {} blocks at most", device.told(0).name, tier.blocks);
        let task = format!("{}/task/{}", std::process::id(), task::tid());
        let seen = procfs::own_task().unwrap_or_else(|| task.clone());
        own_paths[number] = [seen, task].map(|task| format!("/proc/{task}/fd/{fd}").into()).into();
        devices.push(device);
    }
    let device = match devices.len() {
        0 | 1 => devices.pop(),
        _ => Some(Box::new(Tiered::new(devices).map_err(StartError::Resources)?) as Box<dyn Device>),
    };
    Ok(OpenTiers { device, paths: own_paths })
}

/// Makes the swap subsystem of a forked child of its parent's, and notes what the child shares with the parent.
fn inherit(parent: &Runtime, group: &Group, slot: ProcessSlot) -> (Swap<PoolMemory>, Sharing) {
    parent.engine.abandon_staging();
    let swap = parent.engine.swap().for_child(group.held(slot), slot.counters());
    let pages = swap.zswap().frozen_pages() as i64;
    let inherited = Some((parent.slot.index(), parent.slot.get(Field::Tenancy), pages));
    (swap, Sharing { inherited, ..Sharing::default() })
}

/// Makes the swap subsystem of the first engine of a process.
fn new_swap(group: &Group, slot: ProcessSlot) -> Result<Swap<PoolMemory>, StartError> {
    let setup = group.setup();
    let blocks = match setup.blocks() {
        0 => Blocks::none(),
        _ => Blocks::new(group.block_counts(), group.held(slot), group.frontiers()),
    };
    let config = Config {
        zpool: setup.zpool,
        switches: group.knobs().switches,
        reclaim: setup.reclaim,
        readahead: setup.readahead,
        page_cluster: setup.page_cluster,
        cap_pages: group.cap_pages(),
    };
    // For any cap that the run may come to have; where address space is limited the pool has to do with a part of it.
    let expected = group.cap_pages() as usize * PAGE_SIZE;
    let bytes = match pagetide_sys::mapping::room() {
        usize::MAX => pagetide_sys::mapping::machine_bytes(),
        room => expected.min(room / 8),
    };
    let spans = Spans::new(bytes, expected, &[SPAN_BYTES, FOLIO_SPAN_BYTES, PAGE_SIZE])
        .map_err(|error| StartError::Resources(error.into()))?;
    let [a, b, ..] = pagetide_sys::random::words();
    let keys = Keys {
        hash: HashKey::new(pagetide_sys::random::words()),
        cipher: setup.encrypt.then(|| Cipher::new([a, b])),
    };
    let memory = PoolMemory { spans, injection: Arc::new(Injection::new(setup.injection)) };
    Ok(Swap::new(memory, blocks, keys, config, slot.counters()))
}

/// Opens the run's trace, if what happens is to be written down.
fn open_trace(group: &Group, slot: ProcessSlot) -> Option<Writer> {
    let path = group.trace_path()?;
    match Writer::open(&path, slot.tenant()) {
        Ok(writer) => Some(writer),
        Err(error) => {
            task::say(&format!("cannot open the trace: {error}; this process is not in it (--trace)"));
            None
        }
    }
}
