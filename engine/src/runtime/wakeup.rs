//! The wake-up of the reclaim thread.

use super::lock;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

/// Wakes one thread, which sleeps for a while at a time.
#[derive(Debug, Default)]
pub(super) struct Wakeup {
    due: Mutex<bool>,
    arrived: Condvar,
    sleeping: AtomicBool,
}

impl Wakeup {
    /// Wakes the thread, or keeps it from sleeping next.
    pub(super) fn now(&self) {
        *lock(&self.due) = true;
        self.arrived.notify_all();
    }

    /// Sleeps until it is woken, or for this time.
    pub(super) fn wait(&self, timeout: Duration) {
        let due = lock(&self.due);
        self.sleeping.store(true, SeqCst);
        let (mut due, _) = self
            .arrived
            .wait_timeout_while(due, timeout, |due| !*due)
            .unwrap_or_else(PoisonError::into_inner);
        *due = false;
        self.sleeping.store(false, SeqCst);
    }

    /// Wakes the thread if it sleeps. This costs nothing while reclaim is at work, or has been woken and is not awake
    /// yet.
    pub(super) fn if_sleeping(&self) {
        if self.sleeping.load(SeqCst) && self.sleeping.swap(false, SeqCst) {
            self.now();
        }
    }
}
