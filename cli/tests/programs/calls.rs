//! System calls, signals, cancelled threads, the loader and core dumps on memory that is out.

use crate::common::*;
use rustix::fs::{SeekFrom, seek};
use std::fs;
use std::io::{BufReader, Read};
use std::path::Path;

#[test]
fn the_kernel_finds_what_is_out_of_memory() {
    let _turn = turn();
    // Without "move", for it pins pages (docs/limits.md).
    for mask in first_mask(["", "remap", "copy", "pool"]) {
        println!("PAGETIDE_MASK={mask} syscalls");
        start(pagetide("28M", mask, &[], &[&program("syscalls")])).end().succeeds();
    }
}

/// Calls on large buffers say what they touch; what they do not touch stays as it was.
#[test]
fn large_calls_find_and_leave_what_they_should() {
    let _turn = turn();
    let command = [&*program("large_calls"), "96", "64", "1000"];
    for mask in masks(["", "remap", "move", "pool"]) {
        println!("PAGETIDE_MASK={mask} large_calls");
        start(pagetide("40M", mask, &["--swap-size", "1G"], &command)).end().succeeds();
    }
}

#[test]
fn threads_can_be_cancelled_in_calls_that_we_see() {
    let _turn = turn();
    start(pagetide("64M", "", &[], &[&program("cancel")])).end().succeeds();
}

#[test]
fn a_program_may_fault_at_odd_moments_and_take_from_itself_what_it_likes() {
    let _turn = turn();
    let odd = program("odd");
    let masks = [("pool", Some("--no-fsize")), ("", None), ("remap", None), ("copy", None)];
    for (mask, option) in first_mask(masks) {
        println!("PAGETIDE_MASK={mask} odd {}", option.unwrap_or_default());
        let command: Vec<&str> = std::iter::once(&*odd).chain(option).collect();
        start(pagetide("28M", mask, &[], &command)).end().succeeds();
    }
}

/// Threads of the engine are none of the C library's, which has its threads change together.
#[test]
fn threads_of_the_engine_keep_no_right_that_the_program_gives_up() {
    let _turn = turn();
    if !rustix::process::geteuid().is_root() {
        println!("not root: no user can be changed");
        return;
    }
    let credentials = program("credentials");
    for arguments in [&[][..], &["threads"]] {
        let command: Vec<_> = [&[&*credentials], arguments].concat();
        assert_eq!(start(pagetide("24M", "", &["--swap-size", "1G"], &command)).end().succeeds(), "ok\n");
    }
}

#[test]
fn the_loader_may_run_out_of_memory_with_its_locks_held() {
    let _turn = turn();
    let loads = program("loads");
    // The engine starts in the middle of one or another of these.
    for kib in (28_000..34_000).step_by(500) {
        let command =
            [&*loads, &kib.to_string(), "libm.so.6", "libresolv.so.2", "libanl.so.1", "libstdc++.so.6"];
        start(pagetide("48M", "", &["--no-disk"], &command)).end().succeeds();
    }
}

/// Which pages of `dump.c` a core dump holds.
fn dumped(directory: &Path) -> usize {
    let core =
        fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()).next().expect("a core dump");
    let file = fs::File::open(&core).unwrap();
    fs::remove_file(core).unwrap();
    let mut page = [0; 4096];
    let mut lines = Vec::new();
    let mut end = 0;
    // Most of it is holes.
    while let Ok(start) = seek(&file, SeekFrom::Data(end)) {
        end = seek(&file, SeekFrom::Hole(start)).unwrap();
        seek(&file, SeekFrom::Start(start)).unwrap();
        let mut data = BufReader::with_capacity(1 << 20, (&file).take(end - start));
        while data.read_exact(&mut page).is_ok() {
            if page.starts_with(b"DUMP page ") {
                lines.push(page.split(|&byte| byte == b'\n').next().unwrap().to_owned());
            }
        }
    }
    lines.sort_unstable();
    lines.dedup();
    lines.len()
}

#[test]
fn a_core_dump_has_holes_unless_everything_is_to_be_brought_in() {
    let _turn = alone();
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("cores-{}", std::process::id()));
    fs::create_dir_all(&directory).unwrap();
    // Needs root.
    let pattern =
        Setting::change("/proc/sys/kernel/core_pattern", &format!("{}/core.%p", directory.display()));
    let pages = 100 * 256;
    for (by, signal, whole) in
        [("abort", 6, true), ("fault", 11, true), ("trap", 5, true), ("kill", 24, true), ("abort", 6, false)]
    {
        println!("dump --by {by}, PAGETIDE_DUMP {whole}");
        let limited = "ulimit -c unlimited && exec \"$@\"";
        let command = ["sh", "-c", limited, "sh", &program("dump"), "--mib", "100", "--by", by];
        let mut run = pagetide("40M", "", &[], &command);
        if whole {
            run.env("PAGETIDE_DUMP", "1");
        }
        assert_eq!(start(run).end().status.code(), Some(128 + signal));
        let dumped = dumped(&directory);
        assert!(if whole { dumped == pages } else { dumped < pages / 2 }, "{dumped} of {pages} pages");
    }
    drop(pattern);
    fs::remove_dir_all(&directory).unwrap();
}
