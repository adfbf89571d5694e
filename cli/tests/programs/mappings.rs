//! Calls that change mappings whose pages are partly out, and memory that a program serves itself.

use crate::common::*;

#[test]
fn mappings_move_grow_and_go_with_their_contents() {
    let _turn = turn();
    let mappings = program("mappings");
    for mask in ["", "remap", "move", "pool"] {
        start(pagetide("28M", mask, &[], &[&mappings])).end().succeeds();
    }
    start(pagetide("28M", "", &[], &[&mappings, "--raw"])).end().succeeds();
}

#[test]
fn calls_that_are_refused_leave_everything_as_it_was() {
    let _turn = turn();
    let refused = program("refused");
    for mask in ["", "remap", "pool"] {
        start(pagetide("28M", mask, &[], &[&refused])).end().succeeds();
    }
    start(pagetide("28M", "", &[], &[&refused, "--namespace"])).end().succeeds();
}

/// What was never charged is not given back: the engine would not start in time.
#[test]
fn reservations_that_shrink_and_move_do_not_lift_the_cap() {
    let _turn = turn();
    let job = "
import ctypes, re
libc = ctypes.CDLL(None)
libc.mmap.restype = libc.mremap.restype = ctypes.c_void_p
for _ in range(40):
    at = libc.mmap(None, ctypes.c_size_t(16 << 20), 0, 0x4022, -1, ctypes.c_long(0))
    at = libc.mremap(ctypes.c_void_p(at), ctypes.c_size_t(16 << 20), ctypes.c_size_t(20 << 10), 1)
    libc.munmap(ctypes.c_void_p(at), ctypes.c_size_t(20 << 10))
pages = [bytes([nth % 250 + 1]) * (1 << 20) for nth in range(90)]
print(re.search('RssAnon:[ \t]*(\\d+)', open('/proc/self/status').read())[1])
assert all(page.count(page[0]) == 1 << 20 for page in pages)";
    let said = start(pagetide("32M", "", &[], &[&python(), "-c", job])).end().succeeds();
    let resident: u64 = said.trim().parse().unwrap();
    assert!(resident < 40 << 10, "{resident} KiB under a cap of 32 MiB");
}

#[test]
fn huge_pages_or_none_make_no_difference() {
    // What it changes is right for the others too.
    let _turn = turn();
    for huge in ["always", "never"] {
        // Needs root.
        let _setting = Setting::change("/sys/kernel/mm/transparent_hugepage/enabled", huge);
        for mask in ["", "remap", "move"] {
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
    for (mask, option) in [("", None), ("", Some("--raw")), ("copy", None), ("pool", None)] {
        println!("PAGETIDE_MASK={mask} advice {}", option.unwrap_or_default());
        let command: Vec<&str> = std::iter::once(&*advice).chain(option).collect();
        start(pagetide("28M", mask, &[], &command)).end().succeeds();
    }
}

#[test]
fn a_program_serves_faults_of_its_own_memory() {
    let _turn = turn();
    let own = program("own_userfault");
    for mask in ["", "remap", "move", "pool"] {
        println!("PAGETIDE_MASK={mask} own_userfault");
        start(pagetide("40M", mask, &[], &[&own])).end().succeeds();
    }
}
