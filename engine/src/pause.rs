//! Stopping all work of the engine between two pieces of it: for a fork.
//!
//! Three kinds of work are told apart, since they wait for each other: *calls* (a thread of the program in
//! a mapping call), *work* (faults, reclaim, control) and *completions* (what a device request led to).
//! A call may wait for a fault to be served, and both for a completion; so freezing stops calls first,
//! then work, and completions run until no request is under way.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// Who works, and who has stopped everybody.
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
    calls: usize,
    working: usize,
    completing: usize,
}

impl Pause {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
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

    /// Begins to serve a fault of thread `tid`. False while frozen by another thread: park it.
    pub fn try_work(&self, tid: u32) -> bool {
        let mut state = self.lock();
        let may = !state.frozen || state.closed_by == Some(tid);
        state.working += usize::from(may);
        may
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
        while state.calls > 0 {
            state = self.wait(state);
        }
        state.frozen = true;
        while state.working > 0 {
            state = self.wait(state);
        }
    }

    /// Waits, frozen and with no request under way, until nobody handles completions.
    pub fn wait_completions(&self) {
        let mut state = self.lock();
        while state.completing > 0 {
            state = self.wait(state);
        }
    }

    /// Lets everybody work again.
    pub fn thaw(&self) {
        let mut state = self.lock();
        state.closed_by = None;
        state.frozen = false;
        drop(state);
        self.changed.notify_all();
    }
}
