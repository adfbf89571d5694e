//! Changes of a cluster's words, under its lock.

use super::counts::{COUNT_BITS, Count, Counts, counts_of};
use super::history::History;
use super::levels::{CUTS_SHIFT, FLAT, Level, Pages, Units, finer, follow, to_finer};
use super::lookup::View;
use super::{Cluster, Table, UNIT_PAGES, UNITS};
use crate::sync::atomic::{AtomicU64, Ordering::Relaxed};
use crate::word::Word;
use pagetide_page::{CLUSTER_PAGES, ClusterNumber};
use std::ops::Range;

/// The number of units with words for their pages at which a cluster becomes flat, and at which it is no more.
pub(super) const FLAT_UNITS: usize = UNITS / 2;
const CUT_UNITS: usize = UNITS / 4;
/// The number of units with words for their pages at which a cluster becomes flat if the pages are entries of the pool,
/// each by itself.
const DENSE_UNITS: usize = 2;

/// A locked cluster: the only way to change its words. The lock is released when the guard is dropped.
pub struct ClusterGuard<'a> {
    pub(super) table: &'a Table,
    pub(super) cluster: &'a Cluster,
    pub(super) level: Level<'a>,
    pub(super) counts: Counts,
    pub(super) number: ClusterNumber,
}

impl<'a> ClusterGuard<'a> {
    /// Returns the cluster's number.
    pub fn number(&self) -> ClusterNumber {
        self.number
    }

    pub(super) fn view(&self) -> View<'a> {
        View { table: self.table, level: self.level }
    }

    /// Returns the word of the page at `offset`.
    #[inline]
    pub fn get(&self, offset: usize) -> Word {
        self.view().word(offset).expect("nobody else changes it")
    }

    /// Returns the word of the page at `offset`, and the number of pages from it on, at most `most`, whose words follow
    /// from it ([`Word::nth`]). The stretch ends with the page's unit, or with the cluster if that is one word.
    pub fn stretch(&self, offset: usize, most: usize) -> (Word, usize) {
        if let Level::Whole(word) = self.level {
            return (word.nth(offset), most.min(CLUSTER_PAGES - offset));
        }
        let nth = offset % UNIT_PAGES;
        let most = most.min(UNIT_PAGES - nth);
        match self.view().unit(offset / UNIT_PAGES).expect("nobody else changes it") {
            Ok(whole) => (whole.nth(nth), most),
            Err(pages) => {
                let word = Word(pages[nth].load(Relaxed));
                let follows = |&by: &usize| Word(pages[nth + by].load(Relaxed)) == word.nth(by);
                let more = if word.spreads() { (1..most).take_while(follows).count() } else { 0 };
                (word, 1 + more)
            }
        }
    }

    /// Changes the word of the page at `offset`.
    #[inline]
    pub fn set(&mut self, offset: usize, word: Word) {
        match self.level {
            Level::Flat(words) => {
                self.replace(&words[offset], word);
                self.join_flat(words, word, offset);
            }
            _ => self.set_in_unit(offset, word),
        }
    }

    /// Changes one page's word, and the counts.
    #[inline]
    fn replace(&mut self, at: &AtomicU64, word: Word) {
        let old = Word(at.load(Relaxed));
        at.store(word.0, Relaxed);
        self.counts = self.counts + counts_of(word, 1) - counts_of(old, 1);
    }

    #[inline(never)]
    fn set_in_unit(&mut self, offset: usize, word: Word) {
        let (at, nth) = (offset / UNIT_PAGES, offset % UNIT_PAGES);
        let whole = match self.level {
            Level::Units(units) => units.0[at].load(Relaxed),
            _ => self.view().word(at * UNIT_PAGES).expect("nobody else changes it").0,
        };
        let pages = match finer(whole) {
            Some(spot) => self.table.pages.get(spot),
            None if Word(whole).nth(nth) == word => return,
            None => match self.cut_unit(at, word) {
                Some(pages) => pages,
                None => return self.set(offset, word),
            },
        };
        self.replace(&pages.0[nth], word);
        // The ends tell at once, as a rule.
        let first = Word(pages.0[0].load(Relaxed));
        if word.spreads()
            && word == first.nth(nth)
            && Word(pages.0[UNIT_PAGES - 1].load(Relaxed)) == first.nth(UNIT_PAGES - 1)
            && follow(&pages.0, first)
        {
            self.set_unit(at, first);
            self.join(at);
        }
    }

    /// Gives the pages of a unit that has been one word words of their own; `None` if it made the cluster flat instead.
    #[inline(never)]
    fn cut_unit(&mut self, at: usize, word: Word) -> Option<&'a Pages> {
        let table = self.table;
        let units = self.cut();
        let root = self.cluster.root.load(Relaxed);
        let cuts = (root >> CUTS_SHIFT) as usize;
        // Pages that come one by one and fill what was cut for them: others will follow.
        let dense = || !word.spreads() && cuts >= DENSE_UNITS && self.touched() >= cuts * UNIT_PAGES;
        if cuts >= FLAT_UNITS || dense() {
            self.flatten(units);
            return None;
        }
        self.cluster.root.store(root + (1 << CUTS_SHIFT), Relaxed);
        let spot = table.pages.take(self.number, &table.bytes);
        let pages = table.pages.get(spot);
        let whole = Word(units.0[at].load(Relaxed));
        pages.0.iter().enumerate().for_each(|(nth, page)| page.store(whole.nth(nth).0, Relaxed));
        units.0[at].store(to_finer(spot), Relaxed);
        Some(pages)
    }

    /// Gives each page of the cluster a word, in one piece.
    fn flatten(&mut self, units: &'a Units) {
        let table = self.table;
        let spot = table.flats.take(self.number, &table.bytes);
        let words = &table.flats.get(spot).0;
        for (unit, to) in units.0.iter().zip(words.as_chunks::<UNIT_PAGES>().0) {
            let raw = unit.load(Relaxed);
            if let Some(pages) = finer(raw) {
                to.iter()
                    .zip(&table.pages.get(pages).0)
                    .for_each(|(to, word)| to.store(word.load(Relaxed), Relaxed));
                table.pages.give(self.number, pages);
            } else {
                to.iter().enumerate().for_each(|(nth, to)| to.store(Word(raw).nth(nth).0, Relaxed));
            }
        }
        let before = self.cluster.root.load(Relaxed);
        self.cluster.root.store(to_finer(spot) | FLAT, Relaxed);
        self.level = Level::Flat(words);
        table.units.give(self.number, finer(before).expect("it had units"));
    }

    /// Gives each unit a word in place of one for each page, if the words of most units' pages follow from one.
    fn unflatten(&mut self, words: &'a [AtomicU64; CLUSTER_PAGES]) {
        let (units, _) = words.as_chunks::<UNIT_PAGES>();
        let first = |unit: &[AtomicU64; UNIT_PAGES]| Word(unit[0].load(Relaxed));
        let is_cut = |unit: &&[AtomicU64; UNIT_PAGES]| !first(unit).spreads() || !follow(*unit, first(unit));
        if units.iter().filter(is_cut).take(CUT_UNITS + 1).count() > CUT_UNITS {
            return;
        }
        let table = self.table;
        let spot = table.units.take(self.number, &table.bytes);
        let coarse = table.units.get(spot);
        let mut cuts = 0;
        for (unit, to) in units.iter().zip(&coarse.0) {
            let raw = if is_cut(&unit) {
                cuts += 1;
                let spot = table.pages.take(self.number, &table.bytes);
                for (word, to) in unit.iter().zip(&table.pages.get(spot).0) {
                    to.store(word.load(Relaxed), Relaxed);
                }
                to_finer(spot)
            } else {
                first(unit).0
            };
            to.store(raw, Relaxed);
        }
        let before = self.cluster.root.load(Relaxed);
        self.cluster.root.store(to_finer(spot) | cuts << CUTS_SHIFT, Relaxed);
        self.level = Level::Units(coarse);
        table.flats.give(self.number, finer(before).expect("it was flat"));
    }

    /// Changes the words of the pages in `range` to those that follow from `word`, which is that of the first page.
    pub fn set_run(&mut self, range: Range<usize>, word: Word) {
        if range == (0..CLUSTER_PAGES) && word.spreads() {
            self.set_root(word);
            return;
        }
        if let Level::Flat(words) = self.level {
            for (nth, at) in words[range.clone()].iter().enumerate() {
                self.replace(at, word.nth(nth));
            }
            if !range.is_empty() {
                self.join_flat(words, word, range.start);
            }
            // Whoever goes through a cluster unit by unit has come to its end.
            if range.len() >= UNIT_PAGES
                && range.end == CLUSTER_PAGES
                && let Level::Flat(words) = self.level
            {
                self.unflatten(words);
            }
            return;
        }
        let mut offset = range.start;
        while offset < range.end {
            let word = word.nth(offset - range.start);
            if offset.is_multiple_of(UNIT_PAGES)
                && offset + UNIT_PAGES <= range.end
                && word.spreads()
                && !matches!(self.level, Level::Flat(_))
            {
                let at = offset / UNIT_PAGES;
                self.counts = self.counts + counts_of(word, UNIT_PAGES) - self.unit_counts(at);
                self.cut();
                self.set_unit(at, word);
                self.join(at);
                offset += UNIT_PAGES;
            } else {
                self.set(offset, word);
                offset += 1;
            }
        }
    }

    /// Returns the counts over a unit's pages.
    fn unit_counts(&self, at: usize) -> Counts {
        match self.view().unit(at).expect("nobody else changes it") {
            Ok(whole) => counts_of(whole, UNIT_PAGES),
            Err(pages) => pages.iter().map(|page| counts_of(Word(page.load(Relaxed)), 1)).sum(),
        }
    }

    /// Gives the units of a cluster that is not flat words of their own, if they have none.
    fn cut(&mut self) -> &'a Units {
        let whole = match self.level {
            Level::Units(units) => return units,
            Level::Whole(word) => word,
            Level::Flat(_) => unreachable!("its pages have words of their own"),
        };
        let spot = self.table.units.take(self.number, &self.table.bytes);
        let units = self.table.units.get(spot);
        for (at, unit) in units.0.iter().enumerate() {
            unit.store(whole.nth(at * UNIT_PAGES).0, Relaxed);
        }
        self.cluster.root.store(to_finer(spot), Relaxed);
        self.level = Level::Units(units);
        units
    }

    /// Makes `word` the one word of a unit. The caller changes the counts.
    fn set_unit(&mut self, at: usize, word: Word) {
        let Level::Units(units) = self.level else { unreachable!("cut by the caller") };
        let before = finer(units.0[at].load(Relaxed));
        units.0[at].store(word.0, Relaxed);
        if let Some(pages) = before {
            let root = self.cluster.root.load(Relaxed);
            self.cluster.root.store(root - (1 << CUTS_SHIFT), Relaxed);
            self.table.pages.give(self.number, pages);
        }
    }

    /// Makes `word` the one word of the cluster.
    fn set_root(&mut self, word: Word) {
        let before = finer(self.cluster.root.load(Relaxed));
        self.cluster.root.store(word.0, Relaxed);
        let table = self.table;
        match (std::mem::replace(&mut self.level, Level::Whole(word)), before) {
            (Level::Units(units), Some(spot)) => {
                let cut = units.0.iter().filter_map(|unit| finer(unit.load(Relaxed)));
                cut.for_each(|spot| table.pages.give(self.number, spot));
                table.units.give(self.number, spot);
            }
            (Level::Flat(_), Some(spot)) => table.flats.give(self.number, spot),
            _ => {}
        }
        self.counts = counts_of(word, CLUSTER_PAGES);
    }

    /// Makes one word of all units, if their words follow from the first. Unit `at` has just changed.
    fn join(&mut self, at: usize) {
        let Level::Units(units) = self.level else { return };
        let word = |at: usize| units.0[at].load(Relaxed);
        let first = Word(word(0));
        let follows = |at: usize| finer(word(at)).is_none() && Word(word(at)) == first.nth(at * UNIT_PAGES);
        if first.spreads() && follows(at) && follows(UNITS - 1) && (0..UNITS).all(follows) {
            self.set_root(first);
        }
    }

    /// Makes one word of all pages, if their words follow from the first. The page at `offset` has just changed to
    /// `word`.
    #[inline]
    fn join_flat(&mut self, words: &'a [AtomicU64; CLUSTER_PAGES], word: Word, offset: usize) {
        // As a rule the counts tell at once.
        if self.counts == counts_of(word, CLUSTER_PAGES) && word.spreads() {
            let first = Word(words[0].load(Relaxed));
            if word == first.nth(offset) && follow(words, first) {
                self.set_root(first);
            }
        }
    }

    fn counted(&self, count: Count) -> usize {
        (self.counts / count.one()) as usize & ((1 << COUNT_BITS) - 1)
    }

    /// Returns the number of pages that are no holes.
    fn touched(&self) -> usize {
        self.present() + self.cached() + self.swapped() + self.poisoned()
    }

    /// Returns the number of pages in the program.
    pub fn present(&self) -> usize {
        self.counted(Count::Present)
    }

    /// Returns the number of pages on probation.
    pub fn cached(&self) -> usize {
        self.counted(Count::Cached)
    }

    /// Returns the number of swapped pages: those at a place.
    pub fn swapped(&self) -> usize {
        self.counted(Count::Swapped)
    }

    /// Returns the number of poisoned pages, whose contents are lost.
    pub fn poisoned(&self) -> usize {
        self.counted(Count::Poisoned)
    }

    /// Returns the number of pages with a transfer under way.
    pub fn locked(&self) -> usize {
        self.counted(Count::Locked)
    }

    /// Returns the number of pages in the program of which the pool keeps a copy.
    pub fn copies(&self) -> usize {
        self.counted(Count::Copies)
    }

    /// Returns whether every page is a hole.
    pub fn is_empty(&self) -> bool {
        self.counts == 0
    }

    /// Returns the cluster's history: what reclaim remembers of it.
    pub fn history(&self) -> History {
        History::from_bits(self.cluster.history.load(Relaxed))
    }

    /// Changes the cluster's history.
    pub fn set_history(&mut self, history: History) {
        self.cluster.history.store(history.to_bits(), Relaxed);
    }
}

impl Drop for ClusterGuard<'_> {
    #[inline]
    fn drop(&mut self) {
        self.cluster.counts.store(self.counts, Relaxed);
        self.cluster.latch.release(&self.table.parking, self.number.0 as u32);
    }
}
