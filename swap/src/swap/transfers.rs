//! Waiting for transfers to end.

use crate::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use crate::sync::{Condvar, Mutex, lock};

/// Threads that wait until a transfer ends.
#[derive(Debug, Default)]
pub(super) struct Transfers {
    waiters: AtomicUsize,
    lock: Mutex<()>,
    ended: Condvar,
}

impl Transfers {
    /// Notes that a transfer has ended. Its words have changed before.
    pub(super) fn notify(&self) {
        if self.waiters.load(Relaxed) > 0 {
            // Taking the lock orders this after a waiter's check.
            drop(lock(&self.lock));
            self.ended.notify_all();
        }
    }

    /// Waits until a transfer ends, if one is under way still. The words are looked at again by `is_under_way`.
    pub(super) fn wait_while(&self, is_under_way: impl FnOnce() -> bool) {
        self.waiters.fetch_add(1, Relaxed);
        let guard = lock(&self.lock);
        // Look again with the lock held: an end that came before this is seen, one after notifies.
        if is_under_way() {
            drop(self.ended.wait(guard).unwrap_or_else(std::sync::PoisonError::into_inner));
        }
        self.waiters.fetch_sub(1, Relaxed);
    }
}
