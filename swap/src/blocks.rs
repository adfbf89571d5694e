//! Device space: which blocks of the swap file are in use, and by whom.
//!
//! The counts are shared by every process of a run; a block is free when its count is zero. Each process
//! also marks the blocks that it holds in a bitmap of its own ([`Held`]), likewise shared, so that the launcher can
//! give back what a killed process held. Counts change by atomic operations only, and giving a block up never
//! allocates: freeing memory never needs memory.
//!
//! Blocks are taken below the device's [`Frontier`], which all share: the books of what was never in use are not looked
//! at, and what a process notes of its own is made extent by extent. So a device may be as large as a disk is.
//!
//! Order, so that a kill at any instant can leak a block but never free one in use: the count goes up
//! before the bit is set, and the bit is cleared before the count goes down.

use crate::frontier::{EXTENT, Frontier};
use crate::hash::PageHash;
use crate::held::Held;
use crate::sparse::Sparse;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering::AcqRel, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

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
    counts: &'static [AtomicU8],
    held: Held,
    frontier: Frontier,
    extents: Sparse<Extent>,
    hashes: Arc<Sparse<Hashes>>,
    /// The block at which the last search ended.
    cursor: AtomicU64,
    used: AtomicU64,
    /// Blocks that this process has given up since it started.
    freed: AtomicU64,
    /// The value of `freed` from which on it is worth to look for a whole run in our own extents again.
    barren_until: AtomicU64,
    /// The value of `freed` from which on it is worth to look for an extent of which no block is taken.
    taken_until: AtomicU64,
    /// One more than the frontier's stamp when nothing at all was free; 0 if something was.
    full: AtomicU64,
    /// Blocks that could not be written to: they are held, and no page is in them.
    parked: Mutex<Vec<BlockRun>>,
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

impl Blocks {
    /// Returns a view of the device that is described by shared `counts` (holders of each block), by the blocks that
    /// this process has `held`, and by the `frontier` below which blocks are taken.
    ///
    /// # Panics
    /// If the three are not of a device of the same size.
    pub fn new(counts: &'static [AtomicU8], held: Held, frontier: Frontier) -> Self {
        assert!(held.covers(counts.len()) && frontier.total() == counts.len() as u64);
        let extents = counts.len().div_ceil(EXTENT_BLOCKS);
        Self {
            counts,
            held,
            frontier,
            extents: Sparse::new(extents),
            hashes: Arc::new(Sparse::new(extents)),
            cursor: AtomicU64::new(0),
            used: AtomicU64::new(0),
            freed: AtomicU64::new(0),
            barren_until: AtomicU64::new(0),
            taken_until: AtomicU64::new(0),
            full: AtomicU64::new(0),
            parked: Mutex::default(),
        }
    }

    /// Returns the view of a process without a device: it has no blocks.
    pub fn none() -> Self {
        Self::private(0)
    }

    /// Returns a view of `blocks` blocks that no other process shares.
    pub fn private(blocks: usize) -> Self {
        let counts = Vec::leak((0..blocks).map(|_| AtomicU8::new(0)).collect());
        let words = Vec::leak((0..Held::words(blocks)).map(|_| AtomicU64::new(0)).collect());
        Self::new(counts, Held::new(words, blocks), Frontier::private(blocks as u64))
    }

    /// Returns the number of blocks that may be taken just now: those below the frontier, and those by which it may
    /// move.
    pub fn limit(&self) -> u64 {
        self.frontier.allowed().max(self.frontier.open())
    }

    /// Returns the number of blocks that this process holds.
    pub fn used(&self) -> u64 {
        self.used.load(Relaxed)
    }

    /// Returns the number of blocks that any process of the run holds. It looks at every block.
    pub fn taken(&self) -> u64 {
        (0..self.open()).filter(|&block| !self.is_free(block)).count() as u64
    }

    fn open(&self) -> usize {
        self.frontier.open() as usize
    }

    /// Takes up to `wanted` free blocks that lie together; `None` if the device is full.
    ///
    /// A process fills extents of its own: so pages that leave together lie together, and hashes take memory by the
    /// blocks that it holds, not by the size of the device. It takes a whole run from where the last search ended, else
    /// from a new extent. Where no extent is free, it takes any free blocks, and a shorter run.
    pub fn allocate(&self, wanted: usize) -> Option<BlockRun> {
        if self.counts.is_empty() || wanted == 0 {
            return None;
        }
        let stamp = self.frontier.stamp().wrapping_add(1).max(1);
        let run = self
            .in_own_extents(wanted)
            .or_else(|| self.new_extent(stamp))
            .and_then(|start| self.claim_run(start, wanted))
            .or_else(|| self.claim_any(wanted, stamp))?;
        self.cursor.store(run.start + run.length as u64, Relaxed);
        self.used.fetch_add(run.length as u64, Relaxed);
        Some(run)
    }

    /// Finds a whole run in the extent of the last search, or in any of this process's. Where there was none, it looks
    /// in the last extent only until as many blocks as an extent has were freed.
    fn in_own_extents(&self, wanted: usize) -> Option<usize> {
        let find = |extent: usize| self.is_own(extent).then(|| self.whole_run(extent, wanted))?;
        let freed = self.freed.load(Relaxed);
        if freed < self.barren_until.load(Relaxed) {
            return find(self.last_extent()?);
        }
        let found = self.in_extents(find);
        if found.is_none() {
            self.barren_until.store(freed + EXTENT, Relaxed);
        }
        found
    }

    /// Takes an extent that was given up, or else has the device grow. Where none was given up, the device grows first
    /// until as many blocks as an extent has were freed.
    fn new_extent(&self, stamp: u64) -> Option<usize> {
        let freed = self.freed.load(Relaxed);
        let looked = freed < self.taken_until.load(Relaxed);
        let grown = || self.grow();
        if looked {
            return grown().or_else(|| self.given_up_extent(stamp));
        }
        self.given_up_extent(stamp).or_else(|| {
            self.taken_until.store(freed + EXTENT, Relaxed);
            grown()
        })
    }

    fn given_up_extent(&self, stamp: u64) -> Option<usize> {
        (!self.is_full(stamp)).then(|| self.in_extents(|extent| self.take_extent(extent)))?
    }

    /// Moves the frontier, unless the disk has just refused what lies below.
    fn grow(&self) -> Option<usize> {
        if self.has_parked() {
            return None;
        }
        self.frontier.advance().map(|extent| self.own(extent))
    }

    /// Returns what `find` finds first, in the extents from the cursor's on.
    fn in_extents(&self, find: impl Fn(usize) -> Option<usize>) -> Option<usize> {
        let (extents, last) = (self.open().div_ceil(EXTENT_BLOCKS), self.last_extent()?);
        (0..extents).find_map(|step| find((last + step) % extents))
    }

    fn last_extent(&self) -> Option<usize> {
        let extents = self.open().div_ceil(EXTENT_BLOCKS);
        (self.cursor.load(Relaxed) as usize / EXTENT_BLOCKS).checked_rem(extents)
    }

    fn is_own(&self, extent: usize) -> bool {
        self.extents.get(extent).is_some_and(|extent| extent.own.load(Relaxed))
    }

    /// Makes an extent this process's own. Returns its first block.
    fn own(&self, extent: usize) -> usize {
        self.extents.get_or_make(extent).own.store(true, Relaxed);
        extent * EXTENT_BLOCKS
    }

    fn blocks_of(&self, extent: usize) -> Range<usize> {
        extent * EXTENT_BLOCKS..((extent + 1) * EXTENT_BLOCKS).min(self.open())
    }

    /// Returns the first block of `wanted` free blocks that lie together.
    fn whole_run(&self, extent: usize, wanted: usize) -> Option<usize> {
        let Range { start: mut at, end } = self.blocks_of(extent);
        let mut length = 0;
        while at < end && length < wanted {
            if at.is_multiple_of(WORD_BITS) && self.held.holds_all_from(at) {
                (at, length) = (at + WORD_BITS, 0);
                continue;
            }
            length = if self.is_free(at) { length + 1 } else { 0 };
            at += 1;
        }
        (length == wanted).then(|| at - length)
    }

    /// Makes a free extent this process's own. Two that find it at one time share it.
    fn take_extent(&self, extent: usize) -> Option<usize> {
        self.blocks_of(extent).all(|block| self.is_free(block)).then(|| self.own(extent))
    }

    /// Takes blocks from `start` on, as far as they are free.
    fn claim_run(&self, start: usize, wanted: usize) -> Option<BlockRun> {
        let end = (start + wanted).min(self.open());
        let length = (start..end).take_while(|&block| self.claim(block)).count();
        (length > 0).then_some(BlockRun { start: start as u64, length })
    }

    /// Takes any free blocks, from the cursor on. Where there were none, this process looks again after a block was
    /// freed.
    fn claim_any(&self, wanted: usize, stamp: u64) -> Option<BlockRun> {
        if self.is_full(stamp) {
            return None;
        }
        let (open, first) = (self.open(), self.cursor.load(Relaxed) as usize);
        let claim = |block: usize| {
            let skip = block.is_multiple_of(WORD_BITS) && self.held.holds_all_from(block);
            if skip { Err(WORD_BITS) } else { self.claim_run(block, wanted).ok_or(1) }
        };
        for Range { start: mut block, end } in [first.min(open)..open, 0..first.min(open)] {
            while block < end {
                match claim(block) {
                    Ok(run) => return Some(run),
                    Err(passed) => block += passed,
                }
            }
        }
        self.full.store(stamp, Relaxed);
        None
    }

    fn is_full(&self, stamp: u64) -> bool {
        self.full.load(Relaxed) == stamp
    }

    /// Sets blocks aside that were taken and could not be written to: they are not taken again before
    /// [`Blocks::unpark`]. The disk may have room for other blocks, which were written once.
    pub fn park(&self, run: BlockRun) {
        let length = run.length as u64;
        self.used.fetch_sub(length, Relaxed);
        self.lock_parked().push(run);
    }

    /// Returns whether blocks are set aside.
    pub fn has_parked(&self) -> bool {
        !self.lock_parked().is_empty()
    }

    /// Gives up the blocks that were set aside. Returns whether there were any.
    pub fn unpark(&self) -> bool {
        let parked = std::mem::take(&mut *self.lock_parked());
        for &BlockRun { start, length } in &parked {
            self.used.fetch_add(length as u64, Relaxed);
            (start..).take(length).for_each(|block| self.free(block));
        }
        !parked.is_empty()
    }

    fn lock_parked(&self) -> MutexGuard<'_, Vec<BlockRun>> {
        self.parked.lock().unwrap_or_else(PoisonError::into_inner)
    }

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

    /// Gives up this process's hold on a block. It is free when no other process holds it either.
    pub fn free(&self, block: u64) {
        if let Some(extent) = self.extents.get(block as usize / EXTENT_BLOCKS) {
            let (word, bit) = extent.word_and_bit(block as usize);
            word.fetch_and(!bit, AcqRel);
        }
        if release(self.counts, &self.held, &self.frontier, block as usize) {
            self.used.fetch_sub(1, Relaxed);
            self.freed.fetch_add(1, Relaxed);
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
        self.hashes.made() * size_of::<Hashes>() + self.extents.made() * size_of::<Extent>()
    }

    /// Makes a child, whose bitmap is `child`, a holder of every block that this process holds. To be called before the
    /// fork.
    pub fn share_with(&self, child: &Held) {
        // 255 holders is more processes than a run may have.
        // (A bit beyond the last block is none of ours: somebody has written to the bitmap who should not.)
        let count = |block: usize| self.counts.get(block).map(|count| count.fetch_add(1, AcqRel));
        self.held.copy_to(child, |block| _ = count(block));
    }

    /// Returns the view of a forked child: it has the same contents and hashes, and holds them by its own bits, `held`.
    /// It writes to extents of its own.
    pub fn for_child(&self, held: Held) -> Self {
        let child = Self {
            cursor: AtomicU64::new(self.cursor.load(Relaxed)),
            used: AtomicU64::new(self.used()),
            hashes: Arc::clone(&self.hashes),
            // It holds those too, and has no use for them.
            parked: Mutex::new(self.lock_parked().clone()),
            ..Self::new(self.counts, held, self.frontier)
        };
        for (index, extent) in self.extents.iter() {
            let words = child.extents.get_or_make(index).ours.iter().zip(&extent.ours);
            words.for_each(|(copy, word)| copy.store(word.load(Relaxed), Relaxed));
        }
        child.unpark();
        child
    }
}

fn release(counts: &[AtomicU8], held: &Held, frontier: &Frontier, block: usize) -> bool {
    let was_held = held.clear(block);
    // Both are written by other processes too: what does not fit together is let be.
    let count = counts.get(block).filter(|_| was_held);
    let lower = |count: &AtomicU8| count.fetch_update(AcqRel, Relaxed, |holders| holders.checked_sub(1)).ok();
    let before = count.and_then(lower);
    if before == Some(1) {
        frontier.note_freed();
    }
    before.is_some()
}

/// Frees every block that `held` names, as the launcher does for a process that died. Returns how many had been held.
pub fn sweep(counts: &[AtomicU8], held: &Held, frontier: &Frontier) -> u64 {
    held.blocks().map(|block| u64::from(release(counts, held, frontier, block))).sum()
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

    fn frontier(blocks: usize) -> Frontier {
        Frontier::private(blocks as u64)
    }

    #[test]
    fn what_others_have_written_over_the_books_ends_nobody() {
        let (counts, words) =
            (counts(100), Vec::leak((0..Held::words(100)).map(|_| AtomicU64::new(u64::MAX)).collect()));
        let held = Held::new(words, 100);
        let blocks = Blocks::new(counts, held, frontier(100));
        assert_eq!(blocks.allocate(10).unwrap().length, 10);
        blocks.share_with(&bits(100));
        counts.iter().for_each(|count| count.store(0, Relaxed));
        assert_eq!(sweep(counts, &held, &blocks.frontier), 0);
        assert!(counts.iter().all(|count| count.load(Relaxed) == 0), "none has fewer holders than none");
        blocks.free(3);
        assert!(held.is_empty());
    }

    #[test]
    fn a_block_in_use_is_not_taken_again_whatever_the_shared_books_say() {
        let blocks = space(128);
        let run = blocks.allocate(64).unwrap();
        // Somebody who should not writes that all is free.
        blocks.counts.iter().for_each(|count| count.store(0, Relaxed));
        let next = blocks.allocate(128).unwrap();
        assert!(next.start >= run.start + 64 || next.start + next.length as u64 <= run.start);
        blocks.free(run.start);
        blocks.counts[run.start as usize].store(0, Relaxed);
        assert!(std::iter::from_fn(|| blocks.allocate(1)).any(|one| one.start == run.start));
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
        let counts = counts(6 * EXTENT_BLOCKS);
        let frontier = frontier(counts.len());
        let [first, second] = [(); 2].map(|()| Blocks::new(counts, bits(counts.len()), frontier));
        let extent = EXTENT;
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
    fn processes_take_what_a_naive_model_has_free_and_grow_no_further_than_is_allowed() {
        let mut random = 1u64;
        let mut next = |below: u64| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (random >> 33) % below
        };
        for _ in 0..30 {
            let total = 1 + next(8 * EXTENT) as usize;
            let (counts, frontier) = (counts(total), frontier(total));
            let processes = [(); 3].map(|()| Blocks::new(counts, bits(total), frontier));
            let mut held: [Vec<u64>; 3] = Default::default();
            let mut parked: [usize; 3] = [0; 3];
            for _ in 0..2000 {
                let who = next(3) as usize;
                let (blocks, mine) = (&processes[who], &mut held[who]);
                match next(8) {
                    0 => frontier.allow(next(total as u64 + 1)),
                    1 => {
                        blocks.unpark();
                        parked[who] = 0;
                    }
                    2..5 if !mine.is_empty() => {
                        for _ in 0..next(64).min(mine.len() as u64) {
                            blocks.free(mine.swap_remove(next(mine.len() as u64) as usize));
                        }
                    }
                    _ => {
                        let (open, wanted) = (frontier.open(), 1 + next(64) as usize);
                        let run = blocks.allocate(wanted);
                        let grown = frontier.open();
                        assert!(grown <= open.max(frontier.allowed()) && grown <= open + EXTENT);
                        assert!(grown == open || parked[who] == 0, "it grows where the disk has no room");
                        let all: usize = held.iter().map(Vec::len).chain(parked).sum();
                        let Some(BlockRun { start, length }) = run else {
                            assert_eq!(all as u64, open, "a block is free, and not found");
                            continue;
                        };
                        let taken = start..start + length as u64;
                        assert!(taken.end <= grown && length <= wanted);
                        assert!(!held.iter().flatten().any(|block| taken.contains(block)));
                        if next(10) == 0 {
                            processes[who].park(run.unwrap());
                            parked[who] += length;
                        } else {
                            held[who].extend(taken);
                        }
                    }
                }
                for (blocks, held) in processes.iter().zip(&held) {
                    assert_eq!(blocks.used(), held.len() as u64);
                }
                let all: usize = held.iter().map(Vec::len).chain(parked).sum();
                assert_eq!(processes[0].taken(), all as u64);
            }
        }
    }

    #[test]
    fn a_child_gives_up_what_its_parent_could_not_write_to() {
        let counts = counts(64);
        let parent = Blocks::new(counts, bits(64), frontier(64));
        parent.park(parent.allocate(32).unwrap());
        let child_bits = bits(64);
        parent.share_with(&child_bits);
        let child = parent.for_child(child_bits);
        assert_eq!((parent.used(), child.used(), child_bits.is_empty()), (0, 0, true));
        parent.unpark();
        assert_eq!(child.allocate(64).map(|run| run.length), Some(64));
    }

    #[test]
    fn a_shared_block_is_freed_by_its_last_user() {
        let counts = counts(64);
        let (parent_bits, child_bits) = (bits(64), bits(64));
        let parent = Blocks::new(counts, parent_bits, frontier(64));
        parent.allocate(64).unwrap();
        parent.share_with(&child_bits);
        parent.free(7);
        assert_eq!(parent.allocate(1), None, "the child still holds it");
        assert_eq!(sweep(counts, &child_bits, &parent.frontier), 64);
        assert_eq!(parent.allocate(1), Some(BlockRun { start: 7, length: 1 }));
        assert_eq!(sweep(counts, &child_bits, &parent.frontier), 0, "sweeping twice frees nothing twice");
    }
}
