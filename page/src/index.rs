//! Names of pages and clusters: their numbers in an object.

use crate::{CLUSTER_PAGES, PAGE_SIZE};

/// log2 of [`CLUSTER_PAGES`].
const CLUSTER_SHIFT: u32 = CLUSTER_PAGES.ilog2();

/// The number of a page in its object.
///
/// The private memory of a process is one object whose index is address / 4096, so that clusters lie on
/// the boundaries of page-table pages and a mapping that is split or joined changes no entry.
///
/// ```
/// use pagetide_page::{ClusterNumber, PageIndex};
///
/// let page = PageIndex::of_address(0x20_3abc);
/// assert_eq!(page, PageIndex(0x203));
/// assert_eq!(page.address(), 0x20_3000);
/// // 512 pages are a cluster: page 0x203 is the fourth of the second one.
/// assert_eq!((page.cluster(), page.offset()), (ClusterNumber(1), 3));
/// assert_eq!(ClusterNumber(1).page(3), page);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct PageIndex(pub u64);

impl PageIndex {
    /// Returns the page that holds the byte at `address`.
    pub const fn of_address(address: usize) -> Self {
        Self((address / PAGE_SIZE) as u64)
    }

    /// Returns the address of the page's first byte.
    pub const fn address(self) -> usize {
        self.0 as usize * PAGE_SIZE
    }

    /// Returns the cluster that this page belongs to.
    pub const fn cluster(self) -> ClusterNumber {
        ClusterNumber(self.0 >> CLUSTER_SHIFT)
    }

    /// Returns the page's offset in its cluster, in pages: 0 to 511.
    pub const fn offset(self) -> usize {
        (self.0 as usize) & (CLUSTER_PAGES - 1)
    }

    /// Returns the page `count` pages after this one.
    pub const fn plus(self, count: u64) -> Self {
        Self(self.0 + count)
    }
}

/// The number of an object: a range of memory with one index, such as the private memory of a process.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ObjectId(pub u16);

impl ObjectId {
    /// The private memory of a process: so far the only object.
    pub const PRIVATE: Self = Self(0);

    /// Returns the name of the object's cluster `number` among the clusters of all objects.
    pub const fn cluster(self, number: ClusterNumber) -> ClusterKey {
        ClusterKey { object: self, number }
    }
}

/// A name of a cluster among the clusters of all objects.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ClusterKey {
    /// The object that the cluster belongs to.
    pub object: ObjectId,
    /// The cluster's number in that object.
    pub number: ClusterNumber,
}

/// The number of a cluster in its object: page index / 512.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ClusterNumber(pub u64);

impl ClusterNumber {
    /// Returns the cluster's page at `offset`, in pages from its first page.
    pub const fn page(self, offset: usize) -> PageIndex {
        PageIndex((self.0 << CLUSTER_SHIFT) + offset as u64)
    }
}

const _: () = assert!(CLUSTER_PAGES.is_power_of_two());
