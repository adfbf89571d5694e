//! `pagetide run` from outside: statuses, streams, signals, and what it leaves behind.

use pagetide::group::{Field, Group, ProcessSlot};
use pagetide_sys::procfs::Identity;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

const PAGETIDE: &str = env!("CARGO_BIN_EXE_pagetide");

fn pagetide() -> Command {
    let beside = Path::new(PAGETIDE).with_file_name("libpagetide_preload.so");
    assert!(
        std::env::var_os("PAGETIDE_PRELOAD").is_some() || beside.exists(),
        "{} is missing: run cargo build --workspace first",
        beside.display()
    );
    Command::new(PAGETIDE)
}

/// `pagetide run` with a cap.
fn run(options: &[&str], command: &[&str]) -> Command {
    let mut pagetide = pagetide();
    pagetide.args(["run", "--memory", "64M", "--no-disk"]).args(options).arg("--").args(command);
    pagetide
}

fn output(options: &[&str], command: &[&str]) -> Output {
    run(options, command).output().unwrap()
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

/// A directory that goes with the test.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn file(&self, name: &str) -> String {
        self.0.join(name).to_str().unwrap().to_owned()
    }

    fn program(&self, name: &str, bytes: &[u8]) -> String {
        let path = self.file(name);
        fs::write(&path, bytes).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        path
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Waits for what must happen soon.
fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < Duration::from_secs(20), "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// The state letter of a process.
fn state(pid: u32) -> char {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next()).unwrap_or('-')
}

fn kill(signal: &str, pid: u32) {
    assert!(Command::new("kill").args([signal, &pid.to_string()]).status().unwrap().success());
}

/// A run whose CMD says something first, and that line.
fn started(mut command: Command) -> (Child, BufReader<std::process::ChildStdout>, String) {
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut reader = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    reader.read_line(&mut line).unwrap();
    (child, reader, line.trim_end().to_owned())
}

#[test]
fn the_exit_status_is_that_of_the_command() {
    for (script, status) in [("exit 0", 0), ("exit 3", 3), ("kill -KILL $$", 137), ("kill -TERM $$", 143)] {
        assert_eq!(output(&["-q"], &["sh", "-c", script]).status.code(), Some(status), "{script}");
    }
}

#[test]
fn a_command_that_cannot_run_has_a_status_of_its_own() {
    let scratch = Scratch::new("commands");
    let status = |command: &str| output(&["-q"], &[command]).status.code();
    assert_eq!(status("no-such-command"), Some(127));
    assert_eq!(status("/no/such/command"), Some(127));
    assert_eq!(status("/etc/passwd"), Some(126));
    assert_eq!(status("/"), Some(126));
    assert_eq!(status(&scratch.program("interpreter", b"#!/no/such/interpreter\n")), Some(127));
    assert_eq!(status(&scratch.program("bare", b"exit 5\n")), Some(5), "a script without #! is the shell's");
    assert_eq!(status(&scratch.program("env", b"#!/usr/bin/env sh\nexit 6\n")), Some(6));
}

#[test]
fn a_limit_on_files_that_is_too_small_is_named() {
    let mut command = Command::new("sh");
    command.args(["-c", "ulimit -f 100 && exec \"$0\" run --no-disk -m 64M -- true", PAGETIDE]);
    let output = command.output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.code() == Some(125) && said.contains("ulimit -f"), "{said}");
}

#[test]
fn a_program_that_no_library_reaches_is_refused() {
    let scratch = Scratch::new("static");
    let mut elf = vec![0; 64 + 56];
    elf[..7].copy_from_slice(b"\x7fELF\x02\x01\x01");
    elf[18] = if cfg!(target_arch = "x86_64") { 62 } else { 183 };
    (elf[32], elf[54], elf[56], elf[64]) = (64, 56, 1, 1);
    let program = scratch.program("static", &elf);
    let script = scratch.program("script", format!("#!{program} -x\n").as_bytes());
    for command in [&program, &script] {
        let output = output(&[], &[command]);
        assert_eq!(output.status.code(), Some(125));
        assert!(text(&output.stderr).contains("statically linked"), "{}", text(&output.stderr));
    }
    elf[4] = 1;
    let output = output(&[], &[&scratch.program("small", &elf)]);
    assert_eq!(output.status.code(), Some(125));
    assert!(text(&output.stderr).contains("32 bits"), "{}", text(&output.stderr));
}

#[test]
fn wrong_usage_is_an_error_of_ours() {
    for (arguments, word) in [
        (&["run", "--memory", "12X", "--", "true"][..], "--memory"),
        (&["run", "--memory", "1M", "--", "true"], "--memory"),
        (&["run", "--bogus", "--", "true"], "--bogus"),
        (&["run", "--max-pool-percent", "95", "--", "true"], "--max-pool-percent"),
        (&["run", "--no-disk", "--swap-size", "1G", "--", "true"], "--swap-size"),
        (&["run", "--max-stall", "soon", "--", "true"], "--max-stall"),
        (&["run", "--swap-dir", "/no/such", "--", "true"], "--swap-dir"),
        (&["run", "--no-disk", "--stats", "/no/such/file", "--", "true"], "--stats"),
        (&["run", "--stats-interval", "2s", "--", "true"], "--stats"),
        (&["run", "--stats", "-", "--stats-interval", "5ms", "--", "true"], "--stats-interval"),
        (&["run", "-m", "64M"], "CMD"),
        (&["frobnicate"], "frobnicate"),
        (&[], "Usage"),
    ] {
        let output = pagetide().args(arguments).output().unwrap();
        assert_eq!(output.status.code(), Some(125), "{arguments:?}");
        assert!(text(&output.stderr).contains(word), "{arguments:?}: {}", text(&output.stderr));
    }
    for arguments in [&["--help"][..], &["--version"], &["run", "--help"], &["stat", "--help"]] {
        assert_eq!(pagetide().args(arguments).output().unwrap().status.code(), Some(0), "{arguments:?}");
    }
}

#[test]
fn environment_that_is_wrong_is_named() {
    let with = |name: &str, value: &str| run(&[], &["true"]).env(name, value).output().unwrap();
    let wrong = [
        ("PAGETIDE_MASK", "frobs"),
        ("PAGETIDE_PRELOAD", "/no/such.so"),
        ("PAGETIDE_PRELOAD", "/lib/x86_64-linux-gnu/libc.so.6"),
        ("PAGETIDE_PRELOAD", "/etc/passwd"),
        ("PAGETIDE_FAIL", "pool"),
    ];
    for (name, value) in wrong {
        let output = with(name, value);
        assert_eq!(output.status.code(), Some(125));
        assert!(text(&output.stderr).contains(name), "{}", text(&output.stderr));
    }
    assert_eq!(with("PAGETIDE_MASK", "remap,move").status.code(), Some(0));
}

#[test]
fn a_swap_file_is_found_a_place_or_done_without() {
    let mut command = pagetide();
    command.args(["run", "-m", "64M", "-v", "--", "true"]).env("TMPDIR", "/no/such");
    let output = command.output().unwrap();
    assert_eq!(output.status.code(), Some(0));
    assert!(text(&output.stderr).contains("swap file"), "{}", text(&output.stderr));
}

#[test]
fn streams_pass_through_and_a_run_that_fits_is_told_so_in_one_line() {
    let mut command = run(&[], &["sh", "-c", "cat; echo oops >&2"]);
    let mut child =
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(b"through").unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(text(&output.stdout), "through");
    // On a machine that is very busy the launcher comes late, and says so.
    let is_late = |line: &&str| line.contains("were looked for");
    let lines: Vec<_> = text(&output.stderr).lines().filter(|line| !is_late(line)).collect();
    assert_eq!(lines[0], "oops");
    assert!(lines.len() == 2 && lines[1].starts_with("pagetide: fitted: "), "{lines:?}");
}

#[test]
fn quiet_is_quiet_and_a_default_cap_is_told() {
    assert_eq!(text(&output(&["-q"], &["true"]).stderr), "");
    let output = pagetide().args(["run", "--no-disk", "true"]).output().unwrap();
    assert!(text(&output.stderr).contains("80 %"), "{}", text(&output.stderr));
}

#[test]
fn the_command_is_told_of_its_run() {
    let mut command = run(&["-q"], &["sh", "-c", "echo $PPID $PAGETIDE_GROUP; echo $LD_PRELOAD; echo $0"]);
    let output = command.env("LD_PRELOAD", "").output().unwrap();
    let lines: Vec<_> = text(&output.stdout).lines().collect();
    let (launcher, group) = lines[0].split_once(' ').unwrap();
    assert!(group.starts_with(&format!("/proc/{launcher}/fd/")), "{group}");
    assert!(lines[1].ends_with(".so"), "{}", lines[1]);
    assert_eq!(lines[2], "sh");
}

#[test]
fn the_command_inherits_signals_as_they_were() {
    // But for the two signals that the C library keeps to itself, and resets in a program with threads.
    let masks = |output: Output| {
        let lines: Vec<_> =
            text(&output.stdout).lines().map(|line| line.split_once(":\t").unwrap()).collect();
        let mask = |mask: &str| u64::from_str_radix(mask, 16).unwrap() & !(0b11 << 31);
        lines.iter().map(|(name, bits)| ((*name).to_owned(), mask(bits))).collect::<Vec<_>>()
    };
    let look = "grep -E '^Sig(Blk|Ign)' /proc/self/status";
    let direct = masks(Command::new("sh").args(["-c", look]).output().unwrap());
    assert_eq!(direct.len(), 2);
    assert_eq!(masks(output(&["-q"], &["sh", "-c", look])), direct);
    let ignoring = "trap '' PIPE HUP; exec \"$@\"";
    let prefix = [PAGETIDE, "run", "-q", "-m", "64M", "--no-disk", "--"];
    let mut command = Command::new("sh");
    command.args(["-c", ignoring, "sh"]).args(prefix).args(["grep", "^SigIgn", "/proc/self/status"]);
    let output = command.output().unwrap();
    let mask = u64::from_str_radix(text(&output.stdout).split_whitespace().nth(1).unwrap(), 16).unwrap();
    let ignored = |signal: i32| mask & (1 << (signal - 1)) != 0;
    assert!(ignored(libc::SIGPIPE) && ignored(libc::SIGHUP), "{mask:x}");
}

#[test]
fn a_signal_to_the_launcher_reaches_the_command() {
    for (name, signal) in [("TERM", "-TERM"), ("INT", "-INT"), ("HUP", "-HUP"), ("USR1", "-USR1")] {
        let script = format!("trap 'echo got; exit 7' {name}; echo ready; while :; do sleep 0.05; done");
        // The test itself may run with some ignored (`nohup`), which the shell could not trap then.
        let command = ["env", "--default-signal", "bash", "-c", &script];
        let (mut child, mut rest, line) = started(run(&["-q"], &command));
        assert_eq!(line, "ready");
        kill(signal, child.id());
        assert_eq!(child.wait().unwrap().code(), Some(7), "{name}");
        let mut said = String::new();
        rest.read_to_string(&mut said).unwrap();
        assert_eq!(said, "got\n", "{name}: once");
    }
}

#[test]
fn a_signal_that_the_command_sends_to_its_group_is_not_doubled() {
    let script = "trap 'echo got' USR1; kill -USR1 0; sleep 0.3; exit 4";
    let mut command = run(&["-q"], &["bash", "-c", script]);
    // A group of its own: the test must not be hit.
    std::os::unix::process::CommandExt::process_group(&mut command, 0);
    let output = command.output().unwrap();
    assert_eq!((text(&output.stdout), output.status.code()), ("got\n", Some(4)));
}

#[test]
fn the_launcher_stops_and_continues_with_the_command() {
    let (mut child, _rest, line) = started(run(&["-q"], &["sh", "-c", "echo $$; kill -STOP $$; exit 9"]));
    let command: u32 = line.parse().unwrap();
    eventually("both stop", || state(command) == 'T' && state(child.id()) == 'T');
    kill("-CONT", child.id());
    assert_eq!(child.wait().unwrap().code(), Some(9));
}

#[test]
fn the_launcher_goes_on_when_only_the_command_is_continued() {
    let (mut child, _rest, line) = started(run(&["-q"], &["sh", "-c", "echo $$; read line; exit 9"]));
    let command: u32 = line.parse().unwrap();
    // At once after it went on, too: that is a stop of its own.
    for _ in 0..10 {
        kill("-STOP", command);
        eventually("both stop", || state(command) == 'T' && state(child.id()) == 'T');
        kill("-CONT", command);
        eventually("both go on", || state(command) != 'T' && state(child.id()) != 'T');
    }
    drop(child.stdin.take());
    assert_eq!(child.wait().unwrap().code(), Some(9));
}

#[test]
fn orphans_are_reaped() {
    let script = "orphan=$(sh -c 'sleep 0.3 >/dev/null & echo $!'); \
                  sed 's/.*) . \\([0-9]*\\) .*/\\1/' /proc/$orphan/stat; echo $PPID; \
                  sleep 1; test -e /proc/$orphan && echo still there";
    let output = output(&["-q"], &["sh", "-c", script]);
    let lines: Vec<_> = text(&output.stdout).lines().collect();
    assert_eq!(lines.len(), 2, "{lines:?}");
    assert_eq!(lines[0], lines[1], "the launcher adopts it");
}

#[test]
fn a_killed_launcher_takes_the_command_along() {
    let (mut child, _rest, line) = started(run(&["-q"], &["sh", "-c", "echo $$; exec sleep 100"]));
    child.kill().unwrap();
    assert_eq!(child.wait().unwrap().signal(), Some(libc::SIGKILL));
    eventually("CMD dies", || matches!(state(line.parse().unwrap()), '-' | 'Z' | 'X'));
}

#[test]
fn statistics_outlive_a_killed_command() {
    let scratch = Scratch::new("stats");
    let file = scratch.file("stats.json");
    let (mut child, _rest, line) =
        started(run(&["-q", "--stats", &file], &["sh", "-c", "echo $$; sleep 1.5; kill -KILL $$"]));
    assert!(line.parse::<u32>().is_ok());
    let read = || serde_json::from_str::<serde_json::Value>(&fs::read_to_string(&file).unwrap()).unwrap();
    let during = read();
    assert_eq!((&during["running"], &during["exit_status"]), (&true.into(), &serde_json::Value::Null));
    assert_eq!(during["cap_bytes"], 64 << 20);
    assert_eq!(child.wait().unwrap().code(), Some(137));
    let after = read();
    assert_eq!((&after["running"], &after["exit_status"]), (&false.into(), &137.into()));
    assert_eq!(after["pid"], child.id());
    assert_eq!(after["command"][0], "sh");
    assert!(after["counters"]["pswpin"].is_u64() && after["fault_latency_us"]["p99_9"].is_number());
    assert!(after["bytes"]["peak"]["total"].as_u64().unwrap() > 0);
    // The launcher and the group page are all that is left.
    assert_eq!((&after["processes"], &after["bytes"]["now"]["resident"]), (&0.into(), &0.into()));
    assert!(after["bytes"]["now"]["total"].as_u64().unwrap() < 4 << 20, "{after}");
    assert_eq!(fs::read_dir(&scratch.0).unwrap().count(), 1, "no temporary file is left");
}

#[test]
fn statistics_are_kept_as_lines_and_written_for_prometheus() {
    let scratch = Scratch::new("series");
    let (lines, prom) = (scratch.file("stats.jsonl"), scratch.file("stats.prom"));
    fs::write(&lines, "of an earlier run\n").unwrap();
    for file in [&lines, &prom] {
        let options = ["-q", "--stats", file, "--stats-interval", "50ms"];
        assert!(output(&options, &["sleep", "0.4"]).status.success());
    }
    let text = fs::read_to_string(&lines).unwrap();
    let reports: Vec<serde_json::Value> =
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert!(reports.len() >= 3, "{text}");
    assert_eq!(reports.iter().filter(|report| report["running"] == false).count(), 1);
    assert_eq!(reports.last().unwrap()["exit_status"], 0);
    assert!(reports.is_sorted_by_key(|report| report["elapsed_s"].as_f64().unwrap()));
    let text = fs::read_to_string(&prom).unwrap();
    assert!(text.contains("\npagetide_up{run=\"") && text.contains("command=\"sleep\"} 0\n"), "{text}");
    assert_eq!(fs::read_dir(&scratch.0).unwrap().count(), 2, "no temporary file is left");
}

/// The group page of a run.
fn group(launcher: u32) -> Group {
    let fds = fs::read_dir(format!("/proc/{launcher}/fd")).unwrap().flatten().map(|entry| entry.path());
    let page =
        fds.into_iter().find(|fd| fs::read_link(fd).unwrap().to_str().unwrap().contains("pagetide-group"));
    Group::open(&page.unwrap()).unwrap()
}

/// Takes a slot for CMD of a run, as an engine would.
fn claim(launcher: u32, command: u32) -> ProcessSlot {
    let group = group(launcher);
    let start_time = pagetide_sys::procfs::start_time(command).unwrap();
    group.claim(Identity { pid: command, start_time, ..Identity::own() }).unwrap()
}

#[test]
fn peaks_outlive_the_process() {
    let scratch = Scratch::new("peaks");
    let file = scratch.file("stats.json");
    let (mut child, _rest, line) = started(run(&["--stats", &file], &["sh", "-c", "echo $$; read line"]));
    let slot = claim(child.id(), line.parse().unwrap());
    slot.set(Field::Armed, 1);
    slot.set(Field::Swapped, 1 << 20);
    slot.set(Field::StoredPages, 400);
    slot.set(Field::StoredBytes, 100 * 4096);
    slot.counters().add(pagetide_swap::Counter::pgsteal, 1 << 20);
    // The launcher cannot see it but in its last sample.
    kill("-STOP", child.id());
    kill("-KILL", line.parse().unwrap());
    kill("-CONT", child.id());
    assert_eq!(child.wait().unwrap().code(), Some(137));
    let report: serde_json::Value = serde_json::from_str(&fs::read_to_string(&file).unwrap()).unwrap();
    assert_eq!(report["bytes"]["peak"]["swapped"], 1u64 << 32);
    assert_eq!((&report["bytes"]["now"]["swapped"], &report["processes"]), (&0.into(), &0.into()));
    assert_eq!(
        (&report["counters"]["pgsteal"], &report["compression_ratio"]),
        (&(1 << 20).into(), &4.0.into())
    );
}

#[test]
fn a_process_without_an_engine_rests_when_it_wants_more_memory() {
    let scratch = Scratch::new("rests");
    let file = scratch.file("stats.json");
    let script = "import sys; held = []; print('begun', flush=True)\n\
                  for line in sys.stdin: held.append(bytearray(8 << 20)); print('has more', flush=True)";
    let (mut child, mut lines, _) = started(run(&["-q", "--stats", &file], &["python3", "-c", script]));
    let mut more = child.stdin.take().unwrap();
    let mut next = || {
        let mut line = String::new();
        lines.read_line(&mut line).unwrap();
        assert_eq!(line, "has more\n");
    };
    let largest = |slots: Vec<ProcessSlot>| slots.into_iter().max_by_key(ProcessSlot::granted).unwrap();
    let slot = largest(group(child.id()).live().collect());
    let (before, pid) = (slot.get(Field::Grant), slot.known_as());
    slot.set_resting(true);
    more.write_all(b"1\n").unwrap();
    let call = || fs::read_to_string(format!("/proc/{pid}/syscall")).unwrap();
    let futex = format!("{} ", libc::SYS_futex);
    eventually("it waits for its bell", || call().starts_with(&futex));
    assert_eq!((slot.get(Field::Grant), slot.get(Field::Armed)), (before, 0));
    slot.set_resting(false);
    next();
    assert!(slot.get(Field::Grant) >= before + 2048, "{} after {before}", slot.get(Field::Grant));
    // A launcher that is stopped gives no order anew: the process ends its rest itself.
    slot.set_resting(true);
    more.write_all(b"2\n").unwrap();
    next();
    assert!(!slot.is_resting());
    drop(more);
    assert!(child.wait().unwrap().success());
    let report: serde_json::Value = serde_json::from_str(&fs::read_to_string(&file).unwrap()).unwrap();
    assert!(report["rested_s"].as_f64().unwrap() >= 4.0, "{report}");
}

#[test]
fn a_process_of_several_threads_does_not_rest_before_its_engine_runs() {
    let script = "import sys, threading, time; held = []\n\
                  threading.Thread(target=time.sleep, args=(3600,), daemon=True).start(); print('begun', flush=True)\n\
                  for line in sys.stdin: held.append(bytearray(8 << 20)); print('has more', flush=True)";
    let (mut child, mut lines, _) = started(run(&["-q"], &["python3", "-c", script]));
    let slots: Vec<_> = group(child.id()).live().collect();
    slots.iter().for_each(|slot| slot.set_resting(true));
    let mut more = child.stdin.take().unwrap();
    more.write_all(b"1\n").unwrap();
    let mut line = String::new();
    lines.read_line(&mut line).unwrap();
    // A rest would end with the order for it, after four seconds.
    assert_eq!((line.as_str(), slots.iter().all(ProcessSlot::is_resting)), ("has more\n", true));
    drop(more);
    assert!(child.wait().unwrap().success());
}

#[test]
fn a_run_that_only_stalls_is_ended() {
    let script = "trap '' TERM; echo $$; while :; do sleep 0.1; done";
    let mut command = run(&["-q", "--max-stall", "500ms"], &["sh", "-c", script]);
    command.stderr(Stdio::piped());
    let (child, _rest, line) = started(command);
    let command: u32 = line.parse().unwrap();
    claim(child.id(), command).set(Field::Stalled, 1);
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(125));
    assert!(text(&output.stderr).contains("--max-stall"), "{}", text(&output.stderr));
    // Whoever adopts it may take its time to reap it.
    assert!(matches!(state(command), '-' | 'Z' | 'X'), "{}", state(command));
}

#[test]
fn statistics_are_written_as_often_as_is_said() {
    let scratch = Scratch::new("stats-interval");
    let file = scratch.file("stats.json");
    let elapsed = || {
        let report: serde_json::Value = serde_json::from_str(&fs::read_to_string(&file).unwrap()).unwrap();
        report["elapsed_s"].as_f64().unwrap()
    };
    // By the default no two reports are so near to each other.
    let often = ["-q", "--stats", &file, "--stats-interval", "20ms"];
    let (mut child, _rest, _) = started(run(&often, &["sh", "-c", "echo $$; read line"]));
    let mut last = elapsed();
    eventually("two reports follow each other within 0.9 s", || {
        let before = std::mem::replace(&mut last, elapsed());
        last > before && last - before < 0.9
    });
    drop(child.stdin.take());
    child.wait().unwrap();
    // And by the default there would be one by the time at which CMD says something.
    let seldom = ["-q", "--stats", &file, "--stats-interval", "18000000000000000000"];
    let (mut child, _rest, _) = started(run(&seldom, &["sh", "-c", "sleep 1.5; echo $$; read line"]));
    assert!(elapsed() < 1.0, "the report of the start is the only one");
    drop(child.stdin.take());
    child.wait().unwrap();
    assert!(elapsed() > 1.0, "and the last one comes all the same");
}

#[test]
fn statistics_to_a_pipe_are_written_once() {
    let output = output(&["-q", "--stats", "/dev/stdout"], &["true"]);
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["exit_status"], 0);
    assert!(!fs::symlink_metadata("/dev/stdout").unwrap().is_file());
}

#[test]
fn stat_shows_a_run_that_goes_on() {
    let (mut child, _rest, _) = started(run(&["-q"], &["sh", "-c", "echo $$; read line"]));
    let stat = |arguments: &[&str]| {
        let output = pagetide().arg("stat").args(arguments).output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    let pid = child.id().to_string();
    let table = stat(&[&pid]);
    assert!(table.contains(&format!("run {pid}: sh -c echo")) && table.contains("cap 64 MiB"), "{table}");
    let report: serde_json::Value = serde_json::from_str(&stat(&[&pid, "--json"])).unwrap();
    assert_eq!((&report["running"], &report["command"][0]), (&true.into(), &"sh".into()));
    drop(child.stdin.take());
    child.wait().unwrap();
    let output = pagetide().args(["stat", &pid]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
}

/// Runs a command as somebody without rights, with the program where anybody may read it.
fn as_nobody(directory: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(directory.join("pagetide"));
    command.args(arguments).current_dir("/").uid(65534).gid(65534).output().unwrap()
}

#[test]
fn the_doctor_knows_whether_a_run_would_work() {
    let here = ["run", "-q", "-m", "64M", "--no-disk", "--", "true"];
    let run = pagetide().args(here).output().unwrap();
    let doctor = pagetide().args(["doctor", "--json"]).output().unwrap();
    assert_eq!(run.status.success(), doctor.status.success(), "{}", text(&doctor.stdout));
    let said: serde_json::Value = serde_json::from_slice(&doctor.stdout).unwrap();
    assert_eq!(said["works"], doctor.status.success());
    assert!(said["findings"].as_array().unwrap().iter().any(|finding| finding["name"] == "UFFDIO_MOVE"));

    // Needs root, to be somebody else.
    let directory = PathBuf::from(format!("/var/tmp/pagetide-test-{}", std::process::id()));
    let scratch = Scratch(directory.clone());
    fs::create_dir_all(&directory).unwrap();
    fs::set_permissions(&directory, fs::Permissions::from_mode(0o755)).unwrap();
    for name in ["pagetide", "libpagetide_preload.so"] {
        fs::copy(Path::new(PAGETIDE).with_file_name(name), directory.join(name)).unwrap();
    }
    let run = as_nobody(&directory, &here);
    let doctor = as_nobody(&directory, &["doctor"]);
    assert_eq!(
        run.status.success(),
        doctor.status.success(),
        "{}{}",
        text(&run.stderr),
        text(&doctor.stdout)
    );
    if !doctor.status.success() {
        assert_eq!(doctor.status.code(), Some(1));
        // On a machine setup would help, in a container the device.
        let said = text(&doctor.stdout);
        assert!(
            said.contains(" setup --user nobody") || said.contains("--device /dev/userfaultfd"),
            "{said}"
        );
    }
    drop(scratch);
}
