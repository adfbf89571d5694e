//! Mounts by their numbers, and whether a file system copies what it reads and writes.
//!
//! Most do, by the page cache, unless a file is opened with O_DIRECT. Some go straight to the pages of the program, which they
//! pin: FUSE where its server says so (FOPEN_DIRECT_IO), SMB without a cache.

use rustix::io::Errno;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// File systems that copy, by their names in `mountinfo`. All others may pin: nobody here knows them.
const COPYING: [&str; 67] = [
    "aufs",
    "autofs",
    "bcachefs",
    "binfmt_misc",
    "bpf",
    "btrfs",
    "ceph",
    "cgroup",
    "cgroup2",
    "configfs",
    "cramfs",
    "debugfs",
    "devpts",
    "devtmpfs",
    "ecryptfs",
    "efivarfs",
    "erofs",
    "exfat",
    "ext2",
    "ext3",
    "ext4",
    "f2fs",
    "fuse.fuse-overlayfs",
    "fuse.gvfsd-fuse",
    "fuse.portal",
    "fuse.squashfuse",
    "fusectl",
    "gfs2",
    "hfs",
    "hfsplus",
    "hugetlbfs",
    "iso9660",
    "jffs2",
    "jfs",
    "minix",
    "mqueue",
    "msdos",
    "nfs",
    "nfs4",
    "nfsd",
    "nilfs2",
    "nsfs",
    "ntfs",
    "ntfs3",
    "ocfs2",
    "overlay",
    "proc",
    "pstore",
    "ramfs",
    "reiserfs",
    "resctrl",
    "romfs",
    "rootfs",
    "rpc_pipefs",
    "securityfs",
    "selinuxfs",
    "shiftfs",
    "smackfs",
    "squashfs",
    "sysfs",
    "tmpfs",
    "tracefs",
    "ubifs",
    "udf",
    "vfat",
    "xfs",
    "zfs",
];

/// What was found of mounts, each in the cell of its number: one more than twice the number, plus whether files there may pin; 0 for
/// none. The kernel gives a number again when its mount is gone.
static FOUND: [AtomicU64; 256] = [const { AtomicU64::new(0) }; 256];

fn cell(mount: u64) -> &'static AtomicU64 {
    &FOUND[mount as usize % FOUND.len()]
}

fn word(mount: u64, pins: bool) -> u64 {
    (mount << 1 | u64::from(pins)) + 1
}

/// Returns what was found before of the mount with this number: whether the kernel may pin memory for files there.
pub fn known_mount(mount: u64) -> Option<bool> {
    let found = cell(mount).load(Relaxed);
    [false, true].into_iter().find(|&pins| found == word(mount, pins))
}

/// Looks for that. `None` of a mount that the process does not see: the kernel's own (of memfds, for one), that of its root, or
/// one of another namespace. Those copy, for all that is known.
///
/// # Errors
/// There is no descriptor or memory to look.
pub fn mount_may_pin(process: &str, mount: u64) -> Result<Option<bool>, Errno> {
    if let Some(pins) = known_mount(mount) {
        return Ok(Some(pins));
    }
    let mounts = std::fs::read(format!("{process}/mountinfo"))
        .map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
    // Names may be any bytes.
    let mounts = String::from_utf8_lossy(&mounts);
    let found = mounts.lines().find_map(|line| of_line(line, mount));
    if let Some(pins) = found {
        cell(mount).store(word(mount, pins), Relaxed);
    }
    Ok(found)
}

/// The same of a line of `mountinfo`, if it is that mount's.
fn of_line(line: &str, mount: u64) -> Option<bool> {
    let number: u64 = line.split(' ').next()?.parse().ok()?;
    let system = line.split(" - ").nth(1)?.split(' ').next()?;
    (number == mount).then(|| !COPYING.contains(&system))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_nobody_knows_to_copy_may_pin() {
        let line = |system: &str| {
            format!("42 27 0:39 / /mnt/a\\040b rw,relatime shared:1 - {system} source rw,user_id=0")
        };
        let of = |system: &str| of_line(&line(system), 42);
        assert_eq!(["ext4", "overlay", "fuse.portal", "zfs"].map(of), [Some(false); 4]);
        assert_eq!(["fuse", "fuse.lxcfs", "virtiofs", "9p", "cifs", "unheard-of"].map(of), [Some(true); 6]);
        assert_eq!(of_line(&line("fuse"), 43), None);
        assert_eq!(of_line("42", 42), None);
        assert!(COPYING.is_sorted(), "names in order are found and not repeated");
    }

    #[test]
    fn what_the_kernel_has_mounted_for_itself_does_not_pin() {
        let all = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
        let proc = all.lines().find(|line| line.contains(" - proc ")).unwrap().split(' ').next().unwrap();
        for (mount, pins) in [(proc.parse().unwrap(), Some(false)), (u64::MAX >> 2, None)] {
            // The second time it is known.
            for _ in 0..2 {
                assert_eq!(mount_may_pin("/proc/self", mount), Ok(pins));
            }
        }
        assert!(mount_may_pin("/proc/nobody", 1 << 40).is_err());
    }
}
