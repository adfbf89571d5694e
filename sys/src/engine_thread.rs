//! Threads of the engine, in the program's process.
//!
//! The C library does not know of them. It would allocate for each from the program's `malloc`, take the loader's lock
//! and look at the program's memory: all of which may be what the thread that needs an engine holds, or what is out in
//! a forked child that starts one. So an engine thread is made by `clone` itself, on a stack and with a block
//! (`crate::block`) of ours, without a lock and without one allocation but from the engine's heap. It runs code of this
//! library, and of the C library what needs no more of a thread than `errno`.
//!
//! Stacks lie together in one range, with the thread pointers, which alone tell engine threads from the program's
//! threads: an allocator asks that at every call.

use crate::arch;
use crate::block;
use crate::lock::lock;
use crate::patience::patiently;
use crate::places::{self, ENGINE_THREADS_MAX, NUMBERS, STARTING, USED};
use crate::signals::SignalsBlocked;
use std::ffi::{c_int, c_void};
use std::io;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed, Ordering::Release};
use std::sync::{Arc, Mutex, OnceLock};

pub use crate::arch::thread_pointer;
pub use crate::block::{own_below, prepare};
pub use crate::places::is_engine_thread;

/// A function that starts a thread: its name, and what it runs.
pub type Spawner = fn(&str, Box<dyn FnOnce() + Send>) -> io::Result<()>;

/// What starts engine threads in place of [`spawn`].
static SPAWNER: OnceLock<Spawner> = OnceLock::new();

/// From now on engine threads are what `spawner` makes of them: for a process that is ours alone, in which they may be
/// threads of the C library. (To name those here would make the preloaded library depend on them.)
pub fn make_by(spawner: Spawner) {
    let _ = SPAWNER.set(spawner);
}

/// Returns whether engine threads of this process are threads like any other: [`make_by`].
pub fn are_ordinary() -> bool {
    SPAWNER.get().is_some()
}

type Start = (String, Box<dyn FnOnce() + Send>);

/// Starts an engine thread, with all signals blocked but for those that the C library keeps for itself.
///
/// # Errors
/// EAGAIN if the system, or this process, has too many threads; ENOSYS with a loader that does not tell of thread-local
/// data.
pub fn spawn(name: &str, run: Box<dyn FnOnce() + Send>) -> io::Result<()> {
    if let Some(spawner) = SPAWNER.get() {
        return spawner(name, run);
    }
    let layout = block::layout().ok_or_else(|| io::Error::from_raw_os_error(libc::ENOSYS))?;
    let stride = places::stride(layout);
    let base = places::stacks(stride)?;
    let index = USED.fetch_add(1, Release);
    if index >= ENGINE_THREADS_MAX {
        USED.fetch_sub(1, Relaxed);
        return Err(io::Error::from_raw_os_error(libc::EAGAIN));
    }
    let start: *mut Start = Box::into_raw(Box::new((name.to_owned(), run)));
    NUMBERS[index].store(STARTING, Relaxed);
    let _signals = SignalsBlocked::new();
    // SAFETY: the stack is a part of a range of ours that no other engine thread has or had in this process, and it is
    // as long as the layout says; `enter` takes such a box, and gets this one only.
    let created = unsafe {
        let end = base + (index + 1) * stride;
        let pointer = layout.build(end);
        clone(layout.bottom(pointer), pointer, &NUMBERS[index], start)
    };
    created.map_err(|error| {
        NUMBERS[index].store(0, Relaxed);
        // Unless another was taken meanwhile the stack is free again.
        let _ = USED.compare_exchange(index + 1, index, Release, Relaxed);
        // SAFETY: no thread has got it.
        drop(unsafe { Box::from_raw(start) });
        io::Error::from_raw_os_error(error)
    })
}

/// Starts an engine thread as [`spawn`] does, and tries again where there are too many just now: of children that are forked
/// at once one may be the one too many (`pids.max`, RLIMIT_NPROC), and others end soon.
///
/// # Errors
/// As for [`spawn`], after the tries of [`patiently`].
pub fn spawn_patiently(name: &str, run: Box<dyn FnOnce() + Send>) -> io::Result<()> {
    // A thread that does not come to be drops what it was to run.
    let run = Arc::new(Mutex::new(Some(run)));
    patiently(|| {
        let run = Arc::clone(&run);
        let first = move || {
            let run = lock(&run).take();
            run.into_iter().for_each(|run| run());
        };
        spawn(name, Box::new(first))
    })
}

/// Starts a thread of this process, by the kernel alone.
///
/// # Safety
/// Below `stack` there must be room that is nobody else's, and at `pointer` a thread block that is; `start` is given
/// away.
unsafe fn clone(stack: usize, pointer: usize, number: &AtomicU32, start: *mut Start) -> Result<(), c_int> {
    let flags = libc::CLONE_VM
        | libc::CLONE_FS
        | libc::CLONE_FILES
        | libc::CLONE_SIGHAND
        | libc::CLONE_THREAD
        | libc::CLONE_SYSVSEM
        | libc::CLONE_SETTLS
        | libc::CLONE_PARENT_SETTID
        | libc::CLONE_CHILD_CLEARTID;
    let number = number.as_ptr();
    // SAFETY: the caller's contract; `enter` takes a `start` and does not return.
    unsafe { arch::clone_thread(flags, stack, pointer, number, enter, start.cast()) }
}

extern "C" fn enter(start: *mut c_void) -> ! {
    // SAFETY: `spawn` made it from a box of this type and gave it to us.
    let (name, run) = *unsafe { Box::from_raw(start.cast::<Start>()) };
    let _ = std::ffi::CString::new(name).map(|name| rustix::thread::set_name(&name));
    run();
    // SAFETY: whatever this thread had has been dropped, and its stack stays.
    unsafe { arch::exit_thread() }
}

/// Forgets all engine threads, in a forked child: they are not there, and their stacks are free.
pub fn forget_all() {
    places::forget_all();
    crate::credentials::forget_all();
    crate::log::end();
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;
    use std::sync::atomic::{AtomicBool, Ordering::Acquire};

    thread_local!(static MARK: Cell<u64> = const { Cell::new(0x5eed) });

    fn wait_for(flag: &AtomicBool) {
        while !flag.load(Acquire) {
            std::thread::yield_now();
        }
    }

    #[test]
    fn engine_threads_have_thread_data_of_their_own_and_end() {
        static RAN: AtomicBool = AtomicBool::new(false);
        prepare();
        assert!(!is_engine_thread());
        MARK.set(1);
        let run = || {
            assert!(is_engine_thread());
            assert_eq!(MARK.replace(2), 0x5eed);
            // An error of a call, which the C library notes for each thread.
            // SAFETY: no memory is passed.
            assert_eq!(unsafe { libc::close(-1) }, -1);
            assert_eq!(io::Error::last_os_error().raw_os_error(), Some(libc::EBADF));
            RAN.store(true, Release);
        };
        spawn("first", Box::new(run)).unwrap();
        wait_for(&RAN);
        assert_eq!(MARK.get(), 1);
        let started = (0..2 * ENGINE_THREADS_MAX).filter(|_| spawn("more", Box::new(|| ())).is_ok()).count();
        assert_eq!(started, ENGINE_THREADS_MAX - 1);
        while NUMBERS.iter().any(|number| number.load(Acquire) != 0) {
            std::thread::yield_now();
        }
        // In a forked child they start anew, on the same stacks.
        let _alone = crate::may_fork();
        // SAFETY: the child runs code of this test only, and `_exit`.
        match unsafe { libc::fork() } {
            0 => {
                static AGAIN: AtomicBool = AtomicBool::new(false);
                forget_all();
                let run = || AGAIN.store(is_engine_thread() && MARK.get() == 0x5eed, Release);
                let started = spawn("again", Box::new(run)).is_ok();
                while started && !AGAIN.load(Acquire) {
                    std::thread::yield_now();
                }
                // SAFETY: ends the process.
                unsafe { libc::_exit(i32::from(!started)) };
            }
            child => {
                let mut status = 0;
                // SAFETY: one word is passed.
                assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
                assert_eq!(status, 0);
            }
        }
    }
}
