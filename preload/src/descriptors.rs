//! The calls that read, write or change a file by its descriptor.
//!
//! All of them go to the C library or the kernel first. A descriptor of a file that is shared memory of the run fails there
//! with EBADF ([`crate::shared`]): then the file is laid open, and the call is made again.

use crate::announce;
use crate::call::{count, errno, kernel, set_errno, status};
use crate::current::managed;
use crate::next::Next;
use crate::shared;
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};

/// Whether a call that returned `result` is to be made again.
pub(crate) fn is_to_be_made_again(fd: c_int, result: isize) -> bool {
    result == -1 && errno() == libc::EBADF && {
        let again = shared::laid_open(fd);
        if !again {
            set_errno(libc::EBADF);
        }
        again
    }
}

/// Whether `fallocate` need not have an ordinary descriptor of an object: memory is set aside within the file, of which
/// all is set aside, or pages go, which they do here.
fn sets_aside(fd: c_int, mode: c_int, offset: i64, length: i64) -> bool {
    let end = offset.checked_add(length);
    if mode == libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE {
        return shared::punch(fd, offset, length);
    }
    shared::is_writable_front(fd)
        && mode & !libc::FALLOC_FL_KEEP_SIZE == 0
        && offset >= 0
        && length > 0
        && end.is_some_and(|end| shared::size(fd).is_some_and(|size| end <= size))
}

/// Calls that are cancellation points: a thread that is cancelled there unwinds through us.
macro_rules! cancellable {
    ($($(#[$doc:meta])* $name:ident($fd:ident $(, $argument:ident: $type:ty)*) -> $result:ty, as $next:literal $(, touches $way:ident($buffer:ident, $length:ident))? $(, instead $done:expr)? $(, unless $idle:expr)?;)+) => {$(
        $(#[$doc])*
        ///
        /// # Safety
        /// As in C.
        #[unsafe(no_mangle)]
        pub(crate) unsafe extern "C-unwind" fn $name($fd: c_int $(, $argument: $type)*) -> $result {
            let large: &[Option<announce::Large>] = &[$(announce::$way($fd, $buffer.addr(), $length))?];
            $(if let Some(done) = $done {
                return status(done.map(|()| 0));
            })?
            static NEXT: Next = Next::new($next);
            type Call = unsafe extern "C-unwind" fn(c_int $(, $type)*) -> $result;
            // SAFETY: the function of that name has this type.
            let next = unsafe { std::mem::transmute::<*mut c_void, Call>(NEXT.get()) };
            // SAFETY: the caller's contract.
            let result = unsafe { next($fd $(, $argument)*) };
            large.iter().flatten().for_each(|large| large.ended(result as isize));
            $(if result == -1 && errno() == libc::EBADF && $idle && shared::is_object($fd) {
                return 0;
            })?
            // SAFETY: as above.
            if is_to_be_made_again($fd, result as isize) { unsafe { next($fd $(, $argument)*) } } else { result }
        }
    )+};
}

cancellable! {
    /// `read(2)`.
    read(fd, buffer: *mut c_void, length: usize) -> isize, as c"read", touches fills(buffer, length);
    /// `write(2)`.
    write(fd, buffer: *const c_void, length: usize) -> isize, as c"write", touches empties(buffer, length);
    /// `pread(2)`.
    pread(fd, buffer: *mut c_void, length: usize, offset: i64) -> isize, as c"pread64", touches fills(buffer, length);
    /// `pread(2)` by the name that it has where offsets have 64 bits.
    pread64(fd, buffer: *mut c_void, length: usize, offset: i64) -> isize, as c"pread64", touches fills(buffer, length);
    /// `pwrite(2)`.
    pwrite(fd, buffer: *const c_void, length: usize, offset: i64) -> isize, as c"pwrite64", touches empties(buffer, length);
    /// `pwrite(2)` by the name that it has where offsets have 64 bits.
    pwrite64(fd, buffer: *const c_void, length: usize, offset: i64) -> isize, as c"pwrite64", touches empties(buffer, length);
    /// `readv(2)`.
    readv(fd, vector: *const libc::iovec, number: c_int) -> isize, as c"readv";
    /// `writev(2)`.
    writev(fd, vector: *const libc::iovec, number: c_int) -> isize, as c"writev";
    /// `preadv(2)`.
    preadv(fd, vector: *const libc::iovec, number: c_int, offset: i64) -> isize, as c"preadv64";
    /// `preadv(2)` by the name that it has where offsets have 64 bits.
    preadv64(fd, vector: *const libc::iovec, number: c_int, offset: i64) -> isize, as c"preadv64";
    /// `pwritev(2)`.
    pwritev(fd, vector: *const libc::iovec, number: c_int, offset: i64) -> isize, as c"pwritev64";
    /// `pwritev(2)` by the name that it has where offsets have 64 bits.
    pwritev64(fd, vector: *const libc::iovec, number: c_int, offset: i64) -> isize, as c"pwritev64";
    /// `fsync(2)`: there is nothing to write of a file that lies in memory.
    fsync(fd) -> c_int, as c"fsync", unless true;
    /// `fdatasync(2)`, as [`fsync`].
    fdatasync(fd) -> c_int, as c"fdatasync", unless true;
    /// `fallocate(2)`.
    fallocate(fd, mode: c_int, offset: i64, length: i64) -> c_int, as c"fallocate64", instead shared::set_aside(fd, mode, offset, length), unless sets_aside(fd, mode, offset, length);
    /// `fallocate(2)` by the name that it has where offsets have 64 bits.
    fallocate64(fd, mode: c_int, offset: i64, length: i64) -> c_int, as c"fallocate64", instead shared::set_aside(fd, mode, offset, length), unless sets_aside(fd, mode, offset, length);
    /// `read` as it is called by programs that were built with `_FORTIFY_SOURCE`.
    __read_chk(fd, buffer: *mut c_void, length: usize, room: usize) -> isize, as c"__read_chk", touches fills(buffer, length);
    /// `pread` in such programs.
    __pread_chk(fd, buffer: *mut c_void, length: usize, offset: i64, room: usize) -> isize, as c"__pread64_chk", touches fills(buffer, length);
    /// `pread64` in such programs.
    __pread64_chk(fd, buffer: *mut c_void, length: usize, offset: i64, room: usize) -> isize, as c"__pread64_chk", touches fills(buffer, length);
    /// `preadv2(2)`.
    preadv2(fd, vector: *const libc::iovec, number: c_int, offset: i64, flags: c_int) -> isize, as c"preadv64v2";
    /// `preadv2(2)` by the name that it has where offsets have 64 bits.
    preadv64v2(fd, vector: *const libc::iovec, number: c_int, offset: i64, flags: c_int) -> isize, as c"preadv64v2";
    /// `pwritev2(2)`.
    pwritev2(fd, vector: *const libc::iovec, number: c_int, offset: i64, flags: c_int) -> isize, as c"pwritev64v2";
    /// `pwritev2(2)` by the name that it has where offsets have 64 bits.
    pwritev64v2(fd, vector: *const libc::iovec, number: c_int, offset: i64, flags: c_int) -> isize, as c"pwritev64v2";
    /// `futimens(3)`.
    futimens(fd, times: *const libc::timespec) -> c_int, as c"futimens";
    /// `syncfs(2)`, as [`fsync`].
    syncfs(fd) -> c_int, as c"syncfs", unless true;
    /// `sync_file_range(2)`, as [`fsync`].
    sync_file_range(fd, offset: i64, length: i64, flags: c_uint) -> c_int, as c"sync_file_range", unless true;
    /// `lockf(3)`.
    lockf(fd, command: c_int, length: i64) -> c_int, as c"lockf64";
    /// `lockf(3)` by the name that it has where offsets have 64 bits.
    lockf64(fd, command: c_int, length: i64) -> c_int, as c"lockf64";
}

macro_rules! plain {
    ($($(#[$doc:meta])* $name:ident($fd:ident $(, $argument:ident: $type:ty)*) -> $result:ty = $call:ident, $answer:ident;)+) => {$(
        $(#[$doc])*
        ///
        /// # Safety
        /// As in C.
        #[unsafe(no_mangle)]
        pub(crate) unsafe extern "C" fn $name($fd: c_int $(, $argument: $type)*) -> $result {
            let given: &[usize] = &[$fd as usize $(, $argument as usize)*];
            let mut arguments = [0; 6];
            arguments[..given.len()].copy_from_slice(given);
            // SAFETY: the caller's contract is that of the system call.
            $answer(unsafe { by_descriptor(libc::$call, arguments) }) as $result
        }
    )+};
}

plain! {
    /// `lseek(2)`.
    lseek(fd, offset: i64, from: c_int) -> i64 = SYS_lseek, count;
    /// `lseek(2)` by the name that it has where offsets have 64 bits.
    lseek64(fd, offset: i64, from: c_int) -> i64 = SYS_lseek, count;
    /// `ftruncate(2)`.
    ftruncate(fd, length: i64) -> c_int = SYS_ftruncate, status;
    /// `ftruncate(2)` by the name that it has where offsets have 64 bits.
    ftruncate64(fd, length: i64) -> c_int = SYS_ftruncate, status;
    /// `flock(2)`.
    flock(fd, operation: c_int) -> c_int = SYS_flock, status;
    /// `fchmod(2)`.
    fchmod(fd, mode: libc::mode_t) -> c_int = SYS_fchmod, status;
    /// `fchown(2)`.
    fchown(fd, owner: libc::uid_t, group: libc::gid_t) -> c_int = SYS_fchown, status;
}

/// Makes a system call whose first argument is a descriptor.
///
/// # Safety
/// As for the call.
pub(crate) unsafe fn by_descriptor(number: std::ffi::c_long, arguments: [usize; 6]) -> Result<usize, c_int> {
    // SAFETY: the caller's contract.
    let result = unsafe { kernel(number, arguments) };
    if result == Err(libc::EBADF) && shared::laid_open(arguments[0] as c_int) {
        // SAFETY: as above.
        return unsafe { kernel(number, arguments) };
    }
    result
}

/// Transfers between two descriptors: either may be one.
macro_rules! transfers {
    ($($(#[$doc:meta])* $name:ident($($before:ident: $type:ty,)* ; $a:ident, $b:ident) -> $next:literal;)+) => {$(
        $(#[$doc])*
        ///
        /// # Safety
        /// As in C.
        #[unsafe(no_mangle)]
        pub(crate) unsafe extern "C-unwind" fn $name($($before: $type),*) -> isize {
            static NEXT: Next = Next::new($next);
            type Call = unsafe extern "C-unwind" fn($($type),*) -> isize;
            // SAFETY: the function of that name has this type.
            let next = unsafe { std::mem::transmute::<*mut c_void, Call>(NEXT.get()) };
            // SAFETY: the caller's contract.
            let result = unsafe { next($($before),*) };
            if result == -1 && errno() == libc::EBADF {
                let opened = [shared::laid_open($a), shared::laid_open($b)];
                set_errno(libc::EBADF);
                if opened.contains(&true) {
                    // SAFETY: as above.
                    return unsafe { next($($before),*) };
                }
            }
            result
        }
    )+};
}

transfers! {
    /// `sendfile(2)`.
    sendfile(to: c_int, from: c_int, offset: *mut i64, length: usize,; to, from) -> c"sendfile64";
    /// `sendfile(2)` by the name that it has where offsets have 64 bits.
    sendfile64(to: c_int, from: c_int, offset: *mut i64, length: usize,; to, from) -> c"sendfile64";
    /// `splice(2)`.
    splice(from: c_int, from_at: *mut i64, to: c_int, to_at: *mut i64, length: usize, flags: c_uint,; to, from) -> c"splice";
    /// `copy_file_range(2)`.
    copy_file_range(from: c_int, from_at: *mut i64, to: c_int, to_at: *mut i64, length: usize, flags: c_uint,; to, from) -> c"copy_file_range";
}

macro_rules! returning_errors {
    ($($(#[$doc:meta])* $name:ident($fd:ident $(, $argument:ident: $type:ty)*), as $next:literal $(, instead $done:expr)?, unless $idle:expr;)+) => {$(
        $(#[$doc])*
        ///
        /// # Safety
        /// As in C.
        #[unsafe(no_mangle)]
        pub(crate) unsafe extern "C-unwind" fn $name($fd: c_int $(, $argument: $type)*) -> c_int {
            $(if let Some(done) = $done {
                return done.err().unwrap_or(0);
            })?
            static NEXT: Next = Next::new($next);
            type Call = unsafe extern "C-unwind" fn(c_int $(, $type)*) -> c_int;
            // SAFETY: the function of that name has this type.
            let next = unsafe { std::mem::transmute::<*mut c_void, Call>(NEXT.get()) };
            // SAFETY: the caller's contract.
            let result = unsafe { next($fd $(, $argument)*) };
            if result != libc::EBADF {
                return result;
            }
            if $idle && shared::is_object($fd) {
                return 0;
            }
            // SAFETY: as above.
            if shared::laid_open($fd) { unsafe { next($fd $(, $argument)*) } } else { result }
        }
    )+};
}

returning_errors! {
    /// `posix_fallocate(3)`.
    posix_fallocate(fd, offset: i64, length: i64), as c"posix_fallocate64", instead shared::set_aside(fd, 0, offset, length), unless sets_aside(fd, 0, offset, length);
    /// `posix_fallocate(3)` by the name that it has where offsets have 64 bits.
    posix_fallocate64(fd, offset: i64, length: i64), as c"posix_fallocate64", instead shared::set_aside(fd, 0, offset, length), unless sets_aside(fd, 0, offset, length);
    /// `posix_fadvise(2)`, which means nothing to a file that lies in memory.
    posix_fadvise(fd, offset: i64, length: i64, advice: c_int), as c"posix_fadvise64", unless (0..=5).contains(&advice);
    /// `posix_fadvise(2)` by the name that it has where offsets have 64 bits.
    posix_fadvise64(fd, offset: i64, length: i64, advice: c_int), as c"posix_fadvise64", unless (0..=5).contains(&advice);
}

/// `isatty(3)`: a file is none.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn isatty(fd: c_int) -> c_int {
    // The C library asks in the same way: TCGETS of `struct termios` as the kernel has it, 36 bytes.
    let mut termios = [0u64; 8];
    let arguments = [fd as usize, libc::TCGETS as usize, termios.as_mut_ptr().addr(), 0, 0, 0];
    // SAFETY: the kernel fills less than that.
    let result = unsafe { kernel(libc::SYS_ioctl, arguments) };
    let is_object = result == Err(libc::EBADF) && shared::is_object(fd);
    let result = if is_object { Err(libc::ENOTTY) } else { result };
    c_int::from(status(result) == 0)
}

/// `fdopen(3)`: the C library reads and writes such a stream past us.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn fdopen(fd: c_int, mode: *const c_char) -> *mut libc::FILE {
    static NEXT: Next = Next::new(c"fdopen");
    type Call = unsafe extern "C" fn(c_int, *const c_char) -> *mut libc::FILE;
    if managed().is_some_and(|process| process.group().serves_files()) {
        shared::laid_open(fd);
    }
    // SAFETY: the function of that name has this type; the caller's contract.
    unsafe { std::mem::transmute::<*mut c_void, Call>(NEXT.get())(fd, mode) }
}

/// `memfd_create(2)`: the descriptor is one that was opened by name, which alone a lease counts.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn memfd_create(name: *const c_char, flags: c_uint) -> c_int {
    // No fork meanwhile: the child would have the description that nobody counts.
    let _entered = managed().map(|process| process.enter());
    // SAFETY: the caller's contract.
    let result = unsafe { kernel(libc::SYS_memfd_create, [name.addr(), flags as usize, 0, 0, 0, 0]) };
    if let Ok(fd) = result
        && managed().is_some()
        && flags & libc::MFD_HUGETLB == 0
    {
        shared::note_memfd(fd as c_int);
    }
    count(result) as c_int
}

/// `shm_open(3)`: a file that is shared memory of the run is opened as such.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn shm_open(name: *const c_char, flags: c_int, mode: libc::mode_t) -> c_int {
    static NEXT: Next = Next::new(c"shm_open");
    type Call = unsafe extern "C" fn(*const c_char, c_int, libc::mode_t) -> c_int;
    if managed().is_some_and(|process| process.group().serves_files()) {
        let mut path = [0; 300];
        // SAFETY: the caller passes a C string.
        if shared::shm_path(unsafe { CStr::from_ptr(name) }, &mut path)
            // SAFETY: the path ends at a zero.
            && let Some(fd) = unsafe {
                shared::open_front(libc::AT_FDCWD, path.as_ptr().cast(), flags | libc::O_CLOEXEC)
            }
        {
            return fd;
        }
    }
    // Before 2.34 the C library has it in a library of its own: who calls it has linked that.
    let Some(next) = NEXT.find() else {
        set_errno(libc::ENOSYS);
        return -1;
    };
    // SAFETY: the function of that name has this type; the caller's contract.
    unsafe { std::mem::transmute::<*mut c_void, Call>(next)(name, flags, mode) }
}

/// `sendmsg(2)`: descriptors may go to a program that is none of ours.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C-unwind" fn sendmsg(
    fd: c_int,
    message: *const libc::msghdr,
    flags: c_int,
) -> isize {
    static NEXT: Next = Next::new(c"sendmsg");
    type Call = unsafe extern "C-unwind" fn(c_int, *const libc::msghdr, c_int) -> isize;
    // SAFETY: the function of that name has this type; the caller's contract.
    unsafe {
        shared::lay_open_sent(message);
        std::mem::transmute::<*mut c_void, Call>(NEXT.get())(fd, message, flags)
    }
}

/// `sendmmsg(2)`, as [`sendmsg`].
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C-unwind" fn sendmmsg(
    fd: c_int,
    messages: *mut libc::mmsghdr,
    number: c_uint,
    flags: c_int,
) -> c_int {
    static NEXT: Next = Next::new(c"sendmmsg");
    type Call = unsafe extern "C-unwind" fn(c_int, *mut libc::mmsghdr, c_uint, c_int) -> c_int;
    // SAFETY: the function of that name has this type; the caller's contract.
    unsafe {
        if !messages.is_null() {
            (0..number as usize)
                .for_each(|nth| shared::lay_open_sent(&raw const (*messages.add(nth)).msg_hdr));
        }
        std::mem::transmute::<*mut c_void, Call>(NEXT.get())(fd, messages, number, flags)
    }
}

/// Finds the functions that may be called in signal handlers.
pub(crate) fn prepare() {
    // A call for nothing finds them.
    // SAFETY: no descriptor has this number, and no memory is passed.
    unsafe {
        read(-1, std::ptr::null_mut(), 0);
        write(-1, std::ptr::null(), 0);
    }
}
