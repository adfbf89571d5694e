//! Processes that give up their privileges stay managed, and members that mean harm do little.
//!
//! These tests need root.

use crate::common::{program, turn};
use pagetide::group::{Field, Group};
use pagetide_swap::Counter;
use pagetide_sys::procfs::{Identity, start_time};
use pagetide_sys::shared::Shared;
use std::fs;
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::Ordering::Relaxed;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Nothing takes nearly as long.
const GUARD: Duration = Duration::from_secs(200);

/// Where everybody may read the programs, and where there is another root.
struct Place(PathBuf);

impl Place {
    fn new(name: &str) -> Self {
        let place = Self(PathBuf::from(format!("/var/tmp/pagetide-{name}-{}", std::process::id())));
        for directory in [place.0.clone(), place.0.join("empty"), place.0.join("root")] {
            fs::create_dir_all(&directory).unwrap();
            fs::set_permissions(&directory, fs::Permissions::from_mode(0o755)).unwrap();
        }
        let built = Path::new(env!("CARGO_BIN_EXE_pagetide"));
        for name in ["pagetide", "libpagetide_preload.so"] {
            fs::copy(built.with_file_name(name), place.0.join(name))
                .expect("cargo build --workspace comes first");
        }
        fs::copy(program("privileges"), place.0.join("job")).unwrap();
        place
    }

    fn path(&self, name: &str) -> String {
        self.0.join(name).to_str().unwrap().to_owned()
    }

    /// Runs a command under a cap, in a mount namespace of its own in which `root` is all that there is.
    fn run(&self, options: &[&str], command: &[&str]) -> Command {
        let mut run = Command::new("unshare");
        run.args(["-m", "sh", "-c", "mount --rbind / \"$0\" && exec \"$@\"", &self.path("root")]);
        run.arg(self.path("pagetide")).args(["run", "-m", "40M", "--swap-dir", "/var/tmp"]).args(options);
        run.arg("--").args(command).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        run
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Fails if the run did, or if its program was not managed.
fn is_managed(output: &Output, what: &str) {
    let [stdout, stderr] =
        [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text).into_owned());
    assert!(output.status.success() && stdout == "good\n", "{what}: {} {stdout}{stderr}", output.status);
    assert!(stderr.contains("pagetide: out "), "{what}: {stderr}");
}

#[test]
fn who_gives_up_its_privileges_is_swapped_and_so_is_what_it_starts() {
    let _turn = turn();
    let place = Place::new("privileges");
    let (job, empty, root) = (place.path("job"), place.path("empty"), place.path("root"));
    let ways = [
        "user".to_owned(),
        "user,number".into(),
        "caps".into(),
        "quiet".into(),
        "net,user".into(),
        format!("root={empty},user"),
        "user,exec quiet".into(),
        format!("root={root},user,exec quiet"),
        format!("net,root={root},user,number,exec quiet"),
        "fork,user".into(),
        "fork,user,exec caps".into(),
    ];
    for way in &ways {
        let command: Vec<&str> = [&job, "80"].into_iter().chain(way.split(' ')).collect();
        is_managed(&place.run(&[], &command).output().unwrap(), way);
    }
    for before in [
        "setpriv --reuid=65534 --regid=65534 --clear-groups",
        "setpriv --reuid=65534 --regid=65534 --clear-groups env -i",
        "setpriv --bounding-set=-all --inh-caps=-all",
        "unshare --user",
        "unshare --net setpriv --reuid=65534 --clear-groups",
    ] {
        let command: Vec<&str> = before.split(' ').chain([&*job, "80", "quiet"]).collect();
        is_managed(&place.run(&[], &command).output().unwrap(), before);
    }
}

fn until(what: &str, mut so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !so() {
        assert!(start.elapsed() < GUARD, "{what}: it does not come about");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// The group page of a launcher.
fn group_page(launcher: u32) -> PathBuf {
    let mut found = None;
    until("there is a group page", || {
        let links = fs::read_dir(format!("/proc/{launcher}/fd")).into_iter().flatten().flatten();
        let is_it = |path: &PathBuf| {
            fs::read_link(path).is_ok_and(|to| to.to_string_lossy().contains("pagetide-group"))
        };
        found = links.map(|entry| entry.path()).find(is_it);
        found.is_some()
    });
    found.unwrap()
}

fn sleeper() -> Child {
    Command::new("sleep").arg("1000").spawn().unwrap()
}

#[test]
fn a_process_that_a_member_names_is_no_process_of_the_run() {
    let _turn = turn();
    let place = Place::new("named");
    let mut foreign = sleeper();
    let run = place.run(&["--max-stall", "500ms"], &["sleep", "1000"]).spawn().unwrap();
    let page = group_page(run.id());
    let mut group = None;
    until("it is set up", || {
        group = Group::open(&page).ok();
        group.is_some_and(|group| group.live().any(|slot| slot.get(Field::KnownAs) != 0))
    });
    let group = group.unwrap();
    let named =
        Identity { pid: foreign.id(), start_time: start_time(foreign.id()).unwrap(), ..Identity::own() };
    let slot = group.claim(named).unwrap();
    slot.set(Field::KnownAs, foreign.id().into());
    slot.set(Field::Stalled, 1);
    // Which has the launcher end the run, and all its processes.
    let counted = std::thread::spawn(move || {
        let start = Instant::now();
        while start.elapsed() < GUARD && Group::open(&page).is_ok() {
            slot.counters().add(Counter::stalled_ns, 20_000_000);
            std::thread::sleep(Duration::from_millis(5));
        }
    });
    let output = run.wait_with_output().unwrap();
    counted.join().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(125), "{said}");
    assert!(said.contains("--max-stall") && !said.contains("panicked"), "{said}");
    assert!(foreign.try_wait().unwrap().is_none(), "a process that is not of the run was ended");
    foreign.kill().unwrap();
    foreign.wait().unwrap();
}

/// Reads all of a pipe meanwhile.
fn reader(pipe: Option<impl Read + Send + 'static>) -> JoinHandle<String> {
    let mut pipe = pipe.expect("it is piped");
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        pipe.read_to_end(&mut bytes).unwrap();
        String::from_utf8_lossy(&bytes).into_owned()
    })
}

/// Numbers that somebody might write who means harm.
fn harm(random: &mut u64) -> u64 {
    *random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    let bits = *random >> 20;
    match *random >> 60 {
        0..4 => *random ^ bits,
        4 => 0,
        5 => u64::MAX,
        6 => i64::MAX as u64,
        7 => i64::MIN as u64,
        8 => 1 << (bits % 64),
        9 => (bits % 1000).wrapping_neg(),
        _ => bits % 1000,
    }
}

#[test]
fn a_member_that_writes_over_all_books_ends_neither_the_launcher_nor_a_byte() {
    let _turn = turn();
    let place = Place::new("scribbles");
    let mut foreign = sleeper();
    for seed in 0..6 {
        // Blocks are few, so that two processes come to use the same.
        let command = format!("for n in 1 2 3; do {} 60 fork,caps & done; wait", place.path("job"));
        let mut run = place.run(&["--swap-size", "256M"], &["sh", "-c", &command]).spawn().unwrap();
        let launcher = run.id();
        // Each page that is lost has a line: more than a pipe holds.
        let said = [reader(run.stdout.take()), reader(run.stderr.take())];
        let page = group_page(launcher);
        let shared = loop {
            match Shared::open(&page) {
                Ok(shared) if Group::open(&page).is_ok() => break shared,
                _ => std::thread::yield_now(),
            }
        };
        let words = shared.words(0, shared.len() / 8);
        let mut random = seed;
        let start = Instant::now();
        // Ever more of them; the first while the processes join.
        let mut count = 1;
        while start.elapsed() < Duration::from_secs(4) && run.try_wait().unwrap().is_none() {
            for _ in 0..count {
                // The header and some slots more than the rest, and some pids of others.
                let most =
                    if harm(&mut random).is_multiple_of(2) { 64 + 256 * 8 } else { words.len() as u64 };
                let at = (random >> 10) % most;
                let value = match harm(&mut random) % 8 {
                    0 => foreign.id().into(),
                    1 => 1,
                    _ => harm(&mut random),
                };
                words[at as usize].store(value, Relaxed);
            }
            count = (count + 1).min(64);
            std::thread::sleep(Duration::from_millis(10));
        }
        // What they wait for may never come: they may be ended, and the launcher ends then.
        let patience = Instant::now();
        while run.try_wait().unwrap().is_none() && patience.elapsed() < Duration::from_secs(10) {
            std::thread::sleep(Duration::from_millis(10));
        }
        let _ = Command::new("pkill").args(["-KILL", "-f", &format!("^{} ", place.path("job"))]).status();
        until("the launcher ends", || run.try_wait().unwrap().is_some());
        let status = run.wait().unwrap();
        let said = said.map(|text| text.join().unwrap());
        assert!(!said[0].contains("wrong"), "{seed}: {said:?}");
        assert!(!said[1].contains("panicked"), "{seed}: {said:?}");
        assert!(status.code().is_some_and(|code| code != 101), "{seed}: {status} {said:?}");
        assert!(foreign.try_wait().unwrap().is_none(), "{seed}: a process that is not of the run was ended");
    }
    foreign.kill().unwrap();
    foreign.wait().unwrap();
}
