//! Locks whose holders may panic.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// Takes a lock, also one in whose hold a thread has panicked: a panic ends the process, and until then others go on.
///
/// ```
/// let counter = std::sync::Mutex::new(1);
/// *pagetide_sys::lock(&counter) += 1;
/// assert_eq!(*pagetide_sys::lock(&counter), 2);
/// ```
pub fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Waits for a condition with a lock that [`lock`] has taken, which is free meanwhile.
pub fn wait<'a, T>(condition: &Condvar, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
    condition.wait(guard).unwrap_or_else(PoisonError::into_inner)
}
