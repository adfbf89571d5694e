//! How a cluster's words are kept: one for all, one a unit, or one a page.

use super::store::Block;
use super::{UNIT_PAGES, UNITS};
use crate::sync::atomic::{AtomicU64, Ordering::Relaxed};
use crate::word::Word;
use pagetide_page::CLUSTER_PAGES;

/// Whether all words follow from the first.
pub(super) fn follow(words: &[AtomicU64], first: Word) -> bool {
    words.iter().enumerate().all(|(nth, word)| word.load(Relaxed) == first.nth(nth).0)
}

/// Each the word of the first page of a unit, from which the others follow, or the number of its pages.
#[derive(Debug)]
#[repr(align(64))]
pub(super) struct Units(pub(super) [AtomicU64; UNITS]);

/// The words of a unit.
#[derive(Debug)]
#[repr(align(64))]
pub(super) struct Pages(pub(super) [AtomicU64; UNIT_PAGES]);

/// The words of a cluster.
#[derive(Debug)]
#[repr(align(64))]
pub(super) struct Flat(pub(super) [AtomicU64; CLUSTER_PAGES]);

impl Default for Units {
    fn default() -> Self {
        Self([const { AtomicU64::new(0) }; UNITS])
    }
}

impl Default for Pages {
    fn default() -> Self {
        Self([const { AtomicU64::new(0) }; UNIT_PAGES])
    }
}

impl Default for Flat {
    fn default() -> Self {
        Self([const { AtomicU64::new(0) }; CLUSTER_PAGES])
    }
}

impl Block for Flat {
    fn link(&self) -> &AtomicU64 {
        &self.0[0]
    }
}

impl Block for Units {
    fn link(&self) -> &AtomicU64 {
        &self.0[0]
    }
}

impl Block for Pages {
    fn link(&self) -> &AtomicU64 {
        &self.0[0]
    }
}

/// In place of a word: where the finer words are. No [`State`] has this value.
pub(super) const FINER: u64 = 7;
/// In place of a cluster's word, beside that: all its finer words are there.
pub(super) const FLAT: u64 = 1 << 3;
pub(super) const FINER_SHIFT: u32 = 8;
/// Beside where a cluster's units are: how many of them have words for their pages.
pub(super) const CUTS_SHIFT: u32 = 40;

pub(super) fn to_finer(spot: u32) -> u64 {
    FINER | u64::from(spot) << FINER_SHIFT
}

#[inline]
pub(super) fn finer(raw: u64) -> Option<u32> {
    (raw & 7 == FINER).then_some((raw >> FINER_SHIFT) as u32)
}

/// How a cluster's words are kept.
#[derive(Clone, Copy)]
pub(super) enum Level<'a> {
    /// All follow from the first.
    Whole(Word),
    /// By units.
    Units(&'a Units),
    /// Each alone.
    Flat(&'a [AtomicU64; CLUSTER_PAGES]),
}
