//! Programs that are started with an environment of their own belong to the run all the same.

use crate::common;
use crate::common::{job, program, start, turn};
use std::process::Command;

/// Says whether the process belongs to the run.
const IN_RUN: &str = "grep -q memfd:pagetide-group /proc/self/maps";

fn run(command: &[&str]) -> Command {
    common::pagetide("256M", "", &["--no-disk"], command)
}

#[test]
fn every_call_that_starts_a_program_keeps_it_in_the_run() {
    let _turn = turn();
    let exec = program("exec");
    start(run(&[&exec])).end().succeeds();
    // Where the user wants it otherwise nothing is added.
    let mut kept = run(&[&exec, "kept"]);
    kept.env("PAGETIDE_KEEP", "0");
    start(kept).end().succeeds();
}

#[test]
fn programs_that_clear_the_environment_keep_what_they_start_in_the_run() {
    let _turn = turn();
    let cleared = job("cleared.py");
    let python = [&["python3", &cleared], &*IN_RUN.split(' ').collect::<Vec<_>>()].concat();
    for command in [
        vec!["env", "-i", "sh", "-c", IN_RUN],
        vec!["sh", "-c", "unset LD_PRELOAD PAGETIDE_GROUP; grep -q memfd:pagetide-group /proc/self/maps"],
        python,
        vec!["sh", "-c", "exec env -i LD_PRELOAD=libm.so.6 grep -q memfd:pagetide-group /proc/self/maps"],
    ] {
        start(run(&command)).end().succeeds();
    }
    for command in [
        vec!["env", "-i", "PAGETIDE_KEEP=0", "sh", "-c", IN_RUN],
        vec![
            "env",
            "-i",
            "PAGETIDE_KEEP=0",
            "sh",
            "-c",
            "env -i grep -q memfd:pagetide-group /proc/self/maps",
        ],
    ] {
        let ended = start(run(&command)).end();
        assert_eq!(ended.status.code(), Some(1), "{command:?}");
    }
}
