//! The processes of a run, as `/proc` shows them: whose child is whose.

use pagetide_sys::procfs;
use std::collections::HashMap;
use std::fs;

/// Generations that are followed upwards at most.
const DEPTH: usize = 1024;

/// A process's state letter and its parent.
fn state_and_parent(stat: &str) -> Option<(&str, u32)> {
    // The name may hold anything: count from the last parenthesis.
    let mut fields = stat.rsplit_once(") ")?.1.split_ascii_whitespace();
    Some((fields.next()?, fields.next()?.parse().ok()?))
}

fn read(pid: u32) -> Option<String> {
    procfs::small(&format!("/proc/{pid}/stat"))
}

fn parent(pid: u32) -> Option<u32> {
    Some(state_and_parent(&read(pid)?)?.1)
}

/// Whether a process is stopped.
pub fn is_stopped(pid: u32) -> bool {
    read(pid).is_some_and(|stat| state_and_parent(&stat).is_some_and(|(state, _)| state == "T"))
}

/// Whether `pid` descends from `ancestor`.
pub fn descends(mut pid: u32, ancestor: u32) -> bool {
    for _ in 0..DEPTH {
        match parent(pid) {
            Some(above) if above == ancestor => return true,
            Some(0) | None => return false,
            Some(above) => pid = above,
        }
    }
    false
}

/// Every pid that `/proc` shows.
pub fn pids() -> impl Iterator<Item = u32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// The descendants of `ancestor` that are not dead.
pub fn descendants(ancestor: u32) -> Vec<u32> {
    let mut children: HashMap<u32, Vec<(u32, bool)>> = HashMap::new();
    for pid in pids() {
        if let Some(stat) = read(pid)
            && let Some((state, parent)) = state_and_parent(&stat)
        {
            children.entry(parent).or_default().push((pid, !matches!(state, "Z" | "X")));
        }
    }
    let mut found = Vec::new();
    let mut above = vec![ancestor];
    while let Some(parent) = above.pop() {
        // Removed, so that nobody is visited twice should pids be reused during the scan.
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
    fn a_name_with_parentheses_is_no_obstacle() {
        assert_eq!(state_and_parent("7 (a) S 9 (b) R 3 4 5"), Some(("R", 3)));
        assert_eq!(state_and_parent("7 (a)"), None);
    }

    #[test]
    fn a_child_is_a_descendant() {
        let mut child = std::process::Command::new("sleep").arg("100").spawn().unwrap();
        let me = std::process::id();
        assert!(descends(child.id(), me) && !descends(me, child.id()));
        assert!(descendants(me).contains(&child.id()));
        assert!(!is_stopped(child.id()));
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
