//! The swap table: a 64-bit word a page where neighbours differ, one for a whole run where they agree.
//!
//! ```text
//! directory          cluster, 2 MiB                32 units, 64 KiB each           16 pages
//! ┌────────┐        ┌───────────────────────┐      ┌────────────────────┐        ┌───────────┐
//! │ number │───────▶│ latch, history        │      │ counts             │   ┌───▶│ word word │
//! └────────┘        │ word for all 512, or ─┼─────▶│ word for all 16, or┼───┘    │ …         │
//!                   └───────────────────────┘      └────────────────────┘        └───────────┘
//! ```
//!
//! A cluster of which half of the units are cut has 512 words in one piece: found sooner, and no larger than the cuts.
//!
//! A word stands for a run if the words of its pages follow from it ([`Word::nth`]): all are holes, or in the same
//! frames, or zero, or on the device one block after the other. It is made finer where a page comes to differ, and
//! coarser again when all agree.
//!
//! The table owns the words and the counts over them. It does not know what places mean.
//!
//! # Concurrency
//! One latch a cluster. Words change only through a [`ClusterGuard`], so a transition without it does not compile;
//! [`Table::peek`] reads without: what it saw is valid if the latch's count is what it was. The directory only grows.
//! Finer words are found by number, no pointers: what was given back and used again holds another's words, not another
//! thing, and the count tells. A forked child may go on using the table if nothing was held.
//!
//! No code holds two clusters, but for [`Table::lock_pair`], which takes them in order of cluster number.

mod counts;
mod guard;
mod history;
mod levels;
mod lookup;
pub mod outside;
mod store;

pub use guard::ClusterGuard;
pub use history::History;
pub use lookup::Run;

use crate::latch::{Latch, Parking};
use crate::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering::Relaxed};
use crate::word::Word;
use guard::FLAT_UNITS;
use levels::{Flat, Pages, Units};
use pagetide_page::{CLUSTER_PAGES, ClusterNumber};
use std::ops::Range;
use std::sync::OnceLock;
use store::Store;

/// Pages of a unit: 64 KiB.
const UNIT_PAGES: usize = 16;
/// Units of a cluster.
const UNITS: usize = CLUSTER_PAGES / UNIT_PAGES;
/// Cluster numbers that one leaf of the directory covers: 512 MiB of addresses.
const LEAF_CLUSTERS: usize = 1 << 8;
/// Leaves of one branch: 256 GiB of addresses.
const BRANCH_LEAVES: usize = 1 << 9;
const BRANCH_CLUSTERS: usize = LEAF_CLUSTERS * BRANCH_LEAVES;
/// Branches: 47 bits of addresses.
const BRANCHES: usize = 1 << 9;
/// The number of clusters that a table can have.
pub const CLUSTERS_MAX: u64 = (BRANCHES * BRANCH_CLUSTERS) as u64;
/// The number of looks at a cluster that is held, before a reader waits for its latch.
const PEEKS: usize = 64;

/// Returns the place of a cluster in its leaf. Neighbours stand far apart, for threads that work on neighbours would
/// write to the same cache line.
const fn place_in_leaf(number: usize) -> usize {
    const ROWS: usize = 8;
    let nth = number % LEAF_CLUSTERS;
    nth % ROWS * (LEAF_CLUSTERS / ROWS) + nth / ROWS
}

#[derive(Debug, Default)]
#[repr(C)]
struct Cluster {
    latch: Latch,
    history: AtomicU32,
    /// The word of the first page, from which all others follow, or the number of its units.
    root: AtomicU64,
    counts: AtomicU64,
}
#[cfg(not(any(feature = "loom", feature = "shuttle")))]
const _: () = {
    use std::mem::offset_of;
    assert!(
        size_of::<Cluster>() == 24 && offset_of!(Cluster, latch) == 0 && offset_of!(Cluster, history) == 4
    );
    assert!(offset_of!(Cluster, root) == 8 && offset_of!(Leaf, clusters) == 0);
    assert!(offset_of!(Leaf, next) == offset_of!(Leaf, number) + 8);
};

/// Clusters, and what [`outside`] finds them by: the leaf's number, and the address of the leaf that was made before.
#[derive(Debug)]
#[repr(C)]
struct Leaf {
    clusters: [Cluster; LEAF_CLUSTERS],
    number: u64,
    next: std::sync::atomic::AtomicU64,
}

type Branch = Box<[OnceLock<Box<Leaf>>; BRANCH_LEAVES]>;

/// The table of one object.
///
/// ```
/// use pagetide_swap::table::Table;
/// use pagetide_swap::workingset::Shadow;
/// use pagetide_swap::{PageIndex, Place, Word};
///
/// let table = Table::default();
/// let page = PageIndex(600);
/// let word = Word::swapped(Place::Device(40), Shadow(0));
/// // 16 adjacent pages lie on the device, one block after the other.
/// let mut cluster = table.lock_or_create(page.cluster());
/// cluster.set_run(page.offset()..page.offset() + 16, word);
/// assert_eq!(cluster.swapped(), 16);
/// drop(cluster);
/// assert_eq!(table.peek(page.plus(3)).place(), Some(Place::Device(43)));
/// let run = table.has_page(page.plus(3), 512, 512).expect("it has a place");
/// assert_eq!((run.before, run.after), (3, 12));
/// ```
#[derive(Debug)]
pub struct Table {
    branches: Box<[OnceLock<Branch>]>,
    units: Store<Units, 8>,
    pages: Store<Pages, 32>,
    flats: Store<Flat, 1>,
    parking: Parking,
    /// The address of the leaf that was made last.
    leaves: std::sync::atomic::AtomicU64,
    bytes: AtomicUsize,
}

impl Default for Table {
    fn default() -> Self {
        Self {
            branches: (0..BRANCHES).map(|_| OnceLock::new()).collect(),
            units: Store::default(),
            pages: Store::default(),
            flats: Store::default(),
            parking: Parking::default(),
            leaves: std::sync::atomic::AtomicU64::new(0),
            bytes: AtomicUsize::new(0),
        }
    }
}

impl Table {
    /// Returns the bytes of memory that the table takes: clusters, finer words and directory.
    pub fn bytes(&self) -> usize {
        self.bytes.load(Relaxed)
    }

    /// Makes memory beforehand for words that become finer, since freeing memory must not need any: for cutting
    /// `clusters` clusters and `units` units of them, and for making some clusters flat.
    pub fn reserve(&self, clusters: u32, units: u32) {
        self.flats.reserve(self.flats.used.load(Relaxed) + units / FLAT_UNITS as u32, &self.bytes);
        self.units.reserve(self.units.used.load(Relaxed) + clusters, &self.bytes);
        self.pages.reserve(self.pages.used.load(Relaxed) + units, &self.bytes);
    }

    #[inline]
    fn cluster(&self, number: ClusterNumber) -> Option<&Cluster> {
        #[cfg(test)]
        walks::note();
        let number = number.0 as usize;
        let branch = self.branches.get(number / BRANCH_CLUSTERS)?.get()?;
        let leaf = branch[number / LEAF_CLUSTERS % BRANCH_LEAVES].get()?;
        Some(&leaf.clusters[place_in_leaf(number)])
    }

    /// Finds a cluster, and makes its leaf and branch if there are none.
    #[cold]
    fn make_cluster(&self, number: ClusterNumber) -> &Cluster {
        let number = number.0 as usize;
        let branch = self.branches[number / BRANCH_CLUSTERS].get_or_init(|| {
            self.bytes.fetch_add(size_of::<[OnceLock<Box<Leaf>>; BRANCH_LEAVES]>(), Relaxed);
            Box::new([const { OnceLock::new() }; BRANCH_LEAVES])
        });
        let leaf = branch[number / LEAF_CLUSTERS % BRANCH_LEAVES].get_or_init(|| {
            self.bytes.fetch_add(size_of::<Leaf>(), Relaxed);
            let leaf = Box::new(Leaf {
                clusters: std::array::from_fn(|_| Cluster::default()),
                number: (number / LEAF_CLUSTERS) as u64,
                next: std::sync::atomic::AtomicU64::new(0),
            });
            let address = std::ptr::from_ref(&*leaf).addr() as u64;
            let link = |before| {
                leaf.next.store(before, Relaxed);
                Some(address)
            };
            let _ = self.leaves.fetch_update(std::sync::atomic::Ordering::Release, Relaxed, link);
            leaf
        });
        &leaf.clusters[place_in_leaf(number)]
    }

    #[inline]
    fn guard<'a>(&'a self, number: ClusterNumber, cluster: &'a Cluster) -> ClusterGuard<'a> {
        cluster.latch.acquire(&self.parking, number.0 as u32);
        let level = self.level(cluster).expect("nobody else changes it");
        ClusterGuard { table: self, cluster, level, counts: cluster.counts.load(Relaxed), number }
    }

    /// Locks a cluster; `None` if neither it nor a neighbour was ever touched.
    #[inline]
    pub fn lock(&self, number: ClusterNumber) -> Option<ClusterGuard<'_>> {
        self.cluster(number).map(|cluster| self.guard(number, cluster))
    }

    /// Locks a cluster, and makes it if it was never touched.
    ///
    /// # Panics
    /// If the cluster number is beyond 47 bits of address space.
    #[inline]
    pub fn lock_or_create(&self, number: ClusterNumber) -> ClusterGuard<'_> {
        let cluster = self.cluster(number).unwrap_or_else(|| self.make_cluster(number));
        self.guard(number, cluster)
    }

    /// Locks two different clusters, in order of their numbers, and makes them if they were never touched.
    ///
    /// # Panics
    /// If they are the same cluster, or one lies beyond 47 bits of address space.
    pub fn lock_pair(
        &self,
        first: ClusterNumber,
        second: ClusterNumber,
    ) -> (ClusterGuard<'_>, ClusterGuard<'_>) {
        assert_ne!(first, second);
        if first < second {
            let a = self.lock_or_create(first);
            (a, self.lock_or_create(second))
        } else {
            let b = self.lock_or_create(second);
            (self.lock_or_create(first), b)
        }
    }

    /// Returns the numbers of all clusters in `range` in which not every page is a hole, ascending.
    pub fn touched(&self, range: Range<u64>) -> impl Iterator<Item = ClusterNumber> + '_ {
        let mut number = range.start;
        std::iter::from_fn(move || {
            while number < range.end {
                let Some(branch) =
                    self.branches.get(number as usize / BRANCH_CLUSTERS).and_then(OnceLock::get)
                else {
                    number = (number / BRANCH_CLUSTERS as u64 + 1) * BRANCH_CLUSTERS as u64;
                    continue;
                };
                let Some(leaf) = branch[number as usize / LEAF_CLUSTERS % BRANCH_LEAVES].get() else {
                    number = (number / LEAF_CLUSTERS as u64 + 1) * LEAF_CLUSTERS as u64;
                    continue;
                };
                let root = leaf.clusters[place_in_leaf(number as usize)].root.load(Relaxed);
                number += 1;
                if root != Word::HOLE.0 {
                    return Some(ClusterNumber(number - 1));
                }
            }
            None
        })
    }
}

/// The number of times that this thread has looked a cluster up.
#[cfg(test)]
pub(crate) mod walks {
    use std::cell::Cell;

    thread_local!(static COUNT: Cell<usize> = const { Cell::new(0) });

    pub(super) fn note() {
        COUNT.set(COUNT.get() + 1);
    }

    /// Returns the number of look-ups since the last call.
    pub(crate) fn take() -> usize {
        COUNT.take()
    }
}

#[cfg(test)]
mod tests;
