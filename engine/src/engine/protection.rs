//! Clusters that no take-out may touch for now: they hold the stack of a thread that has a lock, or is about to.

use pagetide_page::ClusterNumber;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed, Ordering::SeqCst};

/// Clusters that are protected at one time at most: one or two for each thread in a call, also while it waits for a fork.
const PROTECTED_MAX: usize = 256;
/// Take-outs under way at most: a program's engine has one at a time, that of shared memory one for each thread that
/// reclaims or answers faults.
const TAKINGS_MAX: usize = 8;

/// Protected clusters, and those that are being taken out. A cell holds one more than a cluster's number; 0 is none.
#[derive(Debug)]
pub(super) struct Protection {
    protected: [AtomicU64; PROTECTED_MAX],
    pub(super) taking: [AtomicU64; TAKINGS_MAX],
}

impl Default for Protection {
    fn default() -> Self {
        Self {
            protected: std::array::from_fn(|_| AtomicU64::new(0)),
            taking: std::array::from_fn(|_| AtomicU64::new(0)),
        }
    }
}

impl Protection {
    /// Protects a cluster. Returns a token for [`Protection::end`]; `None` if too many are protected.
    pub(super) fn begin(&self, cluster: ClusterNumber) -> Option<usize> {
        let at = take_cell(&self.protected, cluster)?;
        // A take-out announces its cluster before it looks at the list: either it sees this entry, or it
        // is seen here and waited for. It holds no lock that the caller has.
        self.await_end_of(|taken| taken == cluster.0 + 1);
        Some(at)
    }

    /// Ends a protection.
    pub(super) fn end(&self, token: usize) {
        self.protected[token].store(0, SeqCst);
    }

    /// Announces a take-out. Returns a token for [`Protection::end_taking`], and whether the cluster is protected: then it
    /// is not to be touched.
    pub(super) fn begin_taking(&self, cluster: ClusterNumber) -> (usize, bool) {
        let token = loop {
            match take_cell(&self.taking, cluster) {
                Some(token) => break token,
                None => std::thread::yield_now(),
            }
        };
        (token, self.protected.iter().any(|cell| cell.load(SeqCst) == cluster.0 + 1))
    }

    /// Ends a take-out.
    pub(super) fn end_taking(&self, token: usize) {
        self.taking[token].store(0, SeqCst);
    }

    /// Waits for the end of the take-outs under way, which may not have seen what the caller did before.
    pub(super) fn await_taken(&self) {
        self.await_end_of(|_| true);
    }

    /// Waits for the end of each take-out under way whose cell is as asked for.
    fn await_end_of(&self, is_meant: impl Fn(u64) -> bool) {
        for cell in &self.taking {
            let value = cell.load(SeqCst);
            while value != 0 && is_meant(value) && cell.load(SeqCst) == value {
                std::thread::yield_now();
            }
        }
    }
}

/// Takes an empty cell for a cluster; `None` if there is none.
fn take_cell(cells: &[AtomicU64], cluster: ClusterNumber) -> Option<usize> {
    cells.iter().position(|cell| {
        cell.load(Relaxed) == 0 && cell.compare_exchange(0, cluster.0 + 1, SeqCst, SeqCst).is_ok()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_take_out_sees_what_is_protected_and_is_waited_for() {
        let protection = Protection::default();
        let (taking, protected) = protection.begin_taking(ClusterNumber(0));
        assert!(!protected);
        protection.end_taking(taking);
        let tokens: Vec<_> = (0..PROTECTED_MAX as u64).map(|n| protection.begin(ClusterNumber(n))).collect();
        assert!(tokens.iter().all(Option::is_some));
        assert_eq!(protection.begin(ClusterNumber(1000)), None);
        let (taking, protected) = protection.begin_taking(ClusterNumber(7));
        assert!(protected);
        protection.end_taking(taking);
        protection.end(tokens[7].unwrap());
        // One that waits for two take-outs goes on when both have ended; one that waits for one, when that has.
        let [first, second] = [7, 2000].map(|number| protection.begin_taking(ClusterNumber(number)));
        assert_eq!((first, second), ((0, false), (1, false)));
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| protection.await_taken());
            let wants = scope.spawn(|| protection.begin(ClusterNumber(2000)));
            protection.end_taking(second.0);
            assert!(wants.join().unwrap().is_some() && !waits.is_finished());
            protection.end_taking(first.0);
            waits.join().unwrap();
        });
    }
}
