//! Names of pages and clusters in an object.

use crate::{CLUSTER_PAGES, PAGE_SIZE};

/// log2 of [`CLUSTER_PAGES`].
const CLUSTER_SHIFT: u32 = CLUSTER_PAGES.ilog2();

/// The number of a page in its object.
///
/// The private memory of a process is one object whose index is address / 4096, so that clusters lie on
/// the boundaries of page-table pages and a mapping that is split or joined changes no entry.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct PageIndex(pub u64);

impl PageIndex {
    /// The page that holds the byte at `address`.
    pub const fn of_address(address: usize) -> Self {
        Self((address / PAGE_SIZE) as u64)
    }

    /// The address of the page's first byte.
    pub const fn address(self) -> usize {
        self.0 as usize * PAGE_SIZE
    }

    /// The cluster that this page belongs to.
    pub const fn cluster(self) -> ClusterNumber {
        ClusterNumber(self.0 >> CLUSTER_SHIFT)
    }

    /// The page's offset in its cluster, in pages.
    pub const fn offset(self) -> usize {
        (self.0 as usize) & (CLUSTER_PAGES - 1)
    }

    /// The page `count` further on.
    pub const fn plus(self, count: u64) -> Self {
        Self(self.0 + count)
    }
}

/// The number of an object: a range of memory with one index, such as the private memory of a process.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ObjectId(pub u16);

impl ObjectId {
    /// The private memory of a process.
    pub const PRIVATE: Self = Self(0);

    /// One of the object's clusters, among those of all objects.
    pub const fn cluster(self, number: ClusterNumber) -> ClusterKey {
        ClusterKey { object: self, number }
    }
}

/// Names a cluster among those of all objects.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ClusterKey {
    /// The object.
    pub object: ObjectId,
    /// The cluster's number there.
    pub number: ClusterNumber,
}

/// The number of a cluster in its object: page index / 512.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ClusterNumber(pub u64);

impl ClusterNumber {
    /// The cluster's page at `offset`.
    pub const fn page(self, offset: usize) -> PageIndex {
        PageIndex((self.0 << CLUSTER_SHIFT) + offset as u64)
    }
}

const _: () = assert!(CLUSTER_PAGES.is_power_of_two());
