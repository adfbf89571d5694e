//! The sampler: the work of the launcher for a run, every 20 ms.
//!
//! - It releases the slots of processes that have died.
//! - It charges memory that processes do not account for themselves: of those whose engine does not run yet, and of
//!   those that have no slot.
//! - It asks for pages when the cap is overdrawn.
//! - It keeps the peaks.

pub(crate) mod load;
pub(crate) mod outside;
mod peaks;
pub(crate) mod responsiveness;
pub(crate) mod shmem;
pub(crate) mod stall;
mod start_reserve;
pub(crate) mod strict;
#[cfg(test)]
mod tests;
pub(crate) mod unmanaged;
mod watch;

use crate::accounts::gathered::Gathered;
use crate::accounts::most::{Holder, Most, NAMED};
use crate::accounts::pages::Pages;
use crate::processes::tree;
use crate::sampler::load::{LoadControl, Seen};
use crate::sampler::outside::Outside;
use crate::sampler::peaks::Peaks;
use crate::sampler::shmem::SharedMemory;
use crate::sampler::stall::{Stall, Waited};
use crate::sampler::start_reserve::StartReserve;
use crate::sampler::unmanaged::{Members, Unmanaged};
use crate::sampler::watch::Watch;
use pagetide::group::{Field, Group, ProcessSlot, Responsiveness};
use pagetide_swap::Counter;
use pagetide_swap::cost::{POOL_AHEAD_NS, POOL_FAULT_NS, PROBATION_FAULT_NS};
use pagetide_sys::procfs;
use pagetide_sys::task;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering::AcqRel;
use std::time::{Duration, Instant};

/// Time between samples.
pub(crate) const INTERVAL: Duration = Duration::from_millis(20);
/// The largest grant of a process without an engine that gives back what it does not touch, in steps of the group.
const IDLE_STEPS: i64 = 8;
/// An idle process keeps one part in this many of a step beyond the pages that it holds.
const IDLE_SPARE: i64 = 16;
/// Pages for each processor by which the kernel's count of a process may be too low: some versions count on each
/// processor first. And the most processors that a small process is expected to have run on.
const INEXACT_PAGES: i64 = 32;
const INEXACT_PROCESSORS: usize = 8;

/// The sampler of a run.
#[derive(Debug)]
pub(crate) struct Sampler {
    group: Group,
    launcher: u32,
    /// Pages by which the kernel's count of a process may be too low.
    inexact: i64,
    watches: HashMap<usize, Watch>,
    unmanaged: Unmanaged,
    shared: SharedMemory,
    peaks: Peaks,
    stall: Option<Stall>,
    /// Pid of CMD, 0 before its start, and whether our library has answered in it.
    command: u32,
    answered: bool,
    load: Option<LoadControl>,
    start_reserve: StartReserve,
    now: Gathered,
}

impl Sampler {
    /// Returns a sampler for the run of `group`, of which `group_fd` is the file and this process the launcher.
    pub(crate) fn new(
        group: Group,
        group_fd: &OwnedFd,
        max_stall: Option<Duration>,
        load_control: bool,
    ) -> Self {
        let load = || LoadControl::new(task::processors().len(), group.cap_pages(), Instant::now());
        Self {
            group,
            launcher: std::process::id(),
            inexact: INEXACT_PAGES * task::processors().len().min(INEXACT_PROCESSORS) as i64,
            watches: HashMap::new(),
            unmanaged: Unmanaged::new(),
            shared: SharedMemory::new(group_fd, Some(group)),
            peaks: Peaks::new(Instant::now()),
            command: 0,
            answered: false,
            stall: max_stall.map(|window| Stall::new(window, Instant::now())),
            load: load_control.then(load),
            start_reserve: StartReserve::default(),
            now: Gathered::from(&group),
        }
    }

    /// Takes a sample. Returns whether the run has stalled for longer than it may.
    pub(crate) fn sample(&mut self) -> bool {
        let inquiry = self.group.inquiry();
        let is_inquired = !self.group.has_launcher_answered(inquiry);
        if is_inquired {
            // A process is about to end for want of memory: memory freed meanwhile must not be counted.
            self.unmanaged.look_anew();
            self.shared.count_anew();
            self.watches.values_mut().for_each(|watch| watch.memory = procfs::Watched::default());
        }
        self.group.free_from_collectors();
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
        // The last figures of the dead count for the peaks, beside those that came after them: nobody sees what short processes
        // hold at one time, and too much is better told than too little.
        self.gather();
        let Self { peaks, group, launcher, now, unmanaged, .. } = self;
        peaks.take(*group, *launcher, now, || holders(*group, now.pages, unmanaged));
        self.group.release(slots.iter().copied().filter(|slot| self.watches[&slot.index()].gone));
        self.watches.retain(|_, watch| !watch.gone);
        self.group.note_look();
        self.gather();
        let programs = slots.iter().filter(|slot| slot.get(Field::Keeps) == 0).count();
        let reserve = self.start_reserve.pages(self.group.cap_pages(), programs, is_inquired);
        self.group.reserve_for_starts(reserve);
        self.ask(&slots);
        if is_inquired {
            self.group.answer_as_launcher(inquiry);
        }
        if let Some(load) = &mut self.load {
            load.set_total(self.group.cap_pages());
        }
        self.control_load(&slots);
        let waited = Waited {
            nanos: self.now.counter(Counter::stalled_ns),
            ticks: self.now.counter(Counter::stalled_ticks),
            now: self.now.stalled > 0,
        };
        self.stall.as_mut().is_some_and(|stall| stall.sample(Instant::now(), waited))
    }

    /// Notes that CMD was started.
    pub(crate) fn note_command(&mut self, pid: u32) {
        self.command = pid;
    }

    /// Notes that CMD, called `name`, has ended by itself. If our library has never answered in it, it ran without
    /// Pagetide.
    pub(crate) fn note_end(&mut self, name: &str) {
        if !self.answered {
            self.unmanaged.outside().note_silent(name, self.command);
        }
    }

    /// Returns the programs that run without Pagetide.
    pub(crate) fn outside(&mut self) -> &mut Outside {
        self.unmanaged.outside()
    }

    /// Notes that the launcher was stopped for a while.
    pub(crate) fn note_stop(&mut self) {
        self.unmanaged.forgive();
    }

    /// Returns the longest time between two looks for processes without a slot, if it was too long.
    pub(crate) fn latest_look(&self) -> Option<Duration> {
        self.unmanaged.latest()
    }

    /// Leaves the ring of the remote tier out of the shared memory of processes: it is charged with the group page.
    pub(crate) fn note_ring(&mut self, ring: &OwnedFd) {
        self.shared.leave_out(ring);
    }

    /// Charges the launcher, and the files that the processes of a run share: the group page, the ring.
    pub(crate) fn charge_own<'a>(&self, files: impl IntoIterator<Item = &'a OwnedFd>) {
        // 512-byte blocks.
        let pages = |file| rustix::fs::fstat(file).map_or(0, |stat| stat.st_blocks as u64 / 8);
        let shared = files.into_iter().map(pages).sum();
        let launcher = procfs::memory("self").map_or(0, |memory| memory.anonymous + memory.tables);
        self.group.charge_own(shared, launcher);
    }

    /// Takes the last sample: CMD has ended.
    pub(crate) fn sample_last(&mut self) {
        // Nothing controls processes that outlive CMD.
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
        // Whether no process is left that could be forking, and none that may be the child.
        let nobody = self.watches.values().all(|watch| watch.gone || watch.process.pid == 0);
        let no_child = !self.unmanaged.has_forked();
        for (&index, watch) in &mut self.watches {
            self.answered |= watch.is(self.command);
            let is_fork = watch.process.pid == 0;
            let lost = || self.group.has_lost_forker(self.group.slot(index));
            watch.look(is_fork && no_child && (nobody || lost()));
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

    /// Returns the processes whose slots are watched.
    fn members(&self) -> Members {
        let placed = || self.watches.iter().filter(|(_, watch)| watch.pid != 0 || watch.gone);
        Members {
            pids: placed().map(|(_, watch)| watch.pid).collect(),
            slots: placed().map(|(&index, watch)| (index, watch.tenant)).collect(),
        }
    }

    /// Frees the slots of processes that have become another program, in which our library has not answered.
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
        let armed = slot.get(Field::Armed) != 0;
        let Some(memory) = watch.look_at_memory(armed) else { return };
        self.shared.note(watch.pid, memory.shared);
        let observed = memory.charged();
        slot.set(Field::Observed, observed);
        if armed {
            return;
        }
        let (observed, granted) = (observed as i64, slot.granted());
        let step = self.group.step();
        // A small process will hardly touch at once all that it was granted long ago.
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

    /// Asks for the pages by which the cap is overdrawn, less those that were asked for already.
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
        // No process holds more than an equal share, or there is only one: the richest gives anyway.
        if asked() == before
            && let Some(richest) = listeners().max_by_key(ProcessSlot::granted)
        {
            let most = slot_spare(richest);
            richest.word(Field::Asked).fetch_add(wanted.min(most).max(0) as u64, AcqRel);
            richest.ring();
        }
    }

    /// Tells processes to rest, or to go on.
    fn control_load(&mut self, slots: &[ProcessSlot]) {
        let Some(load) = &mut self.load else { return };
        // Without processes whose fork is still under way.
        let runs = |field| move |slot: &&ProcessSlot| slot.get(field) != 0;
        let slots = slots.iter().filter(runs(Field::StartTime));
        // All may wait for the keeper of their shared memory.
        let slots = slots.filter(|slot| slot.get(Field::Taken) == 1 && slot.get(Field::Keeps) == 0);
        let slots: Vec<ProcessSlot> = slots.copied().collect();
        let seen: Vec<_> = slots.iter().map(|&slot| seen(slot)).collect();
        for order in load.sample(Instant::now(), self.group.free(), &seen) {
            if let Some(slot) = slots.iter().find(|slot| slot.tenant() == order.tenant) {
                slot.set_resting(order.rests);
            }
        }
    }

    /// Returns the figures of the last sample.
    pub(crate) fn now(&self) -> Gathered {
        self.now
    }

    /// Returns the peak of each figure.
    pub(crate) fn peak(&self) -> Pages {
        self.peaks.pages
    }

    /// Returns the figures when the run held the most memory.
    pub(crate) fn most(&self) -> Most {
        self.peaks.most.clone()
    }

    /// Returns page bytes divided by payload bytes in the pool, now or when it held the most.
    pub(crate) fn ratio(&self) -> Option<f64> {
        self.now.ratio().or(self.peaks.ratio)
    }

    /// Returns every process of the run.
    pub(crate) fn processes(&self) -> Vec<u32> {
        tree::descendants(self.launcher)
    }

    /// Returns whether a pid is a process of the run, or was at the last sample.
    pub(crate) fn knows(&self, pid: u32) -> bool {
        self.unmanaged.knows(pid)
            || self.watches.values().any(|watch| watch.pid == pid)
            || tree::descends(pid, self.launcher)
    }
}

/// Returns the processes that hold the most unmanaged memory, while the cap is passed.
fn holders(group: Group, now: Pages, unmanaged: &Unmanaged) -> Vec<Holder> {
    if now.total <= group.cap_pages() {
        return Vec::new();
    }
    let slots = group.live().map(|slot| (slot.known_as() as u32, Pages::of(slot).unmanaged, false));
    let outside = unmanaged.charges().map(|(pid, pages)| (pid, pages, true));
    let mut found: Vec<_> = slots.chain(outside).filter(|(_, pages, _)| *pages > 0).collect();
    found.sort_unstable_by_key(|(_, pages, _)| std::cmp::Reverse(*pages));
    found.truncate(NAMED);
    let named = |(pid, pages, outside)| Holder { pid, name: tree::name(pid), pages, outside };
    found.into_iter().map(named).collect()
}

/// Returns the figures of a process for load control.
fn seen(slot: ProcessSlot) -> Seen {
    let rests = slot.is_resting();
    if slot.get(Field::Armed) == 0 {
        let size = slot.granted().max(0) as u64;
        // What this sampler adds to a grant is no work of the process.
        let work = slot.get(Field::Grant);
        return Seen { tenant: slot.tenant(), engine: false, work, rests, lost_ns: 0, size, out: 0 };
    }
    let count =
        |counters: &[Counter]| counters.iter().map(|&counter| slot.counters().get(counter)).sum::<u64>();
    // Of what comes from a device `parked_ns` has the wait.
    let refaults = count(&[Counter::pgmajfault]) as f64 * POOL_FAULT_NS
        + count(&[Counter::swap_ra]) as f64 * POOL_AHEAD_NS;
    let out = slot.get(Field::Cached) + slot.get(Field::Swapped);
    let hits = count(&[Counter::swap_cache_hit]) as f64 * PROBATION_FAULT_NS;
    Seen {
        tenant: slot.tenant(),
        engine: true,
        work: count(&[Counter::pgmajfault, Counter::pgminfault, Counter::pgalloc]),
        rests,
        lost_ns: ((refaults + hits) as u64).saturating_add(count(&[Counter::parked_ns])),
        size: slot.get(Field::Resident).saturating_sub(slot.get(Field::Borrowed)) + out,
        out,
    }
}

/// Returns the pages that a process could give back beyond those it was asked for.
fn slot_spare(slot: ProcessSlot) -> i64 {
    slot.granted() - slot.get(Field::Asked) as i64
}
