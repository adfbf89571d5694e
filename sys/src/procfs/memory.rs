//! Memory of processes.

use super::file::{field, small, tasks};
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::os::fd::BorrowedFd;

/// The calling process among processes, where their memory is asked for. By its calling thread: the kernel shows none of a process
/// by its first one where that has ended.
pub const OWN: &str = "thread-self";

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
    /// Returns the pages that are charged to the process. Shared memory is charged to the run, each object once.
    pub fn charged(&self) -> u64 {
        self.anonymous + self.tables
    }
}

/// Reads the memory of a process. `None` when it is gone.
pub fn memory(pid: &str) -> Option<Memory> {
    let process = format!("/proc/{pid}");
    // The first thread may have ended before the others: then its memory is not shown.
    memory_of(&process).or_else(|| tasks(&process).find_map(|task| memory_of(&task)))
}

/// Reads a file of `/proc/PID` that shows the process's memory, such as `smaps`. `None` when it is gone, or not to be seen.
///
/// ```
/// use pagetide_sys::procfs;
///
/// let rollup = procfs::of_memory(std::process::id(), "smaps_rollup").expect("this process may be seen");
/// assert!(procfs::field(&rollup, "Pss_Anon:").expect("a figure in KiB") > 0);
/// ```
pub fn of_memory(pid: u32, file: &str) -> Option<String> {
    let read = |path: String| std::fs::read_to_string(path).ok().filter(|text| !text.is_empty());
    let process = format!("/proc/{pid}");
    // As in `memory`.
    read(format!("{process}/{file}"))
        .or_else(|| tasks(&process).find_map(|task| read(format!("{task}/{file}"))))
}

/// Looks that are cheap between two whole ones, and how many pages may come and go until then.
const CHEAP_LOOKS: u32 = 7;
/// The same where all that changes is to be seen at once.
const CLOSE_LOOKS: u32 = 3;
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
    /// The same at the last look.
    seen: (u64, u64),
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
                (self.cheap, self.seen) = (cheap, counts);
                self.last.anonymous = counts.0;
                Some(self.last)
            }
            _ => self.look_whole(pid, counts, CHEAP_LOOKS),
        }
    }

    /// The same for a process of which nobody else keeps account: it is told anew as soon as one page has come or gone, and
    /// at one look in four. `statm` is its file of that name, kept open: reading it takes 1.6 µs, opening it 6 more, and all
    /// is told in 19 (AMD EPYC).
    pub fn look_closely(&mut self, pid: &str, statm: Option<BorrowedFd<'_>>) -> Option<Memory> {
        let counts = statm.map_or_else(|| counts(pid), counts_of);
        match self.cheap.checked_sub(1) {
            Some(cheap) if counts == Some(self.seen) => {
                self.cheap = cheap;
                Some(self.last)
            }
            _ => self.look_whole(pid, counts, CLOSE_LOOKS),
        }
    }

    fn look_whole(&mut self, pid: &str, counts: Option<(u64, u64)>, cheap: u32) -> Option<Memory> {
        (self.last, self.cheap) = (memory(pid)?, cheap);
        self.whole = counts.unwrap_or_default();
        self.seen = self.whole;
        Some(self.last)
    }
}

/// The memory of this process when it starts, which is cheaper to learn: page tables are guessed, 64 KiB. (By the name of the thread
/// it would take 8 µs more; the first one is there.)
pub fn young_memory() -> Option<Memory> {
    let (anonymous, _) = counts("self")?;
    // What it shares with others it maps by calls that are yet to come.
    Some(Memory { anonymous, shared: 0, tables: 16 })
}

/// Anonymous pages of a process whose first thread lives, and pages of files and of shared memory.
fn counts(pid: &str) -> Option<(u64, u64)> {
    parse_counts(&small(&format!("/proc/{pid}/statm"))?)
}

/// The same of an open file `statm`.
fn counts_of(statm: BorrowedFd<'_>) -> Option<(u64, u64)> {
    let mut text = [0; 128];
    let length = rustix::io::retry_on_intr(|| rustix::io::pread(statm, &mut text, 0)).ok()?;
    parse_counts(std::str::from_utf8(&text[..length]).ok()?)
}

fn parse_counts(statm: &str) -> Option<(u64, u64)> {
    let mut fields = statm.split_ascii_whitespace().skip(1).map_while(|field| field.parse::<u64>().ok());
    let (resident, other) = (fields.next()?, fields.next()?);
    (resident > 0).then(|| (resident.saturating_sub(other), other))
}

/// Anonymous pages of a process, counted one by one: exact where the count that the kernel keeps is not, and slower.
/// `None` if this kernel, or this process, does not show them.
pub fn counted_anonymous(pid: &str) -> Option<u64> {
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

/// Anonymous pages of a process, outside of ranges that `skip` knows, that count in others: of a page that `n` processes
/// share since a fork, `n - 1` parts of `n`. `None` where the kernel does not say (before Linux 6.0).
///
/// Walks the page tables: microseconds a mapping, and about 10 µs a 1000 pages.
pub fn counted_elsewhere(pid: &str, skip: impl Fn(usize, usize) -> bool) -> Option<u64> {
    let mut smaps = BufReader::with_capacity(1 << 16, File::open(format!("/proc/{pid}/smaps")).ok()?);
    let (mut kilobytes, mut told) = (0, false);
    let mut mapping: Option<Shares> = None;
    let mut line = String::new();
    while smaps.read_line(&mut line).ok()? > 0 {
        // Attributes begin with a capital letter, mappings with a hexadecimal address.
        if line.starts_with(|first: char| first.is_ascii_uppercase()) {
            if let (Some(shares), Some((name, size))) = (&mut mapping, line.split_once(':')) {
                shares.note(name, size);
            }
        } else {
            let ended = mapping.replace(Shares::default()).unwrap_or_default();
            (kilobytes, told) = (kilobytes + ended.elsewhere(), told | ended.parts.is_some());
            let mut fields = line.split_ascii_whitespace();
            let (start, end) = fields.next()?.split_once('-')?;
            let address = |text| usize::from_str_radix(text, 16).ok();
            let private = fields.next()?.ends_with('p');
            if !private || skip(address(start)?, address(end)?) {
                // It is told, and does not count.
                mapping = Some(Shares { skipped: true, ..Shares::default() });
            }
        }
        line.clear();
    }
    let last = mapping.unwrap_or_default();
    let pages = ((kilobytes + last.elsewhere()) << 10) / pagetide_page::PAGE_SIZE as u64;
    (told || last.parts.is_some()).then_some(pages)
}

/// What `smaps` says of a mapping, in KiB.
#[derive(Default)]
struct Shares {
    skipped: bool,
    anonymous: u64,
    shared: u64,
    private: u64,
    /// What is dirty, each page divided by the processes that map it.
    parts: Option<u64>,
}

impl Shares {
    fn note(&mut self, name: &str, size: &str) {
        let size = || size.split_ascii_whitespace().next().and_then(|size| size.parse().ok()).unwrap_or(0);
        match name {
            "Anonymous" => self.anonymous = size(),
            "Shared_Dirty" => self.shared = size(),
            "Private_Dirty" => self.private = size(),
            "Pss_Dirty" => self.parts = Some(size()),
            _ => {}
        }
    }

    /// Returns what other processes count of it.
    fn elsewhere(&self) -> u64 {
        match self.parts {
            // Pages of files may be dirty, too: of those nothing is taken off, and less of the rest. Parts are rounded down.
            Some(parts) if !self.skipped && self.shared > 0 => {
                (self.shared + self.private).min(self.anonymous).saturating_sub(parts + 1)
            }
            _ => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mapped_files::FileId;
    use crate::procfs::{has_open, may_pin};
    use rustix::process::{Pid, Signal, kill_process};
    use std::io::Write;
    use std::os::fd::AsFd;
    use std::process::{Command, Stdio};
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
                .args(["--exact", "procfs::memory::tests::between_whole_looks_what_changes_much_is_seen"])
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

        let statm = File::open("/proc/self/statm").unwrap();
        let mut closely = Watched::default();
        let mut look = || closely.look_closely("self", Some(statm.as_fd())).unwrap();
        let mut kept = Vec::new();
        for nth in 0..10 {
            let before = look();
            kept.push(std::hint::black_box(vec![1u8; 300 * pagetide_page::PAGE_SIZE]));
            let after = look();
            assert!(after.anonymous > before.anonymous + 100, "look {nth}: {before:?}, then {after:?}");
        }
    }

    #[test]
    fn what_is_looked_at_closely_is_as_the_kernel_tells_it_until_it_dies() {
        let mut child = Command::new("sleep").arg("1000").spawn().unwrap();
        let pid = child.id().to_string();
        // It has its memory when it sleeps.
        let sleeps = || small(&format!("/proc/{pid}/stat")).is_some_and(|stat| stat.contains("(sleep) S "));
        while !sleeps() {
            std::thread::yield_now();
        }
        let statm = File::open(format!("/proc/{pid}/statm")).unwrap();
        let (mut kept, mut opened) = (Watched::default(), Watched::default());
        for _ in 0..10 {
            assert_eq!(kept.look_closely(&pid, Some(statm.as_fd())), memory(&pid));
            assert_eq!(opened.look_closely(&pid, None), memory(&pid));
        }
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(kept.look_closely(&pid, Some(statm.as_fd())), None);
        assert_eq!(opened.look_closely(&pid, None), None);
    }

    #[test]
    fn anonymous_pages_are_counted() {
        let pages = std::hint::black_box(vec![1u8; 1000 * pagetide_page::PAGE_SIZE]);
        let counted = counted_anonymous(&std::process::id().to_string()).unwrap();
        assert!((1000..1 << 18).contains(&counted), "{counted}");
        drop(pages);
        assert_eq!(counted_anonymous("0"), None);
    }

    #[test]
    fn memory_is_seen_after_the_first_thread_has_ended() {
        const SCRIPT: &str = "import ctypes, threading, time; \
            threading.Thread(target=time.sleep, args=(1000,)).start(); ctypes.CDLL(None).pthread_exit(None)";
        let mut child = Command::new("python3").args(["-c", SCRIPT]).stdin(Stdio::null()).spawn().unwrap();
        let pid = child.id().to_string();
        let ended = || small(&format!("/proc/{pid}/stat")).is_some_and(|stat| stat.contains(") Z "));
        while !ended() {
            std::thread::yield_now();
        }
        let (seen, pins) = (memory(&pid), may_pin(child.id()));
        let file = |name| FileId::of(&rustix::fs::stat(name).unwrap());
        let has = ["/dev/null", "/dev/zero"].map(|name| has_open(child.id(), file(name)));
        let maps = crate::mapped_files::of_process(child.id()).unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(seen.unwrap().anonymous > 0);
        assert!(memory(&pid).is_none());
        // The other thread has the same.
        assert_eq!((pins, has), (Some(false), [Some(true), Some(false)]));
        assert!(!maps.is_empty());
    }

    #[test]
    fn of_what_a_fork_shares_a_part_counts_elsewhere() {
        // The child ends with the pipe, whatever becomes of its parent.
        const SCRIPT: &str = "import os\nkept = bytearray(b'x') * (64 << 20)\nprint(flush=True)\ninput()\n\
            here, there = os.pipe()\nchild = os.fork()\n\
            if child == 0: os.close(there); os.read(here, 1); os._exit(0)\n\
            print(child, flush=True)\ninput()\n";
        let mut parent = Command::new("python3");
        let mut parent =
            parent.args(["-c", SCRIPT]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let pid = parent.id().to_string();
        let (mut told, mut input) =
            (BufReader::new(parent.stdout.take().unwrap()), parent.stdin.take().unwrap());
        let mut line = || {
            let mut line = String::new();
            told.read_line(&mut line).unwrap();
            line.trim().to_owned()
        };
        // Of nothing but what both keep.
        let small = |start: usize, end: usize| end - start < 64 << 20;
        line();
        let alone = counted_elsewhere(&pid, small);
        input.write_all(b"\n").unwrap();
        let child = line();
        // Both go on to write to memory that they share.
        let both = [&pid, &child].map(|pid| Pid::from_raw(pid.parse().unwrap()).unwrap());
        let tell = |signal| both.map(|process| kill_process(process, signal).unwrap());
        tell(Signal::STOP);
        for pid in [&pid, &child] {
            while !std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap().contains(") T ") {
                std::thread::yield_now();
            }
        }
        let [here, there] = [&pid, &child].map(|pid| counted_elsewhere(pid, small));
        let none = counted_elsewhere(&pid, |_, _| true);
        tell(Signal::CONT);
        drop(input);
        parent.wait().unwrap();
        if !std::fs::read_to_string("/proc/self/smaps").unwrap().contains("Pss_Dirty:") {
            return;
        }
        assert_eq!(alone, Some(0));
        // The mapping may have grown together with its neighbours.
        assert!((8190..9000).contains(&here.unwrap()), "{here:?}");
        assert_eq!(here, there);
        assert_eq!(none, Some(0));
        assert_eq!(counted_elsewhere("0", |_, _| false), None);
    }

    #[test]
    fn pages_of_files_that_are_dirty_are_not_counted_elsewhere() {
        // As `smaps` shows a library on tmpfs that four processes have loaded, with 8 KiB of its data written in this one.
        let library = Shares { skipped: false, anonymous: 8, shared: 400, private: 8, parts: Some(108) };
        assert_eq!(library.elsewhere(), 0);
        let since_a_fork = Shares { anonymous: 400, shared: 400, private: 0, ..library };
        assert_eq!(since_a_fork.elsewhere(), 400 - 109);
    }
}
