//! Shared memory of a run, each object of it once: anonymous shared mappings, memfds, System V segments, files of
//! tmpfs.
//!
//! The kernel tells of each process how many pages of shared memory it has in its page tables, and that sum grows
//! with every process that maps the same object. Here `/proc/PID/maps` tells who maps which object, by device and
//! inode, and the object's own blocks tell what it holds. A process is looked at when it comes to have shared memory,
//! or has much more or less of it than at the last look; objects are measured when one of their processes has more or
//! less.
//!
//! What an object counts for is the least of
//! - the pages of it that processes of the run map, each once,
//! - the pages that it holds. To ask takes the right to follow `/proc/PID/map_files` (CAP_SYS_ADMIN or
//!   CAP_CHECKPOINT_RESTORE), a descriptor that a process of the run has of it, or its name,
//! - unless it was made in the course of the run: the most that processes of the run had of it in their page tables,
//!   all added up. What outsiders have put there and the run does not touch is not the run's.
//!
//! What a process has and is not found in its mappings counts as the kernel says, with each process.

use crate::cpu_budget::CpuBudget;
use crate::units::PAGE;
use pagetide::group::Group;
use pagetide_sys::mapped_files::{self, FileId, FileMapping, made};
use pagetide_sys::procfs;
use rustix::fs::{AtFlags, CWD, Statx, StatxFlags, statx};
use rustix::io::Errno;
use std::collections::HashMap;
use std::fs;
use std::ops::Range;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Looks take at most one part in this many of a processor's time.
const SHARE: u32 = 100;
/// Processes with fewer pages of shared memory are not looked at: their pages count with each of them.
const SMALL: u64 = 64;
/// Mappings are read again when a process has gained or lost one part in this many of its shared pages.
const CHANGED_PART: u64 = 4;
/// Time after which everything is looked at again, as far as there is processor time for it.
const AGAIN: Duration = Duration::from_secs(1);

/// The shared memory of a run.
#[derive(Debug)]
pub(crate) struct SharedMemory {
    /// The group page, which is counted elsewhere, and the time when it was made: before anything of the run.
    own: FileId,
    /// The ring of the remote tier, which is counted with it.
    ring: Option<FileId>,
    made: Option<(i64, u32)>,
    /// The run, whose keeper counts what it serves.
    group: Option<Group>,
    /// Devices, and whether their files are shared memory.
    devices: HashMap<(u32, u32), bool>,
    processes: HashMap<u32, Mapper>,
    objects: HashMap<Key, Object>,
    /// Whether `/proc/PID/map_files` may not be followed.
    forbidden: bool,
    cpu_budget: CpuBudget,
    again: Instant,
    changed: bool,
    anew: bool,
}

/// An object's name. System V segments lie on the device of memfds, and are numbered apart from them.
type Key = (FileId, bool);

fn key(mapping: &FileMapping) -> Key {
    (mapping.file, mapping.name.as_os_str().as_encoded_bytes().starts_with(b"/SYSV"))
}

/// A process that maps shared memory.
#[derive(Debug, Default)]
struct Mapper {
    /// Shared pages in its page tables, and whether they were noted since the last count.
    shared: u64,
    noted: bool,
    /// The value of `shared` when its mappings were read last.
    looked_at: Option<u64>,
    mappings: Vec<FileMapping>,
}

/// An object of shared memory.
#[derive(Debug, Default)]
struct Object {
    /// Pages of it that processes map, each once.
    mapped: u64,
    /// Pages that it holds, and whether it was made in the course of the run; `None` where that may not be asked.
    held: Option<u64>,
    made_here: bool,
    /// The most that processes had in their page tables, added up.
    touched: u64,
    /// A path by which it can be asked.
    found: Option<PathBuf>,
    /// Whether descriptors of its processes were searched for it since they were looked at.
    searched: bool,
}

impl Object {
    fn pages(&self) -> u64 {
        let most = self.held.unwrap_or(u64::MAX).min(self.mapped);
        if self.made_here { most } else { most.min(self.touched) }
    }
}

impl Mapper {
    /// Returns the pages of its mappings, with those of the group page.
    fn covered(&self, own_pages: u64) -> u64 {
        let pages: u64 = self.mappings.iter().map(|mapping| mapping.pages.end - mapping.pages.start).sum();
        pages + own_pages
    }

    /// Returns its shared pages that lie in no known mapping.
    fn unplaced(&self, own_pages: u64) -> u64 {
        self.shared.saturating_sub(self.covered(own_pages))
    }

    fn wants_a_look(&self, own_pages: u64) -> bool {
        match self.looked_at {
            None => self.shared > own_pages + SMALL,
            Some(before) => {
                let change = self.shared.abs_diff(before);
                change > SMALL && (change > before / CHANGED_PART || self.shared > self.covered(own_pages))
            }
        }
    }
}

impl SharedMemory {
    /// Returns the state for a run whose group page is the file `group_page`.
    pub(crate) fn new(group_page: impl AsFd, group: Option<Group>) -> Self {
        let stat =
            statx(group_page, "", AtFlags::EMPTY_PATH, StatxFlags::BASIC_STATS | StatxFlags::BTIME).ok();
        let own = stat.as_ref().map_or(FileId { device: (0, 0), inode: 0 }, id);
        let now = Instant::now();
        Self {
            own,
            ring: None,
            made: stat.as_ref().and_then(made),
            group,
            // Unnamed objects lie on one device, memfds included.
            devices: HashMap::from([(own.device, true)]),
            processes: HashMap::new(),
            objects: HashMap::new(),
            forbidden: false,
            cpu_budget: CpuBudget::new(SHARE, now),
            again: now + AGAIN,
            changed: false,
            anew: false,
        }
    }

    /// Counts the memory of a file elsewhere, too: that of the ring of the remote tier.
    pub(crate) fn leave_out(&mut self, ring: impl AsFd) {
        self.ring = statx(ring, "", AtFlags::EMPTY_PATH, StatxFlags::BASIC_STATS).ok().as_ref().map(id);
    }

    /// Returns the file of the group page, as `/proc/PID/maps` names it.
    pub(crate) fn group_page(&self) -> FileId {
        self.own
    }

    /// Notes the shared pages in the page tables of a process of the run. A process that is not noted between two
    /// counts has ended.
    pub(crate) fn note(&mut self, pid: u32, shared: u64) {
        let mapper = self.processes.entry(pid).or_default();
        self.changed |= mapper.shared != shared;
        (mapper.shared, mapper.noted) = (shared, true);
    }

    /// Makes the next count look at everything, whatever that costs.
    pub(crate) fn count_anew(&mut self) {
        self.anew = true;
    }

    /// Counts the pages of shared memory that the run maps, without the `own_pages` of the group page.
    pub(crate) fn count(&mut self, own_pages: u64) -> u64 {
        let before = self.processes.len();
        self.processes.retain(|_, mapper| std::mem::take(&mut mapper.noted));
        self.changed |= self.processes.len() != before;
        let now = Instant::now();
        let anew = std::mem::take(&mut self.anew);
        let lasts = self.cpu_budget.lasts(now) || anew;
        let again = lasts && (now >= self.again || anew);
        if again {
            (self.again, self.changed) = (now + AGAIN, true);
        }
        let looked = self.look(own_pages, lasts, again);
        if self.changed && (lasts || looked) {
            let mut cpu_budget = std::mem::replace(&mut self.cpu_budget, CpuBudget::new(SHARE, now));
            cpu_budget.spend(|| self.measure());
            (self.cpu_budget, self.changed) = (cpu_budget, false);
        }
        let unplaced: u64 = self.processes.values().map(|mapper| mapper.unplaced(own_pages)).sum();
        unplaced + self.objects.values().map(Object::pages).sum::<u64>()
    }

    /// Reads the mappings of processes that have changed. The first look at a process does not wait for processor
    /// time: until then its shared pages would count twice.
    fn look(&mut self, own_pages: u64, lasts: bool, again: bool) -> bool {
        let Self { own, ring, processes, devices, cpu_budget, objects, .. } = self;
        let ours = |mapping: &FileMapping| {
            let (file, named) = key(mapping);
            !named && (file == *own || Some(file) == *ring)
        };
        let mut looked = false;
        for (&pid, mapper) in processes {
            let first = mapper.looked_at.is_none();
            if !(mapper.wants_a_look(own_pages) && (first || lasts) || again && !first) {
                continue;
            }
            mapper.mappings = cpu_budget.spend(|| shared_mappings(pid, devices));
            mapper.mappings.retain(|mapping| !ours(mapping));
            if mapper.unplaced(own_pages) > 0 {
                // Since the kernel said so, the process may have ended, or become another program.
                let now = procfs::memory(&pid.to_string()).map_or(0, |memory| memory.shared);
                mapper.shared = mapper.shared.min(now);
            }
            mapper.looked_at = Some(mapper.shared);
            looked = true;
        }
        if looked {
            objects.values_mut().for_each(|object| object.searched = false);
        }
        looked
    }

    /// Measures every object that is mapped.
    fn measure(&mut self) {
        let mut mapped: HashMap<Key, Vec<(u32, &FileMapping)>> = HashMap::new();
        for (&pid, mapper) in &self.processes {
            for mapping in &mapper.mappings {
                mapped.entry(key(mapping)).or_default().push((pid, mapping));
            }
        }
        self.objects.retain(|key, _| mapped.contains_key(key));
        for (key, mappings) in mapped {
            let object = self.objects.entry(key).or_default();
            // The keeper counts what it serves.
            let keeps = |mapping| self.group.is_some_and(|group| group.keeps(mapping));
            let served = mappings.iter().all(|(_, mapping)| keeps(mapping));
            let mappings = if served { Vec::new() } else { mappings };
            object.mapped = union(mappings.iter().map(|(_, mapping)| mapping.pages.clone()).collect());
            let mut of_each: HashMap<u32, u64> = HashMap::new();
            for (pid, mapping) in &mappings {
                *of_each.entry(*pid).or_default() += mapping.pages.end - mapping.pages.start;
            }
            let touched = of_each.iter().map(|(pid, &pages)| pages.min(self.processes[pid].shared)).sum();
            object.touched = object.touched.max(touched);
            if let Some(stat) = ask(key.0, object, &mappings, &mut self.forbidden) {
                object.held = Some(stat.stx_blocks * 512 / PAGE);
                object.made_here = self.made.is_some() && made(&stat) >= self.made;
            }
        }
    }
}

/// Asks the kernel about an object, by any path that this process may use.
fn ask(
    file: FileId,
    object: &mut Object,
    mappings: &[(u32, &FileMapping)],
    forbidden: &mut bool,
) -> Option<Statx> {
    if let Some(stat) = object.found.as_deref().and_then(|path| stat(path, file).ok()) {
        return Some(stat);
    }
    object.found = None;
    // Processes that have ended, or have mapped something else there, are passed over.
    for (pid, FileMapping { addresses, .. }) in mappings {
        if *forbidden {
            break;
        }
        let path = PathBuf::from(format!("/proc/{pid}/map_files/{:x}-{:x}", addresses.start, addresses.end));
        match stat(&path, file) {
            Ok(stat) => {
                object.found = Some(path);
                return Some(stat);
            }
            Err(Errno::PERM) => *forbidden = true,
            Err(_) => {}
        }
    }
    if std::mem::replace(&mut object.searched, true) {
        return None;
    }
    let named = mappings.iter().map(|(pid, mapping)| {
        Path::new(&format!("/proc/{pid}/root")).join(mapping.name.strip_prefix("/").unwrap_or(&mapping.name))
    });
    let open = mappings.iter().flat_map(|(pid, _)| {
        fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten().map(|entry| entry.path())
    });
    let (path, stat) = named.chain(open).find_map(|path| stat(&path, file).ok().map(|stat| (path, stat)))?;
    object.found = Some(path);
    Some(stat)
}

fn stat(path: &Path, file: FileId) -> Result<Statx, Errno> {
    // A name may lead to a file system that does not answer: no file system is asked to synchronise or mount.
    let flags = AtFlags::STATX_DONT_SYNC | AtFlags::NO_AUTOMOUNT;
    let stat = statx(CWD, path, flags, StatxFlags::BASIC_STATS | StatxFlags::BTIME)?;
    if id(&stat) == file { Ok(stat) } else { Err(Errno::NOENT) }
}

fn id(stat: &Statx) -> FileId {
    FileId { device: (stat.stx_dev_major, stat.stx_dev_minor), inode: stat.stx_ino }
}

/// Returns the mappings of shared memory of a process; none if they cannot be read.
fn shared_mappings(pid: u32, devices: &mut HashMap<(u32, u32), bool>) -> Vec<FileMapping> {
    let mut mappings = mapped_files::of_process(pid).unwrap_or_default();
    let known = |mapping: &FileMapping| devices.contains_key(&mapping.file.device);
    if !mappings.iter().all(known) {
        let mounted = mapped_files::file_systems(pid);
        for FileMapping { file: FileId { device, .. }, .. } in &mappings {
            // The root of an initramfs may be one, too.
            let kind = mounted.get(device).map(String::as_str);
            devices.entry(*device).or_insert(matches!(kind, Some("tmpfs" | "devtmpfs" | "rootfs")));
        }
    }
    mappings.retain(|mapping| devices[&mapping.file.device]);
    mappings
}

/// Returns the number of pages in at least one of these ranges.
fn union(mut ranges: Vec<Range<u64>>) -> u64 {
    ranges.sort_unstable_by_key(|range| range.start);
    let (mut pages, mut end) = (0, 0);
    for range in ranges {
        pages += range.end.saturating_sub(range.start.max(end));
        end = end.max(range.end);
    }
    pages
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{BufRead, BufReader, Write};
    use std::os::fd::OwnedFd;
    use std::process::{Child, Command, Stdio};

    fn shared_memory() -> (OwnedFd, SharedMemory) {
        let (fd, _) = pagetide_sys::shared::Shared::create("test", PAGE as usize).unwrap();
        let shared = SharedMemory::new(&fd, None);
        (fd, shared)
    }

    /// A family of Python: `setup` is run once, then `each` in so many children. It lives until it is dropped.
    struct Family {
        parent: Child,
        pids: Vec<u32>,
    }

    impl Family {
        fn new(children: usize, setup: &str, each: &str) -> Self {
            let script = format!(
                "import mmap, os, sys, time\n{setup}\npids = [os.getpid()]\nfor nth in range({children}):\n \
                 read, write = os.pipe()\n pid = os.fork()\n if pid == 0:\n  os.close(0)\n  {each}\n  \
                 os.write(write, b'x'); time.sleep(1000)\n os.read(read, 1); pids.append(pid)\n\
                 print(*pids, flush=True)\nsys.stdin.read()\nfor pid in pids[1:]: os.kill(pid, 9)"
            );
            let mut parent = Command::new("python3")
                .args(["-c", &script])
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn()
                .unwrap();
            let mut line = String::new();
            BufReader::new(parent.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
            let pids = line.split_whitespace().map(|pid| pid.parse().unwrap()).collect();
            Self { parent, pids }
        }

        fn note(&self, shared: &mut SharedMemory) {
            for &pid in &self.pids {
                shared.note(pid, procfs::memory(&pid.to_string()).unwrap().shared);
            }
        }
    }

    impl Drop for Family {
        fn drop(&mut self) {
            drop(self.parent.stdin.take());
            self.parent.wait().unwrap();
        }
    }

    const MAP: &str = "m = mmap.mmap(-1, 8 << 20)";
    const FILL: &str = "m.write(b'x' * (8 << 20))";

    #[test]
    fn what_several_processes_share_counts_once() {
        let (_fd, mut shared) = shared_memory();
        let family = Family::new(4, MAP, FILL);
        family.note(&mut shared);
        assert_eq!(shared.count(0), 2048);
        // Nobody is there any more.
        assert_eq!(shared.count(0), 0);
    }

    #[test]
    fn what_a_process_had_before_it_ended_or_became_another_does_not_count() {
        let (_fd, mut shared) = shared_memory();
        let mut other = Command::new("sleep").arg("100").spawn().unwrap();
        shared.note(other.id(), 10_000);
        assert_eq!(shared.count(0), 0, "it is another program");
        other.kill().unwrap();
        let dead = other.id();
        while procfs::memory(&dead.to_string()).is_some_and(|memory| memory.anonymous > 0) {
            std::thread::yield_now();
        }
        let (_fd, mut shared) = shared_memory();
        shared.note(dead, 10_000);
        assert_eq!(shared.count(0), 0, "it has ended");
        other.wait().unwrap();
    }

    #[test]
    fn where_nobody_may_ask_what_is_mapped_bounds_what_was_touched() {
        let (_fd, mut shared) = shared_memory();
        shared.forbidden = true;
        let family = Family::new(4, MAP, FILL);
        family.note(&mut shared);
        assert_eq!(shared.count(0), 2048, "as long as the mapping is, though four have touched it");
        let (_fd, mut shared) = shared_memory();
        shared.forbidden = true;
        let family = Family::new(2, MAP, "m.write(b'x' * (1 << 20))");
        family.note(&mut shared);
        assert_eq!(shared.count(0), 2 * 256, "as much as both have touched");
    }

    #[test]
    fn a_descriptor_or_a_name_tells_what_an_object_holds() {
        let name = format!("/dev/shm/pagetide-test-{}", std::process::id());
        let named = format!("fd = os.open({name:?}, os.O_CREAT | os.O_RDWR, 0o600)");
        for made in ["fd = os.memfd_create('test')", &named] {
            let (_fd, mut shared) = shared_memory();
            shared.forbidden = true;
            // What was written has to be read to be in page tables.
            let setup = format!("{made}; os.truncate(fd, 8 << 20); m = mmap.mmap(fd, 8 << 20)");
            let family = Family::new(4, &setup, "m.write(b'x' * (2 << 20))");
            family.note(&mut shared);
            assert_eq!(shared.count(0), 512, "{made}");
        }
        fs::remove_file(name).unwrap();
    }

    #[test]
    fn of_what_was_there_before_only_what_is_touched_counts() {
        let path = format!("/dev/shm/pagetide-test-before-{}", std::process::id());
        fs::File::create(&path).unwrap().write_all(&vec![1; 16 << 20]).unwrap();
        let before = statx(CWD, &*path, AtFlags::empty(), StatxFlags::BTIME).unwrap();
        // Clocks of files go in steps.
        let (_fd, mut shared) = std::iter::repeat_with(shared_memory)
            .find(|(_, shared)| shared.made > made(&before) || shared.made.is_none())
            .unwrap();
        let setup = format!("m = mmap.mmap(os.open({path:?}, os.O_RDWR), 16 << 20)");
        let family = Family::new(1, &setup, "[m[at] for at in range(0, 4 << 20, 4096)]");
        fs::remove_file(&path).unwrap();
        family.note(&mut shared);
        let pages = shared.count(0);
        // A fault maps its neighbours.
        assert!((1024..1024 + 64).contains(&pages), "{pages}");
    }

    #[test]
    fn processes_that_have_little_beside_the_group_page_count_as_the_kernel_says() {
        let (_fd, mut shared) = shared_memory();
        shared.note(std::process::id(), 100 + SMALL);
        assert_eq!(shared.count(100), SMALL);
    }

    #[test]
    fn ranges_that_overlap_count_once() {
        assert_eq!(union(vec![5..8, 0..2, 1..3, 6..7, 8..9]), 7);
        assert_eq!(union(vec![]), 0);
    }
}
