//! Responsiveness of processes: whether one can answer a request, by the state of its engine's threads, never by
//! time.

use pagetide::group::Responsiveness;
use pagetide_sys::procfs;
use std::fs;

/// Names of the threads that answer, cut to 15 bytes by the kernel: the reclaim thread, and the one that starts an
/// engine.
const ANSWERING: [&str; 2] = ["pagetide-reclai", "pagetide-sentry"];
/// Name of the group page in `/proc/PID/maps`.
const GROUP: &str = "memfd:pagetide-group";

/// Returns whether process `pid` can answer, and if not, why.
pub(crate) fn look(pid: u32) -> Responsiveness {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let stats = tasks.filter_map(|task| procfs::small(task.path().join("stat").to_str()?));
    let found = stats.filter_map(|stat| answering(&stat)).next();
    match found {
        // `t`: stopped by a debugger.
        Some('T' | 't') => Responsiveness::Stopped,
        Some(_) => Responsiveness::Answers,
        None => match fs::read_to_string(format!("/proc/{pid}/maps")) {
            // An ending process has no mappings any more: its memory is free soon. A starting one maps the page.
            Ok(maps) if maps.is_empty() || maps.contains(GROUP) => stopped(pid),
            Ok(_) => Responsiveness::Gone,
            Err(_) if ends(pid) => Responsiveness::Answers,
            Err(_) => Responsiveness::Gone,
        },
    }
}

/// Returns the state of a thread that answers; `None` for other threads.
fn answering(stat: &str) -> Option<char> {
    let (name, rest) = stat.rsplit_once(") ")?;
    let (_, name) = name.split_once('(')?;
    ANSWERING.contains(&name).then(|| rest.chars().next())?
}

fn stopped(pid: u32) -> Responsiveness {
    if crate::processes::tree::is_stopped(pid) { Responsiveness::Stopped } else { Responsiveness::Answers }
}

/// Returns whether a process has begun to exit, or has ended.
fn ends(pid: u32) -> bool {
    const PF_EXITING: u64 = 4;
    let Some(stat) = procfs::small(&format!("/proc/{pid}/stat")) else { return true };
    let Some((_, rest)) = stat.rsplit_once(") ") else { return true };
    let mut fields = rest.split(' ');
    let state = fields.next().unwrap_or("X");
    // STATE PPID PGRP SESSION TTY TPGID FLAGS
    let flags = fields.nth(5).and_then(|flags| flags.parse::<u64>().ok()).unwrap_or(PF_EXITING);
    matches!(state, "Z" | "X") || flags & PF_EXITING != 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn a_program_without_an_engine_is_gone_and_one_that_ends_is_not() {
        let mut child = Command::new("sleep").arg("100").spawn().unwrap();
        let pid = child.id();
        // Until the exec it is this program, which has no group page either.
        assert_eq!(look(pid), Responsiveness::Gone);
        child.kill().unwrap();
        while !ends(pid) {
            std::thread::yield_now();
        }
        assert_eq!(look(pid), Responsiveness::Answers, "what it has is free soon");
        child.wait().unwrap();
        assert_eq!(look(pid), Responsiveness::Answers);
    }

    #[test]
    fn the_thread_that_answers_is_known_by_its_name() {
        assert_eq!(answering("12 (pagetide-reclai) T 1 2 3"), Some('T'));
        assert_eq!(answering("12 (pagetide-fault) S 1 2 3"), None);
        assert_eq!(answering("12 (a) b) (pagetide-sentry) S 1"), None);
    }
}
