//! Descriptors that are open in processes, and whether the kernel may pin memory through them.

use super::file::{field, open_directory, read, read_at, small, tasks};
use super::identity::own_pid;
use super::mounts::mount_may_pin;
use super::stat::Stat;
use crate::mapped_files::FileId;
use rustix::io::Errno;
use std::ffi::CStr;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;

/// Returns whether a pidfd is that of this process; a negative number stands for the caller (`PIDFD_SELF`, Linux 6.14).
/// Allocates nothing.
pub fn is_own_pidfd(pidfd: i32) -> bool {
    use std::io::Write;
    let (mut path, mut text) = ([0; 64], [0; 512]);
    let _ = write!(&mut path[..], "/proc/thread-self/fdinfo/{pidfd}\0");
    let path = CStr::from_bytes_until_nul(&path).unwrap_or_default();
    pidfd < 0 || field(read(path, &mut text), "Pid:") == Some(own_pid().into())
}

/// Descriptors of anonymous files through which memory is pinned.
const PINNING: [&str; 3] = ["anon_inode:[io_uring]", "anon_inode:kvm", "anon_inode:[vfio-"];
/// Files below `/dev` that copy what they are given, or lie there only: all others are devices that may pin it (RDMA,
/// VFIO, GPUs, cameras, disks that take commands, and drivers that nobody here knows).
const COPYING: [&str; 33] = [
    "null",
    "zero",
    "full",
    "random",
    "urandom",
    "kmsg",
    "console",
    "tty",
    "pts/",
    "ptmx",
    "pty",
    "vcs",
    "shm/",
    "mqueue/",
    "hugepages",
    "fuse",
    "net/tun",
    "userfaultfd",
    "kvm",
    "rtc",
    "hpet",
    "input/",
    "uinput",
    "snd/",
    "bus/usb/",
    "loop-control",
    "mapper/control",
    "ntsync",
    "hidraw",
    "rfkill",
    "cpu_dma_latency",
    "gpiochip",
    "ppp",
];

/// Returns whether a descriptor with this target is that of a device that may pin memory.
fn is_pinning(target: &[u8]) -> bool {
    // Of another root the path is shown so.
    let path = target.strip_prefix(b"(unreachable)").unwrap_or(target);
    let begins = |text: &[u8], with: &[&str]| with.iter().any(|with| text.starts_with(with.as_bytes()));
    begins(path, &PINNING) || path.strip_prefix(b"/dev/").is_some_and(|name| !begins(name, &COPYING))
}

fn has(flags: u32, flag: i32) -> bool {
    flags & flag as u32 != 0
}

/// Returns whether a process has a descriptor of a file, of whatever kind; `None` if that is not to be seen.
pub fn has_open(pid: u32, file: FileId) -> Option<bool> {
    let process = format!("/proc/{pid}");
    match has_open_in(&process, file) {
        // Of a first thread that has ended none are shown.
        Some(None) if Stat::of(pid).is_some_and(|stat| stat.state == b'Z' && !stat.is_dead()) => {
            let seen: Vec<bool> =
                program_tasks(&process).filter_map(|task| has_open_in(&task, file).flatten()).collect();
            (!seen.is_empty()).then(|| seen.contains(&true))
        }
        Some(has) => Some(has.unwrap_or(false)),
        None => (!std::path::Path::new(&process).exists()).then_some(false),
    }
}

/// The same of a thread: nothing within if it shows no descriptor, nothing at all if those are not to be seen.
fn has_open_in(task: &str, file: FileId) -> Option<Option<bool>> {
    let directory = open_directory(&format!("{task}/fd")).ok()?;
    let entries = rustix::fs::Dir::read_from(&directory).ok()?;
    let is_it = |name: &CStr| {
        rustix::fs::statat(&directory, name, rustix::fs::AtFlags::empty())
            .is_ok_and(|stat| FileId::of(&stat) == file)
    };
    let entries = entries.flatten().filter(|entry| !entry.file_name().to_bytes().starts_with(b"."));
    let mut seen = None;
    for entry in entries {
        if is_it(entry.file_name()) {
            return Some(Some(true));
        }
        seen = Some(false);
    }
    Some(seen)
}

/// Returns the threads of a process that have its program's descriptors, as paths below `process`. Those of an engine, and those that
/// work for an io_uring (of the program or of an engine), have others, or may have.
pub(crate) fn program_tasks(process: &str) -> impl Iterator<Item = String> {
    let is_other = |name: String| name.starts_with("pagetide") || name.starts_with("iou-");
    tasks(process).filter(move |task| !small(&format!("{task}/comm")).is_none_or(is_other))
}

/// Returns whether a descriptor is open in this process through which the kernel may pin memory: a file opened
/// with O_DIRECT or on a file system that is not known to copy, an io_uring, a device that is not. `None` if none is to be seen, or this process lacks memory or a
/// descriptor to look: then there may be, and the next look may tell.
pub fn may_pin(pid: u32) -> Option<bool> {
    let process = format!("/proc/{pid}");
    match seen_to_pin(&process) {
        Ok(Some(pins)) => Some(pins),
        Ok(None) => {
            // Of a first thread that has ended none are shown. Other threads may have tables of their own.
            let looks: Vec<_> = program_tasks(&process).map(|task| seen_to_pin(&task)).collect();
            let all = || looks.iter().flatten().flatten();
            match looks.iter().any(Result::is_err) {
                _ if all().any(|&pins| pins) => Some(true),
                true => None,
                false => all().next().copied(),
            }
        }
        Err(_) => None,
    }
}

/// The same of a thread: nothing where no descriptor is to be seen, and the error of a look for which something is lacking.
fn seen_to_pin(task: &str) -> Result<Option<bool>, Errno> {
    // What is opened by a name within a directory costs half as much as by a path, and this is done often.
    let open = |name| open_directory(&format!("{task}/{name}"));
    let is_want = |error| matches!(error, Errno::MFILE | Errno::NFILE | Errno::NOMEM);
    let unseen = |error| if is_want(error) { Err(error) } else { Ok(None) };
    let unseen_any = |error| if is_want(error) { Err(error) } else { Ok(false) };
    let (links, infos) = match (open("fd"), open("fdinfo")) {
        (Ok(links), Ok(infos)) => (links, infos),
        (Err(error), _) | (_, Err(error)) => return unseen(error),
    };
    let entries = match rustix::fs::Dir::read_from(&links) {
        Ok(entries) => entries,
        Err(error) => return unseen(error),
    };
    let (mut target, mut text) = ([MaybeUninit::uninit(); 64], [0; 512]);
    let (mut any, mut unseen_mount) = (false, None);
    for entry in entries {
        let entry = match entry {
            Ok(entry) => entry,
            Err(error) => return unseen(error),
        };
        let name = entry.file_name();
        if name.to_bytes().starts_with(b".") {
            continue;
        }
        any = true;
        // The beginning says enough.
        let target = match rustix::fs::readlinkat_raw(&links, name, &mut target[..]) {
            Ok((target, _)) => target,
            Err(error) if is_want(error) => return Err(error),
            // It is closed by now.
            Err(_) => continue,
        };
        let is = |prefixes: &[&str]| prefixes.iter().any(|prefix| target.starts_with(prefix.as_bytes()));
        if is_pinning(target) {
            return Ok(Some(true));
        }
        if !is(&["/", "(unreachable)"]) || is(&["/dev/null", "/dev/pts/", "/dev/tty", "/memfd:"]) {
            continue;
        }
        let length = match read_at(&infos, name, &mut text) {
            Err(error) if is_want(error) => return Err(error),
            length => length.unwrap_or(0),
        };
        let text = String::from_utf8_lossy(&text[..length]);
        let flags = text.lines().find_map(|line| line.strip_prefix("flags:"));
        let flags = flags.and_then(|flags| u32::from_str_radix(flags.trim(), 8).ok()).unwrap_or(0);
        if has(flags, libc::O_DIRECT) {
            return Ok(Some(true));
        }
        // Nothing is read or written through these.
        if has(flags, libc::O_PATH) || has(flags, libc::O_DIRECTORY) {
            continue;
        }
        // One that is not to be seen is looked for once.
        let Some(mount) = field(&text, "mnt_id:").filter(|&mount| unseen_mount != Some(mount)) else {
            continue;
        };
        match mount_may_pin(task, mount) {
            Ok(Some(false)) => {}
            Ok(None) => unseen_mount = Some(mount),
            Ok(Some(true)) => return Ok(Some(true)),
            Err(error) if is_want(error) => return Err(error),
            // It has ended.
            Err(_) => {}
        }
    }
    // A thread that has ended meanwhile shows no more, and what it showed cannot be looked at.
    let is_there = lists_any(&links).or_else(unseen_any)?;
    Ok((any && is_there).then_some(false))
}

/// Returns whether a directory of descriptors lists any.
fn lists_any(links: &OwnedFd) -> Result<bool, Errno> {
    let mut entries = rustix::fs::Dir::read_from(links)?;
    Ok(entries.any(|entry| entry.is_ok_and(|entry| !entry.file_name().to_bytes().starts_with(b"."))))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn a_process_knows_its_own_pidfd() {
        use rustix::process::{Pid, PidfdFlags, pidfd_open};
        use std::os::fd::AsRawFd;
        let of = |pid: u32| pidfd_open(Pid::from_raw(pid as i32).unwrap(), PidfdFlags::empty()).unwrap();
        assert!(is_own_pidfd(of(std::process::id()).as_raw_fd()));
        assert!(!is_own_pidfd(of(1).as_raw_fd()));
        assert!(!is_own_pidfd(0));
        assert!(!is_own_pidfd(9999));
    }

    #[test]
    fn devices_that_are_not_known_to_copy_may_pin() {
        let pins = |target: &str| is_pinning(target.as_bytes());
        for target in
            ["/dev/infiniband/uverbs0", "/dev/vfio/vfio", "/dev/iommu", "/dev/dri/card0", "/dev/nvidiactl"]
        {
            assert!(pins(target), "{target}");
        }
        for target in
            ["/dev/video0", "/dev/sg0", "/dev/vhost-vdpa-0", "(unreachable)/dev/kfd", "anon_inode:[io_uring]"]
        {
            assert!(pins(target), "{target}");
        }
        for target in [
            "/dev/null",
            "/dev/pts/3",
            "/dev/shm/x",
            "/dev/net/tun",
            "/home/dev/x",
            "socket:[7]",
            "anon_inode:[eventfd]",
        ] {
            assert!(!pins(target), "{target}");
        }
    }

    #[test]
    fn a_file_opened_with_o_direct_is_noticed() {
        use std::os::unix::fs::OpenOptionsExt;
        let pid = std::process::id();
        assert_eq!(may_pin(pid), Some(false));
        let file = fs::OpenOptions::new()
            .read(true)
            .custom_flags(libc::O_DIRECT)
            .open(std::env::current_exe().unwrap())
            .unwrap();
        assert_eq!(may_pin(pid), Some(true));
        drop(file);
        assert_eq!(may_pin(pid), Some(false));
    }
}
