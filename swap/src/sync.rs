//! The primitives of concurrency: the standard library's, or those of a checker that tries the orders in which
//! threads may run (feature `shuttle`, for `tests/protocol/main.rs`).

#[cfg(feature = "shuttle")]
pub(crate) use shuttle::{
    hint::spin_loop,
    sync::{Condvar, Mutex, MutexGuard, atomic},
};
#[cfg(not(feature = "shuttle"))]
pub(crate) use std::{
    hint::spin_loop,
    sync::{Condvar, Mutex, MutexGuard, atomic},
};

/// Takes a lock whose holder cannot have left it inconsistent: the data are counters and words that are
/// set in one step, and a panic in the engine ends the process anyway.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}
