//! The lives of slots: processes take them when they start, and they are given back when the processes have ended.

use super::layout::{COUNTER_WORDS, Field, GRANTED, Header, SLOT_HEADER_WORDS};
use super::{DeviceKind, Group, ProcessSlot};
use crate::latency;
use crate::recorder;
use pagetide_swap::Counter;
use pagetide_sys::procfs::Identity;
use pagetide_sys::task;
use std::path::{Path, PathBuf};
use std::sync::atomic::{Ordering::AcqRel, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};
use std::time::Duration;

/// Nanoseconds between two looks of processes that are short for others that have ended: each takes 0.3 µs a process.
const SEEK: u64 = 2_000_000;

/// Between looks for a slot where all are taken.
const LOOK: Duration = Duration::from_millis(5);

impl Group {
    /// Returns the slot that keeps the counters and latencies of processes that have died.
    pub fn dead(&self) -> ProcessSlot {
        ProcessSlot { words: self.slot_words(0), index: usize::MAX }
    }

    /// Returns the slot of this number.
    ///
    /// # Panics
    /// If there are not so many slots.
    pub fn slot(&self, index: usize) -> ProcessSlot {
        assert!(index < self.slots);
        ProcessSlot { words: self.slot_words(index + 1), index }
    }

    /// Returns the slots that are taken.
    pub fn live(&self) -> impl Iterator<Item = ProcessSlot> + '_ {
        let seen = self.header[Header::SlotsSeen as usize].load(Acquire) as usize;
        (0..seen.min(self.slots)).map(|index| self.slot(index)).filter(|slot| slot.get(Field::Taken) != 0)
    }

    /// Returns whether the run has ever had as many processes as there are slots: later ones may have none.
    pub fn was_full(&self) -> bool {
        self.header[Header::SlotsSeen as usize].load(Acquire) >= self.slots as u64
    }

    /// Releases the slots of processes that have died, as the launcher does, if that has died itself and this process
    /// can tell. `swap` is the path of the swap file for this process.
    pub fn sweep(&self, swap: Option<&PathBuf>) {
        let is_dead = |process: Identity| process.pids().is_ok_and(|pids| pids.is_empty());
        if self.is_launcher_dead() == Some(true) {
            let dead = self.live().filter(|slot| slot.get(Field::StartTime) != 0 && is_dead(slot.process()));
            self.release_when_written(swap.map_or(Path::new(""), PathBuf::as_path), dead);
        }
    }

    /// Returns whether the launcher is dead; `None` if this process cannot tell.
    pub fn is_launcher_dead(&self) -> Option<bool> {
        let (launcher, own) = (self.setup.launcher, Identity::own());
        // From another namespace, or through the `/proc` of one, the living may be out of sight.
        let sees = own.namespace == launcher.namespace && own.pid == std::process::id() && own.namespace != 0;
        sees.then(|| launcher.pids().ok().map(|pids| pids.is_empty()))?
    }

    /// Notes that the launcher has given back the slots of those that were dead.
    pub fn note_look(&self) {
        self.header[Header::Looks as usize].fetch_add(1, AcqRel);
    }

    /// Takes a slot for a process. Where all are taken it waits for two looks of the launcher, the second of which began
    /// after this call: the dead keep theirs until then. `None` if the run has [`super::SLOTS`] processes that live.
    pub fn claim_after_the_dead(&self, process: Identity) -> Option<ProcessSlot> {
        let looks = || self.header[Header::Looks as usize].load(Acquire);
        let before = looks();
        loop {
            // In this order: what the second look has given back is found.
            let is_over = looks().wrapping_sub(before) >= 2;
            if let Some(slot) = self.claim(process) {
                return Some(slot);
            }
            if is_over || self.is_launcher_dead() != Some(false) {
                return None;
            }
            std::thread::sleep(LOOK);
        }
    }

    /// Takes a slot for a child that `forker` is about to fork, as [`Self::claim_after_the_dead`] does.
    pub fn claim_for_child(&self, forker: ProcessSlot) -> Option<ProcessSlot> {
        let slot = self.claim_after_the_dead(Identity::UNKNOWN)?;
        slot.set(Field::Forker, forker.tenant() + 1);
        Some(slot)
    }

    /// Returns whether a slot is for a child of a process that has given its own back by now.
    pub fn has_lost_forker(&self, slot: ProcessSlot) -> bool {
        let forker = slot.get(Field::Forker);
        forker != 0 && !self.has_tenant(forker)
    }

    /// Returns whether the tenant that is one less than this has its slot still.
    pub(super) fn has_tenant(&self, after: u64) -> bool {
        self.live().any(|slot| slot.tenant() + 1 == after)
    }

    /// Takes a slot for a process; `None` if all are taken.
    pub fn claim(&self, process: Identity) -> Option<ProcessSlot> {
        let slot = (0..self.slots).map(|index| self.slot(index)).find(|slot| {
            slot.word(Field::Taken).load(Relaxed) == 0
                && slot.word(Field::Taken).compare_exchange(0, 2, AcqRel, Relaxed).is_ok()
        })?;
        let granted = [Field::Grant as usize, Field::Added as usize];
        for (index, word) in slot.words.iter().enumerate().skip(Field::Pid as usize) {
            if !granted.contains(&index) {
                word.store(0, Relaxed);
            }
        }
        // What the launcher has taken in the name of who had the slot, just when that was released.
        self.give_granted(slot);
        slot.word(Field::Tenancy).fetch_add(1, Relaxed);
        slot.name(process);
        self.header[Header::SlotsSeen as usize].fetch_max(slot.index as u64 + 1, AcqRel);
        slot.word(Field::Taken).store(1, Release);
        Some(slot)
    }

    /// Gives slots back: their counters are added to those of the dead, and their grants and blocks become free.
    pub fn release(&self, slots: impl IntoIterator<Item = ProcessSlot>) {
        let trace = self.trace_path();
        let noted = slots.into_iter().inspect(|slot| {
            if let Some(Err(error)) = trace.as_ref().map(|trace| recorder::note_end(trace, slot.tenant())) {
                task::say(&format!(
                    "cannot write the trace: {error}; replayed, an ended process lives on (--trace)"
                ));
            }
        });
        self.release_when_written(&self.swap_path(), noted);
    }

    /// Gives a slot back, if `tenant` has it still, whose process is another program by now and has not joined.
    pub fn evict(&self, slot: ProcessSlot, tenant: u64) {
        // Nobody else gives it back or takes it meanwhile.
        if slot.word(Field::Taken).compare_exchange(1, 2, AcqRel, Relaxed).is_err() {
            return;
        }
        if slot.tenant() != tenant {
            return slot.word(Field::Taken).store(1, Release);
        }
        if let Some(trace) = self.trace_path() {
            // Replayed, it lives on if this fails, no more.
            let _ = recorder::note_end(&trace, tenant);
        }
        if !self.held(slot).is_empty() {
            // As for the dead.
            self.await_writes(&self.swap_path());
        }
        self.give_back(slot);
    }

    /// Takes `pages` for the process of a slot if at least `reserve` remain, with what ended processes have left if need be. Returns
    /// whether it did.
    pub fn take_for(&self, own: ProcessSlot, pages: i64, reserve: i64) -> bool {
        self.take(pages, reserve) || {
            self.collect_from_ended(own);
            self.take(pages, reserve)
        }
    }

    /// Takes back what processes were granted that have ended since the launcher's last look, for `own`, which is short. Once in 2 ms
    /// in the whole run; what this process cannot see is left to the launcher, and so are slots.
    pub fn collect_from_ended(&self, own: ProcessSlot) {
        // In a child that works in its parent's memory the pids may be those of another namespace.
        if own.get(Field::OwnPid) != u64::from(std::process::id()) {
            return;
        }
        let (sought, now) = (&self.header[Header::Sought as usize], pagetide_sys::log::now());
        let before = sought.load(Relaxed);
        if now.wrapping_sub(before) < SEEK || sought.compare_exchange(before, now, Relaxed, Relaxed).is_err()
        {
            return;
        }
        let may_have_ended =
            |slot: &ProcessSlot| slot.index != own.index && slot.granted() > 0 && Self::has_ended(*slot, own);
        self.live().filter(may_have_ended).for_each(|slot| self.collect_from(slot, own));
    }

    /// Returns whether the process of a slot has ended, all its threads and its memory: nobody is left to be reaped. Only of one in
    /// the namespace of `own`. What forks share stays charged until somebody else is charged for it.
    fn has_ended(slot: ProcessSlot, own: ProcessSlot) -> bool {
        let namespace = own.get(Field::Namespace);
        slot.get(Field::StartTime) != 0
            && slot.get(Field::Namespace) == namespace
            && namespace != 0
            && slot.get(Field::PoolShared) == 0
            && slot.get(Field::Lent) == 0
            && task::has_ended(slot.get(Field::OwnPid) as u32)
    }

    /// Takes back what an ended process was granted, if the slot is not another's by now.
    fn collect_from(&self, slot: ProcessSlot, own: ProcessSlot) {
        // Nobody else gives it back or takes it meanwhile.
        if slot.word(Field::Taken).compare_exchange(1, 2, AcqRel, Relaxed).is_err() {
            return;
        }
        slot.set(Field::Collector, own.tenant() + 1);
        if Self::has_ended(slot, own) {
            // It is not to be counted beside who has its memory next, nor asked for any.
            Field::MEMORY.into_iter().for_each(|field| slot.set(field, 0));
            self.give_granted(slot);
        }
        slot.set(Field::Collector, 0);
        slot.word(Field::Taken).store(1, Release);
    }

    /// Frees slots from processes that were killed while they took back what had been granted there. For the launcher to call.
    pub fn free_from_collectors(&self) {
        for slot in self.live().filter(|slot| slot.word(Field::Taken).load(Acquire) == 2) {
            let collector = slot.get(Field::Collector);
            if collector != 0 && !self.has_tenant(collector) {
                slot.set(Field::Collector, 0);
                slot.word(Field::Taken).store(1, Release);
            }
        }
    }

    /// Returns the path of the swap file for the launcher; any, if there is none.
    fn swap_path(&self) -> PathBuf {
        self.setup.tier(DeviceKind::File).map_or_else(PathBuf::new, |tier| self.tier_path(tier))
    }

    /// Waits for the writes that ended threads began. (Those to a remote tier: its server lets none come over a later one.)
    fn await_writes(&self, swap: &Path) {
        if let Some(tier) = self.setup.tier(DeviceKind::File) {
            self.setup.tiers[tier].device.await_writes(swap);
        }
    }

    fn release_when_written(&self, swap: &Path, slots: impl IntoIterator<Item = ProcessSlot>) {
        let slots: Vec<_> = slots.into_iter().collect();
        if slots.iter().any(|&slot| !self.held(slot).is_empty()) {
            // A write that is still under way must not come after one of whoever has the block next.
            self.await_writes(swap);
        }
        slots.into_iter().for_each(|slot| self.release_written(slot));
    }

    fn release_written(&self, slot: ProcessSlot) {
        if slot.word(Field::Taken).compare_exchange(1, 2, AcqRel, Relaxed).is_ok() {
            self.give_back(slot);
        }
    }

    fn give_back(&self, slot: ProcessSlot) {
        pagetide_sys::log!(Info, "process {} has ended", slot.known_as());
        // First what others may wait for: a process that does this itself, after exec, may be killed amid it.
        [Field::Armed, Field::Listens].into_iter().for_each(|field| slot.set(field, 0));
        self.hand_over(slot);
        self.give_granted(slot);
        let dead = self.dead();
        for &counter in Counter::ALL {
            dead.counters().add(counter, slot.counters().get(counter));
        }
        dead.counters().distances().add(slot.counters().distances());
        let mut sum = [0; latency::WORDS];
        slot.latency().add_to(&mut sum);
        let to = &dead.words[SLOT_HEADER_WORDS + COUNTER_WORDS..];
        for (word, count) in to[..latency::BUCKETS].iter().zip(sum) {
            word.fetch_add(count, Relaxed);
        }
        to[latency::BUCKETS].fetch_max(sum[latency::BUCKETS], Relaxed);
        pagetide_swap::blocks::sweep(self.block_counts(), &self.held(slot), &self.frontiers());
        slot.word(Field::Taken).store(0, Release);
    }

    /// Hands what a process was granted, and has ended, over to those that borrow from it: they have its frames.
    fn hand_over(&self, slot: ProcessSlot) {
        if slot.get(Field::Lent) == 0 {
            return;
        }
        let mut left = slot.granted();
        let borrows = |heir: &ProcessSlot| heir.get(Field::Forker) == slot.tenant() + 1;
        for heir in self.live().filter(borrows) {
            let pages = (heir.get(Field::Borrowed) as i64).min(left).max(0);
            slot.word(Field::Grant).fetch_sub(pages as u64, AcqRel);
            // It is charged for them before it has these to spend.
            heir.set(Field::Settles, GRANTED);
            heir.word(Field::Added).fetch_add(pages as u64, AcqRel);
            left -= pages;
        }
    }

    /// Gives back all that is taken for a slot. In one step: part of it may be a debt.
    fn give_granted(&self, slot: ProcessSlot) {
        let [grant, added] = [Field::Grant, Field::Added].map(|field| slot.word(field).swap(0, AcqRel));
        self.give(grant.wrapping_add(added) as i64);
    }
}
