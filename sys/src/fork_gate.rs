//! What no thread holds during a fork: the child would find it held for ever, by a thread that it does not have.

use crate::shared::{futex_wait, futex_wake};
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::Duration;

/// Between looks of a thread that nobody wakes.
const LOOK: Duration = Duration::from_secs(1);
/// Time after which who closes the gate does something for those that are within.
const PATIENCE: Duration = Duration::from_millis(10);

/// A gate that is closed during a fork. Who has entered is waited for; who comes meanwhile waits until the end of the fork.
///
/// ```
/// use pagetide_sys::fork_gate::ForkGate;
///
/// let gate = ForkGate::new();
/// gate.enter();
/// gate.leave();
/// gate.close(|| ());
/// assert!(!gate.try_enter());
/// gate.open();
/// assert!(gate.try_enter());
/// ```
#[derive(Debug)]
pub struct ForkGate {
    /// Threads that have entered, or are about to find out whether they may.
    within: AtomicU64,
    /// 1 while a fork is under way.
    closed: AtomicU64,
}

impl ForkGate {
    /// An open gate.
    #[expect(clippy::new_without_default, reason = "it is for statics")]
    pub const fn new() -> Self {
        Self { within: AtomicU64::new(0), closed: AtomicU64::new(0) }
    }

    /// Waits until the gate is open, and enters. Not for a thread that has entered already: the fork waits for that one.
    pub fn enter(&self) {
        while !self.try_enter() {
            futex_wait(&self.closed, 1, LOOK);
        }
    }

    /// Enters, if the gate is open. Returns whether it was.
    pub fn try_enter(&self) -> bool {
        // Either this thread sees that the gate is closed, or who closes it sees this thread.
        self.within.fetch_add(1, SeqCst);
        let is_open = self.closed.load(SeqCst) == 0;
        if !is_open {
            self.leave();
        }
        is_open
    }

    /// Leaves again.
    pub fn leave(&self) {
        if self.within.fetch_sub(1, SeqCst) == 1 && self.closed.load(SeqCst) != 0 {
            futex_wake(&self.within);
        }
    }

    /// Closes the gate, and waits until all have left: before a fork, by one thread at a time, which has not entered. Calls
    /// `meanwhile` again and again if that takes long: those within may wait for the caller.
    pub fn close(&self, mut meanwhile: impl FnMut()) {
        self.closed.store(1, SeqCst);
        loop {
            let within = self.within.load(SeqCst);
            if within == 0 {
                return;
            }
            futex_wait(&self.within, within as u32, PATIENCE);
            if self.within.load(SeqCst) > 0 {
                meanwhile();
            }
        }
    }

    /// Opens the gate: after the fork, in the parent.
    pub fn open(&self) {
        self.closed.store(0, SeqCst);
        futex_wake(&self.closed);
    }

    /// Opens the gate in the child, whose only thread has closed it. Others may have been about to find out that it was closed.
    pub fn open_in_child(&self) {
        self.within.store(0, SeqCst);
        self.closed.store(0, SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
    use std::sync::mpsc::channel;
    use std::thread;

    #[test]
    fn a_fork_waits_for_who_is_within_and_others_wait_for_the_fork() {
        let gate = ForkGate::new();
        let (left, opened) = (AtomicBool::new(false), AtomicBool::new(false));
        let (closed, is_closed) = channel();
        let (asks, is_asked) = channel();
        gate.enter();
        thread::scope(|scope| {
            scope.spawn(|| {
                let mut asked = false;
                gate.close(|| {
                    asked = true;
                    let _ = asks.send(());
                });
                assert!(asked, "nothing was done for the thread within");
                assert!(left.load(Relaxed), "it was closed while a thread was within");
                closed.send(()).unwrap();
            });
            is_asked.recv().unwrap();
            left.store(true, Relaxed);
            gate.leave();
            is_closed.recv().unwrap();
            scope.spawn(|| {
                gate.enter();
                assert!(opened.load(Relaxed), "a thread entered while the gate was closed");
                gate.leave();
            });
            assert!(!gate.try_enter());
            opened.store(true, Relaxed);
            gate.open();
        });
        assert_eq!(gate.within.load(SeqCst), 0);
    }

    #[test]
    fn threads_and_forks_are_never_at_work_together() {
        let (gate, forks) = (ForkGate::new(), AtomicBool::new(false));
        thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    for _ in 0..2000 {
                        gate.enter();
                        assert!(!forks.load(Relaxed));
                        gate.leave();
                    }
                });
            }
            for _ in 0..500 {
                gate.close(|| ());
                forks.store(true, Relaxed);
                assert!(!gate.try_enter());
                forks.store(false, Relaxed);
                gate.open();
            }
        });
        assert!(gate.try_enter());
    }

    #[test]
    fn a_child_forgets_who_was_about_to_enter() {
        let gate = ForkGate::new();
        gate.close(|| ());
        gate.within.fetch_add(1, SeqCst);
        gate.open_in_child();
        gate.close(|| ());
        gate.open_in_child();
        assert!(gate.try_enter());
    }
}
