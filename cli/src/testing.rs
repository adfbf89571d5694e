//! A run for tests.

use pagetide::group::{Group, Setup};
use pagetide_sys::procfs::Identity;
use std::os::fd::OwnedFd;

/// Returns the group page of a run.
pub(crate) fn group(cap_pages: u64) -> (OwnedFd, Group) {
    Group::create(Setup::new(cap_pages, Identity::own())).unwrap()
}
