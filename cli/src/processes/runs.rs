//! Active runs of this machine: how one is chosen, and its name.

use crate::failure::Failure;
use crate::processes::tree;
use clap::Parser;
use pagetide::group::{Group, OpenError, ProcessSlot};
use pagetide_cli::options::{Cli, Command};
use pagetide_sys::procfs::{self, Identity};
use rustix::process::geteuid;
use std::collections::HashMap;
use std::ffi::OsString;
use std::fmt::Write as _;
use std::fs;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

/// Exit status: there is no such run, or it is not clear which one is meant.
const WHICH: u8 = 1;
/// The most characters of CMD in a run's name.
const NAME_MAX: usize = 60;

/// An active run.
#[derive(Debug)]
pub(crate) struct Run {
    /// Pid of its launcher.
    pub(crate) pid: u32,
    /// Its group page.
    pub(crate) group: Group,
    born: Option<u64>,
}

/// Purpose for which a run is opened. It decides which run is taken if no pid is given.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Purpose {
    /// To look at it: the run of the same user and session, else the only one of the machine.
    Look,
    /// To change it: only the run of the same user and session.
    Change,
}

impl Run {
    /// Opens the run of the launcher `pid`; without a pid the one that `purpose` says. `usage` is how a pid is named
    /// to the command.
    pub(crate) fn open(pid: Option<u32>, purpose: Purpose, usage: &str) -> Result<Self, Failure> {
        let pid = match pid {
            Some(pid) => pid,
            None => choose(&Launcher::all(), purpose, Launcher::own(), usage)?,
        };
        let born = procfs::start_time(pid);
        let path = group_page(pid).ok_or_else(|| {
            Failure::new(WHICH, format!("process {pid} launched no run, or one of another user"))
        })?;
        match Group::open(&path) {
            Ok(group) => Ok(Self { pid, group, born }),
            Err(OpenError::System(error)) if error.kind() == std::io::ErrorKind::NotFound => {
                Err(Failure::new(WHICH, format!("the run of {pid} has just ended")))
            }
            Err(error) => Err(Failure::new(WHICH, error.to_string())),
        }
    }

    /// Returns the run of the process `pid`, and the number of its slot.
    pub(crate) fn with_process(pid: u32) -> Option<(Self, usize)> {
        let mut found = Self::all().into_iter().filter_map(|run| {
            let pids = Pids::of(&run.group);
            let slot = run.group.live().find(|&slot| pids.here(slot) == Some(pid))?.index();
            Some((run, slot))
        });
        found.next()
    }

    /// Returns the active runs that the caller may look at, by the pids of their launchers.
    pub(crate) fn all() -> Vec<Self> {
        let runs = Launcher::all().into_iter();
        // One that has ended since it was found is none.
        runs.filter_map(|launcher| Self::open(Some(launcher.pid), Purpose::Look, "").ok()).collect()
    }

    /// Returns its name for messages.
    pub(crate) fn name(&self) -> String {
        format!("run {} ({})", self.pid, program(self.pid))
    }

    /// Returns the start time of its launcher, in ticks since boot.
    pub(crate) fn born(&self) -> Option<u64> {
        self.born
    }

    /// Returns whether its launcher still lives.
    pub(crate) fn goes_on(&self) -> bool {
        procfs::start_time(self.pid) == self.born
    }
}

/// The processes of a run as this process sees them.
#[derive(Clone, Debug)]
pub(crate) struct Pids {
    /// By the tenants of the slots, where the launcher is in another pid namespace.
    elsewhere: Option<HashMap<u64, u32>>,
}

impl Pids {
    /// Of the run of `group`.
    pub(crate) fn of(group: &Group) -> Self {
        let (own, launcher) = (Identity::own().namespace, group.setup().launcher.namespace);
        if own == launcher {
            return Self { elsewhere: None };
        }
        let slots: Vec<ProcessSlot> = group.live().collect();
        let identities: Vec<_> = slots.iter().map(ProcessSlot::process).collect();
        let pids = Identity::pids_of_all(&identities).unwrap_or_default();
        let told = slots.iter().zip(pids).filter_map(|(slot, pids)| match pids[..] {
            [pid] => Some((slot.tenant(), pid)),
            _ => None,
        });
        Self { elsewhere: Some(told.collect()) }
    }

    /// Returns the pid of a slot's process here; `None` if it cannot be told.
    pub(crate) fn here(&self, slot: ProcessSlot) -> Option<u32> {
        match &self.elsewhere {
            None => Some(slot.known_as() as u32),
            Some(told) => told.get(&slot.tenant()).copied(),
        }
    }

    /// Returns the pid of a slot's process, and its name: that by which the launcher knows it, and no name, if it cannot be told
    /// who it is here.
    pub(crate) fn named(&self, slot: ProcessSlot) -> (u64, String) {
        match self.here(slot) {
            // A child has its slot before it is there.
            _ if slot.known_as() == 0 => (0, "being forked".to_owned()),
            Some(pid) => (pid.into(), tree::name(pid)),
            None => (slot.known_as(), String::new()),
        }
    }
}

/// A process that launched a run, with its owner.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Launcher {
    pid: u32,
    user: u32,
    /// `None` if the leader of the session is in another pid namespace.
    session: Option<u32>,
}

impl Launcher {
    fn own() -> Self {
        let session = procfs::Stat::of("self").and_then(|stat| stat.session);
        Self { pid: std::process::id(), user: geteuid().as_raw(), session }
    }

    fn all() -> Vec<Self> {
        let mut found: Vec<_> = tree::pids()
            .filter(|&pid| group_page(pid).is_some())
            .filter_map(|pid| {
                // A child of a launcher has its descriptors until it calls exec.
                let stat = procfs::Stat::of(pid).filter(|stat| stat.has_execed)?;
                let user = fs::metadata(format!("/proc/{pid}")).ok()?.uid();
                Some(Self { pid, user, session: stat.session })
            })
            .collect();
        found.sort_unstable_by_key(|launcher| launcher.pid);
        found
    }
}

/// Returns the launcher that is meant by a caller who names none.
fn choose(launchers: &[Launcher], purpose: Purpose, caller: Launcher, usage: &str) -> Result<u32, Failure> {
    let is_own = |launcher: &&Launcher| {
        launcher.user == caller.user && launcher.session.is_some() && launcher.session == caller.session
    };
    let own: Vec<&Launcher> = launchers.iter().filter(is_own).collect();
    // A look falls back to the runs of others if there is not exactly one of the caller.
    let meant = match purpose {
        Purpose::Look if own.len() != 1 => launchers.iter().collect(),
        _ => own,
    };
    let mut message = match (&meant[..], launchers) {
        ([launcher], _) => return Ok(launcher.pid),
        (_, []) => return Err(Failure::new(WHICH, "no run is active")),
        ([], _) => {
            format!("no run was started from here (by this user, in this session); name one: `{usage}`")
        }
        _ => format!("several runs are active; name one: `{usage}`"),
    };
    for launcher in if meant.is_empty() { launchers.iter().collect() } else { meant } {
        let _ = write!(message, "\n  {}    {}", launcher.pid, program(launcher.pid));
    }
    Err(Failure::new(WHICH, message))
}

/// Returns the command line of a run for messages: cut, and without control characters.
pub(crate) fn program(launcher: u32) -> String {
    let line = command(launcher).join(" ");
    let shown: String = line.chars().map(|char| if char.is_control() { '?' } else { char }).collect();
    match shown.char_indices().nth(NAME_MAX) {
        Some((end, _)) => format!("{}…", &shown[..end]),
        None => shown,
    }
}

/// Returns the path of the group page of which a process has a descriptor.
fn group_page(pid: u32) -> Option<PathBuf> {
    fs::read_dir(format!("/proc/{pid}/fd")).ok()?.flatten().map(|entry| entry.path()).find(|path| {
        fs::read_link(path)
            .is_ok_and(|target| target.as_os_str().as_encoded_bytes().starts_with(b"/memfd:pagetide-group"))
    })
}

/// Returns CMD and its arguments, from the launcher's command line.
pub(crate) fn command(launcher: u32) -> Vec<String> {
    let line = fs::read(format!("/proc/{launcher}/cmdline")).unwrap_or_default();
    let line = line.strip_suffix(b"\0").unwrap_or(&line);
    let words: Vec<_> = line.split(|&byte| byte == 0).map(|word| OsString::from_vec(word.to_vec())).collect();
    match Cli::try_parse_from(&words) {
        Ok(Cli { command: Command::Run(args) }) => args.command(),
        _ => words.iter().map(|word| word.to_string_lossy().into_owned()).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_pid_only_a_run_of_the_same_user_and_session_is_changed() {
        let launcher =
            |pid, user, session| Launcher { pid, user, session: Some(session).filter(|&leader| leader != 0) };
        let me = launcher(1, 1000, 40);
        let chosen = |purpose, launchers: &[Launcher]| {
            choose(launchers, purpose, me, "pagetide stat PID")
                .map_err(|failure| failure.message.lines().next().unwrap().to_owned())
        };
        let (own, other_user, other_session) =
            (launcher(7, 1000, 40), launcher(8, 0, 40), launcher(9, 1000, 41));
        let unknown = launcher(10, 1000, 0);
        assert_eq!(chosen(Purpose::Change, &[own, other_user, other_session, unknown]), Ok(7));
        for other in [other_user, other_session, unknown] {
            assert_eq!(chosen(Purpose::Look, &[other]), Ok(other.pid));
            assert!(chosen(Purpose::Change, &[other]).unwrap_err().contains("started from here"));
        }
        assert!(chosen(Purpose::Change, &[own, launcher(11, 1000, 40)]).unwrap_err().contains("several"));
        assert_eq!(chosen(Purpose::Look, &[own, other_user]), Ok(7));
        assert!(chosen(Purpose::Look, &[other_session, other_user]).unwrap_err().contains("several"));
        assert_eq!(chosen(Purpose::Look, &[]), Err("no run is active".to_owned()));
        // Whose session is not known is no one's.
        let failure = choose(&[unknown], Purpose::Change, unknown, "pagetide swapoff PID").unwrap_err();
        assert!(failure.message.contains("`pagetide swapoff PID`\n  10    "), "{failure}");
    }

    #[test]
    fn what_a_launcher_has_forked_is_no_launcher_before_its_exec() {
        use std::io::{BufRead, BufReader};
        use std::os::fd::AsRawFd;
        use std::process::{Command, Stdio};
        let (page, _) = crate::testing::group(1000);
        let (own, page) = (std::process::id(), page.as_raw_fd());
        let script = format!("exec 9<>/proc/{own}/fd/{page}; (while :; do sleep 1; done) & echo $!; wait");
        let mut shell = Command::new("sh").args(["-c", &script]).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(shell.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let forked: u32 = line.trim().parse().unwrap();
        let pids: Vec<_> = Launcher::all().iter().map(|launcher| launcher.pid).collect();
        assert!(group_page(forked).is_some());
        let pid = rustix::process::Pid::from_raw(forked as i32).unwrap();
        rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
        shell.wait().unwrap();
        assert!(pids.contains(&own) && pids.contains(&shell.id()) && !pids.contains(&forked), "{pids:?}");
    }
}
