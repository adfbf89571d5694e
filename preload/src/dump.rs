//! `PAGETIDE_DUMP`: brings everything in before a fatal signal ends the process, so that its core dump is whole.
//!
//! The kernel serves no userfault for a task that dumps core: what is out would be holes.

use crate::current::managed;
use crate::range::bytes;
use pagetide::process::Process;
use pagetide_sys::task;
use std::ffi::{c_int, c_void};
use std::ptr::null_mut;

/// The variable that asks for it.
pub(crate) const VARIABLE: &str = "PAGETIDE_DUMP";

/// Signals that dump core if nobody handles them: signal(7).
const FATAL: [c_int; 10] = [
    libc::SIGQUIT,
    libc::SIGILL,
    libc::SIGTRAP,
    libc::SIGABRT,
    libc::SIGBUS,
    libc::SIGFPE,
    libc::SIGSEGV,
    libc::SIGXCPU,
    libc::SIGXFSZ,
    libc::SIGSYS,
];

/// Sets the action of a signal and returns the one before.
fn set(signal: c_int, handler: usize) -> libc::sigaction {
    // SAFETY: all zero is a value of the structure; the kernel reads one and fills the other. A handler is
    // `on_fatal`, which has the type that SA_SIGINFO wants.
    unsafe {
        let (mut action, mut before): (libc::sigaction, libc::sigaction) = std::mem::zeroed();
        action.sa_sigaction = handler;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        libc::sigaction(signal, &raw const action, &raw mut before);
        before
    }
}

/// Takes over the fatal signals whose action is the default: before the program sets its own.
pub(crate) fn install() {
    for signal in FATAL {
        let before = set(signal, on_fatal as *const () as usize);
        if before.sa_sigaction != libc::SIG_DFL {
            // SAFETY: what was there before.
            unsafe { libc::sigaction(signal, &raw const before, null_mut()) };
        }
    }
}

extern "C" fn on_fatal(signal: c_int, info: *mut libc::siginfo_t, _: *mut c_void) {
    if let Some(process) = managed()
        && process.runtime().is_some()
    {
        bring_everything_in(process);
    }
    set(signal, libc::SIG_DFL);
    // SAFETY: the kernel passes the information.
    let by_instruction = unsafe { (*info).si_code } > 0;
    let repeats =
        by_instruction && matches!(signal, libc::SIGSEGV | libc::SIGBUS | libc::SIGFPE | libc::SIGILL);
    if !repeats {
        // Again, for when we return: whoever sent it does not do so twice.
        // SAFETY: no memory is passed.
        unsafe { libc::raise(signal) };
    }
}

/// Brings all pages in but those that cannot come: pages without access, and lost ones.
fn bring_everything_in(process: &Process) {
    let Some(runtime) = process.runtime() else { return };
    runtime.lift_cap();
    // What was on its way out when the cap was lifted is out after the first round.
    for _ in 0..2 {
        let entered = process.enter();
        let runs: Vec<_> = entered.ranges().into_iter().flat_map(|range| entered.out(range)).collect();
        drop(entered);
        for run in runs {
            let (start, length) = bytes(&run);
            task::bring_in(start, length);
        }
    }
}
