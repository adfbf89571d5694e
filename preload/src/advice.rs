//! What a program says about its memory: advice, and locks of all of it.

use crate::call::{count, kernel, status};
use crate::current::managed;
use crate::range::{MADV_DONTNEED_LOCKED, advise, bytes, pages};
use crate::{shared, small_mappings};
use pagetide::process::Process;
use pagetide::regions::AtFork;
use pagetide_swap::{PAGE_SIZE, PageIndex};
use pagetide_sys::procfs::is_own_pidfd;
use pagetide_sys::task;
use std::ffi::{c_int, c_uint, c_void};
use std::ops::Range;

/// Ranges that one call takes at most.
const UIO_MAXIOV: usize = 1024;
const MADV_GUARD_INSTALL: c_int = 102;
const MADV_GUARD_REMOVE: c_int = 103;

/// The meaning of advice where memory is managed.
enum Meaning {
    /// The contents go.
    Drop,
    /// It is not taken: what leaves page by page must not be huge.
    Ignore,
    /// It is not known, as to an older kernel: guards would travel with the pages.
    Refuse,
    /// Bring in what is out, as far as there is room.
    Bring,
    /// The next to leave.
    Cold,
    /// Leave.
    PageOut,
    /// A change of what a forked child finds.
    AtFork(fn(&mut AtFork)),
}

fn meaning(advice: c_int) -> Option<Meaning> {
    Some(match advice {
        libc::MADV_DONTNEED | libc::MADV_FREE | MADV_DONTNEED_LOCKED => Meaning::Drop,
        libc::MADV_HUGEPAGE => Meaning::Ignore,
        MADV_GUARD_INSTALL | MADV_GUARD_REMOVE => Meaning::Refuse,
        libc::MADV_WILLNEED => Meaning::Bring,
        libc::MADV_COLD => Meaning::Cold,
        libc::MADV_PAGEOUT => Meaning::PageOut,
        libc::MADV_DONTFORK => Meaning::AtFork(|at_fork| at_fork.omit = true),
        libc::MADV_WIPEONFORK => Meaning::AtFork(|at_fork| at_fork.wipe = true),
        libc::MADV_DOFORK => Meaning::AtFork(|at_fork| at_fork.omit = false),
        libc::MADV_KEEPONFORK => Meaning::AtFork(|at_fork| at_fork.wipe = false),
        _ => return None,
    })
}

/// `madvise(2)`.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn madvise(address: *mut c_void, length: usize, advice: c_int) -> c_int {
    // SAFETY: the caller's contract.
    unsafe { take_advice(address, length, advice) }
}

/// `madvise(2)` for this library itself: its calls by that name go past management (see `wraps`).
///
/// # Safety
/// As of `madvise`.
pub(crate) unsafe fn take_advice(address: *mut c_void, length: usize, advice: c_int) -> c_int {
    // SAFETY: the caller's contract.
    let call = || unsafe { kernel(libc::SYS_madvise, [address as usize, length, advice as usize, 0, 0, 0]) };
    if (address as usize).is_multiple_of(PAGE_SIZE)
        && let Some(process) = managed()
        && let Some(range) = pages(address as usize, length)
        && let Some(result) = advise_shared(process, range, advice)
    {
        return status(result);
    }
    let (Some(process), Some(meaning), Some(range)) =
        (managed(), meaning(advice), pages(address as usize, length))
    else {
        return status(call());
    };
    if !(address as usize).is_multiple_of(PAGE_SIZE) {
        return status(call());
    }
    let mut entered = process.enter();
    if matches!(meaning, Meaning::AtFork(_) | Meaning::Refuse) {
        small_mappings::changed(&entered, address as usize, length);
    }
    if !entered.manages(range.clone()) {
        drop(entered);
        return status(call());
    }
    // What is to leave now takes an engine, whatever room there is.
    if matches!(meaning, Meaning::PageOut) && process.runtime().is_none() {
        drop(entered);
        process.arm();
        entered = process.enter();
    }
    if let Meaning::AtFork(change) = meaning {
        let result = call();
        if result.is_ok() {
            entered.at_fork(range, change);
        }
        return status(result);
    }
    if let Meaning::Refuse = meaning {
        // Also before the engine runs: guards that it does not know of would be lost when their cluster leaves.
        return status(Err(libc::EINVAL));
    }
    let Some(runtime) = process.runtime() else {
        drop(entered);
        return status(call());
    };
    match meaning {
        Meaning::Drop if advice != MADV_DONTNEED_LOCKED && entered.holds(range.clone()) => {
            status(Err(libc::EINVAL))
        }
        Meaning::Drop => {
            // The kernel may drop the pages of MADV_FREE at any time, so also now.
            let advice = if advice == libc::MADV_FREE { libc::MADV_DONTNEED } else { advice };
            let mut result = Ok(0);
            entered.dropping(range, |part| result = result.and(advise(&part, advice)));
            status(result)
        }
        Meaning::Ignore | Meaning::AtFork(_) | Meaning::Refuse => 0,
        Meaning::Bring => {
            let out = entered.out(range);
            drop(entered);
            bring_in(&out, || runtime.has_room());
            0
        }
        Meaning::Cold | Meaning::PageOut => {
            runtime.engine().hasten(range, matches!(meaning, Meaning::PageOut));
            drop(entered);
            runtime.wake();
            0
        }
    }
}

/// Takes advice for a range of which a part is shared memory that is served. `None` if it is to be taken as for any other.
fn advise_shared(
    process: &'static Process,
    range: Range<PageIndex>,
    advice: c_int,
) -> Option<Result<usize, c_int>> {
    if !shared::touches(process, &range) {
        return None;
    }
    let entered = process.enter();
    let result = shared::take_advice(&range, advice)?;
    // Of what else lies there children find what the kernel was told.
    if let Some(Meaning::AtFork(change)) = meaning(advice).filter(|_| result.is_ok()) {
        let (start, length) = bytes(&range);
        small_mappings::changed(&entered, start, length);
        entered.at_fork(range, change);
    }
    Some(result)
}

/// `process_madvise(2)`: as [`madvise`], where the process is this one.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn process_madvise(
    pidfd: c_int,
    vector: *const libc::iovec,
    length: usize,
    advice: c_int,
    flags: c_uint,
) -> isize {
    let call = |length: usize| {
        let arguments = [pidfd as usize, vector as usize, length, advice as usize, flags as usize, 0];
        // SAFETY: the caller's contract.
        unsafe { kernel(libc::SYS_process_madvise, arguments) }
    };
    // Whether the kernel knows the process and takes the advice: it looks before it looks at any range.
    let accepts = || call(0).is_ok();
    if managed().is_none()
        || meaning(advice).is_none()
        || length > UIO_MAXIOV
        || !accepts()
        || !is_own_pidfd(pidfd)
    {
        return count(call(length));
    }
    let mut advised = 0;
    for nth in 0..length {
        // SAFETY: the caller passes so many.
        let part = unsafe { &*vector.add(nth) };
        // SAFETY: the caller's contract.
        if unsafe { take_advice(part.iov_base, part.iov_len, advice) } != 0 {
            return if advised > 0 { advised } else { -1 };
        }
        advised += part.iov_len as isize;
    }
    advised
}

/// Brings pages in while `may`.
fn bring_in(runs: &[Range<PageIndex>], may: impl Fn() -> bool) {
    for run in runs.iter().take_while(|_| may()) {
        let (start, length) = bytes(run);
        task::bring_in(start, length);
    }
}

/// `mlockall(2)`: managed memory stays in memory; the kernel is not asked, for it would lock the engine's
/// reservations too.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn mlockall(flags: c_int) -> c_int {
    let known = libc::MCL_CURRENT | libc::MCL_FUTURE | libc::MCL_ONFAULT;
    // What it sets aside later would be locked as a whole.
    crate::malloc::start();
    let Some(process) = managed() else {
        // SAFETY: the caller's contract.
        return status(unsafe { kernel(libc::SYS_mlockall, [flags as usize, 0, 0, 0, 0, 0]) });
    };
    if flags & !known != 0 || flags & (libc::MCL_CURRENT | libc::MCL_FUTURE) == 0 {
        return status(Err(libc::EINVAL));
    }
    let entered = process.enter();
    let mut out = Vec::new();
    if flags & libc::MCL_CURRENT != 0 && !process.lock_more(entered.managed_pages()) {
        return status(Err(libc::ENOMEM));
    }
    if flags & libc::MCL_CURRENT != 0 {
        let shared = shared::ranges();
        if !shared.iter().all(shared::hold) {
            entered.recount_locked();
            return status(Err(libc::ENOMEM));
        }
        entered.hold_all(true);
        small_mappings::changed(&entered, 0, usize::MAX);
        for range in entered.ranges() {
            out.extend(entered.out(range));
        }
        out.extend(shared);
    }
    entered.hold_new(flags & libc::MCL_FUTURE != 0);
    drop(entered);
    if flags & libc::MCL_ONFAULT == 0 {
        bring_in(&out, || true);
    }
    0
}

/// `munlockall(2)`.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn munlockall() -> c_int {
    if let Some(process) = managed() {
        let entered = process.enter();
        entered.hold_new(false);
        entered.hold_all(false);
    }
    // SAFETY: no memory is passed.
    status(unsafe { kernel(libc::SYS_munlockall, [0; 6]) })
}
