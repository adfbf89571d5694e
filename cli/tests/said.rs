//! What `pagetide` says, and to whom: pipes that close, files that cannot be written, machines that do not answer.

use std::fs;
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

const PAGETIDE: &str = env!("CARGO_BIN_EXE_pagetide");

/// `pagetide run` without a swap file.
fn run(options: &[&str], command: &[&str]) -> Command {
    let mut pagetide = Command::new(PAGETIDE);
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

/// Runs a command whose standard output nobody reads any more.
fn unread(arguments: &[&str]) -> Output {
    let mut command = Command::new(PAGETIDE);
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    command.args(arguments).stdout(writer).stderr(Stdio::piped()).spawn().unwrap().wait_with_output().unwrap()
}

#[test]
fn a_reader_that_has_seen_enough_is_no_error() {
    let scratch = Scratch::new("unread");
    let trace = scratch.file("trace");
    let pages: String = (0..600).map(|page| format!("{page}\n")).collect();
    fs::write(&trace, pages).unwrap();
    let doctor = Command::new(PAGETIDE).arg("doctor").output().unwrap().status.code();
    for (arguments, status) in [
        (&["--help"][..], Some(0)),
        (&["run", "--help"], Some(0)),
        (&["--version"], Some(0)),
        (&["doctor"], doctor),
        (&["doctor", "--json"], doctor),
        (&["replay", &trace, "-m", "100%"], Some(0)),
        (&["replay", &trace, "-m", "100%", "--json"], Some(0)),
        (&["run", "-q", "-m", "64M", "--no-disk", "--stats", "-", "--", "sh", "-c", "exit 4"], Some(4)),
    ] {
        let output = unread(arguments);
        assert_eq!((output.status.code(), text(&output.stderr)), (status, ""), "{arguments:?}");
    }

    let mut child = run(&["-q"], &["sh", "-c", "echo $$; read line"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdout.take().unwrap().read_exact(&mut [0]).unwrap();
    let pid = child.id().to_string();
    for arguments in [&["stat", &pid][..], &["stat", &pid, "--watch", "1"], &["set", "--pid", &pid]] {
        let output = unread(arguments);
        assert_eq!((output.status.code(), text(&output.stderr)), (Some(0), ""), "{arguments:?}");
    }
    drop(child.stdin.take());
    child.wait().unwrap();
}

#[test]
fn a_full_disk_under_standard_output_is_an_error() {
    for arguments in [&["--help"][..], &["doctor"]] {
        let full = fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
        let output = Command::new(PAGETIDE)
            .args(arguments)
            .stdout(full)
            .stderr(Stdio::piped())
            .spawn()
            .unwrap()
            .wait_with_output()
            .unwrap();
        assert_eq!(output.status.code(), Some(125), "{arguments:?}: {}", text(&output.stderr));
    }
}

#[test]
fn statistics_to_a_dash_go_to_standard_output_at_the_end() {
    let scratch = Scratch::new("dash");
    let mut command = run(&["-q", "--stats", "-"], &["sh", "-c", "echo first"]);
    let output = command.current_dir(&scratch.0).output().unwrap();
    let report = text(&output.stdout).strip_prefix("first\n").unwrap();
    assert_eq!(serde_json::from_str::<serde_json::Value>(report).unwrap()["exit_status"], 0);
    assert_eq!(fs::read_dir(&scratch.0).unwrap().count(), 0, "a file named -");
}

#[test]
fn statistics_that_cannot_be_written_are_said_however_quiet() {
    let scratch = Scratch::new("unwritable");
    let said = |file: &str| {
        let output = output(&["-q", "--stats", file], &["true"]);
        (output.status.code(), text(&output.stderr).to_owned())
    };
    for file in [scratch.0.to_str().unwrap(), "/", ".."] {
        let (status, said) = said(file);
        assert!(status == Some(125) && said.contains("--stats") && said.contains("directory"), "{said}");
    }
    let (status, said) = said("/dev/full");
    assert!(status == Some(0) && said.contains("--stats: cannot write /dev/full"), "{said}");

    // A directory that goes while the run does.
    let (directory, file) = (scratch.file("gone"), scratch.file("gone/stats"));
    fs::create_dir(&directory).unwrap();
    let output = output(&["-q", "--stats", &file], &["rm", "-r", &directory]);
    assert_eq!(output.status.code(), Some(0));
    assert!(text(&output.stderr).contains("--stats: cannot write"), "{}", text(&output.stderr));
}

#[test]
fn an_interpreter_that_is_missing_is_named() {
    let scratch = Scratch::new("interpreters");
    let missing = scratch.file("no-such-interpreter");
    let script = scratch.program("script", format!("#! {missing} -x\n").as_bytes());
    let through = scratch.program("through", format!("#!{script}\n").as_bytes());
    let windows = scratch.program("windows", b"#!/bin/sh\r\nexit 0\r\n");
    // A program that names another dynamic loader, which is as long.
    let loader = b"/lib64/ld-linux-x86-64.so.2";
    let mut elf = fs::read("/bin/true").unwrap();
    let at = elf.windows(loader.len()).position(|bytes| bytes == loader).unwrap();
    elf[at..at + loader.len()].copy_from_slice(b"/lib64/no-such-loader.x.so.");
    let program = scratch.program("program", &elf);
    for (command, named) in [
        (&script, &*missing),
        (&through, &missing),
        (&windows, r#""/bin/sh\r" does not exist (its first line ends as on Windows"#),
        (&program, r#"its dynamic loader "/lib64/no-such-loader.x.so." does not exist"#),
    ] {
        let output = output(&[], &[command]);
        assert_eq!(output.status.code(), Some(127), "{}", text(&output.stderr));
        assert!(text(&output.stderr).contains(named), "{}", text(&output.stderr));
    }
}

/// Needs root, to be without `/proc`.
#[test]
fn without_proc_the_doctor_says_what_it_cannot_tell() {
    let script = format!(
        "mount --make-rprivate / && while umount -l /proc 2>/dev/null; do :; done; exec {PAGETIDE} doctor"
    );
    let output = Command::new("unshare").args(["-m", "sh", "-c", &script]).output().unwrap();
    let said = text(&output.stdout);
    assert_eq!(output.status.code(), Some(1), "{said}{}", text(&output.stderr));
    let line = |name: &str| said.lines().find(|line| line.contains(name)).unwrap_or_default();
    assert!(line("/proc").starts_with("FATAL"), "{said}");
    for name in ["userfaultfd: system call", "PAGEMAP_SCAN", "memory  "] {
        assert!(line(name).contains("cannot tell"), "{name}: {said}");
    }
    assert!(line("PAGEMAP_SCAN").starts_with("unknown") && line("memory  ").starts_with("unknown"), "{said}");
}

/// A shell script in a session of its own, whose `$0` is `pagetide`.
fn in_a_session(script: &str) -> Output {
    Command::new("setsid").args(["--wait", "sh", "-c", script, PAGETIDE]).output().unwrap()
}

#[test]
fn what_changes_a_run_names_it_and_takes_only_one_that_was_started_here() {
    let started = "$0 run -q -m 64M --swap-size 1M -- sleep 100 & run=$!; \
                   until $0 set enabled=off >/dev/null 2>&1; do sleep 0.05; done; ";
    let script = format!(
        "{started} echo $run; $0 set enabled=on; $0 set; $0 swapoff; $0 swapon; $0 swapon; \
         setsid --wait $0 swapoff; echo $?; setsid --wait $0 set shrinker=none; echo $?; \
         setsid --wait $0 swapoff $run; kill $run; wait"
    );
    let output = in_a_session(&script);
    let mut said = text(&output.stdout).lines();
    let pid = said.next().unwrap();
    let name = format!("run {pid} (sleep 100)");
    let mut next = || said.next().unwrap_or_default();
    assert_eq!(next(), format!("{name}: enabled=on"));
    let shown: Vec<_> = (0..10).map(|_| next()).collect();
    assert_eq!(shown[..3], [&*format!("# {name}"), "memory=64M", "enabled=on"]);
    assert_eq!(next(), format!("{name}: 0 KiB came back; the swap file is out of use"));
    assert_eq!(next(), format!("{name}: the swap file is in use again"));
    assert_eq!(next(), format!("{name}: the swap file is in use, as it was"));
    // From another session nothing happens to it, unless it is named.
    assert_eq!([next(), next()], ["1"; 2]);
    assert_eq!(next(), format!("{name}: 0 KiB came back; the swap file is out of use"));
    let errors = text(&output.stderr);
    assert_eq!(errors.matches("no run was started from here").count(), 2, "{errors}");
    assert!(errors.contains(&format!("\n  {pid}    sleep 100")), "{errors}");
}

#[test]
fn a_library_is_pagetides_own_and_of_the_same_version() {
    let scratch = Scratch::new("library");
    let library = Path::new(PAGETIDE).with_file_name("libpagetide_preload.so");
    let with = |library: &Path| {
        let output = run(&["-q"], &["true"]).env("PAGETIDE_PRELOAD", library).output().unwrap();
        (output.status.code(), text(&output.stderr).to_owned())
    };
    assert_eq!(with(&library), (Some(0), String::new()));
    let mut bytes = fs::read(&library).unwrap();
    let note = pagetide::note::description();
    let at = bytes.windows(note.len()).position(|found| found == note).unwrap();
    for (offset, says) in [(0, "another build of version"), (4, "of version 9.")] {
        let before = std::mem::replace(&mut bytes[at + offset], if offset == 0 { 0xff } else { b'9' });
        let other = scratch.file("other.so");
        fs::write(&other, &bytes).unwrap();
        let (status, said) = with(Path::new(&other));
        assert!(status == Some(125) && said.contains("PAGETIDE_PRELOAD") && said.contains(says), "{said}");
        bytes[at + offset] = before;
    }
    // One that loads, and is another's.
    let (status, said) = with(Path::new("/lib/x86_64-linux-gnu/libm.so.6"));
    assert!(
        status == Some(125)
            && said.contains("PAGETIDE_PRELOAD")
            && said.contains("is not Pagetide's library")
    );
}

/// The last lines of a run, without our name.
fn last_lines(output: &Output) -> Vec<String> {
    let lines = text(&output.stderr).lines().filter_map(|line| line.strip_prefix("pagetide: "));
    lines.map(ToOwned::to_owned).collect()
}

/// A script of tests/jobs.
fn job(name: &str) -> String {
    format!("{}/../tests/jobs/{name}", env!("CARGO_MANIFEST_DIR"))
}

/// Holds that many MiB that are not managed, for a while: the library is not in it.
fn unmanaged(mib: u32, seconds: f64) -> String {
    format!("exec env -u LD_PRELOAD PAGETIDE_KEEP=0 python3 {} {mib} {seconds}", job("unmanaged.py"))
}

#[test]
fn a_run_that_passed_its_cap_has_not_fitted_and_is_told_who_did_it() {
    let command = format!("({})", unmanaged(160, 3.0));
    let output = output(&["-q"], &["sh", "-c", &command]);
    assert_eq!(output.status.code(), Some(0));
    let lines = last_lines(&output);
    // That it runs without Pagetide is said at once.
    let at = lines.iter().position(|line| line.starts_with("warning: the cap of 64 MiB did not hold: "));
    let why = &lines[at.unwrap_or_else(|| panic!("{lines:?}")) + 1];
    assert!(why.contains("cannot be swapped") && why.contains(" in python3 (pid "), "{lines:?}");
    assert!(!text(&output.stderr).contains("fitted"), "{lines:?}");
}

#[test]
fn strict_ends_a_run_that_stays_above_its_cap_and_no_other() {
    let command = format!("({})", unmanaged(160, 600.0));
    let ended = output(&["-q", "--strict"], &["sh", "-c", &command]);
    assert_eq!(ended.status.code(), Some(137), "{}", text(&ended.stderr));
    let said = text(&ended.stderr);
    assert!(said.contains("(--strict): ending it; python3 (pid "), "{said}");
    assert!(said.contains("warning: killed by --strict"), "{said}");

    // 40 MiB that four processes share since a fork are 160 to who adds them up.
    let command = format!("env -u LD_PRELOAD PAGETIDE_KEEP=0 python3 {}", job("shared_by_four.py"));
    let ended = output(&["-q", "--strict"], &["sh", "-c", &command]);
    assert_eq!(ended.status.code(), Some(0), "{}", text(&ended.stderr));
}

/// A cgroup that goes with the test. Needs root and the memory controller of version 1.
struct Cgroup(PathBuf);

impl Cgroup {
    fn new(name: &str, limit: u64) -> Self {
        let path = PathBuf::from(format!("/sys/fs/cgroup/memory/pagetide-{name}-{}", std::process::id()));
        fs::create_dir(&path).unwrap();
        fs::write(path.join("memory.limit_in_bytes"), limit.to_string()).unwrap();
        Self(path)
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        for _ in 0..1000 {
            if fs::remove_dir(&self.0).is_ok() {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
    }
}

#[test]
fn a_run_that_the_kernel_killed_is_told_so_and_what_to_change() {
    let cgroup = Cgroup::new("oom", 100 << 20);
    let procs = cgroup.0.join("cgroup.procs");
    // The whole run, or CMD alone after it has started.
    let inside = format!("echo $$ > {}; sleep 1; {}", procs.display(), unmanaged(160, 0.0));
    let whole = format!("echo $$ > {}; exec $0 run -q -m 80M --no-disk -- sh -c \"$1\"", procs.display());
    let from_within =
        Command::new("sh").args(["-c", &whole, PAGETIDE, &unmanaged(160, 0.0)]).output().unwrap();
    let moved = run(&["-q"], &["sh", "-c", &inside]).output().unwrap();
    for output in [from_within, moved] {
        assert_eq!(output.status.code(), Some(137), "{}", text(&output.stderr));
        let lines = last_lines(&output);
        let last = lines.last().unwrap();
        assert!(
            last.contains("killed by the kernel's OOM killer (its cgroup may have 100 MiB)"),
            "{lines:?}"
        );
        assert!(last.contains("--memory") && !text(&output.stderr).contains("fitted"), "{lines:?}");
    }
}

#[test]
fn a_run_that_somebody_killed_is_not_said_to_have_fitted() {
    let lines = last_lines(&output(&[], &["sh", "-c", "kill -KILL $$"]));
    assert!(lines[0].contains("at most, as far as was seen"), "{lines:?}");
    assert!(lines.last().unwrap().starts_with("warning: killed by SIGKILL"), "{lines:?}");
    let lines = last_lines(&output(&[], &["true"]));
    assert!(lines.len() == 1 && lines[0].starts_with("fitted: "), "{lines:?}");
}
