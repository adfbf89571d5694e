//! Regions: the ranges of private anonymous mappings that are managed.

use pagetide_swap::{CLUSTER_PAGES, ClusterNumber, PageIndex};
use std::collections::BTreeMap;
use std::ops::Range;

/// The access that the program has to a range.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Access {
    /// None: the range is reserved.
    None,
    /// Read (or execute) only.
    Read,
    /// Read and write.
    Write,
}

/// The way in which the memory of a range was charged before the engine ran.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Charging {
    /// All of it when it becomes accessible.
    ByMapping,
    /// Piece by piece, by an allocator that says what it commits.
    ByCommit,
}

/// The contents of a range in a forked child (see `madvise(2)`): those of the parent, unless one of these is set. Each
/// is set and undone for itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct AtFork {
    /// Whether the child finds zeroes: MADV_WIPEONFORK, undone by MADV_KEEPONFORK.
    pub wipe: bool,
    /// Whether the child has no mapping there: MADV_DONTFORK, undone by MADV_DOFORK.
    pub omit: bool,
}

/// The attributes of a range.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Attributes {
    /// The access that the program has.
    pub access: Access,
    /// The way in which it is charged.
    pub charging: Charging,
    /// Whether its pages stay in memory: `mlock(2)`.
    pub locked: bool,
    /// Whether its pages stay in memory for the kernel, which writes there when a thread ends and waits for nobody.
    pub kept: bool,
    /// The contents in a forked child.
    pub at_fork: AtFork,
}

impl Attributes {
    /// Returns the attributes of a new mapping.
    pub fn new(access: Access, charging: Charging) -> Self {
        Self { access, charging, locked: false, kept: false, at_fork: AtFork::default() }
    }
}

/// A range with one set of attributes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Region {
    /// The first page beyond it.
    pub end: PageIndex,
    /// Its attributes.
    pub attributes: Attributes,
}

/// All managed ranges, by their first page. Ranges never overlap; neighbours with the same attributes are one.
///
/// ```
/// use pagetide::regions::{Access, Attributes, Charging, Regions};
/// use pagetide_swap::PageIndex;
///
/// let mut regions = Regions::default();
/// let attributes = Attributes::new(Access::Write, Charging::ByMapping);
/// regions.insert(PageIndex(0)..PageIndex(10), attributes);
/// regions.insert(PageIndex(10)..PageIndex(20), attributes);
/// assert_eq!(regions.iter().count(), 1, "they are one range");
/// let removed = regions.remove(PageIndex(5)..PageIndex(8));
/// assert_eq!(removed[0].0, PageIndex(5)..PageIndex(8));
/// assert!(regions.find(PageIndex(6)).is_none() && regions.find(PageIndex(8)).is_some());
/// ```
#[derive(Debug, Default)]
pub struct Regions(BTreeMap<PageIndex, Region>);

impl Regions {
    /// Returns the range that holds `page`; `None` if the page is not managed.
    pub fn find(&self, page: PageIndex) -> Option<Region> {
        let (_, region) = self.0.range(..=page).next_back()?;
        (page < region.end).then_some(*region)
    }

    /// Returns the bounds and the attributes of the range that holds `page`; `None` if the page is not managed.
    pub fn around(&self, page: PageIndex) -> Option<(Range<PageIndex>, Attributes)> {
        let (&start, region) = self.0.range(..=page).next_back()?;
        (page < region.end).then_some((start..region.end, region.attributes))
    }

    /// Returns the parts of `range` that are managed, ascending.
    pub fn pieces(&self, range: Range<PageIndex>) -> impl Iterator<Item = (Range<PageIndex>, Region)> + '_ {
        let before = self.0.range(..range.start).next_back();
        let inside = self.0.range(range.clone());
        before.into_iter().chain(inside).filter_map(move |(&start, &region)| {
            let part = start.max(range.start)..region.end.min(range.end);
            (part.start < part.end).then_some((part, region))
        })
    }

    /// Returns the parts of a cluster that are managed, ascending.
    pub fn pieces_of(&self, cluster: ClusterNumber) -> impl Iterator<Item = (Range<PageIndex>, Region)> + '_ {
        let start = cluster.page(0);
        self.pieces(start..start.plus(CLUSTER_PAGES as u64))
    }

    /// Returns all ranges by their first pages, ascending.
    pub fn iter(&self) -> impl Iterator<Item = (PageIndex, Region)> + '_ {
        self.0.iter().map(|(&start, &region)| (start, region))
    }

    /// Forgets `range`. Returns the parts of it that were managed.
    pub fn remove(&mut self, range: Range<PageIndex>) -> Vec<(Range<PageIndex>, Region)> {
        let removed: Vec<_> = self.pieces(range.clone()).collect();
        if removed.is_empty() {
            return removed;
        }
        if let Some((&start, region)) = self.0.range_mut(..range.start).next_back()
            && region.end > range.start
        {
            let tail = *region;
            region.end = range.start;
            debug_assert!(start < range.start);
            if tail.end > range.end {
                self.0.insert(range.end, tail);
            }
        }
        let inside: Vec<_> = self.0.range(range.clone()).map(|(&start, _)| start).collect();
        for start in inside {
            let region = self.0.remove(&start).expect("listed above");
            if region.end > range.end {
                self.0.insert(range.end, region);
            }
        }
        removed
    }

    /// Adds `range` with these attributes, in place of all that was managed there.
    pub fn insert(&mut self, range: Range<PageIndex>, attributes: Attributes) {
        if range.is_empty() {
            return;
        }
        self.remove(range.clone());
        let mut region = Region { end: range.end, attributes };
        let mut start = range.start;
        let like = |other: &Region| other.attributes == attributes;
        if let Some((&before, other)) = self.0.range(..start).next_back()
            && other.end == start
            && like(other)
        {
            start = before;
        }
        if let Some(other) = self.0.get(&region.end).copied()
            && like(&other)
        {
            self.0.remove(&region.end);
            region.end = other.end;
        }
        self.0.insert(start, region);
    }

    /// Returns the ranges that a forked child has, if no page was out at the fork.
    pub fn inherited(&self) -> Self {
        let omitted = |region: &Region| region.attributes.at_fork.omit;
        let mut inherited = Self::default();
        for (start, region) in self.iter().filter(|(_, region)| !omitted(region)) {
            // Locks are not inherited: mlock(2).
            inherited.insert(start..region.end, Attributes { locked: false, ..region.attributes });
        }
        inherited
    }

    /// Changes the attributes of those parts of `range` that are managed.
    pub fn change(&mut self, range: Range<PageIndex>, change: impl Fn(&mut Attributes)) {
        let pieces: Vec<_> = self.pieces(range).collect();
        for (part, Region { mut attributes, .. }) in pieces {
            change(&mut attributes);
            self.insert(part, attributes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn p(n: u64) -> PageIndex {
        PageIndex(n)
    }

    #[test]
    fn a_change_reaches_what_is_managed_of_a_range_and_no_more() {
        let mut regions = Regions::default();
        let plain = Attributes::new(Access::Write, Charging::ByMapping);
        regions.insert(p(0)..p(10), plain);
        regions.insert(p(20)..p(30), plain);
        regions.change(p(5)..p(25), |attributes| attributes.locked = true);
        let locked = |page| regions.find(p(page)).map(|region| region.attributes.locked);
        assert_eq!(
            [4, 5, 9, 10, 19, 20, 24, 25].map(locked),
            [Some(false), Some(true), Some(true), None, None, Some(true), Some(true), Some(false)]
        );
        regions.change(p(0)..p(30), |attributes| attributes.locked = false);
        assert_eq!(regions.iter().count(), 2);
    }

    #[test]
    fn ranges_are_split_joined_and_found_as_a_naive_model_says() {
        let mut state = 0x1234_5678_9abc_def1u64;
        let mut random = |below: u64| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state % below
        };
        let mut regions = Regions::default();
        let mut model: Vec<Option<Access>> = vec![None; 64];
        for _ in 0..5000 {
            let start = random(60);
            let end = start + 1 + random(63 - start);
            let access = match random(4) {
                0 => None,
                1 => Some(Access::None),
                2 => Some(Access::Read),
                _ => Some(Access::Write),
            };
            match access {
                None => drop(regions.remove(p(start)..p(end))),
                Some(access) => {
                    regions.insert(p(start)..p(end), Attributes::new(access, Charging::ByMapping));
                }
            }
            model[start as usize..end as usize].fill(access);
            for (page, expected) in model.iter().enumerate() {
                assert_eq!(regions.find(p(page as u64)).map(|r| r.attributes.access), *expected);
            }
            let ranges: Vec<_> = regions.iter().collect();
            for pair in ranges.windows(2) {
                let ((_, a), (start, b)) = (pair[0], pair[1]);
                assert!(a.end < start || (a.end == start && a.attributes != b.attributes), "{ranges:?}");
            }
        }
    }
}
