//! Device space: which blocks are in use, and by whom.
//!
//! The counts are shared by every process of a run; a block is free when its count is zero. Each process
//! also marks the blocks that it holds in a bitmap of its own ([`Held`]), likewise shared, so that the launcher can
//! give back what a killed process held. Counts change by atomic operations only, and giving a block up never
//! allocates: freeing memory never needs memory.
//!
//! The space is that of the device's tiers, one behind the other. In each, blocks are taken below its
//! [`Frontier`], which all share: the books of what was never in use are not looked
//! at, and what a process notes of its own is made extent by extent. So a device may be as large as a disk is.
//!
//! Order, so that a kill at any instant can leak a block but never free one in use: the count goes up
//! before the bit is set, and the bit is cleared before the count goes down.

#[cfg(test)]
pub(crate) mod tests;
mod tier;

use crate::frontier::{EXTENT, Frontier, Frontiers};
use crate::hash::PageHash;
use crate::held::Held;
use crate::sparse::Sparse;
use std::sync::Arc;
use std::sync::atomic::{
    AtomicBool, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering::AcqRel, Ordering::Relaxed,
};
use tier::TierSpace;

const EXTENT_BLOCKS: usize = EXTENT as usize;
const WORD_BITS: usize = u64::BITS as usize;

/// The view that one process has of the device's space: it takes blocks, notes the hash of each, and gives them up.
///
/// ```
/// use pagetide_swap::blocks::{BlockRun, Blocks};
///
/// let blocks = Blocks::private(1024);
/// let run = blocks.allocate(32).expect("the device is empty");
/// assert_eq!(run, BlockRun { start: 0, length: 32 });
/// blocks.set_hash(7, [1, 2, 3]);
/// assert_eq!(blocks.hash(7), Some([1, 2, 3]));
/// blocks.free(7);
/// assert_eq!((blocks.used(), blocks.taken()), (31, 31));
/// ```
#[derive(Debug)]
pub struct Blocks {
    books: Books,
    tiers: Vec<TierSpace>,
    /// The number of the tier that is tried first.
    preferred: AtomicUsize,
    frontiers: Frontiers,
    hashes: Arc<Sparse<Hashes>>,
}

/// The books of all blocks: who holds them, and which of them hold pages of this process.
#[derive(Debug)]
struct Books {
    counts: &'static [AtomicU8],
    held: Held,
    extents: Sparse<Extent>,
}

/// A process's notes about an extent, which is 2 MiB of device.
#[derive(Debug, Default)]
struct Extent {
    /// Whether this process found them all free and took them: then its next runs come from there.
    own: AtomicBool,
    /// The blocks that hold pages of this process, a bit each. The books that processes share may be written over by
    /// one that should not: a block that seems free there is taken again only if nothing of ours is in it, for its hash
    /// would then be the newer page's.
    ours: [AtomicU64; EXTENT_BLOCKS / WORD_BITS],
}

impl Extent {
    fn word_and_bit(&self, block: usize) -> (&AtomicU64, u64) {
        (&self.ours[block % EXTENT_BLOCKS / WORD_BITS], 1 << (block % WORD_BITS))
    }
}

/// The hashes of an extent: 6 KiB.
#[derive(Debug)]
struct Hashes([[AtomicU32; 3]; EXTENT_BLOCKS]);

impl Default for Hashes {
    fn default() -> Self {
        Self(std::array::from_fn(|_| Default::default()))
    }
}

/// A contiguous run of blocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BlockRun {
    /// The first block.
    pub start: u64,
    /// The number of blocks.
    pub length: usize,
}

impl Books {
    fn is_free(&self, block: usize) -> bool {
        self.counts[block].load(Relaxed) == 0
    }

    fn claim(&self, block: usize) -> bool {
        // The plain load keeps the walk over used blocks cheap.
        if !self.is_free(block) {
            return false;
        }
        let (word, bit) = self.extents.get_or_make(block / EXTENT_BLOCKS).word_and_bit(block);
        let free = self.counts[block].compare_exchange(0, 1, AcqRel, Relaxed).is_ok();
        let ours = free && word.fetch_or(bit, AcqRel) & bit == 0;
        if ours {
            self.held.set(block);
        }
        ours
    }

    fn is_own(&self, extent: usize) -> bool {
        self.extents.get(extent).is_some_and(|extent| extent.own.load(Relaxed))
    }

    /// Makes an extent this process's own. Returns its first block.
    fn own(&self, extent: usize) -> usize {
        self.extents.get_or_make(extent).own.store(true, Relaxed);
        extent * EXTENT_BLOCKS
    }
}

impl Blocks {
    /// Returns a view of the device that is described by shared `counts` (holders of each block), by the blocks that
    /// this process has `held`, and by the `frontiers` of its tiers, below which blocks are taken.
    ///
    /// # Panics
    /// If the three are not of a device of the same size.
    pub fn new(counts: &'static [AtomicU8], held: Held, frontiers: Frontiers) -> Self {
        assert!(held.covers(counts.len()) && frontiers.total() == counts.len() as u64);
        let extents = counts.len().div_ceil(EXTENT_BLOCKS);
        Self {
            books: Books { counts, held, extents: Sparse::new(extents) },
            tiers: frontiers.iter().map(|(start, frontier)| TierSpace::new(start, frontier)).collect(),
            preferred: AtomicUsize::new(0),
            frontiers,
            hashes: Arc::new(Sparse::new(extents)),
        }
    }

    /// Returns the view of a process without a device: it has no blocks.
    pub fn none() -> Self {
        Self::private(0)
    }

    /// Returns a view of `blocks` blocks of one tier that no other process shares.
    pub fn private(blocks: usize) -> Self {
        Self::private_tiers(&[blocks])
    }

    /// Returns a view of tiers of so many blocks each that no other process shares.
    ///
    /// # Panics
    /// As [`Frontiers::new`].
    pub fn private_tiers(tiers: &[usize]) -> Self {
        let blocks = tiers.iter().sum();
        let counts = Vec::leak((0..blocks).map(|_| AtomicU8::new(0)).collect());
        let words = Vec::leak((0..Held::words(blocks)).map(|_| AtomicU64::new(0)).collect());
        let frontiers = Frontiers::new(tiers.iter().map(|&blocks| Frontier::private(blocks as u64)));
        Self::new(counts, Held::new(words, blocks), frontiers)
    }

    /// Returns the number of blocks that may be taken just now: those below the frontiers, and those by which they may
    /// move.
    pub fn limit(&self) -> u64 {
        self.tiers.iter().map(TierSpace::limit).sum()
    }

    /// Returns the number of tiers.
    pub fn tiers(&self) -> usize {
        self.tiers.len()
    }

    /// Returns the number of the tier in which a block lies; of one beyond all, the last.
    pub fn tier_of(&self, block: u64) -> usize {
        let behind = self.tiers.iter().skip(1).take_while(|tier| tier.start() <= block);
        behind.count()
    }

    /// Returns the first block of a tier.
    ///
    /// # Panics
    /// If there is no such tier.
    pub fn first_of(&self, tier: usize) -> u64 {
        self.tiers[tier].start()
    }

    /// Has blocks be taken from this tier first.
    pub fn prefer(&self, tier: usize) {
        self.preferred.store(tier, Relaxed);
    }

    /// Returns the number of the tier from which blocks are taken first.
    pub fn preferred(&self) -> usize {
        self.preferred.load(Relaxed)
    }

    /// Takes no block from this tier any more.
    ///
    /// # Panics
    /// If there is no such tier.
    pub fn close(&self, tier: usize) {
        self.tiers[tier].close();
    }

    /// Returns the number of blocks that this process holds.
    pub fn used(&self) -> u64 {
        self.tiers.iter().map(TierSpace::used).sum()
    }

    /// Returns the number of blocks of a tier that this process holds; 0 if there is no such tier.
    pub fn used_of(&self, tier: usize) -> u64 {
        self.tiers.get(tier).map_or(0, TierSpace::used)
    }

    /// Returns the number of blocks that any process of the run holds. It looks at every block.
    pub fn taken(&self) -> u64 {
        (0..self.tiers.len()).map(|tier| self.taken_of(tier)).sum()
    }

    /// Returns the number of blocks of a tier that any process of the run holds. It looks at every block.
    ///
    /// # Panics
    /// If there is no such tier.
    pub fn taken_of(&self, tier: usize) -> u64 {
        self.tiers[tier].taken(&self.books)
    }

    /// Takes up to `wanted` free blocks that lie together; `None` if the device is full.
    ///
    /// A tier that has refused a write comes after those that have not, and the preferred one before others.
    ///
    /// A process fills extents of its own: so pages that leave together lie together, and hashes take memory by the
    /// blocks that it holds, not by the size of the device. It takes a whole run from where the last search ended, else
    /// from a new extent. Where no extent is free, it takes any free blocks, and a shorter run.
    pub fn allocate(&self, wanted: usize) -> Option<BlockRun> {
        if wanted == 0 {
            return None;
        }
        self.in_order().find_map(|tier| self.tiers[tier].allocate(&self.books, wanted))
    }

    /// Returns the number of the tier that is tried first for the next blocks, if there is one that takes pages.
    pub fn next_tier(&self) -> Option<usize> {
        self.in_order().next()
    }

    /// Returns the numbers of the tiers that take pages, the first choice first.
    fn in_order(&self) -> impl Iterator<Item = usize> {
        let (preferred, count) = (self.preferred(), self.tiers.len());
        let order = move || (0..count).map(move |step| (preferred + step) % count);
        let of = move |parked| {
            order()
                .filter(move |&tier| self.tiers[tier].has_parked() == parked && !self.tiers[tier].is_closed())
        };
        of(false).chain(of(true))
    }

    /// Sets blocks aside that were taken and could not be written to: they are not taken again before
    /// [`Blocks::unpark`]. The disk may have room for other blocks, which were written once.
    pub fn park(&self, run: BlockRun) {
        self.tiers[self.tier_of(run.start)].park(run);
    }

    /// Returns whether blocks are set aside.
    pub fn has_parked(&self) -> bool {
        self.tiers.iter().any(TierSpace::has_parked)
    }

    /// Gives up the blocks of a tier that were set aside.
    ///
    /// # Panics
    /// If there is no such tier.
    pub fn unpark(&self, tier: usize) {
        for BlockRun { start, length } in self.tiers[tier].unpark() {
            (start..).take(length).for_each(|block| self.free(block));
        }
    }

    /// Gives up this process's hold on a block. It is free when no other process holds it either.
    pub fn free(&self, block: u64) {
        if let Some(extent) = self.books.extents.get(block as usize / EXTENT_BLOCKS) {
            let (word, bit) = extent.word_and_bit(block as usize);
            word.fetch_and(!bit, AcqRel);
        }
        if release(self.books.counts, &self.books.held, &self.frontiers, block as usize) {
            self.tiers[self.tier_of(block)].note_freed();
        }
    }

    /// Notes the hash of the page that is written to a block.
    pub fn set_hash(&self, block: u64, hash: PageHash) {
        let hashes = self.hashes.get_or_make(block as usize / EXTENT_BLOCKS);
        let cells = &hashes.0[block as usize % EXTENT_BLOCKS];
        cells.iter().zip(hash).for_each(|(cell, word)| cell.store(word, Relaxed));
    }

    /// Returns the hash of the page that was last written to a block; `None` if none was written near it.
    pub fn hash(&self, block: u64) -> Option<PageHash> {
        let hashes = self.hashes.get(block as usize / EXTENT_BLOCKS)?;
        Some(hashes.0[block as usize % EXTENT_BLOCKS].each_ref().map(|cell| cell.load(Relaxed)))
    }

    /// Returns the bytes of memory that the hashes and the notes about extents take.
    pub fn bytes(&self) -> usize {
        self.hashes.made() * size_of::<Hashes>() + self.books.extents.made() * size_of::<Extent>()
    }

    /// Makes a child, whose bitmap is `child`, a holder of every block that this process holds. To be called before the
    /// fork.
    pub fn share_with(&self, child: &Held) {
        // 255 holders is more processes than a run may have.
        // (A bit beyond the last block is none of ours: somebody has written to the bitmap who should not.)
        let count = |block: usize| self.books.counts.get(block).map(|count| count.fetch_add(1, AcqRel));
        self.books.held.copy_to(child, |block| _ = count(block));
    }

    /// Returns the view of a forked child: it has the same contents and hashes, and holds them by its own bits, `held`.
    /// It writes to extents of its own.
    pub fn for_child(&self, held: Held) -> Self {
        let child = Self {
            tiers: self.tiers.iter().map(TierSpace::for_child).collect(),
            preferred: AtomicUsize::new(self.preferred.load(Relaxed)),
            hashes: Arc::clone(&self.hashes),
            ..Self::new(self.books.counts, held, self.frontiers)
        };
        for (index, extent) in self.books.extents.iter() {
            let words = child.books.extents.get_or_make(index).ours.iter().zip(&extent.ours);
            words.for_each(|(copy, word)| copy.store(word.load(Relaxed), Relaxed));
        }
        (0..child.tiers.len()).for_each(|tier| child.unpark(tier));
        child
    }
}

fn release(counts: &[AtomicU8], held: &Held, frontiers: &Frontiers, block: usize) -> bool {
    let was_held = held.clear(block);
    // Both are written by other processes too: what does not fit together is let be.
    let count = counts.get(block).filter(|_| was_held);
    let lower = |count: &AtomicU8| count.fetch_update(AcqRel, Relaxed, |holders| holders.checked_sub(1)).ok();
    let before = count.and_then(lower);
    if before == Some(1)
        && let Some(frontier) = frontiers.of(block as u64)
    {
        frontier.note_freed();
    }
    before.is_some()
}

/// Frees every block that `held` names, as the launcher does for a process that died. Returns how many had been held.
pub fn sweep(counts: &[AtomicU8], held: &Held, frontiers: &Frontiers) -> u64 {
    held.blocks().map(|block| u64::from(release(counts, held, frontiers, block))).sum()
}
