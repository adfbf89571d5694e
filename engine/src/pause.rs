//! The pause of an engine: for a fork, all its work stops between two pieces of it.
//!
//! Three kinds of work are told apart, since they wait for each other: *calls* (a thread of the program in
//! a mapping call), *work* (faults, reclaim, control) and *completions* (what a device request led to).
//! A call may wait for a fault to be served, and both for a completion; so freezing stops calls first,
//! then work, and completions run until no request is under way.

use crate::dump::board::{Board, Root};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// A count of the work under way, and the thread that has stopped it, if one has.
#[derive(Debug, Default)]
pub struct Pause {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// The thread that forks: no new calls.
    closed_by: Option<u32>,
    /// Nor new work, but for the forking thread's own faults.
    frozen: bool,
    /// Faults of all threads are served although frozen.
    serving: bool,
    calls: usize,
    working: usize,
    completing: usize,
    /// `closed_by` for who looks from outside (0 for nobody), and since when by the kernel's clock.
    closer: u32,
    closed_at: u64,
}

impl Pause {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Shows on `board` where this state lies. It must stay there.
    pub fn show_on(&self, board: Board) {
        let state = self.lock();
        board.show(Root::Calls, &state.calls);
        board.show(Root::Working, &state.working);
        board.show(Root::Completing, &state.completing);
        board.show(Root::Frozen, &state.frozen);
        board.show(Root::Serving, &state.serving);
        board.show(Root::Closer, &state.closer);
        board.show(Root::ClosedAt, &state.closed_at);
    }

    fn wait<'a>(&self, state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        self.changed.wait(state).unwrap_or_else(PoisonError::into_inner)
    }

    fn end(&self, mut state: MutexGuard<'_, State>, count: impl FnOnce(&mut State) -> &mut usize) {
        *count(&mut state) -= 1;
        if state.closed_by.is_some() {
            self.changed.notify_all();
        }
    }

    /// Begins a call of the program; waits while a fork is under way.
    pub fn begin_call(&self) {
        let mut state = self.lock();
        while state.closed_by.is_some() {
            state = self.wait(state);
        }
        state.calls += 1;
    }

    /// Ends a call.
    pub fn end_call(&self) {
        self.end(self.lock(), |state| &mut state.calls);
    }

    /// Begins to serve a fault of thread `tid`. Returns false while another thread has stopped work: then the fault is
    /// to be parked.
    pub fn try_work(&self, tid: u32) -> bool {
        let mut state = self.lock();
        let may = !state.frozen || state.serving || state.closed_by == Some(tid);
        state.working += usize::from(may);
        may
    }

    /// Begins a piece of work that nobody waits for in particular. Returns false if a fork is about to stop all work, or
    /// has.
    pub fn try_spare_work(&self) -> bool {
        let mut state = self.lock();
        let may = state.closed_by.is_none();
        state.working += usize::from(may);
        may
    }

    /// Returns whether a fork is about to stop all work, or has.
    pub fn is_closed(&self) -> bool {
        self.lock().closed_by.is_some()
    }

    /// Begins a piece of work; waits while frozen.
    pub fn begin_work(&self) {
        let mut state = self.lock();
        while state.frozen {
            state = self.wait(state);
        }
        state.working += 1;
    }

    /// Ends a piece of work.
    pub fn end_work(&self) {
        self.end(self.lock(), |state| &mut state.working);
    }

    /// Begins to handle completions: allowed while frozen, since freezing waits for them.
    pub fn begin_completion(&self) {
        self.lock().completing += 1;
    }

    /// Ends handling completions.
    pub fn end_completion(&self) {
        self.end(self.lock(), |state| &mut state.completing);
    }

    /// Stops calls, then work, in the name of thread `tid`; waits until what was under way has ended.
    pub fn freeze(&self, tid: u32) {
        let mut state = self.lock();
        while state.closed_by.is_some() {
            state = self.wait(state);
        }
        state.closed_by = Some(tid);
        (state.closer, state.closed_at) = (tid, pagetide_sys::log::now());
        while state.calls > 0 {
            state = self.wait(state);
        }
        state.frozen = true;
        while state.working > 0 {
            state = self.wait(state);
        }
    }

    /// Runs `call` while faults of all threads are served although frozen.
    pub fn serving(&self, call: impl FnOnce()) {
        self.lock().serving = true;
        call();
        self.lock().serving = false;
        self.quiesce();
    }

    /// Waits, while work is stopped, until all of it and all handling of completions has ended: the thread that serves
    /// a fault goes on for a moment after the thread that waited for it.
    pub fn quiesce(&self) {
        let mut state = self.lock();
        while state.working > 0 || state.completing > 0 {
            state = self.wait(state);
        }
    }

    /// Lets all threads work again.
    pub fn thaw(&self) {
        let mut state = self.lock();
        state.closed_by = None;
        state.closer = 0;
        state.frozen = false;
        drop(state);
        self.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

    #[test]
    fn all_faults_are_let_in_for_a_while_and_frozen_only_those_of_the_forking_thread() {
        let pause = Pause::default();
        pause.freeze(1);
        assert!(!pause.try_work(2));
        pause.serving(|| {
            assert!(pause.try_work(2) && !pause.try_spare_work());
            pause.end_work();
        });
        assert!(!pause.try_work(2));
        assert!(pause.try_work(1));
        pause.end_work();
        pause.thaw();
        assert!(pause.try_work(2) && pause.try_spare_work());
        pause.end_work();
        pause.end_work();
    }

    #[test]
    fn a_fork_waits_for_whoever_answered_its_last_fault() {
        let (pause, settled) = (Pause::default(), AtomicBool::new(false));
        pause.freeze(1);
        assert!(pause.try_work(1));
        pause.begin_completion();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                pause.quiesce();
                settled.store(true, SeqCst);
            });
            pause.end_work();
            assert!(!settled.load(SeqCst), "a completion is still under way");
            pause.end_completion();
        });
        assert!(settled.load(SeqCst));
        pause.thaw();
    }
}
