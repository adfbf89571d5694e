//! Levels of a cluster's words: one word for all pages, one for each unit, or one for each page.

use super::store::Block;
use super::{UNIT_PAGES, UNITS};
use crate::sync::atomic::{AtomicU64, Ordering::Relaxed};
use crate::word::Word;
use pagetide_page::CLUSTER_PAGES;

/// Returns whether all words follow from `first`.
pub(super) fn follow(words: &[AtomicU64], first: Word) -> bool {
    words.iter().enumerate().all(|(nth, word)| word.load(Relaxed) == first.nth(nth).0)
}

/// The words of a cluster's units: each that of the unit's first page, from which the others follow, or the number of
/// the unit's [`Pages`].
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

/// The state bits of a number that stands in place of a word and tells where the finer words are. No state has this
/// value.
pub(super) const FINER: u64 = 7;
/// The bit beside [`FINER`] that says in place of a cluster's word: each of its pages has a word, in one piece.
pub(super) const FLAT: u64 = 1 << 3;
pub(super) const FINER_SHIFT: u32 = 8;
/// The shift of the number of units that have words for their pages, beside where a cluster's units are.
pub(super) const CUTS_SHIFT: u32 = 40;

pub(super) fn to_finer(spot: u32) -> u64 {
    FINER | u64::from(spot) << FINER_SHIFT
}

#[inline]
pub(super) fn finer(raw: u64) -> Option<u32> {
    (raw & 7 == FINER).then_some((raw >> FINER_SHIFT) as u32)
}

/// The level at which a cluster's words are kept.
#[derive(Clone, Copy)]
pub(super) enum Level<'a> {
    /// One word, from which all follow.
    Whole(Word),
    /// A word for each unit.
    Units(&'a Units),
    /// A word for each page.
    Flat(&'a [AtomicU64; CLUSTER_PAGES]),
}
