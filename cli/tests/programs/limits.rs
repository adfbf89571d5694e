//! Limits of address space, of descriptors, and of what fits at all.

use crate::common::*;
use std::process::Command;

/// The launcher holds a descriptor for each process. One that it cannot look at is not dead for that: its memory and
/// its blocks would become others'.
#[test]
fn a_launcher_short_of_descriptors_takes_nobody_for_dead() {
    let _turn = turn();
    let many = job("many_children.py");
    for _ in 0..3 {
        let mut command = Command::new("sh");
        let limited = "ulimit -n 20 && exec \"$@\"";
        command.args(["-c", limited, "sh", PAGETIDE, "run", "-q", "-m", "64M", "--swap-size", "1G", "--"]);
        command.args(["python3", &many]);
        assert_eq!(start(command).end().succeeds(), "0\n");
    }
}

#[test]
fn a_program_starts_and_forks_where_address_space_is_limited() {
    let _turn = alone();
    let run = |arguments: &[&str]| start(pagetide("40M", "", &[], arguments)).end().succeeds();
    let (python, large) = (python(), job("large.py"));
    for kilobytes in ["4000000", "1000000"] {
        let limited = format!("ulimit -v {kilobytes} && exec \"$@\"");
        let said = run(&["sh", "-c", &limited, "sh", &python, &large]);
        assert_eq!(said, "True True 157286400\n", "ulimit -v {kilobytes}");
    }
    // Needs root. Nothing is promised that is not there.
    let strict = Setting::change("/proc/sys/vm/overcommit_memory", "2");
    assert_eq!(run(&[&python, &large]), "True True 157286400\n");
    drop(strict);
}

#[test]
fn digits_fit_where_there_is_no_disk() {
    let _turn = turn();
    // 80 MiB of them: the compressor refuses all, Zstandard makes a little more than half.
    let command = [&*python(), &job("digits.py")];
    let run = start(pagetide("72M", "", &["--no-disk"], &command));
    assert_eq!(run.end().succeeds(), "0 of 20000 differ\n");
}

#[test]
fn what_cannot_fit_ends_with_a_message_and_never_hangs() {
    let _turn = turn();
    let command = [&*program("incompressible"), "--mib", "100", "--threads", "2"];
    let ended = start(pagetide("48M", "", &["--no-disk"], &command)).end();
    assert_eq!(ended.status.code(), Some(137), "{}{}", ended.stdout, ended.stderr);
    assert!(ended.stderr.contains("--memory"), "{}", ended.stderr);
}
