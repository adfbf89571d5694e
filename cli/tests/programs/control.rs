//! Settings that change while a run goes on.

use crate::common::*;
use std::io::{Read, Write};
use std::process::{Command, Stdio};
use std::time::Duration;

#[test]
fn the_pool_works_otherwise_while_a_run_goes_on() {
    let _turn = turn();
    let command = [&*program("hammer"), "--mib", "96", "--seconds", "4"];
    let run = start(pagetide("48M", "", &["--zpool", "zbud"], &command));
    let pid = run.child.id().to_string();
    let set = |settings: &[&str]| {
        let output = Command::new(PAGETIDE).args(["set", "--pid", &pid]).args(settings).output().unwrap();
        (
            output.status.code(),
            String::from_utf8(output.stdout).unwrap(),
            String::from_utf8(output.stderr).unwrap(),
        )
    };
    run.until("the run can be told something", || set(&[]).0 == Some(0));
    for compressor in ["zstd:-5", "none", "zstd", "lz4", "lzpage"] {
        for enabled in ["off", "on"] {
            let settings = [&*format!("compressor={compressor}"), &format!("enabled={enabled}")];
            let more = ["shrinker=decay", "accept_threshold_percent=50", "max_pool_percent=60"];
            let (status, said, errors) = set(&[&settings[..], &more].concat());
            assert_eq!((status, &*errors), (Some(0), ""));
            assert!(said.starts_with(&format!("run {pid} (")) && said.contains(settings[0]), "{said}");
            let shown = set(&[]).1;
            let compressor = if compressor == "zstd" { "zstd:1" } else { compressor };
            assert!(shown.contains(&format!("compressor={compressor}\n")), "{shown}");
            assert!(shown.contains(&format!("enabled={enabled}\n")), "{shown}");
            std::thread::sleep(Duration::from_millis(100));
        }
    }
    // All of a call or nothing.
    let (code, _, said) = set(&["shrinker=none", "zpool=zsmalloc"]);
    assert!(code == Some(2) && said.contains("zpool: cannot be set"), "{said}");
    assert!(set(&[]).1.contains("shrinker=decay\n"));
    run.end().succeeds();
}

/// A pool for which address space was set aside under the smaller cap could not take it.
#[test]
fn a_raised_cap_is_the_pools_too() {
    let _turn = turn();
    let job = house().join("tests/programs/grown.py");
    let command = [&*python(), job.to_str().unwrap(), PAGETIDE];
    start(pagetide("64M", "", &["--no-disk", "--max-pool-percent", "90"], &command)).end().succeeds();
}

/// `script` (of util-linux) has a terminal for it.
#[test]
fn top_shows_a_run_on_a_terminal_changes_its_cap_and_ends_with_it() {
    let _turn = turn();
    let run = start(pagetide("48M", "", &[], &[&*program("hammer"), "--mib", "96", "--seconds", "6"]));
    let pid = run.child.id().to_string();
    let memory = || {
        let output = Command::new(PAGETIDE).args(["set", "--pid", &pid]).output().unwrap();
        let said = String::from_utf8(output.stdout).unwrap();
        said.lines().find_map(|line| line.strip_prefix("memory=").map(str::to_owned))
    };
    run.until("the run can be looked at", || memory().as_deref() == Some("48M"));
    let top = format!("TERM=xterm stty rows 24 cols 80; {PAGETIDE} top {pid} --interval 100ms");
    let mut script = Command::new("script")
        .args(["--quiet", "--return", "--command", &top, "/dev/null"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let (mut keys, mut screen) = (script.stdin.take().unwrap(), script.stdout.take().unwrap());
    // Before that the terminal edits lines by itself.
    let mut shown = Vec::new();
    let mut some = [0; 4096];
    while !String::from_utf8_lossy(&shown).contains("? help") {
        let length = screen.read(&mut some).unwrap();
        assert_ne!(length, 0, "{}", String::from_utf8_lossy(&shown));
        shown.extend_from_slice(&some[..length]);
    }
    // Backspace, three times; Enter; yes.
    keys.write_all(b"m\x7f\x7f\x7f64M\ry").unwrap();
    run.until("the cap is another one", || memory().as_deref() == Some("64M"));
    run.end().succeeds();
    screen.read_to_end(&mut shown).unwrap();
    let text = String::from_utf8_lossy(&shown);
    assert!(script.wait().unwrap().success(), "{text}");
    for words in ["programs", "hammer", "has ended; at the last look", "\x1b[?1049l"] {
        assert!(text.contains(words), "{words}");
    }
    // Where there is no terminal it says what there is instead.
    let output = Command::new(PAGETIDE).args(["top", &std::process::id().to_string()]).output().unwrap();
    assert!(!output.status.success());
}

/// The report at its end speaks of the last cap alone.
#[test]
fn the_cap_changes_while_a_program_runs() {
    let _turn = turn();
    let job = house().join("tests/programs/resized.py");
    for mask in ["", "move"] {
        let (ended, report) = reported("160M", mask, &[], &[&python(), job.to_str().unwrap(), PAGETIDE]);
        ended.succeeds();
        let told = ["cap_bytes", "cap_changes", "cap_held"].map(|name| report[name].to_string());
        assert_eq!(told, [(400 << 20).to_string(), "6".to_owned(), "true".to_owned()]);
    }
}

#[test]
fn the_swap_file_goes_out_of_use_and_into_use_while_a_program_runs() {
    let _turn = turn();
    let program = house().join("tests/programs/leaving.py");
    for mask in first_mask(["", "ring", "move"]) {
        let command = [&*python(), program.to_str().unwrap(), PAGETIDE];
        start(pagetide("96M", mask, &[], &command)).end().succeeds();
    }
}
