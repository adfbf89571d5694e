//! Runs that come to the end of their memory: no kill while a page could leave and a place for it exists, and an end
//! with figures where none does. As in programs.rs: root, gcc, the preload library beside the binary.

use std::path::Path;
use std::process::{Child, Command, Output};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

const PAGETIDE: &str = env!("CARGO_BIN_EXE_pagetide");
/// No run takes nearly as long: this is only so that one that hangs is ended.
const GUARD: &str = "400";

/// One after the other: each keeps the machine busy.
static TURNS: Mutex<()> = Mutex::new(());

fn program(name: &str) -> String {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/programs").join(name);
    let binary = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("starving-{name}"));
    let output = Command::new("gcc")
        .args(["-O2", "-o"])
        .args([&binary, &source.with_extension("c")])
        .arg("-lpthread")
        .output()
        .expect("gcc is installed");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    binary.to_str().expect("a path in UTF-8").to_owned()
}

fn run(options: &[&str], command: &[&str], environment: [&str; 2]) -> Output {
    let mut run = Command::new("timeout");
    run.args(["--signal=KILL", GUARD, PAGETIDE, "run", "-q"]).args(options).arg("--").args(command);
    let [mask, fault] = environment;
    run.env("PAGETIDE_MASK", mask).env("PAGETIDE_FAIL", fault).env("TMPDIR", "/var/tmp");
    run.output().unwrap()
}

/// So many of a program at once; the status is the last failure's.
fn several(count: usize, program: &str) -> String {
    format!(
        "for i in $(seq {count}); do {program} & pids=\"$pids $!\"; done; \
         status=0; for pid in $pids; do wait $pid || status=$?; done; exit $status"
    )
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
    for [mask, fault] in [
        ["", "stall-reclaim:3"],
        ["remap", "stall-control:2"],
        ["pool", "stall-io:5"],
        ["ring,pool", "stall-reclaim:5"],
        ["copy,scan", "pool:2"],
        ["move", "stall-fault:200"],
    ] {
        println!("PAGETIDE_MASK={mask} PAGETIDE_FAIL={fault}");
        let one = format!("{integrity} --mib 12 --threads 1 --ops 3000 --dir /var/tmp");
        let ended =
            run(&["-m", "32M", "--swap-size", "128M"], &["sh", "-c", &several(3, &one)], [mask, fault]);
        assert!(ended.status.success(), "{ended:?}");
        let one = format!("{random} --mib 14 --threads 1 --passes 1");
        let ended =
            run(&["-m", "28M", "--swap-size", "64M"], &["sh", "-c", &several(3, &one)], [mask, fault]);
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
    // Many passes: each has its memory still when the other starts, however late that is.
    let one = format!("{random} --mib 40 --threads 1 --passes 100");
    let ended = run(&options, &["sh", "-c", &several(2, &one)], ["", ""]);
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
    let random = program("incompressible");
    // One that has an engine stops, or becomes a program without one.
    let stopped = "import os, signal\nkept = [os.urandom(1 << 20) for _ in range(20)]\nos.kill(os.getpid(), signal.SIGSTOP)";
    let another = "import os\nkept = [os.urandom(1 << 20) for _ in range(70)]\nos.environ.pop('LD_PRELOAD')\nos.execvp('sleep', ['sleep', '300'])";
    for (other, memory, swap) in [(stopped, "40M", "--no-disk"), (another, "64M", "--swap-size=16M")] {
        let job = format!(
            "python3 -c \"$1\" & other=$!; sleep 2; {random} --mib 80 --threads 1; status=$?; kill -KILL $other; exit $status"
        );
        let started = Instant::now();
        let ended = run(&["-m", memory, swap], &["sh", "-c", &job, "sh", other], ["", ""]);
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
        let ended = run(&["-m", "48M", "--swap-size", "512M"], arguments, ["", ""]);
        assert!(ended.status.success(), "{ended:?}");
    }
}
