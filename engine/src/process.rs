//! One process of a run, from its first mapping to its last.
//!
//! At first nothing happens but book-keeping: memory is charged to the process's grant as it is handed
//! out. When the group has no more to grant, or others ask for what the process holds, the engine starts,
//! registers what is mapped, and from then on charges what is really there.
//!
//! The calls below come from the program's own threads. Whoever is about to take a lock of the engine
//! blocks signals and keeps its stack where it is ([`Process::enter`]): a fault with the lock held would
//! wait for itself.

use crate::engine::{Progress, Workspace};
use crate::group::{Field, Group, Slot};
use crate::pause::Pause;
use crate::regions::{Access, AtFork, Attributes, Charging, Region, Regions};
use crate::runtime::{Beginning, Heritage, OpenKernel, Runtime, Started};
use pagetide_swap::{CLUSTER_PAGES, Counter, PageIndex, State, Word};
use pagetide_sys::guest;
use pagetide_sys::procfs::Identity;
use pagetide_sys::task::{self, SignalsBlocked};
use std::io::ErrorKind;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicUsize, Ordering::Relaxed, Ordering::SeqCst, fence};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError, RwLockWriteGuard};
use std::time::Duration;

/// Pages that processes without an engine leave to others: 16 MiB.
const ASLEEP_RESERVE: i64 = 4096;

/// Pages of a grant up to which a process that has no engine gets more whatever is left: 3 MiB, of which it touches a
/// third. An engine takes half a MiB, beside what can never leave.
const SMALL: i64 = 768;
/// The part of the cap by which such processes may overdraw it, until others have given.
const SMALL_PART: i64 = 8;
/// Steps ([`Group::step`]) that a process without an engine may be spared.
const SPARED_STEPS: i64 = 2;

/// Steps ([`Group::step`]) that a process without an engine holds when others may want some of it.
const SENTRY_STEPS: i64 = 4;
/// Address space that is left where there is one: its stack's range takes a 64th of that.
const SENTRY_ROOM: usize = 1 << 30;
/// Between looks of a sentry that nobody wakes.
const SENTRY_WAIT: Duration = Duration::from_secs(600);

/// Pages of a run that is listed as one.
const RUN_MAX: u64 = 64;

/// Forks of forks, each without an exec in between, that one chain of processes may have.
const GENERATIONS: usize = 256;
/// How long a thread of the program waits for an engine to start, which takes some milliseconds: and when that was not
/// enough, since it holds the loader's lock or somebody does who waits for the same.
const START_WAIT: Duration = Duration::from_millis(500);
const LATE_WAIT: Duration = Duration::from_millis(1);

/// The process.
///
/// A forked child may find any lock held by a thread that it does not have. So everything that changes
/// lives in a *generation*, and a child begins a new one.
#[derive(Debug)]
pub struct Process {
    group: Group,
    open: OpenKernel,
    generations: Box<[OnceLock<Box<Generation>>]>,
    current: AtomicUsize,
    /// Whether something was opened through which pages may be pinned, with an engine or before.
    pins: Arc<AtomicBool>,
}

#[derive(Debug)]
struct Generation {
    /// The process: a child of `vfork`, which works in its memory, is another.
    pid: u32,
    slot: Slot,
    /// Set once the engine runs.
    runtime: OnceLock<&'static Runtime>,
    /// The managed ranges, until the engine runs and has them.
    early: Mutex<Regions>,
    /// Held while what is mapped where changes: a range that is given up is not another mapping's before the
    /// table has forgotten what was there, and nobody of ours touches one that is being moved.
    layout: Arc<Mutex<()>>,
    /// Mapping calls, until the engine runs and counts them: it does not start while one is under way.
    phase: Pause,
    /// Granted and not yet handed out; may be negative for a moment.
    unspent: AtomicI64,
    /// Held while a sentry is posted.
    posting: Mutex<()>,
    /// Whether somebody has begun to start the engine.
    starting: AtomicBool,
    /// Whether the engine's threads are there: what is left to do waits for nobody.
    assembling: AtomicBool,
    /// Whether it has come to an end.
    start_ended: Mutex<bool>,
    started: Condvar,
    /// Whether somebody has waited for it in vain.
    late: AtomicBool,
    /// Whether a sentry was posted, or could not be.
    watched: AtomicBool,
    /// Whether starting the engine failed: not tried again.
    failed: AtomicBool,
    /// One more than the number of the slot that a fork under way has taken for the child.
    forking: AtomicUsize,
    /// Whether what is mapped stays in memory.
    holds_new: AtomicBool,
    /// Signals that the forking thread has blocked until the fork is over.
    signals: Mutex<Option<SignalsBlocked>>,
}

impl Generation {
    fn new(slot: Slot, regions: Regions, unspent: i64) -> Self {
        Self {
            pid: std::process::id(),
            slot,
            runtime: OnceLock::new(),
            early: Mutex::new(regions),
            layout: Arc::default(),
            phase: Pause::default(),
            unspent: AtomicI64::new(unspent),
            posting: Mutex::new(()),
            starting: AtomicBool::new(false),
            assembling: AtomicBool::new(false),
            start_ended: Mutex::new(false),
            started: Condvar::new(),
            late: AtomicBool::new(false),
            watched: AtomicBool::new(false),
            failed: AtomicBool::new(false),
            forking: AtomicUsize::new(0),
            holds_new: AtomicBool::new(false),
            signals: Mutex::new(None),
        }
    }

    /// Whether the engine runs, or never will.
    fn has_started(&self) -> bool {
        self.runtime.get().is_some() || self.failed.load(Relaxed)
    }

    fn note_start(&self, started: Started) {
        match started {
            Ok(runtime) => {
                let _ = self.runtime.set(runtime);
                self.slot.set(Field::Spared, 0);
                // A sentry has nothing more to do.
                self.slot.ring();
            }
            Err(error) => {
                self.failed.store(true, Relaxed);
                self.slot.set(Field::Listens, 0);
                task::say(&format!("{error}: the program goes on without swap"));
            }
        }
        *lock(&self.start_ended) = true;
        self.started.notify_all();
    }

    /// Waits until the engine runs, or never will. For its threads to be there, `most` once, then hardly at all.
    fn wait_started(&self, most: Option<Duration>) {
        let ended = lock(&self.start_ended);
        let may_be_long = most.filter(|_| !self.assembling.load(Relaxed));
        let ended = match may_be_long {
            None => ended,
            Some(most) => {
                let most = if self.late.load(Relaxed) { LATE_WAIT } else { most };
                let running = |ended: &mut bool| !*ended;
                let waited = self.started.wait_timeout_while(ended, most, running);
                let (ended, result) = waited.unwrap_or_else(PoisonError::into_inner);
                if result.timed_out() && !self.assembling.load(Relaxed) {
                    self.late.store(true, Relaxed);
                    return;
                }
                ended
            }
        };
        drop(self.started.wait_while(ended, |ended| !*ended).unwrap_or_else(PoisonError::into_inner));
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What a mapping call of the program works with: signals blocked, its stack in place.
#[derive(Debug)]
pub struct Entered<'a> {
    generation: &'a Generation,
    runtime: Option<&'static Runtime>,
    protected: [Option<usize>; 2],
    _signals: SignalsBlocked,
}

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        match self.runtime {
            None => self.generation.phase.end_call(),
            Some(runtime) => {
                for token in self.protected.into_iter().flatten() {
                    runtime.engine().unprotect(token);
                }
                runtime.pause.end_call();
            }
        }
    }
}

/// The managed ranges, locked for change.
enum RegionsGuard<'a> {
    Early(MutexGuard<'a, Regions>),
    Armed(RwLockWriteGuard<'a, Regions>),
}

impl std::ops::Deref for RegionsGuard<'_> {
    type Target = Regions;
    fn deref(&self) -> &Regions {
        match self {
            Self::Early(regions) => regions,
            Self::Armed(regions) => regions,
        }
    }
}

impl std::ops::DerefMut for RegionsGuard<'_> {
    fn deref_mut(&mut self) -> &mut Regions {
        match self {
            Self::Early(regions) => regions,
            Self::Armed(regions) => regions,
        }
    }
}

/// The words of a range, but those of clusters that are all holes. Takes no lock.
fn words(runtime: &Runtime, range: Range<PageIndex>) -> impl Iterator<Item = (PageIndex, Word)> + '_ {
    let table = runtime.engine().swap().table();
    table
        .touched(range.start.cluster().0..range.end.0.div_ceil(CLUSTER_PAGES as u64))
        .flat_map(|number| (0..CLUSTER_PAGES).map(move |at| number.page(at)))
        .filter(move |page| range.contains(page))
        .map(|page| (page, table.peek(page)))
}

/// Pages that a region counts for before the engine runs.
fn charge(range: &Range<PageIndex>, attributes: &Attributes) -> i64 {
    match (attributes.charging, attributes.access) {
        (Charging::ByMapping, Access::Read | Access::Write) => (range.end.0 - range.start.0) as i64,
        _ => 0,
    }
}

impl Process {
    /// Joins a run: takes a slot, and a grant for what the process has already.
    ///
    /// `None` if the run has as many processes as it may have.
    pub fn join(group: Group, open: OpenKernel) -> Option<Self> {
        Self::leave(group);
        let slot = group.claim(Identity::own())?;
        let observed =
            pagetide_sys::procfs::memory("self").map_or(256, |memory| group.charged(&memory)) as i64;
        group.take_anyway(observed);
        slot.set(Field::Grant, observed as u64);
        slot.set(Field::Observed, observed as u64);
        let this = Self {
            group,
            open,
            generations: (0..GENERATIONS).map(|_| OnceLock::new()).collect(),
            current: AtomicUsize::new(0),
            pins: Arc::default(),
        };
        let _ = this.generations[0].set(Box::new(Generation::new(slot, Regions::default(), 0)));
        Some(this)
    }

    /// Gives back the slot of a program that this one has replaced by exec.
    pub fn leave(group: Group) {
        let own = Identity::own();
        // Not by the start time: with an exec a process may enter another time namespace.
        let is_own = |process: Identity| (process.pid, process.namespace) == (own.pid, own.namespace);
        group.release(group.live().filter(|slot| is_own(slot.process())));
    }

    fn generation(&self) -> &Generation {
        self.generations[self.current.load(Relaxed)].get().expect("set before it becomes current")
    }

    /// The engine, if it runs.
    pub fn runtime(&self) -> Option<&'static Runtime> {
        self.generation().runtime.get().copied()
    }

    /// The program is about to open something through which its pages may be pinned. From the return on none leaves in a
    /// way that takes pinned ones along.
    pub fn note_pins(&self) {
        self.pins.store(true, SeqCst);
        // Either the engine that starts meanwhile sees this before it takes anything out, or it is seen here.
        fence(SeqCst);
        if let Some(runtime) = self.runtime() {
            runtime.engine().await_taken();
        }
    }

    /// Whether anything is known of the pages of `range`. Takes no lock.
    pub fn knows(&self, range: Range<PageIndex>) -> bool {
        self.runtime().is_some_and(|runtime| words(runtime, range).any(|(_, word)| word != Word::HOLE))
    }

    /// Prepares for taking locks of the engine.
    pub fn enter(&self) -> Entered<'_> {
        let signals = SignalsBlocked::new();
        let generation = self.generation();
        generation.phase.begin_call();
        let runtime = generation.runtime.get().copied();
        let mut protected = [None, None];
        if let Some(runtime) = runtime {
            generation.phase.end_call();
            runtime.pause.begin_call();
            let here = PageIndex::of_address((&raw const protected).addr());
            let deeper = PageIndex(here.0.saturating_sub(16));
            let engine = runtime.engine();
            let protect = |page: PageIndex| loop {
                match engine.protect(page.cluster()) {
                    Some(token) => break token,
                    // More threads than places: each holds one for microseconds.
                    None => std::thread::yield_now(),
                }
            };
            protected[0] = Some(protect(here));
            if deeper.cluster() != here.cluster() {
                protected[1] = Some(protect(deeper));
            }
            // A stack in managed memory: bring in the part that the call is going to use.
            if engine.swap().table().peek(here).state() == State::Present {
                task::populate(deeper.address(), here.address() - deeper.address());
            }
        }
        Entered { generation, runtime, protected, _signals: signals }
    }

    // ---- before the engine runs -----------------------------------------------------------------

    /// Charges pages that are handed out to the program. Starts the engine when the group has no more.
    ///
    /// Call it before [`Process::enter`], never within.
    pub fn charge(&'static self, pages: i64) {
        let Generation { slot, unspent, runtime, phase, .. } = self.generation();
        if runtime.get().is_some() || pages <= 0 || unspent.fetch_sub(pages, Relaxed) >= pages {
            return;
        }
        // A small process takes no more ahead than it may use.
        let ahead = (self.group.step() / 4).min(slot.granted().max(0) / 8);
        let wanted = (-unspent.load(Relaxed)).max(0) + ahead;
        if wanted == 0 {
            // Another thread has taken enough meanwhile.
            return;
        }
        // A sixteenth of the cap is left for others, and for what is not managed. Without an engine nothing
        // is ever given back: where it is tight, processes start with one.
        let reserve = (self.group.setup().cap_pages as i64 / 16).max(ASLEEP_RESERVE);
        let small = slot.granted().max(0) + wanted <= SMALL;
        // An engine that starts takes over what is granted by then: no grant comes between.
        phase.begin_call();
        let armed = runtime.get().is_some();
        // For one that is so small that an engine would take more than it could give, from others if need be; unless
        // those small ones are so many that others have not given for a while.
        let most = self.group.setup().cap_pages as i64 / SMALL_PART;
        let granted = !armed && (self.group.take(wanted, reserve) || small && self.group.take(wanted, -most));
        if granted {
            slot.word(Field::Grant).fetch_add(wanted as u64, Relaxed);
            unspent.fetch_add(wanted, Relaxed);
        }
        phase.end_call();
        if !armed && !granted {
            return self.arm();
        }
        if granted && self.group.free() < 0 {
            self.group.ask(*slot, wanted);
        }
        if granted && self.handed_out() > SENTRY_STEPS * self.group.step() {
            self.post_sentry();
        }
    }

    /// Pages that the process was handed out, whatever of them it is charged for.
    fn handed_out(&self) -> i64 {
        let slot = self.generation().slot;
        slot.get(Field::Grant).wrapping_add(slot.get(Field::Spared)) as i64
    }

    /// Charges pages that an allocator has taken for objects of one size each, which it will use bit by bit if at all:
    /// most of those that a small process takes are never touched. As long as the engine does not run three quarters
    /// of the first ones are [spared](Field::Spared).
    pub fn charge_committed(&'static self, pages: i64) {
        if pages <= 0 {
            return;
        }
        let Generation { slot, runtime, .. } = self.generation();
        let mut spared = 0;
        let here = |spared: u64| SPARED_STEPS * self.group.step() - spared as i64;
        if runtime.get().is_none() && here(slot.get(Field::Spared)) > 0 {
            let most = (pages - pages / 4).min(self.group.uncharged_left());
            let _ = slot.word(Field::Spared).fetch_update(Relaxed, Relaxed, |already| {
                spared = most.min(here(already)).max(0);
                Some(already + spared as u64)
            });
        }
        self.charge(pages - spared);
    }

    /// Takes back such a charge.
    pub fn uncharge_committed(&self, pages: i64) {
        let spared = self.generation().slot.word(Field::Spared);
        let mut back = 0;
        let _ = spared.fetch_update(Relaxed, Relaxed, |spared| {
            back = spared.min(pages as u64);
            Some(spared - back)
        });
        self.uncharge(pages - back as i64);
    }

    /// Starts a guest that waits for the bell, and starts the engine when others ask for pages: the process itself
    /// may wait for somebody for hours, and make no call that would tell it. A small one is let alone.
    fn post_sentry(&'static self) {
        let generation = self.generation();
        if generation.watched.load(Relaxed) || std::process::id() != generation.pid {
            return;
        }
        let _signals = SignalsBlocked::new();
        let _posting = lock(&generation.posting);
        let posted = generation.watched.swap(true, Relaxed) || generation.runtime.get().is_some();
        // Where address space is short it is the program's.
        let posted = posted || pagetide_sys::mapping::room() < SENTRY_ROOM;
        // Without it the process keeps what it has for as long as it makes no call.
        if !posted && guest::spawn("pagetide-sentry", Box::new(|| self.keep_watch(generation))).is_ok() {
            generation.slot.listen();
        }
    }

    fn keep_watch(&'static self, generation: &Generation) {
        while !generation.has_started() {
            let seen = generation.slot.get(Field::Bell);
            if generation.slot.get(Field::Asked) > 0 {
                return self.arm();
            }
            generation.slot.wait_bell(seen, SENTRY_WAIT);
        }
    }

    /// Takes back a charge.
    pub fn uncharge(&self, pages: i64) {
        let Generation { slot, unspent, runtime, phase, .. } = self.generation();
        if runtime.get().is_some() || pages <= 0 {
            return;
        }
        let now = unspent.fetch_add(pages, Relaxed) + pages;
        let surplus = now - self.group.step() / 2;
        if surplus <= self.group.step() {
            return;
        }
        phase.begin_call();
        if runtime.get().is_none() && unspent.compare_exchange(now, now - surplus, Relaxed, Relaxed).is_ok() {
            slot.word(Field::Grant).fetch_sub(surplus as u64, Relaxed);
            self.group.give(surplus - slot.pay_debt(surplus));
        }
        phase.end_call();
    }

    /// Starts the engine, and waits until it runs; not for ever, if the thread may hold what it takes to start one. Not
    /// for a child of `vfork`: threads that it starts are its own, and end with it. The process does so itself when it
    /// charges next.
    pub fn arm(&'static self) {
        self.arm_with(Heritage::None);
    }

    fn arm_with(&'static self, heritage: Heritage) {
        let _signals = SignalsBlocked::new();
        let generation = self.generation();
        if std::process::id() != generation.pid || generation.has_started() {
            return;
        }
        // A forked child cannot do without: its pages are out. It has no other thread that could hold anything.
        let most = match heritage {
            Heritage::Forked(_) => None,
            Heritage::None => Some(START_WAIT),
        };
        if !generation.starting.swap(true, Relaxed) {
            self.start(generation, heritage);
        }
        generation.wait_started(most);
    }

    fn start(&'static self, generation: &'static Generation, heritage: Heritage) {
        let beginning = Beginning {
            group: self.group,
            slot: generation.slot,
            heritage,
            open: self.open,
            pins: Arc::clone(&self.pins),
            layout: Arc::clone(&generation.layout),
            stop: Box::new(move || {
                // Mapping calls under way end first; new ones wait until the engine has the regions.
                generation.assembling.store(true, Relaxed);
                generation.phase.freeze(task::tid());
                std::mem::take(&mut *lock(&generation.early))
            }),
            ended: Box::new(move |started| {
                generation.note_start(started);
                if generation.assembling.load(Relaxed) {
                    generation.phase.thaw();
                }
            }),
        };
        if let Err(error) = Runtime::start(beginning) {
            generation.note_start(Err(error));
        }
    }

    /// What the pages of `range` would be charged more, before the engine runs, if they were accessible.
    pub fn charge_to_open(&self, range: Range<PageIndex>) -> i64 {
        if self.runtime().is_some() {
            return 0;
        }
        let entered = self.enter();
        let closed = |region: &Region| region.attributes.access == Access::None;
        let regions = entered.regions();
        let pieces = regions.pieces(range).filter(|(_, region)| closed(region));
        pieces
            .map(|(part, region)| charge(&part, &Attributes { access: Access::Write, ..region.attributes }))
            .sum()
    }
}

/// What a call that resizes a mapping may do.
#[derive(Clone, Copy, Debug)]
pub struct Remapping {
    /// Whether the mapping may end up elsewhere.
    pub may_move: bool,
    /// Whether the old place stays mapped, empty.
    pub keeps_old: bool,
}

impl Entered<'_> {
    fn regions(&self) -> RegionsGuard<'_> {
        match self.runtime {
            None => RegionsGuard::Early(lock(&self.generation.early)),
            Some(runtime) => {
                RegionsGuard::Armed(runtime.engine().regions.write().unwrap_or_else(PoisonError::into_inner))
            }
        }
    }

    /// Whether any part of `range` is managed.
    pub fn manages(&self, range: Range<PageIndex>) -> bool {
        match self.runtime {
            Some(runtime) => {
                let regions = runtime.engine().regions.read().unwrap_or_else(PoisonError::into_inner);
                regions.pieces(range).next().is_some()
            }
            None => lock(&self.generation.early).pieces(range).next().is_some(),
        }
    }

    /// A new private anonymous mapping is managed from now on. Returns the pages that need no charge any more: of a
    /// mapping that went from there by a call that nobody told us of.
    pub fn mapped(&self, range: Range<PageIndex>, mut attributes: Attributes) -> i64 {
        // Whoever gave up the place has done with it.
        let _layout = lock(&self.generation.layout);
        let (_, released) = self.giving_up(range.clone(), || Ok(()), |removed| self.forget(removed));
        attributes.locked |= self.generation.holds_new.load(Relaxed);
        match self.runtime {
            None => self.regions().insert(range, attributes),
            Some(runtime) => {
                // What the kernel does not register (a mapping of another kind) is not managed.
                if runtime.register(range.clone()).is_ok() {
                    self.regions().insert(range.clone(), attributes);
                    // Populated already, by MAP_POPULATE or a lock: it counts.
                    runtime.adopt(range);
                }
            }
        }
        released
    }

    /// `range` is about to be unmapped, or replaced: `call` does it. Returns its result, and the pages
    /// that were charged.
    pub fn unmapping<T>(
        &self,
        range: Range<PageIndex>,
        call: impl FnOnce() -> Result<T, i32>,
    ) -> (Result<T, i32>, i64) {
        let _layout = lock(&self.generation.layout);
        self.giving_up(range, call, |removed| self.forget(removed))
    }

    /// Runs `call`, which moves another mapping to `range`. Returns its result, and the pages that need no
    /// charge any more. What the table knows of the range is for `call` to forget.
    pub fn replacing<T>(
        &self,
        range: Range<PageIndex>,
        call: impl FnOnce() -> Result<T, i32>,
    ) -> (Result<T, i32>, i64) {
        self.giving_up(range, call, |_| {})
    }

    /// Runs `call`, after which what is managed of `range` now is not there any more, and then `forget`.
    fn giving_up<T>(
        &self,
        range: Range<PageIndex>,
        call: impl FnOnce() -> Result<T, i32>,
        forget: impl FnOnce(&[(Range<PageIndex>, Region)]),
    ) -> (Result<T, i32>, i64) {
        // No region: no fault brings anything in there any more, and nothing is taken out.
        let removed = self.regions().remove(range);
        let result = call();
        if result.is_ok() {
            forget(&removed);
            return (result, removed.iter().map(|(part, region)| charge(part, &region.attributes)).sum());
        }
        // The kernel refused (too many mappings): the mapping is still there, and so is what is out of it.
        self.restore(&removed);
        (result, 0)
    }

    /// The table forgets what was in regions that are not there any more.
    fn forget(&self, removed: &[(Range<PageIndex>, Region)]) {
        if let Some(runtime) = self.runtime {
            for (part, _) in removed {
                runtime.engine().discard(part.clone(), |_| {});
            }
        }
    }

    fn register_again(&self, range: Range<PageIndex>) {
        let Some(runtime) = self.runtime else { return };
        if let Err(error) = runtime.register(range) {
            // What is out of the program could not be brought back any more.
            task::say(&format!("cannot register a mapping that moved: {error}"));
            task::kill_self();
        }
    }

    /// Puts regions back that a call, which failed, did not take.
    fn restore(&self, removed: &[(Range<PageIndex>, Region)]) {
        for (part, region) in removed {
            self.regions().insert(part.clone(), region.attributes);
        }
    }

    /// Runs `call`, which changes what the program may do with `range`, and notes it. Returns its result,
    /// and the pages that need no charge any more.
    pub fn protecting<T>(
        &self,
        range: Range<PageIndex>,
        access: Access,
        call: impl FnOnce() -> Result<T, i32>,
    ) -> (Result<T, i32>, i64) {
        let mut regions = self.regions();
        // Under the lock: a take-out must not see one access and meet another.
        let result = call();
        let pieces: Vec<_> = regions.pieces(range).collect();
        let mut released = 0;
        for (part, region) in pieces {
            // What failed may have changed a part (up to a hole, ENOMEM): less is never wrong, since what leaves is
            // made writable where it lands.
            let access = if result.is_ok() { access } else { access.min(region.attributes.access) };
            let after = Attributes { access, ..region.attributes };
            released += (charge(&part, &region.attributes) - charge(&part, &after)).max(0);
            regions.insert(part, after);
        }
        (result, released)
    }

    /// What is managed of `range` stays in memory from now on, or need not any more. What is out comes back
    /// when it is touched.
    pub fn hold(&self, range: Range<PageIndex>, locked: bool) {
        self.regions().change(range, |attributes| attributes.locked = locked);
    }

    /// What is managed of `range` is never taken out from now on; it is not locked for all that. What is out comes
    /// back when it is touched.
    pub fn keep(&self, range: Range<PageIndex>) {
        self.regions().change(range, |attributes| attributes.kept = true);
    }

    /// Whether what is mapped from now on stays in memory.
    pub fn hold_new(&self, locked: bool) {
        self.generation.holds_new.store(locked, Relaxed);
    }

    /// Runs of pages of `range` that are out of the program, at most 64 each.
    pub fn out(&self, range: Range<PageIndex>) -> Vec<Range<PageIndex>> {
        let Some(runtime) = self.runtime else { return Vec::new() };
        let mut runs: Vec<Range<PageIndex>> = Vec::new();
        for (page, word) in words(runtime, range) {
            let out = matches!(word.state(), State::Swapped | State::Cached);
            match runs.last_mut() {
                _ if !out => {}
                Some(run) if run.end == page && page.0 - run.start.0 < RUN_MAX => run.end = page.plus(1),
                _ => runs.push(page..page.plus(1)),
            }
        }
        runs
    }

    /// Brings in what is out of `range`, whose pages do not leave, and waits for what is on its way.
    fn settle_in(&self, range: Range<PageIndex>) {
        loop {
            let out = self.out(range.clone());
            if out.is_empty() {
                return;
            }
            for run in out {
                task::populate(run.start.address(), run.end.address() - run.start.address());
            }
            std::thread::yield_now();
        }
    }

    /// Every managed range.
    pub fn ranges(&self) -> Vec<Range<PageIndex>> {
        self.regions().iter().map(|(start, region)| start..region.end).collect()
    }

    /// Whether a part of `range` must stay in memory.
    pub fn holds(&self, range: Range<PageIndex>) -> bool {
        self.regions().pieces(range).any(|(_, region)| region.attributes.locked)
    }

    /// Changes what a forked child is to find in `range`.
    pub fn at_fork(&self, range: Range<PageIndex>, change: fn(&mut AtFork)) {
        self.regions().change(range, |attributes| change(&mut attributes.at_fork));
    }

    /// Drops the contents of `range`, which reads as zeroes afterwards. `call` does it in the kernel, for
    /// each part of the range, in order.
    pub fn dropping(&self, range: Range<PageIndex>, mut call: impl FnMut(Range<PageIndex>)) {
        match self.runtime {
            None => call(range),
            Some(runtime) => runtime.engine().discard(range, call),
        }
    }

    /// A mapping moves or changes size: `call` is the system call and returns the new address. Returns by how many pages
    /// the charge is more than before, too.
    pub fn remapping(
        &self,
        old: Range<PageIndex>,
        new_pages: u64,
        way: Remapping,
        call: impl FnOnce() -> Result<PageIndex, i32>,
    ) -> Result<(PageIndex, i64), i32> {
        let Remapping { may_move, keeps_old } = way;
        let _layout = lock(&self.generation.layout);
        let moved_pages = new_pages.min(old.end.0 - old.start.0);
        let from = old.start..old.start.plus(moved_pages);
        // What a locked mapping grows by is filled by the call itself, which would wait for itself if those faults were
        // ours. The rest is there, and stays: whoever touches it meanwhile finds it.
        let is_filled = |Attributes { locked, access, .. }: Attributes| locked && access != Access::None;
        let fills = new_pages > moved_pages
            && self.regions().pieces(old.clone()).all(|(_, region)| is_filled(region.attributes));
        if fills {
            self.settle_in(old.clone());
        }
        // What it shrinks by goes in any case.
        let tail = self.regions().remove(from.end..old.end);
        let removed = self.regions().remove(from.clone());
        let released = self.runtime.filter(|_| may_move || fills);
        if let Some(runtime) = released {
            // Quiet now: no region, so no faults are served and nothing is taken out. What is on probation
            // sits at its offset in a cluster, which the move may change: it goes back first.
            // An error means that a part is not registered: it was unmapped behind our back.
            let _ = runtime.release(from);
        }
        let to = match call() {
            Ok(to) => to,
            Err(error) => {
                if released.is_some() {
                    removed.iter().for_each(|(part, _)| self.register_again(part.clone()));
                }
                self.restore(&removed);
                self.restore(&tail);
                return Err(error);
            }
        };
        self.forget(&tail);
        let mut more = -tail.iter().map(|(part, region)| charge(part, &region.attributes)).sum::<i64>();
        if let Some(runtime) = self.runtime
            && to != old.start
        {
            runtime.engine().discard(to..to.plus(new_pages), |_| {});
            runtime.engine().rename(old.start, to, moved_pages);
        }
        for (nth, (part, region)) in removed.iter().enumerate() {
            let at = |page: PageIndex| to.plus(page.0 - old.start.0);
            let last = nth + 1 == removed.len() && new_pages > moved_pages;
            let end = if last { to.plus(new_pages) } else { at(part.end) };
            self.register_again(at(part.start)..end);
            let mut regions = self.regions();
            regions.insert(at(part.start)..at(part.end), region.attributes);
            if last {
                // What it grows by is like the end of it, though nothing is written there that it is kept for.
                let grown = Attributes { kept: false, ..region.attributes };
                more += charge(&(at(part.end)..end), &grown);
                regions.insert(at(part.end)..end, grown);
            }
        }
        if keeps_old {
            more += removed.iter().map(|(part, region)| charge(part, &region.attributes)).sum::<i64>();
            removed.iter().for_each(|(part, _)| self.register_again(part.clone()));
            self.restore(&removed);
        }
        Ok((to, more))
    }
}

impl Process {
    // ---- forks ----------------------------------------------------------------------------------

    /// Before a fork, in the parent: makes room for a second process, takes a slot for it, and stops the
    /// engine. What the forking thread touches from here to the fork is served all the same.
    pub fn before_fork(&'static self) {
        let slot = self.group.claim(Identity::UNKNOWN);
        let own = self.generation().slot;
        let [handed_out, added] = [Field::Grant, Field::Added].map(|field| own.get(field));
        let grant = handed_out.wrapping_add(added) as i64;
        if self.runtime().is_none()
            && let Some(slot) = slot
        {
            // The child may come to write all that the parent has. A small one is let pass: it execs, or
            // its own engine starts as soon as it grows.
            let small = grant <= 8 * self.group.step();
            if small {
                self.group.take_anyway(grant);
            }
            if small || self.group.take(grant, 0) {
                slot.set(Field::Grant, handed_out);
                slot.set(Field::Added, added);
                slot.set(Field::Spared, own.get(Field::Spared));
            } else {
                self.arm();
            }
        }
        let generation = self.generation();
        let signals = SignalsBlocked::new();
        generation.phase.freeze(task::tid());
        if let Some(runtime) = self.runtime() {
            runtime.pause.freeze(task::tid());
            let engine = runtime.engine();
            engine.hold_waiting(true);
            runtime.errand(move |runtime| {
                if let Some(slot) = slot {
                    make_room(runtime, slot, &mut Workspace::default());
                }
            });
            // Nothing is taken out from here to the fork.
            runtime.pause.rehearse(|| {
                // Of threads that have locks which the rehearsal needs, or the fork itself.
                runtime.errand(|runtime| {
                    runtime.engine().end_rest();
                    runtime.engine().answer_waiting(&mut Workspace::default());
                });
                // A process whose children belong to another pid namespace cannot start threads. They can.
                if let Err(error) = guest::rehearse()
                    && error.kind() != ErrorKind::InvalidInput
                {
                    task::say(&format!("a forked child may not be able to start its engine: {error}"));
                }
            });
            engine.swap().counters().add(Counter::forks, 1);
        }
        generation.forking.store(slot.map_or(0, |slot| slot.index() + 1), Relaxed);
        *lock(&generation.signals) = Some(signals);
    }

    /// The last step of ours before a fork. What the C library touches after it (its configuration of names, for
    /// one) is brought in all the same, and whoever does so has done with everything when the thread goes on.
    pub fn settle_before_fork(&self) {
        let generation = self.generation();
        let Some(runtime) = self.runtime() else { return };
        runtime.errand(|runtime| {
            let mut work = Workspace::default();
            while !runtime.engine().drain(&mut work) {
                std::thread::yield_now();
            }
        });
        runtime.answer_last(true);
        // Whoever answered our last fault may still be about to say so in the table.
        runtime.pause.settle();
        if let Some(index) = generation.forking.load(Relaxed).checked_sub(1) {
            let slot = self.group.slot(index);
            runtime.share_pool(slot);
            runtime.engine().swap().blocks().share_with(&self.group.held(slot));
        }
    }

    /// After a fork, in the parent. Returns the child's slot.
    pub fn after_fork_in_parent(&self) -> Option<usize> {
        let generation = self.generation();
        let child = generation.forking.swap(0, Relaxed).checked_sub(1);
        if let Some(runtime) = self.runtime() {
            runtime.answer_last(false);
            runtime.engine().hold_waiting(false);
            runtime.pause.thaw();
            runtime.kick();
        }
        generation.phase.thaw();
        drop(lock(&generation.signals).take());
        child
    }

    /// There was no fork after all: what was set aside for the child is free again.
    pub fn fork_failed(&self, child: usize) {
        let _signals = SignalsBlocked::new();
        // One that has a name was given up by the launcher meanwhile, and is another's.
        self.group.release(Some(self.group.slot(child)).filter(|slot| slot.get(Field::Pid) == 0));
        if let Some(runtime) = self.runtime() {
            runtime.kick();
        }
    }

    /// After a fork, in the child: takes its slot and starts an engine of its own, if the parent had one.
    pub fn after_fork_in_child(&'static self) {
        guest::forget_all();
        pagetide_sys::buffer::forget_all();
        let parent = self.generation();
        let _signals = lock(&parent.signals).take();
        let engine = parent.runtime.get().copied();
        let next = self.current.load(Relaxed) + 1;
        let slot = parent.forking.load(Relaxed).checked_sub(1).map(|index| self.group.slot(index));
        let (Some(slot), true) = (slot, next < GENERATIONS) else {
            // Without a slot nobody counts this process. One that has nothing out may go on.
            parent.phase.thaw();
            if engine.is_some() {
                task::say("too many processes in this run: a forked child cannot go on");
                task::kill_self();
            }
            return;
        };
        slot.name(Identity::own());
        // Nobody held these locks: the fork froze whoever takes them.
        let regions = match engine {
            Some(engine) => {
                let mut regions = engine.engine().regions.write().unwrap_or_else(PoisonError::into_inner);
                std::mem::take(&mut *regions)
            }
            None => lock(&parent.early).inherited(),
        };
        let unspent = parent.unspent.load(Relaxed);
        let _ = self.generations[next].set(Box::new(Generation::new(slot, regions, unspent)));
        self.current.store(next, Relaxed);
        if let Some(engine) = engine {
            self.arm_with(Heritage::Forked(engine));
            if self.runtime().is_none() {
                // Pages that are out of the program could not come back.
                task::kill_self();
            }
        } else if parent.watched.load(Relaxed) {
            self.post_sentry();
        }
    }
}

/// Evicts until what is in the program fits twice.
fn make_room(runtime: &Runtime, child: Slot, work: &mut Workspace) {
    let (engine, group) = (runtime.engine(), runtime.group());
    let mut stuck = 0;
    loop {
        let usage = engine.usage();
        let needed = usage.resident + usage.metadata + runtime.unmanaged() + engine.limits().low;
        let missing = needed - group.free() - engine.budget().free().max(0);
        if missing <= 0 || stuck > 64 {
            // Taken from our own first: what we freed above is in our budget.
            let own = engine.budget().free().clamp(0, needed);
            engine.budget().take(own);
            runtime.slot().word(Field::Grant).fetch_sub(own as u64, Relaxed);
            group.take_anyway(needed - own);
            // Our engine may have started since the child was granted what it would have needed without.
            let added = child.word(Field::Added).swap(0, Relaxed);
            let grant = child.word(Field::Grant).swap(needed as u64, Relaxed);
            group.give(grant.wrapping_add(added) as i64);
            // Before it runs anything else it starts its engine: what it shares with us is not to be charged
            // again meanwhile.
            child.set(Field::Armed, 1);
            return;
        }
        group.ask(runtime.slot(), missing);
        match engine.reclaim(work) {
            Progress::Freed(_) => stuck = 0,
            // Its completions go on while all else is frozen.
            Progress::Waits => std::thread::sleep(Duration::from_millis(1)),
            _ => {
                stuck += 1;
                std::thread::yield_now();
            }
        }
    }
}

const _: () = assert!(pagetide_sys::PAGE == pagetide_swap::PAGE_SIZE);
