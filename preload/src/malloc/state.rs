//! The state of the allocator: the first heap serves the program, and mimalloc once it has started.

use super::arena::add_piece;
use crate::call::keeping_errno;
use libmimalloc_sys as mi;
use pagetide_sys::engine_thread;
use pagetide_sys::first_heap::FirstHeap;
use std::ffi::c_void;
use std::sync::atomic::{AtomicU8, Ordering::Acquire, Ordering::Release};

const OPTION_PURGE_DELAY: mi::mi_option_t = 15;
const OPTION_DISALLOW_OS_ALLOC: mi::mi_option_t = 17;
const OPTION_PAGE_COMMIT_ON_DEMAND: mi::mi_option_t = 40;

unsafe extern "C" {
    /// mimalloc's constructor, which `build.rs` leaves out.
    fn _mi_auto_process_init();
}

// Whether mimalloc serves the program. Until then the first heap does, as far as it goes.
const UNREADY: u8 = 0;
const STARTING: u8 = 1;
const READY: u8 = 2;
static STATE: AtomicU8 = AtomicU8::new(UNREADY);
/// The heap that serves the program before.
pub(super) static FIRST: FirstHeap = FirstHeap::new();

/// The allocator that serves a call for memory.
pub(super) enum From {
    Program,
    Engine,
    /// The first heap has served it.
    First(*mut c_void),
}

#[inline(always)]
pub(super) fn from(size: usize, align: usize) -> From {
    if is_ready() && !engine_thread::is_engine_thread() { From::Program } else { slow_from(size, align) }
}

/// Returns whether mimalloc has started.
#[inline(always)]
pub(super) fn is_ready() -> bool {
    STATE.load(Acquire) == READY
}

#[cold]
fn slow_from(size: usize, align: usize) -> From {
    if engine_thread::is_engine_thread() {
        return From::Engine;
    }
    // It starts before there is a second thread: the C library allocates for that, when it has said that there will be
    // two.
    if STATE.load(Acquire) == UNREADY && crate::glibc::has_one_thread() {
        let object = FIRST.allocate(size, align);
        if !object.is_null() {
            return From::First(object);
        }
    }
    start_once()
}

pub(super) fn start_once() -> From {
    match STATE.compare_exchange(UNREADY, STARTING, Acquire, Acquire) {
        Ok(_) => {
            keeping_errno(|| {
                // SAFETY: options may be set at any time, and it may start at any time.
                unsafe {
                    mi::mi_option_set(OPTION_DISALLOW_OS_ALLOC, 1);
                    // Decommitting interrupts every processor: not for memory that is wanted again at once.
                    mi::mi_option_set(OPTION_PURGE_DELAY, 1000);
                    // What small processes commit and never touch is the most of what they hold.
                    mi::mi_option_set(OPTION_PAGE_COMMIT_ON_DEMAND, 1);
                    _mi_auto_process_init();
                }
                add_piece();
                STATE.store(READY, Release);
            });
            From::Program
        }
        // Its own start, or a signal handler in the midst of that, calls back.
        Err(STARTING) => From::Engine,
        Err(_) => From::Program,
    }
}
