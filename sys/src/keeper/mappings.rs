//! Where a process maps objects: found by address, and by page.

use pagetide_page::{PAGE_SIZE, PageIndex};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// What a process maps of objects. An object may be mapped several times.
#[derive(Debug, Default)]
pub(super) struct Mappings {
    /// By their first addresses.
    by_address: BTreeMap<usize, Mapping>,
    /// Their first pages, and their first addresses.
    by_page: BTreeSet<(PageIndex, usize)>,
    /// Pages of the longest mapping so far: none that begins further before a page has it.
    longest: u64,
}

#[derive(Clone, Copy, Debug)]
struct Mapping {
    end: usize,
    to: PageIndex,
}

impl Mappings {
    /// The address of the first mapping.
    pub(super) fn first(&self) -> Option<usize> {
        self.by_address.keys().next().copied()
    }

    /// The page of an address.
    pub(super) fn page(&self, address: usize) -> Option<PageIndex> {
        let (&start, mapping) = self.by_address.range(..=address).next_back()?;
        (address < mapping.end).then(|| mapping.to.plus(((address - start) / PAGE_SIZE) as u64))
    }

    /// Where parts of a range of pages are mapped: address and bytes.
    pub(super) fn parts(&self, range: &Range<PageIndex>) -> impl Iterator<Item = (usize, usize)> {
        let range = range.clone();
        let from = PageIndex(range.start.0.saturating_sub(self.longest));
        self.by_page.range((from, 0)..(range.end, 0)).filter_map(move |&(to, start)| {
            let pages = (self.by_address[&start].end - start) / PAGE_SIZE;
            let first = range.start.max(to);
            let end = range.end.min(to.plus(pages as u64));
            (first < end).then(|| {
                let address = start + (first.0 - to.0) as usize * PAGE_SIZE;
                (address, (end.0 - first.0) as usize * PAGE_SIZE)
            })
        })
    }

    /// Notes that pages from `to` on are mapped in `addresses`, in place of whatever was.
    pub(super) fn insert(&mut self, addresses: Range<usize>, to: PageIndex) {
        self.remove(&addresses);
        self.add(addresses, to);
    }

    fn add(&mut self, addresses: Range<usize>, to: PageIndex) {
        self.longest = self.longest.max((addresses.len() / PAGE_SIZE) as u64);
        self.by_page.insert((to, addresses.start));
        self.by_address.insert(addresses.start, Mapping { end: addresses.end, to });
    }

    /// Removes what is mapped in `addresses`.
    pub(super) fn remove(&mut self, addresses: &Range<usize>) {
        // From the last to the first: they do not overlap, so the first that ends before is the end.
        let before = self.by_address.range(..addresses.end).rev();
        let overlap: Vec<_> = before
            .take_while(|(_, mapping)| mapping.end > addresses.start)
            .map(|(&start, &mapping)| (start, mapping))
            .collect();
        for (start, Mapping { end, to }) in overlap {
            self.by_address.remove(&start);
            self.by_page.remove(&(to, start));
            if start < addresses.start {
                self.add(start..addresses.start, to);
            }
            if end > addresses.end {
                let to = to.plus(((addresses.end - start) / PAGE_SIZE) as u64);
                self.add(addresses.end..end, to);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGES: usize = 64;

    /// The page that each address is of, and nothing else.
    struct Naive([Option<u64>; PAGES]);

    impl Naive {
        fn parts(&self, range: &Range<PageIndex>) -> Vec<(usize, u64)> {
            let within = |page: u64| range.contains(&PageIndex(page));
            let each = self.0.iter().enumerate();
            each.filter_map(|(at, page)| Some((at, (*page)?))).filter(|&(_, page)| within(page)).collect()
        }
    }

    #[test]
    fn what_is_mapped_is_found_by_address_and_by_page() {
        for seed in 0..200 {
            let mut random = seed;
            let mut below = |limit: usize| {
                random = u64::wrapping_mul(random, 6_364_136_223_846_793_005)
                    .wrapping_add(1_442_695_040_888_963_407);
                (random >> 33) as usize % limit
            };
            let (mut mappings, mut naive) = (Mappings::default(), Naive([None; PAGES]));
            for _ in 0..100 {
                let start = below(PAGES);
                let end = start + 1 + below(PAGES - start);
                let addresses = start * PAGE_SIZE..end * PAGE_SIZE;
                // Twice as many pages as addresses: some are mapped more than once, and some not at all.
                let to = below(2 * PAGES) as u64;
                if below(3) == 0 {
                    mappings.remove(&addresses);
                    naive.0[start..end].fill(None);
                } else {
                    mappings.insert(addresses, PageIndex(to));
                    naive.0[start..end].iter_mut().zip(to..).for_each(|(page, to)| *page = Some(to));
                }
                for (at, page) in naive.0.iter().enumerate() {
                    assert_eq!(mappings.page(at * PAGE_SIZE + 1), page.map(PageIndex), "seed {seed}");
                }
                let first = below(3 * PAGES) as u64;
                let range = PageIndex(first)..PageIndex(first + 1 + below(PAGES) as u64);
                let pages = |(address, bytes): (usize, usize)| {
                    let at = address / PAGE_SIZE;
                    (at..at + bytes / PAGE_SIZE).map(|at| (at, mappings.page(at * PAGE_SIZE).unwrap().0))
                };
                let mut found: Vec<_> = mappings.parts(&range).flat_map(pages).collect();
                found.sort_unstable();
                assert_eq!(found, naive.parts(&range), "seed {seed}");
                let least = naive.0.iter().position(Option::is_some);
                assert_eq!(mappings.first().map(|address| address / PAGE_SIZE), least, "seed {seed}");
            }
        }
    }
}
