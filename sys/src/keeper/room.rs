//! How many objects there may be.

use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};

/// Descriptors that are left for processes that join: each takes two.
const JOIN_DESCRIPTORS: u64 = 512;
/// Objects under 1 MiB leave room for larger ones: a run has 1024 files at most, and each object takes a descriptor.
const SMALL_PAGES: u64 = 256;
const WITH_SMALL_MAX: u64 = 512;

/// Checks that there is room for an object of so many pages, with that descriptor, beside so many others.
pub(super) fn check(descriptor: u64, pages: u64, others: usize) -> Result<(), Errno> {
    let descriptors = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    if has_room(descriptors, descriptor, pages, others as u64) { Ok(()) } else { Err(Errno::MFILE) }
}

fn has_room(descriptors: u64, descriptor: u64, pages: u64, others: u64) -> bool {
    let is_small = pages < SMALL_PAGES;
    descriptor < descriptors - JOIN_DESCRIPTORS.min(descriptors / 2)
        && !(is_small && others >= WITH_SMALL_MAX.min(descriptors / 4))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_objects_leave_half_of_the_room_to_large_ones() {
        assert!(has_room(4096, 600, 256, 1000) && has_room(4096, 600, 255, 511));
        assert!(!has_room(4096, 600, 255, 512), "a small one too many");
        assert!(!has_room(1024, 300, 1, 256) && has_room(1024, 300, 256, 256), "few descriptors");
        assert!(!has_room(1024, 512, 256, 0), "those of processes that join are left");
    }
}
