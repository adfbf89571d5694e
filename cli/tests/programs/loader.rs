//! Programs and libraries that have functions of the C library's names, and libraries that look elsewhere first.

use crate::common::*;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Builds tests/programs/loader/NAME.c by gcc with some options.
fn build(name: &str, as_name: &str, options: &[&str]) -> PathBuf {
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join("loader");
    std::fs::create_dir_all(&directory).unwrap();
    let output = directory.join(as_name);
    let source = house().join("tests/programs/loader").join(name).with_extension("c");
    let built = Command::new("gcc")
        .args(["-O1", "-Wall", "-Wextra", "-fno-builtin", "-o"])
        .args([&output, &source])
        .args(options)
        .output()
        .expect("gcc is installed");
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    output
}

fn path(path: &Path) -> &str {
    path.to_str().expect("a path in UTF-8")
}

#[test]
fn a_program_at_a_fixed_place_that_takes_an_address_of_the_allocator_is_managed() {
    let _turn = turn();
    for (name, options) in [("pie", &["-pie", "-fPIE"]), ("nonpie", &["-no-pie", "-fno-pie"])] {
        let program = build("nonpie", name, options);
        let ended = start(pagetide("80M", "", &[], &[path(&program), "90"])).end();
        assert!(!ended.stderr.contains("malloc"), "{}", ended.stderr);
        ended.succeeds();
    }
}

/// The library is loaded there, too, and finds neither the kernel's vDSO nor a processor that does all that its engine needs.
#[test]
fn a_program_runs_under_valgrind_as_without_pagetide() {
    let _turn = turn();
    let command = ["valgrind", "-q", "--error-exitcode=9", "/bin/true"];
    let (ended, told) = reported("200M", "", &[], &command);
    assert_eq!(ended.succeeds(), "");
    assert!(told["unmanaged_programs"][0]["name"].as_str().unwrap().contains("valgrind"), "{told}");
}

#[test]
fn an_mmap_of_the_programs_that_calls_by_number_is_no_endless_circle() {
    let _turn = turn();
    let program = build("own_mmap", "own_mmap", &[]);
    start(pagetide("60M", "", &[], &[path(&program)])).end().succeeds();
}

#[test]
fn what_a_preloaded_library_allocates_while_the_allocator_starts_is_kept() {
    let _turn = turn();
    let library = build("clock", "clock.so", &["-shared", "-fPIC"]);
    let mut run = pagetide("60M", "", &[], &["/bin/true"]);
    run.env("LD_PRELOAD", &library);
    start(run).end().succeeds();
}

#[test]
fn a_library_that_is_bound_to_the_c_library_frees_maps_and_forks_as_natively() {
    let _turn = turn();
    let plugin = build("plugin", "plugin.so", &["-shared", "-fPIC"]);
    let hidden = plugin.with_file_name("hidden");
    std::fs::create_dir_all(&hidden).unwrap();
    std::fs::copy(&plugin, hidden.join("found.so")).unwrap();
    let options = ["-ldl", "-rdynamic", "-Wl,--enable-new-dtags", "-Wl,-rpath,$ORIGIN/hidden"];
    let program = build("deepbind", "deepbind", &options);
    let command = [path(&program), path(&plugin), "found.so"];
    let native = Command::new(command[0]).args(&command[1..]).env("DEEPBIND_NATIVE", "1").output().unwrap();
    assert!(native.status.success(), "{}", String::from_utf8_lossy(&native.stderr));
    for mask in masks(["", "remap", "pool"]) {
        start(pagetide("80M", mask, &[], &command)).end().succeeds();
    }
}

/// Names come to lead here at the first load: whoever loads then, or forks, finds none of them or all.
#[test]
fn threads_load_their_first_libraries_together_or_fork_meanwhile() {
    let _turn = turn();
    let plugin = build("plugin", "first_plugin.so", &["-shared", "-fPIC"]);
    let program = build("first_loads", "first_loads", &["-lpthread", "-ldl"]);
    for forks in ["", "fork"] {
        let again = format!(
            "for nth in $(seq {}); do {} $nth {} {forks} || exit 1; done",
            times(40),
            path(&program),
            path(&plugin)
        );
        start(pagetide("256M", "", &[], &["sh", "-c", &again])).end().succeeds();
    }
}

#[test]
fn a_sanitizer_that_must_come_first_is_named() {
    let _turn = turn();
    for (option, name) in [("thread", "ThreadSanitizer"), ("address", "AddressSanitizer")] {
        let program = build("sanitized", option, &[&format!("-fsanitize={option}")]);
        let ended = start(pagetide("60M", "", &[], &[path(&program)])).end();
        assert_eq!(ended.status.code(), Some(125), "{}", ended.stderr);
        assert!(ended.stderr.contains(name) && ended.stderr.contains("on its own"), "{}", ended.stderr);
    }
}

/// Optimized programs carry the library, unless PAGETIDE_CARRY=no said otherwise when this one was built.
#[test]
fn a_program_that_is_moved_finds_its_library() {
    let _turn = turn();
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("moved-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let moved = folder.join("pagetide");
    std::fs::copy(PAGETIDE, &moved).unwrap();
    let carries =
        !cfg!(debug_assertions) && std::env::var_os("PAGETIDE_CARRY").is_none_or(|value| value != "no");
    // The second run finds what the first has written.
    for _ in 0..2 {
        let mut run = Command::new(&moved);
        run.args(["run", "-m", "32M", "--", &program("forks"), "--mib", "24"]);
        run.env("XDG_CACHE_HOME", folder.join("cache"));
        let ended = start(run).end();
        if carries {
            assert!(!ended.stderr.contains("nothing was swapped"), "{}", ended.stderr);
            ended.succeeds();
        } else {
            assert!(ended.stderr.contains("libpagetide_preload.so is neither"), "{}", ended.stderr);
        }
    }
    std::fs::remove_dir_all(folder).unwrap();
}
