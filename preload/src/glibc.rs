//! Knowledge of glibc's inside: its list of open streams, the layout of a `FILE`, and its note of whether there is
//! one thread.

use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicPtr, AtomicU8, Ordering::Relaxed};

// The C library's list of open streams. In a child of a program with threads it walks the list and resets
// each stream's lock before any handler of ours runs; those pages must be in the program by then.
unsafe extern "C" {
    fn _IO_list_lock();
    fn _IO_list_unlock();
    fn _IO_iter_begin() -> *mut c_void;
    fn _IO_iter_end() -> *mut c_void;
    fn _IO_iter_next(iter: *mut c_void) -> *mut c_void;
    fn _IO_iter_file(iter: *mut c_void) -> *mut c_void;
}

/// The byte in which the C library notes that it has started no thread so far (glibc 2.32 and later): it leaves the
/// list's lock alone in a fork then, in the parent and in the child.
static SINGLE: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());

/// Returns whether the C library has started no thread so far, and starts none just now. False where it does not say.
pub(crate) fn has_one_thread() -> bool {
    // SAFETY: null, or a byte of the C library's, which it changes when it starts a thread.
    let single = unsafe { SINGLE.load(Relaxed).cast::<AtomicU8>().as_ref() };
    single.is_some_and(|single| single.load(Relaxed) != 0)
}

/// Finds out where that is noted: from the constructor.
pub(crate) fn prepare() {
    // SAFETY: the name is a C string.
    SINGLE.store(unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"__libc_single_threaded".as_ptr()) }, Relaxed);
}

/// Takes the lock of the list of streams.
pub(crate) fn lock_streams() {
    // SAFETY: the function has no conditions.
    unsafe { _IO_list_lock() };
}

/// Releases the lock of the list of streams.
///
/// # Safety
/// The calling thread has taken it.
pub(crate) unsafe fn unlock_streams() {
    // SAFETY: the caller's contract.
    unsafe { _IO_list_unlock() };
}

/// Offset of `_lock` in glibc's `struct _IO_FILE` on x86-64: part of its ABI.
const FILE_LOCK_OFFSET: usize = 136;

/// Brings in what the C library resets in the child: the locks of all streams.
///
/// # Safety
/// The list must be locked.
pub(crate) unsafe fn touch_streams() {
    // SAFETY: the list is locked; its elements are live streams, whose layout is the C library's ABI.
    unsafe {
        let mut iter = _IO_iter_begin();
        while iter != _IO_iter_end() {
            let file = _IO_iter_file(iter).cast::<u8>();
            for at in [0, 512] {
                std::ptr::read_volatile(file.add(at));
            }
            let lock = file.add(FILE_LOCK_OFFSET).cast::<*mut c_int>().read();
            if !lock.is_null() {
                // So that it is in memory: the C library writes it in the child.
                lock.read_volatile();
            }
            iter = _IO_iter_next(iter);
        }
    }
}
