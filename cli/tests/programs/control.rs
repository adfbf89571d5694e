//! Settings that change while a run goes on.

use crate::common::*;
use std::path::Path;
use std::process::Command;
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
    for compressor in ["zstd:-5", "none", "zstd", "lz4"] {
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

/// The report at its end speaks of the last cap alone.
#[test]
fn the_cap_changes_while_a_program_runs() {
    let _turn = turn();
    let job = house().join("tests/programs/resized.py");
    let stats = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("resized-{}.json", std::process::id()));
    for mask in ["", "move"] {
        let options = ["--stats", stats.to_str().unwrap()];
        start(pagetide("160M", mask, &options, &[&python(), job.to_str().unwrap(), PAGETIDE]))
            .end()
            .succeeds();
        let report: serde_json::Value =
            serde_json::from_str(&std::fs::read_to_string(&stats).unwrap()).unwrap();
        let told = ["cap_bytes", "cap_changes", "cap_held"].map(|name| report[name].to_string());
        assert_eq!(told, [(400 << 20).to_string(), "6".to_owned(), "true".to_owned()]);
    }
    std::fs::remove_file(stats).unwrap();
}

#[test]
fn the_swap_file_goes_out_of_use_and_into_use_while_a_program_runs() {
    let _turn = turn();
    let program = house().join("tests/programs/leaving.py");
    for mask in ["", "ring", "move"] {
        let command = [&*python(), program.to_str().unwrap(), PAGETIDE];
        start(pagetide("96M", mask, &[], &command)).end().succeeds();
    }
}
