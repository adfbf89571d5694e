//! Shared memory, which the keeper of a run serves: it leaves and comes back as private memory does, for all processes
//! that map it.

use crate::common::*;
use std::cell::Cell;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

/// A run that says how it fared.
fn told(memory: &str, mask: &str, command: &[&str]) -> Command {
    let mut run = Command::new(PAGETIDE);
    run.args(["run", "-m", memory, "--"]).args(command).env("PAGETIDE_MASK", mask);
    run
}

#[test]
fn processes_that_share_pages_find_what_others_wrote() {
    let _turn = turn();
    let pages = program("shared_pages");
    for mask in masks(["", "pool", "ring"]) {
        let command = [&*pages, "--mib", "64", "--processes", "4", "--ops", "8000"];
        let ended = start(told("32M", mask, &command)).end();
        assert!(!ended.stderr.contains("nothing was swapped"), "{mask}: {}", ended.stderr);
        ended.succeeds();
    }
}

/// Two hundred of 400 KiB, of which one by one is not worth serving.
#[test]
fn small_segments_leave_where_they_are_many() {
    let _turn = turn();
    let (ended, told) = reported("44M", "", &[], &["python3", &job("segments.py"), "200", "400"]);
    let said = ended.succeeds();
    let mut found = said.lines();
    let first = found.next();
    assert!(first.is_some() && found.clone().count() == 2 && found.all(|line| Some(line) == first), "{said}");
    let left = told["bytes"]["peak"]["shared"].as_u64().unwrap();
    assert!(left < 16 << 20 && told["counters"]["pgsteal"].as_u64().unwrap() > 10_000, "{told}");
}

/// Generations are kept outside: no page goes back, also of a process that was killed while it wrote others.
#[test]
fn no_page_of_shared_memory_goes_back_whoever_is_killed() {
    let _turn = turn();
    let integrity = program("integrity");
    const OPTIONS: &str =
        "--mib 48 --processes 4 --threads 1 --seconds 2 --kill-every 150 --dir /var/tmp --alloc";
    for (kind, mask) in [("shared", "pool"), ("memfd", ""), ("shm", "ring")] {
        let command: Vec<_> = [&*integrity].into_iter().chain(OPTIONS.split(' ')).chain([kind]).collect();
        let ended = start(told("32M", mask, &command)).end();
        assert!(!ended.stderr.contains("nothing was swapped"), "{kind}: {}", ended.stderr);
        let said = ended.succeeds();
        assert!(said.contains("slots checked"), "{kind}: {said}");
    }
}

/// What nobody may touch before it is served: a child's inheritance, a mapping that moves, one beside a hole.
#[test]
fn calls_on_shared_memory_do_what_they_do_natively() {
    let _turn = turn();
    let calls = program("shared_calls");
    for mask in ["", "pool"] {
        let said = start(pagetide("24M", mask, &[], &[&calls])).end().succeeds();
        assert!(said.ends_with("forks beside calls\n"), "{said}");
    }
}

#[test]
fn calls_on_shared_memory_at_once_lose_nothing() {
    let _turn = turn();
    let races = program("shared_races");
    for mask in first_mask(["", "pool"]) {
        let said = start(pagetide("24M", mask, &[], &[&races, &times(12)])).end().succeeds();
        assert!(said.ends_with("forks beside mappings\n"), "{said}");
    }
}

#[test]
fn shared_memory_that_fits_stays_where_it_is() {
    let _turn = turn();
    let command = [&*program("shared_pages"), "--mib", "16", "--ops", "2000"];
    let ended = start(told("256M", "", &command)).end();
    assert!(ended.stderr.contains("nothing was swapped"), "{}", ended.stderr);
    ended.succeeds();
}

#[test]
fn without_a_keeper_shared_memory_stays_in_memory_and_is_counted() {
    let _turn = turn();
    let command = [&*program("shared_pages"), "--mib", "64", "--ops", "20000"];
    let ended = start(told("32M", "shared", &command)).end();
    assert!(ended.stderr.contains("the cap of 32 MiB did not hold"), "{}", ended.stderr);
    ended.succeeds();
}

fn keeper_of(launcher: u32) -> Option<i32> {
    let children = std::fs::read_to_string(format!("/proc/{launcher}/task/{launcher}/children")).ok()?;
    let others = std::fs::read_dir(format!("/proc/{launcher}/task")).ok()?.flatten();
    let of_threads = others
        .filter_map(|task| std::fs::read_to_string(task.path().join("children")).ok())
        .collect::<Vec<_>>()
        .join(" ");
    format!("{children} {of_threads}").split_ascii_whitespace().find_map(|pid| {
        let command = std::fs::read_to_string(format!("/proc/{pid}/cmdline")).ok()?;
        command.split('\0').nth(1).filter(|&word| word == "keeper")?;
        pid.parse().ok()
    })
}

/// Pages that are out are lost with it: whoever maps them must not read zeroes.
#[test]
fn processes_end_with_the_keeper_of_their_memory() {
    let _turn = turn();
    let command = [&*program("shared_pages"), "--mib", "64", "--ops", "100000000"];
    let run = start(told("32M", "", &command));
    let launcher = run.child.id();
    run.until("pages are out", || {
        report(&launcher.to_string())
            .is_some_and(|report| report["counters"]["zswpout"].as_u64() > Some(5000))
    });
    let keeper = keeper_of(launcher).expect("the keeper is a child of the launcher");
    // SAFETY: no memory is passed.
    assert_eq!(unsafe { libc::kill(keeper, libc::SIGKILL) }, 0);
    let ended = run.end();
    assert!(!ended.stderr.contains("WRONG"), "{}", ended.stderr);
    match ended.status.code() {
        // The first process was quicker to see its children end, and to say so in its status, than to be ended.
        Some(1) => assert!(ended.stderr.contains("memory has ended: processes that"), "{}", ended.stderr),
        code => {
            assert_eq!(code, Some(128 + libc::SIGKILL), "{}", ended.stderr);
            assert!(ended.stderr.contains("the keeper of its shared memory had ended"), "{}", ended.stderr);
        }
    }
}

/// A process that is killed takes nothing of the others' with it, and its memory is given back when the last has gone.
#[test]
fn processes_that_are_killed_harm_nobody() {
    let _turn = turn();
    // It kills by name.
    let killed = built("shared_pages", "shared_killed", &["-lpthread"]);
    // Those that are killed leave locks held, for which the others of their family wait until they are killed too.
    const SCRIPT: &str = "for n in 1 2 3 4 5 6; do setsid -w \"$0\" --mib 24 --processes 3 --ops 100000000 & \
                          sleep 0.5; pkill -9 -n shared_killed; sleep 0.2; pkill -9 shared_killed; done 2> /dev/null; wait; \
                          \"$0\" --mib 48 --ops 5000";
    let command = ["sh", "-c", SCRIPT, &killed];
    let run = start(told("32M", "", &command));
    let launcher = run.child.id();
    let keeper = Cell::new(None);
    run.until("there is a keeper", || {
        keeper.set(keeper_of(launcher));
        keeper.get().is_some()
    });
    let ended = run.end();
    assert!(!ended.stderr.contains("WRONG"), "{}", ended.stderr);
    ended.succeeds();
    // What nobody has reaped has no command line any more.
    let command = format!("/proc/{}/cmdline", keeper.get().unwrap());
    for _ in 0..1000 {
        if std::fs::read(&command).is_ok_and(|words| !words.is_empty()) {
            std::thread::sleep(Duration::from_millis(10));
        } else {
            return;
        }
    }
    panic!("the keeper goes on after all that it served has gone");
}

/// A tmpfs of its own; it goes with the test.
struct Tmpfs(PathBuf);

impl Tmpfs {
    fn mount(size: &str) -> Self {
        let temporary = std::env::temp_dir().canonicalize().unwrap();
        let tmpfs = Self(temporary.join(format!("pagetide-tmpfs-{}", std::process::id())));
        std::fs::create_dir_all(&tmpfs.0).unwrap();
        let options = format!("size={size}");
        let mut mount = Command::new("mount");
        assert!(
            mount.args(["-t", "tmpfs", "-o", &options, "none"]).arg(&tmpfs.0).status().unwrap().success()
        );
        tmpfs
    }
}

impl Drop for Tmpfs {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("--lazy").arg(&self.0).status();
        let _ = std::fs::remove_dir(&self.0);
    }
}

/// What is out of a file others may have taken the room of: the program waits for that, and a message says so.
#[test]
fn pages_wait_for_room_in_their_file_system() {
    let _turn = turn();
    let tmpfs = Tmpfs::mount("56M");
    let directory = tmpfs.0.to_str().unwrap();
    let run = start(told("32M", "", &["/usr/bin/python3", &job("full_tmpfs.py"), directory, "48"]));
    run.until("it says that it waits", || {
        run.said()[1].contains(&format!(
            "the file system of {directory}/shared is full: pages of that shared memory wait"
        ))
    });
    std::fs::remove_file(tmpfs.0.join("other")).unwrap();
    assert_eq!(run.end().succeeds(), "No space left on device\n0 pages are wrong\n");
}

/// A file of /dev/shm; it goes with the test.
struct ShmFile(String);

impl ShmFile {
    fn new(of: &str) -> Self {
        Self(format!("/dev/shm/pagetide-test-{of}-{}", std::process::id()))
    }

    /// Whether page `n` begins with the number `n`, for all of so many.
    fn is_right(&self, pages: usize) -> bool {
        let bytes = std::fs::read(&self.0).unwrap();
        assert_eq!(bytes.len(), pages << 12);
        bytes.chunks(4096).enumerate().all(|(nth, page)| page[..8] == (nth as u64).to_le_bytes())
    }
}

impl Drop for ShmFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Python that maps a file of `PAGES` pages, writes its number into each, fills other memory, so that they leave, and waits
/// for a line.
fn numbers_its_pages(file: &ShmFile) -> [String; 3] {
    let script = format!(
        "import mmap, os, sys\nfd = os.open('{}', os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)\nos.ftruncate(fd, {PAGES} << 12)\n\
         m = mmap.mmap(fd, {PAGES} << 12)\n\
         for page in range({PAGES}): m[page << 12:(page << 12) + 8] = page.to_bytes(8, 'little')\n\
         other = os.urandom(1 << 20) * 96\nprint('filled', flush=True)\nsys.stdin.readline()\n\
         for page in range({PAGES}): assert m[page << 12:(page << 12) + 8] == page.to_bytes(8, 'little'), page\n",
        file.0
    );
    ["/usr/bin/python3".into(), "-c".into(), script]
}

/// A run that has filled its file, and waits for the end of its input.
fn filled(mut command: Command) -> Run {
    let run = start({
        command.stdin(Stdio::piped());
        command
    });
    run.until("the file is filled", || run.said()[0].contains("filled"));
    run
}

/// The caps of the tests below are a little more, since in the end all of it is to be in memory.
const PAGES: usize = 12_000;

#[test]
fn shared_memory_with_a_name_or_a_descriptor_is_what_it_is_natively() {
    let _turn = turn();
    let files = program("shared_files");
    for (memory, mask) in [("24M", ""), ("24M", "pool"), ("24M", "ring"), ("256M", ""), ("24M", "shared")] {
        println!("{memory}, PAGETIDE_MASK={mask}");
        let said = start(pagetide(memory, mask, &["--swap-size", "160M"], &[&files])).end().succeeds();
        assert!(said.ends_with("objects end\n"), "{said}");
    }
}

/// Nobody outside of the run reads a hole: whoever opens the file waits until all of it is there.
#[test]
fn outsiders_find_what_the_run_has_written() {
    let _turn = turn();
    let file = ShmFile::new("outsiders");
    let command = numbers_its_pages(&file);
    let words: Vec<&str> = command.iter().map(String::as_str).collect();
    let mut run = filled(pagetide("72M", "", &[], &words));
    let before = std::fs::metadata(&file.0).unwrap();
    assert!((before.blocks() as usize) < PAGES * 8, "some of it is out");
    assert!(file.is_right(PAGES));
    drop(run.child.stdin.take());
    run.end().succeeds();
    assert!(file.is_right(PAGES));
}

/// What a run leaves behind in a file is there when it is over.
#[test]
fn files_that_a_run_leaves_behind_are_whole() {
    let _turn = turn();
    for ends in ["exit", "SIGKILL"] {
        let file = ShmFile::new(ends);
        let [python, option, mut script] = numbers_its_pages(&file);
        if ends == "SIGKILL" {
            script += "os.kill(os.getpid(), 9)\n";
        }
        let mut run = filled(pagetide("72M", "", &[], &[&python, &option, &script]));
        drop(run.child.stdin.take());
        let ended = run.end();
        assert_eq!(ended.status.success(), ends == "exit", "{}", ended.stderr);
        assert!(file.is_right(PAGES), "{ends}: {}", ended.stderr);
    }
}

/// What was out is lost with the keeper: nobody is to find zeroes by the name.
#[test]
fn a_file_whose_keeper_was_killed_has_no_name_any_more() {
    let _turn = turn();
    let file = ShmFile::new("killed");
    let command = numbers_its_pages(&file);
    let words: Vec<&str> = command.iter().map(String::as_str).collect();
    let run = filled(pagetide("72M", "", &[], &words));
    let keeper = keeper_of(run.child.id()).expect("the keeper is a child of the launcher");
    // SAFETY: no memory is passed.
    assert_eq!(unsafe { libc::kill(keeper, libc::SIGKILL) }, 0);
    let ended = run.end();
    assert_eq!(ended.status.code(), Some(128 + libc::SIGKILL), "{}", ended.stderr);
    assert!(std::fs::metadata(&file.0).is_err());
}
