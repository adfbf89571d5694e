//! Writeback: entries of the pool go to the device.

use super::Engine;
use super::requests::Pending;
use crate::memory::Memory;
use pagetide_device::{BLOCK, Buffer, Direction, Request};
use pagetide_swap::blocks::BlockRun;
use pagetide_swap::hash::PageHash;
use pagetide_swap::{Counter, Handle, PageIndex, Scratch};

impl<M: Memory> Engine<M> {
    /// Begins to write one batch of entries. Returns how many are on their way.
    pub(super) fn write_back(&self, entries: &[(PageIndex, Handle)], scratch: &mut Scratch) -> usize {
        let Some(device) = &self.device else { return 0 };
        if !self.can_write() || self.is_writing() {
            return 0;
        }
        let Some(run) = self.allocate(entries.len()) else { return 0 };
        let mut buffer = Buffer::new(run.length);
        let mut begun = Vec::with_capacity(run.length);
        for &(owner, handle) in entries {
            if begun.len() == run.length {
                break;
            }
            let bytes = &mut buffer[begun.len() * BLOCK..][..BLOCK];
            if let Some(hash) = self.swap.begin_writeback(owner, handle, bytes, scratch) {
                self.swap.seal(run.start + begun.len() as u64, hash, bytes);
                begun.push((owner, handle, hash));
            }
        }
        let count = begun.len();
        self.free_blocks(run.start + count as u64, run.length - count);
        if count == 0 {
            return 0;
        }
        buffer.truncate(count);
        let token = self.requests.begin(Pending::Writeback { entries: begun, block: run.start });
        let request = Request { token, direction: Direction::Write, block: run.start, buffer };
        if device.submit(request).is_err() {
            if let (Pending::Writeback { entries, block }, _ended) = self.requests.end(token) {
                self.cancel_writeback(&entries);
                self.free_blocks(block, entries.len());
            }
            return 0;
        }
        count
    }

    fn cancel_writeback(&self, entries: &[(PageIndex, Handle, PageHash)]) {
        for &(owner, handle, hash) in entries {
            self.swap.finish_writeback(owner, handle, hash, None);
        }
    }

    pub(super) fn writeback_ended(
        &self,
        entries: &[(PageIndex, Handle, PageHash)],
        block: u64,
        result: std::io::Result<()>,
    ) {
        if let Err(error) = result {
            self.cancel_writeback(entries);
            self.write_failed(&error, BlockRun { start: block, length: entries.len() });
            return;
        }
        self.tier_outage(block).full.end();
        self.count(Counter::pswpout, entries.len());
        for (&(owner, handle, hash), block) in entries.iter().zip(block..) {
            if !self.swap.finish_writeback(owner, handle, hash, Some(block)) {
                self.swap.blocks().free(block);
            }
        }
    }
}
