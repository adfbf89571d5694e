//! Sets of the pages of one cluster.

use crate::{CLUSTER_PAGES, CLUSTER_SIZE, PAGE_SIZE};
use std::ops::Range;

const WORDS: usize = CLUSTER_PAGES / u64::BITS as usize;

/// A set of the pages of one cluster.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PageSet([u64; WORDS]);

impl FromIterator<usize> for PageSet {
    fn from_iter<T: IntoIterator<Item = usize>>(pages: T) -> Self {
        let mut set = Self::default();
        pages.into_iter().for_each(|page| set.insert(page));
        set
    }
}

impl PageSet {
    /// The pages of a range.
    pub fn range(pages: Range<usize>) -> Self {
        let below = |end: usize, word: usize| match end.saturating_sub(word * 64) {
            0 => 0,
            bits @ 1..64 => (1 << bits) - 1,
            _ => u64::MAX,
        };
        Self(std::array::from_fn(|word| below(pages.end, word) & !below(pages.start, word)))
    }
    /// The pages of `[start, start + length)`, addresses of one cluster.
    pub fn of(start: usize, length: usize) -> Self {
        Self::range(start % CLUSTER_SIZE / PAGE_SIZE..(start % CLUSTER_SIZE + length) / PAGE_SIZE)
    }
    /// Pages in either set.
    pub fn or(self, other: Self) -> Self {
        Self(std::array::from_fn(|word| self.0[word] | other.0[word]))
    }
    /// Pages in both sets.
    pub fn and(self, other: Self) -> Self {
        Self(std::array::from_fn(|word| self.0[word] & other.0[word]))
    }
    /// Pages in this set and not in the other.
    pub fn minus(self, other: Self) -> Self {
        Self(std::array::from_fn(|word| self.0[word] & !other.0[word]))
    }
    /// Returns whether the page is in the set.
    pub fn contains(&self, page: usize) -> bool {
        self.0[page / 64] >> (page % 64) & 1 == 1
    }
    /// Adds a page.
    pub fn insert(&mut self, page: usize) {
        self.0[page / 64] |= 1 << (page % 64);
    }
    /// Removes a page.
    pub fn remove(&mut self, page: usize) {
        self.0[page / 64] &= !(1 << (page % 64));
    }
    /// Pages in the set.
    pub fn len(&self) -> usize {
        self.0.iter().map(|word| word.count_ones() as usize).sum()
    }
    /// Returns whether the set is empty.
    pub fn is_empty(&self) -> bool {
        self.0.iter().all(|&word| word == 0)
    }
    /// The pages, ascending.
    pub fn iter(self) -> impl Iterator<Item = usize> {
        (0..CLUSTER_PAGES).filter(move |&page| self.contains(page))
    }
    /// The runs of adjacent pages, ascending.
    pub fn runs(self) -> impl Iterator<Item = Range<usize>> {
        let mut pages = self.iter().peekable();
        std::iter::from_fn(move || {
            let first = pages.next()?;
            let mut end = first + 1;
            while pages.next_if_eq(&end).is_some() {
                end += 1;
            }
            Some(first..end)
        })
    }
    /// The first run of `length` pages in the set, from `from` on.
    pub fn find_run(&self, from: usize, length: usize) -> Option<usize> {
        let mut run = 0;
        for page in from..CLUSTER_PAGES {
            run = if self.contains(page) { run + 1 } else { 0 };
            if run == length {
                return Some(page + 1 - length);
            }
        }
        None
    }
}
