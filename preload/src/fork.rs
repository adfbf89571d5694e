//! Forks: what runs before one, and after it in the parent and in the child.

use crate::call::count;
use crate::current::{managed, process};
use crate::glibc;
use crate::locks;
use crate::next::Next;
use crate::shared;
use pagetide::process::Process;
use pagetide_sys::signals::SignalsBlocked;
use std::cell::Cell;
use std::mem::ManuallyDrop;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// Whether the fork under way holds the list's lock.
static LISTED: AtomicBool = AtomicBool::new(false);

thread_local! {
    /// The slot of the child that this thread has forked, if it has.
    static CHILD: Cell<Option<usize>> = const { Cell::new(None) };
    /// The signals that were blocked before the fork that this thread makes. (No destructor: for one the C library allocates.)
    static SIGNALS: Cell<Option<ManuallyDrop<SignalsBlocked>>> = const { Cell::new(None) };
}

pub(crate) extern "C" fn before_fork() {
    let has_threads = !glibc::has_one_thread();
    if has_threads {
        // Taken first: a thread that holds it must not be stopped while it waits for a page. The C library
        // takes it again (it is recursive) when our handler has run.
        glibc::lock_streams();
    }
    // Until all is as before: a handler that forks would undo what is done here, and one that waits for another thread
    // (for a collection of garbage, say) would wait for one that waits for the end of the fork.
    SIGNALS.set(Some(ManuallyDrop::new(SignalsBlocked::new())));
    LISTED.store(has_threads, Relaxed);
    // Behind the list's lock: who holds that may allocate.
    locks::before_fork(|| process().into_iter().for_each(Process::answer_waiting));
    let Some(process) = process() else { return };
    process.before_fork();
    shared::before_fork(process);
    if has_threads {
        // SAFETY: locked above.
        unsafe { glibc::touch_streams() };
    }
    process.quiesce_before_fork();
}

/// Signals are handled again: the last step, in the parent and in the child.
fn let_signals_in() {
    SIGNALS.take().map(ManuallyDrop::into_inner);
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
    if let Some(process) = process() {
        CHILD.set(process.after_fork_in_parent());
    }
    locks::after_fork_in_parent();
    if LISTED.swap(false, Relaxed) {
        // SAFETY: taken in `before_fork`.
        unsafe { glibc::unlock_streams() };
    }
    let_signals_in();
}

pub(crate) extern "C" fn after_fork_in_child() {
    // If the list's lock was taken, the C library has reset it.
    LISTED.store(false, Relaxed);
    locks::after_fork_in_child();
    // SAFETY: a forked child has one thread.
    unsafe { crate::HEAP.begin_anew() };
    if let Some(process) = process() {
        // Before an engine starts, which maps where the kernel finds room.
        shared::reserve_in_child();
        process.after_fork_in_child();
        shared::after_fork_in_child(process);
    }
    let_signals_in();
}

/// `_Fork(3)`: the C library's, with our handlers around it, though not with others'.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn _Fork() -> libc::pid_t {
    static NEXT: Next = Next::new(c"_Fork");
    // Before other threads are stopped, which may have the loader's lock.
    let _ = NEXT.find();
    // SAFETY: the caller's contract.
    let fork = || unsafe { NEXT.fork() };
    count(if managed().is_none() { fork() } else { fork_by(fork) }) as libc::pid_t
}
