//! The functions whose names are ours here, as the C library has them.

use crate::call::errno;
use crate::originals;
use std::ffi::{CStr, c_int, c_void};
use std::sync::atomic::{AtomicPtr, Ordering::Relaxed};

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
            found = originals::find(self.name).unwrap_or_else(|| {
                // SAFETY: the name is a C string.
                let next = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr()) };
                // The name may lead here since a moment ago: it was noted before.
                originals::find(self.name).unwrap_or(next)
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
        usize::try_from(pid).map_err(|_| errno())
    }

    /// The function.
    pub(crate) fn get(&self) -> *mut c_void {
        self.find().unwrap_or_else(|| panic!("the C library has {:?}", self.name))
    }
}
