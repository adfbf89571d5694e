//! A run for tests.

use pagetide::group::{Group, Knobs, Setup};
use pagetide_sys::procfs::Identity;
use std::os::fd::OwnedFd;

/// Returns the group page of a run.
pub(crate) fn group(cap_pages: u64) -> (OwnedFd, Group) {
    let setup = Setup {
        cap_pages,
        knobs: Knobs { switches: pagetide_swap::Switches::default(), max_pool_percent: 50 },
        zpool: 0,
        reclaim: 0,
        readahead: 0,
        page_cluster: 9,
        blocks: 0,
        launcher: Identity::own(),
        swap_fd: 0,
        swap_identity: (0, 0),
        trace_fd: None,
        mask: 0,
        encrypt: 1,
        injection: 0,
    };
    Group::create(setup).unwrap()
}
