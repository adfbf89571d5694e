//! Forks: what runs before one, and after it in the parent and in the child.

use crate::call::count;
use crate::current::{managed, process};
use crate::glibc;
use crate::locks;
use crate::next::Next;
use crate::shared;
use std::cell::Cell;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// Whether the fork under way holds the list's lock.
static LISTED: AtomicBool = AtomicBool::new(false);

pub(crate) extern "C" fn before_fork() {
    let Some(process) = process() else { return };
    if !glibc::has_one_thread() {
        // Taken first: a thread that holds it must not be stopped while it waits for a page. The C library
        // takes it again (it is recursive) when our handler has run.
        glibc::lock_streams();
        LISTED.store(true, Relaxed);
    }
    // Behind the list's lock: who holds that may allocate.
    locks::before_fork();
    process.before_fork();
    shared::before_fork(process);
    if LISTED.load(Relaxed) {
        // SAFETY: locked above.
        unsafe { glibc::touch_streams() };
    }
    process.quiesce_before_fork();
}

/// Runs `call`, a fork past the C library's handlers, with ours around it. `call` returns 0 in the child.
pub(crate) fn fork_by<E>(call: impl FnOnce() -> Result<usize, E>) -> Result<usize, E> {
    before_fork();
    let result = call();
    if let Ok(0) = result {
        let listed = LISTED.load(Relaxed);
        after_fork_in_child();
        if listed {
            // SAFETY: taken in `before_fork`; the C library did not reset it.
            unsafe { glibc::unlock_streams() };
        }
    } else {
        after_fork_in_parent();
        if result.is_err() {
            fork_failed();
        }
    }
    result
}

thread_local! {
    /// The slot of the child that this thread has forked, if it has.
    static CHILD: Cell<Option<usize>> = const { Cell::new(None) };
}

/// The handlers do not hear whether there was a fork.
fn fork_failed() {
    if let (Some(process), Some(child)) = (process(), CHILD.take()) {
        process.fork_failed(child);
    }
}

/// `fork(3)`, with the handlers around it.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn fork() -> libc::pid_t {
    static NEXT: Next = Next::new(c"fork");
    CHILD.set(None);
    // SAFETY: the caller's contract.
    let result = unsafe { NEXT.fork() };
    if result.is_err() {
        fork_failed();
    }
    count(result) as libc::pid_t
}

pub(crate) extern "C" fn after_fork_in_parent() {
    let Some(process) = process() else { return };
    CHILD.set(process.after_fork_in_parent());
    locks::after_fork_in_parent();
    if LISTED.swap(false, Relaxed) {
        // SAFETY: taken in `before_fork`.
        unsafe { glibc::unlock_streams() };
    }
}

pub(crate) extern "C" fn after_fork_in_child() {
    let Some(process) = process() else { return };
    // If the list's lock was taken, the C library has reset it.
    LISTED.store(false, Relaxed);
    locks::after_fork_in_child();
    // SAFETY: a forked child has one thread.
    unsafe { crate::HEAP.begin_anew() };
    // Before an engine starts, which maps where the kernel finds room.
    shared::reserve_in_child();
    process.after_fork_in_child();
    shared::after_fork_in_child(process);
}

/// `_Fork(3)`: the C library's, with our handlers around it, though not with others'.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn _Fork() -> libc::pid_t {
    static NEXT: Next = Next::new(c"_Fork");
    // SAFETY: the caller's contract.
    let fork = || unsafe { NEXT.fork() };
    count(if managed().is_none() { fork() } else { fork_by(fork) }) as libc::pid_t
}
