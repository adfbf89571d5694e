//! The calls that change mappings: large private anonymous ones are managed.
//!
//! Each does what the kernel documents; managed memory only takes a detour, so that no page is lost that
//! is out of the program. Calls for other memory go straight to the kernel.

use crate::call::{kernel, pointer, status};
use crate::current::managed;
use crate::memory_locks::mlock;
use crate::range::{bytes, pages};
use crate::shared::{self, Mapping};
use crate::small_mappings;
use pagetide::process::{Entered, Process, Remapping};
use pagetide::regions::{Access, Attributes, Charging};
use pagetide_swap::{PAGE_SIZE, PageIndex};
use pagetide_sys::task;
use std::ffi::{c_int, c_void};
use std::ops::Range;

const MREMAP_DONTUNMAP: c_int = 4;
/// Private mappings of these kinds are not managed.
const UNFIT: c_int = libc::MAP_GROWSDOWN | libc::MAP_HUGETLB;

fn access(protection: c_int) -> Access {
    if protection & libc::PROT_WRITE != 0 {
        Access::Write
    } else if protection & (libc::PROT_READ | libc::PROT_EXEC) != 0 {
        Access::Read
    } else {
        Access::None
    }
}

/// `mmap(2)`.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn mmap(
    address: *mut c_void,
    length: usize,
    protection: c_int,
    flags: c_int,
    fd: c_int,
    offset: i64,
) -> *mut c_void {
    // SAFETY: the caller's contract.
    unsafe { map(address, length, protection, flags, fd, offset) }
}

/// `mmap(2)` for this library itself: its calls by that name go past management (see `wraps`).
///
/// # Safety
/// As of `mmap`.
pub(crate) unsafe fn map(
    address: *mut c_void,
    length: usize,
    protection: c_int,
    flags: c_int,
    fd: c_int,
    offset: i64,
) -> *mut c_void {
    // SAFETY: the caller's contract.
    let map = || unsafe { map_once(address, length, protection, flags, fd, offset) };
    let result = map();
    // Another thread may have made shared memory of the file between a look at the descriptor and the call.
    let is_late = result == libc::MAP_FAILED && flags & libc::MAP_ANONYMOUS == 0 && shared::is_front(fd);
    if is_late { map() } else { result }
}

/// # Safety
/// As of `mmap`.
unsafe fn map_once(
    address: *mut c_void,
    length: usize,
    protection: c_int,
    flags: c_int,
    fd: c_int,
    offset: i64,
) -> *mut c_void {
    let mapping = Mapping { address: address as usize, length, protection, flags, fd, offset };
    let Some(process) = managed() else {
        // SAFETY: the caller's contract.
        return pointer(unsafe { map_in_kernel(&mapping) });
    };
    let locks = flags & libc::MAP_LOCKED != 0 && flags & libc::MAP_ANONYMOUS != 0;
    // SAFETY: the caller's contract.
    unsafe { if locks { map_locked(process, mapping) } else { map_unlocked(process, mapping) } }
}

/// # Safety
/// As of `mmap`.
unsafe fn map_in_kernel(mapping: &Mapping) -> Result<usize, c_int> {
    let Mapping { address, length, protection, flags, fd, offset } = *mapping;
    let arguments = [address, length, protection as usize, flags as usize, fd as usize, offset as usize];
    // SAFETY: the caller's contract.
    unsafe { kernel(libc::SYS_mmap, arguments) }
}

/// Maps anonymous memory that is locked from the start. What can be managed is mapped first and locked then, as by `mlock`: the
/// kernel's own call would fill all of it before anything else can leave for it.
///
/// # Safety
/// As of `mmap`.
unsafe fn map_locked(process: &'static Process, mapping: Mapping) -> *mut c_void {
    let Mapping { length, protection, flags, .. } = mapping;
    if !process.may_lock_unmanaged(length.div_ceil(PAGE_SIZE) as u64) {
        // As beyond RLIMIT_MEMLOCK.
        return pointer(Err(libc::EAGAIN));
    }
    let unlocked = Mapping { flags: flags & !libc::MAP_LOCKED, ..mapping };
    let fills = access(protection) != Access::None
        && unlocked.flags & UNFIT == 0
        && small_mappings::is_worth_managing(length);
    if !fills {
        // SAFETY: the caller's contract.
        let start = unsafe { map_unlocked(process, mapping) };
        if start != libc::MAP_FAILED {
            process.count_unmanaged();
        }
        return start;
    }
    if let Err(error) = may_lock(length) {
        return pointer(Err(error));
    }
    // SAFETY: the caller's contract.
    let start = unsafe { map_unlocked(process, unlocked) };
    if start == libc::MAP_FAILED {
        return start;
    }
    // SAFETY: what was mapped just now.
    unsafe {
        if mlock(start, length) != 0 {
            // Others have locked meanwhile what was left.
            unmap(start, length);
            return pointer(Err(libc::EAGAIN));
        }
    }
    let is_counted =
        |range: &Range<PageIndex>| process.knows(range.clone()) || shared::touches(process, range);
    if !pages(start as usize, length).is_some_and(|range| is_counted(&range)) {
        process.count_unmanaged();
    }
    start
}

/// Asks the kernel whether the process may lock `length` bytes more (RLIMIT_MEMLOCK).
fn may_lock(length: usize) -> Result<(), c_int> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_LOCKED;
    // SAFETY: a mapping of its own, which nothing can touch and so nothing fills, and which goes at once.
    unsafe {
        let start =
            kernel(libc::SYS_mmap, [0, length, libc::PROT_NONE as usize, flags as usize, usize::MAX, 0])?;
        kernel(libc::SYS_munmap, [start, length, 0, 0, 0, 0]).map(|_| ())
    }
}

/// # Safety
/// As of `mmap`.
unsafe fn map_unlocked(process: &'static Process, mapping: Mapping) -> *mut c_void {
    let Mapping { address, length, protection, flags, .. } = mapping;
    // SAFETY: the caller's contract.
    let call = |flags: c_int| unsafe { map_in_kernel(&Mapping { flags, ..mapping }) };
    if let Some(result) = shared::map(process, mapping) {
        forget_small(process, result, length);
        return pointer(result);
    }
    let fixed = flags & libc::MAP_FIXED != 0;
    let unfit = UNFIT | libc::MAP_LOCKED;
    let private = flags & libc::MAP_PRIVATE != 0 && flags & libc::MAP_ANONYMOUS != 0 && flags & unfit == 0;
    let wanted = private && small_mappings::is_worth_managing(length);
    let count = length.div_ceil(PAGE_SIZE) as u64;
    if !wanted && !fixed {
        return pointer(note_unmanaged(process, &mapping, private, call(flags)));
    }
    let access = access(protection);
    let charged = if wanted && access != Access::None { count as i64 } else { 0 };
    let locked = if process.locks_new() { charged } else { 0 };
    if !process.lock_more(locked as u64) {
        return pointer(Err(libc::EAGAIN));
    }
    process.charge(charged);
    let entered = process.enter();
    // Populated before it is registered, it would not be counted: afterwards will do.
    let populate = wanted && flags & libc::MAP_POPULATE != 0;
    let flags = if populate { flags & !libc::MAP_POPULATE } else { flags };
    let (result, mut released) = match pages(address, length).filter(|_| fixed) {
        Some(range) => shared::over(&entered, range, || call(flags)),
        None => (call(flags), 0),
    };
    shared::count_left(&mapping, result);
    if let Ok(start) = result {
        small_mappings::unmapped(&entered, start, length);
    }
    let mut mapped = None;
    if let Ok(start) = result
        && let Some(range) = pages(start, length)
        && (wanted || private && (released > 0 || joins(&entered, &range)))
    {
        released += entered.mapped(range.clone(), Attributes::new(access, Charging::ByMapping));
        mapped = Some(range);
    } else if private && let Ok(start) = result {
        small_mappings::mapped(&entered, start, length, protection);
    }
    if locked > 0 && result.is_err() {
        entered.recount_locked();
    }
    drop(entered);
    let kept = match (result, mapped.as_ref()) {
        (Ok(_), Some(range)) if access != Access::None => (range.end.0 - range.start.0) as i64,
        _ => 0,
    };
    process.settle(released + charged - kept);
    if populate && let Some(range) = mapped {
        let (start, length) = bytes(&range);
        task::populate(start, length);
    }
    pointer(result)
}

/// Notes what was mapped wherever there was room, and is not managed. Returns its place.
fn note_unmanaged(
    process: &'static Process,
    mapping: &Mapping,
    is_private: bool,
    result: Result<usize, c_int>,
) -> Result<usize, c_int> {
    let &Mapping { length, protection, .. } = mapping;
    shared::count_left(mapping, result);
    // A sandbox may not allow what a mapping call makes beside.
    if is_private
        && !task::is_confined()
        && let Ok(start) = result
    {
        small_mappings::mapped(&process.enter(), start, length, protection);
    } else {
        forget_small(process, result, length);
    }
    if let Some(range) = result.ok().and_then(|start| pages(start, length))
        && (process.knows(range.clone()) || shared::touches(process, &range))
    {
        // What was there went by a call that nobody told us of.
        let (_, released) = shared::over(&process.enter(), range, || Ok(0));
        process.uncharge(released);
    }
    result
}

/// Notes that a mapping of another kind is where small ones may have been.
fn forget_small(process: &'static Process, result: Result<usize, c_int>, length: usize) {
    if small_mappings::are_there()
        && let Ok(start) = result
    {
        small_mappings::unmapped(&process.enter(), start, length);
    }
}

/// Whether what is small belongs to a managed range: it is placed beside one (inside it a runtime commits), and the kernel makes
/// the two one mapping. Else `mremap` of all would find two.
fn joins(entered: &Entered<'_>, range: &Range<PageIndex>) -> bool {
    let before = PageIndex(range.start.0.saturating_sub(1))..range.start;
    entered.manages(before) || entered.manages(range.end..range.end.plus(1))
}

/// `mmap64`: the same where offsets have 64 bits.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn mmap64(
    address: *mut c_void,
    length: usize,
    protection: c_int,
    flags: c_int,
    fd: c_int,
    offset: i64,
) -> *mut c_void {
    // SAFETY: the caller's contract.
    unsafe { map(address, length, protection, flags, fd, offset) }
}

/// `munmap(2)`.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn munmap(address: *mut c_void, length: usize) -> c_int {
    // SAFETY: the caller's contract.
    unsafe { unmap(address, length) }
}

/// `munmap(2)` for this library itself, as [`map`].
///
/// # Safety
/// As of `munmap`.
pub(crate) unsafe fn unmap(address: *mut c_void, length: usize) -> c_int {
    // SAFETY: the caller's contract.
    let call = || unsafe { kernel(libc::SYS_munmap, [address as usize, length, 0, 0, 0, 0]) };
    let aligned = (address as usize).is_multiple_of(PAGE_SIZE) && length > 0;
    if let Some(process) = managed()
        && aligned
        && let Some(range) = pages(address as usize, length)
    {
        let entered = process.enter();
        let part = range.clone();
        let call = || shared::unmapping(&part, call);
        let managed = entered.manages(range.clone());
        let served = shared::serves(&entered, &range);
        let (result, released) = if managed { entered.unmapping(range, call) } else { (call(), 0) };
        if result.is_ok() {
            small_mappings::unmapped(&entered, address as usize, length);
            if !managed && !served {
                shared::unmapped(length);
            }
        }
        drop(entered);
        process.uncharge(released);
        return status(result);
    }
    status(call())
}

/// `mprotect(2)`.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn mprotect(address: *mut c_void, length: usize, protection: c_int) -> c_int {
    // SAFETY: the caller's contract.
    unsafe { change_access(address as usize, length, protection) }
}

/// `mprotect(2)` for this library itself, whose calls by that name are taken for mimalloc's.
///
/// # Safety
/// As of `mprotect`.
pub(crate) unsafe fn change_access(address: usize, length: usize, protection: c_int) -> c_int {
    protect(address, length, protection, || {
        // SAFETY: the caller's contract.
        unsafe { kernel(libc::SYS_mprotect, [address, length, protection as usize, 0, 0, 0]) }
    })
}

/// `pkey_mprotect(2)`.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn pkey_mprotect(
    address: *mut c_void,
    length: usize,
    protection: c_int,
    key: c_int,
) -> c_int {
    let arguments = [address as usize, length, protection as usize, key as usize, 0, 0];
    if key > 0
        && let Some(process) = managed()
        && let Some(range) = pages(address as usize, length)
    {
        // Where pages land that leave, the key would come too, and threads of the engine have no access by it.
        let entered = process.enter();
        small_mappings::changed(&entered, address as usize, length);
        entered.keep(range);
    }
    protect(address as usize, length, protection, || {
        // SAFETY: the caller's contract.
        unsafe { kernel(libc::SYS_pkey_mprotect, arguments) }
    })
}

/// Runs `call`, which changes what the program may do with a range.
fn protect(
    address: usize,
    length: usize,
    protection: c_int,
    call: impl Fn() -> Result<usize, c_int>,
) -> c_int {
    if let Some(process) = managed()
        && address.is_multiple_of(PAGE_SIZE)
        && let Some(range) = pages(address, length)
    {
        let access = access(protection);
        if access != Access::None {
            process.charge(process.charge_to_open(range.clone()));
        }
        let entered = process.enter();
        let part = range.clone();
        let call = || match shared::refuses(&part, protection) {
            true => Err(libc::EACCES),
            false => call().inspect(|_| shared::protected(&part, protection)),
        };
        let call = || {
            let result = call();
            match result {
                Ok(_) => small_mappings::protected(&entered, address, length, protection),
                Err(_) => small_mappings::changed(&entered, address, length),
            }
            result
        };
        if entered.manages(range.clone()) {
            let (result, released) = entered.protecting(range, access, call);
            drop(entered);
            process.uncharge(released);
            return status(result);
        }
        return status(call());
    }
    status(call())
}

/// `remap_file_pages(2)`.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn remap_file_pages(
    address: *mut c_void,
    length: usize,
    protection: c_int,
    from: usize,
    flags: c_int,
) -> c_int {
    let (start, length) = (address as usize / PAGE_SIZE * PAGE_SIZE, length / PAGE_SIZE * PAGE_SIZE);
    if let Some(process) = managed()
        && let Some(range) = pages(start, length)
        && let Some(result) = shared::rearrange(&process.enter(), &range, from as u64, protection)
    {
        return status(result);
    }
    let arguments = [address as usize, length, protection as usize, from, flags as usize, 0];
    // SAFETY: the caller's contract.
    status(unsafe { kernel(libc::SYS_remap_file_pages, arguments) })
}

/// `mremap(2)`. The fifth argument is there only with MREMAP_FIXED or MREMAP_DONTUNMAP; on x86-64 it is
/// passed alike either way.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn mremap(
    old: *mut c_void,
    old_length: usize,
    new_length: usize,
    flags: c_int,
    new: *mut c_void,
) -> *mut c_void {
    let call = || {
        // SAFETY: the caller's contract.
        unsafe {
            kernel(libc::SYS_mremap, [old as usize, old_length, new_length, flags as usize, new as usize, 0])
        }
    };
    let Some(process) = managed() else { return pointer(call()) };
    let is_aligned = (old as usize).is_multiple_of(PAGE_SIZE);
    let remap = || shared::remap(&process.enter(), old as usize, old_length, new_length, flags, new as usize);
    // Bound first: the call has ended when charges change.
    let remapped = if is_aligned { remap() } else { None };
    if let Some((result, released)) = remapped {
        process.uncharge(released);
        forget_small(process, result, new_length);
        return pointer(result);
    }
    if old_length == 0
        && flags & libc::MREMAP_FIXED != 0
        && let Some(to) = pages(new as usize, new_length)
    {
        // Shared memory once more, over whatever is there.
        let (result, released) = shared::over(&process.enter(), to, call);
        process.uncharge(released);
        forget_small(process, result, new_length);
        return pointer(result);
    }
    let sane = is_aligned && old_length > 0 && new_length > 0;
    // Without these flags the fifth argument is not there: what the register holds means nothing.
    let placed = flags & (libc::MREMAP_FIXED | MREMAP_DONTUNMAP) != 0;
    let target = if placed { new as usize } else { 0 };
    let (Some(from), Some(to), true) = (pages(old as usize, old_length), pages(target, new_length), sane)
    else {
        return pointer(call());
    };
    let new_pages = new_length.div_ceil(PAGE_SIZE) as u64;
    if flags & libc::MREMAP_FIXED != 0 && from.start < to.end && to.start < from.end {
        // The kernel refuses that, and nothing changes.
        return pointer(call());
    }
    let grows = new_pages as i64 - (from.end.0 - from.start.0) as i64;
    if grows > 0 && process.enter().holds(from.clone()) && !process.lock_more(grows as u64) {
        return pointer(Err(libc::EAGAIN));
    }
    // What it grows by is handed out; the rest was charged before.
    process.charge(grows);
    let entered = process.enter();
    if !entered.manages(from.clone()) {
        let over = (flags & libc::MREMAP_FIXED != 0).then_some(to);
        let (result, surplus) = remap_unmanaged(&entered, from, new_pages, over, call);
        drop(entered);
        process.settle(grows.max(0) + surplus);
        return pointer(result);
    }
    let way =
        Remapping { may_move: flags & libc::MREMAP_MAYMOVE != 0, keeps_old: flags & MREMAP_DONTUNMAP != 0 };
    let remap = || entered.remapping(from.clone(), new_pages, way, || call().map(PageIndex::of_address));
    let (result, released) = match flags & libc::MREMAP_FIXED != 0 && entered.manages(to.clone()) {
        // Whatever lies at the target goes, as the kernel has it: by the call itself, for a target that were
        // unmapped before might be another thread's mapping by then.
        true => entered.replacing(to, remap),
        false => (remap(), 0),
    };
    entered.recount_locked();
    if let Ok((start, _)) = result {
        small_mappings::unmapped(&entered, start.address(), new_length);
    }
    drop(entered);
    // What it grows by was charged as if the program might use it.
    let more = result.map_or(0, |(_, more)| more) - grows.max(0);
    process.uncharge(released - more);
    process.charge(more - released);
    pointer(result.map(|(to, _)| to.address()))
}

/// Runs `call`, by which memory that is not managed moves, or changes its size, to `new_pages` pages, over what is mapped in `over`. Returns
/// its result, and the number of pages that need no charge any more.
fn remap_unmanaged(
    entered: &Entered<'_>,
    from: Range<PageIndex>,
    new_pages: u64,
    over: Option<Range<PageIndex>>,
    call: impl Fn() -> Result<usize, c_int>,
) -> (Result<usize, c_int>, i64) {
    let length = new_pages as usize * PAGE_SIZE;
    let (old, old_length) = bytes(&from);
    let small = small_mappings::resizing(entered, old, old_length);
    let (result, mut released) = match over {
        Some(to) => shared::over(entered, to, call),
        None => (call(), 0),
    };
    let Ok(start) = result else {
        small.into_iter().for_each(|small| small_mappings::stays(entered, small));
        return (result, released);
    };
    small_mappings::unmapped(entered, start, length);
    if let Some(protection) = small.and_then(|small| small_mappings::resized(entered, small, start, length))
        && let Some(range) = pages(start, length).filter(|_| !entered.holds_new())
    {
        let access = access(protection);
        released += entered.mapped(range, Attributes::new(access, Charging::ByMapping));
        released -= if access == Access::None { 0 } else { new_pages as i64 };
    }
    (result, released)
}
