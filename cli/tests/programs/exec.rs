//! Programs that are started with an environment of their own belong to the run all the same.
//!
//! As for `programs`: they need permission for userfaultfd, gcc and python3, and the library beside the binary.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

const PAGETIDE: &str = env!("CARGO_BIN_EXE_pagetide");
/// Says whether the process belongs to the run.
const IN_RUN: &str = "grep -q memfd:pagetide-group /proc/self/maps";

fn program(name: &str) -> PathBuf {
    let binary = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{}", std::process::id()));
    let source =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/programs").join(name).with_extension("c");
    let built = Command::new("gcc")
        .args(["-O2", "-Wall", "-Wextra", "-Wno-unused-result", "-o"])
        .args([&binary, &source])
        .output();
    let built = built.expect("gcc is installed");
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    binary
}

fn run(command: &[&str]) -> Command {
    assert!(
        Path::new(PAGETIDE).with_file_name("libpagetide_preload.so").exists(),
        "run cargo build --workspace first"
    );
    let mut run = Command::new(PAGETIDE);
    run.args(["run", "-q", "-m", "256M", "--no-disk", "--"]).args(command);
    run
}

fn succeeds(output: &Output) {
    let said = [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text).into_owned());
    assert!(output.status.success(), "{}: {said:?}", output.status);
}

#[test]
fn every_call_that_starts_a_program_keeps_it_in_the_run() {
    let exec = program("exec");
    let path = exec.to_str().unwrap();
    succeeds(&run(&[path]).output().unwrap());
    // Where the user wants it otherwise nothing is added.
    succeeds(&run(&[path, "kept"]).env("PAGETIDE_KEEP", "0").output().unwrap());
    std::fs::remove_file(exec).unwrap();
}

#[test]
fn programs_that_clear_the_environment_keep_what_they_start_in_the_run() {
    let python =
        format!("import subprocess; exit(subprocess.run({:?}.split(), env={{}}).returncode)", IN_RUN);
    for command in [
        vec!["env", "-i", "sh", "-c", IN_RUN],
        vec!["sh", "-c", "unset LD_PRELOAD PAGETIDE_GROUP; grep -q memfd:pagetide-group /proc/self/maps"],
        vec!["python3", "-c", &python],
        vec!["sh", "-c", "exec env -i LD_PRELOAD=libm.so.6 grep -q memfd:pagetide-group /proc/self/maps"],
    ] {
        succeeds(&run(&command).output().unwrap());
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
        let output = run(&command).output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{command:?}");
    }
}
