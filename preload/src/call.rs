//! Straight to the kernel: the C library's names of these calls are ours.

use std::arch::asm;
use std::ffi::{CStr, c_int, c_void};
use std::sync::atomic::{AtomicPtr, Ordering::Relaxed};

/// A system call.
///
/// # Safety
/// As for the call.
pub(crate) unsafe fn kernel(call: i64, arguments: [usize; 6]) -> Result<usize, c_int> {
    let result: isize;
    // SAFETY: the caller vouches for the call and its arguments.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") call as isize => result,
            in("rdi") arguments[0], in("rsi") arguments[1], in("rdx") arguments[2],
            in("r10") arguments[3], in("r8") arguments[4], in("r9") arguments[5],
            lateout("rcx") _, lateout("r11") _,
            options(nostack),
        );
    }
    if (-4095..0).contains(&result) { Err(-result as c_int) } else { Ok(result as usize) }
}

/// Sets `errno`.
fn answer(result: Result<usize, c_int>) -> Result<usize, ()> {
    result.map_err(|error| {
        // SAFETY: the location is the calling thread's own.
        unsafe { *libc::__errno_location() = error };
    })
}

/// The result of a call that maps, as C has it.
pub(crate) fn pointer(result: Result<usize, c_int>) -> *mut c_void {
    answer(result).map_or(libc::MAP_FAILED, |address| address as *mut c_void)
}

/// The result of a call that succeeds or fails, as C has it.
pub(crate) fn status(result: Result<usize, c_int>) -> c_int {
    answer(result).map_or(-1, |_| 0)
}

/// The result of a call that counts bytes, as C has it.
pub(crate) fn count(result: Result<usize, c_int>) -> isize {
    answer(result).map_or(-1, |count| count as isize)
}

/// A function of the C library itself: what is a cancellation point there stays one.
pub(crate) struct Next {
    name: &'static CStr,
    found: AtomicPtr<c_void>,
}

impl Next {
    pub(crate) const fn new(name: &'static CStr) -> Self {
        Self { name, found: AtomicPtr::new(std::ptr::null_mut()) }
    }

    /// The function, if there is one.
    pub(crate) fn find(&self) -> Option<*mut c_void> {
        let mut found = self.found.load(Relaxed);
        if found.is_null() {
            found = crate::loader::original(self.name).unwrap_or_else(|| {
                // SAFETY: the name is a C string.
                unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr()) }
            });
            self.found.store(found, Relaxed);
        }
        (!found.is_null()).then_some(found)
    }

    /// Calls the function, which forks. Returns the child's pid, 0 there.
    ///
    /// # Safety
    /// It takes nothing and returns a `pid_t`; as for the call.
    pub(crate) unsafe fn fork(&self) -> Result<usize, c_int> {
        // The C library may have none of that name (`_Fork` is of 2.34): nobody can have linked against it then.
        let next = self.find().ok_or(libc::ENOSYS)?;
        // SAFETY: the caller's contract.
        let pid =
            unsafe { std::mem::transmute::<*mut c_void, unsafe extern "C" fn() -> libc::pid_t>(next)() };
        // SAFETY: the location is the calling thread's own.
        usize::try_from(pid).map_err(|_| unsafe { *libc::__errno_location() })
    }

    /// The function.
    pub(crate) fn get(&self) -> *mut c_void {
        self.find().unwrap_or_else(|| panic!("the C library has {:?}", self.name))
    }
}
