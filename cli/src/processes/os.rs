//! System calls that need `unsafe`: signal masks, dispositions, the step between fork and exec.

use pagetide_sys::procfs::Stat;
use std::io::{self, Read, Write};
use std::mem::MaybeUninit;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

/// Whether SIGPIPE was ignored when this process started. The Rust runtime ignores it in any case.
static PIPE_IGNORED: AtomicBool = AtomicBool::new(false);
/// The standard streams that were closed when this process started. The runtime opens `/dev/null` in their place.
static CLOSED: [AtomicBool; 3] = [const { AtomicBool::new(false) }; 3];

extern "C" fn note_what_is_inherited() {
    PIPE_IGNORED.store(is_ignored(libc::SIGPIPE), Relaxed);
    for (fd, closed) in (0..).zip(&CLOSED) {
        // SAFETY: F_GETFD passes no memory.
        closed.store(unsafe { libc::fcntl(fd, libc::F_GETFD) } == -1, Relaxed);
    }
}

// SAFETY: the C library calls the functions of this section before `main`, on the only thread; this one
// makes system calls and stores to statics, and needs no runtime.
#[used]
#[unsafe(link_section = ".init_array")]
static BEFORE_MAIN: extern "C" fn() = note_what_is_inherited;

fn is_ignored(signal: i32) -> bool {
    let mut action = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: no new action is passed; the old one is written, and zeroes are a valid one.
    unsafe {
        libc::sigaction(signal, std::ptr::null(), action.as_mut_ptr());
        action.assume_init().sa_sigaction == libc::SIG_IGN
    }
}

fn set_disposition(signal: i32, handler: libc::sighandler_t) {
    // SAFETY: only SIG_DFL and SIG_IGN are passed, which run no code of ours.
    unsafe { libc::signal(signal, handler) };
}

/// The signals of this process, which are all blocked and waited for, and the mask that CMD gets instead.
#[derive(Clone, Copy)]
pub(crate) struct Signals {
    all: libc::sigset_t,
    inherited_mask: libc::sigset_t,
    child_ignored: bool,
}

/// A signal that arrived.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Received {
    /// Its number.
    pub(crate) signal: i32,
    /// Its sender; `None` for the kernel, as for a key on the terminal.
    pub(crate) sender: Option<Sender>,
}

/// The process that sent a signal.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Sender {
    /// Its pid; 0 if it is in another pid namespace.
    pub(crate) pid: u32,
    /// The value that `sigqueue` sent along.
    pub(crate) value: Option<usize>,
}

impl Signals {
    /// Blocks every signal in this thread and the threads that it starts.
    pub(crate) fn block() -> Self {
        let child_ignored = is_ignored(libc::SIGCHLD);
        // Else children vanish unreaped, with their statuses.
        set_disposition(libc::SIGCHLD, libc::SIG_DFL);
        let mut all = MaybeUninit::uninit();
        let mut inherited = MaybeUninit::uninit();
        // SAFETY: both sets are initialised by the calls before they are read.
        unsafe {
            libc::sigfillset(all.as_mut_ptr());
            libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), inherited.as_mut_ptr());
            Self { all: all.assume_init(), inherited_mask: inherited.assume_init(), child_ignored }
        }
    }

    /// Waits for a signal, for `timeout` at most.
    pub(crate) fn wait(&self, timeout: Duration) -> Option<Received> {
        let timeout = libc::timespec {
            tv_sec: timeout.as_secs() as libc::time_t,
            tv_nsec: timeout.subsec_nanos().into(),
        };
        let mut info = MaybeUninit::<libc::siginfo_t>::zeroed();
        // SAFETY: the set and the time are initialised; the kernel fills the information in.
        let signal =
            unsafe { libc::sigtimedwait(&raw const self.all, info.as_mut_ptr(), &raw const timeout) };
        if signal <= 0 {
            return None;
        }
        // SAFETY: it was filled in, and zeroes are a valid one anyway.
        let info = unsafe { info.assume_init() };
        // SAFETY: with these codes the sender's pid is there, and with SI_QUEUE a value.
        let sender = unsafe {
            match info.si_code {
                libc::SI_USER | libc::SI_TKILL => Some(Sender { pid: info.si_pid() as u32, value: None }),
                libc::SI_QUEUE => Some(Sender {
                    pid: info.si_pid() as u32,
                    value: Some(info.si_value().sival_ptr as usize),
                }),
                _ => None,
            }
        };
        Some(Received { signal, sender })
    }

    /// Forgets that a signal has come, if one has.
    pub(crate) fn drop_pending(&self, signal: i32) {
        let none = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        let mut set = MaybeUninit::<libc::sigset_t>::uninit();
        // SAFETY: the set is initialised by the first call, and nothing is to be filled in.
        unsafe {
            libc::sigemptyset(set.as_mut_ptr());
            libc::sigaddset(set.as_mut_ptr(), signal);
            libc::sigtimedwait(set.as_ptr(), std::ptr::null_mut(), &raw const none);
        }
    }

    /// Starts a command with the signals, and the standard streams, that this process itself was given.
    /// It dies with this process.
    pub(crate) fn spawn(self, command: &mut Command) -> io::Result<u32> {
        let restore = move || {
            for (fd, closed) in (0..).zip(&CLOSED) {
                if closed.load(Relaxed) {
                    // SAFETY: it is the runtime's /dev/null, and nobody in this process uses it.
                    unsafe { libc::close(fd) };
                }
            }
            for (signal, ignored) in
                [(libc::SIGPIPE, PIPE_IGNORED.load(Relaxed)), (libc::SIGCHLD, self.child_ignored)]
            {
                set_disposition(signal, if ignored { libc::SIG_IGN } else { libc::SIG_DFL });
            }
            // SAFETY: numbers and an initialised set are passed.
            unsafe {
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                libc::sigprocmask(libc::SIG_SETMASK, &raw const self.inherited_mask, std::ptr::null_mut());
            }
            Ok(())
        };
        // SAFETY: the closure makes async-signal-safe calls only, and does not allocate.
        let child = unsafe { command.pre_exec(restore) }.spawn()?;
        Ok(child.id())
    }
}

/// Sends a signal to a process. A process that has ended is no error.
pub(crate) fn send(pid: u32, signal: i32, value: Option<usize>) {
    let pid = pid as libc::pid_t;
    // SAFETY: numbers are passed.
    unsafe {
        match value {
            None => libc::kill(pid, signal),
            Some(value) => libc::sigqueue(pid, signal, libc::sigval { sival_ptr: value as *mut _ }),
        };
    }
}

/// Sends signals to a process, if it descends from this one: its pid may be another process's by now.
pub(crate) fn send_to_descendant(pid: u32, signals: &[i32]) {
    use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
    let process = Pid::from_raw(pid as i32).and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok());
    if !crate::processes::tree::descends(pid, std::process::id()) {
        return;
    }
    for &signal in signals {
        match (&process, Signal::from_named_raw(signal)) {
            (Some(process), Some(signal)) => _ = pidfd_send_signal(process, signal),
            // No descriptor is left.
            _ => send(pid, signal, None),
        }
    }
}

/// What the kernel tells of the processes that were waited for.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct Usage {
    /// User and system time, in seconds.
    pub(crate) cpu: (f64, f64),
    /// The most that one of them had in memory, its files included, in bytes.
    pub(crate) max_rss: u64,
}

/// Returns the usage of the children that were waited for, and of those that these have waited for.
pub(crate) fn children_usage() -> Usage {
    let mut usage = MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: the kernel fills it in, and zeroes are a valid one.
    let usage = unsafe {
        libc::getrusage(libc::RUSAGE_CHILDREN, usage.as_mut_ptr());
        usage.assume_init()
    };
    let seconds = |time: libc::timeval| time.tv_sec as f64 + time.tv_usec as f64 / 1e6;
    Usage { cpu: (seconds(usage.ru_utime), seconds(usage.ru_stime)), max_rss: (usage.ru_maxrss as u64) << 10 }
}

/// Who continued this process after it had stopped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Continued {
    /// It did itself, for what it waited for had come.
    ByItself,
    /// Somebody else.
    BySomebody,
}

/// Stops this process until somebody continues it, or `goes_on` returns true. Returns which.
///
/// `goes_on` runs in a process forked from this one, as a stopped process cannot run it. It takes no lock that
/// another thread of this process might hold, except that of `malloc`, which the C library hands to a forked child
/// in order.
pub(crate) fn stop_until(goes_on: impl Fn() -> bool) -> Continued {
    const PAUSE: Duration = Duration::from_millis(100);
    let me = std::process::id();
    // The waker says so before it continues this process. Without descriptors nobody can tell.
    let told = std::io::pipe().ok();
    // SAFETY: the child needs no lock that another thread could hold, as said above.
    let waker = unsafe { libc::fork() };
    if waker == 0 {
        // SAFETY: a number is passed.
        unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
        // A SIGCONT that is sent before this process stops has it go on from nothing.
        while !(is_stopped_or_traced(me) && goes_on()) {
            if std::os::unix::process::parent_id() != me {
                // SAFETY: as below.
                unsafe { libc::_exit(0) };
            }
            std::thread::sleep(PAUSE);
        }
        if let Some((_, say)) = &told {
            _ = (&*say).write(&[1]);
        }
        send(me, libc::SIGCONT, None);
        // SAFETY: it ends this copy of the process without running what the original is to run.
        unsafe { libc::_exit(0) };
    }
    send(me, libc::SIGSTOP, None);
    if waker > 0 {
        send(waker as u32, libc::SIGKILL, None);
    }
    // It is there before the signal. A copy of the other end may live on in another process: that is not waited for.
    match told.map(|(mut hear, _)| rustix::io::ioctl_fionbio(&hear, true).map(|()| hear.read(&mut [0]))) {
        Some(Ok(Ok(1))) => Continued::ByItself,
        _ => Continued::BySomebody,
    }
}

/// Returns whether a process is stopped, be it by its tracer.
fn is_stopped_or_traced(pid: u32) -> bool {
    Stat::of(pid).is_some_and(|stat| matches!(stat.state, b'T' | b't'))
}
