//! Counts over the pages of a cluster, by state.

use crate::word::{State, Word};
use pagetide_page::CLUSTER_PAGES;

/// The numbers of a cluster's pages by state: ten bits for each [`Count`].
pub(super) type Counts = u64;
pub(super) const COUNT_BITS: u32 = 10;
const _: () = assert!(CLUSTER_PAGES < 1 << COUNT_BITS && Count::Last as u32 * COUNT_BITS <= u64::BITS);

#[derive(Clone, Copy)]
pub(super) enum Count {
    Present,
    Cached,
    Swapped,
    Poisoned,
    Locked,
    Copies,
    Last,
}

impl Count {
    pub(super) const fn one(self) -> Counts {
        1 << (self as u32 * COUNT_BITS)
    }
}

/// The counts of one page, by the last byte of its word, which tells state, flags and kind of place.
pub(super) const COUNTED: [Counts; 256] = {
    let mut counted = [0; 256];
    let mut byte = 0;
    while byte < counted.len() {
        let word = Word(byte as u64);
        counted[byte] = match word.state() {
            State::Hole => 0,
            State::Present => Count::Present.one(),
            State::Cached => Count::Cached.one(),
            State::Swapped => Count::Swapped.one(),
            State::Poisoned => Count::Poisoned.one(),
        };
        if word.is_locked() {
            counted[byte] += Count::Locked.one();
        }
        if word.has_pool_copy() {
            counted[byte] += Count::Copies.one();
        }
        byte += 1;
    }
    counted
};

/// Returns the counts over `pages` pages whose words follow from `word`.
pub(super) fn counts_of(word: Word, pages: usize) -> Counts {
    COUNTED[usize::from(word.0 as u8)] * pages as u64
}
