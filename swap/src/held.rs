//! The blocks of the device that one process holds: a bitmap in shared memory, and a summary of it.
//!
//! ```text
//! ┌───────────────────────┬──────────────────────────────────────────┐
//! │ summary: a bit a page │ a bit a block; 512 words (32768 blocks,  │
//! │ of the bitmap         │ 128 MiB of device) are a page of it      │
//! └───────────────────────┴──────────────────────────────────────────┘
//! ```
//!
//! Untouched pages of shared memory take no memory, but a look is a touch: a search for held blocks asks the summary
//! where to look. Without it the launcher, which sweeps after each process that ends, had the whole bitmap of each slot
//! in memory, 256 KiB for 8 GiB of device.
//!
//! A process may be killed at any instant: a page's bit in the summary is set before any of the page's, and never
//! cleared while the process lives.

use crate::bits::Bits;
use std::sync::atomic::{AtomicU64, Ordering::AcqRel, Ordering::Acquire, Ordering::Relaxed};

/// Words of the bitmap that are summed up in one bit: a page of memory.
const CHUNK_WORDS: usize = 512;
const WORD_BITS: usize = u64::BITS as usize;

/// The blocks that one process holds.
#[derive(Clone, Copy, Debug)]
pub struct Held {
    summary: &'static [AtomicU64],
    bits: &'static [AtomicU64],
}

impl Held {
    /// Returns the number of words of shared memory that a device of `blocks` blocks needs.
    pub fn words(blocks: usize) -> usize {
        Self::summary_words(blocks) + blocks.div_ceil(WORD_BITS)
    }

    fn summary_words(blocks: usize) -> usize {
        blocks.div_ceil(WORD_BITS).div_ceil(CHUNK_WORDS).div_ceil(WORD_BITS)
    }

    /// Returns the bitmap of a device of `blocks` blocks in `words`, which are zero at first.
    ///
    /// # Panics
    /// If there are fewer words than [`Held::words`] says.
    pub fn new(words: &'static [AtomicU64], blocks: usize) -> Self {
        let (summary, bits) = words.split_at(Self::summary_words(blocks));
        Self { summary, bits: &bits[..blocks.div_ceil(WORD_BITS)] }
    }

    /// Returns whether the bitmap has a bit for each of `blocks` blocks.
    pub fn covers(&self, blocks: usize) -> bool {
        self.bits.len() * WORD_BITS >= blocks
    }

    /// Notes that a block is held.
    pub fn set(&self, block: usize) {
        self.sum_up(block / WORD_BITS);
        self.bits[block / WORD_BITS].fetch_or(1 << (block % WORD_BITS), AcqRel);
    }

    fn sum_up(&self, word: usize) {
        let chunk = word / CHUNK_WORDS;
        let (summary, bit) = (&self.summary[chunk / WORD_BITS], 1 << (chunk % WORD_BITS));
        if summary.load(Relaxed) & bit == 0 {
            summary.fetch_or(bit, AcqRel);
        }
    }

    /// Notes that a block is no longer held. Returns whether it was.
    pub fn clear(&self, block: usize) -> bool {
        let bit = 1 << (block % WORD_BITS);
        self.bits[block / WORD_BITS].fetch_and(!bit, AcqRel) & bit != 0
    }

    /// Returns whether all 64 blocks from `block` on, a multiple of 64, are held.
    pub fn holds_all_from(&self, block: usize) -> bool {
        self.bits[block / WORD_BITS].load(Relaxed) == u64::MAX
    }

    /// Returns whether no block is held.
    pub fn is_empty(&self) -> bool {
        self.blocks().next().is_none()
    }

    /// Returns the blocks that are held, ascending.
    pub fn blocks(&self) -> impl Iterator<Item = usize> + '_ {
        self.set_words().flat_map(|(word, bits)| Bits(bits).map(move |bit| word * WORD_BITS + bit))
    }

    /// Returns the words that have bits set, each with its number.
    fn set_words(&self) -> impl Iterator<Item = (usize, u64)> + '_ {
        let chunks =
            self.summary.iter().enumerate().flat_map(|(index, summary)| {
                Bits(summary.load(Acquire)).map(move |bit| index * WORD_BITS + bit)
            });
        chunks
            .flat_map(|chunk| chunk * CHUNK_WORDS..((chunk + 1) * CHUNK_WORDS).min(self.bits.len()))
            .map(|word| (word, self.bits[word].load(Acquire)))
            .filter(|&(_, bits)| bits != 0)
    }

    /// Notes every block that is held here in another process's bitmap, which is empty. `each` is called with a block
    /// before it is noted.
    pub fn copy_to(&self, other: &Self, mut each: impl FnMut(usize)) {
        for (word, bits) in self.set_words() {
            Bits(bits).for_each(|bit| each(word * WORD_BITS + bit));
            other.sum_up(word);
            other.bits[word].store(bits, Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn what_is_held_is_found_as_in_a_set() {
        const BLOCKS: usize = 5_000_000;
        let words = Vec::leak((0..Held::words(BLOCKS)).map(|_| AtomicU64::new(0)).collect());
        let held = Held::new(words, BLOCKS);
        let mut model = BTreeSet::new();
        let mut random = 1u64;
        for round in 0..4_000 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let block = match round % 4 {
                0 => BLOCKS - 1 - (random >> 40) as usize % 70,
                1 => model.iter().next().copied().unwrap_or(0),
                _ => (random >> 20) as usize % BLOCKS,
            };
            if random >> 63 == 0 {
                held.set(block);
                model.insert(block);
            } else {
                assert_eq!(held.clear(block), model.remove(&block));
            }
            assert_eq!(held.is_empty(), model.is_empty());
        }
        assert!(held.blocks().eq(model.iter().copied()));
        let other =
            Held::new(Vec::leak((0..Held::words(BLOCKS)).map(|_| AtomicU64::new(0)).collect()), BLOCKS);
        let mut told = Vec::new();
        held.copy_to(&other, |block| told.push(block));
        assert!(other.blocks().eq(told.iter().copied()) && told.len() == model.len());
    }

    #[test]
    fn a_look_touches_no_page_that_nothing_was_held_in() {
        let words: &'static [AtomicU64] =
            Vec::leak((0..Held::words(1 << 21)).map(|_| AtomicU64::new(0)).collect());
        let held = Held::new(words, 1 << 21);
        held.set(40_000);
        held.clear(40_000);
        // Bits that the summary does not tell of are not looked at.
        words[1].store(1, Relaxed);
        assert!(held.is_empty());
    }
}
