//! How much of a disk a run takes: file systems of their own, in files of `/var/tmp`, that others fill meanwhile.
//!
//! Needs root, for it mounts them, and `mkfs.ext4`.

use crate::common::*;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

const MIB: u64 = 1 << 20;

/// A file system of its own.
struct Disk {
    image: PathBuf,
    point: PathBuf,
}

impl Disk {
    fn unmounted(name: &str) -> Self {
        let path = |end: &str| PathBuf::from(format!("/var/tmp/pagetide-{name}-{}{end}", std::process::id()));
        let disk = Self { image: path(".image"), point: path("") };
        fs::create_dir_all(&disk.point).unwrap();
        disk
    }

    fn new(name: &str, mib: u64) -> Self {
        let disk = Self::unmounted(name);
        fs::File::create(&disk.image).unwrap().set_len(mib * MIB).unwrap();
        let does = |command: &str, arguments: &[&str]| {
            let output =
                Command::new(command).args(arguments).args([&disk.image]).output().expect("a command");
            assert!(output.status.success(), "{command}: {}", String::from_utf8_lossy(&output.stderr));
        };
        does("mkfs.ext4", &["-q", "-F", "-m", "0"]);
        does("mount", &["-o", "loop", "--target", disk.point.to_str().unwrap(), "--source"]);
        disk
    }

    /// One that is memory, and of which each page can be filled.
    fn in_memory(name: &str, kib: u64) -> Self {
        let disk = Self::unmounted(name);
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", &format!("size={kib}k"), "none"]).arg(&disk.point);
        assert!(mount.status().unwrap().success(), "{mount:?}");
        disk
    }

    /// What there is, and what of it is free.
    fn room(&self) -> (u64, u64) {
        let stat = rustix::fs::statvfs(&self.point).unwrap();
        ((stat.f_blocks - stat.f_bfree + stat.f_bavail) * stat.f_frsize, stat.f_bavail * stat.f_frsize)
    }

    /// Somebody else writes a file there until so much is left.
    fn fill(&self, left: u64) -> PathBuf {
        let path = self.point.join("others");
        let mut file = fs::File::create(&path).unwrap();
        let chunk = vec![7; MIB as usize / 4];
        while self.room().1 > left && file.write_all(&chunk).is_ok() {}
        let _ = file.sync_all();
        path
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("--lazy").arg(&self.point).status();
        let _ = fs::remove_dir(&self.point);
        let _ = fs::remove_file(&self.image);
    }
}

#[test]
fn a_series_of_reports_on_a_full_disk_has_whole_lines_only() {
    let _turn = turn();
    // Room for the first part of a report.
    let disk = Disk::in_memory("series", 16);
    let [series, others] = ["series.jsonl", "others"].map(|name| disk.point.join(name));
    fs::write(&others, vec![7; 12 << 10]).unwrap();
    let words = ["--stats", series.to_str().unwrap()];
    let command = [&*python(), "-c", "import time; time.sleep(4.5)"];
    let reports = || -> Vec<serde_json::Value> {
        let said = fs::read_to_string(&series).unwrap();
        said.lines().map(|line| serde_json::from_str(line).expect("a whole report")).collect()
    };
    let ended = start(pagetide("64M", "", &words, &command)).end();
    let warning = format!("--stats: cannot write {}: No space left on device", series.display());
    assert!(ended.stderr.contains(&warning), "{}", ended.stderr);
    ended.succeeds();
    let before = reports().len();
    // As soon as there is room all are written again.
    fs::remove_file(others).unwrap();
    start(pagetide("64M", "", &words, &command)).end().succeeds();
    assert!(reports().len() > before);
}

/// A run of `stages`.
struct Stages {
    run: Run,
    stdin: ChildStdin,
    told: usize,
}

impl Stages {
    fn start(directory: &Path, options: &[&str]) -> Self {
        let mut command = Command::new(PAGETIDE);
        command.args(["run", "-m", "32M", "--swap-dir"]).arg(directory).args(options).arg("--");
        command.arg(program("stages")).stdin(Stdio::piped());
        let mut run = start(command);
        let stdin = run.child.stdin.take().unwrap();
        Self { run, stdin, told: 0 }
    }

    fn tell(&mut self, line: &str) {
        self.told += 1;
        writeln!(self.stdin, "{line}").unwrap();
    }

    fn answers(&self) -> usize {
        self.run.said()[0].lines().filter(|&line| line == "done").count()
    }

    fn has_ended(&self) -> bool {
        living(self.run.child.id()).is_empty()
    }

    /// Has it do something, to its end.
    fn does(&mut self, line: &str) {
        self.tell(line);
        self.run.until(line, || self.answers() == self.told || self.has_ended());
        assert_eq!(self.answers(), self.told, "{line}: it has ended, and said {:?}", self.run.said());
    }

    /// Its end. Returns what was said on standard error.
    fn ends_well(self) -> String {
        let Self { run, stdin, .. } = self;
        drop(stdin);
        let ended = run.end();
        let said = ended.stderr.clone();
        ended.succeeds();
        assert!(!said.contains("cannot write to the swap file"), "{said}");
        said
    }
}

/// Whether the default is that of a container: these tests may run in one.
fn contained() -> bool {
    let doctor = Command::new(PAGETIDE).args(["doctor", "--json"]).output().unwrap();
    String::from_utf8_lossy(&doctor.stdout).contains("for this is a container")
}

#[test]
fn by_default_the_swap_file_grows_beyond_four_caps_and_that_is_said_once() {
    let _turn = turn();
    let disk = Disk::new("grows", 1024);
    let mut stages = Stages::start(&disk.point, &[]);
    if contained() {
        println!("this is a container, where the file stays at 4 × the cap");
        return;
    }
    ["grow 120", "grow 120", "check", "change", "check"].into_iter().for_each(|line| stages.does(line));
    let said = stages.ends_well();
    let passed: Vec<_> = said.lines().filter(|line| line.contains("has passed")).collect();
    assert_eq!(passed.len(), 1, "{said}");
    let starts = "pagetide: the swap file has passed 4 × the cap (128 MiB); it may grow to ";
    let ends = format!("half of what was free in {} (--swap-size)", disk.point.display());
    assert!(passed[0].starts_with(starts) && passed[0].ends_with(&ends), "{said}");
}

#[test]
fn what_is_given_up_is_used_again_before_the_file_grows_beyond_four_caps() {
    let _turn = turn();
    let disk = Disk::new("churns", 1024);
    let mut stages = Stages::start(&disk.point, &[]);
    stages.does("grow 100");
    (0..6).for_each(|_| stages.does("change"));
    let (total, free) = disk.room();
    // 100 MiB are held at most: 4 × the cap is 128 MiB, and what was open when less than half was in use 200.
    assert!(total - free < 300 * MIB, "{} MiB are taken", (total - free) / MIB);
    stages.ends_well();
}

#[test]
fn a_disk_that_others_fill_is_full_for_now_and_used_again_when_there_is_room() {
    let _turn = turn();
    for options in [&[][..], &["--swap-size", "300M"]] {
        if options.is_empty() && contained() {
            println!("this is a container, where the file stays at 4 × the cap");
            continue;
        }
        let disk = Disk::new(if options.is_empty() { "fills" } else { "fills-given" }, 500);
        let mut stages = Stages::start(&disk.point, options);
        stages.does("grow 100");
        let others = disk.fill(0);
        // What lies on the disk is written over.
        ["check", "change", "check"].into_iter().for_each(|line| stages.does(line));
        assert!(disk.room().1 < MIB);
        fs::remove_file(others).unwrap();
        let free = disk.room().1;
        stages.does("grow 60");
        stages.does("check");
        stages.does("change");
        stages.does("check");
        assert!(disk.room().1 < free - 40 * MIB, "writing went on");
        let said = stages.ends_well();
        assert!(!said.contains("out of memory"), "{said}");
    }
}

#[test]
fn a_twentieth_of_the_disk_stays_free() {
    let _turn = turn();
    let disk = Disk::new("twentieth", 500);
    let mut stages = Stages::start(&disk.point, &[]);
    stages.does("grow 1");
    disk.fill(130 * MIB);
    let (ended, least) = (AtomicBool::new(false), AtomicU64::new(u64::MAX));
    let total = disk.room().0;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !ended.load(Relaxed) {
                least.fetch_min(disk.room().1, Relaxed);
                std::thread::yield_now();
            }
        });
        stages.does("grow 110");
        stages.does("check");
        assert!(disk.room().1 >= total / 20);
        // That does not fit.
        stages.tell("grow 100");
        stages.run.until("its end", || stages.has_ended());
        ended.store(true, Relaxed);
    });
    assert!(least.load(Relaxed) >= total / 20, "{} of {total} bytes were left", least.load(Relaxed));
    let Stages { run, stdin, .. } = stages;
    drop(stdin);
    let ended = run.end();
    assert_eq!(ended.status.code(), Some(137), "{}", ended.stderr);
    for part in ["is 95 % full", "for its disk has no more room; allow more with"] {
        assert!(ended.stderr.contains(part), "{part}: {}", ended.stderr);
    }
}

/// Each of them has most of the swap file.
#[test]
fn the_blocks_of_killed_processes_serve_others() {
    let _turn = turn();
    for mask in first_mask(["pool", "pool,ring"]) {
        println!("PAGETIDE_MASK={mask}");
        let run =
            start(pagetide("32M", mask, &["--swap-size", "128M"], &[&python(), &job("killed_children.py")]));
        assert_eq!(run.end().succeeds(), "gggggg\n");
    }
}

/// Each program of the line has all of the swap file, and writes to it when the next one starts.
#[test]
fn writes_of_a_program_that_execs_do_not_come_over_those_of_the_next() {
    let _turn = turn();
    for mask in first_mask(["pool", "pool,ring"]) {
        println!("PAGETIDE_MASK={mask}");
        let starts = [&*python(), &job("exec_line.py")];
        let mut command = pagetide("24M", mask, &["--swap-size", "96M"], &starts);
        command.env("LEFT", "4");
        assert_eq!(start(command).end().succeeds(), "good\n");
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

#[test]
fn what_lies_on_the_disk_tells_nothing() {
    let _turn = turn();
    for (options, shows) in
        [(&["--swap-dir", "/var/tmp"][..], false), (&["--swap-dir", "/var/tmp", "--no-encrypt"], true)]
    {
        let mut run = pagetide("32M", "pool", options, &[&python(), &job("secrets_in_memory.py")]);
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
