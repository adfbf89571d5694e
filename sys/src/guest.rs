//! Threads of the engine: guests in the program's process.
//!
//! Their stacks lie together in one range of our own. The C library puts a thread's control block at the
//! top of its stack, so the thread pointer alone tells guests from the program's threads: an allocator
//! asks that at every call.

use crate::mapping::Reservation;
use crate::task::SignalsBlocked;
use std::ffi::{c_int, c_void};
use std::io;
use std::sync::atomic::{
    AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering::AcqRel, Ordering::Acquire, Ordering::Relaxed,
};
use std::time::Duration;

const STACK: usize = 512 * 1024;
/// Stacks; the last is for rehearsals.
const GUESTS_MAX: usize = 32;

static BASE: AtomicUsize = AtomicUsize::new(0);
static USED: AtomicUsize = AtomicUsize::new(0);
/// Guests that have begun to run code of ours.
static ENTERED: AtomicU64 = AtomicU64::new(0);
/// Threads that start guests: what the C library allocates for that is the guest's. One may wait for the loader's lock
/// while the thread that holds it starts a guest too.
static STARTERS: [AtomicUsize; 8] = [const { AtomicUsize::new(0) }; 8];

/// Where glibc counts the threads of the process (2.34 and later; null if it is not to be found). The last one
/// that ends calls `exit`: guests must not keep the program from that.
static THREADS: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());

/// Adds to the C library's count of threads: it counts a guest when it starts, and when it ends.
fn count(threads: i32) {
    let count = THREADS.load(Relaxed).cast::<AtomicU32>();
    // SAFETY: null, or the C library's counter: an aligned `unsigned int` that it changes by atomic operations,
    // and that lives as long as the process.
    if let Some(count) = unsafe { count.as_ref() } {
        count.fetch_add(threads as u32, AcqRel);
    }
}

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
    pointer.wrapping_sub(BASE.load(Relaxed)) < GUESTS_MAX * STACK || is_starter(pointer)
}

fn is_starter(pointer: usize) -> bool {
    STARTERS.iter().any(|starter| starter.load(Relaxed) == pointer)
}

/// Runs `start` as a thread that starts a guest.
fn as_starter<T>(start: impl FnOnce() -> T) -> T {
    let pointer = thread_pointer();
    let starter = loop {
        let claim = |cell: &&AtomicUsize| cell.compare_exchange(0, pointer, Relaxed, Relaxed).is_ok();
        match STARTERS.iter().find(claim) {
            Some(starter) => break starter,
            None => std::thread::yield_now(),
        }
    };
    let result = start();
    starter.store(0, Relaxed);
    result
}

/// Asks the loader for what guests need. Early in the life of the process: later its lock may be held by whoever waits
/// for the thread that starts a guest, and in a forked child its data may be out of memory.
pub fn prepare() {
    // SAFETY: the name is a C string.
    let threads = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"__nptl_nthreads".as_ptr()) };
    THREADS.store(threads, Relaxed);
}

/// Starts a guest, with all signals blocked.
///
/// # Errors
/// EAGAIN if the system, or this process, has too many threads.
pub fn spawn(name: &str, run: Box<dyn FnOnce() + Send>) -> io::Result<()> {
    if BASE.load(Relaxed) == 0 {
        // Two threads may come here at a time: one range is dropped. A lock could be held in a forked child for ever.
        let stacks = Reservation::small_pages(GUESTS_MAX * STACK, STACK)?;
        if BASE.compare_exchange(0, stacks.base(), Relaxed, Relaxed).is_ok() {
            stacks.leak();
        }
    }
    let index = USED.fetch_add(1, Relaxed);
    if index >= GUESTS_MAX - 1 {
        // Nobody waits for a guest that was not started.
        USED.fetch_sub(1, Relaxed);
        return Err(io::Error::from_raw_os_error(libc::EAGAIN));
    }
    let start = Box::into_raw(Box::new((name.to_owned(), run)));
    // SAFETY: `enter` takes such a box, and gets this one only.
    let created = unsafe { create(index, enter, start.cast(), libc::PTHREAD_CREATE_DETACHED) };
    if let Err(error) = created {
        // SAFETY: no thread has got it.
        drop(unsafe { Box::from_raw(start) });
        USED.fetch_sub(1, Relaxed);
        return Err(error);
    }
    count(-1);
    Ok(())
}

/// Starts a thread on stack number `index`, with all signals blocked.
///
/// # Safety
/// No other thread may use that stack, and `entry` must be sound with `argument`.
unsafe fn create(
    index: usize,
    entry: extern "C" fn(*mut c_void) -> *mut c_void,
    argument: *mut c_void,
    detached: c_int,
) -> io::Result<libc::pthread_t> {
    let stack = BASE.load(Relaxed) + index * STACK;
    let _signals = SignalsBlocked::new();
    // SAFETY: (1) the attributes are initialised before use and destroyed after; (2) the stack is a range
    // of ours that no other thread has; (3) the caller vouches for entry and argument.
    unsafe {
        let mut attributes: libc::pthread_attr_t = std::mem::zeroed();
        libc::pthread_attr_init(&raw mut attributes);
        libc::pthread_attr_setstack(&raw mut attributes, stack as *mut c_void, STACK);
        libc::pthread_attr_setdetachstate(&raw mut attributes, detached);
        let mut thread: libc::pthread_t = std::mem::zeroed();
        let error =
            as_starter(|| libc::pthread_create(&raw mut thread, &raw const attributes, entry, argument));
        libc::pthread_attr_destroy(&raw mut attributes);
        if error == 0 { Ok(thread) } else { Err(io::Error::from_raw_os_error(error)) }
    }
}

/// Waits until every guest that was started runs code of ours.
///
/// Before that, a new thread runs code of the C library, which looks at the character tables of the locale:
/// in the program's memory. Nothing may be taken out of that before all are past it, since among the threads
/// that look there is the one that would answer the fault.
pub fn wait_entered() {
    loop {
        let entered = ENTERED.load(Acquire);
        if entered >= USED.load(Relaxed) as u64 {
            return;
        }
        crate::shared::futex_wait(&ENTERED, entered as u32, Duration::from_millis(100));
    }
}

/// Starts a guest that ends at once, and waits for its end: whatever the C library looks at to start a thread
/// (locale, loaded libraries with thread-local data) is in memory afterwards. For a child about to be forked,
/// which starts its guests before anybody answers its faults.
///
/// # Errors
/// As for [`spawn`].
pub fn rehearse() -> io::Result<()> {
    extern "C" fn nothing(_: *mut c_void) -> *mut c_void {
        std::ptr::null_mut()
    }
    if BASE.load(Relaxed) == 0 {
        return Ok(());
    }
    // SAFETY: the last stack is for rehearsals, and they are made one at a time, by a thread that has stopped
    // all other forks; the entry looks at nothing.
    let thread =
        unsafe { create(GUESTS_MAX - 1, nothing, std::ptr::null_mut(), libc::PTHREAD_CREATE_JOINABLE)? };
    let mut result = std::ptr::null_mut();
    // SAFETY: the thread is joinable and joined once.
    unsafe { libc::pthread_join(thread, &raw mut result) };
    Ok(())
}

type Start = (String, Box<dyn FnOnce() + Send>);

extern "C" fn enter(start: *mut c_void) -> *mut c_void {
    // SAFETY: `spawn` made it from a box of this type and gave it to us.
    let (name, run) = *unsafe { Box::from_raw(start.cast::<Start>()) };
    ENTERED.fetch_add(1, AcqRel);
    crate::shared::futex_wake(&ENTERED);
    let _ = std::ffi::CString::new(name).map(|name| rustix::thread::set_name(&name));
    run();
    count(1);
    std::ptr::null_mut()
}

/// After a fork, in the child: the guests are not there, their stacks are free.
pub fn forget_all() {
    USED.store(0, Relaxed);
    ENTERED.store(0, Relaxed);
    STARTERS.iter().for_each(|starter| starter.store(0, Relaxed));
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicBool;

    #[test]
    fn guests_enter_and_rehearsals_end() {
        static RAN: AtomicBool = AtomicBool::new(false);
        assert!(!is_guest());
        spawn("first", Box::new(|| RAN.store(is_guest(), Relaxed))).unwrap();
        wait_entered();
        for _ in 0..3 {
            rehearse().unwrap();
        }
        // A guest that cannot be had is not waited for.
        let started = (0..2 * GUESTS_MAX).filter(|_| spawn("more", Box::new(|| ())).is_ok()).count();
        assert_eq!(started, GUESTS_MAX - 2);
        wait_entered();
        while !RAN.load(Relaxed) {
            std::thread::yield_now();
        }
    }
}
