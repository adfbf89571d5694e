//! Runs that come to the end of their memory: no kill while a page could leave and a place for it exists, and an end
//! with figures where none does.

mod common;

use common::{PAGETIDE, job, masks, program, reported};
use std::ffi::OsStr;
use std::path::Path;
use std::process::{Child, Command, Output};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// No run takes nearly as long: this is only so that one that hangs is ended.
const GUARD: &str = "400";

/// One after the other: each keeps the machine busy.
static TURNS: Mutex<()> = Mutex::new(());

fn run(options: &[&str], command: &[impl AsRef<OsStr>], environment: [&str; 2]) -> Output {
    let mut run = Command::new("timeout");
    run.args(["--signal=KILL", GUARD, PAGETIDE, "run", "-q"]).args(options).arg("--").args(command);
    let [mask, fault] = environment;
    run.env("PYTHONDONTWRITEBYTECODE", "1")
        .env("PAGETIDE_MASK", mask)
        .env("PAGETIDE_FAIL", fault)
        .env("TMPDIR", "/var/tmp");
    run.output().unwrap()
}

/// So many of a program at once; the status is the last failure's.
fn several(count: &str, program: &str, arguments: &str) -> Vec<String> {
    let script = job("several.sh");
    let command = ["sh", &script, count, program].into_iter().chain(arguments.split(' '));
    command.map(str::to_owned).collect()
}

/// Processes that spin for as long as this lives.
struct Busy(Vec<Child>);

impl Busy {
    fn new(count: usize) -> Self {
        let spin = |_| Command::new("sh").args(["-c", "while :; do :; done"]).spawn().unwrap();
        Self((0..count).map(spin).collect())
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        for child in &mut self.0 {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }
}

#[test]
fn nobody_is_killed_while_a_page_could_leave_and_there_is_a_place_for_it() {
    let _turn = TURNS.lock().unwrap_or_else(PoisonError::into_inner);
    let integrity = program("integrity");
    let random = program("incompressible");
    let _busy = Busy::new(20);
    // What the engine waits for comes late, and the device is the only place for most of it.
    for [mask, fault] in masks([
        ["", "stall-reclaim:3"],
        ["remap", "stall-control:2"],
        ["ring,pool", "stall-reclaim:5"],
        ["copy,scan", "pool:2"],
        ["move", "stall-fault:200"],
        ["pool", "stall-io:5"],
    ]) {
        println!("PAGETIDE_MASK={mask} PAGETIDE_FAIL={fault}");
        let one = several("3", &integrity, "--mib 12 --threads 1 --ops 3000 --dir /var/tmp");
        let ended = run(&["-m", "32M", "--swap-size", "128M"], &one, [mask, fault]);
        assert!(ended.status.success(), "{ended:?}");
        let one = several("3", &random, "--mib 14 --threads 1 --passes 1");
        let ended = run(&["-m", "28M", "--swap-size", "64M"], &one, [mask, fault]);
        assert!(ended.status.success(), "{ended:?}");
    }
}

#[test]
fn who_cannot_go_on_ends_soon_alone_and_says_what_cannot_leave() {
    let _turn = TURNS.lock().unwrap_or_else(PoisonError::into_inner);
    let random = program("incompressible");
    let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join("starving.json");
    let path = file.to_str().unwrap();
    let options = ["-m", "64M", "--no-disk", "--stats", path];
    // Each has its memory until one of them has ended, however late that is.
    let script = job("several.sh");
    let both =
        ["bash", &script, "--first", "2", &random, "--mib", "40", "--threads", "1", "--passes", "100000"];
    let ended = run(&options, &both.map(str::to_owned), ["", ""]);
    let said = String::from_utf8_lossy(&ended.stderr);
    assert_eq!(ended.status.code(), Some(137), "{said}");
    assert!(said.contains("MiB have no place to go to"), "{said}");
    assert!(said.contains("MiB are not managed") && said.contains("--memory"), "{said}");
    assert_eq!(
        said.matches("out of memory: nothing more").count(),
        1,
        "what one leaves is enough for the other: {said}"
    );
    let done = String::from_utf8_lossy(&ended.stdout);
    assert_eq!(done.matches(", 0 errors").count(), 1, "{done}{said}");
    let report: serde_json::Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    std::fs::remove_file(&file).unwrap();
    let ended = &report["out_of_memory"];
    assert_eq!(ended["processes"], 1, "{ended}");
    assert!(ended["stuck_bytes"]["no_place"].as_u64().unwrap() > 48 << 20, "{ended}");
    assert!(ended["stuck_bytes"]["unmanaged"].as_u64().unwrap() > 0, "{ended}");
}

#[test]
fn who_is_stopped_or_another_program_by_now_keeps_nobody_waiting() {
    let _turn = TURNS.lock().unwrap_or_else(PoisonError::into_inner);
    let (random, beside) = (program("incompressible"), job("beside.sh"));
    // One that has an engine stops, or becomes a program without one.
    let (stopped, another) = (job("stopped.py"), job("another.py"));
    for (other, memory, swap) in [(&*stopped, "40M", "--no-disk"), (&another, "64M", "--swap-size=16M")] {
        let started = Instant::now();
        let ended = run(&["-m", memory, swap], &["sh", &beside, other, &random], ["", ""]);
        let said = String::from_utf8_lossy(&ended.stderr);
        assert_eq!(ended.status.code(), Some(137), "{said}");
        assert!(said.contains("out of memory"), "{said}");
        assert!(started.elapsed() < Duration::from_secs(300), "{said}");
    }
}

#[test]
fn a_lock_beyond_the_cap_is_refused_and_never_the_end() {
    let _turn = TURNS.lock().unwrap();
    let locked = program("locked");
    for arguments in [&[&*locked][..], &[&locked, "--raw"]] {
        let (ended, report) = reported("48M", "", &["--swap-size", "512M"], arguments);
        ended.succeeds();
        // What each fork shares may count twice, where nobody has looked at it.
        let most = report["counted"]["bytes"].as_u64().or(report["bytes"]["peak"]["total"].as_u64()).unwrap();
        assert!(most <= 52 << 20, "{most} bytes were in memory");
    }
}
