//! The engine's threads.
//!
//! | thread | waits for | does |
//! |---|---|---|
//! | control | requests of the program's threads, other processes, 10 ms | registers ranges, samples memory, publishes |
//! | fault (one a processor, at most four) | userfaultfd | answers faults |
//! | reclaim | the budget running low | takes pages out, stores them, answers faults that waited for room |
//! | io | the device | ends requests |
//!
//! They are guests in the program: all signals blocked, a descriptor table of their own, and no memory
//! from the program's `malloc`.

use crate::engine::{Engine, Limits, Parts, Progress, Swapoff, Workspace};
use crate::group::{Field, Group, Knobs, OffState, RESIDENT_MIN, Slot};
use crate::injection::{Fault, Injection};
use crate::kernel::{PoolMemory, ProgramMemory};
use crate::memory::Memory;
use crate::pause::Pause;
use crate::readers::{Place, Reader, Readers};
use crate::recorder::{Recorder, Writer};
use crate::regions::{AtFork, Region, Regions};
use crate::ways::Ways;
use pagetide_device::{Device, File, FileKind};
use pagetide_swap::balance::{Balance, Copies, POOL_FAULT_NS, ReclaimLoad, Totals};
use pagetide_swap::blocks::Blocks;
use pagetide_swap::cipher::Cipher;
use pagetide_swap::config::{FOLIO_SPAN_BYTES, SPAN_BYTES};
use pagetide_swap::hash::HashKey;
use pagetide_swap::swap::Keys;
use pagetide_swap::{
    Allocator, CLUSTER_PAGES, Config, Counter, PAGE_SIZE, PageIndex, Readahead, Reclaim, Swap,
};
use pagetide_sys::kernel::Kernel;
use pagetide_sys::procfs;
use pagetide_sys::spans::Spans;
use pagetide_sys::{guest, task};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::{
    AtomicBool, AtomicI64, AtomicU32, AtomicU64, Ordering::Relaxed, Ordering::SeqCst, fence,
};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

type ProgramEngine = Engine<ProgramMemory>;

const TICK: Duration = Duration::from_millis(10);
/// Clusters and units for whose finer words there is memory beforehand: making room must not need any.
const RESERVED_CLUSTERS: u32 = 2;
const RESERVED_UNITS: u32 = 32;
/// Rounds of reclaim without any progress, of 20 ms each, after which the run is out of memory.
const HOPELESS_ROUNDS: usize = 40;
/// Between looks at what of this process's memory others share; a look takes no more than one part in
/// [`DISCOUNT_SHARE`] of the time.
const DISCOUNT_INTERVAL: Duration = Duration::from_millis(100);
const DISCOUNT_SHARE: u32 = 100;
/// What a process may have in memory whatever the others have, as [`RESIDENT_MIN`], when those had time to give some.
const RESIDENT_FLOOR: i64 = 512;
/// How long memory that a resting process gives is waited for: about what it takes to store a cluster.
const RELIEF: Duration = Duration::from_millis(2);
/// Nanoseconds until it is asked for again, where none came.
const RELIEF_AGAIN: u64 = 20_000_000;
/// Nanoseconds between looks at descriptors that pin, while memory is taken out. What the C library opens is seen at once.
const PINS_INTERVAL: u64 = 10_000_000;
/// A rest that nobody ends is over after this time.
const REST_MAX: Duration = Duration::from_secs(4);
/// Reclaim sleeps when no fault has come for this long.
const SPIN_IDLE: Duration = Duration::from_millis(1);

/// Why the engine did not start.
#[derive(Debug)]
pub enum StartError {
    /// No userfaultfd.
    Userfault(std::io::Error),
    /// No swap file.
    SwapFile(pagetide_device::OpenError),
    /// No memory or no threads.
    Resources(std::io::Error),
}

impl std::fmt::Display for StartError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Userfault(error) => write!(f, "cannot open a userfaultfd: {error}"),
            Self::SwapFile(error) => write!(f, "cannot open the swap file: {error}"),
            Self::Resources(error) => write!(f, "cannot start the engine: {error}"),
        }
    }
}

impl std::error::Error for StartError {}

/// A running engine, or why there is none.
pub type Started = Result<&'static Runtime, StartError>;

/// A running engine.
#[derive(Debug)]
pub struct Runtime {
    engine: ProgramEngine,
    /// Stops the threads for a fork.
    pub pause: Pause,
    group: Group,
    slot: Slot,
    kick: Kick,
    readers: Readers,
    /// Faults read so far.
    faults: AtomicU64,
    errands: Mutex<Vec<Arc<Errand>>>,
    unmanaged: AtomicI64,
    watched: Mutex<procfs::Watched>,
    /// What was charged for tables and hashes at last look.
    metadata: AtomicI64,
    sharing: Mutex<Sharing>,
    discount: Mutex<Discount>,
    balance: Mutex<Balance>,
    copies: Mutex<Copies>,
    /// Nanoseconds that reclaim has worked.
    worked: AtomicU64,
    /// The thread that reclaims.
    reclaimer: AtomicU32,
    /// Whether it may stay awake without work, and whether it has of late.
    may_spin: AtomicBool,
    spun: AtomicBool,
    /// What is to go wrong, for tests.
    injection: Injection,
    /// When reclaim looks next at descriptors that pin, by the clock.
    pins_due: AtomicU64,
    /// When relief is looked for again, by the clock.
    relief_after: AtomicU64,
    /// Whether the cap is lifted: then nothing is given back.
    lifted: AtomicBool,
    /// Where children find the swap file when they do not find the launcher: in the `/proc` that this process saw when it
    /// started, and in one of its own pid namespace.
    swap_paths: Vec<PathBuf>,
    /// Where what happens is written down, if it is.
    trace: Mutex<Option<Writer>>,
}

/// Unmanaged memory that is shared by fork, and so counted elsewhere in part.
#[derive(Debug)]
struct Discount {
    pages: i64,
    next: Instant,
}

/// Pool pages shared by fork. They are charged once: to the process that had them first, for as long as
/// it or a child may hold them.
#[derive(Debug, Default)]
struct Sharing {
    /// Children that were forked off: slot and tenancy.
    heirs: Vec<(usize, u64)>,
    /// Shared pages that are charged here.
    charged: i64,
    /// Shared pages that are charged to the parent: slot, tenancy, pages.
    inherited: Option<(usize, u64, i64)>,
}

#[derive(Debug, Default)]
struct Kick {
    due: Mutex<bool>,
    arrived: Condvar,
    sleeping: AtomicBool,
}

/// Work that a thread of the program hands to the control thread, and waits for. Descriptors of the engine
/// are in the guests' table only: whatever asks the kernel about the program's memory runs on a guest.
struct Errand {
    job: Mutex<Option<Job>>,
    done: Mutex<bool>,
    ended: Condvar,
}

type Job = Box<dyn FnOnce(&'static Runtime) + Send>;

impl std::fmt::Debug for Errand {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Errand")
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Kick {
    fn now(&self) {
        *lock(&self.due) = true;
        self.arrived.notify_all();
    }
    fn wait(&self, timeout: Duration) {
        let due = lock(&self.due);
        self.sleeping.store(true, SeqCst);
        let (mut due, _) = self
            .arrived
            .wait_timeout_while(due, timeout, |due| !*due)
            .unwrap_or_else(PoisonError::into_inner);
        *due = false;
        self.sleeping.store(false, SeqCst);
    }
    /// A kick that costs nothing while reclaim is at work, or has been kicked and is not awake yet.
    fn if_sleeping(&self) {
        if self.sleeping.load(SeqCst) && self.sleeping.swap(false, SeqCst) {
            self.now();
        }
    }
}

/// Nanoseconds that only grow: of the clock, and of the thread that reclaims.
struct Times {
    clock: u64,
    worked: u64,
    ran: u64,
    waited: u64,
}

impl Times {
    fn since(&self, before: &Self) -> ReclaimLoad {
        let part = |part: u64, whole: u64| part as f64 / whole.max(1) as f64;
        // A fork begins both anew.
        let (ran, waited) = (self.ran.saturating_sub(before.ran), self.waited.saturating_sub(before.waited));
        ReclaimLoad {
            busy: part(self.worked - before.worked, self.clock - before.clock),
            waits: part(waited, ran + waited),
        }
    }
}

/// Whether the thread that reclaims may stay awake without work: not where others want its processor.
#[derive(Debug, Default)]
struct Vigil {
    /// When it may try again, and how long it waits then after the next failure; nanoseconds.
    after: u64,
    ban: u64,
}

impl Vigil {
    const BAN_MIN: u64 = 500_000_000;
    const BAN_MAX: u64 = 32_000_000_000;
    /// The part of the time that it wants to run and does not, above which others want to.
    const WAITS_MAX: f64 = 0.15;

    fn judge(&mut self, spun: bool, waits: f64, now: u64) -> bool {
        if spun && waits > Self::WAITS_MAX {
            self.ban = (self.ban * 2).clamp(Self::BAN_MIN, Self::BAN_MAX);
            self.after = now + self.ban;
        } else if spun {
            self.ban /= 2;
        }
        now >= self.after
    }
}

/// Tells when reclaim goes round and round, and next to nothing can leave, while the program waits for room.
#[derive(Debug, Default)]
struct Futility {
    steps: usize,
    waiting: usize,
    freed: usize,
    refused: usize,
    strikes: usize,
}

impl Futility {
    /// Notes a step of reclaim. True if three times in a row all memory was tried four times over, less
    /// than one page in 64 could leave, and a fault waited for room most of the time.
    fn note(&mut self, progress: Progress, engine: &ProgramEngine) -> bool {
        self.steps += 1;
        self.waiting += usize::from(engine.waiting() > 0);
        self.refused += engine.take_refused();
        if let Progress::Freed(pages) = progress {
            self.freed += pages;
        }
        let usage = engine.usage();
        if self.refused < 4 * (usage.resident + usage.frames).max(64) as usize {
            return false;
        }
        let futile = self.freed * 64 < self.refused && self.waiting * 2 > self.steps;
        let strikes = if futile { self.strikes + 1 } else { 0 };
        *self = Self { strikes, ..Self::default() };
        strikes >= 3
    }
}

/// Nanoseconds of a clock that never goes back.
pub fn clock() -> u64 {
    static START: std::sync::OnceLock<Instant> = std::sync::OnceLock::new();
    START.get_or_init(Instant::now).elapsed().as_nanos() as u64
}

/// Makes the calling thread a guest (a descriptor table of its own) and opens the kernel's side of the
/// program's memory. Whoever preloads us vouches for what that takes.
pub type OpenKernel = fn() -> std::io::Result<Kernel>;

/// What an engine starts with.
pub struct Beginning {
    /// The group.
    pub group: Group,
    /// The process's slot.
    pub slot: Slot,
    /// What it takes over.
    pub heritage: Heritage,
    /// Opens the kernel's side of the program's memory.
    pub open: OpenKernel,
    /// Whether the program has opened something through which its pages may be pinned.
    pub pins: Arc<AtomicBool>,
    /// Held while a mapping moves.
    pub layout: Arc<Mutex<()>>,
    /// Called when the threads are there: stops whoever changes the managed ranges, and gives them. They are registered,
    /// and what is in them is taken into account.
    pub stop: Box<dyn FnOnce() -> Regions + Send>,
    /// Called when the engine is about to answer faults, or will not.
    pub ended: Box<dyn FnOnce(Started) + Send>,
}

impl std::fmt::Debug for Beginning {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Beginning")
    }
}

/// Where threads of an engine wait until there is one, or will be none.
#[derive(Debug, Default)]
struct Gate {
    engine: Mutex<Option<Option<&'static Runtime>>>,
    opened: Condvar,
}

impl Gate {
    fn open(&self, engine: Option<&'static Runtime>) {
        *lock(&self.engine) = Some(engine);
        self.opened.notify_all();
    }

    fn wait(&self) -> Option<&'static Runtime> {
        let mut engine = lock(&self.engine);
        loop {
            match *engine {
                Some(engine) => return engine,
                None => engine = self.opened.wait(engine).unwrap_or_else(PoisonError::into_inner),
            }
        }
    }
}

/// What a new engine takes over.
pub enum Heritage {
    /// Nothing: the first engine of a process.
    None,
    /// What a forked child found: the parent's subsystem, and the pages that are in the program.
    Forked(&'static Runtime),
}

impl Runtime {
    /// Starts an engine, on a thread of its own which becomes its control thread. Who calls it need not wait, and must
    /// not for ever: a thread that loads a library holds the loader's lock, without which no thread starts.
    ///
    /// # Errors
    /// There is no thread: nothing of `beginning` was called.
    pub fn start(beginning: Beginning) -> Result<(), StartError> {
        // Guests have no descriptor 2: the standard hook would say nothing.
        std::panic::set_hook(Box::new(|panic| {
            task::say(&format!("a defect of Pagetide: {panic}"));
            // Nobody would do what this thread has to, and a lock that it holds may be another's to wait for.
            task::kill_self();
        }));
        let control = move || {
            if let Some(runtime) = Self::build(beginning) {
                runtime.control();
            }
        };
        guest::spawn("pagetide", Box::new(control)).map_err(StartError::Resources)
    }

    fn build(beginning: Beginning) -> Option<&'static Self> {
        let Beginning { group, slot, heritage, open, pins, layout, stop, ended } = beginning;
        let gate = Arc::new(Gate::default());
        let started = open().map_err(StartError::Userfault).and_then(|kernel| {
            let readers = Readers::new(task::processors());
            // First, while the program goes on: that may take as long as it takes to load a library.
            Self::spawn_threads(&gate, readers.count(), group.setup().blocks != 0)?;
            let memory = |kernel, ways| ProgramMemory::new(kernel, ways, pins, layout);
            Self::assemble(group, slot, heritage, kernel, memory, readers, stop)
        });
        let runtime = started.as_ref().ok().copied();
        // Before anything leaves: whoever finds no engine and goes on to pin pages does so before the first look at `pins`.
        ended(started);
        fence(SeqCst);
        gate.open(runtime);
        runtime
    }

    /// The engine itself, with which the threads that wait for it then work. `stop` gives the managed ranges, which
    /// nobody changes from then on.
    fn assemble(
        group: Group,
        slot: Slot,
        heritage: Heritage,
        kernel: Kernel,
        memory: impl FnOnce(Kernel, Ways) -> ProgramMemory,
        readers: Readers,
        stop: Box<dyn FnOnce() -> Regions + Send>,
    ) -> Started {
        let setup = group.setup();
        let ways = Ways::from_bits(setup.ways);
        let injection = Injection::from_bits(setup.injection);
        let memory = memory(kernel, ways);
        let blocks = match setup.blocks {
            0 => Blocks::none(),
            _ => Blocks::new(group.block_counts(), group.held(slot)),
        };
        let mut swap_paths = Vec::new();
        let device: Option<Box<dyn Device>> = match setup.blocks {
            0 => None,
            count => {
                let kind = if ways.masks(Ways::NO_RING) { FileKind::Positioned } else { FileKind::Auto };
                let open = |path: &Path| File::open(path, setup.swap_identity, count, kind);
                let mut file = open(&group.swap_path());
                if let Heritage::Forked(parent) = &heritage {
                    // The launcher is gone, or `/proc` is another one.
                    for path in &parent.swap_paths {
                        file = file.or_else(|_| open(path));
                    }
                }
                let file = file.map_err(StartError::SwapFile)?;
                let task = format!("{}/task/{}", std::process::id(), task::tid());
                let seen = procfs::own_task().unwrap_or_else(|| task.clone());
                swap_paths =
                    [seen, task].map(|task| format!("/proc/{task}/fd/{}", file.number()).into()).into();
                Some(injection.device(Box::new(file)))
            }
        };
        let limits = Limits::for_cap(setup.cap_pages);
        let (swap, inherited) = match &heritage {
            Heritage::Forked(parent) => {
                parent.engine.abandon_staging();
                let swap = parent.engine.swap().for_child(group.held(slot), slot.counters());
                let pages = swap.zswap().frozen_pages() as i64;
                (swap, Some((parent.slot.index(), parent.slot.get(Field::Tenancy), pages)))
            }
            Heritage::None => {
                let config = Config {
                    zpool: Allocator::from_bits(setup.zpool),
                    switches: group.knobs().switches,
                    reclaim: Reclaim::from_bits(setup.reclaim),
                    readahead: Readahead::from_bits(setup.readahead),
                    page_cluster: setup.page_cluster as u32,
                    cap_pages: setup.cap_pages,
                };
                // Where address space is limited the pool has to do with a part of it.
                let most = pagetide_sys::mapping::room() / 4;
                let spans = Spans::new(
                    (setup.cap_pages as usize * PAGE_SIZE).min(most / 2),
                    &[SPAN_BYTES, FOLIO_SPAN_BYTES, PAGE_SIZE],
                )
                .map_err(|error| StartError::Resources(error.into()))?;
                let [a, b, ..] = pagetide_sys::random::words();
                let keys = Keys {
                    hash: HashKey::new(pagetide_sys::random::words()),
                    cipher: (setup.encrypt != 0).then(|| Cipher::new([a, b])),
                };
                let memory = PoolMemory { spans, injection: Arc::new(Injection::from_bits(setup.injection)) };
                (Swap::new(memory, blocks, keys, config, slot.counters()), None)
            }
        };
        let trace = open_trace(&group, slot);
        let slots = Kernel::slots((limits.probation + 24) as u16)
            .map_err(|error| StartError::Resources(error.into()))?;
        let engine = Engine::new(Parts {
            swap,
            memory,
            slots,
            device,
            regions: Regions::default(),
            limits,
            latency: slot.latency(),
            clock,
            ways,
            recorder: trace.is_some().then(Recorder::default),
        });
        let runtime: &'static Self = Box::leak(Box::new(Self {
            engine,
            pause: Pause::default(),
            group,
            slot,
            kick: Kick::default(),
            readers,
            faults: AtomicU64::new(0),
            errands: Mutex::default(),
            unmanaged: AtomicI64::new(0),
            watched: Mutex::default(),
            metadata: AtomicI64::new(0),
            sharing: Mutex::new(Sharing { inherited, ..Sharing::default() }),
            balance: Mutex::default(),
            copies: Mutex::default(),
            worked: AtomicU64::new(0),
            reclaimer: AtomicU32::new(0),
            may_spin: AtomicBool::new(false),
            spun: AtomicBool::new(false),
            injection,
            pins_due: AtomicU64::new(0),
            relief_after: AtomicU64::new(0),
            lifted: AtomicBool::new(false),
            swap_paths,
            trace: Mutex::new(trace),
            discount: Mutex::new(Discount { pages: 0, next: Instant::now() }),
        }));
        pagetide_sys::mapping::keep_secret(runtime.engine.swap().keys());
        runtime.take_over(stop(), matches!(heritage, Heritage::Forked(_)));
        slot.set(Field::Armed, 1);
        slot.listen();
        Ok(runtime)
    }

    /// Registers the regions and charges what is in them.
    fn take_over(&self, regions: Regions, forked: bool) {
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
                if self.engine.memory().register(page..next).is_ok() {
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
        if forked {
            // The table knows them already.
            self.engine.budget().take(self.engine.usage().resident);
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
            guest::spawn(name, run).map_err(StartError::Resources)
        };
        for number in 0..readers {
            spawn("pagetide-fault", Box::new(move |runtime| runtime.serve_faults(number)))?;
        }
        if device {
            spawn("pagetide-io", Box::new(|runtime| runtime.complete_io()))?;
        }
        spawn("pagetide-reclaim", Box::new(|runtime| runtime.reclaim()))?;
        // Before there is an engine that takes pages out.
        guest::wait_entered();
        Ok(())
    }

    /// The engine.
    pub fn engine(&self) -> &ProgramEngine {
        &self.engine
    }

    /// This process's slot.
    pub fn slot(&self) -> Slot {
        self.slot
    }

    // ---- threads --------------------------------------------------------------------------------

    fn serve_faults(&self, number: usize) {
        let mut work = Workspace::default();
        let mut reader = Reader::new(&self.readers, number);
        loop {
            reader.take_seat();
            match self.engine.memory().kernel().wait() {
                Ok(Some(fault)) => {
                    self.injection.strike(Fault::StallFault, Fault::PanicFault);
                    let page = PageIndex::of_address(fault.address);
                    let kernel = self.engine.memory().kernel();
                    if let Some(processor) = reader.note(fault.tid) {
                        // Woken in vain it faults again at once, over there.
                        task::wake_at(fault.tid, processor, || kernel.wake(page.address(), PAGE_SIZE));
                        kernel.catch_up();
                        continue;
                    }
                    if self.engine.is_unsharing(fault.tid) {
                        // Frozen or not: that thread's work is what a freeze waits for.
                        self.pause.begin_completion();
                        self.engine.fault(page, fault.write, clock(), &mut work);
                        self.pause.end_completion();
                    } else if self.rests() {
                        self.engine.rest(page, fault.write);
                    } else if self.pause.try_work(fault.tid) {
                        self.engine.fault(page, fault.write, clock(), &mut work);
                        self.pause.end_work();
                    } else {
                        self.engine.park(page, fault.write, clock());
                    }
                    self.faults.fetch_add(1, Relaxed);
                    if self.engine.is_short() {
                        self.kick.if_sleeping();
                    }
                    kernel.catch_up();
                }
                Ok(None) => {}
                Err(error) if error.raw_os_error() == 4 || error.raw_os_error() == 11 => {}
                // The descriptor is gone: nothing can be answered any more, which no code of ours does.
                Err(error) => {
                    task::say(&format!("reading faults failed: {}", std::io::Error::from(error)));
                    task::kill_self();
                }
            }
        }
    }

    fn complete_io(&self) {
        let mut work = Workspace::default();
        let mut done = Vec::new();
        let device = self.engine.device().expect("the thread is started for a device");
        loop {
            device.wait(&mut done);
            self.injection.strike(Fault::StallIo, Fault::PanicIo);
            self.pause.begin_completion();
            self.engine.complete(&mut done, &mut work);
            self.pause.end_completion();
            self.kick.if_sleeping();
            self.engine.memory().kernel().catch_up();
        }
    }

    fn reclaim(&self) {
        let mut work = Workspace::default();
        let mut idle = 0;
        let mut moved = 0;
        let mut futility = Futility::default();
        let mut desperate = false;
        self.reclaimer.store(task::tid(), Relaxed);
        let mut place = Place::Anywhere;
        loop {
            self.readers.settle(&mut place, self.readers.elsewhere());
            if !self.engine.is_short() && self.asked() == 0 {
                if !self.spin() {
                    self.kick.wait(Duration::from_millis(100));
                }
                (idle, moved) = (0, 0);
                continue;
            }
            self.injection.strike(Fault::StallReclaim, Fault::PanicReclaim);
            self.pause.begin_work();
            let start = clock();
            if start >= self.pins_due.load(Relaxed) {
                // Before anything is taken out: also what was opened before there was an engine.
                self.look_for_pins();
            }
            if self.borrow() > 0 {
                self.engine.retry_waiting(&mut work);
            }
            let gives_little = self.has_little() && !self.engine.is_short();
            let progress = if gives_little && self.slot.keeps_pool() && self.group.free() >= 0 {
                // Whoever asked can do with less, or asks all.
                self.slot.set(Field::Asked, 0);
                Progress::Freed(0)
            } else if gives_little {
                // Others want some: not the little that it runs in, but the pool's.
                self.engine.reclaim_pool(&mut work)
            } else if self.target() > self.engine.budget().free() || self.engine.is_hastened() {
                match self.relief() {
                    0 => self.engine.reclaim(&mut work),
                    pages => Progress::Freed(pages),
                }
            } else {
                Progress::Freed(0)
            };
            self.give_back();
            self.engine.retry_waiting(&mut work);
            self.worked.fetch_add(clock() - start, Relaxed);
            self.pause.end_work();
            match progress {
                Progress::Freed(_) => (idle, moved) = (0, 0),
                Progress::Moved => moved += 1,
                Progress::Waits => {
                    (idle, moved) = (0, 0);
                    // Whoever hears of an end kicks; so does who needs something else.
                    self.kick.wait(Duration::from_millis(5));
                }
                Progress::Nothing => idle += 1,
            }
            if futility.note(progress, &self.engine) {
                self.group.ask_all(self.slot, self.engine.limits().high as u64);
                if desperate && self.group.free() <= 0 && self.engine.requests() == 0 {
                    self.give_up();
                }
                // Those that were asked have until the next look.
                desperate = true;
                self.group.wait_free(self.group.demand(), Duration::from_millis(20));
            }
            desperate &= futility.strikes > 0;
            // Pages that will not leave come round again and again: a full round of those is no progress.
            let round = self.engine.swap().queue().len() + 64;
            if moved > round {
                (moved, idle) = (0, idle + 1);
                self.starved(&mut idle, &mut work);
            } else if progress == Progress::Nothing {
                self.starved(&mut idle, &mut work);
            }
        }
    }

    /// Whether faults are to wait while other processes get on. Not those that a fork waits for.
    fn rests(&self) -> bool {
        self.slot.is_resting() && !self.lifted.load(SeqCst) && !self.pause.is_closed()
    }

    /// Ends a rest when it is over, or when nobody says so for too long. `order` is the last one and when it was seen.
    fn follow_rest(&self, order: &mut (u64, Instant)) {
        let word = self.slot.get(Field::Rest);
        if word != order.0 {
            *order = (word, Instant::now());
        } else if word % 2 == 1 && order.1.elapsed() > REST_MAX {
            // Whoever gave it is stopped, or dead.
            self.slot.end_rest(word);
        }
        // A fault that came just as this one ended is found the next time.
        if !self.rests() && self.engine.end_rest() {
            self.kick.now();
        }
    }

    /// Stays awake while faults come thick and fast. A reclaim thread that sleeps leaves its processor
    /// idle, and the scheduler moves the faulting thread there each time it is woken: away from its reader.
    fn spin(&self) -> bool {
        let mut seen = self.faults.load(Relaxed);
        let mut since = Instant::now();
        loop {
            if !self.may_spin.load(Relaxed) {
                // The processors have other work.
                return false;
            }
            self.spun.store(true, Relaxed);
            for _ in 0..64 {
                std::hint::spin_loop();
            }
            if self.engine.is_short() || self.asked() > 0 {
                return true;
            }
            let now = Instant::now();
            let faults = self.faults.load(Relaxed);
            if faults != seen {
                (seen, since) = (faults, now);
            } else if now - since > SPIN_IDLE {
                return false;
            }
        }
    }

    /// Whether others want memory, and there is less in the program than it may keep in any case.
    fn has_little(&self) -> bool {
        let usage = self.engine.usage();
        self.target() > self.engine.budget().free()
            && self.asked() > 0
            && usage.resident + usage.frames <= RESIDENT_MIN
    }

    /// What others asked for.
    fn asked(&self) -> i64 {
        if self.lifted.load(SeqCst) { 0 } else { self.slot.get(Field::Asked) as i64 }
    }

    /// How much should be free.
    fn target(&self) -> i64 {
        self.engine.limits().high + self.asked()
    }

    /// Whether no other process of the run has an engine: nobody else wants the processors.
    fn is_alone(&self) -> bool {
        self.group.live().all(|slot| slot.index() == self.slot.index() || slot.get(Field::Armed) == 0)
    }

    /// Takes what the group has to spare: no more than it needs, where others have asked for some. Returns how many pages.
    fn borrow(&self) -> usize {
        let limits = self.engine.limits();
        let (goal, step) = if self.asked() > 0 { (limits.low, 0) } else { (limits.high, self.group.step()) };
        let wanted = goal - self.engine.budget().free();
        if wanted <= 0 {
            return 0;
        }
        let taken = self.group.take_up_to(wanted.max(step));
        if taken > 0 {
            self.slot.word(Field::Grant).fetch_add(taken as u64, SeqCst);
            self.engine.budget().give(taken);
        }
        taken as usize
    }

    /// Takes memory that a process which rests gives, in place of its own. Returns how many pages.
    fn relief(&self) -> usize {
        if self.asked() > 0 || self.engine.is_hastened() || self.slot.is_resting() {
            return 0;
        }
        let seen = self.group.demand();
        if clock() < self.relief_after.load(Relaxed)
            || !self.group.ask_resting(self.slot, self.group.step() as u64)
        {
            return 0;
        }
        self.group.wait_free(seen, RELIEF);
        let pages = self.borrow();
        if pages == 0 {
            // It is slow, or has none after all.
            self.relief_after.store(clock() + RELIEF_AGAIN, Relaxed);
        }
        pages
    }

    /// Makes what the launcher took in our name part of the grant.
    fn absorb(&self) {
        let added = self.slot.word(Field::Added).swap(0, SeqCst);
        if added != 0 {
            self.slot.word(Field::Grant).fetch_add(added, SeqCst);
            self.engine.budget().give(added as i64);
        }
    }

    /// Gives what others asked for.
    fn give_back(&self) {
        let asked = self.asked();
        let spare = (self.engine.budget().free() - self.engine.limits().low).min(asked);
        if asked > 0 && spare > 0 {
            self.slot.word(Field::Asked).fetch_sub(spare as u64, SeqCst);
            self.return_grant(spare);
        }
    }

    fn return_grant(&self, pages: i64) {
        self.engine.budget().take(pages);
        self.slot.word(Field::Grant).fetch_sub(pages as u64, SeqCst);
        self.group.give(pages);
    }

    /// Gives back what is free beyond what is needed soon, where others may need it.
    fn return_surplus(&self) {
        let step = if self.group.free() < self.group.step() { 0 } else { self.group.step() };
        let surplus = self.engine.budget().free() - 2 * self.engine.limits().high - step;
        if surplus > step && !self.lifted.load(SeqCst) && self.group.live().nth(1).is_some() {
            self.return_grant(surplus);
        }
    }

    /// Nothing can leave: others may have room, or requests under way will make some; else this is the end.
    fn starved(&self, idle: &mut usize, work: &mut Workspace) {
        if self.engine.waiting() == 0 {
            // Nobody waits: what was asked for cannot be had, forget it. Unless it is on its way out.
            if self.engine.requests() == 0 {
                self.slot.set(Field::Asked, 0);
            }
            self.kick.wait(Duration::from_millis(20));
            *idle = 0;
            return;
        }
        let usage = self.engine.usage();
        let held = usage.resident + usage.frames;
        let alone = self.group.live().nth(1).is_none();
        let seen = self.group.demand();
        let asked = self.group.ask(self.slot, self.engine.limits().high);
        if *idle >= if asked { HOPELESS_ROUNDS / 4 } else { 2 } {
            self.group.ask_all(self.slot, self.engine.limits().high as u64);
        }
        if alone || held >= RESIDENT_MIN {
            if self.engine.requests() > 0 {
                // They will make room.
                *idle = 0;
                self.kick.wait(Duration::from_millis(20));
            } else if self.group.free() <= 0 {
                self.group.wait_free(seen, Duration::from_millis(20));
            }
        }
        // Forks are charged for what they may come to copy, so the sum can exceed the cap although the
        // memory does not: a process keeps a little to run in.
        if !alone && held < RESIDENT_FLOOR {
            self.pause.begin_work();
            self.engine.overdraw(work);
            self.pause.end_work();
            *idle = 0;
            return;
        }
        if *idle >= HOPELESS_ROUNDS && self.engine.waiting() > 0 {
            if self.group.off_state(self.slot) == OffState::Leaving {
                // What came back leaves no room.
                self.engine.give_up_swapoff();
                *idle = 0;
                return;
            }
            self.give_up();
        }
    }

    /// The end of a program that needs more than there is.
    fn give_up(&self) {
        let usage = self.engine.usage();
        let mib = |pages: i64| pages / 256;
        let counts = self.group.block_counts();
        let taken = counts.iter().filter(|count| count.load(Relaxed) > 0).count() as i64;
        let file = match self.engine.device() {
            None => "none".to_owned(),
            Some(_) if self.engine.has_failed_writes() => "failing".to_owned(),
            Some(_) if self.engine.is_swapped_off() => "out of use".to_owned(),
            Some(_) => format!("{} of {} MiB taken", mib(taken), mib(counts.len() as i64)),
        };
        task::say(&format!(
            "out of memory: {} MiB cannot leave it, and others have none to give; the pool has {} MiB, the swap file: \
             {file}; allow more with --memory, --swap-size or --max-pool-percent",
            mib(usage.resident + self.unmanaged.load(Relaxed)),
            mib(usage.pool),
        ));
        task::kill_self();
    }

    fn control(&'static self) {
        let mut last_faults = 0;
        let mut quiet = 0;
        let mut round = 0u64;
        let mut looked = self.times();
        let mut vigil = Vigil::default();
        let mut refaults = self.refault_ns();
        let mut rest = (0, Instant::now());
        loop {
            let seen = self.slot.get(Field::Bell);
            if lock(&self.errands).is_empty() && self.asked() == 0 {
                self.slot.wait_bell(seen, if quiet > 50 { 5 * TICK } else { TICK });
            } else if self.asked() > 0 {
                self.slot.wait_bell(seen, TICK);
            }
            self.injection.strike(Fault::StallControl, Fault::PanicControl);
            for errand in std::mem::take(&mut *lock(&self.errands)) {
                if let Some(job) = lock(&errand.job).take() {
                    job(self);
                }
                *lock(&errand.done) = true;
                errand.ended.notify_all();
            }
            if self.injection.happens(Fault::Rest) {
                self.slot.set_resting(!self.slot.is_resting());
            } else if !self.slot.is_resting() && self.injection.happens(Fault::RestForgotten) {
                self.slot.set_resting(true);
            }
            self.follow_rest(&mut rest);
            // While a fork is under way this thread is there for its errands alone: waiting here for the
            // thaw would leave them undone, and the fork waiting for them.
            if !self.pause.try_work(0) {
                continue;
            }
            self.absorb();
            self.sample();
            self.set_pool_max();
            self.engine.swap().observe();
            self.engine.swap().table().reserve(RESERVED_CLUSTERS, RESERVED_UNITS);
            self.settle_sharing();
            self.return_surplus();
            self.follow_swapoff();
            self.write_trace();
            self.publish();
            self.pause.end_work();
            if self.asked() > 0 || self.engine.is_short() {
                self.kick.if_sleeping();
            }
            let counters = self.engine.swap().counters();
            let faults = counters.get(Counter::pgmajfault) + counters.get(Counter::pgminfault);
            quiet = if faults == last_faults { quiet + 1 } else { 0 };
            last_faults = faults;
            round += 1;
            if round.is_multiple_of(10) && self.pause.try_work(0) {
                self.look_for_pins();
                if self.group.free() <= 0 {
                    self.group.sweep(self.swap_paths.first());
                }
                let now = self.times();
                let load = now.since(&looked);
                self.judge_copies(load);
                let spun = self.spun.swap(false, Relaxed);
                self.may_spin.store(vigil.judge(spun, load.waits, now.clock) && self.is_alone(), Relaxed);
                let lost = self.refault_ns();
                self.level(lost - refaults, now.clock - looked.clock);
                (looked, refaults) = (now, lost);
                self.engine.drop_idle_donor();
                self.engine.settle_buffers();
                self.pause.end_work();
            }
        }
    }

    /// Writes down what has happened, if that is wanted.
    fn write_trace(&self) {
        let mut trace = lock(&self.trace);
        if let (Some(writer), Some(recorder)) = (&mut *trace, self.engine.recorder())
            && let Err(error) = recorder.flush(writer)
        {
            task::say(&format!("cannot write the trace any more: {error} (--trace)"));
            *trace = None;
        }
    }

    /// Gives the swap file up, or uses it, as the run is told.
    fn follow_swapoff(&self) {
        self.group.follow_swapoff(self.slot, |off, state| match (off, state) {
            (false, _) => {
                self.engine.swapon();
                OffState::Used
            }
            (true, OffState::Used | OffState::Leaving) => match self.engine.swapoff() {
                Swapoff::Goes => OffState::Leaving,
                Swapoff::Done => OffState::Off,
                Swapoff::NoRoom => OffState::NoRoom,
            },
            (true, state) => state,
        });
    }

    /// Looks at what the process uses beside managed memory, and charges the difference.
    fn sample(&self) {
        let Some(memory) = lock(&self.watched).look("self") else { return };
        let usage = self.engine.usage();
        let accounted = usage.resident + usage.frames + usage.pool + usage.pool_shared + usage.metadata;
        let alone = (self.group.charged(&memory) as i64 - accounted).max(memory.tables as i64);
        let unmanaged = (alone - self.discount(&memory, alone)).max(memory.tables as i64);
        let before = self.unmanaged.swap(unmanaged, Relaxed);
        let metadata = self.metadata.swap(usage.metadata, Relaxed);
        self.engine.budget().take(unmanaged - before + usage.metadata - metadata);
    }

    /// What of `alone`, the unmanaged pages of this process, other processes count too: forks share it
    /// until it is written. Looked at every now and then, since the look walks all page tables.
    fn discount(&self, memory: &pagetide_sys::procfs::Memory, alone: i64) -> i64 {
        let family = {
            let sharing = lock(&self.sharing);
            sharing.inherited.is_some() || !sharing.heirs.is_empty()
        };
        let mut discount = lock(&self.discount);
        if !family {
            discount.pages = 0;
            return 0;
        }
        let start = Instant::now();
        if start >= discount.next
            && let Ok(regions) = self.engine.regions.try_read()
        {
            let counted = |from: usize, to: usize| {
                let range = PageIndex::of_address(from)..PageIndex::of_address(to);
                regions.pieces(range).next().is_some() || pagetide_sys::mapping::is_counted(from, to)
            };
            let usage = self.engine.usage();
            let rest = usage.resident + usage.frames + usage.pool + usage.pool_shared;
            let shared = pagetide_sys::procfs::proportional(counted)
                .map_or(0, |pages| memory.anonymous as i64 - rest - pages as i64);
            discount.pages = shared.max(0);
            let end = Instant::now();
            discount.next = end + DISCOUNT_INTERVAL.max((end - start) * DISCOUNT_SHARE);
        }
        discount.pages.min(alone)
    }

    fn look_for_pins(&self) {
        if !self.engine.memory().may_pin() && procfs::may_pin(procfs::own_pid()) {
            self.engine.memory().note_pins();
        }
        self.pins_due.store(clock() + PINS_INTERVAL, Relaxed);
    }

    fn set_pool_max(&self) {
        let setup = self.group.setup();
        let Knobs { switches, max_pool_percent } = self.group.knobs();
        self.engine.swap().zswap().switch(switches);
        if Ways::from_bits(setup.ways).masks(Ways::NO_POOL) {
            self.engine.swap().zswap().set_pages_max(0);
            return;
        }
        let processes = self.group.live().count().max(1) as u64;
        // Those without an engine keep nothing free.
        let armed = self.group.live().filter(|slot| slot.get(Field::Armed) != 0).count();
        self.engine.set_sharers(armed);
        let grant = self.slot.granted().max((setup.cap_pages / processes) as i64);
        let share = (grant as f64 * self.pool_share(max_pool_percent as f64 / 100.0)) as i64;
        // The program keeps an eighth to run in, whatever the pool may take.
        let room = grant - self.unmanaged.load(Relaxed) - grant / 8;
        self.engine.swap().zswap().set_pages_max(share.min(room).max(0) as usize);
    }

    /// The pool's share of this process's memory: what it may be at most, or less where a page in the
    /// program is worth more.
    fn pool_share(&self, ceiling: f64) -> f64 {
        if !self.engine.can_write() {
            return ceiling;
        }
        let mut balance = lock(&self.balance);
        let swap = self.engine.swap();
        let share = match swap.zswap().switches().fixed_share {
            true => balance.fixed(ceiling),
            false => balance.share(self.totals(), swap.sizes(), ceiling),
        };
        self.engine.set_pool_pressure(balance.pressure());
        share
    }

    fn totals(&self) -> Totals {
        self.engine.swap().totals(self.engine.read_ns())
    }

    /// What pages that came back have cost the program so far.
    fn refault_ns(&self) -> u64 {
        let Totals { pool_in, device_ns, .. } = self.totals();
        pool_in * POOL_FAULT_NS as u64 + device_ns
    }

    /// Says what the program loses, and takes memory from those who lose far less.
    fn level(&self, lost: u64, time: u64) {
        let pressure = (lost as f64 / time.max(1) as f64 * 1e6) as u64;
        self.slot.set(Field::Pressure, u64::midpoint(self.slot.get(Field::Pressure), pressure));
        if self.group.free() < self.group.step() {
            self.group.level(self.slot, self.engine.limits().high as u64);
        }
    }

    fn times(&self) -> Times {
        let (ran, waited) = pagetide_sys::procfs::run_times(self.reclaimer.load(Relaxed)).unwrap_or_default();
        Times { clock: clock(), worked: self.worked.load(Relaxed), ran, waited }
    }

    /// Whether copies of pages that come in are worth keeping.
    fn judge_copies(&self, load: ReclaimLoad) {
        let swap = self.engine.swap();
        let store_ns = self.engine.store_ns() as f64;
        let keep = lock(&self.copies).keep(load, store_ns, self.totals(), swap.sizes());
        self.engine.keep_copies(keep);
    }

    /// Pages that others may ask for.
    fn spare(&self) -> i64 {
        let usage = self.engine.usage();
        let pool = if self.engine.can_write() { usage.pool } else { 0 };
        (usage.resident + usage.frames - RESIDENT_MIN).max(0) + pool
    }

    fn publish(&self) {
        let usage = self.engine.usage();
        let (entries, bytes) = self.engine.swap().zswap().stored();
        let fields = [
            (Field::Resident, usage.resident),
            (Field::Frames, usage.frames),
            (Field::Pool, usage.pool),
            (Field::Metadata, usage.metadata),
            (Field::Unmanaged, self.unmanaged.load(Relaxed)),
            (Field::Swapped, self.engine.swap().swapped()),
            (Field::Cached, self.engine.swap().cached()),
            (Field::Disk, self.engine.swap().blocks().used() as i64),
            (Field::StoredPages, entries as i64),
            (Field::StoredBytes, bytes as i64),
            (Field::StoredRaw, self.engine.swap().zswap().stored_raw() as i64),
            (Field::SameFilled, self.engine.swap().same_filled()),
            (Field::Loose, self.engine.swap().zswap().loose_pages() as i64),
            (Field::Stalled, self.engine.stalled()),
            (Field::Spare, self.spare()),
        ];
        self.slot.listen();
        for (field, value) in fields {
            self.slot.set(field, value.max(0) as u64);
        }
    }

    // ---- forks ----------------------------------------------------------------------------------

    /// From now on a page that a thread waits for comes in when whoever brings it has done with all the rest: the
    /// thread may fork as the next thing it does, and a lock that is held then stays so in the child.
    pub fn answer_last(&self, on: bool) {
        self.engine.memory().kernel().set_quiet(on);
    }

    /// Freezes the pool and charges for it what parent and child share from now on.
    pub fn share_pool(&self, child: Slot) {
        let before = self.engine.swap().zswap().frozen_pages() as i64;
        self.engine.swap().zswap().freeze();
        self.engine.settle_pool();
        let more = self.engine.swap().zswap().frozen_pages() as i64 - before;
        self.engine.budget().take(more);
        let mut sharing = lock(&self.sharing);
        sharing.charged += more;
        child.set(Field::Frozen, self.engine.swap().zswap().frozen_pages() as u64);
        sharing.heirs.push((child.index(), child.get(Field::Tenancy)));
    }

    /// Charges shared pool pages to whoever is left with them.
    fn settle_sharing(&self) {
        let mut sharing = lock(&self.sharing);
        let lives = |index: usize, tenancy: u64| {
            let slot = self.group.slot(index);
            slot.get(Field::Taken) != 0 && slot.get(Field::Tenancy) == tenancy
        };
        sharing.heirs.retain(|&(index, tenancy)| lives(index, tenancy));
        let frozen = self.engine.swap().zswap().frozen_pages() as i64;
        if let Some((index, tenancy, _)) = sharing.inherited
            && !lives(index, tenancy)
        {
            sharing.inherited = None;
            self.engine.budget().take(frozen - sharing.charged);
            sharing.charged = frozen;
        }
        // What was shared and neither we nor an heir has any more is free.
        let heirs = sharing.heirs.iter().map(|&(index, _)| self.group.slot(index).get(Field::Frozen) as i64);
        let held = frozen + heirs.sum::<i64>();
        self.slot.set(Field::Frozen, held as u64);
        if sharing.charged > held {
            self.engine.budget().give(sharing.charged - held);
            sharing.charged = held;
        }
        if sharing.heirs.is_empty() {
            let inherited = sharing.inherited.map_or(0, |(_, _, pages)| pages.min(frozen));
            self.engine.budget().give(sharing.charged - (frozen - inherited));
            sharing.charged = frozen - inherited;
        }
        if sharing.heirs.is_empty() && sharing.inherited.is_none() && frozen > 0 {
            // Nobody that we know of shares it any more.
            self.engine.swap().zswap().thaw();
            self.engine.budget().give(std::mem::take(&mut sharing.charged));
            self.engine.settle_pool();
        }
    }

    /// Runs `job` on the control thread and waits for its result. Called by threads of the program.
    pub fn errand<T: Send + 'static>(&self, job: impl FnOnce(&'static Self) -> T + Send + 'static) -> T {
        let result = Arc::new(Mutex::new(None));
        let to = Arc::clone(&result);
        let job: Job = Box::new(move |runtime| *lock(&to) = Some(job(runtime)));
        let errand =
            Arc::new(Errand { job: Mutex::new(Some(job)), done: Mutex::new(false), ended: Condvar::new() });
        lock(&self.errands).push(Arc::clone(&errand));
        self.slot.ring();
        let mut done = lock(&errand.done);
        while !*done {
            done = errand.ended.wait(done).unwrap_or_else(PoisonError::into_inner);
        }
        lock(&result).take().expect("the job has run")
    }

    /// Registers a range that is mapped anew, and takes what is in it into account.
    pub fn register(&self, range: Range<PageIndex>) -> std::io::Result<()> {
        self.errand(|runtime| runtime.engine.memory().register(range))
    }

    /// Takes into account what is in a range that has just been registered.
    pub fn adopt(&self, range: Range<PageIndex>) {
        self.errand(|runtime| _ = runtime.engine.adopt(range));
    }

    /// Prepares a range for being moved: brings back into the program what is on probation there, and takes
    /// the range out of our care until it is registered anew.
    pub fn release(&self, range: Range<PageIndex>) -> std::io::Result<()> {
        self.errand(|runtime| {
            runtime.engine.recall(range.clone());
            runtime.engine.memory().unregister(range)
        })
    }

    /// Whether pages can come in without others having to leave.
    pub fn has_room(&self) -> bool {
        self.engine.budget().free() > self.engine.limits().low
    }

    /// Lets the process have all the memory that it takes, from now on: it is about to end.
    pub fn lift_cap(&self) {
        if !self.lifted.swap(true, SeqCst) {
            self.engine.budget().give(i64::MAX / 4);
        }
    }

    /// Wakes reclaim.
    pub fn kick(&self) {
        self.kick.now();
    }

    /// Pages that are not managed, as last sampled.
    pub fn unmanaged(&self) -> i64 {
        self.unmanaged.load(Relaxed)
    }

    /// The group's memory.
    pub fn group(&self) -> Group {
        self.group
    }
}

/// Opens the run's trace, if what happens is to be written down.
fn open_trace(group: &Group, slot: Slot) -> Option<Writer> {
    let path = group.trace_path()?;
    match Writer::open(&path, slot.tenant()) {
        Ok(writer) => Some(writer),
        Err(error) => {
            task::say(&format!("cannot open the trace: {error}; this process is not in it (--trace)"));
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reclaim_stays_awake_more_and_more_seldom_where_others_want_its_processor() {
        let mut vigil = Vigil::default();
        assert!(vigil.judge(false, 1.0, 0));
        assert!(vigil.judge(true, 0.05, 1));
        let mut bans = Vec::new();
        let mut now = 2;
        for _ in 0..10 {
            assert!(!vigil.judge(true, 0.5, now));
            let from = now;
            while !vigil.judge(false, 0.5, now) {
                now += Vigil::BAN_MIN / 4;
            }
            bans.push((now - from) / Vigil::BAN_MIN);
        }
        assert_eq!(bans, [1, 2, 4, 8, 16, 32, 64, 64, 64, 64]);
        assert!(vigil.judge(true, 0.0, now));
    }
}
