//! Disks that fail, threads of the engine that stall or panic, and processes that are told to rest.

use crate::common::*;
use std::time::{Duration, Instant};

fn failing(fault: &str, mask: &str) -> Ended {
    println!("PAGETIDE_FAIL={fault} PAGETIDE_MASK={mask} lost");
    let mut command = pagetide("18M", mask, &[], &[&program("lost"), "--mib", "40"]);
    command.env("PAGETIDE_FAIL", fault);
    start(command).end()
}

#[test]
fn a_page_that_cannot_be_read_is_lost_alone_and_never_another() {
    let _turn = turn();
    for fault in ["read-error:20", "read-short:20", "read-corrupt:20", "read-misplaced:20"] {
        for mask in masks(["", "pool", "ring,pool"]) {
            let ended = failing(fault, mask);
            assert!(ended.stderr.contains(" in the mapping 0x"), "{}", ended.stderr);
            assert!(ended.stderr.contains(" is lost: "), "{}", ended.stderr);
            let said = ended.succeeds();
            assert!(!said.starts_with("0 of"), "{said}");
        }
    }
}

#[test]
fn a_thread_of_the_engine_that_panics_ends_the_program_and_hangs_nobody() {
    let _turn = turn();
    for (fault, mask) in
        [("panic-fault:300", ""), ("panic-reclaim:40", ""), ("panic-io:20", "pool"), ("panic-control:30", "")]
    {
        let ended = failing(fault, mask);
        assert!(ended.stderr.contains("a defect of Pagetide: panicked at "), "{fault}: {}", ended.stderr);
        assert_eq!(ended.status.code(), Some(128 + libc::SIGKILL), "{fault}");
    }
}

#[test]
fn writes_that_fail_lose_nothing() {
    let _turn = turn();
    for (fault, said, end) in [
        ("write-error:1", "cannot write to the swap file", "the swap file: failing"),
        (
            "write-full:1",
            "is full: pages stay in memory until there is room",
            "for its disk has no more room",
        ),
    ] {
        let ended = failing(fault, "");
        assert!(ended.stderr.contains(said), "{}", ended.stderr);
        assert_eq!(ended.succeeds(), "0 of 10240 pages lost\n");
        // Without a pool there is no other place: an end with a message, and no other.
        let ended = failing(fault, "pool");
        assert_eq!(ended.status.code(), Some(137), "{}", ended.stderr);
        assert!(ended.stderr.contains(end), "{}", ended.stderr);
    }
}

#[test]
fn a_disk_that_is_full_for_moments_is_written_to_again() {
    let _turn = turn();
    for fault in ["write-full:2", "write-full:7"] {
        let ended = failing(fault, "pool");
        assert!(!ended.stderr.contains("cannot write"), "{}", ended.stderr);
        assert_eq!(ended.succeeds(), "0 of 10240 pages lost\n");
    }
}

#[test]
fn every_fault_is_answered_whoever_of_the_engine_stalls_or_gets_no_memory() {
    let _turn = turn();
    for fault in ["pool:2", "stall-fault:2000", "stall-reclaim:20", "stall-io:200", "stall-control:5"] {
        for mask in ["", "pool"] {
            assert_eq!(failing(fault, mask).succeeds(), "0 of 10240 pages lost\n");
        }
    }
}

/// Their faults wait at any moment: with a lock of the loader held, in a signal's handler, while another thread forks.
#[test]
fn processes_that_are_told_to_rest_go_on_as_before() {
    let _turn = turn();
    let commands = [
        ("40M", vec![python(), job("resting.py")]),
        (
            "30M",
            [&program("fork_threads"), "--mib", "36", "--threads", "2", "--forks", "10"]
                .map(Into::into)
                .into(),
        ),
        ("32M", [&program("forks"), "--mib", "24"].map(Into::into).into()),
        ("28M", vec![program("mappings")]),
    ];
    for (memory, command) in first_mask(commands.each_ref()) {
        println!("PAGETIDE_FAIL=rest:1 {}", command[0]);
        let words: Vec<&str> = command.iter().map(String::as_str).collect();
        let mut command = pagetide(memory, "", &[], &words);
        command.env("PAGETIDE_FAIL", "rest:1");
        start(command).end().succeeds();
    }
    // The launcher was stopped or killed, and nobody ends the rest: it is over after four seconds.
    let start = Instant::now();
    assert_eq!(failing("rest-forgotten:20", "").succeeds(), "0 of 10240 pages lost\n");
    assert!(start.elapsed() >= Duration::from_secs(4), "it did not rest");
}
