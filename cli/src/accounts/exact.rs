//! Exact counts of a run's memory, each page once.
//!
//! The sampler's sum is an upper bound: it has pages that a fork left shared once for each process. The kernel can
//! tell each process's share of its pages, but walks page tables for that. So it is asked only while the upper bound
//! is above the cap, and within a budget of processor time.

use crate::cpu_budget::CpuBudget;
use crate::processes::vfork::Forked;
use crate::units::PAGE;
use pagetide::group::Group;
use pagetide_sys::mapped_files;
use pagetide_sys::procfs::{self, Stat, field};
use std::time::Instant;

/// Exact looks take at most one part in this many of a processor.
const SHARE: u32 = 50;

/// Returns the bytes of each process that still exists: its share of anonymous and shared pages, and its page
/// tables. The group page is a part of the shares of the processes that map it. Shared memory that a keeper serves is
/// the keeper's, which says itself in `group` what it holds: pages of it may be in no page table. A child of `vfork`
/// that has not called `exec` has its parent's page tables, and counts with it.
pub(crate) fn shares(processes: Vec<u32>, group: Option<&Group>) -> Vec<(u32, u64)> {
    let keepers = group.into_iter().flat_map(Group::keepers);
    let keepers: Vec<_> = keepers.map(|slot| (slot.known_as() as u32, slot.kept_pages() * PAGE)).collect();
    let share = |pid| match keepers.iter().find(|(keeper, _)| *keeper == pid) {
        Some(&keeper) => Some(keeper),
        None => {
            // In this order: of a process that ends meanwhile nothing is counted.
            let served = group.filter(|_| !keepers.is_empty()).map_or(0, |group| served_share(pid, group));
            Some((pid, share(pid)?.saturating_sub(served)))
        }
    };
    let forked = group.map(Forked::of).unwrap_or_default();
    let borrows = |pid| {
        let stat = Stat::of(pid).filter(|stat| !forked.have(pid) && !stat.has_execed);
        stat.is_some_and(|stat| forked.borrows(pid, stat) == Some(true))
    };
    processes.into_iter().filter(|&pid| !borrows(pid)).filter_map(share).collect()
}

/// Returns the sum of shares, plus the pages of the launcher.
pub(crate) fn total(shares: &[(u32, u64)], launcher_pages: u64) -> u64 {
    shares.iter().map(|(_, bytes)| bytes).sum::<u64>() + launcher_pages * PAGE
}

/// A process's share of shared memory that a keeper serves, in bytes.
fn served_share(pid: u32, group: &Group) -> u64 {
    let Some(text) = procfs::of_memory(pid, "smaps") else { return 0 };
    let mut is_served = false;
    let mut kib = 0;
    for line in text.lines() {
        match line.split_once(':') {
            // `Pss:   12 kB`; a mapping begins with its addresses, which have no colon before the device.
            Some(("Pss", rest)) if is_served => {
                kib += rest.trim().trim_end_matches(" kB").parse().unwrap_or(0);
            }
            Some((name, _)) if name.contains('-') => {
                is_served =
                    mapped_files::mapping(line.as_bytes()).is_some_and(|mapping| group.keeps(&mapping));
            }
            _ => {}
        }
    }
    kib << 10
}

fn share(pid: u32) -> Option<u64> {
    let rollup = procfs::of_memory(pid, "smaps_rollup")?;
    let kib = field(&rollup, "Pss_Anon:")? + field(&rollup, "Pss_Shmem:")?;
    let tables = procfs::memory(&pid.to_string()).map_or(0, |memory| memory.tables);
    Some((kib << 10) + tables * PAGE)
}

/// The result of exact looks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Counted {
    /// The most bytes found at a look.
    pub(crate) bytes: u64,
    /// The number of looks.
    pub(crate) looks: u64,
}

/// Exact looks at a run.
#[derive(Debug)]
pub(crate) struct Exact {
    cpu_budget: CpuBudget,
    counted: Option<Counted>,
}

impl Exact {
    /// Starts without a look.
    pub(crate) fn new(now: Instant) -> Self {
        Self { cpu_budget: CpuBudget::new(SHARE, now), counted: None }
    }

    /// Forgets what was found.
    pub(crate) fn forget(&mut self) {
        self.counted = None;
    }

    /// Looks at a run, unless the budget is spent: `look` returns the shares of its processes. Returns the bytes that it
    /// found.
    pub(crate) fn look(
        &mut self,
        now: Instant,
        launcher_pages: u64,
        look: impl FnOnce() -> Vec<(u32, u64)>,
    ) -> Option<u64> {
        if !self.cpu_budget.lasts(now) {
            return None;
        }
        let bytes = self.cpu_budget.spend(|| total(&look(), launcher_pages));
        let Counted { bytes: most, looks } = self.counted.unwrap_or(Counted { bytes: 0, looks: 0 });
        self.counted = Some(Counted { bytes: most.max(bytes), looks: looks + 1 });
        Some(bytes)
    }

    /// Returns the result, if there was a look.
    pub(crate) fn counted(&self) -> Option<Counted> {
        self.counted
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::processes::tree;
    use pagetide::group::Field;
    use std::process::{Child, Command, Stdio};
    use std::time::Duration;

    /// A process and its child, whose pid it prints.
    fn family(script: &str) -> (Child, Vec<u32>) {
        let mut parent = Command::new("python3").args(["-c", script]).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        std::io::BufRead::read_line(&mut std::io::BufReader::new(parent.stdout.take().unwrap()), &mut line)
            .unwrap();
        let pids = vec![parent.id(), line.trim().parse().unwrap()];
        (parent, pids)
    }

    fn end(parent: &mut Child, pids: Vec<u32>) {
        for pid in pids {
            let pid = rustix::process::Pid::from_raw(pid as i32).unwrap();
            rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
        }
        parent.wait().unwrap();
    }

    #[test]
    fn what_a_fork_left_shared_counts_once() {
        const SCRIPT: &str = "import os, time\nkept = bytearray(b'x') * (64 << 20)\nchild = os.fork()\nif child == 0: time.sleep(1000)\n\
                              print(child, flush=True)\ntime.sleep(1000)";
        let (mut parent, pids) = family(SCRIPT);
        let start = Instant::now();
        let mut exact = Exact::new(start);
        assert_eq!(exact.counted(), None);
        exact.look(start, 256, || shares(pids.clone(), None));
        let counted = exact.counted().unwrap();
        // Its cpu_budget is spent sooner or later, and earned again.
        (0..1000).for_each(|_| _ = exact.look(start, 0, || shares(pids.clone(), None)));
        let spent = exact.counted().unwrap().looks;
        exact.look(start + Duration::from_secs(100), 0, || shares(pids.clone(), None));
        end(&mut parent, pids);
        let mib = counted.bytes >> 20;
        assert!((65..90).contains(&mib), "{mib} MiB");
        assert!(spent < 1000, "{spent} looks cost nothing");
        assert_eq!(exact.counted().unwrap().looks, spent + 1);
        assert_eq!(total(&shares(vec![0], None), 0), 0);
    }

    #[test]
    fn a_child_in_its_parents_memory_counts_with_it() {
        const SCRIPT: &str = "import ctypes, os, time\nkept = bytearray(b'x') * (64 << 20)\nlibc = ctypes.CDLL(None)\n\
                              CLONE_VM = 0x100\nstack = ctypes.create_string_buffer(1 << 16)\n\
                              top = ctypes.c_void_p(ctypes.addressof(stack) + (1 << 16) - 64)\n\
                              print(libc.clone(libc.sleep, top, CLONE_VM | 17, ctypes.c_void_p(1000)), flush=True)\ntime.sleep(1000)";
        let (mut parent, pids) = family(SCRIPT);
        let counted = shares(pids.clone(), None);
        end(&mut parent, pids.clone());
        assert_eq!(counted.iter().map(|&(pid, _)| pid).collect::<Vec<_>>(), pids[..1]);
    }

    #[test]
    fn a_process_whose_first_thread_has_ended_counts() {
        const SCRIPT: &str = "import ctypes, os, threading, time\nkept = bytearray(b'x') * (64 << 20)\n\
                              threading.Thread(target=time.sleep, args=(1000,)).start()\nprint(os.getpid(), flush=True)\n\
                              ctypes.CDLL(None).pthread_exit(None)";
        let (mut process, pids) = family(SCRIPT);
        let pid = pids[0];
        while Stat::of(pid).unwrap().state != b'Z' {
            std::thread::yield_now();
        }
        let counted = total(&shares(tree::descendants(std::process::id()), None), 0);
        let own = shares(vec![pid], None);
        end(&mut process, vec![pid]);
        assert!(own.len() == 1 && own[0].1 > 64 << 20 && counted >= own[0].1, "{own:?} of {counted}");
    }

    #[test]
    fn a_keeper_counts_as_it_says_itself() {
        let own = std::process::id();
        let (_fd, group) = crate::testing::group(1000);
        let slot = group.claim(pagetide_sys::procfs::Identity::own()).unwrap();
        for (field, value) in [(Field::Keeps, 1), (Field::KnownAs, own.into()), (Field::Resident, 77)] {
            slot.set(field, value);
        }
        assert_eq!(shares(vec![own, 0], Some(&group)), [(own, 77 * PAGE)]);
    }
}
