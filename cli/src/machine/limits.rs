//! Memory limits of this process: the smallest on its cgroup path, and the machine's memory.

use pagetide_sys::procfs;
use std::fs;
use std::path::{Path, PathBuf};

/// Bytes above which a limit stands for none.
const UNLIMITED: u64 = 1 << 60;

/// The memory that this process may have.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Limits {
    /// The smallest limit on the cgroup path, if it is below the memory of the machine.
    pub(crate) cgroup: Option<u64>,
    /// The machine's memory.
    pub(crate) machine: u64,
}

impl Limits {
    /// Reads the limits of this process.
    pub(crate) fn read() -> Result<Self, String> {
        let read =
            |path: &str| fs::read_to_string(path).map_err(|error| format!("cannot read {path}: {error}"));
        let meminfo = read("/proc/meminfo")?;
        let machine = total_memory(&meminfo).ok_or("no MemTotal in /proc/meminfo")?;
        let cgroup = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        let cgroup = smallest(&directories(&cgroup, &mounts)).filter(|&limit| limit < machine);
        Ok(Self { cgroup, machine })
    }

    /// Returns the bytes that a percentage refers to.
    pub(crate) fn whole(self) -> u64 {
        self.cgroup.unwrap_or(self.machine)
    }
}

fn total_memory(meminfo: &str) -> Option<u64> {
    Some(procfs::field(meminfo, "MemTotal:")? << 10)
}

/// A cgroup directory on the path of a process.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Directory {
    /// Its path in the mounted hierarchy.
    pub(crate) path: PathBuf,
    /// Whether its hierarchy is of version 2.
    pub(crate) unified: bool,
    /// Whether the process is in this cgroup itself, not in one below.
    pub(crate) own: bool,
}

impl Directory {
    /// Returns the files that may hold a limit.
    fn limit_files(&self) -> impl Iterator<Item = PathBuf> {
        let names: &[&str] =
            if self.unified { &["memory.max", "memory.high"] } else { &["memory.limit_in_bytes"] };
        names.iter().map(|name| self.path.join(name))
    }
}

/// A limit at which the kernel kills, and how often its cgroup has come to it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct HardLimit {
    /// The limit, in bytes.
    pub(crate) bytes: u64,
    file: PathBuf,
    hits: u64,
}

impl HardLimit {
    fn of(directory: &Directory) -> Option<Self> {
        let [limit, hits] = match directory.unified {
            true => ["memory.max", "memory.events"],
            false => ["memory.limit_in_bytes", "memory.failcnt"],
        };
        let limit = fs::read_to_string(directory.path.join(limit)).ok()?;
        let bytes = limit.trim().parse().ok().filter(|&bytes| bytes < UNLIMITED)?;
        let file = directory.path.join(hits);
        let hits = Self::hits(&file)?;
        Some(Self { bytes, file, hits })
    }

    fn hits(file: &Path) -> Option<u64> {
        let text = fs::read_to_string(file).ok()?;
        procfs::field(&text, "oom ").or_else(|| text.trim().parse().ok())
    }

    /// Returns whether its cgroup has come to it since it was read.
    pub(crate) fn was_hit(&self) -> bool {
        Self::hits(&self.file).is_some_and(|hits| hits > self.hits)
    }
}

/// Returns the limits in these cgroups at which the kernel kills.
pub(crate) fn hard(directories: &[Directory]) -> Vec<HardLimit> {
    directories.iter().filter_map(HardLimit::of).collect()
}

/// Returns the cgroups of the process of which these are `/proc/PID/cgroup` and `/proc/self/mountinfo`.
pub(crate) fn directories(cgroup: &str, mountinfo: &str) -> Vec<Directory> {
    let mut found = Vec::new();
    for mount in mountinfo.lines().filter_map(Mount::parse) {
        let Some(path) = cgroup.lines().find_map(|line| mount.path_in(line)) else { continue };
        // In another cgroup namespace the path is not below the root of the mount: only that root is visible.
        let below = Path::new(path).strip_prefix(&mount.root).unwrap_or(Path::new(""));
        found.extend(below.ancestors().map(|directory| Directory {
            path: mount.point.join(directory),
            unified: mount.unified,
            own: directory == below,
        }));
    }
    found
}

/// Returns the smallest limit in these cgroups, if there is one.
pub(crate) fn smallest(directories: &[Directory]) -> Option<u64> {
    let files = directories.iter().flat_map(Directory::limit_files);
    let limits = files.filter_map(|file| fs::read_to_string(file).ok()?.trim().parse().ok());
    // Version 1 says "unlimited" by a very large number.
    limits.min().filter(|&limit| limit < UNLIMITED)
}

/// A mounted cgroup hierarchy that may control memory.
#[derive(Debug)]
struct Mount {
    root: String,
    point: PathBuf,
    unified: bool,
}

impl Mount {
    fn parse(line: &str) -> Option<Self> {
        let (left, right) = line.split_once(" - ")?;
        let mut left = left.split(' ').skip(3);
        let (root, point) = (left.next()?, left.next()?);
        let mut right = right.split(' ');
        let (kind, options) = (right.next()?, right.nth(1)?);
        let unified = kind == "cgroup2";
        let controls = unified || (kind == "cgroup" && options.split(',').any(|option| option == "memory"));
        controls.then(|| Self { root: unescape(root), point: unescape(point).into(), unified })
    }

    /// Returns the path in a line of `/proc/self/cgroup`, if that line is about this hierarchy.
    fn path_in<'a>(&self, line: &'a str) -> Option<&'a str> {
        let mut parts = line.splitn(3, ':');
        let (number, controllers, path) = (parts.next()?, parts.next()?, parts.next()?);
        let ours = if self.unified {
            number == "0" && controllers.is_empty()
        } else {
            controllers.split(',').any(|controller| controller == "memory")
        };
        ours.then_some(path)
    }
}

/// Undoes the octal escapes of mountinfo.
fn unescape(text: &str) -> String {
    let text = text.replace("\\040", " ").replace("\\011", "\t").replace("\\012", "\n");
    text.replace("\\134", "\\")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files(cgroup: &str, mountinfo: &str) -> Vec<String> {
        let files = directories(cgroup, mountinfo)
            .into_iter()
            .flat_map(|found| found.limit_files().collect::<Vec<_>>());
        files.map(|path| path.to_str().unwrap().to_owned()).collect()
    }

    #[test]
    fn version_1_limits_are_looked_up_to_the_mount() {
        let mounts = "31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw,mode=755\n\
                      32 31 0:29 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu\n\
                      35 31 0:32 / /sys/fs/cgroup/memory rw,relatime shared:9 - cgroup cgroup rw,memory\n";
        assert_eq!(
            files("3:cpuset:/\n4:memory:/a/b\n0::/\n", mounts),
            [
                "/sys/fs/cgroup/memory/a/b/memory.limit_in_bytes",
                "/sys/fs/cgroup/memory/a/memory.limit_in_bytes",
                "/sys/fs/cgroup/memory/memory.limit_in_bytes",
            ]
        );
    }

    #[test]
    fn version_2_has_two_limits_a_directory() {
        let mounts = "30 23 0:26 / /sys/fs/my\\040cgroup rw - cgroup2 cgroup2 rw,nsdelegate\n";
        assert_eq!(
            files("0::/a\n", mounts),
            [
                "/sys/fs/my cgroup/a/memory.max",
                "/sys/fs/my cgroup/a/memory.high",
                "/sys/fs/my cgroup/memory.max",
                "/sys/fs/my cgroup/memory.high",
            ]
        );
    }

    #[test]
    fn a_container_sees_its_own_part_of_the_hierarchy() {
        let mounts = "9 1 0:32 /docker/c /cg rw - cgroup cgroup rw,memory\n";
        assert_eq!(
            files("4:memory:/docker/c/x\n", mounts),
            ["/cg/x/memory.limit_in_bytes", "/cg/memory.limit_in_bytes"]
        );
        assert_eq!(files("4:memory:/elsewhere\n", mounts), ["/cg/memory.limit_in_bytes"]);
        assert!(files("", mounts).is_empty());
    }

    #[test]
    fn this_machine_has_memory() {
        let limits = Limits::read().unwrap();
        assert!(limits.machine > 16 << 20 && limits.whole() <= limits.machine);
        assert_eq!(total_memory("MemFree: 1 kB\nMemTotal:       2 kB\n"), Some(2048));
    }
}
