//! Detection of containers. Ephemeral storage may have a limit there that no call tells, and a pod that passes it is
//! evicted.

use std::fs;
use std::path::Path;

/// Name of the initial pid namespace.
const FIRST_PID_NAMESPACE: &str = "pid:[4026531836]";
/// Files that container engines leave in a container's root.
const MARKS: [&str; 2] = ["/.dockerenv", "/run/.containerenv"];
/// File systems of which container engines make roots. A machine made from an image has such a file too, but its
/// root is on a disk.
const ROOTS: [&str; 5] = ["overlay", "fuse-overlayfs", "aufs", "btrfs", "zfs"];
/// Environment variables set by Podman, LXC and systemd-nspawn, and by Kubernetes in every pod that does not opt
/// out.
const VARIABLES: [&str; 2] = ["container", "KUBERNETES_SERVICE_HOST"];

/// Returns whether this process runs in a container, as far as can be told.
pub(crate) fn is_here() -> bool {
    let namespace = fs::read_link("/proc/self/ns/pid").ok();
    let namespace = namespace.as_ref().and_then(|name| name.to_str());
    let told = VARIABLES.iter().any(|name| std::env::var_os(name).is_some_and(|value| !value.is_empty()));
    let marked = MARKS.iter().any(|mark| Path::new(mark).exists());
    let mounts = if marked { fs::read_to_string("/proc/self/mountinfo").ok() } else { None };
    told || is_one(namespace, marked, &mounts.unwrap_or_default())
}

fn is_one(pid_namespace: Option<&str>, marked: bool, mountinfo: &str) -> bool {
    pid_namespace.is_some_and(|name| name != FIRST_PID_NAMESPACE)
        || marked && root_type(mountinfo).is_some_and(|kind| ROOTS.contains(&kind))
}

/// Returns the type of the file system at `/`: the last one mounted there.
fn root_type(mountinfo: &str) -> Option<&str> {
    // ID PARENT MAJOR:MINOR ROOT POINT OPTIONS ... - TYPE SOURCE OPTIONS
    let root = |line: &&str| line.split(' ').nth(4) == Some("/");
    mountinfo.lines().rfind(root)?.split_once(" - ")?.1.split(' ').next()
}

#[cfg(test)]
mod tests {
    use super::*;

    const OVERLAY: &str =
        "21 1 0:2 / / rw - overlay overlay rw,lowerdir=/l\n22 21 0:5 / /proc rw - proc proc rw\n";
    const DISK: &str = "27 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw\n";

    #[test]
    fn a_container_is_told_by_its_namespace_or_its_root() {
        let first = Some(FIRST_PID_NAMESPACE);
        assert!(is_one(Some("pid:[4026532201]"), false, DISK));
        assert!(is_one(first, true, OVERLAY), "docker run --pid=host");
        assert!(!is_one(first, true, DISK), "a machine made from an image");
        assert!(!is_one(first, false, OVERLAY), "a machine started from a medium that cannot be written");
        assert!(!is_one(None, true, ""));
        assert_eq!(root_type(&format!("{DISK}{OVERLAY}")), Some("overlay"));
    }
}
