//! What `--stats`, `pagetide stat` and a trace tell of a run.

use crate::common::*;
use pagetide_swap::{PageIndex, trace};
use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

#[test]
fn a_program_that_is_killed_gives_137_and_its_statistics() {
    let _turn = turn();
    // Its pages are out of memory when the signal comes.
    let (ended, report) = reported("48M", "", &[], &[&python(), &job("killed.py")]);
    assert_eq!((ended.status.code(), ended.status.signal()), (Some(137), None), "{}", ended.stderr);
    assert_eq!(report["exit_status"], 137);
    assert!(report["counters"]["pgsteal"].as_u64().unwrap() > 1000, "{report}");
}

#[test]
fn the_time_that_threads_wait_for_pages_is_the_sum_of_all_their_waits() {
    let _turn = turn();
    let command = [&*program("waits"), "--mib", "80", "--rounds", "3", "--random", "1", "--threads", "3"];
    let (ended, report) = reported("56M", "", &["--no-disk"], &command);
    ended.succeeds();
    let counter = |name: &str| report["counters"][name].as_u64().unwrap();
    // Nothing is read from a disk, and room is rarely waited for: these are waits for the pool.
    let faults = counter("pgmajfault");
    assert!(faults > 1000, "{report}");
    let (waited, elapsed) = (report["stalled_s"].as_f64().unwrap(), report["elapsed_s"].as_f64().unwrap());
    // None of them is answered within a microsecond, and no more than four threads wait at one time.
    assert!(waited > faults as f64 * 1e-6 && waited < 4.0 * elapsed, "{waited} of {elapsed}: {report}");
    assert!(counter("stalled_ns") >= counter("parked_ns"), "{report}");
    assert!((3..=4).contains(&report["stalled_threads"].as_u64().unwrap()), "{report}");
}

#[test]
fn stat_shows_a_live_run_that_swaps() {
    let _turn = turn();
    let command = [&*program("hammer"), "--mib", "96", "--seconds", "3"];
    let run = start(pagetide("48M", "", &[], &command));
    let pid = run.child.id().to_string();
    let mut swapped = 0;
    while swapped == 0 {
        assert!(run.started.elapsed() < GUARD, "nothing is swapped");
        std::thread::sleep(Duration::from_millis(50));
        if let Some(report) = report(&pid) {
            assert_eq!(report["running"], true);
            swapped = report["bytes"]["now"]["swapped"].as_u64().unwrap();
        }
    }
    let table = Command::new(PAGETIDE).args(["stat", &pid]).output().unwrap();
    let table = String::from_utf8(table.stdout).unwrap();
    assert!(table.contains(&format!("run {pid}")) && table.contains("cap 48 MiB"), "{table}");
    let listed = Command::new(PAGETIDE).args(["ps", "--json"]).output().unwrap();
    let listed: serde_json::Value = serde_json::from_slice(&listed.stdout).unwrap();
    let found = listed.as_array().unwrap().iter().find(|found| found["pid"] == pid.parse::<u64>().unwrap());
    let found = found.unwrap_or_else(|| panic!("{pid} is not listed: {listed}"));
    assert_eq!((&found["cap_bytes"], &found["command"][1]), (&(48 << 20).into(), &"--mib".into()));
    assert!(found["used_bytes"].as_u64() > Some(0) && found["stalled_s"].as_f64() > Some(0.0), "{found}");
    let table = Command::new(PAGETIDE).arg("ps").output().unwrap();
    let table = String::from_utf8(table.stdout).unwrap();
    assert!(
        table.lines().any(|line| line.trim_start().starts_with(&pid) && line.contains("48 MiB")),
        "{table}"
    );
    run.end().succeeds();
}

#[test]
fn what_happened_is_written_down_and_replayed() {
    let _turn = turn();
    let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("trace-{}", std::process::id()));
    let path = file.to_str().unwrap();
    // A family: each process is in the trace.
    let command = [&*program("forks"), "--mib", "40"];
    start(pagetide("48M", "", &["--swap-size", "1G", "--trace", path], &command)).end().succeeds();
    let replay = |options: &[&str]| -> serde_json::Value {
        let output = Command::new(PAGETIDE).args(["replay", path, "--json"]).args(options).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice(&output.stdout).unwrap()
    };
    // And that it ended.
    let recorded = fs::read(&file).unwrap();
    let events = trace::Reader::new(&recorded).unwrap().1.map(Result::unwrap);
    let last: std::collections::HashMap<_, _> = events.collect();
    let ended = trace::Event::Discard { page: PageIndex(0), pages: u64::MAX };
    assert!(last.len() > 1 && last.values().all(|&event| event == ended), "{last:?}");
    let same = replay(&[]);
    assert_eq!(same["memory_bytes"], 48 << 20);
    let get = |outcome: &serde_json::Value, name: &str| outcome[name].as_u64().unwrap();
    assert!(get(&same, "footprint_bytes") > 40 << 20 && get(&same, "swapins") > 0, "{same}");
    let counted = |name: &str| same["counters"][name].as_u64().unwrap();
    let found = get(&same, "resident_hits") + counted("pgmajfault") + counted("pgminfault");
    assert_eq!(get(&same, "accesses"), found, "each access is a hit or a fault");
    // With room for all nothing leaves.
    let roomy = replay(&["--memory", "400%", "--shrinker", "decay", "--no-disk"]);
    assert_eq!((get(&roomy, "swapins"), get(&roomy, "overcommitted_bytes")), (0, 0));
    let plot = file.with_extension("svg");
    replay(&["--plot", plot.to_str().unwrap()]);
    let drawn = fs::read_to_string(&plot).unwrap();
    assert!(drawn.starts_with("<svg") && drawn.contains("the fewest possible") && drawn.contains("recorded"));
    // What cannot be read or written is said.
    fs::write(&file, "1\n2 w\nthree\n").unwrap();
    let output = Command::new(PAGETIDE).args(["replay", path]).output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.code() == Some(1) && said.contains("line 3"), "{said}");
    let output = pagetide("32M", "", &["--trace", "/dev/full"], &["true"]).output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.code() == Some(125) && said.contains("--trace: /dev/full"), "{said}");
    // It may end at any moment, which the program does not notice.
    let limited = ["sh", "-c", "ulimit -f 40 && exec \"$0\"", &program("advice")];
    let ended = start(pagetide("28M", "", &["--no-disk", "--trace", path], &limited)).end();
    assert!(ended.stderr.contains("cannot write the trace any more"), "{}", ended.stderr);
    ended.succeeds();
    [file, plot].iter().for_each(|path| fs::remove_file(path).unwrap());
}

#[test]
fn a_page_shows_how_a_run_went_and_needs_nothing_but_itself() {
    let _turn = turn();
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("page-{}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    let [page, series, made] = ["page.html", "series.jsonl", "made.html"].map(|name| folder.join(name));
    let [page_text, series_text, made_text] = [&page, &series, &made].map(|path| path.to_str().unwrap());
    let options = ["--report", page_text, "--stats", series_text, "--stats-interval", "100ms"];
    let command = [&*program("waits"), "--mib", "80", "--rounds", "3", "--random", "1"];
    start(pagetide("48M", "", &options, &command)).end().succeeds();
    let text = fs::read_to_string(&page).unwrap();
    for expected in [
        "<!DOCTYPE html>",
        "Memory over time",
        "With more memory",
        "the cap of 48 MiB",
        "--mib 80",
        "role=\"img\"",
    ] {
        assert!(text.contains(expected), "{expected} is not in the page");
    }
    // Nothing in it is fetched or run.
    for forbidden in ["<script", "http:", "https:", "src=", "@import", "url("] {
        let found = text.replace("http://www.w3.org/2000/svg", "").contains(forbidden);
        assert!(!found, "{forbidden} is in the page");
    }
    // Each fault that brought contents back has a distance.
    let lines = fs::read_to_string(&series).unwrap();
    let last: serde_json::Value = serde_json::from_str(lines.lines().last().unwrap()).unwrap();
    let number = |value: &serde_json::Value| value.as_u64().unwrap();
    let distances = last["refault_distances"].as_array().unwrap().iter();
    let counted: u64 = distances.map(|bucket| number(&bucket["pool"]) + number(&bucket["device"])).sum();
    let faults = number(&last["counters"]["pgmajfault"]);
    assert!(counted <= faults && counted > faults * 9 / 10, "{counted} distances of {faults} faults");
    // The same page is made of the statistics.
    let run = |arguments: &[&str]| Command::new(PAGETIDE).arg("report").args(arguments).output().unwrap();
    assert!(run(&[series_text, "--output", made_text]).status.success());
    assert_eq!(fs::read_to_string(&made).unwrap(), text);
    let printed = run(&[series_text, "--output", "-"]);
    assert_eq!(String::from_utf8(printed.stdout).unwrap(), text);
    // What cannot be read or written is said; what is damaged is left out.
    fs::write(&series, format!("{lines}{{\"elapsed_s\":")).unwrap();
    let cut = run(&[series_text]);
    assert!(cut.status.success() && String::from_utf8_lossy(&cut.stderr).contains("1 line is no statistics"));
    assert_eq!(fs::read_to_string(series.with_extension("html")).unwrap(), text);
    for (arguments, why) in [
        (&["/dev/null"][..], "it has no statistics"),
        (&["/nonexistent.jsonl"], "No such file"),
        (&["/dev/zero"], "a line of more than"),
        (&[series_text, "--output", "/dev/full"], "No space left"),
    ] {
        let output = run(arguments);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.code() == Some(1) && said.contains(why), "{arguments:?}: {said}");
    }
    // What somebody else has written there stays.
    let [mine, mine_text] = ["mine.jsonl", "mine.html"].map(|name| folder.join(name));
    fs::write(&mine, &lines).unwrap();
    fs::write(&mine_text, "<p>mine").unwrap();
    let refused = run(&[mine.to_str().unwrap()]);
    assert_eq!(refused.status.code(), Some(1), "{refused:?}");
    assert_eq!(fs::read_to_string(&mine_text).unwrap(), "<p>mine");
    // A pipe that nobody reads would hold the launcher up.
    let pipe = folder.join("pipe");
    rustix::fs::mkfifoat(rustix::fs::CWD, &pipe, rustix::fs::Mode::RWXU).unwrap();
    for place in [folder.to_str().unwrap(), pipe.to_str().unwrap(), "-", "/nonexistent/page.html"] {
        let refused = pagetide("48M", "", &["--report", place], &["true"]).output().unwrap();
        let said = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(
            refused.status.code() == Some(125) && said.contains("--report: cannot write"),
            "{place}: {said}"
        );
    }
    let full = pagetide("48M", "", &["--report", "/dev/full"], &["true"]).output().unwrap();
    let said = String::from_utf8_lossy(&full.stderr).into_owned();
    assert!(full.status.success() && said.contains("--report: cannot write /dev/full"), "{said}");
    fs::remove_dir_all(&folder).unwrap();
}
