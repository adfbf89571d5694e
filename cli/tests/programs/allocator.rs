//! The allocator that a program gets in place of the C library's.

use crate::common::*;
use crate::kept::kept_seeds;
use std::process::Command;

/// It maps and forks with the locks of its `malloc` held; threads of the engine must not ask for memory there.
#[test]
fn a_program_that_brings_its_own_malloc_is_managed_also_when_it_forks() {
    let _turn = turn();
    let own = program("own_malloc");
    for (memory, way) in [("16M", "mmap"), ("64M", "mmap"), ("16M", "brk")] {
        let mut run = Command::new(PAGETIDE);
        run.args(["run", "-m", memory, "--swap-size", "1G", "--", &own, way]);
        let ended = start(run).end();
        assert!(ended.stderr.contains("pagetide: out "), "{}", ended.stderr);
        assert_eq!(ended.succeeds(), "ok\n");
    }
}

/// It has one object of each of many sizes: the allocator sets aside 40 MiB for them, of which 2 are used.
#[test]
fn what_the_allocator_sets_aside_and_nobody_uses_is_not_charged() {
    let _turn = turn();
    let mut run = Command::new(PAGETIDE);
    run.args(["run", "-m", "24M", "--", &program("sizes")]);
    let ended = start(run).end();
    assert!(ended.stderr.contains("nothing was swapped"), "no engine: {}", ended.stderr);
    ended.succeeds();
}

/// The allocator starts when a process has allocated more than small ones do.
#[test]
fn what_a_process_allocated_first_stays_its_own_when_the_allocator_starts() {
    let _turn = turn();
    let beginnings = program("beginnings");
    for how in ["little", "grown", "threads", "forks", "confined"] {
        for memory in ["24M", "64M"] {
            let mut run = Command::new(PAGETIDE);
            run.args(["run", "-q", "-m", memory, "--", &beginnings, how]);
            let said = start(run).end().succeeds();
            let bytes: usize = said.trim().parse().unwrap();
            assert_eq!(bytes < 64 << 10, how == "little", "{how}: the allocator has {bytes} bytes");
        }
    }
}

/// It may hold memory that others want, and starts no engine for that.
#[test]
fn a_process_whose_threads_are_all_in_a_sandbox_is_left_alone() {
    let _turn = turn();
    start(pagetide("64M", "", &["--swap-size", "1G"], &[&program("beginnings"), "watched"])).end().succeeds();
}

/// Natively too, so that the demands are known to be glibc's.
#[test]
fn the_allocator_accounts_for_what_it_holds() {
    let _turn = turn();
    let accounts = program("accounts");
    for arguments in [&[][..], &["threads"]] {
        let mut native = Command::new(&accounts);
        native.args(arguments);
        start(native).end().succeeds();
        for memory in ["24M", "256M"] {
            let mut run = Command::new(PAGETIDE);
            run.args(["run", "-q", "-m", memory, "--", &accounts]).args(arguments);
            start(run).end().succeeds();
        }
    }
}

#[test]
fn objects_that_grow_and_shrink_keep_what_is_in_them() {
    let _turn = turn();
    let growing = program("growing");
    for mask in masks(["", "remap", "move", "pool", "copy"]) {
        for seed in kept_seeds("growing").iter().map(u64::to_string) {
            println!("PAGETIDE_MASK={mask} growing --seed {seed}");
            start(pagetide("44M", mask, &[], &[&growing, "--seed", &seed, "--rounds", "400"]))
                .end()
                .succeeds();
        }
    }
}
