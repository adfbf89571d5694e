//! Processes of a run that have no slot: programs that Pagetide's library does not reach. Their memory is charged to
//! the run. A warning names each program once ([`Outside`]), as soon as it holds 1 MiB or has been there for a
//! second; a smaller and shorter one is only charged.
//!
//! The time of a look grows with the processes of the run. The tree of processes is read when any process has
//! started on the machine, or after a quarter of a second; other looks read the memory of known processes without a
//! slot only. All looks together take at most one part in [`SHARE`] of a processor's time. If that makes them late,
//! [`Unmanaged::latest`] says so.
//!
//! **Whose memory is it?**
//! - A process that has called `exec` is charged at once.
//! - A forked process that has not called `exec` may share its memory with its parent (`vfork`), which is charged
//!   for it already: if the kernel says so, or the slots do, it is charged nothing.
//! - Where nobody tells, and while some slot has no process yet, which may be this one, it is charged
//!   for the lesser of what it held at two looks, a quarter of a second apart.

use crate::cpu_budget::CpuBudget;
use crate::processes::runs::Pids;
use crate::processes::tree;
use crate::processes::vfork::Forked;
use crate::sampler::outside::{Outside, Reason};
use crate::units::PAGE;
use pagetide::group::{Group, ProcessSlot};
use pagetide_sys::mapped_files::{self, FileId};
use pagetide_sys::procfs::{self, Memory, Stat, Watched};
use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

/// Looks take at most one part in this many of a processor's time.
const SHARE: u32 = 100;
/// Time between two readings of the tree if no process starts; between two checks for replaced programs; and above
/// which looks count as late.
const INTERVAL: Duration = Duration::from_millis(250);

/// Pages from which on a program is named at once, and looks after which it is named in any case.
const LARGE: u64 = (1 << 20) / PAGE;
const LOOKS: u32 = 50;

/// The processes of a run that have a slot.
#[derive(Debug, Default)]
pub(crate) struct Members {
    /// Their pids.
    pub(crate) pids: HashSet<u32>,
    /// The slots that they have: index and tenant.
    pub(crate) slots: HashSet<(usize, u64)>,
}

impl Members {
    /// Returns whether some taken slot has no known process.
    fn lack_one(&self, group: &Group) -> bool {
        group.live().any(|slot| !self.slots.contains(&(slot.index(), slot.tenant())))
    }
}

/// A process without a slot.
#[derive(Debug)]
struct Process {
    stat: Stat,
    watched: Watched,
    memory: Memory,
    /// Pages that it is charged for.
    charged: u64,
    /// Its pages at an earlier look, and the time of that, if it may share the memory of its parent.
    before: Option<(Instant, u64)>,
    looks: u32,
    /// The number of its program, if that was noted.
    program: Option<usize>,
}

impl Process {
    fn new(stat: Stat) -> Self {
        Self {
            stat,
            watched: Watched::default(),
            memory: Memory::default(),
            charged: 0,
            before: None,
            looks: 0,
            program: None,
        }
    }

    /// Returns whether another program, or another process, has taken its place.
    fn is_replaced_by(&self, now: Stat) -> bool {
        let before = self.stat;
        let exec = before.has_execed != now.has_execed || before.stack != now.stack && now.stack != 0;
        before.start_time != now.start_time || exec
    }

    /// Looks at its memory. `waits` says whether some slot has no process yet.
    fn look(&mut self, pid: u32, now: Instant, waits: bool, forked: &Forked) {
        // A forked process may call exec at any time.
        if !self.stat.has_execed
            && let Some(stat) = Stat::of(pid)
            && self.is_replaced_by(stat)
        {
            *self = Self::new(stat);
        }
        self.looks += 1;
        self.memory = self.watched.look(&pid.to_string()).unwrap_or_default();
        let held = self.memory.charged();
        self.charged = if self.stat.has_execed {
            held
        } else {
            match forked.borrows(pid, self.stat) {
                Some(true) => 0,
                Some(false) if !waits => held,
                _ => self.held_twice(held, now),
            }
        };
    }

    /// Returns the reason why it runs without Pagetide, if that is known and worth a warning.
    fn reason(&self, pid: u32) -> Option<Reason> {
        let for_long = self.looks >= LOOKS;
        let matters = self.stat.has_execed && (self.memory.charged() >= LARGE || for_long);
        // A reason that cannot be told yet is looked for at times only.
        let now = self.looks.is_power_of_two() || self.looks.is_multiple_of(LOOKS);
        if matters && now { Reason::of(pid, for_long) } else { None }
    }

    fn held_twice(&mut self, held: u64, now: Instant) -> u64 {
        match self.before {
            None => {
                self.before = Some((now, held));
                self.charged.min(held)
            }
            Some((then, before)) if now.saturating_duration_since(then) >= INTERVAL => {
                self.before = Some((now, held));
                held.min(before)
            }
            Some(_) => self.charged.min(held),
        }
    }
}

/// The processes of a run that have no slot.
#[derive(Debug)]
pub(crate) struct Unmanaged {
    seen: HashMap<u32, Process>,
    outside: Outside,
    /// Pages charged for all of them.
    charged: u64,
    cpu_budget: CpuBudget,
    /// The last pid of the machine when the tree was read, and the time of that.
    last_pid: Option<u64>,
    walked: Option<Instant>,
    /// Time of the last check for replaced programs.
    compared: Instant,
    looked: Instant,
    latest: Duration,
    /// Whether the next look is taken whatever it costs.
    due: bool,
}

impl Unmanaged {
    /// Returns the state for a new run.
    pub(crate) fn new() -> Self {
        let now = Instant::now();
        Self {
            seen: HashMap::new(),
            outside: Outside::default(),
            charged: 0,
            cpu_budget: CpuBudget::new(SHARE, now),
            last_pid: None,
            walked: None,
            compared: now,
            looked: now,
            latest: Duration::ZERO,
            due: false,
        }
    }

    /// Makes the next look a whole one, whatever it costs: ended processes must not be counted.
    pub(crate) fn look_anew(&mut self) {
        (self.due, self.walked) = (true, None);
    }

    /// Looks, if there is processor time for it, and charges the group for the pages found.
    pub(crate) fn look(&mut self, group: &Group, launcher: u32, members: &Members) {
        let now = Instant::now();
        self.latest = self.latest.max(now.saturating_duration_since(self.looked));
        if std::mem::take(&mut self.due) || self.cpu_budget.lasts(now) {
            self.spend(now, |this| this.look_now(now, group, launcher, members));
            self.looked = now;
        }
    }

    fn spend<T>(&mut self, now: Instant, work: impl FnOnce(&mut Self) -> T) -> T {
        let mut cpu_budget = std::mem::replace(&mut self.cpu_budget, CpuBudget::new(SHARE, now));
        let result = cpu_budget.spend(|| work(self));
        self.cpu_budget = cpu_budget;
        result
    }

    /// Looks at once.
    fn look_now(&mut self, now: Instant, group: &Group, launcher: u32, members: &Members) {
        let last_pid = procfs::last_pid();
        let rests = last_pid.is_some() && last_pid == self.last_pid;
        if !rests || self.walked.is_none_or(|then| now.saturating_duration_since(then) >= INTERVAL) {
            (self.last_pid, self.walked) = (last_pid, Some(now));
            self.walk(launcher, &members.pids);
        }
        self.seen.retain(|pid, _| !members.pids.contains(pid));
        // Asked after the walk: a process that was found and has a slot had it by then.
        let waits = members.lack_one(group);
        // A set of all slots, for those that may be children of `vfork` alone.
        let forked = if self.has_forked() { Forked::of(group) } else { Forked::default() };
        for (&pid, process) in &mut self.seen {
            process.look(pid, now, waits, &forked);
            if process.program.is_none()
                && let Some(reason) = process.reason(pid)
            {
                process.program = Some(self.outside.note(pid, reason));
            }
        }
        self.tell_outside();
        self.charged = self.seen.values().map(|process| process.charged).sum();
        group.charge_unmanaged(self.charged);
    }

    /// Reads the tree of processes, without `members`. A known process stays known until it is dead, whatever its parent is.
    fn walk(&mut self, launcher: u32, members: &HashSet<u32>) {
        let mut old = std::mem::take(&mut self.seen);
        let mut pids: HashSet<u32> = old.keys().copied().collect();
        pids.extend(tree::family(launcher));
        for &pid in pids.difference(members) {
            let Some(stat) = Stat::of(pid).filter(|stat| !stat.is_dead()) else { continue };
            let process = match old.remove(&pid) {
                Some(process) if !process.is_replaced_by(stat) => Process { stat, ..process },
                _ => Process::new(stat),
            };
            self.seen.insert(pid, process);
        }
    }

    /// Returns the slots whose process has become another program, in which our library has not answered: it does
    /// not map the group page, the file `page`.
    pub(crate) fn replaced(
        &mut self,
        slots: impl Iterator<Item = (ProcessSlot, u32)>,
        page: FileId,
    ) -> Vec<ProcessSlot> {
        let now = Instant::now();
        if now.saturating_duration_since(self.compared) < INTERVAL || !self.cpu_budget.lasts(now) {
            return Vec::new();
        }
        self.compared = now;
        let found: Vec<ProcessSlot> = self.spend(now, |_| {
            slots.filter(|&(slot, pid)| is_replaced(slot, pid, page)).map(|(slot, _)| slot).collect()
        });
        if !found.is_empty() {
            // They have no slot from now on.
            self.walked = None;
        }
        found
    }

    /// Tells of each program what its processes are charged for. What such a process has forked runs the same one.
    fn tell_outside(&mut self) {
        let known = self.seen.iter().filter_map(|(&pid, process)| Some((pid, process.program?)));
        let known: HashMap<u32, usize> = known.collect();
        let is_fork = |process: &&mut Process| process.program.is_none() && !process.stat.has_execed;
        for process in self.seen.values_mut().filter(is_fork) {
            process.program = known.get(&process.stat.parent).copied();
        }
        let charges = self.seen.values().filter_map(|process| Some((process.program?, process.charged)));
        self.outside.charge(charges);
    }

    /// Returns the programs in them.
    pub(crate) fn outside(&mut self) -> &mut Outside {
        &mut self.outside
    }

    /// Returns each process without a slot, with its pages of shared memory.
    pub(crate) fn shared(&self) -> impl Iterator<Item = (u32, u64)> + '_ {
        self.seen.iter().map(|(&pid, process)| (pid, process.memory.shared))
    }

    /// Returns each process without a slot, with the pages that it is charged for.
    pub(crate) fn charges(&self) -> impl Iterator<Item = (u32, u64)> + '_ {
        self.seen.iter().map(|(&pid, process)| (pid, process.charged))
    }

    /// Returns whether a pid was one of them at the last look.
    pub(crate) fn knows(&self, pid: u32) -> bool {
        self.seen.contains_key(&pid)
    }

    /// Returns whether one of them was forked, and has not called `exec`.
    pub(crate) fn has_forked(&self) -> bool {
        self.seen.values().any(|process| !process.stat.has_execed)
    }

    /// Returns the longest time between two looks, if it was longer than [`INTERVAL`].
    pub(crate) fn latest(&self) -> Option<Duration> {
        (self.latest > INTERVAL).then_some(self.latest)
    }

    /// Does not count the time since the last look: the launcher was stopped.
    pub(crate) fn forgive(&mut self) {
        self.looked = Instant::now();
    }
}

/// Returns the programs that run without Pagetide now, as a single look shows them.
pub(crate) fn survey(group: &Group, launcher: u32) -> Outside {
    let mut unmanaged = Unmanaged::new();
    unmanaged.walk(launcher, &HashSet::new());
    // Slots are read after the tree: a process that joins meanwhile is not taken for one without.
    let known = Pids::of(group);
    let pids: HashSet<u32> = group.live().filter_map(|slot| known.here(slot)).collect();
    let Unmanaged { seen, outside, .. } = &mut unmanaged;
    seen.retain(|pid, _| !pids.contains(pid));
    let forked = Forked::of(group);
    for (&pid, process) in seen {
        process.look(pid, Instant::now(), false, &forked);
        // As if it had been looked at all the while.
        process.looks =
            if procfs::age(process.stat.start_time) > Some(Duration::from_secs(1)) { LOOKS } else { 1 };
        process.program = process.reason(pid).map(|reason| outside.note(pid, reason));
    }
    unmanaged.tell_outside();
    unmanaged.outside
}

/// Returns whether the process of a slot runs another program than the one that took it, as far as can be seen.
fn is_replaced(slot: ProcessSlot, pid: u32, page: FileId) -> bool {
    let began = slot.stack();
    let other = |stat: Stat| stat.stack != 0 && stat.stack != began;
    // A process can also say itself that its stack begins elsewhere (PR_SET_MM).
    let maps_page = || {
        let files = mapped_files::of_process(pid);
        files.map_or(true, |files| files.iter().any(|mapping| mapping.file == page))
    };
    began != 0 && Stat::of(pid).is_some_and(other) && !maps_page()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Child, Command};

    fn without_slot(script: &str) -> (Child, u32) {
        // A shell between: the test's own children are others', too.
        let parent = Command::new("sh").args(["-c", script]).spawn().unwrap();
        let child = loop {
            if let [child] = tree::family(parent.id())[..]
                && procfs::small(&format!("/proc/{child}/comm")).is_some_and(|name| name == "sleep\n")
                // It has its name before its stack.
                && Stat::of(child).is_some_and(|stat| stat.stack != 0)
            {
                break child;
            }
            std::thread::yield_now();
        };
        (parent, child)
    }

    fn end(mut parent: Child, child: u32) {
        let pid = rustix::process::Pid::from_raw(child as i32).unwrap();
        rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
        while Stat::of(child).is_some_and(|stat| !stat.is_dead()) {
            std::thread::yield_now();
        }
        parent.wait().unwrap();
    }

    #[test]
    fn a_process_without_a_slot_is_charged_at_once_and_while_it_lives() {
        let (_fd, group) = crate::testing::group(100_000);
        let (parent, child) = without_slot("sleep 100 & wait");
        let mut unmanaged = Unmanaged::new();
        unmanaged.look_now(Instant::now(), &group, parent.id(), &Members::default());
        let charged = unmanaged.charged as i64;
        assert!(charged > 0 && unmanaged.knows(child));
        assert_eq!(group.free(), 100_000 - charged);
        // One that has a slot is not charged here.
        let members = Members { pids: HashSet::from([child]), ..Members::default() };
        unmanaged.look_now(Instant::now(), &group, parent.id(), &members);
        assert_eq!((unmanaged.charged, group.free()), (0, 100_000));
        let launcher = parent.id();
        unmanaged.walked = None;
        unmanaged.look_now(Instant::now(), &group, launcher, &Members::default());
        assert!(unmanaged.charged > 0);
        end(parent, child);
        unmanaged.look_now(Instant::now(), &group, launcher, &Members::default());
        assert_eq!((unmanaged.charged, group.free()), (0, 100_000));
    }

    #[test]
    fn a_child_that_may_share_its_parents_memory_is_charged_for_what_it_held_twice() {
        let mut process = Process::new(Stat::of("self").unwrap());
        let start = Instant::now();
        assert_eq!(process.held_twice(700, start), 0);
        assert_eq!(process.held_twice(700, start + INTERVAL / 2), 0);
        assert_eq!(process.held_twice(500, start + INTERVAL), 500);
        process.charged = 500;
        assert_eq!(process.held_twice(900, start + INTERVAL * 3 / 2), 500);
        assert_eq!(process.held_twice(900, start + INTERVAL * 2), 500);
        assert_eq!(process.held_twice(900, start + INTERVAL * 3), 900);
    }

    #[test]
    fn a_slot_that_a_fork_waits_for_is_no_members_yet() {
        let (_fd, group) = crate::testing::group(1000);
        assert!(!Members::default().lack_one(&group));
        let slot = group.claim(pagetide_sys::procfs::Identity::UNKNOWN).unwrap();
        assert!(Members::default().lack_one(&group));
        let slots = HashSet::from([(slot.index(), slot.tenant())]);
        assert!(!Members { slots, ..Members::default() }.lack_one(&group));
    }

    #[test]
    fn a_program_that_another_has_replaced_is_known() {
        let (fd, group) = crate::testing::group(1000);
        let stat = rustix::fs::fstat(&fd).unwrap();
        let device = (rustix::fs::major(stat.st_dev), rustix::fs::minor(stat.st_dev));
        let page = FileId { device, inode: stat.st_ino };
        let own = std::process::id();
        let slot = group.claim(pagetide_sys::procfs::Identity::own()).unwrap();
        assert!(!is_replaced(slot, own, page), "it has not said where its stack begins");
        let (parent, child) = without_slot("sleep 100 & wait");
        slot.set_stack(Stat::of("self").unwrap().stack);
        assert!(!is_replaced(slot, own, page));
        assert!(is_replaced(slot, child, page));
        slot.set_stack(1);
        assert!(!is_replaced(slot, own, page), "it maps the group page");
        end(parent, child);
    }

    #[test]
    fn a_program_that_stays_is_said_once_with_its_reason() {
        let (_fd, group) = crate::testing::group(100_000);
        let (parent, child) = without_slot("env -i sleep 100 & wait");
        let mut unmanaged = Unmanaged::new();
        let mut look = || {
            unmanaged.look_now(Instant::now(), &group, parent.id(), &Members::default());
            unmanaged.outside().news()
        };
        let news: Vec<String> = (0..2 * LOOKS).flat_map(|_| look()).collect();
        assert_eq!(news.len(), 1, "{news:?}");
        assert!(news[0].contains(&format!("sleep (pid {child}) runs without Pagetide")), "{news:?}");
        let surveyed = survey(&group, parent.id());
        for outside in [unmanaged.outside(), &surveyed] {
            let [program] = &outside.iter().collect::<Vec<_>>()[..] else { continue };
            assert_eq!((program.pid, program.reason), (child, Reason::Environment));
            assert!(program.pages > 0);
        }
        end(parent, child);
    }

    #[test]
    fn what_such_a_program_has_forked_counts_as_the_same_program() {
        const SCRIPT: &str =
            "import os, signal\nos.fork()\nkept = bytearray(b'x') * (20 << 20)\nsignal.pause()\n";
        let (_fd, group) = crate::testing::group(100_000);
        // A shell between, as above.
        let mut shell =
            Command::new("sh").args(["-c", "env -i python3 -c \"$0\" & wait", SCRIPT]).spawn().unwrap();
        let pages = 20 << 20 >> 12;
        let held = |outside: &Outside| {
            let programs: Vec<_> = outside.iter().filter(|program| program.name.contains("python")).collect();
            programs.first().map_or((0, 0), |program| (program.pages / pages, program.processes))
        };
        let mut unmanaged = Unmanaged::new();
        while held(unmanaged.outside()) != (2, 2) {
            unmanaged.look_now(Instant::now(), &group, shell.id(), &Members::default());
        }
        assert_eq!(held(&survey(&group, shell.id())), (2, 2));
        for pid in tree::descendants(shell.id()) {
            let pid = rustix::process::Pid::from_raw(pid as i32).unwrap();
            rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
        }
        shell.wait().unwrap();
    }

    #[test]
    fn what_is_not_looked_at_in_time_is_known() {
        let (_fd, group) = crate::testing::group(100_000);
        let mut unmanaged = Unmanaged::new();
        unmanaged.looked = Instant::now();
        unmanaged.latest = Duration::ZERO;
        assert_eq!(unmanaged.latest(), None);
        unmanaged.looked -= 4 * INTERVAL;
        unmanaged.look(&group, std::process::id(), &Members::default());
        assert!(unmanaged.latest() >= Some(4 * INTERVAL));
    }
}
