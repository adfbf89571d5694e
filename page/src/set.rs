//! Sets of the pages of one cluster.

use crate::{CLUSTER_PAGES, CLUSTER_SIZE, PAGE_SIZE};
use std::ops::Range;

const WORDS: usize = CLUSTER_PAGES / u64::BITS as usize;

/// A set of pages of one cluster, each named by its offset in the cluster: 0 to 511.
///
/// ```
/// use pagetide_page::PageSet;
///
/// let mut set = PageSet::range(0..4);
/// set.insert(9);
/// set.remove(2);
/// assert_eq!(set.len(), 4);
/// assert_eq!(set.runs().collect::<Vec<_>>(), [0..2, 3..4, 9..10]);
/// assert!(set.minus(PageSet::range(0..4)).iter().eq([9]));
/// // The pages of 8 KiB of memory that begin 4 KiB into a cluster.
/// assert_eq!(PageSet::of(0x20_1000, 0x2000), PageSet::range(1..3));
/// ```
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
    /// Returns the set of all pages in a range.
    pub fn range(pages: Range<usize>) -> Self {
        let below = |end: usize, word: usize| match end.saturating_sub(word * 64) {
            0 => 0,
            bits @ 1..64 => (1 << bits) - 1,
            _ => u64::MAX,
        };
        Self(std::array::from_fn(|word| below(pages.end, word) & !below(pages.start, word)))
    }
    /// Returns the set of the pages in `length` bytes of memory from the address `start` on. Both are multiples of the
    /// page size, and all of the memory lies in one cluster.
    pub fn of(start: usize, length: usize) -> Self {
        Self::range(start % CLUSTER_SIZE / PAGE_SIZE..(start % CLUSTER_SIZE + length) / PAGE_SIZE)
    }
    /// Returns the set of the pages whose bits are set, 64 pages a word.
    pub fn from_words(words: [u64; WORDS]) -> Self {
        Self(words)
    }
    /// Returns the set as bits, 64 pages a word.
    pub fn words(self) -> [u64; WORDS] {
        self.0
    }
    /// Returns the pages that are in either set.
    pub fn or(self, other: Self) -> Self {
        Self(std::array::from_fn(|word| self.0[word] | other.0[word]))
    }
    /// Returns the pages that are in both sets.
    pub fn and(self, other: Self) -> Self {
        Self(std::array::from_fn(|word| self.0[word] & other.0[word]))
    }
    /// Returns the pages that are in this set and not in the other.
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
    /// Returns the number of pages in the set.
    pub fn len(&self) -> usize {
        self.0.iter().map(|word| word.count_ones() as usize).sum()
    }
    /// Returns whether the set is empty.
    pub fn is_empty(&self) -> bool {
        self.0.iter().all(|&word| word == 0)
    }
    /// Returns the pages in the set, ascending.
    pub fn iter(self) -> impl Iterator<Item = usize> {
        (0..CLUSTER_PAGES).filter(move |&page| self.contains(page))
    }
    /// Returns the runs of adjacent pages in the set, ascending.
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
    /// Returns the first page of the first run of `length` adjacent pages in the set, from page `from` on.
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
