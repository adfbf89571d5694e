//! A process of which only the accesses are known: the swap subsystem is the real one, memory and time are counted.
//!
//! What the engine does around the subsystem is done here as there: reclaim in steps between two watermarks, probation,
//! writeback, the pool's limit. Reads and writes take no time of their own but what a fault waits for them.

use super::events::{Said, Steps};
use pagetide::engine::{COMPACT_CLUSTERS, Limits, TRIM_ENTRIES, TRIM_SCAN};
use pagetide_swap::balance::{Balance, POOL_FAULT_NS, PROBATION_FAULT_NS};
use pagetide_swap::blocks::Blocks;
use pagetide_swap::config::WRITE_BATCH_PAGES;
use pagetide_swap::hash::{HashKey, PageHash};
use pagetide_swap::streams::Streams;
use pagetide_swap::swap::Keys;
use pagetide_swap::workingset::Shadow;
use pagetide_swap::{
    CLUSTER_PAGES, ClusterNumber, Config, Counter, Counters, FOLIO_PAGES, PAGE_SIZE, PageIndex, Place,
    PoolScope, Source, SpanMemory, SpanSource, State, StoreError, StoreOutcome, Stored, Swap, Swapin,
};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

/// What a fault costs that finds a zero page.
const ZERO_NS: f64 = 6_000.0;
/// Faults after which the pool's share is looked at.
const TICK_FAULTS: u64 = 1024;

/// What is replayed with.
#[derive(Clone, Copy, Debug)]
pub struct Setting {
    /// Pages of memory.
    pub memory: u64,
    /// The subsystem's settings.
    pub config: Config,
    /// The most of the memory that the pool takes, as a part.
    pub pool_max: f64,
    /// What a read from the device takes, and each further page of it, in nanoseconds.
    pub device_ns: f64,
    /// The further pages.
    pub device_page_ns: f64,
}

/// What came of it.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// Accesses.
    pub accesses: u64,
    /// Those that found their page in the program.
    pub resident: u64,
    /// The subsystem's counters.
    pub counters: Vec<(&'static str, u64)>,
    /// Reads from the device that were waited for.
    pub device_reads: u64,
    /// Page bytes by payload bytes, when the pool held the most.
    pub ratio: Option<f64>,
    /// The most pages that the pool took.
    pub pool_peak: usize,
    /// What faults waited.
    pub stalled_ns: f64,
    /// Pages for which there was no place although there was no room.
    pub overcommitted: u64,
}

impl Outcome {
    /// A counter.
    pub fn get(&self, counter: Counter) -> u64 {
        self.counters[counter as usize].1
    }

    /// Pages that came back from pool, pattern or device.
    pub fn swapins(&self) -> u64 {
        [Counter::zswpin, Counter::swpin_zero, Counter::pswpin].map(|counter| self.get(counter)).iter().sum()
    }
}

/// Memory of the pool: what is given back is used again, whatever it holds.
#[derive(Clone, Debug, Default)]
struct Spans(Arc<Mutex<Vec<Vec<u8>>>>);

#[derive(Debug)]
struct Span {
    bytes: Vec<u8>,
    home: Spans,
}

impl Spans {
    fn free(&self) -> std::sync::MutexGuard<'_, Vec<Vec<u8>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl SpanSource for Spans {
    type Span = Span;
    fn take(&self, bytes: usize) -> Option<Span> {
        let mut free = self.free();
        let old = free.iter().rposition(|span| span.len() == bytes).map(|at| free.swap_remove(at));
        Some(Span { bytes: old.unwrap_or_else(|| vec![0; bytes]), home: self.clone() })
    }
}

impl SpanMemory for Span {
    fn trim(&mut self, _: usize) {}
}

impl Drop for Span {
    fn drop(&mut self) {
        self.home.free().push(std::mem::take(&mut self.bytes));
    }
}

impl std::ops::Deref for Span {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.bytes
    }
}

impl std::ops::DerefMut for Span {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.bytes
    }
}

/// A cluster on probation.
struct Slot {
    id: u16,
    cluster: ClusterNumber,
    pages: Vec<u16>,
    shadow: Shadow,
}

struct Machine<'a> {
    setting: Setting,
    swap: Swap<Spans>,
    limits: Limits,
    steps: &'a Steps,
    /// What each page takes, and which of its contents that is.
    sizes: Vec<u16>,
    versions: Vec<u32>,
    streams: Streams,
    probation: VecDeque<Slot>,
    next_slot: u16,
    balance: Balance,
    /// Pages of tables and hashes, at the last look.
    metadata: i64,
    faults: u64,
    device_ns: u64,
    entries: Vec<(PageIndex, pagetide_swap::Handle)>,
    outcome: Outcome,
    blocks: u64,
}

/// Replays steps.
pub fn replay(steps: &Steps, setting: Setting) -> Outcome {
    let mut machine = Machine::new(steps, setting);
    for step in &steps.steps {
        machine.step(PageIndex(step.page.into()), step.said());
    }
    machine.end()
}

impl<'a> Machine<'a> {
    fn new(steps: &'a Steps, setting: Setting) -> Self {
        // Room for every page, and as many copies.
        let blocks = if setting.device_ns > 0.0 { 2 * steps.pages as usize + 4096 } else { 0 };
        // Contents are told apart by numbers: there is nothing to hide or to prove.
        let keys = Keys { hash: HashKey::new([0; 4]), cipher: None };
        let swap =
            Swap::new(Spans::default(), Blocks::private(blocks), keys, setting.config, Counters::private());
        let mut this = Self {
            setting,
            swap,
            limits: Limits::for_cap(setting.memory),
            steps,
            sizes: steps.sizes.clone(),
            versions: vec![0; steps.pages as usize],
            streams: Streams::default(),
            probation: VecDeque::new(),
            next_slot: 0,
            balance: Balance::default(),
            metadata: 0,
            faults: 0,
            device_ns: 0,
            entries: Vec::new(),
            outcome: Outcome::default(),
            blocks: blocks as u64,
        };
        this.tick();
        this
    }

    fn has_device(&self) -> bool {
        self.blocks > 0
    }

    fn free(&self) -> i64 {
        let pool = self.swap.zswap().pool_pages() as i64;
        self.setting.memory as i64 - self.swap.present() - self.swap.cached() - pool - self.metadata
    }

    fn step(&mut self, page: PageIndex, said: Said) {
        match said {
            Said::Access { write } => {
                self.outcome.accesses += 1;
                if write {
                    self.versions[page.0 as usize] += 1;
                }
                self.access(page);
            }
            Said::Size(bytes) => {
                self.sizes[page.0 as usize] = bytes;
                self.versions[page.0 as usize] += 1;
            }
            Said::Discard(pages) => {
                let range = page.offset()..page.offset() + usize::from(pages);
                self.swap.discard(page.cluster(), range, |_, _| {}, || {});
            }
        }
    }

    fn access(&mut self, page: PageIndex) {
        if self.swap.table().peek(page).state() == State::Present {
            self.outcome.resident += 1;
            return;
        }
        let whole = PageIndex(0)..PageIndex(self.steps.pages.into());
        let look = self.streams.look(page);
        let Swapin::Inserted(transfer) = self.swap.swapin(page, whole, look.window) else {
            unreachable!("nobody else is at work, and nothing is lost")
        };
        let (source, pages) = (transfer.source, transfer.pages());
        let ahead = transfer.length - 1;
        let cost = match source {
            Source::Hole => 0.0,
            Source::Frames { .. } => PROBATION_FAULT_NS,
            Source::Zero => ZERO_NS,
            Source::Memory => POOL_FAULT_NS,
            Source::Device { .. } => {
                self.outcome.device_reads += 1;
                self.setting.device_ns + self.setting.device_page_ns * ahead as f64
            }
        };
        if matches!(source, Source::Device { .. }) {
            self.device_ns += cost as u64;
        }
        self.outcome.stalled_ns += cost;
        let keep = match source {
            Source::Memory => !self.swap.zswap().is_nearly_full(),
            Source::Device { .. } => self.swap.blocks().used() * 2 < self.blocks,
            _ => false,
        };
        self.swap.finish_swapin(&transfer, transfer.length, keep);
        self.swap.counters().add(Counter::swap_ra_hit, look.passed as u64);
        let ahead = if matches!(source, Source::Hole | Source::Frames { .. }) { 0 } else { ahead };
        self.streams.brought_in(page, look, pages, ahead);
        self.faults += 1;
        if self.faults.is_multiple_of(TICK_FAULTS) {
            self.tick();
        }
        if self.free() < self.limits.low {
            while self.free() < self.limits.high {
                if !self.reclaim() {
                    self.outcome.overcommitted = self.outcome.overcommitted.max((-self.free()).max(0) as u64);
                    break;
                }
            }
        }
    }

    /// What the control thread does every few hundredths of a second.
    fn tick(&mut self) {
        self.metadata = self.swap.metadata_bytes().div_ceil(PAGE_SIZE) as i64;
        self.swap.observe();
        let ceiling = self.setting.pool_max;
        let share = match self.has_device() {
            false => ceiling,
            true if self.setting.config.switches.fixed_share => self.balance.fixed(ceiling),
            true => self.balance.share(self.swap.totals(self.device_ns), self.swap.sizes(), ceiling),
        };
        let (memory, room) = (self.setting.memory as f64, self.setting.memory * 7 / 8);
        self.swap.zswap().set_pages_max(((memory * share) as usize).min(room as usize));
    }

    /// One step towards free memory. False if nothing can leave.
    fn reclaim(&mut self) -> bool {
        let before = self.free();
        let mut moved = self.swap.compact(COMPACT_CLUSTERS) > 0;
        let mut trimmed = 0;
        while trimmed < TRIM_ENTRIES && self.swap.zswap().is_nearly_full() {
            let dropped = self.swap.drop_copies(TRIM_ENTRIES);
            let gone = if dropped > 0 { dropped } else { self.write_back(TRIM_SCAN, PoolScope::All) };
            if gone == 0 {
                break;
            }
            trimmed += gone;
        }
        let taken = if self.is_probation_full() { Some(0) } else { self.take_out() };
        if let Some(taken @ 1..) = taken {
            moved = true;
            if self.balance.pressure() > 0.0 {
                let scan = self.swap.pressure(taken, self.balance.pressure());
                if scan > 0 {
                    self.write_back(scan, PoolScope::Own);
                }
            }
        }
        if (self.is_probation_full() || taken.is_none())
            && let Some(slot) = self.probation.pop_front()
        {
            moved = true;
            self.store(&slot);
        }
        let pool = self.swap.zswap().pool_pages();
        if pool > self.outcome.pool_peak {
            self.outcome.pool_peak = pool;
            let (entries, bytes) = self.swap.zswap().stored();
            self.outcome.ratio = (bytes > 0).then(|| (entries * PAGE_SIZE as u64) as f64 / bytes as f64);
        }
        if moved || trimmed > 0 || self.free() > before {
            return true;
        }
        // All that is left is in the pool.
        self.swap.drop_copies(TRIM_ENTRIES) + self.write_back(usize::MAX, PoolScope::All) > 0
    }

    fn is_probation_full(&self) -> bool {
        self.probation.len() > self.limits.probation
            || (self.probation.len() > 1 && self.swap.is_probation_full())
    }

    /// Takes a cluster out. `None` if there is none.
    fn take_out(&mut self) -> Option<usize> {
        let mut cluster = self.swap.victim()?;
        let id = self.next_slot;
        self.next_slot = self.next_slot.wrapping_add(1);
        let mut present = [false; CLUSTER_PAGES];
        for (offset, present) in present.iter_mut().enumerate() {
            *present = cluster.get(offset).state() == State::Present;
        }
        let number = cluster.number();
        let out =
            self.swap.taken_out(&mut cluster, id, 0..CLUSTER_PAGES, |offset| present[offset], |_| false);
        drop(cluster);
        let pages = (0..CLUSTER_PAGES as u16).filter(|&offset| present[usize::from(offset)]).collect();
        self.probation.push_back(Slot { id, cluster: number, pages, shadow: out.shadow });
        Some(out.taken)
    }

    /// Stores what is still on probation in a slot.
    fn store(&mut self, slot: &Slot) {
        let mut outgoing: Vec<(PageIndex, PageHash)> = Vec::new();
        let mut pages = slot.pages.iter().map(|&offset| usize::from(offset)).peekable();
        while let Some(&first) = pages.peek() {
            let folio = first - first % FOLIO_PAGES;
            let mut begun = [(0, None); FOLIO_PAGES];
            let mut count = 0;
            {
                let Some(mut cluster) = self.swap.table().lock(slot.cluster) else { return };
                while let Some(offset) = pages.next_if(|&offset| offset < folio + FOLIO_PAGES) {
                    self.swap.begin_store(&mut cluster, slot.id, offset..offset + 1, |offset, kept| {
                        begun[count] = (offset, kept);
                        count += 1;
                    });
                }
            }
            let page = |nth: usize| slot.cluster.page(begun[nth].0);
            if count == FOLIO_PAGES {
                let sizes = std::array::from_fn(|nth| self.size(page(nth)));
                let hashes = std::array::from_fn(|nth| self.hash(page(nth)));
                let stored: [Stored; FOLIO_PAGES] =
                    self.swap.store_sized(&sizes, &hashes, &begun.map(|(_, kept)| kept));
                if let Some(place) = Stored::run(&stored)
                    && self.swap.finish_store_run(page(0), FOLIO_PAGES, place, slot.shadow)
                {
                    continue;
                }
                (0..FOLIO_PAGES).for_each(|nth| self.end_store(page(nth), stored[nth], slot, &mut outgoing));
                continue;
            }
            for (nth, &(_, kept)) in begun[..count].iter().enumerate() {
                let page = page(nth);
                let [stored] = self.swap.store_sized(&[self.size(page)], &[self.hash(page)], &[kept]);
                self.end_store(page, stored, slot, &mut outgoing);
            }
        }
        self.write(slot, &outgoing);
    }

    fn size(&self, page: PageIndex) -> usize {
        self.sizes[page.0 as usize].into()
    }

    /// Stands for a page's contents.
    fn hash(&self, page: PageIndex) -> PageHash {
        // An entry keeps no more of it than the version.
        [self.versions[page.0 as usize], 1, page.0 as u32]
    }

    fn end_store(
        &self,
        page: PageIndex,
        stored: Stored,
        slot: &Slot,
        outgoing: &mut Vec<(PageIndex, PageHash)>,
    ) {
        match stored {
            Stored::Clean(place) | Stored::New(place) => {
                let outcome = self.swap.finish_store(page, place, slot.shadow);
                debug_assert_eq!(outcome, StoreOutcome::Swapped);
            }
            Stored::Refused(why, hash) => {
                if why == StoreError::PoolLimit && !self.has_device() {
                    self.swap.counters().add(Counter::reject_reclaim_fail, 1);
                }
                outgoing.push((page, hash));
            }
        }
    }

    /// Writes pages to the device, or brings them back if it has no room.
    fn write(&self, slot: &Slot, pages: &[(PageIndex, PageHash)]) {
        let mut left = pages;
        while !left.is_empty() {
            let run = self
                .has_device()
                .then(|| self.swap.blocks().allocate(left.len().min(WRITE_BATCH_PAGES)))
                .flatten();
            let Some(run) = run else { break };
            let (now, later) = left.split_at(run.length);
            for (block, &(page, hash)) in (run.start..).zip(now) {
                self.swap.seal(block, hash, &mut []);
                self.swap.finish_store(page, Place::Device(block), slot.shadow);
            }
            self.swap.counters().add(Counter::pswpout, now.len() as u64);
            left = later;
        }
        for &(page, _) in left {
            self.swap.abandon_store(page);
            let found = self.swap.swapin(page, page..page.plus(1), pagetide_swap::Window::NONE);
            if let Swapin::Inserted(transfer) = found {
                self.swap.finish_swapin(&transfer, 1, true);
            }
        }
    }

    /// Passes the shrinker's hand over so many entries, and writes back what it finds.
    fn write_back(&mut self, scan: usize, scope: PoolScope) -> usize {
        if !self.has_device() {
            return 0;
        }
        let mut entries = std::mem::take(&mut self.entries);
        entries.clear();
        self.swap.scan(scan, 4 * WRITE_BATCH_PAGES, scope, &mut entries);
        let mut written = 0;
        let mut left = &entries[..];
        while !left.is_empty()
            && let Some(run) = self.swap.blocks().allocate(left.len().min(WRITE_BATCH_PAGES))
        {
            let (now, later) = left.split_at(run.length);
            for (block, &(owner, handle)) in (run.start..).zip(now) {
                let claimed = self.swap.claim_writeback(owner, handle);
                if !claimed {
                    self.swap.blocks().free(block);
                    continue;
                }
                let hash = self.hash(owner);
                self.swap.seal(block, hash, &mut []);
                written += usize::from(self.swap.finish_writeback(owner, handle, hash, Some(block)));
            }
            left = later;
        }
        self.swap.counters().add(Counter::pswpout, written as u64);
        self.entries = entries;
        written
    }

    fn end(mut self) -> Outcome {
        let counters = self.swap.counters();
        self.outcome.counters =
            Counter::ALL.iter().map(|&counter| (counter.name(), counters.get(counter))).collect();
        self.outcome
    }
}
