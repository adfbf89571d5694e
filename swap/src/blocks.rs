//! Device space: which blocks of the swap file are in use, and by whom.
//!
//! The counts are shared by every process of a run; a block is free when its count is zero. Each process
//! also marks the blocks that it holds in a bitmap of its own, likewise shared, so that the launcher can
//! give back what a killed process held. Counts change by atomic operations only and no step allocates:
//! freeing memory never needs memory.
//!
//! Order, so that a kill at any instant can leak a block but never free one in use: the count goes up
//! before the bit is set, and the bit is cleared before the count goes down.

use crate::hash::PageHash;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering::AcqRel, Ordering::Acquire, Ordering::Relaxed};

/// Blocks whose hashes are allocated together at least: 8 KiB.
const HASH_CHUNK_MIN: usize = 512;
/// Chunks at most: their array takes 24 KiB.
const HASH_CHUNKS_MAX: usize = 1024;

/// The view that one process has of the device's space.
#[derive(Debug)]
pub struct Blocks {
    counts: &'static [AtomicU8],
    held: &'static [AtomicU64],
    cursor: AtomicU64,
    used: AtomicU64,
    hashes: Hashes,
    hash_chunk: usize,
}

type Hashes = std::sync::Arc<[OnceLock<Box<[[AtomicU64; 2]]>>]>;

/// A contiguous run of blocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BlockRun {
    /// The first block.
    pub start: u64,
    /// How many.
    pub length: usize,
}

impl Blocks {
    /// Space described by shared `counts` (one a block) and this process's `held` bits.
    pub fn new(counts: &'static [AtomicU8], held: &'static [AtomicU64]) -> Self {
        assert!(held.len() * 64 >= counts.len());
        let hash_chunk = counts.len().div_ceil(HASH_CHUNKS_MAX).max(HASH_CHUNK_MIN);
        let chunks = counts.len().div_ceil(hash_chunk);
        Self {
            counts,
            held,
            cursor: AtomicU64::new(0),
            used: AtomicU64::new(0),
            hashes: (0..chunks).map(|_| OnceLock::new()).collect(),
            hash_chunk,
        }
    }

    /// No device.
    pub fn none() -> Self {
        Self::new(&[], &[])
    }

    /// Blocks in all.
    pub fn total(&self) -> u64 {
        self.counts.len() as u64
    }

    /// Blocks that this process holds.
    pub fn used(&self) -> u64 {
        self.used.load(Relaxed)
    }

    /// Takes up to `wanted` free blocks that lie together: first fit from where the last search ended.
    /// A shorter run is taken where the space is fragmented; `None` means that the device is full.
    pub fn allocate(&self, wanted: usize) -> Option<BlockRun> {
        let total = self.counts.len();
        if total == 0 || wanted == 0 {
            return None;
        }
        let start = self.cursor.load(Relaxed) as usize % total;
        let mut seen = 0;
        while seen < total {
            let at = (start + seen) % total;
            if !self.claim(at) {
                seen += 1;
                continue;
            }
            let mut length = 1;
            while length < wanted && at + length < total && self.claim(at + length) {
                length += 1;
            }
            self.cursor.store((at + length) as u64, Relaxed);
            self.used.fetch_add(length as u64, Relaxed);
            return Some(BlockRun { start: at as u64, length });
        }
        None
    }

    fn claim(&self, block: usize) -> bool {
        // The plain load keeps the walk over used blocks cheap.
        let free = self.counts[block].load(Relaxed) == 0
            && self.counts[block].compare_exchange(0, 1, AcqRel, Relaxed).is_ok();
        if free {
            self.held[block / 64].fetch_or(1 << (block % 64), AcqRel);
        }
        free
    }

    /// Gives up this process's hold on a block.
    pub fn free(&self, block: u64) {
        if release(self.counts, self.held, block as usize) {
            self.used.fetch_sub(1, Relaxed);
        }
    }

    /// Remembers the hash of what is written to a block.
    pub fn set_hash(&self, block: u64, hash: PageHash) {
        let chunk = self.hashes[block as usize / self.hash_chunk]
            .get_or_init(|| (0..self.hash_chunk).map(|_| [AtomicU64::new(0), AtomicU64::new(0)]).collect());
        let cell = &chunk[block as usize % self.hash_chunk];
        cell[0].store(hash[0], Relaxed);
        cell[1].store(hash[1], Relaxed);
    }

    /// The hash of what was written to a block.
    pub fn hash(&self, block: u64) -> Option<PageHash> {
        let cell =
            &self.hashes.get(block as usize / self.hash_chunk)?.get()?[block as usize % self.hash_chunk];
        Some([cell[0].load(Relaxed), cell[1].load(Relaxed)])
    }

    /// Bytes of metadata: the hashes.
    pub fn bytes(&self) -> usize {
        self.hashes.iter().filter(|chunk| chunk.get().is_some()).count() * self.hash_chunk * 16
    }

    /// Makes `child` a holder of everything that this process holds: before a fork.
    pub fn share_with(&self, child: &[AtomicU64]) {
        for (index, bits) in self.held.iter().enumerate() {
            let bits = bits.load(Acquire);
            for bit in Bits(bits) {
                // 255 holders is more processes than a run may have.
                self.counts[index * 64 + bit].fetch_add(1, AcqRel);
            }
            // The child's bits are clear: what need not be written takes no memory.
            if bits != 0 {
                child[index].store(bits, Relaxed);
            }
        }
    }

    /// The view of a forked child: the same contents and hashes, held by its own bits.
    pub fn for_child(&self, held: &'static [AtomicU64]) -> Self {
        Self {
            counts: self.counts,
            held,
            cursor: AtomicU64::new(self.cursor.load(Relaxed)),
            used: AtomicU64::new(self.used()),
            hashes: std::sync::Arc::clone(&self.hashes),
            hash_chunk: self.hash_chunk,
        }
    }
}

/// The positions of the bits that are set.
struct Bits(u64);

impl Iterator for Bits {
    type Item = usize;
    fn next(&mut self) -> Option<usize> {
        let bit = self.0.trailing_zeros() as usize;
        self.0 &= self.0.wrapping_sub(1);
        (bit < 64).then_some(bit)
    }
}

fn release(counts: &[AtomicU8], held: &[AtomicU64], block: usize) -> bool {
    let bit = 1 << (block % 64);
    let was_held = held[block / 64].fetch_and(!bit, AcqRel) & bit != 0;
    if was_held {
        counts[block].fetch_sub(1, AcqRel);
    }
    was_held
}

/// Frees every block that `held` names: what the launcher does for a process that died.
pub fn sweep(counts: &[AtomicU8], held: &[AtomicU64]) -> u64 {
    let mut freed = 0;
    for (index, word) in held.iter().enumerate() {
        for bit in Bits(word.load(Acquire)) {
            freed += u64::from(release(counts, held, index * 64 + bit));
        }
    }
    freed
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn space(blocks: usize) -> Blocks {
        Blocks::new(counts(blocks), bits(blocks))
    }
    fn counts(blocks: usize) -> &'static [AtomicU8] {
        Vec::leak((0..blocks).map(|_| AtomicU8::new(0)).collect())
    }
    fn bits(blocks: usize) -> &'static [AtomicU64] {
        Vec::leak((0..blocks.div_ceil(64)).map(|_| AtomicU64::new(0)).collect())
    }

    #[test]
    fn runs_are_contiguous_and_the_device_fills_up() {
        let blocks = space(100);
        assert_eq!(blocks.allocate(32), Some(BlockRun { start: 0, length: 32 }));
        assert_eq!(blocks.allocate(64), Some(BlockRun { start: 32, length: 64 }));
        assert_eq!(blocks.allocate(64), Some(BlockRun { start: 96, length: 4 }));
        assert_eq!(blocks.allocate(1), None);
        blocks.free(50);
        blocks.free(50);
        assert_eq!(blocks.used(), 99, "a block is freed once");
        assert_eq!(blocks.allocate(8), Some(BlockRun { start: 50, length: 1 }));
    }

    #[test]
    fn a_shared_block_is_freed_by_its_last_user() {
        let counts = counts(64);
        let (parent_bits, child_bits) = (bits(64), bits(64));
        let parent = Blocks::new(counts, parent_bits);
        parent.allocate(64).unwrap();
        parent.share_with(child_bits);
        parent.free(7);
        assert_eq!(parent.allocate(1), None, "the child still holds it");
        assert_eq!(sweep(counts, child_bits), 64);
        assert_eq!(parent.allocate(1), Some(BlockRun { start: 7, length: 1 }));
        assert_eq!(sweep(counts, child_bits), 0, "sweeping twice frees nothing twice");
    }
}
