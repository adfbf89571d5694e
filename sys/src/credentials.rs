//! Engine threads follow when the program changes its user or its groups.
//!
//! To the kernel these are each thread's own. The C library has the threads that it knows make the same call, by a
//! signal that it keeps for itself and blocks nowhere. Engine threads, which it does not know, get the same signal from
//! us, and take what the calling thread has by then: none keeps a right that the program has given up.

use crate::arch::return_from_signal;
use crate::places::{self, ENGINE_THREADS_MAX};
use crate::shared::{futex_wait, futex_wake};
use crate::signals::SignalsBlocked;
use rustix::thread::{Gid, Uid, set_thread_groups, set_thread_res_gid, set_thread_res_uid};
use std::ffi::{c_int, c_void};
use std::sync::atomic::{
    AtomicI32, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering::AcqRel, Ordering::Acquire,
    Ordering::Relaxed, Ordering::Release,
};
use std::time::Duration;

/// glibc's SIGSETXID.
const SIGNAL: c_int = 33;
const SA_RESTORER: u64 = 0x0400_0000;
/// Between looks at whether an engine thread has ended instead.
const LOOK: Duration = Duration::from_millis(20);
/// No list of groups.
const UNCHANGED: usize = usize::MAX;

/// Held by the thread that changes them.
static CHANGING: AtomicU32 = AtomicU32::new(0);
/// The credentials that engine threads are to have: real, effective and saved user, the same of the group, and other
/// groups.
static IDS: [AtomicU32; 6] = [const { AtomicU32::new(0) }; 6];
static GROUPS: AtomicPtr<u32> = AtomicPtr::new(std::ptr::null_mut());
static GROUP_COUNT: AtomicUsize = AtomicUsize::new(UNCHANGED);
/// The number of the change; in each engine thread's place the last that it has followed.
static CHANGE: AtomicU64 = AtomicU64::new(0);
static FOLLOWED: [AtomicU64; ENGINE_THREADS_MAX] = [const { AtomicU64::new(0) }; ENGINE_THREADS_MAX];
static ERROR: AtomicI32 = AtomicI32::new(0);
/// The C library's handler.
static BEFORE: AtomicUsize = AtomicUsize::new(0);

/// An action, as the kernel has it.
#[repr(C)]
struct Action {
    handler: usize,
    flags: u64,
    restorer: usize,
    mask: u64,
}

type Handler = extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void);

extern "C" fn handle(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    if places::is_engine_thread() {
        return take_over();
    }
    let before = BEFORE.load(Relaxed);
    if before > 1 {
        // SAFETY: neither the default nor ignored: a handler, installed by the C library with SA_SIGINFO.
        unsafe { std::mem::transmute::<usize, Handler>(before)(signal, info, context) };
    }
}

/// Takes what is wanted, on an engine thread. Sets no `errno`: it comes between whatever the engine thread does.
fn take_over() {
    let (change, place) = (CHANGE.load(Acquire), places::own_place());
    if FOLLOWED[place].load(Relaxed) == change {
        return;
    }
    let count = GROUP_COUNT.load(Relaxed);
    let groups = match count {
        UNCHANGED => Ok(()),
        // SAFETY: the thread that wants the change waits for us with so many numbers there; a `Gid` is such a number.
        _ => set_thread_groups(unsafe {
            std::slice::from_raw_parts(GROUPS.load(Relaxed).cast::<Gid>(), count)
        }),
    };
    let ids: [u32; 6] = std::array::from_fn(|at| IDS[at].load(Relaxed));
    let [user, effective, saved] = [0, 1, 2].map(|at| Uid::from_raw(ids[at]));
    let [group, effective_group, saved_group] = [3, 4, 5].map(|at| Gid::from_raw(ids[at]));
    let result = groups
        .and_then(|()| set_thread_res_gid(group, effective_group, saved_group))
        .and_then(|()| set_thread_res_uid(user, effective, saved));
    if let Err(error) = result {
        ERROR.store(error.raw_os_error(), Relaxed);
    }
    FOLLOWED[place].store(change, Release);
    futex_wake(&FOLLOWED[place]);
}

/// Runs `call`, which changes the user or the groups of the program's threads, and has the engine threads follow if it
/// succeeds. `groups` says whether it may change the list of other groups.
///
/// # Errors
/// In place of the error of an engine thread: what an engine thread could not take.
pub fn changing(groups: bool, call: impl FnOnce() -> c_int) -> (c_int, Result<(), i32>) {
    // A handler may do the same.
    let _signals = SignalsBlocked::new();
    while CHANGING.compare_exchange(0, 1, Acquire, Relaxed).is_err() {
        rustix::thread::sched_yield();
    }
    let result = call();
    let followed = if result == 0 { lead(groups) } else { Ok(()) };
    CHANGING.store(0, Release);
    (result, followed)
}

/// Has the engine threads take the credentials of the calling thread.
fn lead(groups: bool) -> Result<(), i32> {
    let mut any = false;
    places::for_each(|_, _| {
        any = true;
        true
    });
    if !any {
        return Ok(());
    }
    let word = |at: usize| IDS[at].as_ptr();
    // SAFETY: each call writes three words of ours.
    unsafe {
        libc::syscall(libc::SYS_getresuid, word(0), word(1), word(2));
        libc::syscall(libc::SYS_getresgid, word(3), word(4), word(5));
    }
    let list =
        if groups { rustix::process::getgroups().map_err(|error| error.raw_os_error())? } else { Vec::new() };
    GROUPS.store(list.as_ptr().cast_mut().cast(), Relaxed);
    GROUP_COUNT.store(if groups { list.len() } else { UNCHANGED }, Relaxed);
    ERROR.store(0, Relaxed);
    let change = CHANGE.fetch_add(1, AcqRel) + 1;
    install();
    let process = std::process::id();
    places::for_each(|place, number| {
        let Some(number) = number else {
            rustix::thread::sched_yield();
            return false;
        };
        let seen = FOLLOWED[place].load(Acquire);
        if seen == change {
            return true;
        }
        // SAFETY: a signal to a thread of ours, for which we have installed a handler.
        unsafe { libc::syscall(libc::SYS_tgkill, process, number, SIGNAL) };
        futex_wait(&FOLLOWED[place], seen as u32, LOOK);
        false
    });
    match ERROR.load(Relaxed) {
        0 => Ok(()),
        error => Err(error),
    }
}

/// Makes our handler that of the signal. The C library installs its own with the first thread that it starts, never
/// while another thread is here.
fn install() {
    let flags = (libc::SA_SIGINFO | libc::SA_RESTART) as u64 | SA_RESTORER;
    let new = Action {
        handler: handle as *const () as usize,
        flags,
        restorer: return_from_signal as *const () as usize,
        mask: 0,
    };
    let mut old = Action { handler: 0, flags: 0, restorer: 0, mask: 0 };
    // SAFETY: both are actions as the kernel has them, of a signal that no program may use.
    unsafe { libc::syscall(libc::SYS_rt_sigaction, SIGNAL, &raw const new, &raw mut old, size_of::<u64>()) };
    if old.handler != new.handler {
        BEFORE.store(old.handler, Relaxed);
    }
}

/// Frees the lock, in a forked child: the thread that had it is not there.
pub(crate) fn forget_all() {
    CHANGING.store(0, Relaxed);
}
