//! The calls by which the kernel comes to hold pages beyond a call.
//!
//! O_DIRECT pins pages for its transfers: the engine is told, and looks for pins from then on. `vmsplice` and
//! MSG_ZEROCOPY hold pages in a way that nobody can see: such a page could leave, its frame be used again, and
//! the pipe or socket carry another page's bytes. So `vmsplice` copies, and sockets do without MSG_ZEROCOPY.

use crate::call::{count, keeping_errno, kernel, status};
use crate::current::managed;
use crate::descriptors;
use crate::next::Next;
use crate::shared;
use pagetide::process::Process;
use pagetide_sys::procfs::{known_mount, mount_may_pin};
use pagetide_sys::task;
use std::ffi::{c_char, c_int, c_long, c_uint, c_void};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

// Cancellation points: a thread that is cancelled there unwinds through us.
type OpenAt = unsafe extern "C-unwind" fn(c_int, *const c_char, c_int, libc::mode_t) -> c_int;
type Fcntl = unsafe extern "C-unwind" fn(c_int, c_int, usize) -> c_int;

static OPENAT: Next = Next::new(c"openat64");
static FCNTL: Next = Next::new(c"fcntl64");

/// Finds the C library's functions, before the engine needs them: a thread of the program may wait for a page with the
/// loader's lock held.
pub(crate) fn prepare() {
    OPENAT.find();
    FCNTL.find();
}

fn next_openat() -> OpenAt {
    // SAFETY: the function of that name has this type: what it reads of the variable arguments is one mode.
    unsafe { std::mem::transmute::<*mut c_void, OpenAt>(OPENAT.get()) }
}

fn next_fcntl() -> Fcntl {
    // SAFETY: the function of that name has this type: what it reads of the variable arguments is one word.
    unsafe { std::mem::transmute::<*mut c_void, Fcntl>(FCNTL.get()) }
}

/// `fcntl(2)`: notices O_DIRECT.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C-unwind" fn fcntl(fd: c_int, command: c_int, argument: usize) -> c_int {
    // SAFETY: the caller's contract.
    unsafe { control(fd, command, argument) }
}

/// `fcntl(2)` for this library itself: its calls by that name go to the kernel (see `wraps`).
///
/// # Safety
/// As of `fcntl`.
unsafe fn control(fd: c_int, command: c_int, argument: usize) -> c_int {
    if command == libc::F_SETFL {
        opening(argument as c_int);
    }
    // SAFETY: the caller's contract.
    let call = || unsafe { next_fcntl()(fd, command, argument) };
    let result = call();
    match command {
        libc::F_GETFL if result >= 0 => shared::shown_flags(fd, result),
        _ if descriptors::is_to_be_made_again(fd, result as isize) => call(),
        _ => result,
    }
}

/// `fcntl64`: the same where offsets have 64 bits.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C-unwind" fn fcntl64(fd: c_int, command: c_int, argument: usize) -> c_int {
    // SAFETY: the caller's contract.
    unsafe { control(fd, command, argument) }
}

/// Notes that pages may be pinned from now on: before the descriptor exists.
pub(crate) fn note_pins() {
    if let Some(process) = managed() {
        process.note_pins();
    }
}

/// Notes that a file is opened.
pub(crate) fn opening(flags: c_int) {
    if flags & libc::O_DIRECT != 0 {
        note_pins();
    }
}

/// Notes pins of a file that has been opened on a file system that is not known to copy, once pages may leave: before that the
/// engine looks for itself. Returns the file.
fn opened(fd: c_int) -> c_int {
    /// One more than the number of the mount that was looked for last and is not to be seen.
    static UNSEEN: AtomicU64 = AtomicU64::new(0);
    let looks = |process: &&Process| {
        process.runtime().is_some() && !process.may_pin() && process.is_current() && !task::is_confined()
    };
    if fd >= 0
        && let Some(process) = managed().filter(looks)
        && let Some(mount) = mount_of(fd)
    {
        let look = || {
            if UNSEEN.load(Relaxed) == mount + 1 {
                return None;
            }
            // No handler meanwhile that opens a file, too: the engine's heap has one lock.
            let _entered = process.enter();
            let found = mount_may_pin("/proc/thread-self", mount);
            if found == Ok(None) {
                UNSEEN.store(mount + 1, Relaxed);
            }
            found.ok().flatten()
        };
        // Where it cannot be seen the next look at all descriptors will tell.
        keeping_errno(|| {
            if known_mount(mount).or_else(look) == Some(true) {
                process.note_pins();
            }
        });
    }
    fd
}

/// Returns the number of the mount on which a regular file is open.
fn mount_of(fd: c_int) -> Option<u64> {
    // SAFETY: the kernel fills the structure, for which all zero is a value.
    let mut found: libc::statx = unsafe { std::mem::zeroed() };
    // Nobody is asked but the kernel itself.
    let flags = libc::AT_EMPTY_PATH | libc::AT_STATX_DONT_SYNC;
    let mask = (libc::STATX_MNT_ID | libc::STATX_TYPE) as usize;
    let arguments = [fd as usize, c"".as_ptr() as usize, flags as usize, mask, (&raw mut found).addr(), 0];
    // SAFETY: a name and room for one structure.
    unsafe { kernel(libc::SYS_statx, arguments) }.ok()?;
    let is_regular = u32::from(found.stx_mode) & libc::S_IFMT == libc::S_IFREG;
    (is_regular && found.stx_mask & libc::STATX_MNT_ID != 0).then_some(found.stx_mnt_id)
}

/// Opens a file, which may be shared memory of the run.
///
/// # Safety
/// As of `openat`.
unsafe fn open_at(directory: c_int, path: *const c_char, flags: c_int, mode: libc::mode_t) -> c_int {
    opening(flags);
    // SAFETY: the caller's contract.
    unsafe {
        shared::open_front(directory, path, flags)
            .unwrap_or_else(|| opened(next_openat()(directory, path, flags, mode)))
    }
}

macro_rules! open_functions {
    ($($(#[$doc:meta])* $name:ident, $name_at:ident;)+) => {$(
        $(#[$doc])*
        ///
        /// # Safety
        /// As in C.
        #[unsafe(no_mangle)]
        pub(crate) unsafe extern "C-unwind" fn $name(path: *const c_char, flags: c_int, mode: libc::mode_t) -> c_int {
            // SAFETY: the caller's contract.
            unsafe { open_at(libc::AT_FDCWD, path, flags, mode) }
        }

        $(#[$doc])*
        ///
        /// # Safety
        /// As in C.
        #[unsafe(no_mangle)]
        pub(crate) unsafe extern "C-unwind" fn $name_at(
            directory: c_int,
            path: *const c_char,
            flags: c_int,
            mode: libc::mode_t,
        ) -> c_int {
            // SAFETY: the caller's contract.
            unsafe { open_at(directory, path, flags, mode) }
        }
    )+};
}

open_functions! {
    /// `open(2)`: notices O_DIRECT.
    open, openat;
    /// `open64`: the same where offsets have 64 bits.
    open64, openat64;
}

macro_rules! other_openings {
    ($($(#[$doc:meta])* $name:ident($($argument:ident: $type:ty),*; $flags:ident);)+) => {$(
        $(#[$doc])*
        ///
        /// # Safety
        /// As in C.
        #[unsafe(no_mangle)]
        pub(crate) unsafe extern "C-unwind" fn $name($($argument: $type,)* $flags: c_int) -> c_int {
            const NAME: &std::ffi::CStr = match std::ffi::CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
                Ok(name) => name,
                Err(_) => panic!("a name has no zero in it"),
            };
            static NEXT: Next = Next::new(NAME);
            opening($flags);
            // SAFETY: the function of that name has this type; the rest is the caller's contract.
            unsafe {
                let next = std::mem::transmute::<*mut c_void, unsafe extern "C-unwind" fn($($type,)* c_int) -> c_int>(NEXT.get());
                opened(next($($argument,)* $flags))
            }
        }
    )+};
}

other_openings! {
    /// `open` as it is called by programs that were built with `_FORTIFY_SOURCE`.
    __open_2(path: *const c_char; flags);
    /// `open64` in such programs.
    __open64_2(path: *const c_char; flags);
    /// `openat` in such programs.
    __openat_2(directory: c_int, path: *const c_char; flags);
    /// `openat64` in such programs.
    __openat64_2(directory: c_int, path: *const c_char; flags);
    /// `creat(2)`.
    creat(path: *const c_char; mode);
    /// `creat64`: the same where offsets have 64 bits.
    creat64(path: *const c_char; mode);
    /// `open_by_handle_at(2)`.
    open_by_handle_at(mount: c_int, handle: *mut c_void; flags);
}

/// Notices what opens files, or changes how they are open, by number.
///
/// # Safety
/// As for the call.
pub(crate) unsafe fn by_number(number: c_long, [_, b, c, ..]: [usize; 6]) {
    match number {
        libc::SYS_open => opening(b as c_int),
        libc::SYS_openat | libc::SYS_open_by_handle_at => opening(c as c_int),
        libc::SYS_openat2 if c != 0 => {
            // SAFETY: the caller passes a `struct open_how`, of which the flags are the first word. (One that cannot be
            // read faults, where the kernel would say EFAULT.)
            opening(unsafe { (c as *const u64).read_unaligned() } as c_int);
        }
        libc::SYS_fcntl if b as c_int == libc::F_SETFL => opening(c as c_int),
        libc::SYS_io_uring_setup | libc::SYS_io_setup => note_pins(),
        _ => {}
    }
}

/// Notices what such a call has opened. Returns its result.
pub(crate) fn done_by_number(number: c_long, result: c_long) -> c_long {
    const OPENING: [c_long; 5] =
        [libc::SYS_creat, libc::SYS_open, libc::SYS_openat, libc::SYS_openat2, libc::SYS_open_by_handle_at];
    if OPENING.contains(&number) { opened(result as c_int).into() } else { result }
}

/// Returns whether a pipe's end is the one that is written. `None` if it is no pipe.
fn pipe_is_written(fd: c_int) -> Option<bool> {
    // SAFETY: the kernel fills the structure, for which all zero is a value.
    let mut stat: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: one structure is passed.
    unsafe { kernel(libc::SYS_fstat, [fd as usize, (&raw mut stat).addr(), 0, 0, 0, 0]) }.ok()?;
    let is_pipe = stat.st_mode & libc::S_IFMT == libc::S_IFIFO;
    // SAFETY: no memory is passed.
    let flags = unsafe { kernel(libc::SYS_fcntl, [fd as usize, libc::F_GETFL as usize, 0, 0, 0, 0]) }.ok()?;
    is_pipe.then_some(flags as c_int & libc::O_ACCMODE != libc::O_RDONLY)
}

/// Copies as much as the pipe takes (or has) now, at least something unless `wait` is false.
///
/// # Safety
/// As for `writev(2)` and `readv(2)`.
unsafe fn copy_through_pipe(
    fd: c_int,
    vector: *const libc::iovec,
    number: usize,
    writes: bool,
    wait: bool,
) -> Result<usize, c_int> {
    let call = if writes { libc::SYS_pwritev2 } else { libc::SYS_preadv2 };
    let here = usize::MAX;
    loop {
        let arguments = [fd as usize, vector as usize, number, here, here, libc::RWF_NOWAIT as usize];
        // SAFETY: the caller's contract.
        match unsafe { kernel(call, arguments) } {
            Err(libc::EAGAIN) if wait => {
                let events = if writes { libc::POLLOUT } else { libc::POLLIN };
                let mut polled = libc::pollfd { fd, events, revents: 0 };
                let arguments = [(&raw mut polled).addr(), 1, usize::MAX, 0, 0, 0];
                // SAFETY: one structure is passed.
                unsafe { kernel(libc::SYS_poll, arguments) }?;
            }
            result => return result,
        }
    }
}

/// `vmsplice(2)`, but for the pages, which are copied (SPLICE_F_GIFT gives nothing away).
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn vmsplice(
    fd: c_int,
    vector: *const libc::iovec,
    number: usize,
    flags: c_uint,
) -> isize {
    let known = libc::SPLICE_F_MOVE | libc::SPLICE_F_NONBLOCK | libc::SPLICE_F_MORE | libc::SPLICE_F_GIFT;
    if managed().is_some()
        && flags & !known == 0
        && let Some(writes) = pipe_is_written(fd)
    {
        let wait = flags & libc::SPLICE_F_NONBLOCK == 0;
        // SAFETY: the caller's contract.
        let copied = unsafe { copy_through_pipe(fd, vector, number, writes, wait) };
        // A kernel that cannot do this without waiting (before 5.12) splices.
        if copied != Err(libc::EOPNOTSUPP) {
            return count(copied);
        }
    }
    // SAFETY: the caller's contract.
    count(unsafe { kernel(libc::SYS_vmsplice, [fd as usize, vector as usize, number, flags as usize, 0, 0]) })
}

/// Options by which sockets pin memory: `XDP_UMEM_REG`, `RDS_GET_MR` and `RDS_GET_MR_FOR_DEST`; `TLS_TX` and `TLS_RX` (the kernel
/// encrypts and decrypts in the program's pages), and `ALG_SET_KEY`.
const PINNING: [(c_int, c_int); 6] = [
    (libc::SOL_XDP, 4),
    (libc::SOL_RDS, 2),
    (libc::SOL_RDS, 7),
    (libc::SOL_TLS, 1),
    (libc::SOL_TLS, 2),
    (libc::SOL_ALG, libc::ALG_SET_KEY),
];

/// `setsockopt(2)`: SO_ZEROCOPY is not supported, as for sockets that never could; without it the kernel
/// ignores MSG_ZEROCOPY. Sockets that pin memory are noticed.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn setsockopt(
    fd: c_int,
    level: c_int,
    option: c_int,
    value: *const c_void,
    length: libc::socklen_t,
) -> c_int {
    if level == libc::SOL_SOCKET && option == libc::SO_ZEROCOPY && managed().is_some() {
        return status(Err(libc::EOPNOTSUPP));
    }
    if PINNING.contains(&(level, option)) {
        note_pins();
    }
    let arguments = [fd as usize, level as usize, option as usize, value as usize, length as usize, 0];
    // SAFETY: the caller's contract.
    status(unsafe { kernel(libc::SYS_setsockopt, arguments) })
}
