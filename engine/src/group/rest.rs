//! Orders to rest, as the process that they are for follows them.

use super::ProcessSlot;
use super::layout::Field;
use pagetide_sys::log;
use std::time::{Duration, Instant};

/// A rest that nobody ends, and nobody orders anew, is over after this time.
const REST_MAX: Duration = Duration::from_secs(4);

/// The last order that a process has seen.
#[derive(Debug)]
pub(crate) struct RestOrder {
    slot: ProcessSlot,
    /// [`Field::Rest`] as it was, and since when it is so.
    order: u64,
    since: Instant,
}

impl RestOrder {
    /// Of a process that has seen none.
    pub(crate) fn new(slot: ProcessSlot) -> Self {
        Self { slot, order: 0, since: Instant::now() }
    }

    /// Looks at the order. Ends a rest if nobody says that it is to go on: whoever ordered it is stopped, or dead.
    pub(crate) fn follow(&mut self) {
        let order = self.slot.get(Field::Rest);
        if order != self.order {
            if order % 2 != self.order % 2 {
                let what =
                    if order % 2 == 1 { "the process rests" } else { "the process goes on after a rest" };
                log!(Info, "{what}");
            }
            (self.order, self.since) = (order, Instant::now());
        } else if order % 2 == 1 && self.since.elapsed() > REST_MAX {
            log!(Info, "nobody ended the rest for {} s: the process ends it itself", REST_MAX.as_secs());
            self.slot.end_rest(order);
        }
    }
}
