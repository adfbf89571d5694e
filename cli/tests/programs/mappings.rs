//! Calls that change mappings whose pages are partly out, and memory that a program serves itself.

use crate::common::*;

#[test]
fn mappings_move_grow_and_go_with_their_contents() {
    let _turn = turn();
    let mappings = program("mappings");
    for mask in first_mask(["", "remap", "move", "pool"]) {
        start(pagetide("28M", mask, &[], &[&mappings])).end().succeeds();
    }
    start(pagetide("28M", "", &[], &[&mappings, "--raw"])).end().succeeds();
}

/// In clusters that are watched for writes: which pages stay changes no byte of any.
#[test]
fn what_is_written_all_the_time_stays_as_it_was_written() {
    let _turn = turn();
    let hot = program("hot");
    for mask in first_mask(["", "remap", "copy", "scan", "watch", "pool"]) {
        start(pagetide("36M", mask, &[], &[&hot])).end().succeeds();
    }
    for how in ["--direct", "--sandboxed", "--inherited"] {
        start(pagetide("36M", "", &[], &[&hot, how])).end().succeeds();
    }
}

/// Natively each of its halves needs 64 MiB.
#[test]
fn what_is_mapped_a_page_at_a_time_or_grows_from_one_is_managed() {
    let _turn = turn();
    let small = program("small_mappings");
    for (mask, option) in [("", None), ("", Some("--raw")), ("remap", None)] {
        println!("PAGETIDE_MASK={mask} small_mappings {}", option.unwrap_or_default());
        let command: Vec<&str> = std::iter::once(&*small).chain(option).collect();
        let (ended, told) = reported("32M", mask, &[], &command);
        assert_eq!(ended.succeeds(), "all there\n");
        // What is held is sampled: a tenth above the cap is far from all of it.
        let most = told["bytes"]["peak"]["total"].as_u64().unwrap();
        assert!(most < 36 << 20, "{told}");
    }
}

#[test]
fn large_static_data_is_managed() {
    let _turn = turn();
    let (ended, told) = reported("36M", "", &["--swap-size", "256M"], &[&program("static_arrays")]);
    assert_eq!(ended.succeeds(), "all there\n");
    assert!(told["counters"]["pgsteal"].as_u64().unwrap() > 20_000, "{told}");
    assert!(told["bytes"]["peak"]["unmanaged"].as_u64().unwrap() < 12 << 20, "{told}");
}

#[test]
fn calls_that_are_refused_leave_everything_as_it_was() {
    let _turn = turn();
    let refused = program("refused");
    for mask in masks(["", "remap", "pool"]) {
        start(pagetide("28M", mask, &[], &[&refused])).end().succeeds();
    }
    // With the engine from the start, and without one.
    start(pagetide("28M", "", &[], &[&refused, "--namespace"])).end().succeeds();
    start(pagetide("1G", "", &[], &[&refused])).end().succeeds();
}

/// What was never charged is not given back: the engine would not start in time.
#[test]
fn reservations_that_shrink_and_move_do_not_lift_the_cap() {
    let _turn = turn();
    let said = start(pagetide("32M", "", &[], &[&python(), &job("reservations.py")])).end().succeeds();
    let resident: u64 = said.trim().parse().unwrap();
    assert!(resident < 40 << 10, "{resident} KiB under a cap of 32 MiB");
}

/// Of such a process `/proc/PID` shows no memory, and no descriptors.
#[test]
fn what_a_process_maps_whose_first_thread_has_ended_is_managed() {
    let _turn = turn();
    let first_thread = program("first_thread");
    for options in [&[][..], &["--early"], &["--shared"], &["--early", "--shared"]] {
        println!("first_thread {options:?}");
        let command = [&[&*first_thread, "--mib", "48"][..], options].concat();
        let (ended, told) = reported("40M", "", &[], &command);
        ended.succeeds();
        assert!(told["counters"]["pgsteal"].as_u64().unwrap() > 1000, "{told}");
    }
}

/// Where pages cannot move, nothing leaves once they may be pinned; and something does where none can be.
#[test]
fn what_pins_is_seen_though_the_first_thread_has_ended() {
    let _turn = turn();
    let file = std::env::temp_dir().join(format!("pagetide-pins-{}", std::process::id()));
    std::fs::write(&file, "pins").unwrap();
    let first_thread = program("first_thread");
    for pins in [None, Some(file.to_str().unwrap())] {
        let mut command = vec![&*first_thread, "--mib", "48"];
        command.extend(pins.iter().flat_map(|file| ["--pins", file]));
        let ended = start(pagetide("40M", "move", &[], &command)).end();
        match pins {
            None => drop(ended.succeeds()),
            Some(_) => assert_eq!(ended.status.code(), Some(137), "{}", ended.stderr),
        }
    }
    std::fs::remove_file(&file).unwrap();
}

#[test]
fn huge_pages_or_none_make_no_difference() {
    // What it changes is right for the others too.
    let _turn = turn();
    for huge in ["always", "never"] {
        // Needs root.
        let _setting = Setting::change("/sys/kernel/mm/transparent_hugepage/enabled", huge);
        for mask in first_mask(["", "remap", "move"]) {
            println!("huge pages: {huge}, PAGETIDE_MASK={mask}");
            let run = |name: &str, options: &[&str]| {
                let program = program(name);
                let command: Vec<&str> = std::iter::once(&*program).chain(options.iter().copied()).collect();
                start(pagetide("48M", mask, &["--swap-size", "1G"], &command)).end().succeeds();
            };
            run("mappings", &[]);
            run("forks", &["--mib", "24"]);
            run("growing", &["--rounds", "100", "--seed", "5"]);
        }
    }
}

#[test]
fn locks_hold_and_advice_is_taken() {
    let _turn = turn();
    let advice = program("advice");
    for (mask, option) in masks([("", None), ("copy", None), ("pool", None), ("", Some("--raw"))]) {
        println!("PAGETIDE_MASK={mask} advice {}", option.unwrap_or_default());
        let command: Vec<&str> = std::iter::once(&*advice).chain(option).collect();
        start(pagetide("28M", mask, &[], &command)).end().succeeds();
    }
}

#[test]
fn a_program_serves_faults_of_its_own_memory() {
    let _turn = turn();
    let own = program("own_userfault");
    for mask in masks(["", "remap", "move", "pool"]) {
        println!("PAGETIDE_MASK={mask} own_userfault");
        start(pagetide("40M", mask, &[], &[&own])).end().succeeds();
    }
}
