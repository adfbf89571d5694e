//! The frontier of a tier of the device: blocks are taken below it only, and it moves up an extent at a time.
//!
//! So a sparse file takes the room that was once written, not the room that it may grow to, and the books beyond the
//! frontier are never looked at. The launcher *allows* as many blocks as the disk has room for. That may be less than
//! is open: then the frontier stays where it is, and only blocks that were given up are taken again.
//!
//! Every process of the run can write to these words: what is read is within the device.

use std::sync::atomic::{
    AtomicU64, Ordering::AcqRel, Ordering::Acquire, Ordering::Relaxed, Ordering::Release,
};

/// Blocks of an extent: 2 MiB.
pub const EXTENT: u64 = 512;

/// Tiers that a device may have: a swap file, and a remote tier behind it.
pub const TIERS: usize = 2;

/// The frontier of a tier, whose blocks it counts from the tier's first.
#[derive(Clone, Copy, Debug)]
pub struct Frontier {
    total: u64,
    words: &'static [AtomicU64; Self::WORDS],
}

/// The places of the three words: blocks below the frontier, blocks that are allowed, blocks that were given up.
const OPEN: usize = 0;
const ALLOWED: usize = 1;
const FREED: usize = 2;

impl Frontier {
    /// Words of shared memory that a frontier takes.
    pub const WORDS: usize = 3;

    /// Returns the frontier of a tier of `total` blocks, in words that are zero at first.
    pub fn new(total: u64, words: &'static [AtomicU64; Self::WORDS]) -> Self {
        Self { total, words }
    }

    /// Returns the frontier of a tier of `total` blocks, all allowed, that no other process shares.
    pub fn private(total: u64) -> Self {
        let this = Self::new(total, Box::leak(Box::default()));
        this.allow(total);
        this
    }

    /// Returns the number of blocks that there may ever be.
    pub fn total(&self) -> u64 {
        self.total
    }

    /// Returns the number of blocks below the frontier.
    pub fn open(&self) -> u64 {
        self.words[OPEN].load(Acquire).min(self.total)
    }

    /// Returns the number of blocks up to which the frontier may move just now.
    pub fn allowed(&self) -> u64 {
        self.words[ALLOWED].load(Acquire).min(self.total)
    }

    /// Sets the number of blocks up to which the frontier may move.
    pub fn allow(&self, blocks: u64) {
        self.words[ALLOWED].store(blocks.min(self.total), Release);
    }

    /// Moves the frontier up by an extent and returns the extent's number; `None` if that is not allowed. The caller is
    /// the first to take its blocks.
    pub fn advance(&self) -> Option<usize> {
        let allowed = self.allowed();
        let next = |open: u64| {
            let open = open.min(self.total);
            let next = ((open / EXTENT + 1) * EXTENT).min(self.total);
            (open < next && next <= allowed).then_some(next)
        };
        let open = self.words[OPEN].fetch_update(AcqRel, Acquire, next).ok()?;
        Some((open / EXTENT) as usize)
    }

    /// Notes that a block has lost its last holder.
    pub fn note_freed(&self) {
        self.words[FREED].fetch_add(1, Relaxed);
    }

    /// Returns a number that changes whenever a block is given up or the frontier moves.
    pub fn stamp(&self) -> u64 {
        // Both go up only.
        self.words[FREED].load(Relaxed).wrapping_add(self.open())
    }
}

/// The frontiers of a device's tiers, which lie one behind the other.
#[derive(Clone, Copy, Debug)]
pub struct Frontiers([Option<Frontier>; TIERS]);

impl Frontiers {
    /// Returns the frontiers of these tiers.
    ///
    /// # Panics
    /// If there are more than [`TIERS`], or one that is followed by another does not end with an extent.
    pub fn new(tiers: impl IntoIterator<Item = Frontier>) -> Self {
        let mut this = Self([None; TIERS]);
        for (place, frontier) in tiers.into_iter().enumerate() {
            assert!(this.total().is_multiple_of(EXTENT), "an extent lies in one tier");
            this.0[place] = Some(frontier);
        }
        this
    }

    /// Returns the frontiers, each with the number of the tier's first block.
    pub fn iter(&self) -> impl Iterator<Item = (u64, Frontier)> {
        self.0.into_iter().flatten().scan(0, |end, frontier| {
            let start = *end;
            *end += frontier.total();
            Some((start, frontier))
        })
    }

    /// Returns the frontier of the tier in which a block lies.
    pub fn of(&self, block: u64) -> Option<Frontier> {
        self.iter().find(|(start, frontier)| block < start + frontier.total()).map(|(_, frontier)| frontier)
    }

    /// Returns the number of blocks that there may ever be.
    pub fn total(&self) -> u64 {
        self.iter().map(|(_, frontier)| frontier.total()).sum()
    }

    /// Returns the number of blocks below the frontiers.
    pub fn open(&self) -> u64 {
        self.iter().map(|(_, frontier)| frontier.open()).sum()
    }

    /// Returns the number of blocks up to which the frontiers may move just now.
    pub fn allowed(&self) -> u64 {
        self.iter().map(|(_, frontier)| frontier.allowed()).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_moves_by_extents_as_far_as_is_allowed() {
        let frontier = Frontier::private(2 * EXTENT + 100);
        frontier.allow(EXTENT + 5);
        assert_eq!((frontier.advance(), frontier.open()), (Some(0), EXTENT));
        assert_eq!((frontier.advance(), frontier.open()), (None, EXTENT));
        frontier.allow(0);
        assert_eq!((frontier.advance(), frontier.open()), (None, EXTENT));
        frontier.allow(u64::MAX);
        assert_eq!((frontier.advance(), frontier.advance()), (Some(1), Some(2)));
        assert_eq!((frontier.advance(), frontier.open()), (None, 2 * EXTENT + 100));
    }

    #[test]
    fn what_others_write_there_leads_nowhere_else() {
        let frontier = Frontier::private(1000);
        frontier.words.iter().for_each(|word| word.store(u64::MAX, Relaxed));
        assert_eq!((frontier.open(), frontier.allowed(), frontier.advance()), (1000, 1000, None));
        frontier.words[OPEN].store(7, Relaxed);
        assert_eq!((frontier.advance(), frontier.open()), (Some(0), EXTENT));
    }
}
