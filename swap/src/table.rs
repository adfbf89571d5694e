//! The swap table: one 64-bit word a page, in clusters of 512, found in three index steps.
//!
//! The table owns the words and the counts over them. It does not know what places mean.
//!
//! # Concurrency
//! One lock a cluster. Words change only through a [`ClusterGuard`], so a transition without the lock does
//! not compile. The directory of clusters only grows; a cluster that empties is unlinked under the
//! directory lock *and* its own lock, and whoever locked it late finds another number in it and looks
//! again. Indices into slabs, no pointers: a forked child may go on using it if no lock was held.
//!
//! Lock order: directory, then cluster. No code holds two cluster locks, but for [`Table::lock_pair`],
//! which takes them in order of cluster number.

use crate::entry::{CLUSTER_PAGES, ClusterNumber};
use crate::slab::Slab;
use crate::word::{State, Word};
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, OnceLock};

/// Clusters that the first segment of the slab holds, about 34 KiB. There is room for 2^27, 256 TiB of touched
/// memory.
const FIRST_SEGMENT: usize = 8;
/// Cluster numbers that one leaf of the directory covers: 512 MiB of addresses.
const LEAF_CLUSTERS: usize = 1 << 8;
/// Leaves of one branch: 256 GiB of addresses.
const BRANCH_LEAVES: usize = 1 << 9;
const BRANCH_CLUSTERS: usize = LEAF_CLUSTERS * BRANCH_LEAVES;
/// Branches: 47 bits of addresses.
const BRANCHES: usize = 1 << 9;
/// The number of a cluster that is on the free list.
const FREE: u64 = u64::MAX;

/// Index of a cluster in the slab. Stable while the cluster is linked.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ClusterId(u32);

/// Counts over a cluster's words, and what reclaim remembers of it.
#[derive(Debug)]
pub struct ClusterState {
    number: u64,
    present: u16,
    cached: u16,
    swapped: u16,
    poisoned: u16,
    locked: u16,
    copies: u16,
    /// Whether the cluster stands in the reclaim queue.
    pub queued: bool,
    /// Second chance: probation hits say that its pages are hot.
    pub referenced: bool,
    /// Probation hits since the last take-out.
    pub hits: u16,
    /// Pages that the last take-out took.
    pub taken: u16,
}

#[derive(Debug)]
struct Cluster {
    state: Mutex<ClusterState>,
    words: [AtomicU64; CLUSTER_PAGES],
}

type Leaf = Box<[AtomicU32; LEAF_CLUSTERS]>;
type Branch = Box<[OnceLock<Leaf>; BRANCH_LEAVES]>;

/// The table of one object.
#[derive(Debug)]
pub struct Table {
    branches: Box<[OnceLock<Branch>]>,
    clusters: Slab<Cluster, FIRST_SEGMENT>,
    free: Mutex<FreeList>,
    bytes: AtomicUsize,
}

#[derive(Debug, Default)]
struct FreeList {
    ids: Vec<u32>,
    used: u32,
}

/// The only way to change a cluster's words.
pub struct ClusterGuard<'a> {
    state: MutexGuard<'a, ClusterState>,
    words: &'a [AtomicU64; CLUSTER_PAGES],
    id: ClusterId,
}

impl Default for Table {
    fn default() -> Self {
        Self {
            branches: (0..BRANCHES).map(|_| OnceLock::new()).collect(),
            clusters: Slab::default(),
            free: Mutex::default(),
            bytes: AtomicUsize::new(0),
        }
    }
}

impl Table {
    /// Bytes that clusters and directories take.
    pub fn bytes(&self) -> usize {
        self.bytes.load(Relaxed)
    }

    fn slot(&self, number: ClusterNumber) -> Option<&AtomicU32> {
        let number = number.0 as usize;
        let branch = self.branches.get(number / BRANCH_CLUSTERS)?.get()?;
        let leaf = branch[number / LEAF_CLUSTERS % BRANCH_LEAVES].get()?;
        Some(&leaf[number % LEAF_CLUSTERS])
    }

    /// The same, making the way there.
    fn slot_or_create(&self, number: ClusterNumber) -> &AtomicU32 {
        let number = number.0 as usize;
        let branch = self.branches[number / BRANCH_CLUSTERS].get_or_init(|| {
            self.bytes.fetch_add(size_of::<[OnceLock<Leaf>; BRANCH_LEAVES]>(), Relaxed);
            Box::new([const { OnceLock::new() }; BRANCH_LEAVES])
        });
        let leaf = branch[number / LEAF_CLUSTERS % BRANCH_LEAVES].get_or_init(|| {
            self.bytes.fetch_add(LEAF_CLUSTERS * size_of::<AtomicU32>(), Relaxed);
            Box::new([const { AtomicU32::new(0) }; LEAF_CLUSTERS])
        });
        &leaf[number % LEAF_CLUSTERS]
    }

    fn cluster(&self, id: u32) -> &Cluster {
        self.clusters.get(id).expect("an id that was handed out")
    }

    fn guard(&self, id: u32) -> ClusterGuard<'_> {
        let cluster = self.cluster(id);
        ClusterGuard { state: lock(&cluster.state), words: &cluster.words, id: ClusterId(id) }
    }

    /// Locks a cluster, if any of its pages was ever touched.
    pub fn lock(&self, number: ClusterNumber) -> Option<ClusterGuard<'_>> {
        loop {
            // Id + 1, so that zero says "none".
            let id = self.slot(number)?.load(Relaxed).checked_sub(1)?;
            let guard = self.guard(id);
            if guard.state.number == number.0 {
                return Some(guard);
            }
            // Unlinked, and perhaps linked elsewhere, between the look-up and the lock: look again.
        }
    }

    /// Locks the cluster with this id, if it is linked.
    pub fn lock_id(&self, id: ClusterId) -> Option<ClusterGuard<'_>> {
        let guard = self.guard(id.0);
        (guard.state.number != FREE).then_some(guard)
    }

    /// Locks a cluster, linking a new one where there is none.
    ///
    /// # Panics
    /// If the cluster number is beyond 47 bits of address space or the slab is full (256 TiB touched).
    pub fn lock_or_create(&self, number: ClusterNumber) -> ClusterGuard<'_> {
        loop {
            if let Some(guard) = self.lock(number) {
                return guard;
            }
            let mut free = lock(&self.free);
            let slot = self.slot_or_create(number);
            if slot.load(Relaxed) != 0 {
                continue;
            }
            let id = free.ids.pop().unwrap_or_else(|| {
                let id = free.used;
                self.bytes.fetch_add(self.clusters.make(id, Cluster::new), Relaxed);
                free.used += 1;
                id
            });
            let mut guard = self.guard(id);
            debug_assert_eq!(guard.state.number, FREE);
            guard.state.number = number.0;
            slot.store(id + 1, Relaxed);
            return guard;
        }
    }

    /// Locks two different clusters, in order of their numbers.
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

    /// Unlinks a cluster if all its pages are holes.
    pub fn release_if_empty(&self, number: ClusterNumber) {
        let mut free = lock(&self.free);
        let Some(mut guard) = self.lock(number) else { return };
        if guard.is_empty() && !guard.state.queued {
            self.slot(number).expect("linked").store(0, Relaxed);
            *guard.state = ClusterState::default();
            free.ids.push(guard.id.0);
        }
    }

    /// Reads a word without a lock: for statistics and for tests.
    pub fn peek(&self, page: crate::entry::PageIndex) -> Word {
        let Some(id) = self.slot(page.cluster()).and_then(|slot| slot.load(Relaxed).checked_sub(1)) else {
            return Word::HOLE;
        };
        Word(self.cluster(id).words[page.offset()].load(Relaxed))
    }

    /// The numbers of all linked clusters in `range`, ascending.
    pub fn linked(&self, range: std::ops::Range<u64>) -> impl Iterator<Item = ClusterNumber> + '_ {
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
                let linked = leaf[number as usize % LEAF_CLUSTERS].load(Relaxed) != 0;
                number += 1;
                if linked {
                    return Some(ClusterNumber(number - 1));
                }
            }
            None
        })
    }
}

/// Takes a lock whose holder cannot have left it inconsistent: the data are counters and words that are
/// set in one step, and a panic in the engine ends the process anyway.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

impl Default for ClusterState {
    fn default() -> Self {
        Self {
            number: FREE,
            present: 0,
            cached: 0,
            swapped: 0,
            poisoned: 0,
            locked: 0,
            copies: 0,
            queued: false,
            referenced: false,
            hits: 0,
            taken: 0,
        }
    }
}

impl Cluster {
    fn new() -> Self {
        Self {
            state: Mutex::new(ClusterState::default()),
            words: std::array::from_fn(|_| AtomicU64::new(Word::HOLE.0)),
        }
    }
}

impl ClusterGuard<'_> {
    /// The cluster's number.
    pub fn number(&self) -> ClusterNumber {
        ClusterNumber(self.state.number)
    }

    /// The cluster's place in the slab.
    pub fn id(&self) -> ClusterId {
        self.id
    }

    /// The word of the page at `offset`.
    pub fn get(&self, offset: usize) -> Word {
        Word(self.words[offset].load(Relaxed))
    }

    /// Changes the word of the page at `offset`.
    pub fn set(&mut self, offset: usize, word: Word) {
        let old = self.get(offset);
        self.words[offset].store(word.0, Relaxed);
        if old.state() != word.state() {
            if let Some(count) = self.count(old.state()) {
                *count -= 1;
            }
            if let Some(count) = self.count(word.state()) {
                *count += 1;
            }
        }
        self.state.copies =
            self.state.copies + u16::from(word.has_pool_copy()) - u16::from(old.has_pool_copy());
        self.state.locked = self.state.locked + u16::from(word.is_locked()) - u16::from(old.is_locked());
    }

    fn count(&mut self, state: State) -> Option<&mut u16> {
        match state {
            State::Hole => None,
            State::Present => Some(&mut self.state.present),
            State::Cached => Some(&mut self.state.cached),
            State::Swapped => Some(&mut self.state.swapped),
            State::Poisoned => Some(&mut self.state.poisoned),
        }
    }

    /// Pages in the program.
    pub fn present(&self) -> usize {
        self.state.present.into()
    }

    /// Pages on probation.
    pub fn cached(&self) -> usize {
        self.state.cached.into()
    }

    /// Pages at a place.
    pub fn swapped(&self) -> usize {
        self.state.swapped.into()
    }

    /// Pages that are lost.
    pub fn poisoned(&self) -> usize {
        self.state.poisoned.into()
    }

    /// Pages with a transfer under way.
    pub fn locked(&self) -> usize {
        self.state.locked.into()
    }

    /// Pages in the program of which the pool keeps a copy.
    pub fn copies(&self) -> usize {
        self.state.copies.into()
    }

    /// Whether every page is a hole.
    pub fn is_empty(&self) -> bool {
        let s = &*self.state;
        s.present == 0 && s.cached == 0 && s.swapped == 0 && s.poisoned == 0 && s.locked == 0
    }

    /// What reclaim remembers.
    pub fn state(&mut self) -> &mut ClusterState {
        &mut self.state
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::entry::PageIndex;
    use crate::place::Place;

    #[test]
    fn words_are_found_again_and_counted() {
        let table = Table::default();
        let page = PageIndex(0x0007_f001_2345);
        assert_eq!(table.peek(page), Word::HOLE);
        assert!(table.lock(page.cluster()).is_none());
        {
            let mut cluster = table.lock_or_create(page.cluster());
            cluster.set(page.offset(), Word::present(None).locked());
            assert_eq!((cluster.present(), cluster.locked()), (1, 1));
            cluster.set(page.offset(), Word::swapped(Place::ZERO, 1));
            assert_eq!((cluster.present(), cluster.locked(), cluster.swapped()), (0, 0, 1));
        }
        assert_eq!(table.peek(page), Word::swapped(Place::ZERO, 1));
    }

    #[test]
    fn an_empty_cluster_is_used_again_under_another_number() {
        let table = Table::default();
        let (a, b) = (ClusterNumber(5), ClusterNumber(900_000));
        let id = table.lock_or_create(a).id();
        table.release_if_empty(a);
        assert!(table.lock(a).is_none());
        assert!(table.lock_id(id).is_none());
        assert_eq!(table.lock_or_create(b).id(), id);
        table.lock_or_create(b).set(1, Word::present(None));
        table.release_if_empty(b);
        assert!(table.lock(b).is_some(), "a cluster with a page stays");
    }

    #[test]
    fn linked_walks_over_gaps() {
        let table = Table::default();
        let numbers = [3, 4, 255, 256, 131_071, 131_072, 50_000_000];
        for number in numbers {
            drop(table.lock_or_create(ClusterNumber(number)));
        }
        let found: Vec<_> = table.linked(4..60_000_000).map(|n| n.0).collect();
        assert_eq!(found, numbers[1..]);
    }
}
