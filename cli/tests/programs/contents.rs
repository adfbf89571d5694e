//! What programs read is what they wrote, by every way out and in.

use crate::common::*;
use std::process::Command;

/// What `integrity` is run under: each way out and in alone, and each fallback.
const MASKS: [&str; 9] =
    ["", "remap", "move", "copy", "scan", "ring,pool", "pool", "remap,pool", "move,pool"];

fn integrity(masks: Vec<&str>, threads: &str, ops: &str) {
    let _turn = turn();
    let integrity = program("integrity");
    for (seed, mask) in masks.into_iter().enumerate() {
        let seed = seed.to_string();
        let command = [
            &integrity,
            "--mib",
            "120",
            "--threads",
            threads,
            "--ops",
            ops,
            "--seed",
            &seed,
            "--dir",
            "/var/tmp",
        ];
        println!("PAGETIDE_MASK={mask} {}", command.join(" "));
        start(pagetide("48M", mask, &[], &command)).end().succeeds();
    }
}

#[test]
fn one_thread_reads_what_it_wrote_by_every_way() {
    integrity(masks(MASKS), "1", "4000");
}

#[test]
fn four_threads_read_what_they_wrote_by_every_way() {
    integrity(MASKS.into(), "4", "1500");
}

/// Zeroes that are read take no memory until they are written to.
#[test]
fn zeroes_are_zeroes_until_they_are_written_and_the_cap_holds() {
    let _turn = turn();
    let zeroes = program("zeroes");
    for mask in masks(["", "remap", "copy", "scan", "watch", "zero"]) {
        let mut command = vec![&*zeroes, "96", "40"];
        command.extend(mask.is_empty().then_some("--no-memory"));
        println!("PAGETIDE_MASK={mask} {}", command.join(" "));
        start(pagetide("40M", mask, &[], &command)).end().succeeds();
    }
}

#[test]
fn counters_never_go_back_while_readers_fault() {
    let _turn = turn();
    for mask in ["", "pool"] {
        let command = [&*program("hammer"), "--mib", "96", "--seconds", "2"];
        start(pagetide("48M", mask, &[], &command)).end().succeeds();
    }
}

/// Seeds are drawn; a failure prints its own, and the steps that it takes.
#[test]
fn memory_holds_what_a_model_says_whatever_is_done_with_it() {
    let _turn = turn();
    let (fuzz, script) = (program("fuzz"), house().join("tests/fuzz.py"));
    // Natively first: does the model know what the kernel does?
    for options in [["--native", "--seconds", "5"], ["--continue", "--seconds", "30"]] {
        let output = Command::new(python())
            .arg(&script)
            .args(["--program", &fuzz, "--pagetide", PAGETIDE])
            .args(options)
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        println!("{said}");
        assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
    }
}

#[test]
fn a_python_job_gives_what_it_gives_natively() {
    let _turn = turn();
    let job = house().join("examples/analytics.py");
    let job = job.to_str().unwrap();
    let mut native = Command::new(python());
    native.args([job, "--mib", "120"]);
    let native = start(native).end().succeeds();
    assert!(native.starts_with("rows "), "{native}");
    let capped = start(pagetide("64M", "", &[], &[&python(), job, "--mib", "120"])).end().succeeds();
    assert_eq!(capped, native);
}
