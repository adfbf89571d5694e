//! Gathers what is known of a process: from its slot and board in the group page, from `/proc`, and from its memory.

use super::memory::ProcessMemory;
use super::page::{self, PageSeen};
use crate::processes::runs::Pids;
use pagetide::dump::board::{Board, Kind, ParkedFault, RequestShown, ThreadShown};
use pagetide::dump::reading::{self, Counts, Heap};
use pagetide::group::{Field, Group, ProcessSlot};
use pagetide_swap::table::outside::Outside;
use pagetide_swap::{PageIndex, State, Word};
use pagetide_sys::procfs::{self, Stat};
use std::fs::{self, File};
use std::time::{Duration, Instant};

/// Runs of locked pages that are listed.
const RUNS_MAX: usize = 8;
/// The table is looked through for no longer than that.
const WALK_MAX: Duration = Duration::from_secs(3);

/// A thread of a process, as `/proc` shows it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Task {
    /// Its number here, and as the process sees it.
    pub tid: u32,
    pub inner: u32,
    pub name: String,
    /// The letter of its state.
    pub state: char,
    /// The function of the kernel in which it sleeps; empty if it runs, or that is not to be seen.
    pub wchan: String,
}

/// A thread of the engine.
#[derive(Clone, Debug)]
pub(crate) struct EngineThread {
    pub task: Option<Task>,
    pub shown: Option<ThreadShown>,
    /// What it is called, with a number where there are several.
    pub name: String,
}

/// Pages one after the other that are locked, or on their way to the device.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LockedRun {
    pub first: PageIndex,
    pub pages: u64,
    pub word: Word,
}

/// What a walk through the table found.
#[derive(Clone, Debug, Default)]
pub(crate) struct Locked {
    pub pages: u64,
    pub writeback: u64,
    /// Clusters whose latch somebody holds.
    pub held: Vec<PageIndex>,
    pub runs: Vec<LockedRun>,
    /// Whether the walk came to its end.
    pub complete: bool,
}

/// A process of the run.
pub(crate) struct Process {
    pub pid: u64,
    pub name: String,
    /// The letter of its state; `None` if it is gone.
    pub state: Option<char>,
    pub armed: bool,
    pub slot: ProcessSlot,
    pub threads: Vec<EngineThread>,
    /// Threads of the program that sleep in a page fault; `None` if the kernel does not show where threads sleep.
    pub faulting: Option<usize>,
    pub parked: Vec<ParkedFault>,
    pub parked_more: u64,
    pub requests: Vec<RequestShown>,
    pub counts: Option<Counts>,
    pub locked: Option<Locked>,
    pub page: Option<Result<PageSeen, String>>,
    /// Why something is missing.
    pub missing: Vec<String>,
}

impl Process {
    /// Looks at a process, and at the page at an address of it.
    pub(crate) fn look(group: &Group, slot: ProcessSlot, address: Option<u64>) -> Self {
        let (pid, name) = Pids::of(group).named(slot);
        let tasks = tasks(pid);
        let mut this = Self {
            pid,
            name,
            state: Stat::of(pid).map(|stat| stat.state as char),
            armed: slot.get(Field::Armed) != 0,
            slot,
            threads: Vec::new(),
            faulting: faulting(&tasks),
            parked: Vec::new(),
            parked_more: 0,
            requests: Vec::new(),
            counts: None,
            locked: None,
            page: None,
            missing: Vec::new(),
        };
        let board = group.board(slot);
        match board.check(slot.get(Field::Tenancy)) {
            Ok(true) => this.look_at_board(board, &tasks, address),
            Ok(false) => {
                this.threads = engine_threads(&[], &tasks);
                if this.armed {
                    this.missing.push("the engine has not opened its board yet".to_owned());
                }
                this.page = address.map(|_| {
                    Err("the process has no engine yet: none of its private memory is out".to_owned())
                });
            }
            Err(error) => {
                this.threads = engine_threads(&[], &tasks);
                this.page = address.map(|_| Err(error.clone()));
                this.missing.push(error);
            }
        }
        this
    }

    fn look_at_board(&mut self, board: Board, tasks: &[Task], address: Option<u64>) {
        self.threads = engine_threads(&board.threads(), tasks);
        (self.parked, self.parked_more) = board.parked();
        self.parked.sort_by_key(|fault| fault.since);
        self.requests = board.requests();
        self.requests.sort_by_key(|request| request.since);
        let memory = match File::open(format!("/proc/{}/mem", self.pid)) {
            Ok(file) => ProcessMemory::new(file),
            Err(error) => {
                let hint = hint(&error);
                self.page =
                    address.map(|_| Err(format!("the memory of the process cannot be read: {error}")));
                return self.missing.push(format!(
                    "counts, probation and locked pages, which lie in the memory of the process ({error}{hint})"
                ));
            }
        };
        let heap = reading::heap(board, memory);
        match reading::counts(board, &heap) {
            Ok(counts) => self.counts = Some(counts),
            Err(error) => self.missing.push(format!("counts and probation ({error})")),
        }
        let table = reading::table(board, &heap);
        match table.as_ref().map_err(Clone::clone).and_then(locked) {
            Ok(locked) => self.locked = Some(locked),
            Err(error) => self.missing.push(format!("locked pages ({error})")),
        }
        let Some(address) = address else { return };
        self.page = Some(table.and_then(|table| {
            let slots = self.counts.as_ref().map_or(&[][..], |counts| &counts.used);
            let seen = page::look(self.pid, &table, address, slots)?;
            Ok(seen.with(&self.requests, &self.parked))
        }));
    }
}

/// What would allow it.
fn hint(error: &std::io::Error) -> String {
    if error.kind() != std::io::ErrorKind::PermissionDenied {
        return String::new();
    }
    let scope = procfs::small("/proc/sys/kernel/yama/ptrace_scope");
    match scope.as_deref().map(str::trim) {
        None | Some("0") => "; that takes its user, or root where it is not to be dumped".to_owned(),
        Some(scope) => format!("; kernel.yama.ptrace_scope is {scope}: set it to 0, or be root"),
    }
}

/// Threads of a process.
fn tasks(pid: u64) -> Vec<Task> {
    let entries = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let task = |entry: fs::DirEntry| {
        let tid: u32 = entry.file_name().to_str()?.parse().ok()?;
        let read = |name: &str| procfs::small(&format!("/proc/{pid}/task/{tid}/{name}"));
        let status = read("status")?;
        let inner = status.lines().find_map(|line| line.strip_prefix("NSpid:"));
        let inner = inner.and_then(|pids| pids.split_ascii_whitespace().next_back()?.parse().ok());
        let state = status.lines().find_map(|line| line.strip_prefix("State:"));
        let wchan = read("wchan").unwrap_or_default();
        Some(Task {
            tid,
            inner: inner.unwrap_or(tid),
            name: read("comm")?.trim_end().to_owned(),
            state: state.and_then(|state| state.trim_start().chars().next()).unwrap_or('?'),
            wchan: if wchan == "0" { String::new() } else { wchan },
        })
    };
    entries.filter_map(task).collect()
}

fn is_engine(task: &&Task) -> bool {
    task.name == "pagetide" || task.name.starts_with("pagetide-")
}

fn faulting(tasks: &[Task]) -> Option<usize> {
    let shows = tasks.iter().any(|task| !task.wchan.is_empty());
    let sleeps = |task: &&Task| !is_engine(task) && task.wchan.contains("userfault");
    shows.then(|| tasks.iter().filter(sleeps).count())
}

fn engine_threads(shown: &[ThreadShown], tasks: &[Task]) -> Vec<EngineThread> {
    let readers = |kind| shown.iter().filter(|thread| thread.kind == kind).count();
    let mut nth = 0;
    let mut threads: Vec<_> = shown
        .iter()
        .map(|&thread| {
            let number = if thread.kind == Kind::Fault && readers(Kind::Fault) > 1 {
                nth += 1;
                format!(" {nth}")
            } else {
                String::new()
            };
            EngineThread {
                task: tasks.iter().find(|task| task.inner == thread.tid).cloned(),
                shown: Some(thread),
                name: format!("{}{number}", thread.kind.text()),
            }
        })
        .collect();
    let others = tasks.iter().filter(is_engine);
    for task in others.filter(|task| shown.iter().all(|thread| thread.tid != task.inner)) {
        let name = task.name.strip_prefix("pagetide-").unwrap_or("control");
        threads.push(EngineThread { task: Some(task.clone()), shown: None, name: name.to_owned() });
    }
    threads
}

/// Looks through the table for pages that somebody moves.
fn locked(table: &Outside<'_, Heap<ProcessMemory>>) -> Result<Locked, String> {
    let started = Instant::now();
    let mut locked = Locked { complete: true, ..Locked::default() };
    for number in table.busy()? {
        if started.elapsed() > WALK_MAX {
            locked.complete = false;
            break;
        }
        let seen = match table.cluster(number) {
            Ok(Some(seen)) => seen,
            Ok(None) => continue,
            // It changes all the time: nothing is stuck there.
            Err(_) => {
                locked.complete = false;
                continue;
            }
        };
        if seen.held {
            locked.held.push(number.page(0));
        }
        for (at, &word) in seen.words.iter().enumerate() {
            if !word.is_locked() && !word.is_writeback() {
                continue;
            }
            locked.pages += u64::from(word.is_locked());
            locked.writeback += u64::from(word.is_writeback());
            let page = number.page(at);
            let listed = locked.runs.len();
            match locked.runs.last_mut() {
                Some(run) if run.first.plus(run.pages) == page && alike(run.word, word) => run.pages += 1,
                _ if listed < RUNS_MAX => locked.runs.push(LockedRun { first: page, pages: 1, word }),
                _ => {}
            }
        }
    }
    Ok(locked)
}

fn alike(one: Word, other: Word) -> bool {
    let kind = |word: Word| (word.state(), word.is_locked(), word.is_writeback(), word.is_wanted());
    let slot = |word: Word| (word.state() == State::Cached).then(|| word.slot());
    let place = |word: Word| word.place().map(|place| std::mem::discriminant(&place));
    kind(one) == kind(other) && slot(one) == slot(other) && place(one) == place(other)
}
