//! A device whose completions a test releases by hand: races without sleeps.

use crate::ram::Ram;
use crate::{Completion, Cost, Device, Request, lock};
use std::collections::VecDeque;
use std::sync::Mutex;

/// A device in memory that holds every request until a test releases it.
///
/// ```
/// use pagetide_device::deferred::Deferred;
/// use pagetide_device::{Buffer, Device, Direction, Request};
///
/// let device = Deferred::new(8);
/// for token in 0..2 {
///     let request = Request { token, direction: Direction::Read, block: 0, buffer: Buffer::new(1) };
///     device.submit(request).expect("it takes any number");
/// }
/// // The second ends first.
/// assert!(device.release(1));
/// let mut done = Vec::new();
/// device.wait(&mut done);
/// assert_eq!((done[0].token, device.held()), (1, 1));
/// ```
#[derive(Debug)]
pub struct Deferred {
    ram: Ram,
    held: Mutex<VecDeque<Request>>,
}

impl Deferred {
    /// Returns a device of `blocks` blocks, all zero.
    pub fn new(blocks: u64) -> Self {
        Self { ram: Ram::new(blocks), held: Mutex::default() }
    }

    /// Returns the number of requests that are held.
    pub fn held(&self) -> usize {
        lock(&self.held).len()
    }

    /// Performs and completes the request that stands in place `nth`, by age, among those that are held. Returns
    /// whether there was one.
    pub fn release(&self, nth: usize) -> bool {
        let Some(request) = lock(&self.held).remove(nth) else { return false };
        let completion = self.ram.perform(request);
        self.ram.post(completion);
        true
    }
}

impl Device for Deferred {
    fn blocks(&self) -> u64 {
        self.ram.blocks()
    }
    fn cost(&self, _block: u64) -> Cost {
        Cost::FLASH
    }
    fn submit(&self, request: Request) -> Result<(), Request> {
        lock(&self.held).push_back(request);
        Ok(())
    }
    fn wait(&self, into: &mut Vec<Completion>) {
        self.ram.wait(into);
    }
    fn nudge(&self) {
        self.ram.nudge();
    }
}
