//! The swap file: unlinked at birth, read and written past the page cache where the file system allows.
//!
//! Requests go through io_uring where the system allows that, and through a few threads of positioned
//! reads and writes where not (container engines block io_uring by default).

use crate::{BLOCK, Completion, Cost, Device, Direction, Mailbox, Request, lock};
use pagetide_sys::engine_thread;
use pagetide_sys::patience::{passes, patiently};
use pagetide_sys::uring::Ring;
use rustix::fs::{Advice, FallocateFlags, Mode, OFlags};
use rustix::io::Errno;
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex};

/// The number of requests under way at most.
const DEPTH: u32 = 64;
/// The number of threads for positioned reads and writes.
const WORKERS: usize = 4;
const TMPFS_MAGIC: u64 = 0x0102_1994;
const RAMFS_MAGIC: u64 = 0x8584_58f6;

/// The calls by which a file is read and written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FileKind {
    /// By io_uring if it can be had, by positioned reads and writes otherwise.
    Auto,
    /// By positioned reads and writes.
    Positioned,
}

/// The reason for which a swap file cannot be made or opened.
#[derive(Debug)]
pub enum OpenError {
    /// The directory lies in memory: swapping there would take the memory that it is to save.
    InMemory,
    /// The path is that of another file by now.
    Another,
    /// A system call failed with this error.
    System(Errno),
}

impl std::fmt::Display for OpenError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::InMemory => f.write_str("it is a tmpfs: swapping into memory would save none"),
            Self::Another => f.write_str("it is gone, with the process that held it"),
            Self::System(error) => write!(f, "{}", io::Error::from(*error)),
        }
    }
}

impl std::error::Error for OpenError {}

/// Creates a swap file in `directory`: without a name, readable by its owner only.
///
/// # Errors
/// - [`OpenError::InMemory`]: the directory lies in memory.
/// - [`OpenError::System`]: the file system makes no file there.
pub fn create(directory: &Path) -> Result<OwnedFd, OpenError> {
    let stat = rustix::fs::statfs(directory).map_err(OpenError::System)?;
    if [TMPFS_MAGIC, RAMFS_MAGIC].contains(&(stat.f_type as u64)) {
        return Err(OpenError::InMemory);
    }
    let flags = OFlags::RDWR | OFlags::CLOEXEC;
    let mode = Mode::RUSR | Mode::WUSR;
    match rustix::fs::open(directory, flags | OFlags::TMPFILE, mode) {
        Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::INVAL) => {
            // A file system without O_TMPFILE: create it under a name of its own, and unlink that.
            let [a, b, ..] = pagetide_sys::random::words();
            let path = directory.join(format!(".pagetide-{a:016x}{b:016x}"));
            let fd = rustix::fs::open(&path, flags | OFlags::CREATE | OFlags::EXCL, mode)
                .map_err(OpenError::System)?;
            rustix::fs::unlink(&path).map_err(OpenError::System)?;
            Ok(fd)
        }
        other => other.map_err(OpenError::System),
    }
}

/// A name that tells a file from all others: its device and its number there.
pub type Identity = (u64, u64);

/// Returns the identity of an open file.
///
/// # Errors
/// [`OpenError::System`]: the file system does not tell.
pub fn identity(file: &OwnedFd) -> Result<Identity, OpenError> {
    rustix::fs::fstat(file).map(|stat| (stat.st_dev, stat.st_ino)).map_err(OpenError::System)
}

/// Waits for the direct reads and writes of the swap file `identity` that threads began which have ended since: those
/// of a program that was killed, or replaced by exec, may go on after its end, where a ring began them.
///
/// No call says just that, but file systems do it before they change a file's extents: ext4 and XFS for any range (here
/// one that takes a block at most). It does not wait for what the kernel has not begun: a ring leaves writes that make
/// the file longer to workers of the thread that asked. A thread does not end before its workers have begun them all.
///
/// # Errors
/// Nothing was waited for:
/// - [`OpenError::Another`]: the path is that of another file by now.
/// - [`OpenError::System`]: the path cannot be opened, or the file system knows no `fallocate`.
pub fn await_writes(path: &Path, identity: Identity) -> Result<(), OpenError> {
    let file =
        rustix::fs::open(path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()).map_err(OpenError::System)?;
    await_writes_by(&file, identity)
}

/// Waits as [`await_writes`] does, by a descriptor of the file.
///
/// # Errors
/// As for [`await_writes`].
pub fn await_writes_by(file: &OwnedFd, identity: Identity) -> Result<(), OpenError> {
    check(file, identity)?;
    let kept = FallocateFlags::KEEP_SIZE;
    rustix::io::retry_on_intr(|| rustix::fs::fallocate(file, kept, 0, BLOCK as u64))
        .map_err(OpenError::System)
}

pub(crate) fn check(file: &OwnedFd, expected: Identity) -> Result<(), OpenError> {
    if identity(file)? == expected { Ok(()) } else { Err(OpenError::Another) }
}

/// Returns whether a swap file in `directory` is read and written past the page cache.
///
/// # Errors
/// As for [`create`].
pub fn takes_direct(directory: &Path) -> Result<bool, OpenError> {
    let file = create(directory)?;
    let flags = rustix::fs::fcntl_getfl(&file).map_err(OpenError::System)?;
    match rustix::fs::fcntl_setfl(&file, flags | OFlags::DIRECT) {
        Ok(()) => Ok(true),
        Err(Errno::INVAL) => Ok(false),
        Err(error) => Err(OpenError::System(error)),
    }
}

/// The room of a file system, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Room {
    /// Bytes for unprivileged users, taken or free: as `df` counts, without those that are kept for root.
    pub total: u64,
    /// Bytes of those that are free.
    pub free: u64,
}

/// Returns the room of the file system in which a file lies.
///
/// # Errors
/// [`OpenError::System`]: the file system does not tell.
pub fn room(file: &OwnedFd) -> Result<Room, OpenError> {
    rustix::fs::fstatvfs(file).map(|stat| room_of(&stat)).map_err(OpenError::System)
}

fn room_of(stat: &rustix::fs::StatVfs) -> Room {
    let bytes = |blocks: u64| blocks.saturating_mul(stat.f_frsize);
    let taken = stat.f_blocks.saturating_sub(stat.f_bfree);
    Room { total: bytes(taken.saturating_add(stat.f_bavail)), free: bytes(stat.f_bavail) }
}

/// Returns the bytes of disk that a file takes.
///
/// # Errors
/// [`OpenError::System`]: the file system does not tell.
pub fn taken_bytes(file: &OwnedFd) -> Result<u64, OpenError> {
    // 512-byte blocks, whatever the file system's.
    rustix::fs::fstat(file).map(|stat| stat.st_blocks as u64 * 512).map_err(OpenError::System)
}

/// Returns the bytes that are free for unprivileged users in the file system of `directory`.
///
/// # Errors
/// [`OpenError::System`]: the file system does not tell.
pub fn free_bytes(directory: &Path) -> Result<u64, OpenError> {
    let stat = rustix::fs::statvfs(directory).map_err(OpenError::System)?;
    Ok(room_of(&stat).free)
}

/// A swap file.
///
/// ```
/// use pagetide_device::file::{create, identity};
/// use pagetide_device::{Buffer, Device, Direction, File, FileKind, Request};
/// use std::os::fd::AsRawFd;
/// use std::path::Path;
///
/// // The process that creates it keeps it open; others open it by a path to that descriptor.
/// let fd = create(Path::new("."))?;
/// let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
/// let file = File::open(Path::new(&path), identity(&fd)?, 16, FileKind::Auto)?;
/// let request = Request { token: 1, direction: Direction::Write, block: 3, buffer: Buffer::new(2) };
/// file.submit(request).expect("few are under way");
/// let mut done = Vec::new();
/// while done.is_empty() {
///     file.wait(&mut done);
/// }
/// assert!(done[0].token == 1 && done[0].result.is_ok());
/// # Ok::<(), pagetide_device::OpenError>(())
/// ```
#[derive(Debug)]
pub struct File {
    blocks: u64,
    backend: Backend,
}

#[derive(Debug)]
enum Backend {
    Ring(Box<Ring>),
    Workers(Arc<Workers>),
}

#[derive(Debug)]
struct Workers {
    file: OwnedFd,
    cached: bool,
    queue: Mutex<Queue>,
    arrived: Condvar,
    mailbox: Mailbox,
}

#[derive(Debug, Default)]
struct Queue {
    /// Reads, which go before writes: faults wait for them.
    reads: VecDeque<Request>,
    writes: VecDeque<Request>,
    closed: bool,
}

impl File {
    /// Opens the swap file `identity` by a path, which may be `/proc/PID/fd/N`, for `blocks` blocks.
    ///
    /// Threads and descriptors are those of the calling thread's descriptor table.
    ///
    /// # Errors
    /// - [`OpenError::Another`]: the path is that of another file.
    /// - [`OpenError::System`]: the path cannot be opened.
    pub fn open(path: &Path, identity: Identity, blocks: u64, kind: FileKind) -> Result<Self, OpenError> {
        let flags = OFlags::RDWR | OFlags::CLOEXEC;
        let (file, cached) = match rustix::fs::open(path, flags | OFlags::DIRECT, Mode::empty()) {
            Ok(file) => (file, false),
            Err(Errno::INVAL) => {
                (rustix::fs::open(path, flags, Mode::empty()).map_err(OpenError::System)?, true)
            }
            Err(error) => return Err(OpenError::System(error)),
        };
        check(&file, identity)?;
        Self::drive(file, cached, blocks, kind)
    }

    /// Takes the swap file `identity` from a descriptor that this process was handed.
    ///
    /// # Errors
    /// [`OpenError::Another`]: the descriptor is that of another file.
    pub fn adopt(file: OwnedFd, identity: Identity, blocks: u64, kind: FileKind) -> Result<Self, OpenError> {
        check(&file, identity)?;
        let cached = !rustix::fs::fcntl_getfl(&file).map_err(OpenError::System)?.contains(OFlags::DIRECT);
        Self::drive(file, cached, blocks, kind)
    }

    fn drive(file: OwnedFd, cached: bool, blocks: u64, kind: FileKind) -> Result<Self, OpenError> {
        let backend = if cached || kind == FileKind::Positioned {
            Backend::Workers(Workers::start(file, cached)?)
        } else {
            match Ring::new(file, DEPTH) {
                Ok(ring) => Backend::Ring(Box::new(ring)),
                Err((file, _)) => Backend::Workers(Workers::start(file, cached)?),
            }
        };
        Ok(Self { blocks, backend })
    }

    /// Returns its descriptor's number, in the table of the thread that opened it.
    pub fn number(&self) -> i32 {
        match &self.backend {
            Backend::Ring(ring) => ring.number(),
            Backend::Workers(workers) => workers.file.as_raw_fd(),
        }
    }

    /// Returns whether io_uring drives it.
    pub fn uses_ring(&self) -> bool {
        matches!(self.backend, Backend::Ring(_))
    }
}

impl Device for File {
    fn blocks(&self) -> u64 {
        self.blocks
    }

    fn cost(&self, _block: u64) -> Cost {
        Cost::FLASH
    }

    fn submit(&self, request: Request) -> Result<(), Request> {
        let Request { token, direction, block, buffer } = request;
        let offset = block * BLOCK as u64;
        match &self.backend {
            Backend::Ring(ring) => ring.submit(direction, offset, buffer, token).map_err(|buffer| Request {
                token,
                direction,
                block,
                buffer,
            }),
            Backend::Workers(workers) => {
                let mut queue = lock(&workers.queue);
                let request = Request { token, direction, block, buffer };
                if queue.reads.len() + queue.writes.len() >= DEPTH as usize {
                    return Err(request);
                }
                match direction {
                    Direction::Read => queue.reads.push_back(request),
                    Direction::Write => queue.writes.push_back(request),
                }
                workers.arrived.notify_one();
                Ok(())
            }
        }
    }

    fn wait(&self, into: &mut Vec<Completion>) {
        match &self.backend {
            Backend::Workers(workers) => workers.mailbox.wait(into),
            Backend::Ring(ring) => {
                let mut done = Vec::new();
                ring.wait(&mut done);
                into.extend(done.into_iter().map(|done| {
                    let result =
                        done.result.and_then(|bytes| whole(bytes, done.buffer.len(), done.direction));
                    let result = result.map_err(|error| later(error, done.direction));
                    Completion { token: done.token, buffer: done.buffer, result }
                }));
            }
        }
    }

    fn nudge(&self) {
        match &self.backend {
            Backend::Workers(workers) => workers.mailbox.nudge(),
            Backend::Ring(ring) => ring.nudge(),
        }
    }
}

fn whole(bytes: usize, wanted: usize, direction: Direction) -> io::Result<()> {
    match direction {
        _ if bytes == wanted => Ok(()),
        Direction::Read => Err(io::Error::from(Errno::IO)),
        // What there was room for was written: only the next write would say so.
        Direction::Write => Err(io::Error::from(Errno::NOSPC)),
    }
}

/// A write that the kernel has no memory for is tried later, like one for which there is no room. (A read has waited for that
/// already.)
fn later(error: io::Error, direction: Direction) -> io::Error {
    if direction == Direction::Write && passes(&error) { Errno::NOSPC.into() } else { error }
}

impl Workers {
    /// Starts the threads, or as many as there may be.
    fn start(file: OwnedFd, cached: bool) -> Result<Arc<Self>, OpenError> {
        let this = Arc::new(Self {
            file,
            cached,
            queue: Mutex::default(),
            arrived: Condvar::new(),
            mailbox: Mailbox::default(),
        });
        for number in 0..WORKERS {
            let worker = Arc::clone(&this);
            let name = format!("pagetide-io{number}");
            match engine_thread::spawn_patiently(&name, Box::new(move || worker.run())) {
                // Without a thread there is no I/O at all: the caller would wait for ever.
                Err(error) if number == 0 => {
                    return Err(OpenError::System(Errno::from_io_error(&error).unwrap_or(Errno::AGAIN)));
                }
                Err(_) => break,
                Ok(()) => {}
            }
        }
        Ok(this)
    }

    fn run(&self) {
        loop {
            let request = {
                let mut queue = lock(&self.queue);
                loop {
                    // Demand before writeback.
                    if let Some(request) = queue.reads.pop_front().or_else(|| queue.writes.pop_front()) {
                        break request;
                    }
                    if queue.closed {
                        return;
                    }
                    queue = pagetide_sys::wait(&self.arrived, queue);
                }
            };
            self.mailbox.post(self.perform(request));
        }
    }

    fn perform(&self, mut request: Request) -> Completion {
        let start = request.block * BLOCK as u64;
        let length = request.buffer.len();
        let mut done = 0;
        let result = loop {
            let at = start + done as u64;
            let step = patiently(|| match request.direction {
                Direction::Read => Ok(rustix::io::pread(&self.file, &mut request.buffer[done..], at)?),
                Direction::Write => Ok(rustix::io::pwrite(&self.file, &request.buffer[done..], at)?),
            });
            match step {
                Ok(0) => break Err(io::Error::from(Errno::IO)),
                Ok(bytes) => done += bytes,
                Err(error) => break Err(later(error, request.direction)),
            }
            if done == length {
                break Ok(());
            }
        };
        if self.cached {
            // What we hold in the page cache is memory that we were to save. Dirty pages stay until they
            // are written: ask for that first.
            if request.direction == Direction::Write {
                let _ = rustix::fs::fdatasync(&self.file);
            }
            let _ = rustix::fs::fadvise(
                &self.file,
                start,
                std::num::NonZeroU64::new(length as u64),
                Advice::DontNeed,
            );
        }
        Completion { token: request.token, buffer: request.buffer, result }
    }
}

impl Drop for File {
    fn drop(&mut self) {
        if let Backend::Workers(workers) = &self.backend {
            lock(&workers.queue).closed = true;
            workers.arrived.notify_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pagetide_sys::buffer::Buffer;
    use std::os::fd::AsRawFd;

    fn round_trip(kind: FileKind) {
        let directory = std::path::PathBuf::from(env!("CARGO_MANIFEST_DIR"));
        let fd = create(&directory).unwrap();
        let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
        let own = identity(&fd).unwrap();
        let another = File::open(Path::new(&path), (own.0, own.1 + 1), 64, kind);
        assert!(matches!(another, Err(OpenError::Another)));
        let file = File::open(Path::new(&path), own, 64, kind).unwrap();
        if kind == FileKind::Positioned {
            assert!(!file.uses_ring());
        }
        let wait = |count: usize| {
            let mut done = Vec::new();
            while done.len() < count {
                file.wait(&mut done);
            }
            done
        };
        for block in (0..64).step_by(4) {
            let mut buffer = Buffer::new(4);
            for (nth, bytes) in buffer.chunks_exact_mut(BLOCK).enumerate() {
                bytes.fill((block + nth) as u8);
            }
            let request =
                Request { token: block as u64, direction: Direction::Write, block: block as u64, buffer };
            file.submit(request).unwrap();
        }
        assert!(wait(16).iter().all(|done| done.result.is_ok()));
        for block in (0..64).rev() {
            let request = Request { token: block, direction: Direction::Read, block, buffer: Buffer::new(1) };
            file.submit(request).unwrap();
        }
        for done in wait(64) {
            done.result.unwrap();
            assert!(done.buffer.iter().all(|&byte| u64::from(byte) == done.token));
        }
        let beyond = Request { token: 0, direction: Direction::Read, block: 1 << 20, buffer: Buffer::new(1) };
        file.submit(beyond).unwrap();
        assert!(wait(1)[0].result.is_err(), "a short read is an error");
        file.nudge();
        assert!(wait(0).is_empty());
    }

    #[test]
    fn what_is_written_is_read_with_io_uring_where_allowed() {
        round_trip(FileKind::Auto);
    }

    #[test]
    fn what_is_written_is_read_with_positioned_calls() {
        round_trip(FileKind::Positioned);
    }

    /// A cgroup whose writes to the disk of a file are slow.
    struct Slow(std::path::PathBuf);

    impl Slow {
        fn new(file: Identity) -> io::Result<Self> {
            let (major, minor) = (rustix::fs::major(file.0), rustix::fs::minor(file.0));
            let partition = format!("/sys/dev/block/{major}:{minor}");
            // A limit is one of the whole disk.
            let of_disk = std::fs::read_to_string(format!("{partition}/../dev"));
            let disk = of_disk.unwrap_or_else(|_| format!("{major}:{minor}"));
            let slow = Self(format!("/sys/fs/cgroup/blkio/pagetide-{}", std::process::id()).into());
            std::fs::create_dir(&slow.0)?;
            std::fs::write(
                slow.0.join("blkio.throttle.write_bps_device"),
                format!("{} {}", disk.trim(), 32 << 20),
            )?;
            Ok(slow)
        }

        fn enter(&self) {
            std::fs::write(self.0.join("tasks"), pagetide_sys::task::tid().to_string()).unwrap();
        }
    }

    impl Drop for Slow {
        fn drop(&mut self) {
            std::fs::remove_dir(&self.0).unwrap();
        }
    }

    /// Needs root and cgroups of version 1 with blkio: without them a disk may be too fast to tell.
    #[test]
    fn what_was_under_way_is_there_once_the_file_has_settled() {
        let directory = std::path::PathBuf::from(env!("CARGO_MANIFEST_DIR"));
        let fd = create(&directory).unwrap();
        let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
        let own = identity(&fd).unwrap();
        let file = File::open(Path::new(&path), own, 2048, FileKind::Auto).unwrap();
        if !file.uses_ring() {
            return;
        }
        let slow = Slow::new(own).inspect_err(|error| println!("the disk is as fast as it is: {error}")).ok();
        let write = |byte: u8| {
            for block in (0..2048).step_by(32) {
                let mut buffer = Buffer::new(32);
                buffer.fill(byte);
                file.submit(Request { token: block, direction: Direction::Write, block, buffer }).unwrap();
            }
        };
        // Over blocks that are there already: only such writes outlive the thread that begins them.
        write(5);
        let mut done = Vec::new();
        while done.len() < 64 {
            file.wait(&mut done);
        }
        std::thread::scope(|scope| {
            let begin = || {
                slow.iter().for_each(Slow::enter);
                write(7);
            };
            // A handle's `join`, unlike the end of the scope, returns when the kernel is through with the thread.
            scope.spawn(begin).join().unwrap();
        });
        await_writes(Path::new(&path), own).unwrap();
        let mut bytes = vec![0; 2048 * BLOCK];
        assert_eq!(rustix::io::pread(&fd, &mut bytes, 0).unwrap(), bytes.len());
        assert!(bytes.iter().all(|&byte| byte == 7));
    }

    #[test]
    fn tmpfs_is_refused() {
        if Path::new("/dev/shm").is_dir() {
            assert!(matches!(create(Path::new("/dev/shm")), Err(OpenError::InMemory)));
        }
    }
}
