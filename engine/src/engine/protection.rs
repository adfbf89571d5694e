//! Clusters that no take-out may touch for now: they hold the stack of a thread that has a lock, or is about to.

use pagetide_page::ClusterNumber;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed, Ordering::SeqCst};

/// Clusters that are protected at one time at most.
const PROTECTED_MAX: usize = 64;

/// Protected clusters, and the one that is being taken out. A cell holds one more than a cluster's number; 0 is none.
#[derive(Debug)]
pub(super) struct Protection {
    protected: [AtomicU64; PROTECTED_MAX],
    pub(super) taking: AtomicU64,
}

impl Default for Protection {
    fn default() -> Self {
        Self { protected: std::array::from_fn(|_| AtomicU64::new(0)), taking: AtomicU64::new(0) }
    }
}

impl Protection {
    /// Protects a cluster. Returns a token for [`Protection::end`]; `None` if too many are protected.
    pub(super) fn begin(&self, cluster: ClusterNumber) -> Option<usize> {
        let value = cluster.0 + 1;
        let at = self.protected.iter().position(|cell| {
            cell.load(Relaxed) == 0 && cell.compare_exchange(0, value, SeqCst, SeqCst).is_ok()
        })?;
        // A take-out announces its cluster before it looks at the list: either it sees this entry, or it
        // is seen here and waited for. It holds no lock that the caller has.
        self.await_end_of(value);
        Some(at)
    }

    /// Ends a protection.
    pub(super) fn end(&self, token: usize) {
        self.protected[token].store(0, SeqCst);
    }

    /// Announces a take-out. Returns whether the cluster is protected: then it is not to be touched.
    pub(super) fn begin_taking(&self, cluster: ClusterNumber) -> bool {
        self.taking.store(cluster.0 + 1, SeqCst);
        self.protected.iter().any(|cell| cell.load(SeqCst) == cluster.0 + 1)
    }

    /// Ends a take-out.
    pub(super) fn end_taking(&self) {
        self.taking.store(0, SeqCst);
    }

    /// Waits for the end of a take-out under way, which may not have seen what the caller did before.
    pub(super) fn await_taken(&self) {
        let value = self.taking.load(SeqCst);
        if value != 0 {
            self.await_end_of(value);
        }
    }

    fn await_end_of(&self, value: u64) {
        while self.taking.load(SeqCst) == value {
            std::thread::yield_now();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_take_out_sees_what_is_protected_and_is_waited_for() {
        let protection = Protection::default();
        assert!(!protection.begin_taking(ClusterNumber(0)));
        protection.end_taking();
        let tokens: Vec<_> = (0..PROTECTED_MAX as u64).map(|n| protection.begin(ClusterNumber(n))).collect();
        assert!(tokens.iter().all(Option::is_some));
        assert_eq!(protection.begin(ClusterNumber(1000)), None);
        assert!(protection.begin_taking(ClusterNumber(7)));
        protection.end_taking();
        protection.end(tokens[7].unwrap());
        assert!(!protection.begin_taking(ClusterNumber(7)));
        // One that waits for the take-out goes on when it has ended.
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| protection.await_taken());
            protection.end_taking();
            waits.join().unwrap();
        });
    }
}
