//! Whole programs under `pagetide run`, in less memory than they need.

mod common;

use common::*;
use pagetide_swap::{PageIndex, trace};
use rustix::fs::{SeekFrom, seek};
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// What `integrity` is run under: each way out and in alone, and each fallback.
const MASKS: [&str; 9] =
    ["", "remap", "move", "copy", "scan", "ring,pool", "pool", "remap,pool", "move,pool"];

fn integrity(threads: &str, ops: &str) {
    let _turn = turn();
    let integrity = program("integrity");
    for (seed, mask) in MASKS.into_iter().enumerate() {
        let seed = seed.to_string();
        let command = [
            &integrity,
            "--mib",
            "120",
            "--threads",
            threads,
            "--ops",
            ops,
            "--seed",
            &seed,
            "--dir",
            "/var/tmp",
        ];
        println!("PAGETIDE_MASK={mask} {}", command.join(" "));
        start(pagetide("48M", mask, &[], &command)).end().succeeds();
    }
}

#[test]
fn one_thread_reads_what_it_wrote_by_every_way() {
    integrity("1", "4000");
}

#[test]
fn four_threads_read_what_they_wrote_by_every_way() {
    integrity("4", "1500");
}

#[test]
fn counters_never_go_back_while_readers_fault() {
    let _turn = turn();
    for mask in ["", "pool"] {
        let command = [&*program("hammer"), "--mib", "96", "--seconds", "2"];
        start(pagetide("48M", mask, &[], &command)).end().succeeds();
    }
}

/// The interpreter itself: what the name finds may be a chain of shell scripts.
fn python() -> String {
    let found = Command::new("python3").args(["-c", "import sys; print(sys.executable)"]).output().unwrap();
    String::from_utf8(found.stdout).unwrap().trim().to_owned()
}

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
fn a_program_forks_while_its_threads_fault_and_use_streams() {
    let _turn = turn();
    let command = [&*program("fork_threads"), "--mib", "36", "--threads", "2", "--forks", "100"];
    start(pagetide("30M", "", &[], &command)).end().succeeds();
}

/// The launcher holds a descriptor for each process. One that it cannot look at is not dead for that: its memory and
/// its blocks would become others'.
#[test]
fn a_launcher_short_of_descriptors_takes_nobody_for_dead() {
    let _turn = turn();
    let job = "
import os
data = [b'%07d' % nth * 600 for nth in range(1500)]
children = []
for child in range(24):
    pid = os.fork()
    if not pid:
        own = bytes([child]) * 4200
        mine = [own + page for page in data]
        wrong = sum(page != own + b'%07d' % nth * 600 for _ in range(3) for nth, page in enumerate(mine))
        os._exit(wrong > 0)
    children.append(pid)
print(sum(os.waitpid(pid, 0)[1] for pid in children))";
    for _ in 0..3 {
        let mut command = Command::new("sh");
        let limited = "ulimit -n 20 && exec \"$@\"";
        command.args(["-c", limited, "sh", PAGETIDE, "run", "-q", "-m", "64M", "--swap-size", "1G", "--"]);
        command.args(["python3", "-c", job]);
        assert_eq!(start(command).end().succeeds(), "0\n");
    }
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
    for mask in ["", "remap", "pool"] {
        start(pagetide("32M", mask, &[], &[&program("clones")])).end().succeeds();
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

/// It maps and forks with the locks of its `malloc` held; threads of the engine must not ask for memory there.
#[test]
fn a_program_that_brings_its_own_malloc_is_managed_also_when_it_forks() {
    let _turn = turn();
    let own = program("own_malloc");
    for (memory, way) in [("16M", "mmap"), ("64M", "mmap"), ("16M", "brk")] {
        let mut run = Command::new(PAGETIDE);
        run.args(["run", "-m", memory, "--swap-size", "1G", "--", &own, way]);
        let ended = start(run).end();
        assert!(ended.stderr.contains("pagetide: out "), "{}", ended.stderr);
        assert_eq!(ended.succeeds(), "ok\n");
    }
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
fn chains_of_forked_shells_live_in_little_memory() {
    let _turn = turn();
    let chain = r#"
        f() {
            if [ $1 -gt 0 ]; then
                ( a=$(seq 1 2000); x=$(echo "$a" | sort | tail -1); f $(($1 - 1)) )
            else
                a=$(seq 1 20000); echo ${#a}
            fi
        }
        for i in 1 2 3; do f 5; done"#;
    for _ in 0..5 {
        let ended = start(pagetide("16M", "", &[], &["bash", "-c", chain])).end().succeeds();
        assert_eq!(ended, "108893\n108893\n108893\n");
    }
}

/// What `pagetide stat` tells of a run, once it does.
fn report(pid: &str) -> Option<serde_json::Value> {
    let output = Command::new(PAGETIDE).args(["stat", pid, "--json"]).output().unwrap();
    output.status.success().then(|| serde_json::from_slice(&output.stdout).unwrap())
}

/// An engine would take more than they could give.
#[test]
fn small_processes_that_wait_have_no_engine() {
    let _turn = turn();
    let many = r#"for i in $(seq 12); do sh -c "sleep 1000; :" & done; wait"#;
    let run = start(pagetide("40M", "", &[], &["sh", "-c", many]));
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

/// It has one object of each of many sizes: the allocator sets aside 40 MiB for them, of which 2 are used.
#[test]
fn what_the_allocator_sets_aside_and_nobody_uses_is_not_charged() {
    let _turn = turn();
    let mut run = Command::new(PAGETIDE);
    run.args(["run", "-m", "24M", "--", &program("sizes")]);
    let ended = start(run).end();
    assert!(ended.stderr.contains("nothing was swapped"), "no engine: {}", ended.stderr);
    ended.succeeds();
}

/// The allocator starts when a process has allocated more than small ones do.
#[test]
fn what_a_process_allocated_first_stays_its_own_when_the_allocator_starts() {
    let _turn = turn();
    let beginnings = program("beginnings");
    for how in ["little", "grown", "threads", "forks", "confined"] {
        for memory in ["24M", "64M"] {
            let mut run = Command::new(PAGETIDE);
            run.args(["run", "-q", "-m", memory, "--", &beginnings, how]);
            let said = start(run).end().succeeds();
            let bytes: usize = said.trim().parse().unwrap();
            assert_eq!(bytes < 64 << 10, how == "little", "{how}: the allocator has {bytes} bytes");
        }
    }
}

/// Natively too, so that the demands are known to be glibc's.
#[test]
fn the_allocator_accounts_for_what_it_holds() {
    let _turn = turn();
    let accounts = program("accounts");
    for arguments in [&[][..], &["threads"]] {
        let mut native = Command::new(&accounts);
        native.args(arguments);
        start(native).end().succeeds();
        for memory in ["24M", "256M"] {
            let mut run = Command::new(PAGETIDE);
            run.args(["run", "-q", "-m", memory, "--", &accounts]).args(arguments);
            start(run).end().succeeds();
        }
    }
}

#[test]
fn a_family_that_fits_keeps_its_own_pages() {
    let _turn = turn();
    start(pagetide("256M", "", &[], &[&program("forks"), "--mib", "24"])).end().succeeds();
}

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
fn the_kernel_finds_what_is_out_of_memory() {
    let _turn = turn();
    // Without "move", for it pins pages (docs/limits.md).
    for mask in ["", "remap", "copy", "pool"] {
        println!("PAGETIDE_MASK={mask} syscalls");
        start(pagetide("28M", mask, &[], &[&program("syscalls")])).end().succeeds();
    }
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

#[test]
fn threads_can_be_cancelled_in_calls_that_we_see() {
    let _turn = turn();
    start(pagetide("64M", "", &[], &[&program("cancel")])).end().succeeds();
}

#[test]
fn a_program_may_fault_at_odd_moments_and_take_from_itself_what_it_likes() {
    let _turn = turn();
    let odd = program("odd");
    for (mask, option) in [("", None), ("remap", None), ("copy", None), ("pool", Some("--no-fsize"))] {
        println!("PAGETIDE_MASK={mask} odd {}", option.unwrap_or_default());
        let command: Vec<&str> = std::iter::once(&*odd).chain(option).collect();
        start(pagetide("28M", mask, &[], &command)).end().succeeds();
    }
}

/// A setting of the kernel, and its value from before.
struct Setting(&'static str, String);

impl Setting {
    fn change(path: &'static str, value: &str) -> Self {
        let before = fs::read_to_string(path).unwrap();
        // Some list all values, the one that holds in brackets.
        let chosen = before.split(['[', ']']).nth(1).map(str::to_owned);
        let before = chosen.unwrap_or(before);
        fs::write(path, value).unwrap_or_else(|error| panic!("{path} (needs root): {error}"));
        Self(path, before)
    }
}

impl Drop for Setting {
    fn drop(&mut self) {
        let _ = fs::write(self.0, self.1.trim());
    }
}

/// Twice the cap and more, read again, and by children of children.
const FAMILY: &str = "
import os
pages = [bytes([nth % 251]) * 5000 + b'%d' % nth for nth in range(20000)]
def good():
    return all(page == bytes([nth % 251]) * 5000 + b'%d' % nth for nth, page in enumerate(pages))
def line(generations):
    child = os.fork()
    if not child:
        os._exit(0 if good() and (generations == 0 or line(generations - 1)) else 1)
    return os.waitpid(child, 0)[1] == 0
";

#[test]
fn a_program_starts_and_forks_where_address_space_is_limited() {
    let _turn = alone();
    let job = |arguments: &[&str]| start(pagetide("40M", "", &[], arguments)).end().succeeds();
    let python = python();
    let family = format!(
        "{FAMILY}
large = bytearray(150 << 20)
large[::4096] = bytes(len(large) >> 12)
print(good(), line(3), len(large))"
    );
    for kilobytes in ["4000000", "1000000"] {
        let limited = format!("ulimit -v {kilobytes} && exec \"$@\"");
        let said = job(&["sh", "-c", &limited, "sh", &python, "-c", &family]);
        assert_eq!(said, "True True 157286400\n", "ulimit -v {kilobytes}");
    }
    // Needs root. Nothing is promised that is not there.
    let strict = Setting::change("/proc/sys/vm/overcommit_memory", "2");
    assert_eq!(job(&[&python, "-c", &family]), "True True 157286400\n");
    drop(strict);
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
fn a_child_outlives_its_parent_with_what_it_inherited() {
    let _turn = turn();
    let job = "
import os, time
pages = [b'%07d' % nth * 700 for nth in range(20000)]
reads, writes = os.pipe()
if not os.fork():
    parent = os.getpid()
    if not os.fork():
        while os.getppid() == parent:
            time.sleep(0.01)
        pages[::3] = [b'%07d' % -nth * 700 for nth in range(0, 20000, 3)]
        good = all(page == b'%07d' % (nth if nth % 3 else -nth) * 700 for nth, page in enumerate(pages))
        os.write(writes, b'good' if good else b'wrong')
    os._exit(0)
os.wait()
os.close(writes)
print(os.read(reads, 9).decode(), all(page == b'%07d' % nth * 700 for nth, page in enumerate(pages)))";
    for mask in ["", "remap", "pool"] {
        println!("PAGETIDE_MASK={mask}");
        let run = start(pagetide("48M", mask, &["--swap-size", "1G"], &[&python(), "-c", job]));
        assert_eq!(run.end().succeeds(), "good True\n");
    }
}

/// Each of them has most of the swap file.
#[test]
fn the_blocks_of_killed_processes_serve_others() {
    let _turn = turn();
    let job = "
import os, signal
def fill():
    import random
    random.seed(os.getpid())
    pages = [random.randbytes(4000) for _ in range(24000)]
    random.seed(os.getpid())
    os.write(writes, b'g' if all(page == random.randbytes(4000) for page in pages) else b'w')
    signal.pause()
for nth in range(6):
    reads, writes = os.pipe()
    child = os.fork()
    if not child:
        fill()
    os.close(writes)
    print(os.read(reads, 1).decode(), end='', flush=True)
    os.kill(child, signal.SIGKILL)
    os.wait()
    os.close(reads)
print()";
    for mask in ["pool", "pool,ring"] {
        println!("PAGETIDE_MASK={mask}");
        let run = start(pagetide("32M", mask, &["--swap-size", "128M"], &[&python(), "-c", job]));
        assert_eq!(run.end().succeeds(), "gggggg\n");
    }
}

/// What it has started is killed with it, but not what that has started.
#[test]
fn who_outlives_a_killed_launcher_keeps_its_pages() {
    let _turn = turn();
    let job = format!(
        "{FAMILY}
import sys
print('ready', flush=True)
sys.stdin.read()
print(good(), line(2))
more = [page[::-1] for page in pages]
print(good(), all(page[::-1] == other for page, other in zip(pages, more)), line(2))"
    );
    for mask in ["", "pool"] {
        println!("PAGETIDE_MASK={mask}");
        let starts = ["sh", "-c", "\"$@\"; exit", "sh", &python(), "-c", &job];
        let mut command = pagetide("40M", mask, &["--swap-size", "1G"], &starts);
        command.stdin(Stdio::piped());
        let mut run = start(command);
        run.until("its pages", || run.said()[0] == "ready\n");
        let group = run.child.id();
        run.child.kill().unwrap();
        run.child.wait().unwrap();
        drop(run.child.stdin.take());
        run.until("its end", || living(group).is_empty());
        assert_eq!(run.said()[0], "ready\nTrue True\nTrue True True\n", "{}", run.said()[1]);
    }
}

/// Each names itself as its own `/proc` has it. To the launcher it has another name.
#[test]
fn processes_in_pid_namespaces_of_their_own_live_as_long_as_they_do() {
    let _turn = turn();
    // Needs root.
    let job = format!(
        "{FAMILY}
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
PID, MOUNTS, PRIVATE = 0x20000000, 0x20000, 1 << 14 | 1 << 18
def call(name, *arguments):
    if getattr(libc, name)(*arguments):
        raise OSError(ctypes.get_errno(), name)
def child(todo):
    pid = os.fork()
    if not pid:
        os._exit(0 if todo() else 1)
    return os.waitpid(pid, 0)[1] == 0
def inside(flags, todo):
    return child(lambda: call('unshare', flags) or child(todo))
def first():
    return os.getpid() == 1 and line(1)
def hidden():
    call('mount', b'none', b'/', None, PRIVATE, None)
    call('mount', b'proc', b'/proc', b'proc', 0, None)
    return first() and inside(PID, first)
print(inside(PID, first), inside(PID | MOUNTS, hidden), good())"
    );
    for mask in ["", "pool"] {
        println!("PAGETIDE_MASK={mask}");
        let run = start(pagetide("48M", mask, &["--swap-size", "1G"], &[&python(), "-c", &job]));
        assert_eq!(run.end().succeeds(), "True True True\n");
    }
    let python = python();
    // By exec: one that sees the launcher's `/proc`, one that does not.
    for mount in [&[][..], &["--mount-proc"]] {
        println!("unshare {mount:?}");
        let script = format!("{FAMILY}\nprint(os.getpid(), good(), line(1))");
        let command = [&["unshare", "--fork", "--pid"], mount, &[&python, "-c", &script]].concat();
        let run = start(pagetide("48M", "", &["--swap-size", "1G"], &command));
        assert_eq!(run.end().succeeds(), "1 True True\n");
    }
}

/// Each program of the line has all of the swap file, and writes to it when the next one starts.
#[test]
fn writes_of_a_program_that_execs_do_not_come_over_those_of_the_next() {
    let _turn = turn();
    let job = "
import os, random, sys
left = int(os.environ['LEFT'])
def pages(count):
    random.seed(left)
    return (random.randbytes(4000) for _ in range(count))
held = list(pages(14000))
if not all(page == again for page, again in zip(held, pages(len(held)))):
    sys.exit('wrong')
if not left:
    sys.exit(print('good'))
os.environ['LEFT'] = str(left - 1)
held[:6000] = [page[::-1] for page in held[:6000]]
os.execv(sys.executable, [sys.executable, '-c', 'import os; exec(os.environ[\"JOB\"])'])";
    for mask in ["pool", "pool,ring"] {
        println!("PAGETIDE_MASK={mask}");
        let starts = [&*python(), "-c", "import os; exec(os.environ['JOB'])"];
        let mut command = pagetide("24M", mask, &["--swap-size", "96M"], &starts);
        command.env("JOB", job).env("LEFT", "4");
        assert_eq!(start(command).end().succeeds(), "good\n");
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

fn failing(fault: &str, mask: &str) -> Ended {
    println!("PAGETIDE_FAIL={fault} PAGETIDE_MASK={mask} lost");
    let mut command = pagetide("18M", mask, &[], &[&program("lost"), "--mib", "40"]);
    command.env("PAGETIDE_FAIL", fault);
    start(command).end()
}

#[test]
fn a_page_that_cannot_be_read_is_lost_alone_and_never_another() {
    let _turn = turn();
    for fault in ["read-error:20", "read-short:20", "read-corrupt:20", "read-misplaced:20"] {
        for mask in ["", "pool", "ring,pool"] {
            let ended = failing(fault, mask);
            assert!(ended.stderr.contains(" in the mapping 0x"), "{}", ended.stderr);
            assert!(ended.stderr.contains(" is lost: "), "{}", ended.stderr);
            let said = ended.succeeds();
            assert!(!said.starts_with("0 of"), "{said}");
        }
    }
}

#[test]
fn a_thread_of_the_engine_that_panics_ends_the_program_and_hangs_nobody() {
    let _turn = turn();
    for (fault, mask) in
        [("panic-fault:300", ""), ("panic-reclaim:40", ""), ("panic-io:20", "pool"), ("panic-control:30", "")]
    {
        let ended = failing(fault, mask);
        assert!(ended.stderr.contains("a defect of Pagetide: panicked at "), "{fault}: {}", ended.stderr);
        assert_eq!(ended.status.code(), Some(128 + libc::SIGKILL), "{fault}");
    }
}

#[test]
fn writes_that_fail_lose_nothing() {
    let _turn = turn();
    for (fault, said, end) in [
        ("write-error:1", "cannot write to the swap file", "the swap file: failing"),
        (
            "write-full:1",
            "is full: pages stay in memory until there is room",
            "for its disk has no more room",
        ),
    ] {
        let ended = failing(fault, "");
        assert!(ended.stderr.contains(said), "{}", ended.stderr);
        assert_eq!(ended.succeeds(), "0 of 10240 pages lost\n");
        // Without a pool there is no other place: an end with a message, and no other.
        let ended = failing(fault, "pool");
        assert_eq!(ended.status.code(), Some(137), "{}", ended.stderr);
        assert!(ended.stderr.contains(end), "{}", ended.stderr);
    }
}

#[test]
fn a_disk_that_is_full_for_moments_is_written_to_again() {
    let _turn = turn();
    for fault in ["write-full:2", "write-full:7"] {
        let ended = failing(fault, "pool");
        assert!(!ended.stderr.contains("cannot write"), "{}", ended.stderr);
        assert_eq!(ended.succeeds(), "0 of 10240 pages lost\n");
    }
}

#[test]
fn every_fault_is_answered_whoever_of_the_engine_stalls_or_gets_no_memory() {
    let _turn = turn();
    for fault in ["pool:2", "stall-fault:2000", "stall-reclaim:20", "stall-io:200", "stall-control:5"] {
        for mask in ["", "pool"] {
            assert_eq!(failing(fault, mask).succeeds(), "0 of 10240 pages lost\n");
        }
    }
}

/// Their faults wait at any moment: with a lock of the loader held, in a signal's handler, while another thread forks.
#[test]
fn processes_that_are_told_to_rest_go_on_as_before() {
    let _turn = turn();
    let job = "
import ctypes, os, signal, threading
pages = [bytearray(os.urandom(64)) * 1024 for _ in range(600)]
loader = ctypes.CDLL(None)
loader.dlopen.restype = ctypes.c_void_p
loader.dlclose.argtypes = [ctypes.c_void_p]
names = [b'libm.so.6', b'libresolv.so.2', b'libanl.so.1', b'libutil.so.1']
signal.signal(signal.SIGALRM, lambda *_: sum(pages[os.getpid() % 600][::4096]))
signal.setitimer(signal.ITIMER_REAL, .003, .003)
done = False
def load():
    turn = 0
    while not done:
        library = loader.dlopen(names[turn % 4], os.RTLD_NOW)
        turn += 1
        sum(pages[turn * 7 % 600][::4096])
        loader.dlclose(library)
threads = [threading.Thread(target=load, daemon=True) for _ in range(2)]
for thread in threads: thread.start()
for turn in range(30):
    pid = os.fork()
    if not pid:
        os._exit(any(len(page) != sum(1 for _ in page[::4096]) * 4096 for page in pages[:50]))
    for page in pages: page[17] = turn
    assert os.waitpid(pid, 0)[1] == 0
done = True
for thread in threads: thread.join()
signal.setitimer(signal.ITIMER_REAL, 0)
print(all(page[17] == 29 for page in pages))";
    let commands = [
        ("40M", vec![python(), "-c".into(), job.into()]),
        (
            "30M",
            [&program("fork_threads"), "--mib", "36", "--threads", "2", "--forks", "10"]
                .map(Into::into)
                .into(),
        ),
        ("32M", [&program("forks"), "--mib", "24"].map(Into::into).into()),
        ("28M", vec![program("mappings")]),
    ];
    for (memory, command) in commands {
        println!("PAGETIDE_FAIL=rest:1 {}", command[0]);
        let words: Vec<&str> = command.iter().map(String::as_str).collect();
        let mut command = pagetide(memory, "", &[], &words);
        command.env("PAGETIDE_FAIL", "rest:1");
        start(command).end().succeeds();
    }
    // The launcher was stopped or killed, and nobody ends the rest: it is over after four seconds.
    let start = Instant::now();
    assert_eq!(failing("rest-forgotten:20", "").succeeds(), "0 of 10240 pages lost\n");
    assert!(start.elapsed() >= Duration::from_secs(4), "it did not rest");
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

/// What is pinned before there is an engine: it learns of it from the C library's calls or, where those were passed by,
/// from the descriptors, before the first page leaves.
#[test]
fn pages_that_were_pinned_before_there_is_an_engine_stay() {
    let _turn = turn();
    let pinned = program("pinned");
    for option in [None, Some("--hidden")] {
        for mask in ["", "remap", "pool"] {
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
        for mask in ["", "remap", "pool"] {
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

#[test]
fn a_program_serves_faults_of_its_own_memory() {
    let _turn = turn();
    let own = program("own_userfault");
    for mask in ["", "remap", "move", "pool"] {
        println!("PAGETIDE_MASK={mask} own_userfault");
        start(pagetide("40M", mask, &[], &[&own])).end().succeeds();
    }
}

#[test]
fn objects_that_grow_and_shrink_keep_what_is_in_them() {
    let _turn = turn();
    let growing = program("growing");
    for mask in ["", "remap", "move", "pool", "copy"] {
        for seed in ["14", "31"] {
            println!("PAGETIDE_MASK={mask} growing --seed {seed}");
            start(pagetide("44M", mask, &[], &[&growing, "--seed", seed, "--rounds", "400"]))
                .end()
                .succeeds();
        }
    }
}

/// The swap file of a run that goes on, as whoever reads the disk sees it.
fn swap_file(launcher: u32) -> Vec<u8> {
    let mut links = fs::read_dir(format!("/proc/{launcher}/fd")).unwrap().map(|entry| entry.unwrap().path());
    let is_swap = |link: &PathBuf| {
        fs::read_link(link)
            .is_ok_and(|file| file.starts_with("/var/tmp") && file.to_string_lossy().ends_with("(deleted)"))
    };
    fs::read(links.find(is_swap).expect("a swap file")).unwrap()
}

/// Seeds are drawn; a failure prints its own, and the steps that it takes.
#[test]
fn memory_holds_what_a_model_says_whatever_is_done_with_it() {
    let _turn = turn();
    let (fuzz, script) = (program("fuzz"), house().join("tests/fuzz.py"));
    // Natively first: does the model know what the kernel does?
    for options in [["--native", "--seconds", "5"], ["--continue", "--seconds", "60"]] {
        let output = Command::new(python())
            .arg(&script)
            .args(["--program", &fuzz, "--pagetide", PAGETIDE])
            .args(options)
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        println!("{said}");
        assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
    }
}

#[test]
fn what_lies_on_the_disk_tells_nothing() {
    let _turn = turn();
    let job = "import sys
pages = [b'PAGETIDE-SECRET-%d ' % page * 200 for page in range(16000)]
print('ready', flush=True)
sys.stdin.read()";
    for (options, shows) in
        [(&["--swap-dir", "/var/tmp"][..], false), (&["--swap-dir", "/var/tmp", "--no-encrypt"], true)]
    {
        let mut run = pagetide("32M", "pool", options, &[&python(), "-c", job]);
        let mut run = run.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(run.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "ready\n");
        let started = Instant::now();
        let bytes = loop {
            let bytes = swap_file(run.id());
            if bytes.iter().filter(|&&byte| byte != 0).count() > 8 << 20 {
                break bytes;
            }
            assert!(started.elapsed() < GUARD, "next to nothing is written");
            std::thread::sleep(Duration::from_millis(10));
        };
        drop(run.stdin.take());
        assert!(run.wait().unwrap().success());
        let marker = b"PAGETIDE-SECRET-";
        assert_eq!(bytes.windows(marker.len()).any(|window| window == marker), shows, "{options:?}");
    }
}

#[test]
fn a_python_job_gives_what_it_gives_natively() {
    let _turn = turn();
    let job = house().join("examples/analytics.py");
    let job = job.to_str().unwrap();
    let mut native = Command::new(python());
    native.args([job, "--mib", "120"]);
    let native = start(native).end().succeeds();
    assert!(native.starts_with("rows "), "{native}");
    let capped = start(pagetide("64M", "", &[], &[&python(), job, "--mib", "120"])).end().succeeds();
    assert_eq!(capped, native);
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

#[test]
fn a_program_that_is_killed_gives_137_and_its_statistics() {
    let _turn = turn();
    let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{}.json", std::process::id()));
    let path = file.to_str().unwrap();
    // Its pages are out of memory when the signal comes.
    let script = "import os, signal; pages = [os.urandom(2048) * 512 for _ in range(90)]; \
                  os.kill(os.getpid(), signal.SIGKILL)";
    let ended = start(pagetide("48M", "", &["--stats", path], &[&python(), "-c", script])).end();
    assert_eq!((ended.status.code(), ended.status.signal()), (Some(137), None), "{}", ended.stderr);
    let report: serde_json::Value = serde_json::from_str(&fs::read_to_string(&file).unwrap()).unwrap();
    fs::remove_file(&file).unwrap();
    assert_eq!(report["exit_status"], 137);
    assert!(report["counters"]["pgsteal"].as_u64().unwrap() > 1000, "{report}");
}

#[test]
fn the_time_that_threads_wait_for_pages_is_the_sum_of_all_their_waits() {
    let _turn = turn();
    let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("waits-{}.json", std::process::id()));
    let path = file.to_str().unwrap();
    let command = [&*program("waits"), "--mib", "80", "--rounds", "3", "--random", "1", "--threads", "3"];
    start(pagetide("56M", "", &["--no-disk", "--stats", path], &command)).end().succeeds();
    let report: serde_json::Value = serde_json::from_str(&fs::read_to_string(&file).unwrap()).unwrap();
    fs::remove_file(&file).unwrap();
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
fn what_cannot_fit_ends_with_a_message_and_never_hangs() {
    let _turn = turn();
    let command = [&*program("incompressible"), "--mib", "100", "--threads", "2"];
    let ended = start(pagetide("48M", "", &["--no-disk"], &command)).end();
    assert_eq!(ended.status.code(), Some(137), "{}{}", ended.stdout, ended.stderr);
    assert!(ended.stderr.contains("--memory"), "{}", ended.stderr);
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
    run.end().succeeds();
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
    assert!(drawn.starts_with("<svg") && drawn.contains("Belady"));
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
