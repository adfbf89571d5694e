//! Slots: the part of the group page that one process has.

use super::layout::{COUNTER_WORDS, Field, PAGES_MAX, SLOT_HEADER_WORDS};
use crate::latency::Latency;
use pagetide_swap::Counters;
use pagetide_sys::procfs::Identity;
use pagetide_sys::shared::{futex_wait, futex_wake};
use std::sync::atomic::{
    AtomicU64, Ordering::AcqRel, Ordering::Acquire, Ordering::Relaxed, Ordering::Release,
};
use std::time::Duration;

/// The part of its time, in millionths, that a process must lose to pages which come back before it takes pages from
/// others: 1 %.
const PRESSURE_MIN: u64 = 10_000;

/// A handle on one process's slot.
#[derive(Clone, Copy, Debug)]
pub struct ProcessSlot {
    pub(super) words: &'static [AtomicU64],
    pub(super) index: usize,
}

impl ProcessSlot {
    /// Returns the slot's number.
    pub fn index(&self) -> usize {
        self.index
    }

    /// Returns the number of the process in a trace. A slot serves one process after the other, so it is more than the
    /// slot's number.
    pub fn tenant(&self) -> u64 {
        (self.index as u64) << 32 | self.get(Field::Tenancy) & u64::from(u32::MAX)
    }

    /// Returns a word of the slot.
    pub fn word(&self, field: Field) -> &'static AtomicU64 {
        &self.words[field as usize]
    }

    /// Returns a word's value. Every process of the run can write there, so an impossible number of pages is cut to the
    /// nearest possible one.
    pub fn get(&self, field: Field) -> u64 {
        field.bounded(self.word(field).load(Acquire))
    }

    /// Sets a word.
    pub fn set(&self, field: Field, value: u64) {
        self.word(field).store(value, Release);
    }

    /// Notes the process that has the slot: the calling one, or one that is still unknown.
    pub fn name(&self, process: Identity) {
        // The start time last: whoever sees it may go by the name.
        self.set(Field::Namespace, process.namespace);
        self.set(Field::Pid, process.pid.into());
        self.set(Field::OwnPid, std::process::id().into());
        self.set(Field::StartTime, process.start_time);
    }

    /// Returns the identity of the process that has the slot.
    pub fn process(&self) -> Identity {
        let start_time = self.get(Field::StartTime);
        Identity { pid: self.get(Field::Pid) as u32, start_time, namespace: self.get(Field::Namespace) }
    }

    /// Returns the pid by which the launcher knows the process, or by which the process knows itself before the
    /// launcher has looked.
    pub fn known_as(&self) -> u64 {
        match self.get(Field::KnownAs) {
            0 => self.get(Field::Pid),
            pid => pid,
        }
    }

    /// Returns the address where the stack of the process's program begins, by which that is told from the next one,
    /// which the process may call by exec; 0 if not known.
    pub fn stack(&self) -> u64 {
        self.get(Field::Stack)
    }

    /// Notes the address where that stack begins.
    pub fn set_stack(&self, address: u64) {
        self.set(Field::Stack, address);
    }

    /// Notes that a thread of the process waits for its bell.
    pub fn listen(&self) {
        self.set(Field::Listens, 1);
    }

    /// Returns the number of pages that a keeper of shared memory has in memory, itself and of what it serves, as it says
    /// at one moment. Looked at from outside the two would be of different moments, and pages that leave just then would
    /// count twice.
    pub fn kept_pages(self) -> u64 {
        let fields = [Field::Resident, Field::Frames, Field::Pool, Field::Metadata, Field::Unmanaged];
        fields.map(|field| self.get(field)).iter().sum()
    }

    /// Returns the number of pages that are taken for the process.
    pub fn granted(&self) -> i64 {
        self.get(Field::Grant).wrapping_add(self.get(Field::Added)) as i64
    }

    /// Returns the number of pages that the launcher has taken back, since the process was granted them and did not
    /// touch them.
    pub fn debt(&self) -> i64 {
        (self.get(Field::Added) as i64).min(0).saturating_neg()
    }

    /// Makes that debt smaller by up to `pages`. Returns by how many.
    pub fn pay_debt(&self, pages: i64) -> i64 {
        let mut paid = 0;
        let _ = self.word(Field::Added).fetch_update(AcqRel, Relaxed, |added| {
            paid = (added as i64).clamp(-PAGES_MAX, 0).saturating_neg().min(pages);
            (paid > 0).then_some(added.wrapping_add(paid as u64))
        });
        paid
    }

    /// Returns whether the program loses so much time to pages which come back that it may take pages from others.
    pub fn loses_time(&self) -> bool {
        self.get(Field::Pressure) > PRESSURE_MIN
    }

    /// Returns whether the program misses nothing: it loses hardly any time, and no fault of it waits.
    pub fn idles(&self) -> bool {
        !self.loses_time() && self.get(Field::Stalled) == 0
    }

    /// Returns whether the process is to rest.
    pub fn is_resting(&self) -> bool {
        self.get(Field::Rest) % 2 == 1
    }

    /// Ends a rest that was ordered by `order`, if it goes on.
    pub fn end_rest(&self, order: u64) {
        let _ = self.word(Field::Rest).compare_exchange(order, order.wrapping_add(1), AcqRel, Relaxed);
    }

    /// Returns whether the process has only begun to rest: what it has in its pool is small, and dear to bring back
    /// from elsewhere.
    pub fn keeps_pool(&self) -> bool {
        self.is_resting() && self.get(Field::RestAgain) == 0
    }

    /// Tells the process to rest (anew, if it does already), or to go on.
    pub fn set_resting(&self, rests: bool) {
        if rests != self.is_resting() {
            pagetide_sys::log!(
                Info,
                "tells process {} to {}",
                self.known_as(),
                if rests { "rest" } else { "go on" }
            );
        }
        let next = |order: u64| match (order % 2 == 1, rests) {
            (true, true) => Some(order.wrapping_add(2)),
            (false, false) => None,
            (true, false) | (false, true) => Some(order.wrapping_add(1)),
        };
        if let Ok(order) = self.word(Field::Rest).fetch_update(AcqRel, Acquire, next) {
            let again = self.word(Field::RestAgain);
            if order % 2 == 1 {
                again.fetch_add(1, AcqRel)
            } else {
                again.swap(0, AcqRel)
            };
            self.ring();
        }
    }

    /// Returns the process's counters.
    pub fn counters(&self) -> Counters {
        Counters::new(&self.words[SLOT_HEADER_WORDS..SLOT_HEADER_WORDS + COUNTER_WORDS])
    }

    /// Returns the histogram of the process's fault latencies.
    pub fn latency(&self) -> Latency {
        Latency::new(&self.words[SLOT_HEADER_WORDS + COUNTER_WORDS..])
    }

    /// Rings the process's bell, so that its control thread looks what there is to do.
    pub fn ring(&self) {
        self.word(Field::Bell).fetch_add(1, AcqRel);
        futex_wake(self.word(Field::Bell));
    }

    /// Waits until the bell rang since it read `seen`, or `timeout` passed.
    pub fn wait_bell(&self, seen: u64, timeout: Duration) {
        futex_wait(self.word(Field::Bell), seen as u32, timeout);
    }
}
