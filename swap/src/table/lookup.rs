//! Look-ups without a lock.

use super::levels::{FLAT, Level, finer};
use super::{Cluster, PEEKS, Table, UNIT_PAGES};
use crate::place::Place;
use crate::sync::atomic::{AtomicU64, Ordering::Relaxed};
use crate::sync::spin_loop;
use crate::word::Word;
use pagetide_page::{CLUSTER_PAGES, ClusterNumber, PageIndex};

/// Neighbours of a page that lie next to it on the device.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Run {
    /// The number of pages before it.
    pub before: usize,
    /// The number of pages after it.
    pub after: usize,
}

/// A cluster's words, as they are read.
pub(super) struct View<'a> {
    pub(super) table: &'a Table,
    pub(super) level: Level<'a>,
}

/// Returns how many words, from the first on, are at `block` and the blocks after it.
#[inline]
fn after(words: &[AtomicU64], block: u64) -> usize {
    words.iter().zip(block..).take_while(|(word, block)| Word(word.load(Relaxed)).is_at_block(*block)).count()
}

/// Returns how many words, from the last on downwards, are at the blocks before `block`.
#[inline]
fn before(words: &[AtomicU64], block: u64) -> usize {
    let blocks = (0..block).rev();
    words
        .iter()
        .rev()
        .zip(blocks)
        .take_while(|(word, block)| Word(word.load(Relaxed)).is_at_block(*block))
        .count()
}

impl Table {
    /// Reads a page's word without a lock.
    #[inline]
    pub fn peek(&self, page: PageIndex) -> Word {
        self.read(page.cluster(), |view| view.word(page.offset())).unwrap_or(Word::HOLE)
    }

    /// Returns how many pages before and after a page lie next to it on the device, in one piece: at most `max_before`
    /// and `max_after`. `None` if the page has no place: it is a hole, or in the program without a kept copy, or lost.
    /// A page whose place is not on the device has no such neighbours.
    ///
    /// One look-up a cluster, and one step a word inside it (after FreeBSD's review D20281 of `swap_pager_haspage`).
    #[inline]
    pub fn has_page(&self, page: PageIndex, max_before: usize, max_after: usize) -> Option<Run> {
        let (number, offset) = (page.cluster(), page.offset());
        let (place, mut run) = self.read(number, |view| {
            let Some(place) = view.word(offset)?.place() else { return Some(None) };
            let run = match (place, view.level) {
                (Place::Device(_), Level::Whole(_)) => {
                    Run { before: max_before.min(offset), after: max_after.min(CLUSTER_PAGES - 1 - offset) }
                }
                (Place::Device(block), _) => Run {
                    before: view.before(offset, block, max_before)?,
                    after: view.after(offset + 1, block + 1, max_after)?,
                },
                _ => Run::default(),
            };
            Some(Some((place, run)))
        })??;
        let Place::Device(block) = place else { return Some(run) };
        if run.before < offset.min(max_before) && run.after < (CLUSTER_PAGES - 1 - offset).min(max_after) {
            return Some(run);
        }
        let mut next = number;
        while run.after < max_after && (offset + run.after + 1).is_multiple_of(CLUSTER_PAGES) {
            next = ClusterNumber(next.0 + 1);
            let (block, most) = (block + run.after as u64 + 1, max_after - run.after);
            match self.read(next, |view| view.after(0, block, most)) {
                None | Some(0) => break,
                Some(more) => run.after += more,
            }
        }
        let mut next = number;
        while run.before < max_before
            && page.0 > run.before as u64
            && (page.0 - run.before as u64).is_multiple_of(CLUSTER_PAGES as u64)
            && let Some(first) = block.checked_sub(run.before as u64)
        {
            next = ClusterNumber(next.0 - 1);
            match self.read(next, |view| view.before(CLUSTER_PAGES, first, max_before - run.before)) {
                None | Some(0) => break,
                Some(more) => run.before += more,
            }
        }
        Some(run)
    }

    /// Reads a cluster without a lock, by `look`, whose result is of one state of the cluster. `look` returns `None` if
    /// what it sees is impossible, since it changes meanwhile. `None` if no page near the cluster was ever touched.
    #[inline]
    fn read<T>(&self, number: ClusterNumber, look: impl Fn(&View<'_>) -> Option<T>) -> Option<T> {
        let cluster = self.cluster(number)?;
        for _ in 0..PEEKS {
            if let Some(version) = cluster.latch.read()
                && let Some(found) = self.level(cluster).and_then(|level| look(&View { table: self, level }))
                && cluster.latch.is_still(version)
            {
                return Some(found);
            }
            spin_loop();
        }
        // Its holder takes time.
        look(&self.guard(number, cluster).view())
    }

    /// Returns the level of a cluster's words; `None` if what is read is impossible, since it changes meanwhile.
    #[inline]
    pub(super) fn level(&self, cluster: &Cluster) -> Option<Level<'_>> {
        let root = cluster.root.load(Relaxed);
        Some(match finer(root) {
            None => Level::Whole(Word(root)),
            Some(spot) if root & FLAT != 0 => Level::Flat(&self.flats.values.at(spot)?.0),
            Some(spot) => Level::Units(self.units.values.at(spot)?),
        })
    }
}

impl View<'_> {
    /// Returns the words of a unit: one for all, or one for each page.
    pub(super) fn unit(&self, at: usize) -> Option<Result<Word, &[AtomicU64; UNIT_PAGES]>> {
        Some(match self.level {
            Level::Whole(word) => Ok(word.nth(at * UNIT_PAGES)),
            Level::Flat(words) => Err(words[at * UNIT_PAGES..].first_chunk().expect("a unit's words")),
            Level::Units(units) => {
                let raw = units.0[at].load(Relaxed);
                match finer(raw) {
                    None => Ok(Word(raw)),
                    Some(pages) => Err(&self.table.pages.values.at(pages)?.0),
                }
            }
        })
    }

    #[inline]
    pub(super) fn word(&self, offset: usize) -> Option<Word> {
        Some(match self.level {
            Level::Flat(words) => Word(words[offset].load(Relaxed)),
            _ => match self.unit(offset / UNIT_PAGES)? {
                Ok(whole) => whole.nth(offset % UNIT_PAGES),
                Err(pages) => Word(pages[offset % UNIT_PAGES].load(Relaxed)),
            },
        })
    }

    /// Returns how many pages from `offset` on, at most `most`, are at the blocks from `block` on.
    fn after(&self, offset: usize, block: u64, most: usize) -> Option<usize> {
        let end = (offset + most).min(CLUSTER_PAGES);
        let mut found = offset;
        match self.level {
            Level::Whole(word) if offset < end => {
                let follows = word.nth(offset).is_at_block(block);
                return Some(if follows { end - offset } else { 0 });
            }
            Level::Flat(words) => return Some(after(&words[offset..end], block)),
            _ => {}
        }
        while found < end {
            let (at, nth) = (found / UNIT_PAGES, found % UNIT_PAGES);
            let last = (end - at * UNIT_PAGES).min(UNIT_PAGES);
            let block = block + (found - offset) as u64;
            let count = match self.unit(at)? {
                Ok(whole) if whole.nth(nth).is_at_block(block) => last - nth,
                Ok(_) => 0,
                Err(pages) => after(&pages[nth..last], block),
            };
            found += count;
            if nth + count < last {
                break;
            }
        }
        Some(found - offset)
    }

    /// Returns how many pages before `offset`, at most `most`, are at the blocks before `block`, downwards.
    fn before(&self, offset: usize, block: u64, most: usize) -> Option<usize> {
        let most = most.min(offset).min(usize::try_from(block).unwrap_or(usize::MAX));
        let start = offset - most;
        let mut found = offset;
        match self.level {
            Level::Whole(word) if most > 0 => {
                let follows = word.nth(offset - 1).is_at_block(block - 1);
                return Some(if follows { most } else { 0 });
            }
            Level::Flat(words) => return Some(before(&words[start..offset], block)),
            _ => {}
        }
        while found > start {
            let (at, nth) = ((found - 1) / UNIT_PAGES, (found - 1) % UNIT_PAGES);
            let first = start.saturating_sub(at * UNIT_PAGES);
            let block = block - (offset - found) as u64 - 1;
            let count = match self.unit(at)? {
                Ok(whole) if whole.nth(nth).is_at_block(block) => nth + 1 - first,
                Ok(_) => 0,
                Err(pages) => before(&pages[first..=nth], block + 1),
            };
            found -= count;
            if count < nth + 1 - first {
                break;
            }
        }
        Some(offset - found)
    }
}
