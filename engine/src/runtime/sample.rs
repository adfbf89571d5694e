//! Samples that the control thread takes from time to time: memory that is not managed, times, the pool's share.

use super::{Runtime, clock, lock};
use crate::engine::Usage;
use crate::group::{DeviceKind, Field, Knobs};
use crate::mask::Mask;
use pagetide_swap::balance::{ReclaimLoad, Totals};
use pagetide_swap::cost::Load;
use pagetide_sys::procfs::{self, Memory, Watched, counted_anonymous};
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

/// Between looks at what of this process's memory others share. These looks, and those at how processors are used, take of
/// all processes of a run no more than one part in [`DISCOUNT_SHARE`] of a processor's time, unless that were more than
/// [`DISCOUNT_INTERVAL_MAX`] apart.
const DISCOUNT_INTERVAL: Duration = Duration::from_millis(100);
const DISCOUNT_INTERVAL_MAX: Duration = Duration::from_secs(1);
const DISCOUNT_SHARE: u32 = 100;

/// A pool takes pages that only the recompressor makes small enough as long as it is smaller than these parts of the memory
/// and of what it may take itself. They give less memory than others, and a disk reads them ahead where they come back in order.
const RECOMPRESS_PART: usize = 16;
const RECOMPRESS_POOL_PART: usize = 4;

/// Clusters in which zero pages are counted at a time: some milliseconds.
const ZERO_CLUSTERS: usize = 512;

/// Nanoseconds between looks at descriptors that pin, while memory is taken out. What the C library opens is seen at
/// once. A look at those of many processes (a keeper's) takes no more than one part in [`PINS_SHARE`] of the time, unless
/// that were more than [`PINS_INTERVAL_MAX`] apart.
const PINS_INTERVAL: u64 = 10_000_000;
const PINS_INTERVAL_MAX: u64 = 100_000_000;
const PINS_SHARE: u64 = 50;

/// Unmanaged memory that is shared by fork, and so counted elsewhere in part.
#[derive(Debug)]
pub(super) struct Discount {
    pub(super) pages: i64,
    /// The time of the next look, and of the first one when processes of the run have come or gone.
    pub(super) next: Instant,
    pub(super) changed: Instant,
    /// Which processes there were at the last look: the sum of their tenancies.
    pub(super) living: u64,
}

/// Nanoseconds that only grow: of the clock, and of the thread that reclaims.
pub(super) struct Times {
    pub(super) clock: u64,
    pub(super) worked: u64,
    pub(super) ran: u64,
    pub(super) waited: u64,
}

impl Times {
    pub(super) fn since(&self, before: &Self) -> ReclaimLoad {
        let part = |part: u64, whole: u64| part as f64 / whole.max(1) as f64;
        let (ran, waited) = self.reclaim_since(before);
        ReclaimLoad {
            busy: part(self.worked - before.worked, self.clock - before.clock),
            waits: part(waited, ran + waited),
        }
    }

    /// Returns how long the reclaim thread has run since, and how long it has waited for a processor.
    fn reclaim_since(&self, before: &Self) -> (u64, u64) {
        // A fork begins both anew.
        (self.ran.saturating_sub(before.ran), self.waited.saturating_sub(before.waited))
    }
}

/// How the processors that this process may use were used, as far as the last look.
#[derive(Debug, Default)]
pub(super) struct ProcessorUse {
    seen: Option<(u64, u64)>,
    /// The time of the next look, by the clock: on a machine with many processors a look takes a millisecond.
    due: u64,
}

impl ProcessorUse {
    /// Returns the use of processors between two looks at the times. Where the kernel was not asked anew nothing is said of all
    /// processors.
    pub(super) fn load(&mut self, before: &Times, now: &Times, runtime: &Runtime) -> Load {
        let (ran, waited) = now.reclaim_since(before);
        let mut load = Load { ran, waited, busy: 0, all: 0 };
        let start = clock();
        if start < self.due || !runtime.engine.can_write() {
            return load;
        }
        let seen = pagetide_sys::procfs::processor_times(&pagetide_sys::task::processors());
        if let (Some(before), Some(seen)) = (self.seen, seen) {
            load.busy = seen.0.saturating_sub(before.0);
            load.all = seen.1.saturating_sub(before.1);
        }
        self.seen = seen;
        let processes = runtime.group.live().count().max(1) as u64;
        let end = clock();
        let pause = (end - start) * u64::from(DISCOUNT_SHARE) * processes;
        self.due = end + pause.min(DISCOUNT_INTERVAL_MAX.as_nanos() as u64);
        load
    }
}

/// Returns how large a pool may be that still takes pages which only the recompressor makes small enough, while they could go
/// elsewhere: where `grant` pages were granted, and the pool may take `pool`.
fn recompress_max(grant: i64, pool: usize) -> usize {
    (grant.max(0) as usize / RECOMPRESS_PART).min(pool / RECOMPRESS_POOL_PART)
}

impl Runtime {
    /// Looks at what the process uses beside managed memory, and charges the difference.
    pub(super) fn sample(&self) {
        let mut watched = lock(&self.watched);
        // Until the end: whoever samples at the same time would charge what was before.
        let Some(memory) = watched.look(procfs::OWN) else { return };
        self.charge_unmanaged(memory, self.engine.usage());
    }

    /// The same by exact counts, which take a walk through all page tables.
    pub(super) fn sample_exactly(&self) {
        self.engine.recount_zero_pages();
        lock(&self.discount).next = Instant::now();
        let mut watched = lock(&self.watched);
        *watched = Watched::default();
        let Some(mut memory) = watched.look(procfs::OWN) else { return };
        // Before the walk: what the program drops meanwhile is not to count as unmanaged.
        let usage = self.engine.usage();
        // From 6.2 to 6.15 the kernel's own count leaves out some pages of each processor.
        memory.anonymous = counted_anonymous(procfs::OWN).unwrap_or(memory.anonymous);
        self.charge_unmanaged(memory, usage);
    }

    fn charge_unmanaged(&self, memory: Memory, usage: Usage) {
        // Pages of shared memory are in no page table of their keeper's.
        let is_shared = self.engine.memory().is_shared();
        let counted = if is_shared { 0 } else { usage.resident - self.zero_pages() };
        let accounted = counted + usage.frames + usage.pool + usage.pool_shared + usage.metadata;
        let alone = (memory.charged() as i64 - accounted).max(memory.tables as i64);
        let unmanaged = (alone - self.discount(alone)).max(memory.tables as i64);
        let before = self.unmanaged.swap(unmanaged, Relaxed);
        let metadata = self.metadata.swap(usage.metadata, Relaxed);
        self.engine.budget().take(unmanaged - before + usage.metadata - metadata);
    }

    /// Returns how many of `alone`, the unmanaged pages of this process, other processes count too: forks share them
    /// until they are written. It looks only now and then, since a look walks all page tables; sooner when a process has
    /// come or gone. Once nothing is shared it does not look before the next fork.
    pub(super) fn discount(&self, alone: i64) -> i64 {
        let mut discount = lock(&self.discount);
        if !self.has_family.load(Relaxed) {
            discount.pages = 0;
            return 0;
        }
        let start = Instant::now();
        let living =
            self.group.live().map(|slot| slot.get(Field::Tenancy).wrapping_add(1)).fold(0, u64::wrapping_add);
        let due = if living == discount.living { discount.next } else { discount.next.min(discount.changed) };
        if start >= due
            && let Ok(regions) = self.engine.regions.try_read()
        {
            // Not held while the kernel walks: calls that map wait for it, and faults behind them.
            let managed: Vec<_> =
                regions.iter().map(|(from, region)| from.address()..region.end.address()).collect();
            drop(regions);
            let counted = |from: usize, to: usize| {
                let at = managed.partition_point(|range| range.end <= from);
                managed.get(at).is_some_and(|range| range.start < to)
                    || pagetide_sys::mapping::is_counted(from, to)
            };
            let pages = procfs::counted_elsewhere(procfs::OWN, counted).unwrap_or(0) as i64;
            // A fork that has begun since this look waits until its end, and notes it anew.
            self.has_family.store(pages > 0, Relaxed);
            let end = Instant::now();
            let processes = self.group.live().count().max(1) as u32;
            let pause = (end - start) * DISCOUNT_SHARE;
            *discount = Discount {
                pages,
                next: end + (pause * processes).clamp(DISCOUNT_INTERVAL, DISCOUNT_INTERVAL_MAX),
                changed: end + pause.clamp(DISCOUNT_INTERVAL, DISCOUNT_INTERVAL_MAX),
                living,
            };
        }
        discount.pages.min(alone)
    }

    /// Returns how many pages are charged that the kernel does not count, since they are its zero page. They are counted now
    /// and then, some clusters at a time, in one part of [`DISCOUNT_SHARE`] of the time.
    fn zero_pages(&self) -> i64 {
        let start = clock();
        if start >= self.zero_due.load(Relaxed) {
            let is_whole = self.engine.count_zero_pages(ZERO_CLUSTERS);
            let end = clock();
            let least = if is_whole { DISCOUNT_INTERVAL.as_nanos() as u64 } else { 0 };
            self.zero_due.store(end + ((end - start) * u64::from(DISCOUNT_SHARE)).max(least), Relaxed);
        }
        self.engine.zero_pages()
    }

    /// Looks for descriptors that pin, if that is due.
    pub(super) fn look_for_pins(&self) {
        let start = clock();
        if start < self.pins_due.load(Relaxed) {
            return;
        }
        self.engine.memory().look_for_pins();
        let end = clock();
        let pause = ((end - start) * PINS_SHARE).clamp(PINS_INTERVAL, PINS_INTERVAL_MAX);
        self.pins_due.store(end + pause, Relaxed);
    }

    pub(super) fn set_pool_max(&self) {
        let setup = self.group.setup();
        let Knobs { switches, max_pool_percent } = self.group.knobs();
        self.engine.swap().zswap().switch(switches);
        if setup.mask.masks(Mask::NO_POOL) {
            self.engine.swap().zswap().set_pages_max(0);
            return;
        }
        let processes = self.group.live().count().max(1) as u64;
        // Those without an engine keep nothing free.
        let armed = self.group.live().filter(|slot| slot.get(Field::Armed) != 0).count();
        let cap = self.group.cap_pages();
        // The keeper answers the faults of all processes: it keeps free what one that is alone does.
        let sharing = if self.engine.memory().is_shared() { 1 } else { armed };
        self.engine.share_cap(cap, sharing);
        // What a fork shares is there whatever this process does: the rest is divided.
        let charged = lock(&self.sharing).charged.max(0);
        let granted = self.slot.granted() - self.slot.get(Field::Lent) as i64;
        let grant = granted.max((cap / processes) as i64) - charged;
        // While the process idles others take pages of its program, and what those become in the pool has to fit there.
        let before = if self.slot.loses_time() { 0 } else { self.busy_grant.load(Relaxed) };
        let busy = granted.max(before).min(cap as i64);
        self.busy_grant.store(busy, Relaxed);
        let divided = grant.max(busy - charged);
        // Of what a family has in memory together each may keep as much in its pool as if it had it alone.
        let shared = self.slot.get(Field::Lent) as i64 + self.engine.borrowed();
        let share = ((divided + shared) as f64 * self.pool_share(max_pool_percent as f64 / 100.0)) as i64;
        // The program keeps an eighth to run in, whatever the pool may take.
        let room = grant - self.unmanaged.load(Relaxed) - grant / 8;
        let most = share.min(room).max(0) as usize;
        let zswap = self.engine.swap().zswap();
        zswap.set_pages_max(most);
        let elsewhere = self.has_room_elsewhere();
        zswap.set_recompress_max(if elsewhere { recompress_max(grant, most) } else { usize::MAX });
    }

    /// Returns whether pages can go to another place than the pool.
    fn has_room_elsewhere(&self) -> bool {
        self.engine.can_write() && !self.engine.is_full() && !self.in_need.load(Relaxed)
    }

    /// Returns the pool's share of this process's memory: `ceiling`, or less where a page in the program is worth more.
    fn pool_share(&self, ceiling: f64) -> f64 {
        // What the disk has no room for has no other place than the pool.
        if !self.has_room_elsewhere() {
            return ceiling;
        }
        let mut balance = lock(&self.balance);
        let swap = self.engine.swap();
        let share = match swap.zswap().switches().fixed_share {
            true => balance.fixed(ceiling),
            false => balance.share(self.totals(), swap.sizes(), ceiling),
        };
        // Where nothing is missed the pool has nothing to give memory for. The kernel asks its shrinker all the same.
        let presses = self.slot.loses_time() || swap.zswap().switches().fixed_share;
        self.engine.set_pool_pressure(if presses { balance.pressure() } else { 0.0 });
        share
    }

    fn totals(&self) -> Totals {
        self.engine.swap().totals(self.engine.read_ns())
    }

    /// Returns the time that pages which came back have cost the program so far, in nanoseconds.
    pub(super) fn refault_ns(&self) -> u64 {
        let totals = self.totals();
        totals.pool_ns().saturating_add(totals.device_ns)
    }

    pub(super) fn times(&self) -> Times {
        let (ran, waited) = pagetide_sys::procfs::run_times(self.reclaimer.load(Relaxed)).unwrap_or_default();
        // What it waits when it has nothing to do tells of no work that is wanting.
        let waited = waited.saturating_sub(self.waited_awake.load(Relaxed));
        Times { clock: clock(), worked: self.worked.load(Relaxed), ran, waited }
    }

    /// Decides whether copies of pages that come in are kept from now on.
    pub(super) fn judge_copies(&self, load: ReclaimLoad) {
        let swap = self.engine.swap();
        let store_ns = self.engine.store_ns() as f64;
        let page = lock(&self.balance).page_cost();
        let keep = lock(&self.copies).keep(load, store_ns, page, self.totals(), swap.sizes());
        self.engine.keep_copies(keep);
    }

    /// Returns the number of blocks that this process holds on the remote server.
    fn blocks_on_server(&self) -> u64 {
        let tier = self.group.setup().tier(DeviceKind::Remote);
        tier.map_or(0, |tier| self.engine.swap().blocks().used_of(tier))
    }

    pub(super) fn publish(&self) {
        self.engine.count_waits();
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
            (Field::OnServer, self.blocks_on_server() as i64),
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
}
