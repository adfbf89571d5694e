//! Calls that change the program's user or groups: the engine's threads follow.

use crate::current::managed;
use crate::next::Next;
use pagetide_sys::{credentials, task};
use std::ffi::{c_char, c_int, c_void};

/// Runs `call`, after which the engine's threads take what the program has; not for a child of `vfork`, whose they are
/// not.
fn change(groups: bool, call: impl FnOnce() -> c_int) -> c_int {
    if !managed().is_some_and(|process| process.is_current()) {
        return call();
    }
    let (result, followed) = credentials::changing(groups, call);
    if let Err(error) = followed {
        let error = std::io::Error::from_raw_os_error(error);
        task::say(&format!(
            "threads of the engine keep the user and groups that the program has given up: {error}"
        ));
    }
    result
}

macro_rules! changes {
    ($($name:ident($($argument:ident: $type:ty),*), $groups:literal;)+) => {$(
        #[doc = concat!("`", stringify!($name), "`.")]
        ///
        /// # Safety
        /// As in C.
        #[unsafe(no_mangle)]
        pub(crate) unsafe extern "C" fn $name($($argument: $type),*) -> c_int {
            static NEXT: Next = Next::new(match std::ffi::CStr::from_bytes_with_nul(
                concat!(stringify!($name), "\0").as_bytes()
            ) {
                Ok(name) => name,
                Err(_) => unreachable!(),
            });
            // SAFETY: the function of that name has this type; the rest is the caller's contract.
            change($groups, || unsafe {
                std::mem::transmute::<*mut c_void, unsafe extern "C" fn($($type),*) -> c_int>(NEXT.get())($($argument),*)
            })
        }
    )+};
}

changes! {
    setuid(user: libc::uid_t), false;
    seteuid(user: libc::uid_t), false;
    setreuid(real: libc::uid_t, effective: libc::uid_t), false;
    setresuid(real: libc::uid_t, effective: libc::uid_t, saved: libc::uid_t), false;
    setgid(group: libc::gid_t), false;
    setegid(group: libc::gid_t), false;
    setregid(real: libc::gid_t, effective: libc::gid_t), false;
    setresgid(real: libc::gid_t, effective: libc::gid_t, saved: libc::gid_t), false;
    setgroups(count: usize, groups: *const libc::gid_t), true;
    initgroups(user: *const c_char, group: libc::gid_t), true;
}
