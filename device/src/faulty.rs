//! A device that fails on demand: the seam through which errors are injected.

use crate::{Completion, Cost, Device, Direction, Request, Told, lock};
use std::io;
use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// A way in which a request goes wrong.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Failure {
    /// The request fails with this errno.
    Errno(i32),
    /// The request ends before all its bytes are there.
    Short,
    /// A read returns other bytes than were written, and says that all is well.
    Corrupt,
    /// A read returns what lies elsewhere on the device, and says that all is well.
    Misplaced,
}

/// The requests that fail.
#[derive(Debug)]
enum Which {
    Nth { nth: u64, count: AtomicU64 },
    Blocks(Range<u64>),
}

/// A device of which some requests of one direction fail.
///
/// ```
/// use pagetide_device::faulty::{Failure, Faulty};
/// use pagetide_device::ram::Ram;
/// use pagetide_device::{Buffer, Device, Direction, Request};
///
/// // Every second read ends with EIO.
/// let device = Faulty::new(Box::new(Ram::new(8)), Direction::Read, 2, Failure::Errno(5));
/// let mut done = Vec::new();
/// for token in 0..4 {
///     let request = Request { token, direction: Direction::Read, block: token, buffer: Buffer::new(1) };
///     device.submit(request).expect("it takes any number");
///     device.wait(&mut done);
/// }
/// let failed: Vec<_> = done.iter().filter(|done| done.result.is_err()).map(|done| done.token).collect();
/// assert_eq!(failed, [1, 3]);
/// ```
#[derive(Debug)]
pub struct Faulty {
    inner: Box<dyn Device>,
    direction: Direction,
    which: Which,
    failure: Failure,
    /// Tokens of requests under way that are to fail.
    failing: Mutex<Vec<u64>>,
}

impl Faulty {
    /// Returns a device that fails every `nth` request of `direction`, counted from one; none if `nth` is 0.
    pub fn new(inner: Box<dyn Device>, direction: Direction, nth: u64, failure: Failure) -> Self {
        let which = Which::Nth { nth, count: AtomicU64::new(0) };
        Self { inner, direction, which, failure, failing: Mutex::default() }
    }

    /// Returns a device that fails the requests of `direction` which comprise one of `blocks`.
    pub fn at(inner: Box<dyn Device>, direction: Direction, blocks: Range<u64>, failure: Failure) -> Self {
        Self { inner, direction, which: Which::Blocks(blocks), failure, failing: Mutex::default() }
    }

    fn is_failing(&self, token: u64) -> bool {
        let mut failing = lock(&self.failing);
        let at = failing.iter().position(|&failing| failing == token);
        at.map(|at| failing.swap_remove(at)).is_some()
    }
}

impl Device for Faulty {
    fn blocks(&self) -> u64 {
        self.inner.blocks()
    }
    fn cost(&self, block: u64) -> Cost {
        self.inner.cost(block)
    }
    fn told(&self, block: u64) -> Told {
        self.inner.told(block)
    }
    fn submit(&self, mut request: Request) -> Result<(), Request> {
        let fails = request.direction == self.direction
            && match &self.which {
                Which::Nth { nth, count } => {
                    *nth != 0 && (count.fetch_add(1, Relaxed) + 1).is_multiple_of(*nth)
                }
                Which::Blocks(blocks) => {
                    let count = (request.buffer.len() / crate::BLOCK) as u64;
                    request.block < blocks.end && blocks.start < request.block + count
                }
            };
        if !fails {
            return self.inner.submit(request);
        }
        let (token, block) = (request.token, request.block);
        if self.failure == Failure::Misplaced {
            let length = (request.buffer.len() / crate::BLOCK) as u64;
            request.block = if block + length < self.blocks() { block + 1 } else { 0 };
        }
        // Before it is submitted: it may end at once.
        lock(&self.failing).push(token);
        self.inner.submit(request).inspect_err(|_| _ = self.is_failing(token)).map_err(|mut request| {
            request.block = block;
            request
        })
    }
    fn wait(&self, into: &mut Vec<Completion>) {
        let before = into.len();
        self.inner.wait(into);
        for completion in &mut into[before..] {
            if !self.is_failing(completion.token) {
                continue;
            }
            match self.failure {
                Failure::Errno(errno) => completion.result = Err(io::Error::from_raw_os_error(errno)),
                Failure::Short => completion.result = Err(io::ErrorKind::UnexpectedEof.into()),
                Failure::Corrupt => completion.buffer[17] ^= 0x40,
                Failure::Misplaced => {}
            }
        }
    }
    fn nudge(&self) {
        self.inner.nudge();
    }
}
