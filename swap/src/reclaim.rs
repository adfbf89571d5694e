//! The order in which clusters are asked to give memory up.
//!
//! A queue of clusters in order of arrival, with a second chance: a cluster whose pages came back from
//! probation is hot and goes round once more. Nothing else tells hot from cold: the kernel shows a
//! program no access bits of its own memory.

use crate::table::{ClusterId, lock};
use std::collections::VecDeque;
use std::sync::Mutex;

/// Clusters that hold present pages, oldest first.
#[derive(Debug, Default)]
pub struct Queue {
    clusters: Mutex<VecDeque<ClusterId>>,
}

impl Queue {
    /// Puts a cluster at the young end. The caller holds its lock and has set `queued`.
    pub fn push(&self, cluster: ClusterId) {
        lock(&self.clusters).push_back(cluster);
    }

    /// Takes the oldest cluster out.
    pub fn pop(&self) -> Option<ClusterId> {
        lock(&self.clusters).pop_front()
    }

    /// Number `nth` from the young end.
    pub fn youngest(&self, nth: usize) -> Option<ClusterId> {
        let clusters = lock(&self.clusters);
        clusters.len().checked_sub(nth + 1).map(|at| clusters[at])
    }

    /// Clusters in the queue.
    pub fn len(&self) -> usize {
        lock(&self.clusters).len()
    }

    /// Whether no cluster is queued.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}
