//! What `/proc` says of memory and of processes.

use rustix::io::Errno;
use std::ffi::CStr;
use std::fs;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

/// Reads the beginning of a file of `/proc`, which is made anew for each opening, in one read.
fn read_once(path: impl rustix::path::Arg, text: &mut [u8]) -> rustix::io::Result<usize> {
    read_at(rustix::fs::CWD, path, text)
}

/// The same of a file in an open directory.
fn read_at(directory: impl AsFd, path: impl rustix::path::Arg, text: &mut [u8]) -> rustix::io::Result<usize> {
    let flags = rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::CLOEXEC;
    let file = rustix::fs::openat(directory, path, flags, rustix::fs::Mode::empty())?;
    rustix::io::retry_on_intr(|| rustix::io::read(&file, &mut *text))
}

/// Such a file, if it is shorter than a page.
pub fn small(path: &str) -> Option<String> {
    let mut text = [0; pagetide_page::PAGE_SIZE];
    let length = read_once(path, &mut text).ok()?;
    Some(String::from_utf8_lossy(&text[..length]).into_owned())
}

/// The beginning of such a file, as far as there is room. Allocates nothing; empty if it cannot be read.
pub fn read<'a>(path: &CStr, text: &'a mut [u8]) -> &'a str {
    let length = read_once(path, text).unwrap_or(0);
    std::str::from_utf8(&text[..length]).unwrap_or_default()
}

/// The number after a name at the beginning of a line.
pub fn field(text: &str, name: &str) -> Option<u64> {
    let rest = text.lines().find_map(|line| line.strip_prefix(name))?;
    rest.split_ascii_whitespace().next()?.parse().ok()
}

/// Whether a pidfd is that of this process; a negative number stands for the caller (`PIDFD_SELF`, Linux 6.14).
/// Allocates nothing.
pub fn is_own_pidfd(pidfd: i32) -> bool {
    use std::io::Write;
    let (mut path, mut text) = ([0; 64], [0; 512]);
    let _ = write!(&mut path[..], "/proc/self/fdinfo/{pidfd}\0");
    let path = CStr::from_bytes_until_nul(&path).unwrap_or_default();
    pidfd < 0 || field(read(path, &mut text), "Pid:") == Some(own_pid().into())
}

/// Memory of a process, in pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Memory {
    /// Anonymous pages in memory.
    pub anonymous: u64,
    /// Pages of shared memory.
    pub shared: u64,
    /// Page tables.
    pub tables: u64,
}

impl Memory {
    /// What is charged to the process. Shared memory is charged to the run, each object once.
    pub fn charged(&self) -> u64 {
        self.anonymous + self.tables
    }
}

/// Reads the memory of a process. `None` when it is gone.
pub fn memory(pid: &str) -> Option<Memory> {
    memory_of(&format!("/proc/{pid}")).or_else(|| {
        // The first thread may have ended before the others: then its memory is not shown.
        let mut tasks = directory(&format!("/proc/{pid}/task")).ok()?;
        tasks.find_map(|task| {
            memory_of(&format!("/proc/{pid}/task/{}", task.ok()?.file_name().to_str().ok()?))
        })
    })
}

/// Looks that are cheap between two whole ones, and how many pages may come and go until then.
const CHEAP_LOOKS: u32 = 7;
const CHEAP_PAGES: u64 = 64;
const CHEAP_ANONYMOUS: u64 = 2048;

/// The memory of one process, looked at again and again. Anonymous pages are those of now. The others, which the kernel
/// is slower to tell and change less, are told anew at one look in eight, or when there are many more or fewer pages:
/// of files and shared memory 64, or so many anonymous ones that their tables may take 4.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Watched {
    last: Memory,
    /// At the last whole look: anonymous pages, and those of files and shared memory.
    whole: (u64, u64),
    cheap: u32,
}

impl Watched {
    /// Reads the memory of the process of which all looks are. `None` when it is gone.
    pub fn look(&mut self, pid: &str) -> Option<Memory> {
        let counts = counts(pid);
        let near = |(anonymous, other): (u64, u64)| {
            anonymous.abs_diff(self.whole.0) <= CHEAP_ANONYMOUS && other.abs_diff(self.whole.1) <= CHEAP_PAGES
        };
        match (self.cheap.checked_sub(1), counts) {
            (Some(cheap), Some(counts)) if near(counts) => {
                self.cheap = cheap;
                self.last.anonymous = counts.0;
            }
            _ => {
                (self.last, self.cheap) = (memory(pid)?, CHEAP_LOOKS);
                self.whole = counts.unwrap_or_default();
            }
        }
        Some(self.last)
    }
}

/// The memory of this process when it starts, which is cheaper to learn: page tables are guessed, 64 KiB.
pub fn young_memory() -> Option<Memory> {
    let (anonymous, _) = counts("self")?;
    // What it shares with others it maps by calls that are yet to come.
    Some(Memory { anonymous, shared: 0, tables: 16 })
}

/// Anonymous pages of a process whose first thread lives, and pages of files and of shared memory.
fn counts(pid: &str) -> Option<(u64, u64)> {
    let statm = small(&format!("/proc/{pid}/statm"))?;
    let mut fields = statm.split_ascii_whitespace().skip(1).map_while(|field| field.parse::<u64>().ok());
    let (resident, other) = (fields.next()?, fields.next()?);
    (resident > 0).then(|| (resident.saturating_sub(other), other))
}

/// Anonymous pages of a process, counted one by one: exact where the count that the kernel keeps is not, and slower.
/// `None` if this kernel, or this process, does not show them.
pub fn counted_anonymous(pid: u32) -> Option<u64> {
    let kilobytes = field(&small(&format!("/proc/{pid}/smaps_rollup"))?, "Anonymous:")?;
    Some(kilobytes * 1024 / pagetide_page::PAGE_SIZE as u64)
}

fn memory_of(task: &str) -> Option<Memory> {
    let status = small(&format!("{task}/status"))?;
    let mut memory = Memory::default();
    let mut shown = false;
    for line in status.lines() {
        let field = match line.split(':').next()? {
            "RssAnon" => &mut memory.anonymous,
            "RssShmem" => &mut memory.shared,
            "VmPTE" => &mut memory.tables,
            _ => continue,
        };
        let kilobytes: u64 = line.split_ascii_whitespace().nth(1)?.parse().ok()?;
        *field = kilobytes / 4;
        shown = true;
    }
    shown.then_some(memory)
}

/// Anonymous pages of this process outside of ranges that `skip` knows, each divided by the number of
/// processes that share it since a fork. `None` where the kernel does not say (before Linux 6.0).
///
/// Walks the page tables: microseconds a mapping, and about 10 µs a 1000 pages.
pub fn proportional(skip: impl Fn(usize, usize) -> bool) -> Option<u64> {
    let smaps = fs::read_to_string("/proc/self/smaps").ok()?;
    let mut bytes = None;
    let mut counts = false;
    for line in smaps.lines() {
        // Attributes begin with a capital letter, mappings with a hexadecimal address.
        if line.starts_with(|first: char| first.is_ascii_uppercase()) {
            if counts && let Some(size) = line.strip_prefix("Pss_Dirty:") {
                let kilobytes: u64 = size.split_ascii_whitespace().next()?.parse().ok()?;
                *bytes.get_or_insert(0) += kilobytes << 10;
            }
            continue;
        }
        let mut fields = line.split_ascii_whitespace();
        let (start, end) = fields.next()?.split_once('-')?;
        let address = |text| usize::from_str_radix(text, 16).ok();
        // What is dirty in a private mapping is anonymous.
        let private = fields.next()?.ends_with('p');
        counts = private && !skip(address(start)?, address(end)?);
    }
    bytes.map(|bytes| bytes.div_ceil(pagetide_page::PAGE_SIZE as u64))
}

/// The processor that a thread of this process ran on last.
pub fn processor_of(tid: u32) -> Option<usize> {
    let stat = small(&format!("/proc/self/task/{tid}/stat"))?;
    // The command may hold spaces: count from the last parenthesis. Field 39 of stat is the processor.
    stat.rsplit_once(") ")?.1.split_ascii_whitespace().nth(36)?.parse().ok()
}

/// How long a thread of this process has run, and how long it has waited for a processor, in nanoseconds.
pub fn run_times(tid: u32) -> Option<(u64, u64)> {
    let times = small(&format!("/proc/self/task/{tid}/schedstat"))?;
    let mut times = times.split_ascii_whitespace().map(str::parse);
    Some((times.next()?.ok()?, times.next()?.ok()?))
}

/// When a process started, in ticks since boot: with the pid it names a process for good. `None` if it is dead, or
/// nobody can tell.
pub fn start_time(pid: u32) -> Option<u64> {
    life(pid).ok().flatten()
}

/// The processor that a process has used, what it is, and whose child.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stat {
    /// The letter of its state.
    pub state: u8,
    /// Its parent.
    pub parent: u32,
    /// The leader of its session. `None` if that is in another pid namespace.
    pub session: Option<u32>,
    /// Whether it runs a program that it has called for itself. Else it was forked, and shows its parent's memory.
    pub has_execed: bool,
    /// Processor time so far, in ticks.
    pub ticks: u64,
    /// How many threads it has.
    pub threads: u32,
    /// When it started.
    pub start_time: u64,
    /// Where its stack began, which every program's start chooses at random; 0 if that is not to be seen, or not
    /// settled, for it is in the midst of exec.
    pub stack: u64,
}

impl Stat {
    /// The kernel's mark of those that were forked and have not called `exec` since (`PF_FORKNOEXEC`).
    const FORKED: u64 = 0x40;

    /// Of a process. `None` if it is not there, or hidden.
    pub fn of(pid: impl std::fmt::Display) -> Option<Self> {
        Self::parse(&small(&format!("/proc/{pid}/stat"))?)
    }

    fn parse(text: &str) -> Option<Self> {
        // The name may hold anything: count from the last parenthesis.
        let fields: Vec<_> = text.rsplit_once(") ")?.1.split_ascii_whitespace().collect();
        let number = |at: usize| fields.get(at)?.parse::<u64>().ok();
        // A new program has a stack before it has an environment there, if an empty one.
        let has_environment = number(47).is_some_and(|start| start != 0);
        Some(Self {
            state: *fields.first()?.as_bytes().first()?,
            parent: number(1)? as u32,
            session: Some(number(3)? as u32).filter(|&leader| leader != 0),
            has_execed: number(6)? & Self::FORKED == 0,
            ticks: number(11)? + number(12)?,
            threads: number(17)? as u32,
            start_time: number(19)?,
            stack: number(25).filter(|_| has_environment).unwrap_or(0),
        })
    }

    /// Whether it is dead. A zombie that still has threads is a process whose first thread has ended.
    pub fn is_dead(&self) -> bool {
        matches!(self.state, b'Z' | b'X') && self.threads <= 1
    }
}

/// The time since `born`, in ticks since boot.
pub fn age(born: u64) -> Option<Duration> {
    let uptime: f64 = small("/proc/uptime")?.split(' ').next()?.parse().ok()?;
    let born = born as f64 / rustix::param::clock_ticks_per_second() as f64;
    Duration::try_from_secs_f64(uptime - born).ok()
}

/// The pid that was given away last, which changes whenever a process or a thread starts.
pub fn last_pid() -> Option<u64> {
    small("/proc/loadavg")?.split_ascii_whitespace().nth(4)?.parse().ok()
}

/// The name of a process, for others that see another `/proc`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Identity {
    /// As its own `/proc` has it.
    pub pid: u32,
    /// When it started, as its own `/proc` has it; 0 if that cannot be read.
    pub start_time: u64,
    /// Its pid namespace; 0 if that cannot be read.
    pub namespace: u64,
}

impl Identity {
    /// Of a process that is not there yet.
    pub const UNKNOWN: Self = Self { pid: 0, start_time: 0, namespace: 0 };

    /// That of this process.
    pub fn own() -> Self {
        let mut text = [0; pagetide_page::PAGE_SIZE];
        // One file says both: each takes a small process as long as five page faults.
        let stat = read(c"/proc/self/stat", &mut text);
        let Some(pid) = stat.split(' ').next().and_then(|pid| pid.parse().ok()).or_else(pid_of_self) else {
            return Self { pid: std::process::id(), start_time: 0, namespace: 0 };
        };
        let namespace = namespace("self", "pid").unwrap_or(0);
        Self { pid, start_time: stat_fields(stat).nth(19).and_then(parsed).unwrap_or(0), namespace }
    }

    /// The pids that it may mean here. None if the process is dead for sure; several if it is in another pid namespace
    /// and the name fits more than one.
    ///
    /// # Errors
    /// Nobody can tell: a file cannot be opened, for want of descriptors or of permission.
    pub fn pids(self) -> Result<Vec<u32>, Errno> {
        if self.fits(self.pid)? {
            return Ok(vec![self.pid]);
        }
        if self.namespace != 0 && self.namespace == namespace("self", "pid")? {
            return Ok(Vec::new());
        }
        let mut found = Vec::new();
        for entry in directory("/proc")? {
            let Some(pid) = entry?.file_name().to_str().ok().and_then(|name| name.parse().ok()) else {
                continue;
            };
            if inner_pids(pid)?.contains(&self.pid) && self.fits(pid)? {
                found.push(pid);
            }
        }
        Ok(found)
    }

    fn fits(self, pid: u32) -> Result<bool, Errno> {
        Ok(match life(pid)? {
            None => false,
            Some(started) if self.start_time == 0 || started == self.start_time => true,
            // Clocks differ between time namespaces.
            Some(_) => match namespace(pid, "time") {
                Err(Errno::NOENT | Errno::SRCH) => false,
                other => other? != namespace("self", "time")?,
            },
        })
    }
}

/// The number of a process's namespace.
fn namespace(pid: impl std::fmt::Display, kind: &str) -> Result<u64, Errno> {
    rustix::fs::stat(format!("/proc/{pid}/ns/{kind}")).map(|stat| stat.st_ino)
}

/// What a process is called in the namespaces below that of `/proc`.
fn inner_pids(pid: u32) -> Result<Vec<u32>, Errno> {
    let status = of_process(pid, "status")?.unwrap_or_default();
    let names = status.lines().find_map(|line| line.strip_prefix("NSpid:")).unwrap_or_default();
    Ok(names.split_ascii_whitespace().skip(1).flat_map(str::parse).collect())
}

fn pid_of_self() -> Option<u32> {
    let mut name = [0; 16];
    let length = rustix::fs::readlinkat_raw(rustix::fs::CWD, c"/proc/self", &mut name[..]).ok()?;
    std::str::from_utf8(&name[..length]).ok()?.parse().ok()
}

/// This thread, as `/proc` has it: `PID/task/TID`.
pub fn own_task() -> Option<String> {
    fs::read_link("/proc/thread-self").ok()?.into_os_string().into_string().ok()
}

/// This process's pid as `/proc` has it, which may be that of another pid namespace. Allocates nothing.
pub fn own_pid() -> u32 {
    pid_of_self().unwrap_or_else(std::process::id)
}

/// A small file of a process. `None` if the process is dead; an error if nobody can tell.
fn of_process(pid: u32, name: &str) -> Result<Option<String>, Errno> {
    let mut text = [0; pagetide_page::PAGE_SIZE];
    match read_once(format!("/proc/{pid}/{name}"), &mut text) {
        Ok(length) => Ok(Some(String::from_utf8_lossy(&text[..length]).into_owned())),
        Err(error @ (Errno::NOENT | Errno::SRCH)) => {
            // `/proc` may be mounted so that it hides processes (hidepid). From signals they cannot be hidden.
            let pid = i32::try_from(pid).ok().and_then(rustix::process::Pid::from_raw);
            let hidden = pid.is_some_and(|pid| rustix::process::test_kill_process(pid) != Err(Errno::SRCH));
            if hidden { Err(error) } else { Ok(None) }
        }
        Err(error) => Err(error),
    }
}

/// What a directory of `/proc` holds. Not by `read_dir`: the C library's directory streams come from the program's
/// `malloc`.
fn directory(path: &str) -> Result<rustix::fs::Dir, Errno> {
    rustix::fs::Dir::new(open_directory(path)?)
}

fn open_directory(path: &str) -> Result<OwnedFd, Errno> {
    let flags = rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::DIRECTORY | rustix::fs::OFlags::CLOEXEC;
    rustix::fs::open(path, flags, rustix::fs::Mode::empty())
}

/// When a process started. `None` if it is dead; an error if nobody can tell.
fn life(pid: u32) -> Result<Option<u64>, Errno> {
    let Some(stat) = of_process(pid, "stat")? else { return Ok(None) };
    let started = || {
        let mut fields = stat_fields(&stat);
        let state = fields.next()?;
        // A zombie that still has threads is a process whose first thread has ended.
        let threads = parsed(fields.nth(16)?)?;
        let dead = matches!(state, "Z" | "X") && threads <= 1;
        Some((!dead).then_some(parsed(fields.nth(1)?)?))
    };
    started().ok_or(Errno::INVAL)
}

/// Descriptors of anonymous files through which memory is pinned.
const PINNING: [&str; 3] = ["anon_inode:[io_uring]", "anon_inode:kvm", "anon_inode:[vfio-"];
/// Files below `/dev` that copy what they are given, or lie there only: all others are devices that may pin it (RDMA,
/// VFIO, GPUs, cameras, disks that take commands, and drivers that nobody here knows).
const COPYING: [&str; 27] = [
    "null",
    "zero",
    "full",
    "random",
    "urandom",
    "kmsg",
    "console",
    "tty",
    "pts/",
    "ptmx",
    "pty",
    "vcs",
    "shm/",
    "mqueue/",
    "hugepages",
    "fuse",
    "net/tun",
    "userfaultfd",
    "kvm",
    "rtc",
    "hpet",
    "input/",
    "uinput",
    "snd/",
    "bus/usb/",
    "loop-control",
    "mapper/control",
];

/// Whether a descriptor with this target is that of a device that may pin memory.
fn is_pinning(target: &[u8]) -> bool {
    // Of another root the path is shown so.
    let path = target.strip_prefix(b"(unreachable)").unwrap_or(target);
    let begins = |text: &[u8], with: &[&str]| with.iter().any(|with| text.starts_with(with.as_bytes()));
    begins(path, &PINNING) || path.strip_prefix(b"/dev/").is_some_and(|name| !begins(name, &COPYING))
}

/// The fields of `/proc/PID/stat` from the third, the state, on. (The second, the command, may hold anything.)
fn stat_fields(stat: &str) -> impl Iterator<Item = &str> {
    stat.rsplit_once(") ").map_or("", |(_, fields)| fields).split_ascii_whitespace()
}

fn parsed(number: &str) -> Option<u64> {
    number.parse().ok()
}

/// Whether a descriptor is open in this process through which the kernel may pin memory: a file opened
/// with O_DIRECT, an io_uring, a device that is not known to copy. So there may be where none is seen at all: the
/// descriptors of a process whose first thread has ended are not shown.
pub fn may_pin(pid: u32) -> bool {
    // What is opened by a name within a directory costs half as much as by a path, and this is done often.
    let open = |name| open_directory(&format!("/proc/{pid}/{name}"));
    let (Ok(links), Ok(infos)) = (open("fd"), open("fdinfo")) else { return true };
    let Ok(entries) = rustix::fs::Dir::read_from(&links) else { return true };
    let (mut target, mut text) = ([MaybeUninit::uninit(); 64], [0; 512]);
    let mut any = false;
    for entry in entries {
        let Ok(entry) = entry else { return true };
        let name = entry.file_name();
        if name.to_bytes().starts_with(b".") {
            continue;
        }
        any = true;
        // The beginning says enough.
        let Ok((target, _)) = rustix::fs::readlinkat_raw(&links, name, &mut target[..]) else { continue };
        let is = |prefixes: &[&str]| prefixes.iter().any(|prefix| target.starts_with(prefix.as_bytes()));
        if is_pinning(target) {
            return true;
        }
        if !is(&["/", "(unreachable)"]) || is(&["/dev/null", "/dev/pts/", "/dev/tty"]) {
            continue;
        }
        if let Ok(length) = read_at(&infos, name, &mut text)
            && let Some(flags) =
                text[..length].split(|&byte| byte == b'\n').find_map(|line| line.strip_prefix(b"flags:"))
            && let Ok(flags) = u32::from_str_radix(String::from_utf8_lossy(flags).trim(), 8)
            && flags & libc::O_DIRECT as u32 != 0
        {
            return true;
        }
    }
    !any
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU8, Ordering};

    #[test]
    fn the_memory_of_this_process_is_seen() {
        let memory = memory("self").unwrap();
        assert!(memory.anonymous > 0 && memory.tables > 0);
        assert!(super::memory("0").is_none());
        assert!(Watched::default().look("0").is_none());
    }

    /// In a process of its own: other tests take memory and give it back.
    #[test]
    fn between_whole_looks_what_changes_much_is_seen() {
        const ALONE: &str = "PAGETIDE_TEST_ALONE";
        if std::env::var_os(ALONE).is_none() {
            let mut alone = std::process::Command::new(std::env::current_exe().unwrap());
            alone
                .args(["--exact", "procfs::tests::between_whole_looks_what_changes_much_is_seen"])
                .env(ALONE, "");
            let output = alone.output().unwrap();
            let said = String::from_utf8_lossy(&output.stdout);
            assert!(output.status.success() && said.contains("1 passed"), "{said}");
            return;
        }
        let mut watched = Watched::default();
        let mut look = || watched.look("self").unwrap();
        let whole = look();
        let few = std::hint::black_box(vec![1u8; 1000 * pagetide_page::PAGE_SIZE]);
        let second = look();
        // Some kernels count what each processor does there first.
        assert!(second.anonymous > whole.anonymous + 500, "{whole:?}, then {second:?}");
        let many = std::hint::black_box(vec![1u8; 8192 * pagetide_page::PAGE_SIZE]);
        assert!(look().tables > whole.tables, "tables for 32 MiB");
        let before = look();
        let (_fd, shared) = crate::shared::Shared::create("test", 256 * pagetide_page::PAGE_SIZE).unwrap();
        let touch = |byte: &AtomicU8| byte.store(1, Ordering::Relaxed);
        shared
            .bytes(0, 256 * pagetide_page::PAGE_SIZE)
            .iter()
            .step_by(pagetide_page::PAGE_SIZE)
            .for_each(touch);
        assert!(look().shared >= before.shared + 256 - 64, "1 MiB of shared memory");
        drop((few, many));
    }

    #[test]
    fn a_program_is_told_from_a_fork_and_from_the_next_one() {
        let text = "7 (a) S 9) S 24771 24747 6133 0 -1 4194368 3037 0 0 0 3 4 0 0 20 0 2 0 140816 73842688 17531 \
                    18446744073709551615 94253550456832 94253550457813 140728370670448 0 0 \
                    0 0 0 0 0 0 0 17 1 0 0 0 0 0 0 0 0 0 0 140728370671000 0 0";
        let stat = Stat::parse(text).unwrap();
        let wanted = Stat {
            state: b'S',
            parent: 24771,
            session: Some(6133),
            has_execed: false,
            ticks: 7,
            threads: 2,
            start_time: 140_816,
            stack: 140_728_370_670_448,
        };
        assert_eq!(stat, wanted);
        let from_outside = text.replace(" 6133 ", " 0 ");
        assert_eq!(Stat::parse(&from_outside).unwrap().session, None, "the leader is outside");
        let in_exec = text.replace("140728370671000", "0");
        assert_eq!(Stat::parse(&in_exec), Some(Stat { stack: 0, ..wanted }), "it has no environment yet");
        let own = Stat::of("self").unwrap();
        assert!(own.has_execed && !own.is_dead() && own.stack != 0, "{own:?}");
        assert_eq!(Some(own.start_time), start_time(std::process::id()));
        assert_eq!(Stat::of(0), None);
        let before = last_pid().unwrap();
        std::process::Command::new("true").status().unwrap();
        assert_ne!(last_pid(), Some(before));
    }

    #[test]
    fn anonymous_pages_are_counted() {
        let pages = std::hint::black_box(vec![1u8; 1000 * pagetide_page::PAGE_SIZE]);
        let counted = counted_anonymous(std::process::id()).unwrap();
        assert!((1000..1 << 18).contains(&counted), "{counted}");
        drop(pages);
        assert_eq!(counted_anonymous(0), None);
    }

    #[test]
    fn memory_is_seen_after_the_first_thread_has_ended() {
        const SCRIPT: &str = "import ctypes, threading, time; \
            threading.Thread(target=time.sleep, args=(1000,)).start(); ctypes.CDLL(None).pthread_exit(None)";
        let mut child = std::process::Command::new("python3").args(["-c", SCRIPT]).spawn().unwrap();
        let pid = child.id().to_string();
        let ended = || small(&format!("/proc/{pid}/stat")).is_some_and(|stat| stat.contains(") Z "));
        while !ended() {
            std::thread::yield_now();
        }
        let (seen, pins) = (memory(&pid), may_pin(child.id()));
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(seen.unwrap().anonymous > 0);
        assert!(memory(&pid).is_none());
        assert!(pins, "nobody can tell");
    }

    #[test]
    fn a_process_knows_its_own_pidfd() {
        use rustix::process::{Pid, PidfdFlags, pidfd_open};
        use std::os::fd::AsRawFd;
        let of = |pid: u32| pidfd_open(Pid::from_raw(pid as i32).unwrap(), PidfdFlags::empty()).unwrap();
        assert!(is_own_pidfd(of(std::process::id()).as_raw_fd()));
        assert!(!is_own_pidfd(of(1).as_raw_fd()));
        assert!(!is_own_pidfd(0));
        assert!(!is_own_pidfd(9999));
    }

    #[test]
    fn memory_that_nobody_shares_counts_in_full() {
        let memory = vec![1u8; 4 << 20];
        let at = memory.as_ptr().addr();
        // Other tests of this process take and free memory meanwhile: only this mapping is looked at.
        let Some(alone) = proportional(|start, end| !(start..end).contains(&at)) else { return };
        assert!(alone >= 1024, "{alone}");
    }

    #[test]
    fn a_thread_that_runs_is_seen_to_run() {
        let before = run_times(crate::task::tid()).unwrap();
        while run_times(crate::task::tid()).unwrap().0 == before.0 {}
        assert!(run_times(0).is_none());
    }

    #[test]
    fn devices_that_are_not_known_to_copy_may_pin() {
        let pins = |target: &str| is_pinning(target.as_bytes());
        for target in
            ["/dev/infiniband/uverbs0", "/dev/vfio/vfio", "/dev/iommu", "/dev/dri/card0", "/dev/nvidiactl"]
        {
            assert!(pins(target), "{target}");
        }
        for target in
            ["/dev/video0", "/dev/sg0", "/dev/vhost-vdpa-0", "(unreachable)/dev/kfd", "anon_inode:[io_uring]"]
        {
            assert!(pins(target), "{target}");
        }
        for target in [
            "/dev/null",
            "/dev/pts/3",
            "/dev/shm/x",
            "/dev/net/tun",
            "/home/dev/x",
            "socket:[7]",
            "anon_inode:[eventfd]",
        ] {
            assert!(!pins(target), "{target}");
        }
    }

    #[test]
    fn a_file_opened_with_o_direct_is_noticed() {
        use std::os::unix::fs::OpenOptionsExt;
        let pid = std::process::id();
        assert!(!may_pin(pid));
        let file = fs::OpenOptions::new()
            .read(true)
            .custom_flags(libc::O_DIRECT)
            .open(std::env::current_exe().unwrap())
            .unwrap();
        assert!(may_pin(pid));
        drop(file);
        assert!(!may_pin(pid));
    }
}
