//! A device in memory, which answers at once: for tests, and for measuring a device without latency.

use crate::{BLOCK, Completion, Cost, Device, Direction, Mailbox, Request, lock};
use std::collections::HashMap;
use std::sync::Mutex;

/// A device whose blocks are in memory.
#[derive(Debug)]
pub struct Ram {
    blocks: u64,
    contents: Mutex<HashMap<u64, Box<[u8]>>>,
    mailbox: Mailbox,
}

impl Ram {
    /// Returns a device of `blocks` blocks, all zero.
    pub fn new(blocks: u64) -> Self {
        Self { blocks, contents: Mutex::default(), mailbox: Mailbox::default() }
    }

    pub(crate) fn perform(&self, mut request: Request) -> Completion {
        let end = request.block + (request.buffer.len() / BLOCK) as u64;
        let result = if end > self.blocks {
            Err(std::io::ErrorKind::StorageFull.into())
        } else {
            let mut contents = lock(&self.contents);
            for (block, bytes) in (request.block..).zip(request.buffer.chunks_exact_mut(BLOCK)) {
                match request.direction {
                    Direction::Write => drop(contents.insert(block, bytes.into())),
                    Direction::Read => match contents.get(&block) {
                        Some(stored) => bytes.copy_from_slice(stored),
                        None => bytes.fill(0),
                    },
                }
            }
            Ok(())
        };
        Completion { token: request.token, buffer: request.buffer, result }
    }

    pub(crate) fn post(&self, completion: Completion) {
        self.mailbox.post(completion);
    }
}

impl Device for Ram {
    fn blocks(&self) -> u64 {
        self.blocks
    }
    fn cost(&self, _block: u64) -> Cost {
        Cost::MEMORY
    }
    fn submit(&self, request: Request) -> Result<(), Request> {
        let completion = self.perform(request);
        self.mailbox.post(completion);
        Ok(())
    }
    fn wait(&self, into: &mut Vec<Completion>) {
        self.mailbox.wait(into);
    }
    fn nudge(&self) {
        self.mailbox.nudge();
    }
}
