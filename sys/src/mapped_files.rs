//! Files that processes have mapped, as `/proc` shows them.

use rustix::fs::{Statx, StatxFlags, StatxTimestamp};
use std::collections::HashMap;
use std::ffi::OsString;
use std::fs;
use std::ops::Range;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

/// A file, for as long as it exists: its device and its number there.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct FileId {
    /// Major and minor number of the device.
    pub device: (u32, u32),
    /// The inode.
    pub inode: u64,
}

impl FileId {
    /// The file that the kernel tells of.
    pub fn of(stat: &rustix::fs::Stat) -> Self {
        let device = (rustix::fs::major(stat.st_dev), rustix::fs::minor(stat.st_dev));
        Self { device, inode: stat.st_ino }
    }
}

/// The time when a file was made, in seconds and nanoseconds, if its file system knows.
pub fn made(stat: &Statx) -> Option<(i64, u32)> {
    let StatxTimestamp { tv_sec, tv_nsec, .. } = stat.stx_btime;
    StatxFlags::from_bits_retain(stat.stx_mask).contains(StatxFlags::BTIME).then_some((tv_sec, tv_nsec))
}

/// A mapping of a file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FileMapping {
    /// Addresses.
    pub addresses: Range<u64>,
    /// Pages of the file.
    pub pages: Range<u64>,
    /// The file.
    pub file: FileId,
    /// Its name, as it was when it was opened. Files without one are called `/dev/zero (deleted)` or the like.
    pub name: PathBuf,
}

/// The mappings of files that a process has.
///
/// # Errors
/// The process is dead, or not to be looked at.
pub fn of_process(pid: u32) -> std::io::Result<Vec<FileMapping>> {
    let first = fs::read(format!("/proc/{pid}/maps"));
    let text = match first {
        Ok(text) if !text.is_empty() => text,
        Err(error) if error.raw_os_error() != Some(libc::ESRCH) => return Err(error),
        // The first thread may have ended before the others: then its mappings are not shown (ESRCH in newer kernels).
        first => {
            let tasks = fs::read_dir(format!("/proc/{pid}/task"))?.flatten();
            let maps = |task: fs::DirEntry| fs::read(task.path().join("maps")).ok();
            match tasks.filter_map(maps).find(|text| !text.is_empty()) {
                Some(text) => text,
                None => first?,
            }
        }
    };
    Ok(text.split(|&byte| byte == b'\n').filter_map(mapping).collect())
}

/// A line of `/proc/PID/maps`, if it is of a file: addresses, access, offset, device, inode, name.
pub fn mapping(line: &[u8]) -> Option<FileMapping> {
    let mut rest = line;
    let mut word = || {
        let start = rest.iter().position(|&byte| byte != b' ')?;
        let end = rest[start..].iter().position(|&byte| byte == b' ').map_or(rest.len(), |at| start + at);
        let (word, after) = (&rest[start..end], &rest[end..]);
        rest = after;
        std::str::from_utf8(word).ok()
    };
    let number = |text| u64::from_str_radix(text, 16).ok();
    let (start, end) = word()?.split_once('-')?;
    let (start, end) = (number(start)?, number(end)?);
    word()?;
    let offset = number(word()?)?;
    let (major, minor) = word()?.split_once(':')?;
    let device = (u32::from_str_radix(major, 16).ok()?, u32::from_str_radix(minor, 16).ok()?);
    let inode: u64 = word()?.parse().ok()?;
    let name = rest.trim_ascii_start().to_vec();
    // System V segments are numbered from 0 on.
    if inode == 0 && !name.starts_with(b"/") {
        return None;
    }
    let page = pagetide_page::PAGE_SIZE as u64;
    Some(FileMapping {
        addresses: start..end,
        pages: offset / page..(offset + (end - start)) / page,
        file: FileId { device, inode },
        name: OsString::from_vec(name).into(),
    })
}

/// The types of the file systems that a process has mounted, by their devices.
pub fn file_systems(pid: u32) -> HashMap<(u32, u32), String> {
    let text = fs::read_to_string(format!("/proc/{pid}/mountinfo")).unwrap_or_default();
    text.lines().filter_map(file_system).collect()
}

/// A line of `/proc/PID/mountinfo`: id, parent, device, root, mount point, options, `-`, type.
fn file_system(line: &str) -> Option<((u32, u32), String)> {
    let (before, after) = line.split_once(" - ")?;
    let (major, minor) = before.split(' ').nth(2)?.split_once(':')?;
    Some(((major.parse().ok()?, minor.parse().ok()?), after.split(' ').next()?.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mapping_is_read_with_its_whole_name() {
        let line = b"7f21d00e3000-7f21d00e5000 rw-s 00001000 00:1f 1028                       /a b (deleted)";
        let found = mapping(line).unwrap();
        assert_eq!((found.addresses, found.pages), (0x7f21_d00e_3000..0x7f21_d00e_5000, 1..3));
        assert_eq!(found.file, FileId { device: (0, 31), inode: 1028 });
        assert_eq!(found.name, PathBuf::from("/a b (deleted)"));
        assert_eq!(mapping(b"55b9264ac000-55b9264cd000 rw-p 00000000 00:00 0     [heap]"), None);
        assert_eq!(mapping(b""), None);
        let segment =
            mapping(b"7f3329800000-7f332c000000 rw-s 00000000 00:01 0            /SYSV00000000 (deleted)");
        assert_eq!(segment.unwrap().file, FileId { device: (0, 1), inode: 0 });
    }

    #[test]
    fn this_program_is_among_its_own_mappings() {
        let own = std::env::current_exe().unwrap();
        let found = of_process(std::process::id()).unwrap();
        assert!(found.iter().any(|mapping| mapping.name == own), "{found:?}");
        assert!(of_process(0).is_err());
    }

    #[test]
    fn file_systems_are_told_by_their_devices() {
        let line = "36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root rw,errors=continue";
        assert_eq!(file_system(line), Some(((98, 0), "ext3".to_owned())));
        assert!(file_systems(std::process::id()).values().any(|kind| kind == "proc"));
    }
}
