//! The locks of the allocator: that of the arenas, and those of mimalloc in place of the C library's. A sanitizer has
//! functions of those names, which are not ready when the loader first allocates.
//!
//! A lock is the first word of the mutex, which is zero when it is new: 0 free, 1 held, 2 held and waited for (Drepper,
//! "Futexes Are Tricky", 2011, section 5). Linked by `--wrap`, as in `wraps`.
//!
//! No thread but the one that forks holds one of them during a fork: a child could not allocate any more. While a thread
//! holds one it handles no signal, since the handler may fork. In a program of one thread none of that is needed, and no
//! call is made that its sandbox may forbid.

use crate::call::{keeping_errno, kernel};
use crate::glibc;
use pagetide_sys::fork_gate::ForkGate;
use pagetide_sys::signals::SignalsBlocked;
use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::mem::ManuallyDrop;
use std::sync::atomic::{AtomicU32, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};

static GATE: ForkGate = ForkGate::new();

thread_local! {
    /// The locks that this thread holds, or waits for.
    static HELD: Cell<u32> = const { Cell::new(0) };
    /// Of a thread that has passed the gate: the signals that were blocked before. (No destructor: for one the C library allocates.)
    static SIGNALS: Cell<Option<ManuallyDrop<SignalsBlocked>>> = const { Cell::new(None) };
    /// Whether this thread has closed the gate.
    static FORKS: Cell<bool> = const { Cell::new(false) };
}

/// Waits until no other thread holds a lock, and keeps others from taking one. Before a fork, by one thread at a time, with
/// signals blocked. Calls `meanwhile` if that takes long: one that holds a lock may wait for a page.
pub(crate) fn before_fork(meanwhile: impl FnMut()) {
    if !glibc::has_one_thread() && HELD.get() == 0 {
        FORKS.set(true);
        GATE.close(meanwhile);
    }
}

pub(crate) fn after_fork_in_parent() {
    if FORKS.replace(false) {
        GATE.open();
    }
}

pub(crate) fn after_fork_in_child() {
    if FORKS.replace(false) {
        GATE.open_in_child();
    }
}

/// Passes the gate, before a lock is taken. Returns false if a fork is under way, and it does not wait.
fn begin(waits: bool) -> bool {
    let held = HELD.get();
    // A fork waits for a thread that holds one until it holds none. The forking thread itself meets nobody.
    if held == 0 && !FORKS.get() && !glibc::has_one_thread() {
        let signals = SignalsBlocked::new();
        if waits {
            keeping_errno(|| GATE.enter());
        } else if !GATE.try_enter() {
            return false;
        }
        SIGNALS.set(Some(ManuallyDrop::new(signals)));
    }
    HELD.set(held + 1);
    true
}

fn end() {
    let held = HELD.get() - 1;
    HELD.set(held);
    if held == 0
        && let Some(signals) = SIGNALS.take()
    {
        keeping_errno(|| GATE.leave());
        drop(ManuallyDrop::into_inner(signals));
    }
}

/// A lock of the allocator's.
#[repr(transparent)]
pub(crate) struct Lock(AtomicU32);

std::arch::global_asm!(
    ".hidden __wrap_pthread_mutex_init",
    ".hidden __wrap_pthread_mutex_destroy",
    ".hidden __wrap_pthread_mutex_lock",
    ".hidden __wrap_pthread_mutex_trylock",
    ".hidden __wrap_pthread_mutex_unlock",
);

const FREE: u32 = 0;
const HELD_ALONE: u32 = 1;
const WAITED_FOR: u32 = 2;

impl Lock {
    pub(crate) const fn new() -> Self {
        Self(AtomicU32::new(FREE))
    }

    pub(crate) fn take(&self) {
        begin(true);
        if self.0.compare_exchange(FREE, HELD_ALONE, Acquire, Relaxed).is_err() {
            while self.0.swap(WAITED_FOR, Acquire) != FREE {
                futex(&self.0, libc::FUTEX_WAIT, WAITED_FOR);
            }
        }
    }

    /// Takes the lock if it is free. Returns whether it did.
    fn try_take(&self) -> bool {
        if !begin(false) {
            return false;
        }
        let taken = self.0.compare_exchange(FREE, HELD_ALONE, Acquire, Relaxed).is_ok();
        if !taken {
            end();
        }
        taken
    }

    /// Gives the lock back, which the calling thread holds.
    pub(crate) fn release(&self) {
        if self.0.swap(FREE, Release) == WAITED_FOR {
            futex(&self.0, libc::FUTEX_WAKE, 1);
        }
        end();
    }
}

fn futex(word: &AtomicU32, operation: c_int, value: u32) {
    let operation = operation | libc::FUTEX_PRIVATE_FLAG;
    // SAFETY: the word lives while it is waited for; no other memory is passed.
    let _ = unsafe {
        kernel(libc::SYS_futex, [word.as_ptr().addr(), operation as usize, value as usize, 0, 0, 0])
    };
}

#[unsafe(no_mangle)]
unsafe extern "C" fn __wrap_pthread_mutex_init(mutex: *mut Lock, _: *const c_void) -> c_int {
    // SAFETY: mimalloc passes room for a mutex, which nobody uses yet.
    unsafe { mutex.write(Lock::new()) };
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn __wrap_pthread_mutex_destroy(_: *mut Lock) -> c_int {
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn __wrap_pthread_mutex_lock(mutex: *mut Lock) -> c_int {
    // SAFETY: mimalloc passes a mutex of its own.
    unsafe { &*mutex }.take();
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn __wrap_pthread_mutex_trylock(mutex: *mut Lock) -> c_int {
    // SAFETY: mimalloc passes a mutex of its own.
    if unsafe { &*mutex }.try_take() { 0 } else { libc::EBUSY }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn __wrap_pthread_mutex_unlock(mutex: *mut Lock) -> c_int {
    // SAFETY: mimalloc passes a mutex of its own, which it has taken.
    unsafe { &*mutex }.release();
    0
}
