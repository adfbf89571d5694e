//! The thread that talks with the keeper, and has the descriptors for it in a table of its own.
//!
//! Beside the connection it keeps the userfaultfd open: should the keeper be killed, pages that are out must not read as
//! zeroes before this process ends. A second thread waits for that end of the connection alone.

use super::pieces::Piece;
use crate::call::kernel;
use crate::range::bytes;
use pagetide::group::{Field, ProcessSlot};
use pagetide_page::{PAGE_SIZE, PageIndex};
use pagetide_sys::engine_thread::Spawner;
use pagetide_sys::handout::{self, Thing};
use pagetide_sys::keeper::wire::{self, Ask};
use pagetide_sys::signals::SignalsBlocked;
use pagetide_sys::uffd::Uffd;
use pagetide_sys::{lock, task, wait};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use std::ffi::c_int;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::sync::{Arc, Condvar, Mutex};

pub(crate) const MREMAP_DONTUNMAP: c_int = 4;
const ACCESS: c_int = libc::PROT_READ | libc::PROT_WRITE;
/// What of a program's flags goes into a mapping of an object.
const KEPT_FLAGS: c_int = libc::MAP_FIXED | libc::MAP_FIXED_NOREPLACE | libc::MAP_32BIT | libc::MAP_NORESERVE;

type Job = Box<dyn FnOnce(&mut Link) + Send>;

/// A handle on the thread.
pub(crate) struct Agent {
    jobs: Arc<Jobs>,
}

#[derive(Default)]
struct Jobs {
    queue: Mutex<Vec<Job>>,
    come: Condvar,
}

/// A result that one thread waits for and another gives.
struct Answer<T> {
    value: Mutex<Option<T>>,
    given: Condvar,
}

impl<T> Answer<T> {
    fn new() -> Arc<Self> {
        Arc::new(Self { value: Mutex::new(None), given: Condvar::new() })
    }

    fn give(&self, value: T) {
        *lock(&self.value) = Some(value);
        self.given.notify_all();
    }

    fn await_it(&self) -> T {
        let mut value = lock(&self.value);
        loop {
            match value.take() {
                Some(value) => return value,
                None => value = wait(&self.given, value),
            }
        }
    }
}

/// The connection to the keeper.
struct Link {
    connection: Arc<OwnedFd>,
    _uffd: Uffd,
    /// A file that is about to become an object, open for reading and writing.
    pending: Option<OwnedFd>,
}

/// A descriptor of the program, which has another table than the agent: the thread that has it, and its number.
#[derive(Clone, Copy)]
pub(crate) struct Foreign {
    pub(crate) tid: u32,
    pub(crate) fd: c_int,
}

impl Foreign {
    fn open(self, flags: OFlags) -> Result<OwnedFd, Errno> {
        let path = format!("/proc/self/task/{}/fd/{}", self.tid, self.fd);
        rustix::fs::open(path, flags | OFlags::CLOEXEC, Mode::empty())
    }
}

/// A file that is an object.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Found {
    pub(crate) first: PageIndex,
    pub(crate) pages: u64,
    /// Whether it is the kernel's alone again.
    pub(crate) retired: bool,
}

/// Where and how a part of an object is to be mapped.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wanted {
    pub(crate) address: usize,
    pub(crate) count: usize,
    pub(crate) flags: c_int,
    pub(crate) piece: Piece,
}

impl Agent {
    /// Starts the thread by `spawn`, and joins the keeper. `None` if that cannot be had. `close` is called when the keeper has
    /// ended, before this process is.
    pub(crate) fn start(
        slot: ProcessSlot,
        spawn: Spawner,
        close: impl Fn() + Send + 'static,
    ) -> Option<Self> {
        let _signals = SignalsBlocked::new();
        let jobs = Arc::new(Jobs::default());
        let joined = Answer::new();
        let (given, queue) = (Arc::clone(&joined), Arc::clone(&jobs));
        let run = move || match Link::join(slot, spawn, close) {
            Ok(mut link) => {
                given.give(true);
                link.serve(&queue);
            }
            Err(error) => {
                pagetide_sys::log!(Info, "shared memory stays in memory: {}", std::io::Error::from(error));
                given.give(false);
            }
        };
        spawn("pagetide-share", Box::new(run)).ok()?;
        joined.await_it().then_some(Self { jobs })
    }

    fn run<T: Send + 'static>(&self, job: impl FnOnce(&mut Link) -> T + Send + 'static) -> T {
        let answer = Answer::new();
        let to = Arc::clone(&answer);
        lock(&self.jobs.queue).push(Box::new(move |link| to.give(job(link))));
        self.jobs.come.notify_one();
        answer.await_it()
    }

    /// Tells the keeper something. If it has ended, so does this process: see [`await_end`].
    fn tell(&self, ask: Ask, numbers: [u64; 4]) {
        let _ = self.run(move |link| link.ask(ask, numbers));
    }

    /// Maps a new object. Returns its address and first page; `None` if the kernel is to map instead.
    pub(crate) fn create(
        &self,
        address: usize,
        count: usize,
        protection: c_int,
        flags: c_int,
    ) -> Option<Result<(usize, PageIndex), c_int>> {
        self.run(move |link| link.create(address, count, protection, flags))
    }

    /// Opens a file of the program anew, before the program's own descriptors of it are closed.
    pub(crate) fn reopen(&self, file: Foreign) -> Result<(), Errno> {
        self.run(move |link| {
            link.pending = Some(file.open(OFlags::RDWR)?);
            Ok(())
        })
    }

    /// Has the keeper make an object of the file that was opened anew, whose only descriptor that is.
    pub(crate) fn adopt(&self) -> Result<(), Errno> {
        self.run(|link| {
            let file = link.pending.take().ok_or(Errno::BADF)?;
            link.look_up(Ask::Adopt, &file).map(drop)
        })
    }

    /// Has all of an object come into memory and be left to the kernel. False if that could not be done.
    pub(crate) fn retire(&self, file: Foreign) -> bool {
        let retire = |link: &Link, found: Found| match found.retired {
            true => Ok([0; 4]),
            false => link.ask(Ask::Retire, [found.first.0, 0, 0, 0]),
        };
        self.run(move |link| link.with_object(file, retire)).is_ok()
    }

    /// Has the contents of a part of the object of a file go. False if that could not be done.
    pub(crate) fn punch(&self, file: Foreign, pages: Range<u64>) -> bool {
        let punch = move |link: &Link, found: Found| {
            match pages.end.min(found.pages).checked_sub(pages.start) {
                _ if found.retired => Err(Errno::NOENT),
                // Beyond the end there is nothing.
                None | Some(0) => Ok([0; 4]),
                Some(count) => link.ask(Ask::Discard, [found.first.plus(pages.start).0, count, 0, 0]),
            }
        };
        self.run(move |link| link.with_object(file, punch)).is_ok()
    }

    /// Maps the part of the object of a file that `choose` names. Returns its address, and what is mapped there; `None` if
    /// the kernel is to map instead.
    pub(crate) fn map(
        &self,
        file: Foreign,
        choose: impl FnOnce(Found) -> Option<Wanted> + Send + 'static,
    ) -> Option<Result<(usize, Piece), c_int>> {
        let map = |link: &Link, found: Found| {
            Ok(choose(found).and_then(|wanted| Some((link.map_part(wanted)?, wanted.piece))))
        };
        self.run(move |link| {
            let (mapped, piece) = link.with_object(file, map).ok()??;
            Some(mapped.map(|start| (start, piece)))
        })
    }

    /// Maps a piece once more, with so many pages.
    pub(crate) fn map_again(&self, piece: Piece, to: Option<usize>, pages: u64) -> Result<usize, c_int> {
        self.run(move |link| link.map_again(piece, to, pages))
    }

    /// Attaches a range anew, which could not be unmapped after all.
    pub(crate) fn open_again(&self, range: &Range<PageIndex>, piece: Piece) {
        let (start, length) = bytes(range);
        let _ = self.run(move |link| link.open(start, length, piece.page, piece.protection));
    }

    /// Tells the keeper that a range was unmapped.
    pub(crate) fn detach(&self, range: &Range<PageIndex>) {
        let (start, length) = bytes(range);
        self.tell(Ask::Detach, [start as u64, length as u64, 0, 0]);
    }

    /// Has the contents of pages go.
    pub(crate) fn discard(&self, page: PageIndex, count: u64) {
        self.tell(Ask::Discard, [page.0, count, 0, 0]);
    }

    /// Has pages stay in memory, if the cap leaves room for that.
    pub(crate) fn hold(&self, page: PageIndex, count: u64) -> bool {
        let held = self.run(move |link| link.ask(Ask::Lock, [page.0, count, 0, 0]));
        held != Err(Errno::NOMEM)
    }

    /// Has all that is mapped kept for a child that is about to be forked.
    pub(crate) fn fork(&self, child: ProcessSlot) {
        let (index, tenancy) = (child.index() as u64, child.get(Field::Tenancy));
        self.tell(Ask::Fork, [index, tenancy, 0, 0]);
    }

    /// Maps what the parent had. Returns whether all of it is there.
    pub(crate) fn inherit(&self, pieces: impl Iterator<Item = (Range<PageIndex>, Piece)>) -> bool {
        let pieces: Vec<_> = pieces.collect();
        self.run(move |link| {
            let result = pieces.into_iter().try_for_each(|(range, piece)| link.inherit(&range, piece));
            let _ = link.ask(Ask::Settle, [0; 4]);
            if let Err(error) = result {
                pagetide_sys::log!(Error, "shared memory of the parent: {}", std::io::Error::from(error));
            }
            result.is_ok()
        })
    }
}

fn errno(error: c_int) -> Errno {
    Errno::from_raw_os_error(error)
}

/// Takes the access to a range away.
pub(crate) fn close(range: &Range<PageIndex>) -> Result<(), c_int> {
    protect(range.start.address(), bytes(range).1, libc::PROT_NONE).map_err(Errno::raw_os_error)
}

/// Unmaps a range.
pub(crate) fn unmap(range: &Range<PageIndex>) -> Result<usize, c_int> {
    let (start, length) = bytes(range);
    // SAFETY: the program has asked for it.
    unsafe { kernel(libc::SYS_munmap, [start, length, 0, 0, 0, 0]) }
}

/// Maps a range without access, so that nothing else comes there: with `MAP_FIXED_NOREPLACE` where nothing is mapped, with
/// `MAP_FIXED` in place of what is.
pub(crate) fn reserve(range: &Range<PageIndex>, fixed: c_int) -> Result<(), c_int> {
    let (start, length) = bytes(range);
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | fixed;
    let arguments = [start, length, libc::PROT_NONE as usize, flags as usize, usize::MAX, 0];
    // SAFETY: nothing is replaced unless the program has asked for it.
    unsafe { kernel(libc::SYS_mmap, arguments) }.map(drop)
}

fn protect(start: usize, length: usize, protection: c_int) -> Result<(), Errno> {
    // SAFETY: the range maps shared memory of the program, which has asked for that access, or is about to end.
    let result = unsafe { kernel(libc::SYS_mprotect, [start, length, protection as usize, 0, 0, 0]) };
    result.map(drop).map_err(errno)
}

/// Maps pages of a memfd without access, and not for children.
fn map(memfd: RawFd, offset: u64, address: usize, length: usize, flags: c_int) -> Result<usize, c_int> {
    let flags = libc::MAP_SHARED | flags;
    let offset = offset as usize * PAGE_SIZE;
    let arguments = [address, length, libc::PROT_NONE as usize, flags as usize, memfd as usize, offset];
    // SAFETY: the program has asked for a mapping there; nothing else is replaced unless it has asked for that too.
    let start = unsafe { kernel(libc::SYS_mmap, arguments)? };
    let advice = [start, length, libc::MADV_DONTFORK as usize, 0, 0, 0];
    // SAFETY: the mapping is new.
    if let Err(error) = unsafe { kernel(libc::SYS_madvise, advice) } {
        drop_mapping(start, length);
        return Err(error);
    }
    Ok(start)
}

fn drop_mapping(start: usize, length: usize) {
    // SAFETY: the callers have mapped it just now, and nobody knows it.
    let _ = unsafe { kernel(libc::SYS_munmap, [start, length, 0, 0, 0, 0]) };
}

impl Link {
    fn join(slot: ProcessSlot, spawn: Spawner, close: impl Fn() + Send + 'static) -> Result<Self, Errno> {
        pagetide_sys::log::leave();
        // SAFETY: the thread is new and has used no descriptor.
        let _ = unsafe { task::leave_descriptor_table() };
        let connection = Arc::new(handout::ask(Thing::Keeper)?);
        let uffd = Uffd::open_for_shared()?;
        let numbers = [uffd.features(), slot.index() as u64 + 1, slot.get(Field::Tenancy), 0];
        wire::call(&connection, Ask::Join, numbers, Some(uffd.descriptor()))?;
        let watched = Arc::clone(&connection);
        let watch = move || {
            await_end(&watched);
            close();
            task::say("the keeper of the run's shared memory has ended: this process ends");
            task::kill_self();
        };
        spawn("pagetide-watch", Box::new(watch)).map_err(|_| Errno::AGAIN)?;
        Ok(Self { connection, _uffd: uffd, pending: None })
    }

    fn serve(&mut self, jobs: &Jobs) {
        loop {
            let job = {
                let mut queue = lock(&jobs.queue);
                loop {
                    if !queue.is_empty() {
                        break queue.remove(0);
                    }
                    queue = wait(&jobs.come, queue);
                }
            };
            job(self);
        }
    }

    fn ask(&self, ask: Ask, numbers: [u64; 4]) -> Result<[u64; 4], Errno> {
        wire::call(&self.connection, ask, numbers, None).map(|(numbers, _)| numbers)
    }

    fn create(
        &mut self,
        address: usize,
        count: usize,
        protection: c_int,
        flags: c_int,
    ) -> Option<Result<(usize, PageIndex), c_int>> {
        let asked = wire::call(&self.connection, Ask::Create, [count as u64, 0, 0, 0], None);
        let Ok(([first, ..], Some(memfd))) = asked else { return None };
        let first = PageIndex(first);
        let length = count * PAGE_SIZE;
        let mapped = map(memfd.as_raw_fd(), 0, address, length, flags & KEPT_FLAGS);
        let attached = mapped.map(|start| self.open(start, length, first, protection).map(|()| start));
        let _ = self.ask(Ask::Settle, [0; 4]);
        match attached {
            Err(error) => Some(Err(error)),
            Ok(Err(_)) => None,
            Ok(Ok(start)) => Some(Ok((start, first))),
        }
    }

    /// Does something with the object of a file, which is kept meanwhile.
    fn with_object<T>(
        &self,
        file: Foreign,
        act: impl FnOnce(&Self, Found) -> Result<T, Errno>,
    ) -> Result<T, Errno> {
        let file = file.open(OFlags::PATH)?;
        let found = self.look_up(Ask::Find, &file)?;
        let result = act(self, found);
        let _ = self.ask(Ask::Settle, [0; 4]);
        result
    }

    fn look_up(&self, ask: Ask, file: &OwnedFd) -> Result<Found, Errno> {
        let ([first, pages, retired, _], _) = wire::call(&self.connection, ask, [0; 4], Some(file.as_fd()))?;
        Ok(Found { first: PageIndex(first), pages, retired: retired != 0 })
    }

    fn map_part(&self, Wanted { address, count, flags, piece }: Wanted) -> Option<Result<usize, c_int>> {
        let memfd = self.memfd(piece.object).ok()?;
        let (length, offset) = (count * PAGE_SIZE, piece.page.0 - piece.object.0);
        match map(memfd.as_raw_fd(), offset, address, length, flags & KEPT_FLAGS) {
            Err(error) => Some(Err(error)),
            Ok(start) => self.open(start, length, piece.page, piece.protection).ok().map(|()| Ok(start)),
        }
    }

    /// Attaches a new mapping, and opens it. If that fails it is not there any more.
    fn open(&self, start: usize, length: usize, page: PageIndex, protection: c_int) -> Result<(), Errno> {
        let opened = self.ask(Ask::Attach, [start as u64, length as u64, page.0, 0]).and_then(|_| {
            // Access that the kernel does not know is not there.
            protect(start, length, protection & (ACCESS | libc::PROT_EXEC))
        });
        if opened.is_err() {
            let _ = self.ask(Ask::Detach, [start as u64, length as u64, 0, 0]);
            drop_mapping(start, length);
        }
        opened.map(drop)
    }

    /// The memfd of an object. It is open for as long as the call that needs it: an object lives while somebody has
    /// its memfd open, and pages that are in memory then are counted by nobody.
    fn memfd(&self, object: PageIndex) -> Result<OwnedFd, Errno> {
        let (_, memfd) = wire::call(&self.connection, Ask::Open, [object.0, 0, 0, 0], None)?;
        memfd.ok_or(Errno::BADMSG)
    }

    fn map_again(&mut self, piece: Piece, to: Option<usize>, pages: u64) -> Result<usize, c_int> {
        let memfd = self.memfd(piece.object).map_err(Errno::raw_os_error)?;
        let (length, offset) = (pages as usize * PAGE_SIZE, piece.page.0 - piece.object.0);
        let flags = if to.is_some() { libc::MAP_FIXED } else { 0 };
        let start = map(memfd.as_raw_fd(), offset, to.unwrap_or(0), length, flags)?;
        self.open(start, length, piece.page, piece.protection).map_err(Errno::raw_os_error)?;
        Ok(start)
    }

    fn inherit(&mut self, range: &Range<PageIndex>, piece: Piece) -> Result<(), Errno> {
        let memfd = self.memfd(piece.object)?;
        let (start, length) = bytes(range);
        let offset = piece.page.0 - piece.object.0;
        // In place of what the child has reserved.
        map(memfd.as_raw_fd(), offset, start, length, libc::MAP_FIXED).map_err(errno)?;
        self.open(start, length, piece.page, piece.protection)
    }
}

/// Waits until nobody is at the other end of a connection.
fn await_end(connection: &OwnedFd) {
    loop {
        let mut polled = [PollFd::from_borrowed_fd(connection.as_fd(), PollFlags::empty())];
        if poll(&mut polled, None).is_ok() && polled[0].revents().intersects(PollFlags::HUP | PollFlags::ERR)
        {
            return;
        }
    }
}
