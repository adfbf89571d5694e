//! The tree of processes, as `/proc` shows it.

use pagetide_sys::procfs::{self, Stat};
use std::collections::{HashMap, HashSet};
use std::fs;

/// The most generations that are followed upwards.
const DEPTH: usize = 1024;

fn parent(pid: u32) -> Option<u32> {
    Some(Stat::of(pid)?.parent)
}

/// Returns whether a process is stopped.
pub(crate) fn is_stopped(pid: u32) -> bool {
    Stat::of(pid).is_some_and(|stat| stat.state == b'T')
}

/// Returns the name of a process; empty if it has ended.
pub(crate) fn name(pid: u32) -> String {
    procfs::small(&format!("/proc/{pid}/comm")).unwrap_or_default().trim_end().to_owned()
}

/// Returns whether `pid` descends from `ancestor`. Processes may end meanwhile, and their pids be used again.
pub(crate) fn descends(mut pid: u32, ancestor: u32) -> bool {
    let mut above = parent(pid);
    for _ in 0..DEPTH {
        let Some(one) = above.filter(|&one| one != 0) else { return false };
        if one == ancestor {
            return true;
        }
        let next = parent(one);
        match parent(pid) {
            // It was the parent all the while, so `next` is the parent's.
            still if still == above => (pid, above) = (one, next),
            other => above = other,
        }
    }
    false
}

/// Returns every pid that `/proc` shows.
pub(crate) fn pids() -> impl Iterator<Item = u32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// Returns the descendants of `ancestor`, zombies included. It reads the list of children of each of their threads,
/// which takes no time for other processes of the machine; without such lists (`CONFIG_PROC_CHILDREN`) it reads the
/// parents of all processes. A process that gets another parent meanwhile may be missed.
pub(crate) fn family(ancestor: u32) -> Vec<u32> {
    if fs::metadata(format!("/proc/{ancestor}/task/{ancestor}/children")).is_err() {
        return descendants(ancestor);
    }
    let mut found: Vec<u32> = Vec::new();
    let mut known = HashSet::from([ancestor]);
    let mut above = vec![ancestor];
    while let Some(parent) = above.pop() {
        for child in children(parent) {
            // A process that got another parent meanwhile may be seen twice.
            if known.insert(child) {
                found.push(child);
                above.push(child);
            }
        }
    }
    found
}

fn children(pid: u32) -> Vec<u32> {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let lists = threads.filter_map(|thread| fs::read_to_string(thread.path().join("children")).ok());
    lists.flat_map(|list| list.split_ascii_whitespace().flat_map(str::parse).collect::<Vec<u32>>()).collect()
}

/// Returns the descendants of `ancestor` that are not dead.
pub(crate) fn descendants(ancestor: u32) -> Vec<u32> {
    let mut children: HashMap<u32, Vec<(u32, bool)>> = HashMap::new();
    for pid in pids() {
        if let Some(stat) = Stat::of(pid) {
            children.entry(stat.parent).or_default().push((pid, !stat.is_dead()));
        }
    }
    let mut found = Vec::new();
    let mut above = vec![ancestor];
    while let Some(parent) = above.pop() {
        // Removed, so that no process is visited twice if pids are used again during the scan.
        for (pid, alive) in children.remove(&parent).unwrap_or_default() {
            above.push(pid);
            if alive {
                found.push(pid);
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_is_a_descendant() {
        let mut child = std::process::Command::new("sleep").arg("100").spawn().unwrap();
        let me = std::process::id();
        assert!(descends(child.id(), me) && !descends(me, child.id()));
        assert!(descendants(me).contains(&child.id()) && family(me).contains(&child.id()));
        assert!(children(std::process::id()).contains(&child.id()), "of whichever thread it is");
        assert!(!is_stopped(child.id()));
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
