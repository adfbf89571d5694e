//! Parts of ranges of pages that lie in one cluster each.

use crate::memory::PageSet;
use pagetide_swap::{CLUSTER_PAGES, ClusterNumber, PageIndex};
use std::ops::Range;

/// Returns the numbers of the clusters in which a range lies.
pub(super) fn clusters_of(range: &Range<PageIndex>) -> Range<u64> {
    range.start.cluster().0..range.end.0.div_ceil(CLUSTER_PAGES as u64)
}

/// Returns the pages of a cluster.
pub(super) fn whole(number: ClusterNumber) -> Range<PageIndex> {
    run_of(number, &(0..CLUSTER_PAGES))
}

/// Returns the pages of a run of a cluster.
pub(super) fn run_of(number: ClusterNumber, run: &Range<usize>) -> Range<PageIndex> {
    number.page(0).plus(run.start as u64)..number.page(0).plus(run.end as u64)
}

/// Returns the part of a range that lies in a cluster, one of those in which it lies.
pub(super) fn part_of(range: &Range<PageIndex>, number: ClusterNumber) -> Range<PageIndex> {
    let whole = whole(number);
    whole.start.max(range.start)..whole.end.min(range.end)
}

/// Returns the offsets of a part, which lies in one cluster.
pub(super) fn offsets_of(part: &Range<PageIndex>) -> Range<usize> {
    part.start.offset()..part.start.offset() + (part.end.0 - part.start.0) as usize
}

/// Returns the parts of a range that lie in one cluster each.
pub(super) fn by_cluster(range: Range<PageIndex>) -> impl Iterator<Item = (ClusterNumber, PageSet)> {
    clusters_of(&range).map(ClusterNumber).map(move |number| {
        let part = part_of(&range, number);
        (number, PageSet::range(offsets_of(&part)))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_is_cut_at_clusters() {
        let parts: Vec<_> = by_cluster(PageIndex(500)..PageIndex(1025)).collect();
        let expected = [(0, 500..512), (1, 0..512), (2, 0..1)];
        assert_eq!(parts, expected.map(|(number, pages)| (ClusterNumber(number), PageSet::range(pages))));
        assert_eq!(run_of(ClusterNumber(1), &(3..512)), PageIndex(515)..PageIndex(1024));
    }
}
