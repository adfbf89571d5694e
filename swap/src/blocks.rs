//! Device space: which blocks of the swap file are in use, and by whom.
//!
//! The counts are shared by every process of a run; a block is free when its count is zero. Each process
//! also marks the blocks that it holds in a bitmap of its own ([`Held`]), likewise shared, so that the launcher can
//! give back what a killed process held. Counts change by atomic operations only and no step allocates:
//! freeing memory never needs memory.
//!
//! Order, so that a kill at any instant can leak a block but never free one in use: the count goes up
//! before the bit is set, and the bit is cleared before the count goes down.

use crate::hash::{HASH_BYTES, PageHash};
use crate::held::Held;
use std::ops::Range;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering::AcqRel, Ordering::Relaxed};

/// Blocks of an extent at least: 2 MiB, whose hashes take 6 KiB.
const EXTENT_MIN: usize = 512;
/// Extents at most: their array takes 24 KiB.
const EXTENTS_MAX: usize = 1024;

/// The view that one process has of the device's space.
#[derive(Debug)]
pub struct Blocks {
    counts: &'static [AtomicU8],
    held: Held,
    /// Blocks of an extent.
    extent: usize,
    /// The extents that this process found free and took: where its next runs come from.
    own: Box<[AtomicBool]>,
    /// Where the last search ended.
    cursor: AtomicU64,
    used: AtomicU64,
    /// Blocks that were given up since the start.
    freed: AtomicU64,
    /// How many of those make it worth to look for a whole run again.
    barren_until: AtomicU64,
    /// By extent.
    hashes: Hashes,
}

type Hashes = std::sync::Arc<[OnceLock<Box<[[AtomicU32; 3]]>>]>;

/// A contiguous run of blocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BlockRun {
    /// The first block.
    pub start: u64,
    /// How many.
    pub length: usize,
}

impl Blocks {
    /// Space described by shared `counts` (one a block) and what this process has `held`.
    pub fn new(counts: &'static [AtomicU8], held: Held) -> Self {
        assert!(held.covers(counts.len()));
        let extent = counts.len().div_ceil(EXTENTS_MAX).next_multiple_of(64).max(EXTENT_MIN);
        let extents = counts.len().div_ceil(extent);
        Self {
            counts,
            held,
            extent,
            own: (0..extents).map(|_| AtomicBool::new(false)).collect(),
            cursor: AtomicU64::new(0),
            used: AtomicU64::new(0),
            freed: AtomicU64::new(0),
            barren_until: AtomicU64::new(0),
            hashes: (0..extents).map(|_| OnceLock::new()).collect(),
        }
    }

    /// No device.
    pub fn none() -> Self {
        Self::private(0)
    }

    /// Space that no other process shares.
    pub fn private(blocks: usize) -> Self {
        let counts = Vec::leak((0..blocks).map(|_| AtomicU8::new(0)).collect());
        let words = Vec::leak((0..Held::words(blocks)).map(|_| AtomicU64::new(0)).collect());
        Self::new(counts, Held::new(words, blocks))
    }

    /// Blocks in all.
    pub fn total(&self) -> u64 {
        self.counts.len() as u64
    }

    /// Blocks that this process holds.
    pub fn used(&self) -> u64 {
        self.used.load(Relaxed)
    }

    /// Takes up to `wanted` free blocks that lie together. A process fills extents of its own, so that
    /// what leaves together lies together, and its hashes take memory by what it holds, not by the size of
    /// the device: a whole run from where the last search ended, else a new extent. Where none is left,
    /// any free block serves, and a shorter run. `None` means that the device is full.
    pub fn allocate(&self, wanted: usize) -> Option<BlockRun> {
        if self.counts.is_empty() || wanted == 0 {
            return None;
        }
        let run = self
            .in_own_extents(wanted)
            .or_else(|| self.in_extents(|extent| self.take_extent(extent)))
            .and_then(|start| self.claim_run(start, wanted))
            .or_else(|| self.claim_any(wanted))?;
        self.cursor.store(run.start + run.length as u64, Relaxed);
        self.used.fetch_add(run.length as u64, Relaxed);
        Some(run)
    }

    /// A whole run in the extent of the last search, or in any of this process's; where there was none, not
    /// in any before an extent's worth has been freed.
    fn in_own_extents(&self, wanted: usize) -> Option<usize> {
        let find = |extent: usize| self.own[extent].load(Relaxed).then(|| self.whole_run(extent, wanted))?;
        let freed = self.freed.load(Relaxed);
        if freed < self.barren_until.load(Relaxed) {
            return find(self.last_extent());
        }
        let found = self.in_extents(find);
        if found.is_none() {
            self.barren_until.store(freed + self.extent as u64, Relaxed);
        }
        found
    }

    /// The first thing that `find` finds in the extents, from the cursor's on.
    fn in_extents(&self, find: impl Fn(usize) -> Option<usize>) -> Option<usize> {
        let extents = self.own.len();
        (0..extents).find_map(|step| find((self.last_extent() + step) % extents))
    }

    fn last_extent(&self) -> usize {
        self.cursor.load(Relaxed) as usize / self.extent % self.own.len()
    }

    fn blocks_of(&self, extent: usize) -> std::ops::Range<usize> {
        extent * self.extent..((extent + 1) * self.extent).min(self.counts.len())
    }

    /// Where `wanted` free blocks lie together.
    fn whole_run(&self, extent: usize, wanted: usize) -> Option<usize> {
        let Range { start: mut at, end } = self.blocks_of(extent);
        let mut length = 0;
        while at < end && length < wanted {
            if at.is_multiple_of(64) && self.held.holds_all_from(at) {
                (at, length) = (at + 64, 0);
                continue;
            }
            length = if self.is_free(at) { length + 1 } else { 0 };
            at += 1;
        }
        (length == wanted).then(|| at - length)
    }

    /// Makes a free extent this process's own. Two that find it at one time share it.
    fn take_extent(&self, extent: usize) -> Option<usize> {
        let mut blocks = self.blocks_of(extent);
        let start = blocks.start;
        blocks.all(|block| self.is_free(block)).then(|| self.own[extent].store(true, Relaxed))?;
        Some(start)
    }

    /// Takes blocks from `start` on, as far as they are free.
    fn claim_run(&self, start: usize, wanted: usize) -> Option<BlockRun> {
        let end = (start + wanted).min(self.counts.len());
        let length = (start..end).take_while(|&block| self.claim(block)).count();
        (length > 0).then_some(BlockRun { start: start as u64, length })
    }

    /// Takes whatever is free, from the cursor on.
    fn claim_any(&self, wanted: usize) -> Option<BlockRun> {
        let total = self.counts.len();
        let first = self.cursor.load(Relaxed) as usize;
        (0..total).find_map(|step| self.claim_run((first + step) % total, wanted))
    }

    fn is_free(&self, block: usize) -> bool {
        self.counts[block].load(Relaxed) == 0
    }

    fn claim(&self, block: usize) -> bool {
        // The plain load keeps the walk over used blocks cheap.
        let free = self.is_free(block) && self.counts[block].compare_exchange(0, 1, AcqRel, Relaxed).is_ok();
        if free {
            self.held.set(block);
        }
        free
    }

    /// Gives up this process's hold on a block.
    pub fn free(&self, block: u64) {
        if release(self.counts, &self.held, block as usize) {
            self.used.fetch_sub(1, Relaxed);
            self.freed.fetch_add(1, Relaxed);
        }
    }

    /// Remembers the hash of what is written to a block.
    pub fn set_hash(&self, block: u64, hash: PageHash) {
        let hashes = self.hashes[block as usize / self.extent]
            .get_or_init(|| (0..self.extent).map(|_| Default::default()).collect());
        let cells = &hashes[block as usize % self.extent];
        cells.iter().zip(hash).for_each(|(cell, word)| cell.store(word, Relaxed));
    }

    /// The hash of what was written to a block.
    pub fn hash(&self, block: u64) -> Option<PageHash> {
        let cells = &self.hashes.get(block as usize / self.extent)?.get()?[block as usize % self.extent];
        Some(cells.each_ref().map(|cell| cell.load(Relaxed)))
    }

    /// Bytes of metadata: the hashes.
    pub fn bytes(&self) -> usize {
        self.hashes.iter().filter(|hashes| hashes.get().is_some()).count() * self.extent * HASH_BYTES
    }

    /// Makes `child` a holder of everything that this process holds: before a fork.
    pub fn share_with(&self, child: &Held) {
        // 255 holders is more processes than a run may have.
        self.held.copy_to(child, |block| _ = self.counts[block].fetch_add(1, AcqRel));
    }

    /// The view of a forked child: the same contents and hashes, held by its own bits. What it writes goes
    /// to extents of its own.
    pub fn for_child(&self, held: Held) -> Self {
        Self {
            cursor: AtomicU64::new(self.cursor.load(Relaxed)),
            used: AtomicU64::new(self.used()),
            hashes: std::sync::Arc::clone(&self.hashes),
            ..Self::new(self.counts, held)
        }
    }
}

/// The positions of the bits that are set.
pub(crate) struct Bits(pub u64);

impl Iterator for Bits {
    type Item = usize;
    fn next(&mut self) -> Option<usize> {
        let bit = self.0.trailing_zeros() as usize;
        self.0 &= self.0.wrapping_sub(1);
        (bit < 64).then_some(bit)
    }
}

fn release(counts: &[AtomicU8], held: &Held, block: usize) -> bool {
    let was_held = held.clear(block);
    if was_held {
        counts[block].fetch_sub(1, AcqRel);
    }
    was_held
}

/// Frees every block that `held` names: what the launcher does for a process that died.
pub fn sweep(counts: &[AtomicU8], held: &Held) -> u64 {
    held.blocks().map(|block| u64::from(release(counts, held, block))).sum()
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn space(blocks: usize) -> Blocks {
        Blocks::private(blocks)
    }
    fn counts(blocks: usize) -> &'static [AtomicU8] {
        Vec::leak((0..blocks).map(|_| AtomicU8::new(0)).collect())
    }
    fn bits(blocks: usize) -> Held {
        Held::new(Vec::leak((0..Held::words(blocks)).map(|_| AtomicU64::new(0)).collect()), blocks)
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
    fn a_process_fills_extents_of_its_own_while_there_are_any() {
        let counts = counts(6 * EXTENT_MIN);
        let (first, second) =
            (Blocks::new(counts, bits(counts.len())), Blocks::new(counts, bits(counts.len())));
        let extent = EXTENT_MIN as u64;
        let fill = |start: u64| {
            for run in 0..extent / 32 {
                assert_eq!(first.allocate(32).unwrap().start, start + run * 32);
            }
        };
        fill(0);
        assert_eq!(second.allocate(32).unwrap().start, extent);
        fill(2 * extent);
        assert_eq!(first.allocate(32).unwrap().start, 3 * extent);
        (0..extent).for_each(|block| first.free(block));
        assert_eq!(first.allocate(32).unwrap().start, 3 * extent + 32, "what leaves together lies together");
        (2..extent / 32).for_each(|run| assert_eq!(first.allocate(32).unwrap().start, 3 * extent + run * 32));
        fill(0);
        (0..4 * extent).filter(|block| block % 2 == 0).for_each(|block| first.free(block));
        assert_eq!(first.allocate(32).unwrap().start, 4 * extent, "a new extent before single blocks");
        let child = first.for_child(bits(counts.len()));
        assert_eq!(child.allocate(8).unwrap().start, 5 * extent);
        let lengths: Vec<_> = std::iter::from_fn(|| child.allocate(32)).map(|run| run.length).collect();
        assert!(lengths.contains(&1), "in the end any block serves");
        assert!(counts.iter().all(|count| count.load(Relaxed) == 1));
    }

    #[test]
    fn a_shared_block_is_freed_by_its_last_user() {
        let counts = counts(64);
        let (parent_bits, child_bits) = (bits(64), bits(64));
        let parent = Blocks::new(counts, parent_bits);
        parent.allocate(64).unwrap();
        parent.share_with(&child_bits);
        parent.free(7);
        assert_eq!(parent.allocate(1), None, "the child still holds it");
        assert_eq!(sweep(counts, &child_bits), 64);
        assert_eq!(parent.allocate(1), Some(BlockRun { start: 7, length: 1 }));
        assert_eq!(sweep(counts, &child_bits), 0, "sweeping twice frees nothing twice");
    }
}
