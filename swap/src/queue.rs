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
    clusters: Mutex<VecDeque<ClusterKey>>,
}

impl Queue {
    /// Puts a cluster at the young end. The caller holds its lock, and has noted in its history that it is queued.
    pub fn push(&self, cluster: ClusterKey) {
        lock(&self.clusters).push_back(cluster);
    }

    /// Puts a cluster back at the old end.
    pub fn put_back(&self, cluster: ClusterKey) {
        lock(&self.clusters).push_front(cluster);
    }

    /// Takes the oldest cluster out.
    pub fn pop(&self) -> Option<ClusterKey> {
        lock(&self.clusters).pop_front()
    }

    /// Moves those of `clusters` that are queued to the old end. Returns how many there are.
    pub fn hasten(&self, clusters: &HashSet<ClusterKey>) -> usize {
        let mut queue = lock(&self.clusters);
        let (first, rest): (Vec<_>, Vec<_>) = queue.drain(..).partition(|id| clusters.contains(id));
        queue.extend(first.iter().chain(&rest));
        first.len()
    }

    /// Returns the cluster that stands in place `nth` from the young end, which is place 0.
    pub fn youngest(&self, nth: usize) -> Option<ClusterKey> {
        let clusters = lock(&self.clusters);
        clusters.len().checked_sub(nth + 1).map(|at| clusters[at])
    }

    /// Returns the number of clusters in the queue.
    pub fn len(&self) -> usize {
        lock(&self.clusters).len()
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
}
