//! Queues of clusters, in the order in which they are asked to give memory up.
//!
//! They are in order of arrival, and decide nothing: [`crate::policy`] says whether the cluster whose turn has come
//! leaves, or gets a second chance and goes round once more. [`crate::swap::Swap::victim`] asks it.

use crate::sync::{Mutex, lock};
use pagetide_page::ClusterKey;
use std::collections::{HashSet, VecDeque};

/// A queue of clusters, oldest first: of those with pages in the program, or of those with pages in the pool.
#[derive(Debug, Default)]
pub struct Queue {
    order: Mutex<Order>,
}

#[derive(Debug, Default)]
struct Order {
    clusters: VecDeque<ClusterKey>,
    /// Clusters at the old end that [`Queue::grown_old`] has given out.
    old: usize,
}

/// The part of the queue, from its old end on, that counts as old.
const OLD_PART: usize = 4;

impl Queue {
    /// Puts a cluster at the young end. The caller holds its lock, and has noted in its history that it is queued.
    pub fn push(&self, cluster: ClusterKey) {
        lock(&self.order).clusters.push_back(cluster);
    }

    /// Puts a cluster back at the old end.
    pub fn put_back(&self, cluster: ClusterKey) {
        let mut order = lock(&self.order);
        order.clusters.push_front(cluster);
        order.old += 1;
    }

    /// Takes the oldest cluster out.
    pub fn pop(&self) -> Option<ClusterKey> {
        let mut order = lock(&self.order);
        order.old = order.old.saturating_sub(1);
        order.clusters.pop_front()
    }

    /// Returns the next cluster that has come into the oldest quarter of the queue, oldest first, but not the one whose
    /// turn is next; `None` if there is none that was not given out before. It stays where it stands.
    pub fn grown_old(&self) -> Option<ClusterKey> {
        let mut order = lock(&self.order);
        let next = order.old.max(1);
        if next > order.clusters.len().div_ceil(OLD_PART) {
            return None;
        }
        let grown = order.clusters.get(next).copied()?;
        order.old = next + 1;
        Some(grown)
    }

    /// Moves those of `clusters` that are queued to the old end. Returns how many there are.
    pub fn hasten(&self, clusters: &HashSet<ClusterKey>) -> usize {
        let mut order = lock(&self.order);
        let (first, rest): (Vec<_>, Vec<_>) = order.clusters.drain(..).partition(|id| clusters.contains(id));
        order.clusters.extend(first.iter().chain(&rest));
        // What was given out before stands behind them; some may be given out again.
        order.old = order.old.max(first.len());
        first.len()
    }

    /// Returns the cluster that stands in place `nth` from the young end, which is place 0.
    pub fn youngest(&self, nth: usize) -> Option<ClusterKey> {
        let clusters = &lock(&self.order).clusters;
        clusters.len().checked_sub(nth + 1).map(|at| clusters[at])
    }

    /// Returns the number of clusters in the queue.
    pub fn len(&self) -> usize {
        lock(&self.order).clusters.len()
    }

    /// Returns whether no cluster is queued.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pagetide_page::{ClusterNumber, ObjectId};

    #[test]
    fn clusters_that_are_hastened_leave_first_and_in_order() {
        let queue = Queue::default();
        let ids: Vec<_> = (0..6).map(|number| ObjectId::PRIVATE.cluster(ClusterNumber(number))).collect();
        ids[..5].iter().for_each(|&id| queue.push(id));
        assert_eq!(queue.youngest(1), Some(ids[3]));
        assert_eq!(queue.hasten(&[ids[3], ids[1], ids[5]].into()), 2);
        assert_eq!(queue.youngest(0), Some(ids[4]));
        let order: Vec<_> = std::iter::from_fn(|| queue.pop()).collect();
        assert_eq!(order, [1, 3, 0, 2, 4].map(|number| ids[number]));
        assert_eq!(queue.youngest(0), None);
    }

    #[test]
    fn a_cluster_grows_old_once_a_round() {
        let queue = Queue::default();
        let ids: Vec<_> = (0..8).map(|number| ObjectId::PRIVATE.cluster(ClusterNumber(number))).collect();
        ids.iter().for_each(|&id| queue.push(id));
        let grown_old = || std::iter::from_fn(|| queue.grown_old()).collect::<Vec<_>>();
        assert_eq!(grown_old(), ids[1..3]);
        assert_eq!(grown_old(), []);
        for nth in 0..20 {
            let oldest = queue.pop().unwrap();
            queue.push(oldest);
            assert_eq!((oldest, grown_old()), (ids[nth % 8], vec![ids[(nth + 3) % 8]]));
        }
        (0..8).for_each(|_| _ = queue.pop());
        assert_eq!(grown_old(), []);
    }
}
