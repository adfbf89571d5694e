//! Rests of a process whose engine does not run: it waits when it wants more memory.

use super::{Generation, Process};
use crate::group::{Field, RestOrder};
use pagetide_swap::Counter;
use pagetide_sys::procfs;
use pagetide_sys::signals::SignalsBlocked;
use pagetide_sys::task;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

/// Time between two looks at an order that nobody changes, and at signals.
const LOOK: Duration = Duration::from_millis(20);

impl Process {
    /// Waits while the process is told to rest. What it has stays in memory; once its engine runs, its faults wait instead.
    /// A signal ends the rest.
    ///
    /// Only a process of one thread waits: a fork by another thread would wait for what this one holds, a lock of the C library or
    /// of the allocator. Nor does it handle signals meanwhile, since it may be amid a call of the allocator.
    pub(super) fn rest_without_engine(&self) {
        let generation = self.generation();
        let slot = generation.slot;
        let rests = || {
            // A sandbox may allow no further calls, and a child of `vfork` keeps its parent waiting.
            slot.is_resting()
                && !generation.has_started()
                && !task::is_confined()
                && self.is_current()
                && has_one_thread(generation)
        };
        if !rests() {
            return;
        }
        let signals = SignalsBlocked::new();
        if signals.hid_ends() {
            // What they wait for would have to wait, too.
            return;
        }
        let since = Instant::now();
        let mut order = RestOrder::new(slot);
        loop {
            let seen = slot.get(Field::Bell);
            order.follow();
            if !rests() || signals.is_any_pending() {
                break;
            }
            slot.wait_bell(seen, LOOK);
        }
        slot.counters().add(Counter::rested_ns, since.elapsed().as_nanos() as u64);
    }
}

/// Returns whether the program has one thread, beside a sentry. False where it is not known.
fn has_one_thread(generation: &Generation) -> bool {
    // One that listens is there until the engine starts, or has failed to.
    let sentries = u64::from(generation.slot.get(Field::Listens) != 0 && !generation.failed.load(Relaxed));
    procfs::thread_count().is_some_and(|count| count <= 1 + sentries)
}
