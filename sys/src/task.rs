//! The calling thread and its process: processors, descriptors, messages, ends.

use crate::mapping::last_errno;
use rustix::io::Errno;
use rustix::mm::Advice;
use std::os::fd::OwnedFd;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

/// The kernel's number of the calling thread.
pub fn tid() -> u32 {
    rustix::thread::gettid().as_raw_nonzero().get() as u32
}

/// Gives the calling thread, and the threads that it starts, a descriptor table of their own, empty.
///
/// # Errors
/// ENOSYS before 5.9, EPERM where a filter forbids it: the thread then shares the program's table.
///
/// # Safety
/// The calling thread must not use a descriptor that it had before.
pub unsafe fn leave_descriptor_table() -> Result<(), Errno> {
    const UNSHARE: u32 = 1 << 1;
    // SAFETY: no memory is passed; the caller gives up its descriptors.
    let result = unsafe { libc::syscall(libc::SYS_close_range, 0u32, u32::MAX, UNSHARE) };
    if result == 0 { Ok(()) } else { Err(last_errno()) }
}

/// Returns whether two processes share their memory, as a child of `vfork` does with its parent.
///
/// # Errors
/// ESRCH if one of them is gone, EPERM if this process may not look at them, ENOSYS if the kernel has no `kcmp`.
pub fn share_memory(one: u32, other: u32) -> Result<bool, Errno> {
    const KCMP_VM: u32 = 1;
    // SAFETY: numbers are passed.
    match unsafe { libc::syscall(libc::SYS_kcmp, one, other, KCMP_VM, 0, 0) } {
        -1 => Err(last_errno()),
        order => Ok(order == 0),
    }
}

/// Returns whether no process of this pid is left, all its threads and its memory: it was reaped. False in a sandbox, which
/// may forbid to ask.
pub fn has_ended(pid: u32) -> bool {
    use rustix::process::{Pid, test_kill_process};
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
    pid.is_some_and(|pid| !is_confined() && test_kill_process(pid) == Err(Errno::SRCH))
}

/// Whether a thread of this process has put itself into a sandbox.
static CONFINED: AtomicBool = AtomicBool::new(false);

/// Notes that a thread of this process is about to put itself into a sandbox (seccomp), which may end it for calls that the
/// program does not make itself. Children inherit the sandbox, and this.
pub fn confine() {
    CONFINED.store(true, Relaxed);
}

/// Returns whether [`confine`] was called, here or in a parent.
pub fn is_confined() -> bool {
    CONFINED.load(Relaxed)
}

/// Ties the calling thread to these processors. Best effort.
pub fn run_on(processors: &[usize]) {
    let mut set = rustix::thread::CpuSet::new();
    for &processor in processors.iter().filter(|&&number| number < rustix::thread::CpuSet::MAX_CPU) {
        set.set(processor);
    }
    let _ = rustix::thread::sched_setaffinity(None, &set);
}

/// Returns whether the calling thread, when it wakes, leaves the thread that runs on its processor alone
/// (`SCHED_BATCH`, which needs no privilege), or competes with it as usual. Best effort.
pub fn wake_gently(gently: bool) {
    let policy = if gently { libc::SCHED_BATCH } else { libc::SCHED_OTHER };
    // SAFETY: the kernel reads one `sched_param`, for which all zero is a value, and the right one for both
    // policies.
    unsafe {
        let parameters: libc::sched_param = std::mem::zeroed();
        libc::sched_setscheduler(0, policy, &raw const parameters);
    }
}

/// Calls `wake`, which must wake a thread of this process that sleeps in the kernel, and has it woken on
/// that processor, if it may run there. The thread may run where it might before once this returns; until
/// then it should have no reason to return to user space. Best effort.
pub fn wake_at(tid: u32, processor: usize, wake: impl FnOnce()) {
    use rustix::thread::{CpuSet, Pid, sched_getaffinity, sched_setaffinity};
    let thread = i32::try_from(tid).ok().and_then(Pid::from_raw);
    // `None` would be the calling thread.
    let allowed = thread.and_then(|_| sched_getaffinity(thread).ok());
    let Some(allowed) = allowed.filter(|set| set.is_set(processor)) else { return wake() };
    let mut there = CpuSet::new();
    there.set(processor);
    let tied = sched_setaffinity(thread, &there).is_ok();
    // A thread that is woken is put on a processor before the call that wakes it returns.
    wake();
    if tied {
        let _ = sched_setaffinity(thread, &allowed);
    }
}

/// The processors that the calling thread may run on.
pub fn processors() -> Vec<usize> {
    rustix::thread::sched_getaffinity(None).map_or_else(
        |_| vec![0],
        |set| (0..rustix::thread::CpuSet::MAX_CPU).filter(|&cpu| set.is_set(cpu)).collect(),
    )
}

/// Writes a line to the program's standard error, in one call.
pub fn say(line: &str) {
    write_error(format!("pagetide: {line}\n").as_bytes());
}

/// Writes to the program's standard error, in one call.
pub(crate) fn write_error(text: &[u8]) {
    if crate::places::is_engine_thread()
        && let Some(fd) = program_stderr()
    {
        let _ = rustix::io::write(&fd, text);
        return;
    }
    // SAFETY: the bytes live for the call. Descriptor 2 may be closed: then nobody reads it.
    unsafe { libc::syscall(libc::SYS_write, 2, text.as_ptr(), text.len()) };
}

/// The program's standard error, from an engine thread: it has a descriptor table of its own, the program's is that of
/// its first thread, or of any other where that has ended.
fn program_stderr() -> Option<OwnedFd> {
    use rustix::fs::{Mode, OFlags};
    use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, getpid, pidfd_getfd, pidfd_open};
    /// `PIDFD_THREAD` (6.9).
    const THREAD: PidfdFlags = PidfdFlags::from_bits_retain(libc::O_EXCL as u32);
    let of =
        |thread: Pid, flags| pidfd_getfd(pidfd_open(thread, flags).ok()?, 2, PidfdGetfdFlags::empty()).ok();
    let process = format!("/proc/{}", crate::procfs::own_pid());
    let others = || crate::procfs::program_tasks(&process);
    let tid = |task: String| Pid::from_raw(task.rsplit('/').next()?.parse().ok()?);
    of(getpid(), PidfdFlags::empty()).or_else(|| others().find_map(|task| of(tid(task)?, THREAD))).or_else(
        || {
            // A sandbox may forbid that. Opened anew, a file has its own position: what the program writes next may
            // overwrite this.
            let flags = OFlags::WRONLY | OFlags::APPEND | OFlags::NOCTTY;
            let open = |task: &str| rustix::fs::open(format!("{task}/fd/2"), flags, Mode::empty()).ok();
            open(&process).or_else(|| others().find_map(|task| open(&task)))
        },
    )
}

/// The word in which [`kill_self`] counts, for whoever tells who killed a process.
static KILLS: OnceLock<&AtomicU64> = OnceLock::new();

/// Has [`kill_self`] count in this word. The first one stays.
pub fn count_kills_in(word: &'static AtomicU64) {
    let _ = KILLS.set(word);
}

/// Ends the process as an out-of-memory kill would: by SIGKILL. A message has said why.
pub fn kill_self() -> ! {
    if let Some(kills) = KILLS.get() {
        kills.fetch_add(1, Relaxed);
    }
    let _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
    loop {
        rustix::thread::sched_yield();
    }
}

/// Ends the process with that status, without a handler of anybody's.
pub fn exit(status: i32) -> ! {
    // SAFETY: no memory is passed.
    unsafe { libc::syscall(libc::SYS_exit_group, status) };
    unreachable!("exit_group(2) does not return")
}

/// Brings the pages of a range in, as a write would, if they are mapped; an error is of no interest.
pub fn populate(start: usize, length: usize) {
    advise(start, length, Advice::LinuxPopulateWrite);
}

/// Brings the pages of a range in, as a read would, if they are mapped; an error is of no interest.
pub fn bring_in(start: usize, length: usize) {
    advise(start, length, Advice::LinuxPopulateRead);
}

fn advise(start: usize, length: usize, advice: Advice) {
    // SAFETY: populating changes no contents.
    let _ = unsafe { rustix::mm::madvise(start as *mut _, length, advice) };
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;

    #[test]
    fn a_thread_that_is_woken_elsewhere_may_run_where_it_might_before() {
        let (begin, begun) = channel();
        let (wake, woken) = channel();
        let sleeper = std::thread::spawn(move || {
            begin.send(tid()).unwrap();
            woken.recv().unwrap();
            // Not before whoever woke us is done with us.
            woken.recv().unwrap();
            processors()
        });
        let sleeper_tid = begun.recv().unwrap();
        let all = processors();
        wake_at(sleeper_tid, *all.last().unwrap(), || wake.send(()).unwrap());
        wake.send(()).unwrap();
        assert_eq!(sleeper.join().unwrap(), all);
    }

    #[test]
    fn a_thread_that_may_not_run_there_is_woken_all_the_same() {
        let nowhere = (0..rustix::thread::CpuSet::MAX_CPU).rev().find(|cpu| !processors().contains(cpu));
        let mut woken = 0;
        wake_at(tid(), nowhere.unwrap(), || woken += 1);
        wake_at(0, 0, || woken += 1);
        assert_eq!(woken, 2);
    }
}
