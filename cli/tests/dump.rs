//! `pagetide dump` on runs that go on, are stopped, or hang, and the log of a run. As in common/mod.rs: root, gcc,
//! python3, the preload library beside the binary.

mod common;

use common::{PAGETIDE, Run, kill_group, pagetide, program, start, turn};
use serde_json::Value;
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

/// A dump waits for nobody. This is only so that one that does is seen.
const AT_ONCE: Duration = Duration::from_secs(20);

fn dump(arguments: &[&str]) -> Output {
    let started = Instant::now();
    let output = Command::new("timeout").args(["60", PAGETIDE, "dump"]).args(arguments).output().unwrap();
    assert!(started.elapsed() < AT_ONCE, "{arguments:?} took {:?}", started.elapsed());
    output
}

fn text(pid: u32, arguments: &[&str]) -> String {
    let output = dump(&[&[&*pid.to_string()], arguments].concat());
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

fn json(pid: u32, arguments: &[&str]) -> Value {
    serde_json::from_str(&text(pid, &[arguments, &["--json"]].concat())).unwrap()
}

/// The first process of a run, which waits longest.
fn first(pid: u32) -> Value {
    json(pid, &[])["processes"][0].clone()
}

fn thread<'a>(process: &'a Value, name: &str) -> &'a Value {
    let threads = process["threads"].as_array().unwrap();
    threads.iter().find(|thread| thread["name"] == name).unwrap_or_else(|| panic!("{process:#}"))
}

/// Starts a program of which a part stops, and waits until `so` is so of its first process.
fn hanging(fault: &str, options: &[&str], command: &[&str], so: impl Fn(&Value) -> bool) -> Endless {
    let mut run = pagetide("48M", "", options, command);
    run.env("PAGETIDE_FAIL", fault);
    let run = Endless(start(run));
    let pid = run.0.child.id();
    run.0.until("what is to hang", || {
        let output = dump(&[&pid.to_string(), "--json"]);
        let dump: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
        so(&dump["processes"][0])
    });
    run
}

/// A run that does not end by itself: it is killed when this is dropped, also where a test fails.
struct Endless(Run);

impl Drop for Endless {
    fn drop(&mut self) {
        kill_group(self.0.child.id());
        let _ = self.0.child.wait();
    }
}

fn signal(pid: &Value, name: &str) {
    let status = Command::new("kill").args([&format!("-{name}"), "--", &pid.to_string()]).status().unwrap();
    assert!(status.success());
}

const NOISE: [&str; 6] = ["--mib", "160", "--threads", "2", "--passes", "1000"];

fn noise() -> Vec<String> {
    let mut command = vec![program("incompressible")];
    command.extend(NOISE.iter().map(|&word| word.to_owned()));
    command
}

fn as_str(words: &[String]) -> Vec<&str> {
    words.iter().map(String::as_str).collect()
}

#[test]
fn a_fault_that_waits_for_a_thread_that_hangs_is_shown_with_that_thread() {
    let _turn = turn();
    let command = noise();
    let is_parked = |process: &Value| process["faults"].as_array().is_some_and(|faults| !faults.is_empty());
    let aged = |process: &Value| is_parked(process) && process["faults"][0]["age_ms"].as_u64() > Some(500);
    let run = hanging("hang-reclaim:20", &["--swap-size", "256M"], &as_str(&command), aged);
    let launcher = run.0.child.id();
    let before = first(launcher);
    std::thread::sleep(Duration::from_millis(300));
    let after = first(launcher);
    let age = |process: &Value| process["faults"][0]["age_ms"].as_u64().unwrap();
    assert!(age(&after) >= age(&before) + 300, "{before:#} {after:#}");
    assert_eq!(before["faults"][0]["page"], after["faults"][0]["page"]);
    assert_eq!(after["faults"][0]["waits_for"], "room");
    let reclaim = thread(&after, "reclaim");
    assert!(reclaim["idle"] == false && reclaim["age_ms"].as_u64().unwrap() >= 300, "{reclaim:#}");
    assert!(thread(&after, "control")["age_ms"].as_u64().unwrap() < 10_000, "{after:#}");
    assert!(after["counts"]["free_pages"].is_i64(), "{after:#}");
    assert_eq!(after["missing"], Value::Array(Vec::new()));

    // The page of the fault, told by the process's own pid.
    let pid = after["pid"].as_u64().unwrap() as u32;
    let page = after["faults"][0]["page"].as_str().unwrap().to_owned();
    let seen = json(pid, &["--page", &page]);
    let seen = &seen["processes"][0]["page"];
    assert_eq!(seen["faults"][0]["page"], page.as_str(), "{seen:#}");
    assert!(seen["mapped"] == false && seen["mapping"]["access"] == "rw-p", "{seen:#}");

    let shown = text(launcher, &[]);
    assert!(shown.lines().all(|line| line.chars().count() <= 80), "{shown}");
    let verdict = shown.split("\n\n").last().unwrap().replace('\n', " ");
    assert!(verdict.starts_with(&format!("oldest wait: fault on {page} for ")), "{shown}");
    assert!(verdict.contains("waits for room; reclaim for "), "{shown}");

    // Nobody of it runs any more.
    signal(&after["pid"], "STOP");
    run.0.until("the stop", || first(launcher)["state"] == "T");
    let stopped = json(launcher, &["--page", &page]);
    assert!(stopped["verdict"].as_str().unwrap().contains("is stopped"), "{stopped:#}");
    assert_eq!(stopped["processes"][0]["page"]["faults"][0]["page"], page.as_str());

    // Of another version: it is said which, and what the group page alone tells is shown.
    let board = other_version(launcher);
    let refused = first(launcher);
    let missing = refused["missing"][0].as_str().unwrap();
    let own = format!("reads form {}:", pagetide::dump::board::VERSION);
    assert!(missing.contains("form 9") && missing.contains(&own), "{refused:#}");
    assert!(refused["faults"].as_array().unwrap().is_empty() && refused["granted_bytes"].as_u64() > Some(0));
    assert_eq!(board, 1);
}

/// Makes the boards of a run those of another version. Returns how many there are.
fn other_version(launcher: u32) -> usize {
    let entries = fs::read_dir(format!("/proc/{launcher}/fd")).unwrap().flatten();
    let is_group = |path: &PathBuf| {
        fs::read_link(path).is_ok_and(|target| target.to_string_lossy().starts_with("/memfd:pagetide-group"))
    };
    let path = entries.map(|entry| entry.path()).find(is_group).unwrap();
    let file = OpenOptions::new().read(true).write(true).open(&path).unwrap();
    let bytes = fs::read(&path).unwrap();
    let boards: Vec<_> = (0..bytes.len() / 8).filter(|word| &bytes[word * 8..][..8] == b"pt-board").collect();
    for word in &boards {
        file.write_all_at(&9u64.to_ne_bytes(), *word as u64 * 8 + 8).unwrap();
    }
    boards.len()
}

#[test]
fn requests_of_a_device_that_does_not_answer_are_shown_with_their_pages() {
    let _turn = turn();
    let command = noise();
    let aged = |process: &Value| {
        process["faults"].as_array().is_some_and(|faults| !faults.is_empty())
            && process["requests"][0]["age_ms"].as_u64() > Some(400)
    };
    let run = hanging("hang-io:4", &["--swap-size", "256M"], &as_str(&command), aged);
    let process = first(run.0.child.id());
    let request = &process["requests"][0];
    assert!(["store", "writeback"].contains(&request["kind"].as_str().unwrap()), "{process:#}");
    let locked = &process["locked"];
    assert!(
        locked["complete"] == true && locked["pages"].as_u64() >= request["pages"].as_u64(),
        "{process:#}"
    );
    assert!(locked["runs"][0]["flags"].as_array().unwrap().contains(&"locked".into()), "{locked:#}");
    let asked = request["page"].as_str().unwrap();
    let page = json(run.0.child.id(), &["--page", asked])["processes"][0]["page"].clone();
    assert!(page["requests"][0]["page"] == asked && page["slot"]["number"].is_u64(), "{page:#}");
    assert!(page["state"].as_str().unwrap().starts_with("on probation in slot "), "{page:#}");
    let shown = text(run.0.child.id(), &[]).replace('\n', " ");
    assert!(shown.contains("the oldest write is ") && shown.contains("io for "), "{shown}");
}

#[test]
fn a_fork_that_has_stopped_all_work_is_shown() {
    let _turn = turn();
    let job = "import os\nkept = [os.urandom(1 << 20) for _ in range(80)]\nwhile True:\n    child = os.fork()\n    if not child:\n        os._exit(0)\n    os.waitpid(child, 0)\n";
    // A fork that does not hang may take a while on a busy machine, but not that long.
    let frozen = |process: &Value| process["counts"]["fork"]["age_ms"].as_u64() > Some(5000);
    let run = hanging("hang-control:200", &["--swap-size", "256M"], &["python3", "-c", job], frozen);
    let process = first(run.0.child.id());
    let fork = &process["counts"]["fork"];
    assert!(fork["frozen"] == true && fork["tid"] == process["pid"], "{process:#}");
    assert!(thread(&process, "control")["age_ms"].as_u64() > Some(400), "{process:#}");
    let shown = text(run.0.child.id(), &[]).replace('\n', " ");
    assert!(shown.contains("a fork by thread ") && shown.contains("has stopped all work"), "{shown}");
}

#[test]
fn pages_are_told_as_the_program_left_them() {
    let _turn = turn();
    let program = program("dumped");
    for (mask, options, text_at, noise_at) in [
        // No page goes to the pool: both are on the device.
        ("pool", &["--swap-size", "256M"][..], "out: on the device, block ", "out: on the device, block "),
        // Text finds a place in the pool, noise does not as a rule.
        (
            "",
            &["--swap-size", "256M", "--shrinker", "none"][..],
            "out: in the pool, ",
            "out: on the device, block ",
        ),
    ] {
        let mut command = pagetide("40M", mask, options, &[&program, "48"]);
        command.stdin(Stdio::piped());
        let mut run = start(command);
        run.until("all states", || run.said()[0].contains("ready"));
        let [said, _] = run.said();
        for line in said.lines().filter(|line| *line != "ready") {
            let (name, address) = line.split_once(' ').unwrap();
            let process = json(run.child.id(), &["--page", address])["processes"][0].clone();
            let page = &process["page"];
            let (state, mapped) = (page["state"].as_str().unwrap(), page["mapped"] == true);
            let expected = match name {
                "hole" => "a hole",
                "zero" => "out: a zero page",
                "text" => text_at,
                "noise" => noise_at,
                "present" => "in the program",
                other => panic!("{other}"),
            };
            assert!(state.starts_with(expected), "{name}: {process:#}");
            assert_eq!(mapped, name == "present", "{name}: {process:#}");
            let stays = page["stays"].as_str();
            assert_eq!(
                stays.is_some_and(|why| why.contains("mlock")),
                name == "present",
                "{name}: {process:#}"
            );
            assert!(page["mapping"]["flags"].as_array().unwrap().contains(&"managed".into()), "{process:#}");
            assert!(page["torn"] == false && page["cluster"]["latch_held"] == false, "{process:#}");
        }
        let pid = first(run.child.id())["pid"].as_u64().unwrap();
        let maps = fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
        let stack = maps.lines().find(|line| line.ends_with("[stack]")).expect("every process has a stack");
        // Its last page has the environment.
        let end = u64::from_str_radix(stack.split(['-', ' ']).nth(1).unwrap(), 16).unwrap();
        let process =
            json(run.child.id(), &["--page", &format!("{:#x}", end - 4096)])["processes"][0].clone();
        let told = |field: &str| process["page"][field].as_str().unwrap_or_default().to_owned();
        assert!(told("state").starts_with("not managed"), "{process:#}");
        assert!(told("stays").contains("does not manage"), "{process:#}");
        let verdict = json(run.child.id(), &[])["verdict"].as_str().unwrap().to_owned();
        assert!(verdict.starts_with("nothing "), "{verdict}");
        let process = first(run.child.id());
        assert!(process["threads"].as_array().unwrap().len() >= 4, "{process:#}");
        run.child.stdin.take().unwrap().write_all(b"\n").unwrap();
        run.end().succeeds();
    }
}

#[test]
fn without_permission_the_group_page_is_shown_and_what_is_missing_is_said() {
    let _turn = turn();
    if !std::path::Path::new("/dev/userfaultfd").exists() {
        println!("not tested: without CAP_SYS_PTRACE it takes /dev/userfaultfd");
        return;
    }
    // The program is not to be dumped, and who looks lacks the capability that overrides that.
    let without = |command: &[&str]| {
        let mut setpriv = Command::new("setpriv");
        setpriv.args(["--bounding-set=-sys_ptrace", "--inh-caps=-sys_ptrace"]).args(command);
        setpriv
    };
    let job = "import ctypes, os, time\nctypes.CDLL(None).prctl(4, 0, 0, 0, 0)\nkept = [os.urandom(1 << 20) for _ in range(60)]\ntime.sleep(300)\n";
    let run = Endless(start(without(&[
        PAGETIDE,
        "run",
        "-q",
        "-m",
        "40M",
        "--swap-size",
        "256M",
        "--",
        "python3",
        "-c",
        job,
    ])));
    let launcher = run.0.child.id().to_string();
    let look = || {
        let output =
            without(&[PAGETIDE, "dump", &launcher, "--json", "--page", "0x7f0000000000"]).output().unwrap();
        serde_json::from_slice::<Value>(&output.stdout).unwrap_or_default()["processes"][0].clone()
    };
    run.0.until("pages that are out", || {
        look()["swapped_bytes"].as_u64() > Some(8 << 20) && look()["missing"][0].is_string()
    });
    let process = look();
    let missing = process["missing"][0].as_str().unwrap();
    assert!(missing.contains("Permission denied") && missing.contains("root"), "{process:#}");
    assert!(process["threads"].as_array().unwrap().iter().any(|thread| thread["activity"].is_string()));
    assert!(process["counts"].is_null() && process["page"]["error"].is_string(), "{process:#}");
}

#[test]
fn who_is_no_run_is_told_apart_from_who_is_nobody() {
    let nobody = dump(&["4194303"]);
    assert_eq!(nobody.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&nobody.stderr).contains("there is no process 4194303"), "{nobody:?}");
    let mut sleeper = Command::new("sleep").arg("60").spawn().unwrap();
    let other = dump(&[&sleeper.id().to_string()]);
    sleeper.kill().unwrap();
    sleeper.wait().unwrap();
    assert_eq!(other.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&other.stderr).contains("belongs to none"), "{other:?}");
    for wrong in ["page", "0x800000000000"] {
        assert_eq!(dump(&["--page", wrong]).status.code(), Some(125), "{wrong}");
    }
}

#[test]
fn a_log_has_a_line_an_event_and_off_has_none() {
    let _turn = turn();
    let random = program("incompressible");
    let job = [&*random, "--mib", "90", "--threads", "1", "--passes", "1"];
    let file = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("dump.log");
    let _ = fs::remove_file(&file);
    let run = |log: &str| {
        let mut command = pagetide("32M", "", &["--swap-size", "256M"], &job);
        command.env("PAGETIDE_LOG", log);
        let ended = start(command).end();
        assert!(ended.status.success(), "{}", ended.stderr);
        ended.stderr
    };
    let is_line = |line: &&str| line.starts_with("pagetide[") && line.contains("] ");
    let said = run("info");
    assert!(said.contains(" control] ") && said.contains("info: the engine runs"), "{said}");
    assert!(said.contains(" launcher] ") && said.contains("info: the run begins"), "{said}");
    assert!(!said.contains(" debug: "), "{said}");
    for log in ["", "off"] {
        let said = run(log);
        assert_eq!(said.lines().filter(is_line).count(), 0, "{log:?}: {said}");
    }
    let said = run(&format!("debug:{}", file.display()));
    assert_eq!(said.lines().filter(is_line).count(), 0, "{said}");
    let written = fs::read_to_string(&file).unwrap();
    fs::remove_file(&file).unwrap();
    assert!(
        written.contains("info: the swap file is open") && written.contains("info: the run begins"),
        "{written}"
    );
    let times: Vec<f64> =
        written.lines().map(|line| line.split(' ').nth(2).unwrap().parse().unwrap()).collect();
    assert!(times.len() >= 4 && written.lines().all(|line| is_line(&line)), "{written}");

    // The keeper of shared memory has an engine, too.
    let shares = ["python3", "-c", "import mmap; mmap.mmap(-1, 8 << 20).write(b'x' * (8 << 20))"];
    let mut command = pagetide("64M", "", &["--no-disk"], &shares);
    command.env("PAGETIDE_LOG", format!("info:{}", file.display()));
    let ended = start(command).end();
    assert!(ended.status.success(), "{}", ended.stderr);
    let written = fs::read_to_string(&file).unwrap();
    fs::remove_file(&file).unwrap();
    let keeper = written.lines().find(|line| line.contains(" keeper] "));
    let keeper = keeper.and_then(|line| line.split(' ').next()).unwrap_or_else(|| panic!("{written}"));
    assert!(written.contains(&format!("{keeper} control] ")), "{written}");

    let mut command = pagetide("32M", "", &["--no-disk"], &["true"]);
    command.env("PAGETIDE_LOG", "info:/nowhere/at/all");
    let ended = start(command).end();
    assert_eq!(ended.status.code(), Some(125));
    assert!(ended.stderr.contains("PAGETIDE_LOG: /nowhere/at/all"), "{}", ended.stderr);
}
