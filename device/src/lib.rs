//! Devices: where pages go when memory is short.
//!
//! A [`Device`] is a run of page-sized blocks that takes requests and gives completions. It owns the
//! buffers of requests under way, and nothing else: the swap crate knows which block holds which page.
#![forbid(unsafe_code)]

pub mod deferred;
pub mod faulty;
pub mod file;
pub mod ram;
pub mod remote;
pub mod ring;
pub mod tiered;

pub use file::{File, FileKind, OpenError};
pub use pagetide_sys::buffer::{Buffer, keep as keep_buffers};
pub(crate) use pagetide_sys::lock;
pub use pagetide_sys::uring::Direction;
pub use remote::Remote;
use std::io;

/// Bytes in a block.
pub const BLOCK: usize = pagetide_page::PAGE_SIZE;

/// A request: a read or a write of whole blocks.
#[derive(Debug)]
pub struct Request {
    /// The caller's name for the request.
    pub token: u64,
    /// Whether blocks are read or written.
    pub direction: Direction,
    /// The first block.
    pub block: u64,
    /// The buffer, of as many blocks as are read or written.
    pub buffer: Buffer,
}

/// A completion: a request that has ended.
#[derive(Debug)]
pub struct Completion {
    /// The caller's name for the request.
    pub token: u64,
    /// The buffer: filled, if it was a read that succeeded.
    pub buffer: Buffer,
    /// Whether *all* its bytes were read or written.
    pub result: io::Result<()>,
}

/// The cost of a read, as a device declares it. It is used until there are reads to measure: the balance
/// between the program and the pool begins with it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Cost {
    /// The time from a fault on one page to its answer, in nanoseconds.
    pub read_ns: u64,
}

impl Cost {
    /// The cost of a copy in memory: 1 µs.
    pub const MEMORY: Self = Self { read_ns: 1_000 };
    /// The cost of a read of a flash disk: 100 µs.
    pub const FLASH: Self = Self { read_ns: 100_000 };
}

/// What users are told of a device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Told {
    /// Its name.
    pub name: &'static str,
    /// The options that make it larger, or put it elsewhere.
    pub options: &'static str,
    /// What is so when it takes no more, though not all of its blocks are taken.
    pub full: &'static str,
}

impl Told {
    /// Those of a swap file.
    pub const FILE: Self =
        Self { name: "swap file", options: "--swap-size, --swap-dir", full: "its disk has no more room" };
}

/// A device: a place for pages, in blocks.
///
/// ```
/// use pagetide_device::ram::Ram;
/// use pagetide_device::{BLOCK, Buffer, Completion, Device, Direction, Request};
///
/// fn transfer(device: &dyn Device, direction: Direction, block: u64, buffer: Buffer) -> Completion {
///     device.submit(Request { token: 1, direction, block, buffer }).expect("none is under way");
///     let mut done = Vec::new();
///     while done.is_empty() {
///         device.wait(&mut done);
///     }
///     done.remove(0)
/// }
///
/// let device = Ram::new(16);
/// let mut page = Buffer::new(1);
/// page.fill(7);
/// assert!(transfer(&device, Direction::Write, 3, page).result.is_ok());
/// // Block 2 was never written; block 3 has the page.
/// let read = transfer(&device, Direction::Read, 2, Buffer::new(2));
/// assert!(read.buffer[..BLOCK].iter().all(|&byte| byte == 0));
/// assert!(read.buffer[BLOCK..].iter().all(|&byte| byte == 7));
/// ```
pub trait Device: Send + Sync + std::fmt::Debug {
    /// Returns the number of the device's blocks.
    fn blocks(&self) -> u64;

    /// Returns the cost that a read of `block` is expected to have.
    fn cost(&self, block: u64) -> Cost;

    /// Returns what messages call the device, or the part of it in which `block` lies, and the options that make that
    /// larger or another.
    fn told(&self, _block: u64) -> Told {
        Told::FILE
    }

    /// Starts a request, or gives it back if too many are under way. Never waits for I/O.
    ///
    /// # Errors
    /// The request itself: too many are under way.
    fn submit(&self, request: Request) -> Result<(), Request>;

    /// Waits until a request has ended or [`Device::nudge`] is called, and appends the requests that have ended.
    fn wait(&self, into: &mut Vec<Completion>);

    /// Makes [`Device::wait`] return, now or when it is called next.
    fn nudge(&self);
}

/// Completions handed from the threads that do I/O to the one that waits.
#[derive(Debug, Default)]
pub(crate) struct Mailbox {
    inner: std::sync::Mutex<(Vec<Completion>, bool)>,
    arrived: std::sync::Condvar,
}

impl Mailbox {
    pub(crate) fn post(&self, completion: Completion) {
        lock(&self.inner).0.push(completion);
        self.arrived.notify_one();
    }
    pub(crate) fn nudge(&self) {
        lock(&self.inner).1 = true;
        self.arrived.notify_one();
    }
    pub(crate) fn wait(&self, into: &mut Vec<Completion>) {
        let mut inner = lock(&self.inner);
        while inner.0.is_empty() && !inner.1 {
            inner = pagetide_sys::wait(&self.arrived, inner);
        }
        inner.1 = false;
        into.append(&mut inner.0);
    }
}
