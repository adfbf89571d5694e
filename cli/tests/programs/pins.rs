//! Pages that the kernel or a device may write to while they are pinned.

use crate::common::*;

/// Runs a program whose pages leave, and which says that all was well.
fn swaps_and_says(memory: &str, mask: &str, command: &[&str], says: &str) {
    println!("PAGETIDE_MASK={mask} {command:?}");
    let (ended, told) = reported(memory, mask, &[], command);
    assert_eq!(ended.succeeds(), says);
    assert!(told["counters"]["pgsteal"].as_u64().unwrap() > 1000, "{told}");
}

/// Where pages cannot move, nothing leaves once they may be pinned: so a run that ends for want of memory has seen it.
#[test]
fn every_way_to_open_a_file_past_the_page_cache_is_seen() {
    let _turn = turn();
    let opens = program("opens");
    for way in 0.. {
        let ended = start(pagetide("24M", "move", &[], &[&opens, &way.to_string(), "/var/tmp", "40"])).end();
        match (way, ended.status.code()) {
            (0, _) => assert_eq!(ended.succeeds(), "ok\n"),
            (_, Some(3)) => break,
            (_, code) => assert_eq!(code, Some(137), "way {way}: {}", ended.stderr),
        }
    }
}

/// What is pinned before there is an engine: it learns of it from the C library's calls or, where those were passed by,
/// from the descriptors, before the first page leaves.
#[test]
fn pages_that_were_pinned_before_there_is_an_engine_stay() {
    let _turn = turn();
    let pinned = program("pinned");
    for option in [None, Some("--hidden")] {
        for mask in masks(["", "remap", "pool"]) {
            println!("PAGETIDE_MASK={mask} pinned {}", option.unwrap_or_default());
            let command: Vec<&str> = std::iter::once(&*pinned).chain(option).collect();
            let ended = start(pagetide("28M", mask, &[], &command)).end();
            if ended.status.code() == Some(77) {
                println!("left out: no io_uring here");
                return;
            }
            ended.succeeds();
        }
    }
}

/// Natively it needs 104 MiB.
#[test]
fn what_is_read_past_the_page_cache_arrives_though_no_descriptor_says_so() {
    let _turn = turn();
    let (fuse, direct) = (job("fuse.py"), program("direct_file"));
    for (mask, option) in [("", None), ("", Some("--early")), ("scan", Some("--raw"))] {
        let command: Vec<&str> = ["python3", &fuse, &direct].into_iter().chain(option).collect();
        swaps_and_says("56M", mask, &command, "all read\n");
    }
}

/// While the kernel copies it has pages of one side pinned, and waits for pages of the other.
#[test]
fn what_is_copied_between_processes_arrives() {
    let _turn = turn();
    let crossing = program("crossing");
    for (mask, option) in [("", None), ("", Some("--raw")), ("remap", None), ("move", None)] {
        let command: Vec<&str> = std::iter::once(&*crossing).chain(option).collect();
        swaps_and_says("48M", mask, &command, "all copied\n");
    }
}

/// Natively it needs 208 MiB.
#[test]
fn memory_that_may_not_be_written_leaves_though_pages_may_be_pinned() {
    let _turn = turn();
    let direct = program("readonly_direct");
    for (mask, option) in [("", None), ("", Some("--open")), ("remap", None), ("scan", Some("--open"))] {
        println!("PAGETIDE_MASK={mask} readonly_direct {}", option.unwrap_or_default());
        let command: Vec<&str> = std::iter::once(&*direct).chain(option).collect();
        start(pagetide("64M", mask, &["--swap-size", "2G"], &command)).end().succeeds();
    }
}

#[test]
fn a_device_writes_to_pinned_pages_whatever_the_program_may_do_with_them() {
    let _turn = turn();
    let pinned = program("pinned_readonly");
    for option in [None, Some("--closed"), Some("--aio")] {
        for mask in masks(["", "remap", "pool"]) {
            println!("PAGETIDE_MASK={mask} pinned_readonly {}", option.unwrap_or_default());
            let command: Vec<&str> = std::iter::once(&*pinned).chain(option).collect();
            let ended = start(pagetide("28M", mask, &[], &command)).end();
            if ended.status.code() == Some(77) {
                println!("left out: no io_uring here");
                continue;
            }
            ended.succeeds();
        }
    }
}
