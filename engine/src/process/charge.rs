//! Charges for memory that the process is handed out before its engine runs.

use super::fork::ASLEEP_RESERVE;
use super::{Generation, Process, lock};
use crate::group::{Field, OTHERS_PART};
use crate::regions::{Access, Attributes, Charging, Region};
use pagetide_swap::PageIndex;
use pagetide_sys::engine_thread;
use pagetide_sys::signals::SignalsBlocked;
use pagetide_sys::task;
use std::ops::Range;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

/// Pages of a grant up to which a process that has no engine gets more whatever is left: 3 MiB, of which it touches a
/// third. An engine takes half a MiB, beside what can never leave.
pub(super) const SMALL: i64 = 768;
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

impl Process {
    /// Charges `pages` pages that are handed out to the program. Starts the engine when the group has no more.
    ///
    /// Call it before [`Process::enter`], never within.
    pub fn charge(&'static self, pages: i64) {
        let Generation { slot, unspent, runtime, phase, .. } = self.generation();
        if runtime.get().is_some() || pages <= 0 || unspent.fetch_sub(pages, Relaxed) >= pages {
            return;
        }
        self.rest_without_engine();
        // A small process takes no more ahead than it may use.
        let ahead = (self.group.step() / 4).min(slot.granted().max(0) / 8);
        let wanted = (-unspent.load(Relaxed)).max(0) + ahead;
        if wanted == 0 {
            // Another thread has taken enough meanwhile.
            return;
        }
        // Without an engine nothing is ever given back: where it is tight, processes start with one.
        let reserve = (self.group.cap_pages() as i64 / OTHERS_PART).max(ASLEEP_RESERVE);
        let small = slot.granted().max(0) + wanted <= SMALL;
        // An engine that starts takes over what is granted by then: no grant comes between. Nor a handler that forks, or jumps
        // out: a fork waits for the end of this.
        let signals = self.signals_blocked();
        phase.begin_call();
        let armed = runtime.get().is_some();
        // For one that is so small that an engine would take more than it could give, from others if need be; unless
        // those small ones are so many that others have not given for a while.
        let most = self.group.cap_pages() as i64 / SMALL_PART;
        let granted = !armed
            && (self.group.take_for(*slot, wanted, reserve) || small && self.group.take(wanted, -most));
        if granted {
            slot.word(Field::Grant).fetch_add(wanted as u64, Relaxed);
            unspent.fetch_add(wanted, Relaxed);
        }
        phase.end_call();
        drop(signals);
        if !armed && !granted {
            return self.arm();
        }
        if granted && self.group.free() < 0 {
            self.group.ask(*slot, wanted);
        }
        if granted {
            self.post_sentry_if_large();
        }
    }

    /// Blocks signals, unless a sandbox may not allow that call.
    fn signals_blocked(&self) -> Option<SignalsBlocked> {
        (!task::is_confined()).then(SignalsBlocked::new)
    }

    /// Posts a sentry where others may want some of what the process holds.
    pub(super) fn post_sentry_if_large(&'static self) {
        if self.handed_out() > SENTRY_STEPS * self.group.step() {
            self.post_sentry();
        }
    }

    /// Pages that the process was handed out, whatever of them it is charged for.
    fn handed_out(&self) -> i64 {
        let slot = self.generation().slot;
        slot.granted() + slot.get(Field::Spared) as i64
    }

    /// Charges `pages` pages that an allocator has taken for objects of one size each. It will use them bit by bit, if
    /// at all: a small process never touches most of them. As long as the engine does not run, three quarters of the
    /// first ones are [spared](Field::Spared).
    pub fn charge_committed(&'static self, pages: i64) {
        if pages <= 0 {
            return;
        }
        let Generation { slot, runtime, .. } = self.generation();
        let mut spared = 0;
        let here = |spared: u64| (SPARED_STEPS * self.group.step()).saturating_sub_unsigned(spared);
        if runtime.get().is_none() && here(slot.get(Field::Spared)) > 0 {
            let most = (pages - pages / 4).min(self.group.uncharged_left());
            let _ = slot.word(Field::Spared).fetch_update(Relaxed, Relaxed, |already| {
                spared = most.min(here(already)).max(0);
                Some(already.wrapping_add(spared as u64))
            });
        }
        self.charge(pages - spared);
    }

    /// Takes back a charge of [`Process::charge_committed`].
    pub fn uncharge_committed(&self, pages: i64) {
        let spared = self.generation().slot.word(Field::Spared);
        let mut back = 0;
        let _ = spared.fetch_update(Relaxed, Relaxed, |spared| {
            back = spared.min(pages as u64);
            Some(spared - back)
        });
        self.uncharge(pages - back as i64);
    }

    /// Starts an engine thread that waits for the bell, and starts the engine when others ask for pages: the process
    /// itself may wait for somebody for hours, and make no call that would tell it. A small one is let alone.
    pub(super) fn post_sentry(&'static self) {
        let generation = self.generation();
        if generation.watched.load(Relaxed) || task::is_confined() || !self.is_current() {
            return;
        }
        let _signals = SignalsBlocked::new();
        let _posting = lock(&generation.posting);
        let posted = generation.watched.swap(true, Relaxed) || generation.runtime.get().is_some();
        // Where address space is short it is the program's.
        let posted = posted || pagetide_sys::mapping::room() < SENTRY_ROOM;
        // Without it the process keeps what it has for as long as it makes no call.
        if !posted {
            match engine_thread::spawn("pagetide-sentry", Box::new(|| self.keep_watch(generation))) {
                Ok(()) => generation.slot.listen(),
                // The next charge tries again.
                Err(_) => generation.watched.store(false, Relaxed),
            }
        }
    }

    /// Notes that a thread is about to put itself into a sandbox (seccomp): no sentry is posted from now on, and an engine
    /// that runs makes only the calls that a sandbox has to allow. Children that are forked inherit the sandbox, and this.
    pub fn confine(&self) {
        if self.is_current() {
            task::confine();
            pagetide_sys::mapping::discard_one_by_one();
        }
    }

    fn keep_watch(&'static self, generation: &Generation) {
        while !generation.has_started() {
            let seen = generation.slot.get(Field::Bell);
            if task::is_confined() {
                // The sandbox may be of all threads: this one goes on with the call that it is in, and no other.
                generation.slot.set(Field::Listens, 0);
            } else if generation.slot.get(Field::Asked) > 0 {
                return self.arm();
            }
            generation.slot.wait_bell(seen, SENTRY_WAIT);
        }
    }

    /// Takes back a charge of [`Process::charge`].
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
        // As in `charge`.
        let _signals = self.signals_blocked();
        phase.begin_call();
        if runtime.get().is_none() && unspent.compare_exchange(now, now - surplus, Relaxed, Relaxed).is_ok() {
            slot.word(Field::Grant).fetch_sub(surplus as u64, Relaxed);
            self.group.give(surplus - slot.pay_debt(surplus));
        }
        phase.end_call();
    }

    /// Takes back a charge of so many pages; charges them if there are less than none.
    pub fn settle(&'static self, surplus: i64) {
        self.uncharge(surplus);
        self.charge(-surplus);
    }

    /// Returns the number of pages that would be charged more, before the engine runs, if `range` were accessible.
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

/// Pages that a region counts for before the engine runs.
pub(super) fn charge(range: &Range<PageIndex>, attributes: &Attributes) -> i64 {
    match (attributes.charging, attributes.access) {
        (Charging::ByMapping, Access::Read | Access::Write) => (range.end.0 - range.start.0) as i64,
        _ => 0,
    }
}
