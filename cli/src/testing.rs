//! Runs and folders for tests.

use pagetide::group::{Group, Setup};
use pagetide_sys::procfs::Identity;
use std::os::fd::OwnedFd;
use std::path::PathBuf;

/// Returns the group page of a run.
pub(crate) fn group(cap_pages: u64) -> (OwnedFd, Group) {
    Group::create(Setup::new(cap_pages, Identity::own())).unwrap()
}

/// A folder of this process, removed on drop.
pub(crate) struct Folder(pub(crate) PathBuf);

impl Folder {
    /// Makes a folder.
    pub(crate) fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("pagetide-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
