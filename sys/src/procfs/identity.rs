//! Names of processes, across pid namespaces.

use super::file::{directory, field, of_process, parsed, read, small, tasks};
use super::stat::{Stat, life, stat_fields};
use rustix::io::Errno;
use std::fs;

/// The name of a process, for others that see another `/proc`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Identity {
    /// The pid, as its own `/proc` has it.
    pub pid: u32,
    /// The time at which it started, as its own `/proc` has it; 0 if that cannot be read.
    pub start_time: u64,
    /// Its pid namespace; 0 if that cannot be read.
    pub namespace: u64,
}

impl Identity {
    /// The identity of a process that is not there yet.
    pub const UNKNOWN: Self = Self { pid: 0, start_time: 0, namespace: 0 };

    /// Returns the identity of this process.
    pub fn own() -> Self {
        Self::own_with_stack().0
    }

    /// The same, and the address where the stack of its program begins; 0 if that cannot be read.
    pub fn own_with_stack() -> (Self, u64) {
        let mut text = [0; pagetide_page::PAGE_SIZE];
        // One file says all: each takes a small process as long as five page faults.
        let stat = read(c"/proc/self/stat", &mut text);
        let Some(pid) = stat.split(' ').next().and_then(|pid| pid.parse().ok()).or_else(pid_of_self) else {
            return (Self { pid: std::process::id(), start_time: 0, namespace: 0 }, 0);
        };
        let namespace = namespace("self", "pid").unwrap_or(0);
        let start_time = stat_fields(stat).nth(19).and_then(parsed).unwrap_or(0);
        (Self { pid, start_time, namespace }, Stat::parse(stat).map_or(0, |stat| stat.stack))
    }

    /// The pids that it may mean here. None if the process is dead for sure; several if it is in another pid namespace
    /// and the name fits more than one.
    ///
    /// # Errors
    /// The error of the file that tells and cannot be opened, for want of descriptors or of permission.
    pub fn pids(self) -> Result<Vec<u32>, Errno> {
        if self.fits(self.pid)? {
            return Ok(vec![self.pid]);
        }
        if self.namespace != 0 && self.namespace == namespace("self", "pid")? {
            return Ok(Vec::new());
        }
        let (mut found, unseen) = Self::walk(&[self])?;
        unseen.map_or_else(|| Ok(found.pop().unwrap_or_default()), Err)
    }

    /// Returns whether the engine of a process goes on only when somebody else does: it has no threads any more, all of them are stopped,
    /// or this process traces one that is stopped. False where that is not to be seen.
    pub fn engine_is_held(self) -> bool {
        let pid = match self.pids().as_deref() {
            Ok([]) => return true,
            Ok([pid]) => *pid,
            _ => return false,
        };
        let (mut all, mut threads) = (true, 0);
        for task in tasks(&format!("/proc/{pid}")) {
            threads += 1;
            let Some(status) = small(&format!("{task}/status")) else { return false };
            let word = |name| {
                status.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default().trim_start()
            };
            if !word("Name:").starts_with("pagetide") {
                continue;
            }
            let tracer = word("TracerPid:");
            let is_traced = word("State:").starts_with('t') && tracer != "0";
            if is_traced && std::fs::exists(format!("/proc/self/task/{tracer}")).is_ok_and(|is_own| is_own) {
                return true;
            }
            all &= word("State:").starts_with('T');
        }
        threads > 0 && all
    }

    /// The pids here that each of these may mean, by one walk through `/proc`, as far as it shows them: what ends meanwhile may
    /// be missing.
    ///
    /// # Errors
    /// The error of opening `/proc`.
    ///
    /// ```
    /// use pagetide_sys::procfs::Identity;
    ///
    /// let own = Identity::own();
    /// assert_eq!(Identity::pids_of_all(&[own, own])?, [[own.pid], [own.pid]]);
    /// # Ok::<(), rustix::io::Errno>(())
    /// ```
    pub fn pids_of_all(all: &[Self]) -> Result<Vec<Vec<u32>>, Errno> {
        let here = |one: &Self| if one.fits(one.pid) == Ok(true) { vec![one.pid] } else { Vec::new() };
        let mut found: Vec<Vec<u32>> = all.iter().map(here).collect();
        let sought: Vec<usize> = (0..all.len()).filter(|&nth| found[nth].is_empty()).collect();
        if !sought.is_empty() {
            let (walked, _) = Self::walk(&sought.iter().map(|&nth| all[nth]).collect::<Vec<_>>())?;
            sought.into_iter().zip(walked).for_each(|(nth, pids)| found[nth] = pids);
        }
        Ok(found)
    }

    /// The pids here by which each of these may know itself in a namespace below, and the error of a process that could not be
    /// seen.
    fn walk(sought: &[Self]) -> Result<(Vec<Vec<u32>>, Option<Errno>), Errno> {
        let mut found = vec![Vec::new(); sought.len()];
        let mut unseen = None;
        for entry in directory("/proc")? {
            let Some(pid) = entry?.file_name().to_str().ok().and_then(|name| name.parse().ok()) else {
                continue;
            };
            let inner = inner_pids(pid).unwrap_or_else(|error| {
                unseen = Some(error);
                Vec::new()
            });
            for (one, found) in sought.iter().zip(&mut found) {
                match inner.contains(&one.pid).then(|| one.fits(pid)) {
                    Some(Ok(true)) => found.push(pid),
                    Some(Err(error)) => unseen = Some(error),
                    _ => {}
                }
            }
        }
        Ok((found, unseen))
    }

    fn fits(self, pid: u32) -> Result<bool, Errno> {
        Ok(match life(pid)? {
            None => false,
            Some(started) if self.start_time == 0 || started == self.start_time => true,
            // Clocks differ between time namespaces.
            Some(_) => match namespace(pid, "time") {
                Err(Errno::NOENT | Errno::SRCH) => false,
                other => other? != namespace("self", "time")?,
            },
        })
    }
}

/// The number of a process's namespace.
fn namespace(pid: impl std::fmt::Display, kind: &str) -> Result<u64, Errno> {
    rustix::fs::stat(format!("/proc/{pid}/ns/{kind}")).map(|stat| stat.st_ino)
}

/// Returns the pids of a process in the namespaces below that of `/proc`.
fn inner_pids(pid: u32) -> Result<Vec<u32>, Errno> {
    let status = of_process(pid, "status")?.unwrap_or_default();
    let names = status.lines().find_map(|line| line.strip_prefix("NSpid:")).unwrap_or_default();
    Ok(names.split_ascii_whitespace().skip(1).flat_map(str::parse).collect())
}

fn pid_of_self() -> Option<u32> {
    let mut name = [0; 16];
    let length = rustix::fs::readlinkat_raw(rustix::fs::CWD, c"/proc/self", &mut name[..]).ok()?;
    std::str::from_utf8(&name[..length]).ok()?.parse().ok()
}

/// This thread, as `/proc` has it: `PID/task/TID`.
pub fn own_task() -> Option<String> {
    fs::read_link("/proc/thread-self").ok()?.into_os_string().into_string().ok()
}

/// Returns whether the calling thread is in a sandbox (seccomp), or may be. Allocates nothing.
pub fn is_sandboxed() -> bool {
    let mut text = [0; pagetide_page::PAGE_SIZE];
    field(read(c"/proc/thread-self/status", &mut text), "Seccomp:") != Some(0)
}

/// This process's pid as `/proc` has it, which may be that of another pid namespace. Allocates nothing.
pub fn own_pid() -> u32 {
    pid_of_self().unwrap_or_else(std::process::id)
}
