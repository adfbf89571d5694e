//! Files that are objects of shared memory: memfds, and files of tmpfs that the run made.
//!
//! A file becomes an object when it is mapped shared for the first time. From then on the keeper has its only open file
//! description; each descriptor that the program has of it is replaced by a *front*, an O_PATH descriptor of the same file,
//! by which the kernel reads, writes and maps nothing (EBADF). So whatever a program does past this library, nobody reads a
//! hole. Calls that the library sees and that fail so are made once more after the file was *laid open*: all of it is
//! in memory, the kernel's alone from then on, and the fronts are ordinary descriptors again.
//!
//! A front with O_NOFOLLOW is of a file that was opened for reading alone.

use super::agent::{Agent, Foreign, Found, Wanted};
use super::fds::{close, descriptor_flags, is_same, numbers, reopen, replace, stat};
use super::memfds::is_leasable;
use super::pieces::Piece;
use super::{State, Vacated, object_min, state_or_new};
use crate::call::kernel;
use crate::current::managed;
use pagetide::process::Process;
use pagetide_page::{PAGE_SIZE, PageIndex};
use pagetide_sys::lock;
use pagetide_sys::mapped_files::FileId;
use pagetide_sys::task;
use rustix::fs::Stat;
use std::ffi::{CStr, c_char, c_int};
use std::io::Write;
use std::os::fd::BorrowedFd;
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::Ordering::Relaxed;

/// Files that could not become objects and are remembered, so that it is not tried at each mapping.
const REFUSED: usize = 64;
const TMPFS_MAGIC: i64 = 0x0102_1994;

static FILES: Mutex<Files> = Mutex::new(Files { adopted: Vec::new(), refused: Vec::new() });

/// What the process knows of files.
struct Files {
    adopted: Vec<Adopted>,
    refused: Vec<FileId>,
}

/// A file of this process that has become an object.
struct Adopted {
    file: FileId,
    /// Descriptors by which it was opened since, each a description of its own.
    opened: Vec<c_int>,
    /// What is needed to open again those that were replaced.
    position: usize,
    flags: c_int,
    /// Its name, if it has one.
    name: Option<PathBuf>,
}

fn is_of_tmpfs(fd: c_int) -> bool {
    // SAFETY: as above.
    let fd = unsafe { BorrowedFd::borrow_raw(fd) };
    rustix::fs::fstatfs(fd).is_ok_and(|found| found.f_type == TMPFS_MAGIC)
}

fn is_regular(stat: &Stat) -> bool {
    stat.st_mode & libc::S_IFMT == libc::S_IFREG
}

/// Whether the calling program has locks on a file, which would end with its descriptors.
fn has_locks(file: FileId) -> bool {
    let Ok(locks) = std::fs::read_to_string("/proc/locks") else { return true };
    let name = format!(" {:02x}:{:02x}:{} ", file.device.0, file.device.1, file.inode);
    locks.contains(&name)
}

/// What a program asks `mmap` for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mapping {
    pub(crate) address: usize,
    pub(crate) length: usize,
    pub(crate) protection: c_int,
    pub(crate) flags: c_int,
    pub(crate) fd: c_int,
    pub(crate) offset: i64,
}

impl Adopted {
    /// Whether descriptors, which are one description, are those that were replaced, or copies.
    fn had(&self, group: &[(c_int, c_int)]) -> bool {
        !group.iter().any(|(number, _)| self.opened.contains(number))
    }
}

impl Mapping {
    fn is_shared(&self) -> bool {
        matches!(self.flags & libc::MAP_TYPE, libc::MAP_SHARED | libc::MAP_SHARED_VALIDATE)
    }

    /// Whether it maps memory that others may share, and no file of a disk or a device.
    pub(super) fn is_shared_memory(&self) -> bool {
        self.is_shared() && (self.flags & libc::MAP_ANONYMOUS != 0 || self.fd >= 0 && is_of_tmpfs(self.fd))
    }

    /// Whether a mapping of this kind is to be served.
    fn is_wanted(&self) -> bool {
        const UNFIT: c_int = libc::MAP_LOCKED | libc::MAP_GROWSDOWN | libc::MAP_SYNC;
        self.is_shared()
            && self.flags & UNFIT == 0
            && self.protection & libc::PROT_EXEC == 0
            && self.length > 0
            && usize::try_from(self.offset).is_ok_and(|offset| offset.is_multiple_of(PAGE_SIZE))
    }

    fn count(&self) -> u64 {
        self.length.div_ceil(PAGE_SIZE) as u64
    }

    fn first(&self) -> u64 {
        self.offset as u64 / PAGE_SIZE as u64
    }
}

/// Maps a part of a file that is an object, or becomes one. `None` if the kernel is to do it, which finds an ordinary
/// descriptor.
pub(crate) fn map(process: &'static Process, mapping: Mapping) -> Option<Result<usize, c_int>> {
    let Mapping { fd, flags, length, .. } = mapping;
    if flags & libc::MAP_ANONYMOUS != 0 || fd < 0 {
        return None;
    }
    let least = object_min(process);
    let may_begin = mapping.is_wanted() && length >= least && process.is_current();
    if !may_begin && !process.group().serves_files() {
        return None;
    }
    let stat = stat(fd).filter(is_regular)?;
    let opened_by = descriptor_flags(fd).ok()?;
    let is_front = opened_by & libc::O_PATH != 0 && is_of_tmpfs(fd);
    if is_front {
        {
            // Another thread may be about to make it one.
            let _entered = process.enter();
            drop(lock(&FILES));
        }
        let mapped = mapping.is_wanted().then(|| map_front(process, mapping, opened_by, &stat)).flatten();
        if mapped.is_none() {
            lay_open(process, fd);
        }
        return mapped;
    }
    let fits = may_begin
        && opened_by & (libc::O_ACCMODE | libc::O_PATH) == libc::O_RDWR
        && stat.st_size as usize >= least
        && stat.st_blksize as usize == PAGE_SIZE
        && (mapping.first() + mapping.count()) * PAGE_SIZE as u64
            <= (stat.st_size as u64).next_multiple_of(PAGE_SIZE as u64)
        && is_of_tmpfs(fd)
        && is_leasable(&stat)
        && !process.locks_new();
    if !fits {
        return None;
    }
    {
        let _entered = process.enter();
        if lock(&FILES).refused.contains(&FileId::of(&stat)) {
            return None;
        }
        let agent = state_or_new().agent(process)?;
        adopt(agent, fd, opened_by, FileId::of(&stat))?;
    }
    map_front(process, mapping, opened_by, &stat).or_else(|| {
        lay_open(process, fd);
        None
    })
}

/// Makes an object of a file, whose descriptors are fronts from then on. `None` if that cannot be: they are as before.
fn adopt(agent: &Agent, fd: c_int, opened_by: c_int, file: FileId) -> Option<()> {
    let mut files = lock(&FILES);
    if is_front(fd) {
        // Another thread was here first.
        return Some(());
    }
    let refuse = |files: &mut Files| {
        if files.refused.len() == REFUSED {
            files.refused.remove(0);
        }
        files.refused.push(file);
        None
    };
    let numbers = numbers(file)?;
    if !numbers.iter().all(|&number| is_same(fd, number)) || has_locks(file) {
        return refuse(&mut files);
    }
    // SAFETY: no memory is passed.
    let position =
        unsafe { kernel(libc::SYS_lseek, [fd as usize, 0, libc::SEEK_CUR as usize, 0, 0, 0]) }.ok()?;
    let name = std::fs::read_link(format!("/proc/thread-self/fd/{fd}")).ok();
    let front = reopen(fd, libc::O_PATH).ok()?;
    if agent.reopen(Foreign { tid: task::tid(), fd }).is_err() {
        close(front);
        return refuse(&mut files);
    }
    // One that somebody has closed meanwhile is not there, or is another file's.
    let is_still = |number: c_int| stat(number).is_some_and(|stat| FileId::of(&stat) == file);
    numbers.iter().filter(|&&number| is_still(number)).for_each(|&number| _ = replace(number, front));
    close(front);
    let adopted = Adopted { file, opened: Vec::new(), position, flags: opened_by, name };
    match agent.adopt() {
        Ok(()) => {
            files.adopted.push(adopted);
            Some(())
        }
        Err(error) => {
            pagetide_sys::log!(Debug, "a file stays as it is: {}", std::io::Error::from(error));
            if !open_again(fd, file, Some(&adopted)) {
                task::say("cannot open a file again that was to be shared memory: its descriptors are lost");
            }
            refuse(&mut files)
        }
    }
}

/// Maps a part of an object by a front. `None` if the kernel is to do it.
fn map_front(
    process: &'static Process,
    mapping: Mapping,
    opened_by: c_int,
    stat: &Stat,
) -> Option<Result<usize, c_int>> {
    if !process.group().is_served(FileId::of(stat)) || process.locks_new() || !process.is_current() {
        return None;
    }
    let read_only = opened_by & libc::O_PATH != 0 && opened_by & libc::O_NOFOLLOW != 0;
    if read_only && mapping.protection & libc::PROT_WRITE != 0 {
        return Some(Err(libc::EACCES));
    }
    let Mapping { address, length, protection, flags, fd, .. } = mapping;
    let state = state_or_new();
    let mut vacated = Vacated::new(process);
    let entered = process.enter();
    let agent = state.agent(process)?;
    if let Err(error) = vacated.vacate(&entered, &mapping) {
        return Some(Err(error));
    }
    let mut list = lock(&state.pieces);
    let file = Foreign { tid: task::tid(), fd };
    let choose = move |found: Found| {
        let page = found.first.plus(mapping.first());
        let piece = Piece { object: found.first, page, protection, omit: false, read_only };
        let fits = !found.retired && mapping.first() + mapping.count() <= found.pages;
        fits.then_some(Wanted { address, count: mapping.count() as usize, flags, piece })
    };
    let (start, piece) = match agent.map(file, choose)? {
        Ok(mapped) => mapped,
        Err(error) => return Some(Err(error)),
    };
    let range = PageIndex::of_address(start)..PageIndex::of_address(start).plus(mapping.count());
    list.insert(range.clone(), piece);
    state.any.store(true, Relaxed);
    drop(list);
    drop(entered);
    if flags & libc::MAP_POPULATE != 0 {
        task::populate(range.start.address(), length.next_multiple_of(PAGE_SIZE));
    }
    Some(Ok(start))
}

/// Whether a call that has failed with EBADF is to be made again: the descriptor was a front, and is ordinary now.
pub(crate) fn laid_open(fd: c_int) -> bool {
    let Some(process) = managed().filter(|process| fd >= 0 && process.group().serves_files()) else {
        return false;
    };
    if is_front(fd) {
        return lay_open(process, fd);
    }
    // Another thread may have opened it since the call failed.
    stat(fd).is_some_and(|stat| is_regular(&stat)) && is_of_tmpfs(fd)
}

/// Whether a descriptor is a front of an object.
pub(crate) fn is_object(fd: c_int) -> bool {
    let served = |process: &'static Process| {
        process.group().serves_files()
            && is_front(fd)
            && stat(fd).is_some_and(|stat| process.group().is_served(FileId::of(&stat)))
    };
    managed().is_some_and(served)
}

/// Whether a front stands for a descriptor for reading and writing.
pub(crate) fn is_writable_front(fd: c_int) -> bool {
    descriptor_flags(fd).is_ok_and(|flags| flags & (libc::O_PATH | libc::O_NOFOLLOW) == libc::O_PATH)
}

/// Has whole pages of a front's object go, as `fallocate` does by FALLOC_FL_PUNCH_HOLE. False if the call needs an
/// ordinary descriptor: parts of pages, or what was opened for reading alone.
pub(crate) fn punch(fd: c_int, offset: i64, length: i64) -> bool {
    let page = PAGE_SIZE as i64;
    let is_whole = offset >= 0 && length > 0 && offset % page == 0 && length % page == 0;
    let is_served = || is_writable_front(fd) && is_object(fd);
    let Some(process) = managed().filter(|_| is_whole && is_served()) else { return false };
    let Some(end) = offset.checked_add(length) else { return false };
    let _entered = process.enter();
    let file = Foreign { tid: task::tid(), fd };
    let pages = (offset / page) as u64..(end / page) as u64;
    state_or_new().agent(process).is_some_and(|agent| agent.punch(file, pages))
}

/// The length of a file.
pub(crate) fn size(fd: c_int) -> Option<i64> {
    stat(fd).map(|stat| stat.st_size)
}

/// Whether a descriptor may be a front.
pub(crate) fn is_front(fd: c_int) -> bool {
    descriptor_flags(fd).is_ok_and(|flags| flags & libc::O_PATH != 0)
        && stat(fd).is_some_and(|stat| is_regular(&stat))
        && is_of_tmpfs(fd)
}

/// Has all of a front's object come into memory, and opens its descriptors again. Returns whether it was one.
fn lay_open(process: &'static Process, fd: c_int) -> bool {
    // Nobody has made an object of a file: there are no fronts.
    if !process.group().serves_files() {
        return false;
    }
    let _entered = process.enter();
    let Some(agent) = state_or_new().agent(process) else { return false };
    let files = lock(&FILES);
    let Some(stat) = stat(fd) else { return false };
    let file = FileId::of(&stat);
    if !is_front(fd) {
        // Another thread was here first.
        return true;
    }
    if !agent.retire(Foreign { tid: task::tid(), fd }) {
        return false;
    }
    let adopted = files.adopted.iter().find(|adopted| adopted.file == file);
    open_again(fd, file, adopted)
}

/// Opens the fronts of a file again: those that were one open file description are one.
fn open_again(fd: c_int, file: FileId, adopted: Option<&Adopted>) -> bool {
    let mut left: Vec<(c_int, c_int)> = numbers(file)
        .unwrap_or_else(|| vec![fd])
        .into_iter()
        .filter_map(|number| Some((number, descriptor_flags(number).ok()?)))
        .filter(|(_, flags)| flags & libc::O_PATH != 0)
        .collect();
    let mut done = false;
    while let Some(&(first, flags)) = left.first() {
        let (group, rest): (Vec<_>, Vec<_>) =
            left.into_iter().partition(|&(number, _)| is_same(first, number));
        left = rest;
        let before = adopted.filter(|adopted| adopted.had(&group));
        let kept = libc::O_APPEND | libc::O_NONBLOCK | libc::O_NOATIME | libc::O_DSYNC | libc::O_SYNC;
        let access = if flags & libc::O_NOFOLLOW != 0 { libc::O_RDONLY } else { libc::O_RDWR };
        let Ok(opened) = reopen(first, access | before.map_or(0, |before| before.flags & kept)) else {
            continue;
        };
        if let Some(before) = before {
            let arguments = [opened as usize, before.position, libc::SEEK_SET as usize, 0, 0, 0];
            // SAFETY: no memory is passed.
            let _ = unsafe { kernel(libc::SYS_lseek, arguments) };
        }
        for (number, _) in group {
            done |= replace(number, opened).is_ok() && number == fd;
        }
        close(opened);
    }
    done
}

/// A front for a file that is an object and is about to be opened. `None` if the kernel is to open it, which it does when
/// the object has come into memory.
///
/// # Safety
/// `path` is a C string.
pub(crate) unsafe fn open_front(directory: c_int, path: *const c_char, flags: c_int) -> Option<c_int> {
    let process = managed().filter(|process| process.group().serves_files())?;
    const SERVED: c_int =
        libc::O_ACCMODE | libc::O_CREAT | libc::O_CLOEXEC | libc::O_NOCTTY | libc::O_NOFOLLOW | O_LARGEFILE;
    let makes = flags & (libc::O_CREAT | libc::O_EXCL) == libc::O_CREAT | libc::O_EXCL;
    if makes || flags & (libc::O_PATH | libc::O_DIRECTORY) != 0 {
        return None;
    }
    let access = flags & libc::O_ACCMODE;
    let open = |mark: c_int| {
        let opening = libc::O_PATH | libc::O_CLOEXEC | mark;
        let arguments = [directory as usize, path.addr(), opening as usize, 0, 0, 0];
        // SAFETY: the caller's contract.
        let front = unsafe { kernel(libc::SYS_openat, arguments) }.ok()? as c_int;
        let is_served =
            stat(front).is_some_and(|stat| is_regular(&stat) && process.group().is_served(FileId::of(&stat)));
        if is_served {
            return Some(front);
        }
        close(front);
        None
    };
    let found = open(flags & libc::O_NOFOLLOW)?;
    let is_plain = flags & !SERVED == 0 && may_access(found, access);
    // A front for writing has no such mark, and one for reading has it.
    let mark = if access == libc::O_RDONLY { libc::O_NOFOLLOW } else { 0 };
    let is_wanted = is_plain && matches!(access, libc::O_RDONLY | libc::O_RDWR);
    let is_front = is_wanted && (flags & libc::O_NOFOLLOW == mark || remark(found, open(mark)));
    if !is_front {
        if may_access(found, access) {
            // Whoever does not wait for the lease (O_NONBLOCK) finds none.
            lay_open(process, found);
        }
        close(found);
        return None;
    }
    let front = found;
    if flags & libc::O_CLOEXEC == 0 {
        // SAFETY: no memory is passed.
        let _ = unsafe { kernel(libc::SYS_fcntl, [front as usize, libc::F_SETFD as usize, 0, 0, 0, 0]) };
    }
    let file = stat(front).map(|stat| FileId::of(&stat));
    let _entered = process.enter();
    let mut files = lock(&FILES);
    let adopted = files.adopted.iter_mut().filter(|adopted| Some(adopted.file) == file);
    adopted.for_each(|adopted| adopted.opened.push(front));
    Some(front)
}

/// Puts a front with the right mark into the place of one, whose number is the lowest that was free.
fn remark(front: c_int, by: Option<c_int>) -> bool {
    by.is_some_and(|by| {
        let replaced = replace(front, by).is_ok();
        close(by);
        replaced
    })
}

/// Whether the program may open a file so.
fn may_access(fd: c_int, access: c_int) -> bool {
    let mode = match access {
        libc::O_RDONLY => libc::R_OK,
        libc::O_WRONLY => libc::W_OK,
        _ => libc::R_OK | libc::W_OK,
    };
    let flags = libc::AT_EMPTY_PATH | libc::AT_EACCESS;
    let arguments = [fd as usize, c"".as_ptr().addr(), mode as usize, flags as usize, 0, 0];
    // SAFETY: the path is a C string.
    unsafe { kernel(libc::SYS_faccessat2, arguments) }.is_ok()
}

/// What `F_GETFL` says of a descriptor: of a front, what it would say if it were none.
pub(crate) fn shown_flags(fd: c_int, flags: c_int) -> c_int {
    let served = |process: &&'static Process| {
        process.group().serves_files()
            && stat(fd).is_some_and(|stat| process.group().is_served(FileId::of(&stat)))
    };
    let Some(process) = managed().filter(|_| flags & libc::O_PATH != 0).filter(served) else { return flags };
    let _entered = process.enter();
    let access = if flags & libc::O_NOFOLLOW != 0 { libc::O_RDONLY } else { libc::O_RDWR };
    let file = stat(fd).map(|stat| FileId::of(&stat));
    let files = lock(&FILES);
    let before = files.adopted.iter().find(|adopted| Some(adopted.file) == file && adopted.had(&[(fd, 0)]));
    before.map_or(access | O_LARGEFILE, |before| before.flags)
}

/// What the kernel shows of every file that was opened by a program of 64 bits.
const O_LARGEFILE: c_int = 0o100_000;

/// Lays the fronts among the descriptors of a message open: who receives them may be none of ours.
///
/// # Safety
/// `message` is null or a message as `sendmsg` takes it.
pub(crate) unsafe fn lay_open_sent(message: *const libc::msghdr) {
    let Some(process) = managed().filter(|process| process.group().serves_files()) else { return };
    if message.is_null() {
        return;
    }
    // SAFETY: the caller's contract; the macros stay within the control buffer.
    unsafe {
        let mut header = libc::CMSG_FIRSTHDR(message);
        while !header.is_null() {
            if (*header).cmsg_level == libc::SOL_SOCKET && (*header).cmsg_type == libc::SCM_RIGHTS {
                let length = ((*header).cmsg_len).saturating_sub(libc::CMSG_LEN(0) as usize);
                let data = libc::CMSG_DATA(header).cast::<c_int>();
                for nth in 0..length / size_of::<c_int>() {
                    let fd = data.add(nth).read_unaligned();
                    if fd >= 0 && is_front(fd) {
                        lay_open(process, fd);
                    }
                }
            }
            header = libc::CMSG_NXTHDR(message, header);
        }
    }
}

impl State {
    /// Takes the names of files away whose pages are lost with the keeper: who opened them would read zeroes.
    pub(super) fn forget_names() {
        for adopted in lock(&FILES).adopted.iter() {
            let Some(name) = &adopted.name else { continue };
            if rustix::fs::stat(name).is_ok_and(|stat| FileId::of(&stat) == adopted.file) {
                let _ = rustix::fs::unlink(name);
            }
        }
    }
}

/// The path of a POSIX shared memory object, as the C library makes it: a C string.
pub(crate) fn shm_path(name: &CStr, path: &mut [u8; 300]) -> bool {
    let name = name.to_bytes();
    let name = &name[name.iter().take_while(|&&byte| byte == b'/').count()..];
    let fits = !name.is_empty() && name.len() < 255 && !name.contains(&b'/');
    fits && write!(&mut path[..], "/dev/shm/").is_ok() && (&mut path[9..]).write_all(name).is_ok()
}
