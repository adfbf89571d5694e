//! The C library's system calls, as the code in this library makes them.
//!
//! The program may have functions of these names that allocate, log, or are not ready yet (a sanitizer, libfaketime, an
//! allocator that maps): whoever of us called one would come back to us half-way. So the linker leads every such call
//! of this library (the standard library's and mimalloc's included) to a function here (`--wrap`, see `build.rs`),
//! which makes the system call itself. None of them is a cancellation point.

use crate::call::{count, kernel, pointer, status};
use std::ffi::{c_char, c_int, c_long, c_uint, c_void};
use std::sync::atomic::{AtomicU8, Ordering::Relaxed};

macro_rules! system_calls {
    ($($name:ident = $call:ident($($argument:ident: $type:ty),*) -> $result:ty, $answer:ident;)+) => {$(
        std::arch::global_asm!(concat!(".hidden ", stringify!($name)));

        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name($($argument: $type),*) -> $result {
            let mut arguments = [0; 6];
            let given: &[usize] = &[$($argument as usize),*];
            arguments[..given.len()].copy_from_slice(given);
            // SAFETY: the caller's contract is that of the system call.
            $answer(unsafe { kernel(libc::$call, arguments) }) as $result
        }
    )+};
}

system_calls! {
    __wrap_read = SYS_read(fd: c_int, buffer: *mut c_void, length: usize) -> isize, count;
    __wrap_write = SYS_write(fd: c_int, buffer: *const c_void, length: usize) -> isize, count;
    __wrap_writev = SYS_writev(fd: c_int, vector: *const libc::iovec, length: c_int) -> isize, count;
    __wrap_close = SYS_close(fd: c_int) -> c_int, status;
    __wrap_open = SYS_open(path: *const c_char, flags: c_int, mode: libc::mode_t) -> c_int, count;
    __wrap_open64 = SYS_open(path: *const c_char, flags: c_int, mode: libc::mode_t) -> c_int, count;
    __wrap_lseek64 = SYS_lseek(fd: c_int, offset: i64, from: c_int) -> i64, count;
    __wrap_fstat = SYS_fstat(fd: c_int, stat: *mut libc::stat) -> c_int, status;
    __wrap_fstat64 = SYS_fstat(fd: c_int, stat: *mut libc::stat64) -> c_int, status;
    __wrap_stat64 = SYS_stat(path: *const c_char, stat: *mut libc::stat64) -> c_int, status;
    __wrap_statx = SYS_statx(at: c_int, path: *const c_char, flags: c_int, mask: c_uint, stat: *mut libc::statx) -> c_int, status;
    __wrap_readlink = SYS_readlink(path: *const c_char, buffer: *mut c_char, length: usize) -> isize, count;
    __wrap_fcntl = SYS_fcntl(fd: c_int, command: c_int, argument: usize) -> c_int, count;
    __wrap_ioctl = SYS_ioctl(fd: c_int, request: usize, argument: usize) -> c_int, count;
    __wrap_poll = SYS_poll(polled: *mut libc::pollfd, length: u64, timeout: c_int) -> c_int, count;
    __wrap_mmap = SYS_mmap(address: *mut c_void, length: usize, access: c_int, flags: c_int, fd: c_int, offset: i64) -> *mut c_void, pointer;
    __wrap_munmap = SYS_munmap(address: *mut c_void, length: usize) -> c_int, status;
    __wrap_madvise = SYS_madvise(address: *mut c_void, length: usize, advice: c_int) -> c_int, status;
    __wrap_mincore = SYS_mincore(address: *mut c_void, length: usize, state: *mut u8) -> c_int, status;
    __wrap_getpid = SYS_getpid() -> libc::pid_t, count;
    __wrap_getppid = SYS_getppid() -> libc::pid_t, count;
    __wrap_gettid = SYS_gettid() -> libc::pid_t, count;
    __wrap_getrandom = SYS_getrandom(buffer: *mut c_void, length: usize, flags: c_uint) -> isize, count;
    __wrap_getrusage = SYS_getrusage(whose: c_int, usage: *mut libc::rusage) -> c_int, status;
    __wrap_sysinfo = SYS_sysinfo(info: *mut libc::sysinfo) -> c_int, status;
    __wrap_sched_yield = SYS_sched_yield() -> c_int, status;
    __wrap_sched_setscheduler = SYS_sched_setscheduler(pid: libc::pid_t, policy: c_int, parameters: *const libc::sched_param) -> c_int, status;
}

std::arch::global_asm!(
    ".hidden __wrap_syscall",
    ".hidden __wrap_prctl",
    ".hidden __wrap_clock_gettime",
    ".hidden __wrap_clock_nanosleep",
    ".hidden __wrap_sleep",
    ".hidden __wrap_fputs",
    ".hidden __wrap_pthread_sigmask",
);

/// `syscall(2)`, past [`crate::raw`], which is for the program.
#[unsafe(no_mangle)]
unsafe extern "C" fn __wrap_syscall(
    number: c_long,
    a: usize,
    b: usize,
    c: usize,
    d: usize,
    e: usize,
    f: usize,
) -> c_long {
    // SAFETY: the caller's contract.
    count(unsafe { kernel(number, [a, b, c, d, e, f]) }) as c_long
}

/// mimalloc gives each of its mappings a name (`PR_SET_VMA`). Kernels that cannot would leave an error behind for a
/// `malloc` that succeeds, and a program's sandbox may end it for the call.
#[unsafe(no_mangle)]
unsafe extern "C" fn __wrap_prctl(option: c_int, a: usize, b: usize, c: usize, d: usize) -> c_int {
    if option == libc::PR_SET_VMA {
        return 0;
    }
    // SAFETY: the caller's contract.
    count(unsafe { kernel(libc::SYS_prctl, [option as usize, a, b, c, d, 0]) }) as c_int
}

/// Tells the time by the vDSO, which this library asks itself: a system call would take ten times as long.
#[unsafe(no_mangle)]
unsafe extern "C" fn __wrap_clock_gettime(clock: libc::clockid_t, time: *mut libc::timespec) -> c_int {
    use rustix::time::{ClockId, clock_gettime};
    let known = match clock {
        libc::CLOCK_MONOTONIC if has_vdso() => ClockId::Monotonic,
        libc::CLOCK_REALTIME if has_vdso() => ClockId::Realtime,
        _ => {
            let arguments = [clock as usize, time as usize, 0, 0, 0, 0];
            // SAFETY: the caller's contract.
            return status(unsafe { kernel(libc::SYS_clock_gettime, arguments) });
        }
    };
    let now = clock_gettime(known);
    // SAFETY: the caller passes room for one.
    unsafe { time.write(libc::timespec { tv_sec: now.tv_sec, tv_nsec: now.tv_nsec }) };
    0
}

/// Whether the vDSO is where the kernel says. Emulators (valgrind) hide it from the C library, and have none there.
fn has_vdso() -> bool {
    /// 0 not known yet, 1 no, 2 yes.
    static HAS: AtomicU8 = AtomicU8::new(0);
    match HAS.load(Relaxed) {
        0 => {
            // SAFETY: no memory is passed.
            let has = unsafe { libc::getauxval(libc::AT_SYSINFO_EHDR) } != 0;
            HAS.store(1 + u8::from(has), Relaxed);
            has
        }
        known => known == 2,
    }
}

/// Returns the error, as that function alone does.
#[unsafe(no_mangle)]
unsafe extern "C" fn __wrap_clock_nanosleep(
    clock: libc::clockid_t,
    flags: c_int,
    time: *const libc::timespec,
    left: *mut libc::timespec,
) -> c_int {
    let arguments = [clock as usize, flags as usize, time as usize, left as usize, 0, 0];
    // SAFETY: the caller's contract.
    unsafe { kernel(libc::SYS_clock_nanosleep, arguments) }.err().unwrap_or(0)
}

/// mimalloc's way to yield is `sleep(0)`.
#[unsafe(no_mangle)]
unsafe extern "C" fn __wrap_sleep(seconds: c_uint) -> c_uint {
    let time = libc::timespec { tv_sec: seconds.into(), tv_nsec: 0 };
    // SAFETY: one structure is passed.
    let slept = unsafe { kernel(libc::SYS_nanosleep, [(&raw const time).addr(), 0, 0, 0, 0, 0]) };
    if slept.is_ok() { 0 } else { seconds }
}

/// mimalloc writes its messages so, to standard error.
#[unsafe(no_mangle)]
unsafe extern "C" fn __wrap_fputs(text: *const c_char, _: *mut c_void) -> c_int {
    // SAFETY: the caller passes a C string.
    let length = unsafe { std::ffi::CStr::from_ptr(text) }.count_bytes();
    // SAFETY: so many bytes lie there.
    status(unsafe { kernel(libc::SYS_write, [2, text as usize, length, 0, 0, 0]) })
}

/// Bytes of the kernel's set of signals.
const SIGNAL_SET: usize = 8;

/// Returns the error, as that function does. The sets are from `sigfillset` or from here, so none has a signal that the
/// C library keeps for itself.
#[unsafe(no_mangle)]
unsafe extern "C" fn __wrap_pthread_sigmask(
    how: c_int,
    new: *const libc::sigset_t,
    old: *mut libc::sigset_t,
) -> c_int {
    let arguments = [how as usize, new as usize, old as usize, SIGNAL_SET, 0, 0];
    // SAFETY: the caller's contract; the C library's sets are larger than the kernel's.
    unsafe { kernel(libc::SYS_rt_sigprocmask, arguments) }.err().unwrap_or(0)
}
