//! The files of programs that the keeper serves as shared memory: memfds and files of tmpfs.
//!
//! The keeper alone changes the list. Processes look whether a file that they are about to open is on it, and the launcher
//! leaves the mappings of such files to the keeper's account.

use super::Group;
use super::layout::{SERVED_FILE_WORDS, SERVED_FILES_MAX, served_files_at};
use pagetide_sys::keeper::SHOWN_AS;
use pagetide_sys::mapped_files::{FileId, FileMapping};
use std::sync::atomic::{AtomicU64, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};

/// Set in the device's word of each file on the list: no device has it.
const LISTED: u64 = 1 << 63;

fn device(file: FileId) -> u64 {
    LISTED | u64::from(file.device.0) << 32 | u64::from(file.device.1)
}

impl Group {
    fn served_words(&self) -> &'static [AtomicU64] {
        self.shared.words(served_files_at(self.setup().blocks()), SERVED_FILES_MAX * SERVED_FILE_WORDS)
    }

    /// Puts a file on the list. False if that is full.
    pub fn list_served(&self, file: FileId) -> bool {
        let mut entries = self.served_words().chunks_exact(SERVED_FILE_WORDS);
        let Some(free) = entries.find(|entry| entry[0].load(Relaxed) == 0) else { return false };
        free[1].store(file.inode, Relaxed);
        free[0].store(device(file), Release);
        self.header[super::Header::ServedFiles as usize].store(1, Release);
        true
    }

    /// Takes a file off the list.
    pub fn unlist_served(&self, file: FileId) {
        let listed = |entry: &&[AtomicU64]| is_entry_of(entry, file);
        if let Some(entry) = self.served_words().chunks_exact(SERVED_FILE_WORDS).find(listed) {
            entry[0].store(0, Release);
        }
    }

    /// Returns whether any file is, or was, on the list: a look at one word.
    pub fn serves_files(&self) -> bool {
        self.header[super::Header::ServedFiles as usize].load(Acquire) != 0
    }

    /// Returns whether a mapping is of an object that the keeper serves, and counts.
    pub fn keeps(&self, mapping: &FileMapping) -> bool {
        mapping.name.as_os_str().as_encoded_bytes().starts_with(SHOWN_AS.as_bytes())
            || self.is_served(mapping.file)
    }

    /// Returns whether a file is on the list.
    pub fn is_served(&self, file: FileId) -> bool {
        self.serves_files()
            && self.served_words().chunks_exact(SERVED_FILE_WORDS).any(|entry| is_entry_of(entry, file))
    }
}

fn is_entry_of(entry: &[AtomicU64], file: FileId) -> bool {
    entry[0].load(Acquire) == device(file) && entry[1].load(Relaxed) == file.inode
}

#[cfg(test)]
mod tests {
    use super::super::tests::setup;
    use super::*;

    #[test]
    fn a_file_is_served_from_listing_to_unlisting() {
        let (_fd, group) = Group::create(setup(1000)).unwrap();
        let file = |inode| FileId { device: (0, 27), inode };
        assert!(!group.serves_files());
        for inode in 0..SERVED_FILES_MAX as u64 {
            assert!(group.list_served(file(inode)));
        }
        assert!(!group.list_served(file(1 << 40)), "the list is full");
        assert!(group.is_served(file(0)) && group.is_served(file(1023)));
        assert!(!group.is_served(FileId { device: (1, 27), inode: 0 }));
        group.unlist_served(file(7));
        assert!(!group.is_served(file(7)) && group.is_served(file(8)));
        assert!(group.list_served(file(1 << 40)));
        assert!(group.is_served(file(1 << 40)));
    }
}
