//! How whole programs are run under `pagetide run`, by the tests of each theme.
//!
//! They need root or another way to userfaultfd (docs/permissions.md), gcc and python3, and the preload library beside
//! the binary: `cargo build --workspace` comes first, as `./test` does. They run beside each other, but for those that
//! change a setting with which others would fail. Swap files lie in `/var/tmp`.
#![allow(dead_code, unreachable_pub, missing_docs)]

use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::{Duration, Instant, SystemTime};

pub const PAGETIDE: &str = env!("CARGO_BIN_EXE_pagetide");
/// No run takes nearly as long: this is only so that one that hangs is ended.
pub const GUARD: Duration = Duration::from_secs(400);
/// For so long processes of a run may outlive it that end by themselves.
const DYING: Duration = Duration::from_secs(10);
static TURNS: RwLock<()> = RwLock::new(());

/// Beside other tests. Fails if the machine lacks what all need.
pub fn turn() -> RwLockReadGuard<'static, ()> {
    let turn = TURNS.read().unwrap_or_else(PoisonError::into_inner);
    if let Err(error) = pagetide_sys::uffd::Uffd::open() {
        panic!(
            "userfaultfd cannot be opened ({error}): run the tests as root, or set vm.unprivileged_userfaultfd=1"
        );
    }
    let library = Path::new(PAGETIDE).with_file_name("libpagetide_preload.so");
    assert!(library.exists(), "{} is missing: run cargo build --workspace first", library.display());
    turn
}

/// With no other test beside it: it changes a setting of the machine which they would fail with.
pub fn alone() -> RwLockWriteGuard<'static, ()> {
    drop(turn());
    TURNS.write().unwrap_or_else(PoisonError::into_inner)
}

/// The ways under which a test runs: the first and the last of them; all in `./test --long masks`
/// (`PAGETIDE_ALL_MASKS=1`), for they take twice as long.
pub fn masks<T: Copy, const COUNT: usize>(all: [T; COUNT]) -> Vec<T> {
    if runs_all() { all.into() } else { vec![all[0], all[COUNT - 1]] }
}

fn runs_all() -> bool {
    std::env::var_os("PAGETIDE_ALL_MASKS").is_some()
}

/// How often a test does what may go wrong by chance: half as often as in `./test --long masks`.
pub fn times(all: u32) -> String {
    (if runs_all() { all } else { all / 2 }).to_string()
}

/// The first of the ways, for the longest tests; all of them in `./test --long masks`.
pub fn first_mask<T: Copy, const COUNT: usize>(all: [T; COUNT]) -> Vec<T> {
    let chosen = masks(all);
    if chosen.len() == COUNT { chosen } else { vec![all[0]] }
}

pub fn house() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("cli/ lies in the house").to_owned()
}

/// A script of tests/jobs.
pub fn job(name: &str) -> String {
    let path = house().join("tests/jobs").join(name);
    assert!(path.exists(), "{} is missing", path.display());
    path.to_str().expect("a path in UTF-8").to_owned()
}

/// Builds tests/programs/NAME.c, once.
pub fn program(name: &str) -> String {
    built(name, name, &["-lpthread"])
}

/// The same as a static program, which has no dynamic loader.
pub fn static_program(name: &str) -> String {
    built(name, &format!("{name}-static"), &["-static"])
}

/// Builds tests/programs/SOURCE.c as a program of another name, with more options for gcc, unless it is built already.
pub fn built(source: &str, name: &str, options: &[&str]) -> String {
    static BUILDING: Mutex<()> = Mutex::new(());
    let _building = BUILDING.lock().unwrap_or_else(PoisonError::into_inner);
    let binary = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let programs = house().join("tests/programs");
    let sources = programs.join(source).with_extension("c");
    if modified(&binary) < newest(&programs) {
        let output = Command::new("gcc")
            .args(["-O2", "-Wall", "-Wextra", "-o"])
            .args([&binary, &sources])
            .args(options)
            .output()
            .expect("gcc is installed");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
    // As the kernel has it.
    binary.canonicalize().unwrap().to_str().expect("a path in UTF-8").to_owned()
}

fn modified(path: &Path) -> Option<SystemTime> {
    path.metadata().and_then(|metadata| metadata.modified()).ok()
}

/// When a program or a header of theirs was last changed: all are built anew then, which takes seconds.
fn newest(programs: &Path) -> Option<SystemTime> {
    let files = fs::read_dir(programs).unwrap().map(|entry| entry.unwrap().path());
    files.map(|file| if file.is_dir() { newest(&file) } else { modified(&file) }).max().flatten()
}

/// A run and what it says, which goes to files: nobody waits for a pipe that an orphan holds.
pub struct Run {
    pub child: Child,
    pub started: Instant,
    what: String,
    files: [PathBuf; 2],
}

pub struct Ended {
    pub status: ExitStatus,
    pub stdout: String,
    pub stderr: String,
    what: String,
}

pub fn start(mut command: Command) -> Run {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let number = COUNT.fetch_add(1, Relaxed);
    let file = |name: &str| {
        Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{}-{number}.{name}", std::process::id()))
    };
    let files = [file("stdout"), file("stderr")];
    let [stdout, stderr] = files.each_ref().map(|path| fs::File::create(path).unwrap());
    let what = format!("{command:?}");
    let child = command
        .env("TMPDIR", "/var/tmp")
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .process_group(0)
        .stdout(stdout)
        .stderr(stderr)
        .spawn()
        .unwrap();
    Run { child, started: Instant::now(), what, files }
}

/// Kills the launcher of `orphan.py`, which is ready, and ends the program's input: then it says that its pages are as they
/// were, and ends.
pub fn outlives_launcher(run: &mut Run) {
    let group = run.child.id();
    run.child.kill().unwrap();
    run.child.wait().unwrap();
    drop(run.child.stdin.take());
    run.until("its end", || living(group).is_empty());
    assert_eq!(run.said()[0], "ready\nTrue True\nTrue True True\n", "{}", run.said()[1]);
}

/// Processes of a process group that live, zombies apart.
pub fn living(group: u32) -> Vec<String> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc").unwrap().flatten() {
        let stat = fs::read_to_string(entry.path().join("stat")).unwrap_or_default();
        // PID (NAME) STATE PPID PGRP
        let Some((name, rest)) = stat.rsplit_once(") ") else { continue };
        let fields: Vec<_> = rest.split(' ').take(3).collect();
        if fields[0] != "Z" && fields[0] != "X" && fields[2] == group.to_string() {
            found.push(format!("{name})"));
        }
    }
    found
}

pub fn kill_group(group: u32) {
    let _ = Command::new("kill").args(["-KILL", "--", &format!("-{group}")]).status();
}

impl Run {
    pub fn said(&self) -> [String; 2] {
        self.files.each_ref().map(|path| String::from_utf8_lossy(&fs::read(path).unwrap()).into_owned())
    }

    /// Waits until something is so, while the run goes on or after its end.
    pub fn until(&self, what: &str, so: impl Fn() -> bool) {
        while !so() {
            if self.started.elapsed() > GUARD {
                kill_group(self.child.id());
                panic!("{}: {what} does not come about; it said {:?}", self.what, self.said());
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Waits for its end. Fails if it hangs, or if a process of it lives on.
    pub fn end(mut self) -> Ended {
        let group = self.child.id();
        let status = loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                break status;
            }
            if self.started.elapsed() > GUARD {
                let living = living(group);
                kill_group(group);
                let _ = self.child.wait();
                panic!("{} hangs: {living:?} live; it said {:?}", self.what, self.said());
            }
            std::thread::sleep(Duration::from_millis(5));
        };
        let dying = Instant::now();
        let mut orphans = living(group);
        // What is about to end, as CMD did, may take another moment for it.
        while !orphans.is_empty() && dying.elapsed() < DYING {
            std::thread::sleep(Duration::from_millis(5));
            orphans = living(group);
        }
        let [stdout, stderr] = self.said();
        if !orphans.is_empty() {
            kill_group(group);
            panic!(
                "{} has ended with {status}, and {orphans:?} live on; it said {stdout}{stderr}",
                self.what
            );
        }
        Ended { status, stdout, stderr, what: std::mem::take(&mut self.what) }
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        self.files.iter().for_each(|path| _ = fs::remove_file(path));
    }
}

impl Ended {
    pub fn succeeds(self) -> String {
        let Self { status, stdout, stderr, what } = self;
        assert!(status.success(), "{what}: {status}\n{stdout}{stderr}");
        stdout
    }
}

pub fn pagetide(memory: &str, mask: &str, options: &[&str], command: &[&str]) -> Command {
    let mut run = Command::new(PAGETIDE);
    run.args(["run", "-q", "-m", memory]).args(options).arg("--").args(command).env("PAGETIDE_MASK", mask);
    run
}

/// Runs such a command to its end, and returns its last statistics beside how it ended.
pub fn reported(memory: &str, mask: &str, options: &[&str], command: &[&str]) -> (Ended, serde_json::Value) {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let nth = NEXT.fetch_add(1, Relaxed);
    let stats =
        Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("stats-{}-{nth}.json", std::process::id()));
    let options = [options, &["--stats", stats.to_str().unwrap()]].concat();
    let ended = start(pagetide(memory, mask, &options, command)).end();
    let report = serde_json::from_str(&fs::read_to_string(&stats).unwrap()).unwrap();
    fs::remove_file(&stats).unwrap();
    (ended, report)
}

/// The interpreter itself: what the name finds may be a chain of shell scripts.
pub fn python() -> String {
    let found = Command::new("python3").args(["-c", "import sys; print(sys.executable)"]).output().unwrap();
    String::from_utf8(found.stdout).unwrap().trim().to_owned()
}

/// What `pagetide stat` tells of a run, once it does.
pub fn report(pid: &str) -> Option<serde_json::Value> {
    let output = Command::new(PAGETIDE).args(["stat", pid, "--json"]).output().unwrap();
    output.status.success().then(|| serde_json::from_slice(&output.stdout).unwrap())
}

/// A setting of the kernel, and its value from before.
pub struct Setting(&'static str, String);

impl Setting {
    pub fn change(path: &'static str, value: &str) -> Self {
        let before = fs::read_to_string(path).unwrap();
        // Some list all values, the one that holds in brackets.
        let chosen = before.split(['[', ']']).nth(1).map(str::to_owned);
        let before = chosen.unwrap_or(before);
        fs::write(path, value).unwrap_or_else(|error| panic!("{path} (needs root): {error}"));
        Self(path, before)
    }
}

impl Drop for Setting {
    fn drop(&mut self) {
        let _ = fs::write(self.0, self.1.trim());
    }
}
