//! The sampler: what the launcher does for a run every 20 ms.
//!
//! It releases the slots of processes that have died, charges memory that processes cannot account for
//! themselves (those whose engine does not run yet, and those that have no slot), asks for pages when the
//! cap is overdrawn, and keeps the peaks.

use crate::exact::Exact;
use crate::load::{LoadControl, Seen};
use crate::outside::Outside;
use crate::report::{Gathered, Pages};
use crate::responsiveness;
use crate::shmem::SharedMemory;
use crate::stall::{Stall, Waited};
use crate::strict::is_passed;
use crate::summary::{Holder, Most, NAMED};
use crate::tree;
use crate::unmanaged::{Members, Unmanaged};
use pagetide::group::{Field, Group, ProcessSlot, Responsiveness};
use pagetide_swap::Counter;
use pagetide_swap::balance::{POOL_FAULT_NS, PROBATION_FAULT_NS};
use pagetide_sys::procfs::{self, Identity};
use pagetide_sys::task;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Resource, getrlimit, pidfd_open};
use std::collections::HashMap;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::Ordering::AcqRel;
use std::time::{Duration, Instant};

/// Between samples.
pub const INTERVAL: Duration = Duration::from_millis(20);
/// Descriptors that are not spent on pidfds.
const FREE_FDS: u64 = 8;
/// Samples in a row in which a process has given nothing of what it was asked for, after which nobody counts on it: it
/// is stopped, or another program by now, without an engine.
const DEAF_SAMPLES: u32 = 100;
/// Samples in a row in which a small process without an engine takes nothing, after which only what it holds is
/// charged.
const IDLE_SAMPLES: u32 = 5;
/// Steps of the group that such a process may have been granted.
const IDLE_STEPS: i64 = 8;
/// What an idle process keeps beyond what it holds, as a part of a step.
const IDLE_SPARE: i64 = 16;
/// Pages a processor by which the kernel may err about what a process holds: some versions count them there first. And
/// how many processors a small process is expected to have been on.
const INEXACT_PAGES: i64 = 32;
const INEXACT_PROCESSORS: usize = 8;
/// A fork is done after so many samples, or never will be. Samples, not time: a run may be stopped in a fork.
const FORK_SAMPLES: u32 = 250;
/// The same where nobody knows whose fork it is: making room for the child may take a slow disk a while,
/// and a slot that is released too early is worse than one that is lost.
const NAMELESS_FORK_SAMPLES: u32 = 3000;

/// The sampler of a run.
#[derive(Debug)]
pub struct Sampler {
    group: Group,
    launcher: u32,
    /// By how many pages the kernel may err about what a process holds.
    inexact: i64,
    watches: HashMap<usize, Watch>,
    unmanaged: Unmanaged,
    shared: SharedMemory,
    peak: Pages,
    most: Most,
    exact: Exact,
    stored_most: u64,
    ratio: Option<f64>,
    stall: Option<Stall>,
    /// CMD, once it was started, and whether our library has answered in it.
    command: u32,
    answered: bool,
    load: Option<LoadControl>,
    now: Gathered,
}

/// What tells when a slot's process dies.
#[derive(Debug)]
struct Watch {
    process: Identity,
    /// An exec makes the same process another tenant.
    tenant: u64,
    /// As it is called here; 0 if that is not known.
    pid: u32,
    /// Samples that a fork has been under way, and of them those since whoever forked is dead.
    samples: u32,
    samples_dead: u32,
    pidfd: Option<OwnedFd>,
    gone: bool,
    memory: procfs::Watched,
    /// What it was asked for, and the samples since that has changed.
    asked: (u64, u32),
    /// What it held and was granted, and the samples since that has changed.
    held: ([i64; 2], u32),
    /// By how much it holds more than the kernel's count says, once it idles, if that can be told.
    uncounted: Option<i64>,
}

impl Watch {
    fn new(slot: ProcessSlot) -> Self {
        let process = slot.process();
        let mut this = Self {
            process,
            tenant: slot.tenant(),
            pid: 0,
            samples: 0,
            samples_dead: 0,
            pidfd: None,
            gone: false,
            memory: procfs::Watched::default(),
            asked: (0, 0),
            held: ([0; 2], 0),
            uncounted: None,
        };
        if process.start_time != 0 {
            this.find();
        }
        this
    }

    /// Finds out what the process is called here, and whether it lives. A slot can name anybody: only a process that
    /// descends from the launcher is looked at, and sent signals.
    fn find(&mut self) {
        let Ok(found) = self.process.pids() else { return };
        self.gone = found.is_empty();
        if let [pid] = found[..]
            && tree::descends(pid, std::process::id())
        {
            self.pid = pid;
            self.pidfd = pidfd(pid).ok();
            // Of whom is that pidfd? The pid may have been used again before it was opened.
            if self.pidfd.is_some() && self.process.pids().as_deref() != Ok(&found) {
                self.pidfd = None;
            }
        }
    }

    /// Whether it is the process that is called so here; also once that is dead.
    fn is(&self, pid: u32) -> bool {
        let here = || Identity::own().namespace == self.process.namespace;
        pid != 0 && (self.pid == pid || self.process.pid == pid && here())
    }

    /// Looks again, where no pidfd tells.
    fn look(&mut self, nobody_forks: bool) {
        if self.process.start_time == 0 {
            self.samples += 1;
            let forks = self.process.pid == 0;
            let dead =
                if forks { nobody_forks } else { self.process.pids().is_ok_and(|pids| pids.is_empty()) };
            self.samples_dead = if dead { self.samples_dead + 1 } else { 0 };
            let nameless = forks && self.samples > NAMELESS_FORK_SAMPLES;
            self.gone = self.samples_dead > FORK_SAMPLES || nameless;
        } else if self.pidfd.is_none() {
            // No pidfd tells, for want of descriptors or because it may be several.
            self.find();
        }
    }

    /// Whether a process has held and been granted the same for a while.
    fn idles(&mut self, held: [i64; 2]) -> bool {
        let samples = if held == self.held.0 { self.held.1 + 1 } else { 0 };
        self.held = (held, samples);
        samples >= IDLE_SAMPLES
    }

    /// By how much a process that idles may hold more than the kernel's count says. It is counted but once.
    fn uncounted(&mut self, counted: u64, inexact: i64) -> i64 {
        if self.held.1 == IDLE_SAMPLES {
            let found = procfs::counted_anonymous(self.pid);
            self.uncounted = found.map(|pages| (pages as i64 - counted as i64).max(0));
        }
        self.uncounted.unwrap_or(inexact)
    }

    /// Notes that a process does not answer. An engine that does says so anew.
    fn listen(&mut self, slot: ProcessSlot) {
        let asked = slot.get(Field::Asked);
        let samples = if asked > 0 && asked == self.asked.0 { self.asked.1 + 1 } else { 0 };
        self.asked = (asked, samples);
        if samples > DEAF_SAMPLES {
            slot.set(Field::Listens, 0);
        }
    }
}

fn pidfd(pid: u32) -> Result<OwnedFd, Errno> {
    let pidfd = pidfd_open(Pid::from_raw(pid as i32).ok_or(Errno::SRCH)?, PidfdFlags::empty())?;
    let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    // Some are left for looking at `/proc`.
    if pidfd.as_raw_fd() as u64 + FREE_FDS > limit { Err(Errno::MFILE) } else { Ok(pidfd) }
}

impl Sampler {
    /// A sampler for the run of `group`, in the file `group_fd`, of which this process is the launcher, with load
    /// control or without.
    pub fn new(group: Group, group_fd: &OwnedFd, max_stall: Option<Duration>, load_control: bool) -> Self {
        let load = || LoadControl::new(task::processors().len(), group.setup().cap_pages, Instant::now());
        Self {
            group,
            launcher: std::process::id(),
            inexact: INEXACT_PAGES * task::processors().len().min(INEXACT_PROCESSORS) as i64,
            watches: HashMap::new(),
            unmanaged: Unmanaged::new(),
            shared: SharedMemory::new(group_fd),
            peak: Pages::default(),
            most: Most::default(),
            exact: Exact::new(Instant::now()),
            stored_most: 0,
            ratio: None,
            command: 0,
            answered: false,
            stall: max_stall.map(|window| Stall::new(window, Instant::now())),
            load: load_control.then(load),
            now: Gathered::from(&group),
        }
    }

    /// Takes a sample. True if the run has stalled for longer than it may.
    pub fn sample(&mut self) -> bool {
        let inquiry = self.group.inquiry();
        let is_inquired = !self.group.has_launcher_answered(inquiry);
        if is_inquired {
            // Somebody is about to end for want of memory: what has gone meanwhile must not be counted.
            self.unmanaged.look_anew();
            self.shared.count_anew();
        }
        let mut slots: Vec<ProcessSlot> =
            self.group.live().filter(|slot| slot.get(Field::Taken) == 1).collect();
        self.watch(&slots);
        self.evict_replaced(&mut slots);
        for &slot in &slots {
            if !self.watches[&slot.index()].gone && slot.get(Field::StartTime) != 0 {
                self.observe(slot);
            }
            if let Some(watch) = self.watches.get_mut(&slot.index()) {
                watch.listen(slot);
                let is_asked = slot.is_asked(&self.group) && watch.pid != 0 && !watch.gone;
                slot.set_responsiveness(if is_asked {
                    responsiveness::look(watch.pid)
                } else {
                    Responsiveness::Answers
                });
            }
        }
        self.unmanaged.look(&self.group, self.launcher, &self.members());
        for (pid, shared) in self.unmanaged.shared() {
            self.shared.note(pid, shared);
        }
        self.group.charge_shared(self.shared.count(self.group.own_pages().0));
        // What the dead held last counts for the peaks.
        self.gather();
        self.keep_peaks();
        self.group.release(slots.iter().copied().filter(|slot| self.watches[&slot.index()].gone));
        self.watches.retain(|_, watch| !watch.gone);
        self.gather();
        self.ask(&slots);
        if is_inquired {
            self.group.answer_as_launcher(inquiry);
        }
        self.control_load(&slots);
        let waited = Waited {
            nanos: self.now.counter(Counter::stalled_ns),
            ticks: self.now.counter(Counter::stalled_ticks),
            now: self.now.stalled > 0,
        };
        self.stall.as_mut().is_some_and(|stall| stall.sample(Instant::now(), waited))
    }

    /// CMD was started.
    pub fn note_command(&mut self, pid: u32) {
        self.command = pid;
    }

    /// CMD, called `name`, has ended by itself. If our library has never answered in it, that is said.
    pub fn note_end(&mut self, name: &str) {
        if !self.answered {
            self.unmanaged.outside().note_silent(name, self.command);
        }
    }

    /// The programs that run without Pagetide.
    pub fn outside(&mut self) -> &mut Outside {
        self.unmanaged.outside()
    }

    /// The launcher was stopped for a while.
    pub fn note_stop(&mut self) {
        self.unmanaged.forgive();
    }

    /// How long nobody looked for processes without a slot at most, if that was too long.
    pub fn latest_look(&self) -> Option<Duration> {
        self.unmanaged.latest()
    }

    /// Charges the launcher, and the group page of which `group_fd` is the file.
    pub fn charge_own(&self, group_fd: &OwnedFd) {
        // 512-byte blocks.
        let shared = rustix::fs::fstat(group_fd).map_or(0, |stat| stat.st_blocks as u64 / 8);
        let launcher = procfs::memory("self").map_or(0, |memory| memory.anonymous + memory.tables);
        self.group.charge_own(shared, launcher);
    }

    /// Takes the last sample: CMD has ended.
    pub fn sample_last(&mut self) {
        // Nobody controls what goes on without it.
        self.load = None;
        self.group.live().for_each(|slot| slot.set_resting(false));
        self.sample();
    }

    fn watch(&mut self, slots: &[ProcessSlot]) {
        let mut old = std::mem::take(&mut self.watches);
        for &slot in slots {
            let watch = match old.remove(&slot.index()) {
                Some(watch) if watch.process == slot.process() && watch.tenant == slot.tenant() => watch,
                _ => Watch::new(slot),
            };
            self.watches.insert(slot.index(), watch);
        }
        let (mut watched, mut polled) = (Vec::new(), Vec::new());
        // Who could be forking?
        let nobody = self.watches.values().all(|watch| watch.gone || watch.process.pid == 0);
        for watch in self.watches.values_mut() {
            self.answered |= watch.is(self.command);
            watch.look(nobody);
            if let Some(fd) = &watch.pidfd {
                polled.push(PollFd::new(fd, PollFlags::IN));
                watched.push(&mut watch.gone);
            }
        }
        if poll(&mut polled, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).is_err() {
            return;
        }
        for (gone, polled) in watched.into_iter().zip(polled) {
            *gone |= !polled.revents().is_empty();
        }
    }

    /// The processes whose slots are watched.
    fn members(&self) -> Members {
        let placed = || self.watches.iter().filter(|(_, watch)| watch.pid != 0 || watch.gone);
        Members {
            pids: placed().map(|(_, watch)| watch.pid).collect(),
            slots: placed().map(|(&index, watch)| (index, watch.tenant)).collect(),
        }
    }

    /// Gives back the slots of processes that run another program by now, in which our library has not answered.
    fn evict_replaced(&mut self, slots: &mut Vec<ProcessSlot>) {
        let Self { watches, unmanaged, shared, group, .. } = self;
        let alive = |slot: &ProcessSlot| Some((*slot, watches.get(&slot.index())?));
        let watched = slots.iter().filter_map(alive).filter(|(_, watch)| watch.pid != 0 && !watch.gone);
        let replaced =
            unmanaged.replaced(watched.map(|(slot, watch)| (slot, watch.pid)), shared.group_page());
        for slot in replaced {
            if let Some(watch) = watches.remove(&slot.index()) {
                group.evict(slot, watch.tenant);
            }
            slots.retain(|other| other.index() != slot.index());
        }
    }

    fn observe(&mut self, slot: ProcessSlot) {
        let Some(watch) = self.watches.get_mut(&slot.index()) else { return };
        slot.set(Field::KnownAs, watch.pid.into());
        let pid = watch.pid.to_string();
        // An engine that runs accounts for itself. Without one what the process takes is seen here alone, and at once.
        let armed = slot.get(Field::Armed) != 0;
        let memory = if armed { watch.memory.look(&pid) } else { procfs::memory(&pid) };
        let Some(memory) = memory else { return };
        self.shared.note(watch.pid, memory.shared);
        let observed = memory.charged();
        slot.set(Field::Observed, observed);
        if armed {
            return;
        }
        let (observed, granted) = (observed as i64, slot.granted());
        let step = self.group.step();
        // What a small one was granted long ago and has not touched it will hardly touch all at once.
        let idles = watch.idles([observed, granted]) && slot.get(Field::Grant) as i64 <= IDLE_STEPS * step;
        let spare = if idles {
            granted - observed - watch.uncounted(memory.anonymous, self.inexact) - step / IDLE_SPARE
        } else {
            0
        };
        let less = spare.min(self.group.uncharged_left()).max(0);
        let more = (observed - granted).max(-less);
        if more != 0 {
            slot.word(Field::Added).fetch_add(more as u64, AcqRel);
            self.group.give(-more);
        }
    }

    fn gather(&mut self) {
        self.now = Gathered::from(&self.group);
    }

    fn keep_peaks(&mut self) {
        self.peak = self.peak.max(self.now.pages);
        if self.now.pages.total > self.most.pages.total {
            self.most = Most { pages: self.now.pages, holders: self.holders(), ..self.most };
        }
        let bytes = self.now.pages.total * pagetide_sys::PAGE as u64;
        if !is_passed(bytes, self.group.setup().cap_pages) {
            self.most.within = self.most.within.max(self.now.pages.total);
        } else if self.group.live().nth(1).is_some() {
            // One process alone shares nothing.
            let launcher = self.launcher;
            self.exact.look(Instant::now(), self.group.own_pages().1, || tree::descendants(launcher));
            self.most.counted = self.exact.counted();
        }
        if self.now.stored.0 > self.stored_most
            && let Some(ratio) = self.now.ratio()
        {
            (self.stored_most, self.ratio) = (self.now.stored.0, Some(ratio));
        }
    }

    /// Who holds the most that is not managed, while the cap is passed.
    fn holders(&self) -> Vec<Holder> {
        if self.now.pages.total <= self.group.setup().cap_pages {
            return Vec::new();
        }
        let slots = self.group.live().map(|slot| (slot.known_as() as u32, Pages::of(slot).unmanaged, false));
        let strangers = self.unmanaged.charges().map(|(pid, pages)| (pid, pages, true));
        let mut found: Vec<_> = slots.chain(strangers).filter(|(_, pages, _)| *pages > 0).collect();
        found.sort_unstable_by_key(|(_, pages, _)| std::cmp::Reverse(*pages));
        found.truncate(NAMED);
        let named = |(pid, pages, stranger)| Holder { pid, name: tree::name(pid), pages, stranger };
        found.into_iter().map(named).collect()
    }

    /// Asks for what is overdrawn, but not for what was asked for already.
    fn ask(&self, slots: &[ProcessSlot]) {
        let listeners = || slots.iter().copied().filter(|slot| slot.get(Field::Listens) != 0);
        let asked = || listeners().map(|slot| slot.get(Field::Asked) as i64).sum::<i64>();
        let before = asked();
        let wanted = -self.group.free() - before;
        if wanted <= 0 {
            return;
        }
        if let Some(poorest) = slots.iter().copied().min_by_key(ProcessSlot::granted) {
            self.group.ask(poorest, wanted);
        }
        // Nobody holds more than an equal share, or there is one process only: the richest gives anyway.
        if asked() == before
            && let Some(richest) = listeners().max_by_key(ProcessSlot::granted)
        {
            let most = slot_spare(richest);
            richest.word(Field::Asked).fetch_add(wanted.min(most).max(0) as u64, AcqRel);
            richest.ring();
        }
    }

    /// Has processes rest, or go on.
    fn control_load(&mut self, slots: &[ProcessSlot]) {
        let Some(load) = &mut self.load else { return };
        // Not those whose fork is still under way.
        let runs = |field| move |slot: &&ProcessSlot| slot.get(field) != 0;
        let slots = slots.iter().filter(runs(Field::Armed)).filter(runs(Field::StartTime));
        let slots: Vec<ProcessSlot> = slots.filter(|slot| slot.get(Field::Taken) == 1).copied().collect();
        let seen: Vec<_> = slots.iter().map(|&slot| seen(slot)).collect();
        for order in load.sample(Instant::now(), self.group.free(), &seen) {
            if let Some(slot) = slots.iter().find(|slot| slot.tenant() == order.tenant) {
                slot.set_resting(order.rests);
            }
        }
    }

    /// What the run holds, as last sampled.
    pub fn now(&self) -> Gathered {
        self.now
    }

    /// The most that it held.
    pub fn peak(&self) -> Pages {
        self.peak
    }

    /// What it held when that was the most, and who of it what is not managed.
    pub fn most(&self) -> Most {
        self.most.clone()
    }

    /// What the pool's compression gains, or did when it held the most.
    pub fn ratio(&self) -> Option<f64> {
        self.now.ratio().or(self.ratio)
    }

    /// Every process of the run.
    pub fn processes(&self) -> Vec<u32> {
        tree::descendants(self.launcher)
    }

    /// Whether a pid is, or was when last seen, a process of the run.
    pub fn knows(&self, pid: u32) -> bool {
        self.unmanaged.knows(pid)
            || self.watches.values().any(|watch| watch.pid == pid)
            || tree::descends(pid, self.launcher)
    }
}

/// What load control sees of a process.
fn seen(slot: ProcessSlot) -> Seen {
    let count =
        |counters: &[Counter]| counters.iter().map(|&counter| slot.counters().get(counter)).sum::<u64>();
    let refaults = count(&[Counter::zswpin, Counter::swpin_zero]) as f64 * POOL_FAULT_NS;
    let out = slot.get(Field::Cached) + slot.get(Field::Swapped);
    let hits = count(&[Counter::swap_cache_hit]) as f64 * PROBATION_FAULT_NS;
    Seen {
        tenant: slot.tenant(),
        faults: count(&[Counter::pgmajfault, Counter::pgminfault, Counter::pgalloc]),
        lost_ns: ((refaults + hits) as u64).saturating_add(count(&[Counter::parked_ns])),
        size: slot.get(Field::Resident) + out,
        out,
    }
}

/// Pages that a process could give back beyond what it was asked for.
fn slot_spare(slot: ProcessSlot) -> i64 {
    slot.granted() - slot.get(Field::Asked) as i64
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use pagetide::group::Setup;
    use std::process::{Child, Command};

    fn identity(pid: u32) -> Identity {
        Identity { pid, start_time: procfs::start_time(pid).unwrap(), ..Identity::own() }
    }

    /// The group page of a run.
    pub fn group(cap_pages: u64) -> (OwnedFd, Group) {
        let setup = Setup::new(cap_pages, Identity::own());
        Group::create(setup).unwrap()
    }

    /// Of a run whose launcher has no children: those of this process are other tests'.
    fn sampler(group: Group, fd: &OwnedFd) -> Sampler {
        Sampler { launcher: u32::MAX, ..Sampler::new(group, fd, None, true) }
    }

    fn sleeper() -> Child {
        Command::new("sleep").arg("100").spawn().unwrap()
    }

    fn end(mut child: Child) {
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn a_process_is_charged_while_it_lives_and_released_when_it_dies() {
        let (fd, group) = group(100_000);
        let mut sampler = sampler(group, &fd);
        let child = sleeper();
        let slot = group.claim(identity(child.id())).unwrap();
        slot.counters().add(Counter::pswpin, 3);
        sampler.sample();
        let observed = slot.get(Field::Observed);
        assert!(observed > 0 && slot.granted() >= observed as i64 && group.free() < 100_000);
        // A zombie is gone already.
        rustix::process::kill_process(
            Pid::from_raw(child.id() as i32).unwrap(),
            rustix::process::Signal::KILL,
        )
        .unwrap();
        while procfs::start_time(child.id()).is_some() {
            std::thread::yield_now();
        }
        sampler.sample();
        assert_eq!((group.live().count(), group.free()), (0, 100_000));
        assert_eq!((sampler.now().pages, sampler.now().counter(Counter::pswpin)), (Pages::default(), 3));
        assert!(sampler.peak().total >= observed);
        end(child);
    }

    #[test]
    fn a_slot_of_an_earlier_owner_of_the_pid_is_released() {
        let (fd, group) = group(1000);
        let slot = group.claim(Identity { start_time: 1, ..Identity::own() }).unwrap();
        slot.set(Field::Armed, 1);
        sampler(group, &fd).sample();
        assert_eq!(group.live().count(), 0);
    }

    #[test]
    fn a_program_after_exec_is_watched_anew() {
        let (fd, group) = group(1000);
        let mut sampler = sampler(group, &fd);
        let before = group.claim(Identity::own()).unwrap();
        before.set(Field::Armed, 1);
        sampler.sample();
        group.release([before]);
        let after = group.claim(Identity::own()).unwrap();
        after.set(Field::Armed, 1);
        assert_eq!(after.index(), before.index());
        sampler.watch(&[after]);
        let watch = &sampler.watches[&after.index()];
        assert_eq!((watch.tenant, watch.memory), (after.tenant(), procfs::Watched::default()));
    }

    #[test]
    fn a_fork_under_way_is_given_time() {
        let (fd, group) = group(1000);
        let mut sampler = sampler(group, &fd);
        let child = sleeper();
        group.claim(identity(child.id())).unwrap();
        group.claim(Identity::UNKNOWN).unwrap();
        sampler.sample();
        assert_eq!(group.live().count(), 2);
        end(child);
        // The first of these finds the child dead.
        for _ in 0..=FORK_SAMPLES {
            sampler.sample();
            assert_eq!(group.live().count(), 1);
        }
        sampler.sample();
        assert_eq!(group.live().count(), 0);
    }

    #[test]
    fn of_what_a_small_process_does_not_touch_it_keeps_little() {
        let (fd, group) = group(100_000);
        let mut sampler = sampler(group, &fd);
        let [child, large] = [sleeper(), sleeper()];
        let [slot, rich] = [(&child, 1500), (&large, 4000)].map(|(child, grant)| {
            let slot = group.claim(identity(child.id())).unwrap();
            assert!(group.take(grant, 0));
            slot.set(Field::Grant, grant as u64);
            slot
        });
        // A shell that has just become the sleeper may still grow.
        let ready = |slot: ProcessSlot| slot.granted() < 1500;
        while !ready(slot) {
            sampler.sample();
            std::thread::sleep(INTERVAL);
        }
        let observed = slot.get(Field::Observed) as i64;
        let uncounted = slot.granted() - observed - group.step() / IDLE_SPARE;
        assert!((0..=sampler.inexact).contains(&uncounted), "{uncounted}");
        assert_eq!((rich.granted(), group.free()), (4000, 100_000 - 4000 - slot.granted()));
        // It takes more: nothing is lost.
        assert!(group.take(700, 0));
        slot.word(Field::Grant).fetch_add(700, AcqRel);
        group.release([slot, rich]);
        assert_eq!(group.free(), 100_000);
        [child, large].into_iter().for_each(end);
    }

    #[test]
    fn who_does_not_answer_is_not_counted_on() {
        let (fd, group) = group(1000);
        let child = sleeper();
        let [deaf, other] = [900, 500].map(|grant| {
            let slot = group.claim(identity(child.id())).unwrap();
            slot.set(Field::Armed, 1);
            slot.set(Field::Grant, grant);
            slot.listen();
            slot
        });
        group.take_anyway(900 + 500);
        let mut sampler = sampler(group, &fd);
        let asked = || [deaf, other].map(|slot| slot.get(Field::Asked));
        sampler.sample();
        assert_eq!(asked(), [400, 0]);
        for _ in 0..DEAF_SAMPLES {
            assert_eq!((asked(), deaf.get(Field::Listens)), ([400, 0], 1));
            sampler.sample();
        }
        (0..2).for_each(|_| _ = sampler.sample());
        assert_eq!((asked(), deaf.get(Field::Listens)), ([400, 400], 0));
        end(child);
    }

    #[test]
    fn an_overdrawn_cap_is_asked_back_once_even_of_a_single_process() {
        let (fd, group) = group(1000);
        let child = sleeper();
        let slot = group.claim(identity(child.id())).unwrap();
        slot.set(Field::Armed, 1);
        slot.listen();
        slot.set(Field::Grant, 900);
        group.take_anyway(900 + 150);
        let mut sampler = sampler(group, &fd);
        sampler.sample();
        assert_eq!(slot.get(Field::Asked), 50);
        sampler.sample();
        assert_eq!(slot.get(Field::Asked), 50);
        end(child);
    }
}
