//! Threads of the engine: guests in the program's process.
//!
//! Their stacks lie together in one range of our own. The C library puts a thread's control block at the
//! top of its stack, so the thread pointer alone tells guests from the program's threads: an allocator
//! asks that at every call.

use crate::mapping::Reservation;
use crate::task::SignalsBlocked;
use std::ffi::c_void;
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

const STACK: usize = 512 * 1024;
const GUESTS_MAX: usize = 32;

static BASE: AtomicUsize = AtomicUsize::new(0);
static USED: AtomicUsize = AtomicUsize::new(0);
/// The thread that is starting a guest: what the C library allocates for that is the guest's.
static STARTER: AtomicUsize = AtomicUsize::new(0);

/// The calling thread's pointer.
#[inline]
pub fn thread_pointer() -> usize {
    let pointer: usize;
    // SAFETY: on x86-64 the first word of the thread control block is its own address.
    unsafe {
        std::arch::asm!("mov {}, fs:0", out(reg) pointer, options(nostack, readonly, preserves_flags));
    }
    pointer
}

/// Whether the calling thread is a guest, or is starting one.
#[inline]
pub fn is_guest() -> bool {
    let pointer = thread_pointer();
    // Before the first guest the base is zero, and no thread pointer is that small.
    pointer.wrapping_sub(BASE.load(Relaxed)) < GUESTS_MAX * STACK || pointer == STARTER.load(Relaxed)
}

/// Starts a guest, with all signals blocked.
///
/// # Errors
/// EAGAIN if the system, or this process, has too many threads.
pub fn spawn(name: &str, run: Box<dyn FnOnce() + Send>) -> io::Result<()> {
    if BASE.load(Relaxed) == 0 {
        // Guests are started one after the other: by the program's thread that starts the engine, then by
        // the engine's control thread.
        let stacks = Reservation::small_pages(GUESTS_MAX * STACK, STACK)?;
        BASE.store(stacks.leak(), Relaxed);
    }
    let index = USED.fetch_add(1, Relaxed);
    if index >= GUESTS_MAX {
        return Err(io::Error::from_raw_os_error(libc::EAGAIN));
    }
    let stack = BASE.load(Relaxed) + index * STACK;
    let start = Box::into_raw(Box::new((name.to_owned(), run)));
    let _signals = SignalsBlocked::new();
    // SAFETY: (1) the attributes are initialised before use and destroyed after; (2) the stack is a range
    // of ours that no other thread gets; (3) `start` is handed over to the new thread, or taken back.
    unsafe {
        let mut attributes: libc::pthread_attr_t = std::mem::zeroed();
        libc::pthread_attr_init(&raw mut attributes);
        libc::pthread_attr_setstack(&raw mut attributes, stack as *mut c_void, STACK);
        libc::pthread_attr_setdetachstate(&raw mut attributes, libc::PTHREAD_CREATE_DETACHED);
        let mut thread: libc::pthread_t = std::mem::zeroed();
        STARTER.store(thread_pointer(), Relaxed);
        let error = libc::pthread_create(&raw mut thread, &raw const attributes, enter, start.cast());
        STARTER.store(0, Relaxed);
        libc::pthread_attr_destroy(&raw mut attributes);
        if error != 0 {
            drop(Box::from_raw(start));
            return Err(io::Error::from_raw_os_error(error));
        }
    }
    Ok(())
}

type Start = (String, Box<dyn FnOnce() + Send>);

extern "C" fn enter(start: *mut c_void) -> *mut c_void {
    // SAFETY: `spawn` made it from a box of this type and gave it to us.
    let (name, run) = *unsafe { Box::from_raw(start.cast::<Start>()) };
    let _ = std::ffi::CString::new(name).map(|name| rustix::thread::set_name(&name));
    run();
    std::ptr::null_mut()
}

/// After a fork, in the child: the guests are not there, their stacks are free.
pub fn forget_all() {
    USED.store(0, Relaxed);
}
