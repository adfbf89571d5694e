//! Families of processes: each keeps its own pages, however it came about and whoever of them ends.

use crate::common::*;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

#[test]
fn every_process_of_a_family_keeps_its_own_pages() {
    let _turn = turn();
    start(pagetide("128M", "", &[], &[&program("forks"), "--mib", "60"])).end().succeeds();
}

#[test]
fn a_family_several_times_the_cap_keeps_its_own_pages() {
    let _turn = turn();
    start(pagetide("32M", "", &[], &[&program("forks"), "--mib", "24"])).end().succeeds();
}

#[test]
fn a_family_that_fits_keeps_its_own_pages() {
    let _turn = turn();
    start(pagetide("256M", "", &[], &[&program("forks"), "--mib", "24"])).end().succeeds();
}

/// 60 MiB, and four children at a time: what they share is charged twice in all.
#[test]
fn children_that_only_read_need_no_swap_where_their_parent_fits_twice() {
    let _turn = turn();
    let (ended, told) = reported("200M", "", &[], &[&program("lending"), "--mib", "60", "--read", "3"]);
    ended.succeeds();
    let counters = &told["counters"];
    assert_eq!((&counters["pgsteal"], &counters["wp_fault"]), (&0.into(), &0.into()), "{told}");
}

#[test]
fn what_children_borrow_is_theirs_however_they_write_to_it() {
    let _turn = turn();
    let command = [&*program("lending"), "--mib", "60", "--steps", "1500"];
    let (ended, told) = reported("150M", "", &[], &command);
    ended.succeeds();
    assert!(told["counters"]["wp_fault"].as_u64().unwrap() > 0, "{told}");
    for (memory, masks) in [("70M", ""), ("70M", "lend"), ("100M", "remap,copy")] {
        start(pagetide(memory, masks, &[], &command)).end().succeeds();
    }
}

#[test]
fn children_keep_what_they_borrowed_of_a_parent_that_has_ended() {
    let _turn = turn();
    let command = [&*program("lending"), "--mib", "60", "--steps", "1500", "--orphans"];
    start(pagetide("100M", "", &[], &command)).end().succeeds();
}

#[test]
fn a_program_forks_while_its_threads_fault_and_use_streams() {
    let _turn = turn();
    let command = [&*program("fork_threads"), "--mib", "36", "--threads", "2", "--forks", &times(40)];
    start(pagetide("30M", "", &[], &command)).end().succeeds();
}

/// The first forks of a program come while its heap grows fastest: so it is started again and again.
#[test]
fn children_allocate_whatever_lock_of_the_allocator_a_thread_held_at_the_fork() {
    let _turn = turn();
    let again = format!("for nth in $(seq {}); do {} || exit 1; done", times(60), program("fork_malloc"));
    start(pagetide("1G", "", &[], &["sh", "-c", &again])).end().succeeds();
}

#[test]
fn forks_do_not_wait_for_threads_that_a_collector_has_stopped() {
    let _turn = turn();
    for memory in ["1G", "100M"] {
        let command = [&*program("fork_malloc"), "--collect", "--forks", &times(20)];
        start(pagetide(memory, "", &[], &command)).end().succeeds();
    }
}

/// A cgroup in which there may be so many tasks, and that goes with the test.
struct FewTasks(PathBuf);

impl Drop for FewTasks {
    fn drop(&mut self) {
        while fs::remove_dir(&self.0).is_err_and(|error| error.kind() == ErrorKind::ResourceBusy) {
            std::thread::yield_now();
        }
    }
}

/// Each process has the threads of an engine: with 60 tasks some find none when they start it, and io_uring no workers.
#[test]
fn children_go_on_where_there_may_be_no_more_tasks() {
    let _turn = turn();
    let controller = Path::new("/sys/fs/cgroup/pids");
    if !controller.join("cgroup.procs").exists() {
        println!("skipped: the controller of tasks (version 1) is not there");
        return;
    }
    let cgroup = FewTasks(controller.join(format!("pagetide-tasks-{}", std::process::id())));
    fs::create_dir(&cgroup.0).unwrap();
    fs::write(cgroup.0.join("pids.max"), "60").unwrap();
    let procs = cgroup.0.join("cgroup.procs");
    let job = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/jobs/few_tasks.py");
    let command = format!("echo $$ > {} && exec /usr/bin/python3 {job}", procs.display());
    for masks in ["", "ring"] {
        start(pagetide("48M", masks, &[], &["sh", "-c", &command])).end().succeeds();
    }
}

/// Twelve children of 12 MiB: of whom the launcher has not looked at, their successors take over what they had.
#[test]
fn children_in_turn_need_no_swap_where_each_fits() {
    let _turn = turn();
    let (ended, told) = reported("80M", "", &[], &[&python(), &job("children_in_turn.py")]);
    ended.succeeds();
    assert_eq!(told["counters"]["pgsteal"], 0, "{told}");
}

#[test]
fn handlers_of_signals_fork_whatever_their_thread_is_doing() {
    let _turn = turn();
    for (memory, mib) in [("1G", "4"), ("20M", "20")] {
        let command = [&*program("fork_handler"), "--mib", mib, "--forks", &times(100)];
        start(pagetide(memory, "", &[], &command)).end().succeeds();
    }
}

/// 24 MiB that no engine manages, which the children had before they had engines of their own: counted in each they would be
/// 120 of 96 MiB, and nothing that can leave would stay in memory.
#[test]
fn what_children_share_without_an_engine_counts_once() {
    const MIB: u64 = 1 << 20;
    let _turn = turn();
    if !std::fs::read_to_string("/proc/self/smaps").unwrap().contains("Pss_Dirty:") {
        println!("skipped: this kernel does not tell shares of dirty pages (6.0)");
        return;
    }
    let unmanaged = program("unmanaged");
    let mut command = pagetide("96M", "", &[], &[&unmanaged, "24", "4", "20"]);
    command.stdin(Stdio::piped());
    let mut run = start(command);
    let pid = run.child.id().to_string();
    run.until("each page is counted once", || {
        report(&pid).is_some_and(|report| {
            let now = |name: &str| report["bytes"]["now"][name].as_u64().unwrap();
            let armed =
                report["process_list"].as_array().unwrap().iter().filter(|process| process["armed"] == true);
            armed.count() >= 4
                && now("resident") + now("swapped") + now("frames") >= 4 * 20 * MIB
                && now("unmanaged") < 3 * 24 * MIB
        })
    });
    drop(run.child.stdin.take());
    run.end().succeeds();
}

/// What it takes may be more than is free: nobody but the process itself may start its engine.
#[test]
fn a_child_of_vfork_works_in_memory_that_is_not_its_own() {
    let _turn = turn();
    for memory in ["16M", "40M", "256M"] {
        // The parent and a child of it have 45 MiB each.
        start(pagetide(memory, "", &["--swap-size", "256M"], &[&program("vfork")])).end().succeeds();
    }
}

/// Its engine does not run when it begins to wait: others have to be able to start it.
#[test]
fn children_that_are_cloned_keep_their_parents_pages() {
    // Needs root for those in namespaces.
    let _turn = turn();
    for mask in masks(["", "remap", "pool"]) {
        start(pagetide("32M", mask, &[], &[&program("clones")])).end().succeeds();
    }
}

/// What the pool holds at a fork is free when parent and child have both let go of it, which neither does unasked.
#[test]
fn the_pool_that_a_fork_shares_gives_way_to_who_needs_room() {
    let _turn = turn();
    let idle = program("idle");
    for mask in ["", "ring"] {
        start(pagetide("64M", mask, &["--max-pool-percent", "90"], &[&idle, "80", "44"])).end().succeeds();
    }
}

#[test]
fn who_holds_memory_and_waits_gives_it_to_who_needs_it() {
    let _turn = turn();
    let idle = program("idle");
    for (memory, held, locked) in [("64M", "40", "40"), ("64M", "20", "44"), ("256M", "200", "180")] {
        start(pagetide(memory, "", &[], &[&idle, held, locked])).end().succeeds();
    }
}

/// An engine would take more than they could give.
#[test]
fn small_processes_that_wait_have_no_engine() {
    let _turn = turn();
    let run = start(pagetide("40M", "", &[], &["sh", &job("sleepers.sh")]));
    let pid = run.child.id().to_string();
    let mut found = None;
    while found.is_none() && run.started.elapsed() < GUARD {
        std::thread::sleep(Duration::from_millis(50));
        found = report(&pid).filter(|report| {
            let processes = report["process_list"].as_array().unwrap();
            processes.iter().filter(|process| process["name"] == "sleep").count() == 12
        });
    }
    // A killed process is gone when it has given back what it holds: the launcher may be so first.
    let group = run.child.id();
    kill_group(group);
    run.until("the end of all", || living(group).is_empty());
    assert!(!run.end().status.success());
    let report = found.expect("all of them start");
    let processes = report["process_list"].as_array().unwrap();
    assert!(processes.iter().all(|process| process["armed"] == false), "{report:#}");
}

/// Whether the C library knows of threads, and whether there is an engine, is four cases of what it resets in a child.
#[test]
fn threads_of_forked_children_open_streams() {
    let _turn = turn();
    let streams = program("streams");
    for arguments in [["0", "0"], ["1", "0"], ["0", "100"], ["1", "100"]] {
        let [threads, mib] = arguments;
        start(pagetide("40M", "", &[], &[&streams, threads, mib])).end().succeeds();
    }
}

#[test]
fn chains_of_forked_shells_live_in_little_memory() {
    let _turn = turn();
    let chain = job("chain.sh");
    for _ in 0..5 {
        let ended = start(pagetide("16M", "", &[], &["bash", &chain])).end().succeeds();
        assert_eq!(ended, "108893\n108893\n108893\n");
    }
}

/// What the fork shares is in the pool once, though the child brings all of it in and lets it go again, time after time.
#[test]
fn a_child_that_only_reads_stores_nothing_anew_that_was_out_at_the_fork() {
    let _turn = turn();
    let reader = job("reader.py");
    let run = start(pagetide("130M", "", &["--no-disk"], &[&python(), &reader]));
    assert_eq!(run.end().succeeds(), "0 of 120000 differ\n0 of 30000 differ\n");
}

#[test]
fn a_child_outlives_its_parent_with_what_it_inherited() {
    let _turn = turn();
    let heir = job("heir.py");
    for mask in masks(["", "remap", "pool"]) {
        println!("PAGETIDE_MASK={mask}");
        let run = start(pagetide("48M", mask, &["--swap-size", "1G"], &[&python(), &heir]));
        assert_eq!(run.end().succeeds(), "good True\n");
    }
}

/// What it has started is killed with it, but not what that has started.
#[test]
fn who_outlives_a_killed_launcher_keeps_its_pages() {
    let _turn = turn();
    let orphan = job("orphan.py");
    for mask in ["", "pool"] {
        println!("PAGETIDE_MASK={mask}");
        let starts = ["sh", "-c", "\"$@\"; exit", "sh", &python(), &orphan];
        let mut command = pagetide("40M", mask, &["--swap-size", "1G"], &starts);
        command.stdin(Stdio::piped());
        let mut run = start(command);
        run.until("its pages", || run.said()[0] == "ready\n");
        outlives_launcher(&mut run);
    }
}
