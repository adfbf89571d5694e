//! What a run is charged for, and what it says of that: shared memory, and programs that Pagetide does not reach.

use crate::common::{GUARD, PAGETIDE, built, job, program, python, static_program, turn};
use serde_json::Value;
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

const MIB: u64 = 1 << 20;

/// A run that has said its first line, and waits for the end of its input.
struct Run {
    launcher: Child,
    stdout: BufReader<std::process::ChildStdout>,
    line: String,
    stats: PathBuf,
    said: PathBuf,
}

/// What a run that has ended leaves.
struct Ended {
    status: ExitStatus,
    stats: Value,
    said: String,
}

fn start(name: &str, memory: &str, command: &[&str]) -> Run {
    let file = |kind: &str| {
        Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("accounts-{name}-{}.{kind}", std::process::id()))
    };
    let (stats, said) = (file("json"), file("stderr"));
    let mut run = Command::new(PAGETIDE);
    run.args(["run", "-m", memory, "--swap-size", "1G", "--stats"]).arg(&stats).arg("--").args(command);
    run.env("TMPDIR", "/var/tmp").stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut launcher = run.stderr(fs::File::create(&said).unwrap()).spawn().unwrap();
    let mut stdout = BufReader::new(launcher.stdout.take().unwrap());
    let mut line = String::new();
    stdout.read_line(&mut line).unwrap();
    Run { launcher, stdout, line, stats, said }
}

impl Run {
    /// What `pagetide stat` shows of it.
    fn stat(&self) -> Value {
        let pid = self.launcher.id().to_string();
        let output = Command::new(PAGETIDE).args(["stat", "--json", &pid]).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice(&output.stdout).unwrap()
    }

    /// Waits until `pagetide stat` shows what it should.
    fn until(&self, what: &str, mut holds: impl FnMut(&Value) -> bool) {
        let start = Instant::now();
        loop {
            let stat = self.stat();
            if holds(&stat) {
                return;
            }
            assert!(start.elapsed() < GUARD, "{what}: {stat:#}\n{}\n{}", self.line, self.says());
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// What the launcher has said so far.
    fn says(&self) -> String {
        String::from_utf8_lossy(&fs::read(&self.said).unwrap()).into_owned()
    }

    fn end(mut self) -> Ended {
        drop(self.launcher.stdin.take());
        self.stdout.read_to_string(&mut self.line).unwrap();
        let status = self.launcher.wait().unwrap();
        let stats = serde_json::from_str(&fs::read_to_string(&self.stats).unwrap()).unwrap();
        Ended { status, stats, said: self.says() }
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        _ = (fs::remove_file(&self.stats), fs::remove_file(&self.said));
    }
}

#[test]
fn shared_memory_is_charged_once_whoever_maps_it() {
    let _turn = turn();
    for kind in ["anonymous", "memfd", "file", "sysv"] {
        // 60 MiB are needed; counted with each of nine processes it would be 380.
        let run = start(kind, "100M", &[&program("shared_count"), kind, "40", "2", "8"]);
        assert_eq!(run.line, "ready\n", "{kind}: {}", run.says());
        run.until("all of it is counted", |stat| match kind {
            "sysv" => stat["bytes"]["now"]["shared"] == 40 * MIB,
            // The keeper's, like private memory.
            _ => stat["bytes"]["now"]["resident"].as_u64().unwrap() >= 40 * MIB,
        });
        let Ended { status, stats, said } = run.end();
        assert!(status.success(), "{kind}: {status}\n{said}");
        let needed = stats["needed_bytes"].as_u64().unwrap();
        // More of it where each process has huge pages.
        assert!((56 * MIB..130 * MIB).contains(&needed), "{kind}: needed {} MiB\n{said}", needed / MIB);
        assert_eq!(stats["counters"]["pgsteal"], 0, "{kind}: what fits stays\n{said}");
    }
}

/// What is shared and what processes have alone are under one cap.
#[test]
fn private_memory_makes_room_for_shared_memory() {
    let _turn = turn();
    let run = start("room", "64M", &[&program("shared_count"), "anonymous", "32", "24", "3"]);
    assert_eq!(run.line, "ready\n", "{}", run.says());
    // 104 MiB are needed.
    run.until("the cap holds", |stat| stat["bytes"]["now"]["total"].as_u64().unwrap() < 68 * MIB);
    let Ended { status, stats, said } = run.end();
    assert!(status.success(), "{status}\n{said}");
    assert!(stats["counters"]["pgsteal"].as_u64().unwrap() > 0, "{stats:#}");
}

/// The one program that `pagetide stat` shows, if it has this reason, holds 160 MiB and is charged for them.
fn is_charged(stat: &Value, name: &str, reason: &str) -> bool {
    let program = &stat["unmanaged_programs"][0];
    let bytes = program["bytes"].as_u64().unwrap_or(0);
    let total = stat["bytes"]["now"]["total"].as_u64().unwrap();
    program["name"] == name && program["reason"] == reason && bytes >= 160 * MIB && total >= bytes
}

/// Runs a command in which a program called `name` waits with 160 MiB, and looks at what is said of that.
fn is_charged_and_said(case: &str, command: &[&str], name: &str, reason: &str, processes: u64) {
    let run = start(case, "80M", command);
    assert_eq!(run.line, "ready\n", "{case}: {}", run.says());
    run.until("it is charged and shown", |stat| is_charged(stat, name, reason));
    run.until("it has no slot", |stat| stat["processes"] == processes);
    let warning = format!("runs without Pagetide: {reason}");
    run.until("it is said while it runs", |_| run.says().contains(&warning));
    let Ended { status, stats, said } = run.end();
    assert!(status.success(), "{case}: {status}\n{said}");
    let about = |line: &&str| line.contains("warning: ") && line.contains(&format!("{name} (pid "));
    assert_eq!(said.lines().filter(about).count(), 1, "{case}: {said}");
    assert!(said.contains(&format!("without Pagetide: {name} (pid ")), "{case}: {said}");
    assert!(!said.contains("fitted"), "{case}: {said}");
    let needed = stats["needed_bytes"].as_u64().unwrap();
    assert!((160 * MIB..170 * MIB).contains(&needed), "{case}: needed {} MiB\n{said}", needed / MIB);
    let program = &stats["unmanaged_programs"][0];
    assert!(program["peak_bytes"].as_u64().unwrap() >= 160 * MIB, "{case}: {program}");
}

/// A program that is started by CMD, and one that CMD becomes, in a slot that was taken for another program.
#[test]
fn a_static_program_is_charged_and_said() {
    let _turn = turn();
    let holder = static_program("holder");
    for (name, script) in [("child", format!("{holder} 160; :")), ("exec", format!("exec {holder} 160"))] {
        let processes = u64::from(name == "child");
        is_charged_and_said(name, &["sh", "-c", &script], &holder, "it is statically linked", processes);
    }
}

/// By a program that clears the environment, and wants it so.
#[test]
fn a_program_with_a_cleared_environment_is_charged_and_said() {
    let _turn = turn();
    let holder = program("holder");
    let script = format!("PAGETIDE_KEEP=0 env -i PAGETIDE_KEEP=0 {holder} 160; :");
    let reason = "it was started without LD_PRELOAD or PAGETIDE_GROUP in its environment";
    is_charged_and_said("cleared", &["sh", "-c", &script], &holder, reason, 1);
}

/// A set-user-ID program of root's that another user starts: the loader takes nothing from its environment.
#[test]
fn a_program_that_gains_privileges_is_charged_and_said() {
    let _turn = turn();
    // Where anybody may look.
    let copy = format!("/var/tmp/pagetide-set-user-id-{}", std::process::id());
    fs::copy(program("holder"), &copy).unwrap();
    fs::set_permissions(&copy, fs::Permissions::from_mode(0o4755)).unwrap();
    let script = format!("setpriv --reuid 65534 --regid 65534 --clear-groups {copy} 160; :");
    let reason = "it gained privileges when it started (set-user-ID, set-group-ID or file capabilities)";
    let run =
        std::panic::catch_unwind(|| is_charged_and_said("set-uid", &["sh", "-c", &script], &copy, reason, 1));
    fs::remove_file(&copy).unwrap();
    run.unwrap();
}

/// Whatever stood where the loader should.
#[test]
fn a_command_in_which_the_library_does_not_answer_has_not_fitted() {
    let _turn = turn();
    let loader = built("no_loader", "no_loader", &["-nostdlib", "-static-pie"]);
    let command = built("holder", "holder-no-loader", &[&format!("-Wl,--dynamic-linker={loader}")]);
    let output =
        Command::new(PAGETIDE).args(["run", "-m", "80M", "--no-disk", "--", &command]).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && !said.contains("fitted"), "{said}");
    assert!(said.contains(&format!("warning: {command} (pid ")) && said.contains("did not answer"), "{said}");
}

/// One that joins the run and is gone before anybody looks.
#[test]
fn a_command_that_ends_at_once_has_answered() {
    let _turn = turn();
    let output =
        Command::new(PAGETIDE).args(["run", "-m", "80M", "--no-disk", "--", "true"]).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success() && said.contains("fitted") && !said.contains("without Pagetide"),
        "{said}"
    );
}

/// It holds its memory for less than a tenth of a second.
#[test]
fn what_is_there_for_a_moment_is_charged() {
    let _turn = turn();
    let script = format!("echo ready; read x; {} 160 </dev/null; :", static_program("holder"));
    let run = start("moment", "80M", &["sh", "-c", &script]);
    let Ended { status, stats, said } = run.end();
    assert!(status.success(), "{status}\n{said}");
    assert!(stats["unmanaged_programs"].as_array().unwrap().len() <= 1, "{said}");
    // Where the launcher itself was late, it knows.
    let needed = stats["needed_bytes"].as_u64().unwrap();
    assert!(needed > 16 * MIB || !stats["latest_look_s"].is_null(), "needed {} KiB\n{said}", needed >> 10);
}

/// A call on a large buffer is one fault, or a few where parts of the buffer are at different places, and brings in nothing behind it.
#[test]
fn a_large_call_brings_in_its_buffer_and_no_more() {
    const CALLS: u64 = 3000;
    let _turn = turn();
    let run = start("calls", "40M", &[&program("large_calls"), "96", "64", &CALLS.to_string()]);
    assert_eq!(run.line, format!("read {CALLS} times\n"), "{}", run.says());
    let Ended { status, stats, said } = run.end();
    assert!(status.success(), "{status}\n{said}");
    let count = |name: &str| stats["counters"][name].as_u64().unwrap();
    let (faults, pages) = (count("pgmajfault"), count("zswpin") + count("pswpin"));
    // The buffers lie at three places: pool, device and probation. As scans, calls took 6.7 faults each, and brought 36 pages in.
    assert!(faults < 3 * CALLS, "{faults} faults in {CALLS} calls");
    assert!(pages < 28 * CALLS, "{pages} pages in {CALLS} calls");
}

/// Beside a disk digits take a sixteenth of the memory: most of them go there.
#[test]
fn what_is_recompressed_takes_a_part_of_the_memory_beside_a_disk() {
    let _turn = turn();
    let run = start("digits", "72M", &[&python(), &job("digits.py")]);
    assert_eq!(run.line, "0 of 20000 differ\n", "{}", run.says());
    let Ended { status, stats, said } = run.end();
    assert!(status.success(), "{status}\n{said}");
    let count = |name: &str| stats["counters"][name].as_u64().unwrap();
    let (recompressed, refused) = (count("recompress"), count("reject_compress_poor"));
    assert!(recompressed > 0 && recompressed <= count("zswpout"), "{recompressed} recompressed");
    assert!(refused > 2 * recompressed, "{refused} refused, {recompressed} recompressed");
}
