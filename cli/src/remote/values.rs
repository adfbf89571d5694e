//! Which block of the run lies in which value of the remote server.
//!
//! A write of a run of blocks is one value, under a key that is never used again: so there is no question which of two
//! writes a value is of. A value is to be deleted when none of its blocks is of use: each was written anew, or given
//! up by all processes.

use std::collections::HashMap;
use std::ops::Range;

/// Blocks in a value at most, which the bits of an offset tell apart.
const OFFSET_BITS: u32 = 6;
const _: () = assert!(pagetide_device::ring::PLACE_BLOCKS <= 1 << OFFSET_BITS);

/// A part of a value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Segment {
    /// The value's number, which is the write's.
    pub(crate) value: u64,
    /// Its first block in the value.
    pub(crate) offset: usize,
    /// Its blocks.
    pub(crate) count: usize,
}

/// A value of which blocks are in use.
#[derive(Clone, Copy, Debug)]
struct Live {
    /// Blocks in use.
    used: usize,
    /// All its blocks.
    count: usize,
}

/// The map of a run's blocks.
#[derive(Debug, Default)]
pub(crate) struct Values {
    /// For each block the number of its value, above its offset in it; 0 for a block without one.
    of_block: Vec<u64>,
    live: HashMap<u64, Live>,
    /// Values that are to be deleted.
    condemned: Vec<u64>,
    /// Blocks in all values that are live.
    blocks: usize,
}

impl Values {
    /// Notes that the blocks from `block` on were written as a value. An older write does not come over a later one:
    /// whoever held the blocks before may have died with its write under way.
    pub(crate) fn written(&mut self, value: u64, block: u64, count: usize) {
        let end = block as usize + count;
        if self.of_block.len() < end {
            self.of_block.resize(end, 0);
        }
        self.live.insert(value, Live { used: 0, count });
        self.blocks += count;
        for (offset, block) in (block as usize..end).enumerate() {
            let before = self.of_block[block];
            if before >> OFFSET_BITS < value {
                self.of_block[block] = value << OFFSET_BITS | offset as u64;
                self.live.get_mut(&value).expect("noted above").used += 1;
                self.leave(before);
            }
        }
        self.condemn_if_unused(value);
    }

    /// Notes that a block has left the value in which this word says that it was.
    fn leave(&mut self, word: u64) {
        let value = word >> OFFSET_BITS;
        if let Some(live) = self.live.get_mut(&value) {
            live.used -= 1;
            self.condemn_if_unused(value);
        }
    }

    fn condemn_if_unused(&mut self, value: u64) {
        if let Some(&Live { used: 0, count }) = self.live.get(&value) {
            self.live.remove(&value);
            self.blocks -= count;
            self.condemned.push(value);
        }
    }

    /// Notes that a value is to be deleted which may have been written, and is of no use.
    pub(crate) fn condemn(&mut self, value: u64) {
        self.condemned.push(value);
    }

    /// Returns where the blocks from `block` on lie; `None` if one of them was never written.
    pub(crate) fn locate(&self, block: u64, count: usize) -> Option<Vec<Segment>> {
        let words = self.of_block.get(block as usize..(block as usize).checked_add(count)?)?;
        let mut found: Vec<Segment> = Vec::new();
        for &word in words {
            let (value, offset) = (word >> OFFSET_BITS, word as usize & ((1 << OFFSET_BITS) - 1));
            match found.last_mut() {
                _ if word == 0 => return None,
                Some(last) if last.value == value && last.offset + last.count == offset => last.count += 1,
                _ => found.push(Segment { value, offset, count: 1 }),
            }
        }
        Some(found)
    }

    /// Gives up the blocks in `range` that are free: no process holds them. Whoever takes one later writes to it first.
    pub(crate) fn sweep(&mut self, range: Range<usize>, is_free: impl Fn(usize) -> bool) {
        for block in range.start..range.end.min(self.of_block.len()) {
            if self.of_block[block] != 0 && is_free(block) {
                let word = std::mem::take(&mut self.of_block[block]);
                self.leave(word);
            }
        }
    }

    /// Takes up to `most` values that are to be deleted.
    pub(crate) fn take_condemned(&mut self, most: usize) -> Vec<u64> {
        let at = self.condemned.len().saturating_sub(most);
        self.condemned.split_off(at)
    }

    /// Condemns all values: the run is over.
    pub(crate) fn condemn_all(&mut self) {
        self.of_block.clear();
        self.condemned.extend(self.live.drain().map(|(value, _)| value));
        self.blocks = 0;
    }

    /// Returns the numbers of all values that are in use.
    pub(crate) fn numbers(&self) -> Vec<u64> {
        self.live.keys().copied().collect()
    }

    /// Returns how many values there are, and how many blocks in them.
    pub(crate) fn len(&self) -> (usize, usize) {
        (self.live.len(), self.blocks)
    }

    /// Returns the number of blocks below which all lie that were written.
    pub(crate) fn end(&self) -> usize {
        self.of_block.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    const BLOCKS: usize = 96;

    /// Writes that end in another order than they began, reads and frees, against an array of what each block holds.
    #[test]
    fn blocks_are_found_where_the_latest_write_put_them() {
        for seed in 1..50u64 {
            let mut random = seed;
            let mut next = move |below: usize| {
                random =
                    random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                (random >> 33) as usize % below
            };
            let mut values = Values::default();
            let mut model = [None; BLOCKS];
            let mut under_way: Vec<(u64, usize, usize)> = Vec::new();
            let mut deleted = Vec::new();
            for number in 1..2000u64 {
                let (block, count) = (next(BLOCKS), 1 + next(64));
                let count = count.min(BLOCKS - block);
                match next(4) {
                    0 | 1 => under_way.push((number, block, count)),
                    2 => {
                        let free: Vec<bool> = (0..BLOCKS).map(|_| next(5) == 0).collect();
                        values.sweep(0..BLOCKS, |block| free[block]);
                        (0..BLOCKS).filter(|&block| free[block]).for_each(|block| model[block] = None);
                    }
                    _ => {
                        let found = values.locate(block as u64, count).map(|segments| {
                            let of = |part: Segment| {
                                (part.offset..part.offset + part.count).map(move |at| (part.value, at))
                            };
                            segments.into_iter().flat_map(of).collect::<Vec<_>>()
                        });
                        let wanted: Option<Vec<_>> = model[block..block + count].iter().copied().collect();
                        assert_eq!(found, wanted, "seed {seed}, step {number}");
                    }
                }
                while under_way.len() > 4 {
                    let (value, block, count) = under_way.remove(next(under_way.len()));
                    values.written(value, block as u64, count);
                    for (offset, held) in model[block..block + count].iter_mut().enumerate() {
                        if held.is_none_or(|(held, _)| held < value) {
                            *held = Some((value, offset));
                        }
                    }
                }
                deleted.extend(values.take_condemned(next(3)));
                let used: HashSet<u64> = model.iter().flatten().map(|&(value, _)| value).collect();
                assert!(
                    !deleted.iter().any(|value| used.contains(value)),
                    "seed {seed}: a value in use was deleted"
                );
                assert!(
                    values.numbers().iter().all(|value| used.contains(value)),
                    "seed {seed}: a value of no use stays"
                );
            }
            values.condemn_all();
            deleted.extend(values.take_condemned(usize::MAX));
            let count = deleted.len();
            deleted.sort_unstable();
            deleted.dedup();
            assert!(deleted.len() == count && values.len() == (0, 0), "seed {seed}: one was deleted twice");
        }
    }

    #[test]
    fn what_was_never_written_is_nowhere() {
        let mut values = Values::default();
        assert_eq!(values.locate(0, 1), None);
        values.written(1, 3, 2);
        assert_eq!(values.locate(3, 2), Some(vec![Segment { value: 1, offset: 0, count: 2 }]));
        assert!(
            [values.locate(2, 2), values.locate(4, 2), values.locate(u64::MAX, 2)]
                .iter()
                .all(Option::is_none)
        );
    }
}
