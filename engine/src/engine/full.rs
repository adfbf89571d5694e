//! A device that is full for now: when that was seen, and when blocks that it refused are tried again.
//!
//! A disk that others fill has room again later, and nobody tells. What a write found no room for is *parked*: other
//! blocks may lie where the file has room already. All that is parked is tried again after 100 ms, and where that fails
//! too after 200, then 400, up to 6.4 s: a pass over all memory must end in between, or nobody would find that nothing
//! leaves. And again and again before a process ends for want of memory.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

const MS: u64 = 1_000_000;
/// Between a refusal and the next try, at first and at most.
const WAIT_FIRST: u64 = 100 * MS;
const WAIT_MOST: u64 = 6400 * MS;
/// For how long a device counts as full after it was: what depends on that should not change with every block.
const RECENT: u64 = 1000 * MS;

/// Times are nanoseconds; 0 says that there was nothing.
#[derive(Debug, Default)]
pub(super) struct Full {
    /// One more than when there was no room last.
    seen: AtomicU64,
    /// The time at which refused blocks may be tried again.
    due: AtomicU64,
    /// The time between the last refusal and that.
    wait: AtomicU64,
    /// Whether the last write found no room.
    refused: AtomicBool,
}

impl Full {
    /// Notes that there was no block.
    pub(super) fn note(&self, now: u64) {
        self.seen.store(now + 1, Relaxed);
    }

    /// Notes that there was a block, and no room for it.
    pub(super) fn refuse(&self, now: u64) {
        self.note(now);
        self.refused.store(true, Relaxed);
        let wait = (self.wait.load(Relaxed) * 2).clamp(WAIT_FIRST, WAIT_MOST);
        // The first refusal after a try counts.
        if self.due.compare_exchange(0, now + wait, Relaxed, Relaxed).is_ok() {
            self.wait.store(wait, Relaxed);
        }
    }

    /// Notes that a write has found room.
    pub(super) fn end(&self) {
        self.wait.store(0, Relaxed);
        if self.refused.swap(false, Relaxed) {
            pagetide_sys::log!(Info, "the device has room again");
        }
    }

    /// Returns whether what was refused may be tried again: true once.
    pub(super) fn is_due(&self, now: u64) -> bool {
        let due = self.due.load(Relaxed);
        due != 0 && due <= now && self.due.compare_exchange(due, 0, Relaxed, Relaxed).is_ok()
    }

    /// Returns whether there was no room for the last write.
    pub(super) fn is_refused(&self) -> bool {
        self.refused.load(Relaxed)
    }

    /// Returns whether there was no room of late.
    pub(super) fn is_recent(&self, now: u64) -> bool {
        let seen = self.seen.load(Relaxed);
        seen != 0 && now.saturating_sub(seen) < RECENT
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_refused_is_tried_again_and_seldom() {
        let full = Full::default();
        let tries = |until: u64| {
            (0..until).filter(|&ms| {
                full.is_due(ms * MS) && {
                    full.refuse(ms * MS);
                    true
                }
            })
        };
        assert!(!full.is_due(u64::MAX) && !full.is_recent(0));
        full.refuse(0);
        full.refuse(50 * MS);
        assert!(full.is_recent(0) && full.is_recent(1000 * MS) && !full.is_recent(1100 * MS));
        assert_eq!(tries(20_000).collect::<Vec<_>>(), [100, 300, 700, 1500, 3100, 6300, 12_700, 19_100]);
        assert!(full.is_refused());
        full.end();
        assert!(!full.is_refused());
        assert!(full.is_due(25_500 * MS));
        full.refuse(25_500 * MS);
        full.end();
        full.refuse(25_550 * MS);
        assert!(full.is_refused(), "although its next try is due since before");
        assert!(full.is_due(25_600 * MS) && !full.is_due(25_600 * MS));
    }
}
