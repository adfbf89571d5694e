//! The killer of a run, as far as it can be told: Pagetide, the kernel's OOM killer, or somebody else.

use crate::machine::limits::{self, Directory, HardLimit};
use crate::units::show_bytes;
use pagetide_sys::procfs;
use std::fs;
use std::path::{Path, PathBuf};

/// Exit status of a program that SIGKILL has ended.
pub(crate) const BY_SIGKILL: u8 = 128 + 9;
/// Page cache and kernel memory, which a cgroup counts and Pagetide does not: a constant, and a factor.
const BESIDE: u64 = 32 << 20;
const BESIDE_PART: f64 = 1.03;
/// Bytes of the smallest cap.
const LEAST: u64 = 16 << 20;

/// The killer of a run, or of a part of it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Killer {
    /// The launcher, because of `--strict`.
    Strict,
    /// This many processes were ended by their own engines, for want of memory.
    Pagetide(u64),
    /// This many were, for another reason.
    Failure(u64),
    /// The processes themselves, for the keeper of their shared memory had ended.
    Keeper,
    /// The kernel's OOM killer has killed this many processes in the run's cgroup, which came to this limit; without one the
    /// machine had no more memory.
    Kernel(u64, Option<u64>),
    /// Somebody sent SIGKILL; `oom` says whether the OOM killer was at work on this machine meanwhile.
    Other { oom: bool },
}

impl Killer {
    /// Finds the killer of a run that ended with this status.
    pub(crate) fn find(
        strict: bool,
        lost_keeper: bool,
        ended: u64,
        kills: u64,
        oom: &OomWatch,
        status: u8,
    ) -> Option<Self> {
        let (in_cgroup, limit, on_machine) = oom.kills();
        match (strict, ended, in_cgroup) {
            (true, ..) => Some(Self::Strict),
            (_, 1.., _) => Some(Self::Pagetide(ended)),
            (.., 1..) => Some(Self::Kernel(in_cgroup, limit)),
            _ if lost_keeper && status == BY_SIGKILL => Some(Self::Keeper),
            _ if kills > 0 && !lost_keeper => Some(Self::Failure(kills)),
            _ if status == BY_SIGKILL => Some(Self::Other { oom: on_machine > 0 }),
            _ => None,
        }
    }

    /// Returns its name in statistics.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Strict => "strict",
            Self::Pagetide(_) | Self::Failure(_) => "pagetide",
            Self::Keeper => "keeper",
            Self::Kernel(..) => "kernel",
            Self::Other { .. } => "other",
        }
    }

    /// Says who it was, and what to change. `cap` is in bytes.
    pub(crate) fn line(&self, cap: u64) -> String {
        match *self {
            Self::Strict => {
                "killed by --strict, for it passed the cap; without that it would have gone on".to_owned()
            }
            Self::Pagetide(processes) => format!(
                "{} killed by Pagetide, out of memory: see its message above; --memory, --max-pool-percent, \
                 --swap-size or --remote-size allow more",
                were(processes)
            ),
            Self::Failure(processes) => {
                format!("{} killed by Pagetide, not for want of memory: see its message above", were(processes))
            }
            Self::Keeper => "killed by Pagetide, for the keeper of its shared memory had ended: what was out of memory is lost"
                .to_owned(),
            Self::Kernel(processes, limit) => {
                format!("{}; {}", by_kernel(processes, limit), advice(cap, limit))
            }
            Self::Other { oom: true } => {
                "killed by SIGKILL, perhaps by the kernel's OOM killer: that was at work on this \
                                          machine; a smaller --memory may help"
                    .to_owned()
            }
            Self::Other { oom: false } => {
                "killed by SIGKILL: not by Pagetide, and not by the kernel for want of memory".to_owned()
            }
        }
    }
}

fn were(processes: u64) -> String {
    if processes == 1 { "one process was".to_owned() } else { format!("{processes} processes were") }
}

fn by_kernel(processes: u64, limit: Option<u64>) -> String {
    let who = were(processes);
    let why = match limit {
        Some(limit) => format!("its cgroup may have {}", show_bytes(limit)),
        None => "the machine had no more memory".to_owned(),
    };
    format!("{who} killed by the kernel's OOM killer ({why})")
}

fn advice(cap: u64, limit: Option<u64>) -> String {
    let Some(limit) = limit else { return "take a smaller --memory".to_owned() };
    let fits = ((limit as f64 / BESIDE_PART) as u64).saturating_sub(BESIDE) >> 20 << 20;
    let counts = "a cgroup counts page cache and kernel memory too";
    if fits < LEAST {
        format!("allow the cgroup more: {counts}")
    } else if cap > fits {
        format!("take --memory {}M at most: {counts}", fits >> 20)
    } else {
        format!("allow the cgroup more, or take a smaller --memory: {counts}")
    }
}

/// Counts the kills of the kernel's OOM killer in the cgroups of a run.
#[derive(Debug)]
pub(crate) struct OomWatch {
    mounts: String,
    /// The cgroups in which processes of the run were seen.
    counted: Vec<Counted>,
    /// The last text of `/proc/PID/cgroup`.
    cgroup: String,
    on_machine: u64,
}

/// A cgroup of the run.
#[derive(Debug)]
struct Counted {
    /// The file that counts its kills, and their number before the run.
    file: PathBuf,
    before: u64,
    /// The limits on its path.
    limits: Vec<HardLimit>,
}

impl OomWatch {
    /// Starts to count, in the cgroup of this process.
    pub(crate) fn new() -> Self {
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        let on_machine = killed_on_machine();
        let mut this = Self { mounts, counted: Vec::new(), cgroup: String::new(), on_machine };
        this.follow("self");
        this
    }

    /// Counts in the cgroup of `pid` too from now on.
    pub(crate) fn follow(&mut self, pid: &str) {
        let Ok(cgroup) = fs::read_to_string(format!("/proc/{pid}/cgroup")) else { return };
        if cgroup.is_empty() || cgroup == self.cgroup {
            return;
        }
        let directories = limits::directories(&cgroup, &self.mounts);
        for directory in &directories {
            let Some(file) = events(directory).filter(|_| directory.own) else { continue };
            if !self.counted.iter().any(|known| known.file == file)
                && let Some(before) = killed(&file)
            {
                self.counted.push(Counted { file, before, limits: limits::hard(&directories) });
            }
        }
        self.cgroup = cgroup;
    }

    /// Returns the number of processes killed in one of the cgroups, its limit, and the number killed on the
    /// machine.
    fn kills(&self) -> (u64, Option<u64>, u64) {
        let since = |cgroup: &Counted| {
            let killed = killed(&cgroup.file).unwrap_or(cgroup.before).saturating_sub(cgroup.before);
            let hit = cgroup.limits.iter().filter(|limit| limit.was_hit());
            (killed, hit.map(|limit| limit.bytes).min())
        };
        // Both hierarchies may show the same cgroup.
        let (killed, limit) = self.counted.iter().map(since).max().unwrap_or_default();
        (killed, limit, killed_on_machine().saturating_sub(self.on_machine))
    }
}

fn events(directory: &Directory) -> Option<PathBuf> {
    let name = if directory.unified { "memory.events" } else { "memory.oom_control" };
    let file = directory.path.join(name);
    file.exists().then_some(file)
}

fn killed(file: &Path) -> Option<u64> {
    killed_in(&fs::read_to_string(file).ok()?)
}

fn killed_on_machine() -> u64 {
    fs::read_to_string("/proc/vmstat").ok().and_then(|text| killed_in(&text)).unwrap_or(0)
}

fn killed_in(text: &str) -> Option<u64> {
    procfs::field(text, "oom_kill ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kills_are_read_in_both_versions() {
        assert_eq!(killed_in("low 0\noom 3\noom_kill 2\noom_group_kill 0\n"), Some(2));
        assert_eq!(killed_in("oom_kill_disable 0\nunder_oom 0\noom_kill 5\n"), Some(5));
        assert_eq!(killed_in("oom_kill_disable 0\nunder_oom 0\n"), None);
    }

    fn watch(on_machine: u64) -> OomWatch {
        OomWatch {
            mounts: String::new(),
            counted: Vec::new(),
            cgroup: String::new(),
            on_machine: killed_on_machine().saturating_sub(on_machine),
        }
    }

    #[test]
    fn the_killer_is_who_said_so_else_the_kernel_else_somebody() {
        let quiet = watch(0);
        assert_eq!(Killer::find(true, false, 1, 1, &quiet, 137), Some(Killer::Strict));
        assert_eq!(Killer::find(false, false, 2, 3, &quiet, 137), Some(Killer::Pagetide(2)));
        assert_eq!(Killer::find(false, true, 0, 1, &quiet, 137), Some(Killer::Keeper));
        assert_eq!(Killer::find(false, false, 0, 2, &quiet, 137), Some(Killer::Failure(2)));
        assert_eq!(Killer::find(false, true, 0, 1, &quiet, 0), None);
        assert_eq!(Killer::find(false, false, 0, 0, &quiet, 0), None);
        assert_eq!(Killer::find(false, false, 0, 0, &quiet, 143), None);
        let directory = std::env::temp_dir().join(format!("pagetide-cgroup-{}", std::process::id()));
        fs::create_dir_all(&directory).unwrap();
        let events = |text: &str| fs::write(directory.join("memory.events"), text).unwrap();
        fs::write(directory.join("memory.max"), (100 << 20).to_string()).unwrap();
        events("oom 2\noom_kill 3\n");
        let own = Directory { path: directory.clone(), unified: true, own: true };
        let counted =
            vec![Counted { file: directory.join("memory.events"), before: 3, limits: limits::hard(&[own]) }];
        let seen = OomWatch { counted, ..watch(0) };
        // The machine had no more memory, and then the cgroup.
        for (text, limit) in [("oom 2\noom_kill 4\n", None), ("oom 3\noom_kill 4\n", Some(100 << 20))] {
            events(text);
            for status in [0, 1, 137] {
                let found = Killer::find(false, false, 0, 0, &seen, status);
                assert_eq!(found, Some(Killer::Kernel(1, limit)));
            }
        }
        fs::remove_dir_all(directory).unwrap();
    }

    #[test]
    fn the_advice_fits_the_limit() {
        let line =
            |cap: u64, limit: Option<u64>| Killer::Kernel(1, limit.map(|mib| mib << 20)).line(cap << 20);
        assert!(line(100, Some(100)).contains("take --memory 65M at most"), "{}", line(100, Some(100)));
        assert!(line(60, Some(100)).contains("allow the cgroup more, or take a smaller"));
        assert!(line(60, Some(40)).contains("allow the cgroup more:"));
        assert!(line(60, None).contains("the machine had no more memory"));
    }
}
