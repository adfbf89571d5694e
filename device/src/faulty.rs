//! A device that fails on demand: the seam through which errors are injected.

use crate::ram::Ram;
use crate::{Completion, Device, Direction, Request};
use std::io;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// What goes wrong.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Failure {
    /// The request fails with this errno.
    Errno(i32),
    /// A read returns other bytes than were written, and says that all is well.
    Corrupt,
}

/// A RAM device on which every `nth` request of one direction fails.
#[derive(Debug)]
pub struct Faulty {
    ram: Ram,
    direction: Direction,
    nth: u64,
    failure: Failure,
    count: AtomicU64,
}

impl Faulty {
    /// Fails every `nth` request of `direction` (counted from one; zero means never).
    pub fn new(blocks: u64, direction: Direction, nth: u64, failure: Failure) -> Self {
        Self { ram: Ram::new(blocks), direction, nth, failure, count: AtomicU64::new(0) }
    }
}

impl Device for Faulty {
    fn blocks(&self) -> u64 {
        self.ram.blocks()
    }
    fn is_synchronous(&self) -> bool {
        false
    }
    fn submit(&self, request: Request) -> Result<(), Request> {
        let fails = request.direction == self.direction
            && self.nth != 0
            && (self.count.fetch_add(1, Relaxed) + 1).is_multiple_of(self.nth);
        let completion = match (fails, self.failure) {
            (true, Failure::Errno(errno)) => Completion {
                token: request.token,
                buffer: request.buffer,
                result: Err(io::Error::from_raw_os_error(errno)),
            },
            (true, Failure::Corrupt) => {
                let mut completion = self.ram.perform(request);
                completion.buffer[17] ^= 0x40;
                completion
            }
            (false, _) => self.ram.perform(request),
        };
        self.ram.post(completion);
        Ok(())
    }
    fn wait(&self, into: &mut Vec<Completion>) {
        self.ram.wait(into);
    }
    fn nudge(&self) {
        self.ram.nudge();
    }
}
