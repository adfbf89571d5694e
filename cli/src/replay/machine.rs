//! A process of which only the accesses are known: the swap subsystem is the real one, memory and time are counted.
//!
//! Reclaim goes by the same steps as the engine's ([`pagetide_swap::reclaimer`]), between the same two watermarks.
//! What is written has arrived by the next step. Reads take no time of their own but what a fault waits for them.

use super::events::{Said, Steps};
use super::moving::{Counting, World};
use super::setting::{Outcome, Setting};
use pagetide::engine::Limits;
use pagetide_swap::balance::Balance;
use pagetide_swap::cost::{POOL_FAULT_NS, PROBATION_FAULT_NS};
use pagetide_swap::reclaimer::{Progress, Reclaimer};
use pagetide_swap::streams::{AHEAD_MAX, Look, Streams};
use pagetide_swap::{Counter, PAGE_SIZE, PageIndex, Source, State, Swapin, Transfer, Window};
use std::ops::Range;

/// What a fault costs that finds a zero page.
const ZERO_NS: f64 = 6_000.0;
/// Faults after which the pool's share is looked at.
pub(super) const TICK_FAULTS: u64 = 1024;

struct Machine {
    setting: Setting,
    world: World,
    reclaimer: Reclaimer,
    streams: Streams,
    balance: Balance,
    faults: u64,
    device_ns: u64,
    outcome: Outcome,
}

/// Replays steps.
pub(super) fn replay(steps: &Steps, setting: Setting) -> Outcome {
    let mut machine = Machine::new(steps, setting);
    for step in &steps.steps {
        machine.step(PageIndex(step.page.into()), step.said());
    }
    machine.end()
}

impl Machine {
    fn new(steps: &Steps, setting: Setting) -> Self {
        let limits = Limits::for_cap(setting.memory);
        let mut this = Self {
            setting,
            world: World::new(steps, &setting, limits),
            reclaimer: Reclaimer::new(limits.slots(), limits.probation),
            streams: Streams::default(),
            balance: Balance::default(),
            faults: 0,
            device_ns: 0,
            outcome: Outcome::default(),
        };
        this.tick();
        this
    }

    fn step(&mut self, page: PageIndex, said: Said) {
        match said {
            Said::Access { write } => {
                self.outcome.accesses += 1;
                if write {
                    self.world.change(page);
                }
                if self.world.swap.table().peek(page).state() == State::Present {
                    self.outcome.resident += 1;
                } else {
                    self.access(page, write);
                }
                if write {
                    self.world.note_zero(page..page.plus(1), false);
                }
            }
            Said::Size(bytes) => self.world.resize(page, bytes),
            Said::Discard(pages) => {
                let range = page.offset()..page.offset() + usize::from(pages);
                let mut freed = Vec::new();
                self.world.swap.discard(page.cluster(), range, |slot, _| freed.push(slot), || {});
                freed.into_iter().for_each(|slot| self.world.release(&self.reclaimer, slot, 1));
            }
        }
    }

    /// Answers a fault.
    fn access(&mut self, page: PageIndex, write: bool) {
        while !self.try_access(page, write) {
            // There is no room for one page: the fault waits until there is, or nothing leaves any more.
            if !self.reclaim() {
                self.world.overdrawn = true;
            }
        }
        self.world.overdrawn = false;
        self.faults += 1;
        if self.faults.is_multiple_of(TICK_FAULTS) {
            self.tick();
        }
        if self.world.free() < self.world.limits.low {
            self.reclaim();
        }
    }

    /// Answers a fault if there is room.
    fn try_access(&mut self, page: PageIndex, write: bool) -> bool {
        let whole = PageIndex(0)..self.world.end;
        let look = self.streams.look(page);
        let Swapin::Inserted(mut transfer) = self.world.swap.swapin(page, whole, look.window) else {
            unreachable!("nobody else is at work, and nothing is lost")
        };
        let source = transfer.source;
        if !matches!(source, Source::Frames { .. }) && !self.world.has_room(transfer.length) {
            let room = self.world.free().max(1) as usize;
            transfer.narrow(room, |rest| _ = self.world.swap.finish_swapin(rest, 0, true));
            if !self.world.has_room(1) {
                self.world.swap.finish_swapin(&transfer, 0, true);
                self.world.swap.counters().add(Counter::allocstall, 1);
                return false;
            }
        }
        let mut pages = transfer.pages();
        let mut reads = Vec::new();
        if matches!(source, Source::Device { .. }) {
            reads.push(transfer);
        } else {
            self.bring_in(&transfer, write);
        }
        if matches!(source, Source::Device { .. } | Source::Zero) {
            let reach = self.world.swap.reach(page, source, look.window).after as u64;
            pages.end = self.read_on(pages.end, page.plus(1 + reach), write, &mut reads);
        }
        // They arrive when all have been asked for.
        reads.iter().for_each(|transfer| self.bring_in(transfer, write));
        self.charge(source, reads.iter().map(|transfer| transfer.length).sum());
        self.note_streams(page, look, source, pages);
        true
    }

    fn note_streams(&self, page: PageIndex, look: Look, source: Source, pages: Range<PageIndex>) {
        self.world.swap.counters().add(Counter::swap_ra_hit, look.passed as u64);
        let is_placed = !matches!(source, Source::Hole | Source::Frames { .. });
        let ahead = is_placed.then(|| (pages.end.0 - pages.start.0) as usize - 1);
        self.streams.brought_in(page, look, pages, ahead);
    }

    fn bring_in(&mut self, transfer: &Transfer, write: bool) {
        let swap = &self.world.swap;
        let keep = match transfer.source {
            Source::Memory => !swap.zswap().is_nearly_full(),
            Source::Device { .. } => swap.blocks().used() * 2 < swap.blocks().limit(),
            _ => false,
        };
        swap.finish_swapin(transfer, transfer.length, keep);
        self.world.note_written(transfer.pages());
        if let Source::Frames { slot } = transfer.source {
            self.world.move_from(slot, transfer.pages());
            self.world.release(&self.reclaimer, slot, transfer.length);
        } else {
            let is_zero = matches!(transfer.source, Source::Hole | Source::Zero) && !write;
            self.world.note_zero(transfer.pages(), is_zero);
        }
    }

    /// Brings in pages from `next` on that nobody has asked for, up to `stop`, as far as there is room. Returns the
    /// first that it did not.
    fn read_on(
        &mut self,
        mut next: PageIndex,
        stop: PageIndex,
        write: bool,
        reads: &mut Vec<Transfer>,
    ) -> PageIndex {
        let mut room = self.world.free() - reads.iter().map(|transfer| transfer.length as i64).sum::<i64>();
        while next < stop.min(self.world.end) && reads.len() < AHEAD_MAX {
            let window = Window::ahead((stop.0 - next.0) as usize);
            let found = self.world.swap.swapin(next, next..self.world.end, window);
            let Swapin::Inserted(mut transfer) = found else { break };
            transfer.ahead = true;
            let end = transfer.pages().end;
            match transfer.source {
                Source::Zero | Source::Device { .. } if room >= transfer.length as i64 => {
                    room -= transfer.length as i64;
                    if transfer.source == Source::Zero {
                        self.bring_in(&transfer, write);
                    } else {
                        reads.push(transfer);
                    }
                }
                _ => {
                    self.world.swap.finish_swapin(&transfer, 0, true);
                    if let Source::Frames { slot } = transfer.source {
                        self.let_go(slot);
                    }
                    break;
                }
            }
            next = end;
        }
        next
    }

    /// Pages of a slot stay on probation.
    fn let_go(&mut self, slot: u16) {
        self.reclaimer.probation.hold(slot);
        self.reclaimer.probation.requeue(slot);
        self.world.release(&self.reclaimer, slot, 1);
    }

    /// Adds up what a fault cost that read so many pages from the device.
    fn charge(&mut self, source: Source, read: usize) {
        let cost = match source {
            Source::Hole => 0.0,
            Source::Frames { .. } => PROBATION_FAULT_NS,
            Source::Zero => ZERO_NS,
            Source::Memory => POOL_FAULT_NS,
            Source::Device { .. } => {
                self.outcome.device_reads += 1;
                self.setting.device_ns + self.setting.device_page_ns * (read as f64 - 1.0)
            }
        };
        if matches!(source, Source::Device { .. }) {
            self.device_ns += cost as u64;
        }
        self.outcome.stalled_ns += cost;
    }

    /// What the control thread does every few hundredths of a second.
    fn tick(&mut self) {
        let Self { setting, world, balance, .. } = self;
        world.metadata = world.swap.metadata_bytes().div_ceil(PAGE_SIZE) as i64;
        world.swap.observe();
        let ceiling = setting.pool_max;
        let share = match world.has_device() {
            false => ceiling,
            true if setting.config.switches.fixed_share => balance.fixed(ceiling),
            true => balance.share(world.swap.totals(self.device_ns), world.swap.sizes(), ceiling),
        };
        let (memory, room) = (setting.memory as f64, setting.memory * 7 / 8);
        world.swap.zswap().set_pages_max(((memory * share) as usize).min(room as usize));
        self.reclaimer.set_pressure(balance.pressure());
    }

    /// Reclaims until enough is free. False if nothing leaves any more.
    fn reclaim(&mut self) -> bool {
        let mut in_vain = 0;
        while self.world.free() < self.world.limits.high {
            let progress = Counting::new(&self.reclaimer, &mut self.world).step();
            self.note_pool();
            in_vain = if matches!(progress, Progress::Freed(_)) { 0 } else { in_vain + 1 };
            // All clusters have had their turn, and all slots.
            let round = self.world.swap.queue().len() + 64;
            if progress == Progress::Nothing || in_vain > round {
                let over = (-self.world.free()).max(0) as u64;
                self.outcome.overcommitted = self.outcome.overcommitted.max(over);
                return false;
            }
        }
        true
    }

    fn note_pool(&mut self) {
        let zswap = self.world.swap.zswap();
        let pool = zswap.pool_pages();
        if pool > self.outcome.pool_peak {
            self.outcome.pool_peak = pool;
            let (entries, bytes) = zswap.stored();
            self.outcome.ratio = (bytes > 0).then(|| (entries * PAGE_SIZE as u64) as f64 / bytes as f64);
        }
    }

    fn end(mut self) -> Outcome {
        let counters = self.world.swap.counters();
        self.outcome.counters =
            Counter::ALL.iter().map(|&counter| (counter.name(), counters.get(counter))).collect();
        self.outcome
    }
}
