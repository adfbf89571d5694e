//! Which pages of a range are in the page tables: PAGEMAP_SCAN (6.7), else `/proc/self/pagemap`.

use crate::handout::{self, Thing};
use crate::mapping::last_errno;
use crate::procfs;
use pagetide_page::{CLUSTER_PAGES, CLUSTER_SIZE, PAGE_SIZE, PageSet};
use rustix::io::Errno;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

const WRITTEN: u64 = 1 << 1;
const PRESENT: u64 = 1 << 3;
const SWAPPED: u64 = 1 << 4;
const PFNZERO: u64 = 1 << 5;

/// Bits of an entry of `/proc/self/pagemap`.
const ENTRY_PRESENT: u64 = 1 << 63;
const ENTRY_SWAPPED: u64 = 1 << 62;
/// No other page table has the page (4.2).
const ENTRY_EXCLUSIVE: u64 = 1 << 56;

#[repr(C)]
struct ScanArg {
    size: u64,
    flags: u64,
    start: u64,
    end: u64,
    walk_end: u64,
    vec: u64,
    vec_len: u64,
    max_pages: u64,
    category_inverted: u64,
    category_mask: u64,
    category_anyof_mask: u64,
    return_mask: u64,
}
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Region {
    start: u64,
    end: u64,
    categories: u64,
}
/// `PM_SCAN_WP_MATCHING`: pages that match are protected against writes.
const PROTECT: u64 = 1;
/// `PM_SCAN_CHECK_WPASYNC`: EPERM where a write would be a fault that somebody has to answer.
const CHECK_ASYNC: u64 = 2;
const SCAN: u64 = 3 << 30 | (size_of::<ScanArg>() as u64) << 16 | (b'f' as u64) << 8 | 16;

/// A question to PAGEMAP_SCAN: which pages match, by their categories, and what is told of them.
#[derive(Clone, Copy)]
struct Ask {
    flags: u64,
    all_of: u64,
    any_of: u64,
    tell: u64,
}

/// Opens a file of `/proc/PID` that tells of the calling process's memory: the calling thread's, for that of a first thread which
/// has ended tells of none. In another root there may be none: it is asked for.
///
/// In a process that is not to be dumped, which cannot open it unless it is root's, that is suspended for a moment.
pub(crate) fn open_own(name: &str, thing: Thing) -> Result<OwnedFd, Errno> {
    use rustix::process::{DumpableBehavior, dumpable_behavior, set_dumpable_behavior};
    let open = || {
        let flags = rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::CLOEXEC;
        rustix::fs::open(format!("/proc/{}/{name}", procfs::OWN), flags, rustix::fs::Mode::empty())
    };
    match open() {
        Err(Errno::ACCESS) if dumpable_behavior()? != DumpableBehavior::Dumpable => {
            set_dumpable_behavior(DumpableBehavior::Dumpable)?;
            let fd = open();
            set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
            fd
        }
        other => other.or_else(|error| handout::ask(thing).map_err(|_| error)),
    }
}

/// A view of the caller's page tables.
#[derive(Debug)]
pub struct Pagemap {
    fd: OwnedFd,
    scan: AtomicBool,
}

/// The pages of a range within one cluster that a scan found; bit 0 is the cluster's first page.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Presence {
    /// Pages that are there.
    pub present: PageSet,
    /// Those of them that are the kernel's shared zero page: they take no memory.
    pub zero: PageSet,
}

impl Pagemap {
    /// Opens the view of the calling process.
    ///
    /// # Errors
    /// The error of the file in `/proc`, if it cannot be opened and the launcher hands out no descriptor of it.
    pub fn open() -> Result<Self, Errno> {
        let fd = open_own("pagemap", Thing::Pagemap)?;
        Ok(Self { fd, scan: AtomicBool::new(true) })
    }

    /// Returns whether PAGEMAP_SCAN is used: it has not failed yet.
    pub fn scans(&self) -> bool {
        self.scan.load(Relaxed)
    }

    /// Returns whether PAGEMAP_SCAN works (6.7).
    pub fn can_scan(&self) -> bool {
        let here = std::ptr::from_ref(self).addr() / PAGE_SIZE * PAGE_SIZE;
        self.scan(here, PAGE_SIZE).is_ok()
    }

    /// Looks at `[start, start + length)`, which lies in one cluster.
    ///
    /// # Errors
    /// The error of reading the file in `/proc`.
    pub fn presence(&self, start: usize, length: usize) -> Result<Presence, Errno> {
        debug_assert!(start / CLUSTER_SIZE == (start + length - 1) / CLUSTER_SIZE);
        if self.scan.load(Relaxed) {
            match self.scan(start, length) {
                Err(Errno::NOTTY | Errno::INVAL | Errno::NOSYS) => self.scan.store(false, Relaxed),
                other => return other,
            }
        }
        self.pread(start, length)
    }

    /// Returns the address of the first page in `[start, start + length)` that is there, the end of the range if none is. Where
    /// page tables are missing the kernel passes up to 512 GiB at a step.
    ///
    /// # Errors
    /// NOTTY, INVAL without PAGEMAP_SCAN (6.7).
    pub fn first_present(&self, start: usize, length: usize) -> Result<usize, Errno> {
        if !self.scan.load(Relaxed) {
            return Err(Errno::NOTTY);
        }
        let ask = Ask { flags: 0, all_of: 0, any_of: PRESENT | SWAPPED, tell: PRESENT };
        let (mut at, end) = (start, start + length);
        while at < end {
            let mut regions = [Region::default(); 1];
            let (count, walk_end) = self.ask_once(at, end, ask, 1, &mut regions)?;
            if count > 0 {
                return Ok(regions[0].start as usize);
            }
            at = walk_end.max(at + PAGE_SIZE);
        }
        Ok(end)
    }

    /// Returns the pages in `[start, start + length)`, which lies in one cluster, that are there and were written since
    /// this was last asked with `watch`, or have come there since. With `watch` what is written from now on is told the
    /// next time.
    ///
    /// # Errors
    /// PERM where memory is not registered to be watched ([`crate::uffd::Uffd::register`]); NOTTY, INVAL without
    /// PAGEMAP_SCAN (6.7).
    pub fn written(&self, start: usize, length: usize, watch: bool) -> Result<PageSet, Errno> {
        if !self.scan.load(Relaxed) {
            return Err(Errno::NOTTY);
        }
        let mut written = PageSet::default();
        // Present pages only: over a hole the kernel would leave a marker, into which nothing can be moved.
        let ask = Ask {
            flags: CHECK_ASYNC | if watch { PROTECT } else { 0 },
            all_of: PRESENT | WRITTEN,
            any_of: 0,
            tell: WRITTEN,
        };
        self.ask(start, length, ask, |page, _| written.insert(page))?;
        Ok(written)
    }

    fn scan(&self, start: usize, length: usize) -> Result<Presence, Errno> {
        let mut found = Presence::default();
        let ask = Ask { flags: 0, all_of: 0, any_of: PRESENT | SWAPPED, tell: PRESENT | SWAPPED | PFNZERO };
        self.ask(start, length, ask, |page, categories| {
            found.present.insert(page);
            if categories & PFNZERO != 0 {
                found.zero.insert(page);
            }
        })?;
        Ok(found)
    }

    /// Scans a range. `tell` is told each page that matches, and its categories.
    fn ask(
        &self,
        start: usize,
        length: usize,
        ask: Ask,
        mut tell: impl FnMut(usize, u64),
    ) -> Result<(), Errno> {
        let mut regions = [Region::default(); 64];
        let (mut at, end) = (start, start + length);
        while at < end {
            let (count, walk_end) = self.ask_once(at, end, ask, 0, &mut regions)?;
            for region in &regions[..count] {
                for page in region.start as usize / PAGE_SIZE..region.end as usize / PAGE_SIZE {
                    tell(page % CLUSTER_PAGES, region.categories);
                }
            }
            at = walk_end.max(at + PAGE_SIZE);
        }
        Ok(())
    }

    /// Scans a range for `most` pages that match, for all if that is 0. Returns how many regions it found, and where it ended.
    fn ask_once(
        &self,
        start: usize,
        end: usize,
        ask: Ask,
        most: u64,
        regions: &mut [Region],
    ) -> Result<(usize, usize), Errno> {
        let mut arg = ScanArg {
            size: size_of::<ScanArg>() as u64,
            flags: ask.flags,
            start: start as u64,
            end: end as u64,
            walk_end: 0,
            vec: regions.as_mut_ptr() as u64,
            vec_len: regions.len() as u64,
            max_pages: most,
            category_inverted: 0,
            category_mask: ask.all_of,
            category_anyof_mask: ask.any_of,
            return_mask: ask.tell,
        };
        // SAFETY: (1) the argument and the vector that it names are live for the call; (2) protection by it changes
        // no contents, and the kernel ends it at a write by itself: CHECK_ASYNC.
        let count = unsafe { libc::ioctl(self.fd.as_raw_fd(), SCAN as _, &raw mut arg) };
        if count < 0 { Err(last_errno()) } else { Ok((count as usize, arg.walk_end as usize)) }
    }

    /// Returns the pages in `[start, start + length)`, which lies in one cluster, that are there and that other page tables
    /// have, too.
    ///
    /// # Errors
    /// The error of reading the file in `/proc`.
    pub fn shared(&self, start: usize, length: usize) -> Result<PageSet, Errno> {
        let mut found = PageSet::default();
        self.read(start, length, |page, entry| {
            if entry & (ENTRY_PRESENT | ENTRY_EXCLUSIVE) == ENTRY_PRESENT {
                found.insert(page);
            }
        })?;
        Ok(found)
    }

    fn pread(&self, start: usize, length: usize) -> Result<Presence, Errno> {
        let mut found = Presence::default();
        self.read(start, length, |page, entry| {
            if entry & (ENTRY_PRESENT | ENTRY_SWAPPED) != 0 {
                found.present.insert(page);
            }
        })?;
        Ok(found)
    }

    /// Reads the entry of each page of a range in one cluster.
    fn read(&self, start: usize, length: usize, mut tell: impl FnMut(usize, u64)) -> Result<(), Errno> {
        let mut entries = [0u64; CLUSTER_PAGES];
        let count = length / PAGE_SIZE;
        // SAFETY: a u64 array viewed as bytes, of the same length.
        let bytes = unsafe { std::slice::from_raw_parts_mut(entries.as_mut_ptr().cast::<u8>(), count * 8) };
        let mut done = 0;
        while done < bytes.len() {
            let got = rustix::io::pread(&self.fd, &mut bytes[done..], (start / PAGE_SIZE * 8 + done) as u64)?;
            if got == 0 {
                return Err(Errno::IO);
            }
            done += got;
        }
        for (nth, &entry) in entries[..count].iter().enumerate() {
            tell((start / PAGE_SIZE + nth) % CLUSTER_PAGES, entry);
        }
        Ok(())
    }

    /// Uses `/proc/self/pagemap` even where PAGEMAP_SCAN works: for tests of the fallback.
    pub fn mask_scan(&self) {
        self.scan.store(false, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mapping::Reservation;
    use crate::uffd::{FEATURE_WP_ASYNC, Uffd};
    use std::io::{Read, Write};

    fn word(memory: &Reservation, page: usize) -> *mut u64 {
        (memory.base() + page * PAGE_SIZE) as *mut u64
    }

    /// `None` where the kernel does not tell what is written.
    fn opened() -> Option<(Uffd, Pagemap)> {
        let uffd = Uffd::open().unwrap();
        (uffd.features() & FEATURE_WP_ASYNC != 0).then(|| (uffd, Pagemap::open().unwrap()))
    }

    #[test]
    fn the_first_page_of_a_large_range_is_found() {
        const LENGTH: usize = 1 << 40;
        let memory = Reservation::small_pages(LENGTH, CLUSTER_SIZE).unwrap();
        let pagemap = Pagemap::open().unwrap();
        if !pagemap.can_scan() {
            return;
        }
        let (start, far) = (memory.base(), LENGTH / PAGE_SIZE - 5);
        let first = |start, length| pagemap.first_present(start, length).unwrap();
        assert_eq!(first(start, LENGTH), start + LENGTH);
        // SAFETY: memory of this test.
        unsafe { *word(&memory, far) = 1 };
        let page = start + far * PAGE_SIZE;
        assert_eq!(first(start, LENGTH), page);
        assert_eq!(
            (first(page, PAGE_SIZE), first(page + PAGE_SIZE, PAGE_SIZE)),
            (page, page + 2 * PAGE_SIZE)
        );
    }

    /// A cluster, registered to be watched, of which the first 200 pages are there and hold their numbers.
    fn watched(uffd: &Uffd) -> Reservation {
        let memory = Reservation::small_pages(CLUSTER_SIZE, CLUSTER_SIZE).unwrap();
        // SAFETY: memory of this test, of which it touches no page that is not there.
        unsafe {
            (0..200).for_each(|page| *word(&memory, page) = page as u64);
            uffd.register_watched(memory.base(), CLUSTER_SIZE).unwrap();
        }
        memory
    }

    fn listed(pages: PageSet) -> Vec<usize> {
        pages.iter().collect()
    }

    #[test]
    fn pages_are_told_that_were_written_or_came_in_since_they_were_watched() {
        let _unshared = crate::no_fork();
        let Some((uffd, pagemap)) = opened() else { return };
        let memory = watched(&uffd);
        let written = |watch| pagemap.written(memory.base(), CLUSTER_SIZE, watch).map(listed);
        assert_eq!(written(true).unwrap(), (0..200).collect::<Vec<_>>(), "never asked before");
        assert_eq!(written(false), Ok(vec![]));
        let (mut to, mut from) = std::io::pipe().unwrap();
        // SAFETY: pages that are there, or come in by the call, of memory of this test.
        unsafe {
            *word(&memory, 3) += 1;
            assert_eq!(*word(&memory, 4), 4, "a read");
            from.write_all(&[9; 16]).unwrap();
            to.read_exact(std::slice::from_raw_parts_mut(word(&memory, 7).cast(), 16)).unwrap();
            // Over a hole nothing was left behind.
            assert_eq!(uffd.copy(word(&memory, 300) as usize, &[7; PAGE_SIZE]), (PAGE_SIZE, None));
            assert_eq!(
                uffd.move_pages(word(&memory, 400) as usize, word(&memory, 5) as usize, PAGE_SIZE, false).1,
                None
            );
        }
        assert_eq!(written(false), Ok(vec![3, 7, 300, 400]));
        assert_eq!(written(true), Ok(vec![3, 7, 300, 400]));
        assert_eq!(written(true), Ok(vec![]));
        // A part: other pages are neither told nor watched.
        // SAFETY: as above.
        unsafe { (0..4).for_each(|page| *word(&memory, page) += 1) };
        let part = pagemap.written(memory.base() + PAGE_SIZE, 2 * PAGE_SIZE, true).map(listed);
        assert_eq!((part, written(false)), (Ok(vec![1, 2]), Ok(vec![0, 3])));
    }

    #[test]
    fn memory_that_is_not_registered_to_be_watched_is_told_apart() {
        let Some((uffd, pagemap)) = opened() else { return };
        let memory = Reservation::small_pages(CLUSTER_SIZE, CLUSTER_SIZE).unwrap();
        // SAFETY: memory of this test, every page of which it touches is there.
        unsafe {
            *word(&memory, 0) = 1;
            uffd.register(memory.base(), CLUSTER_SIZE).unwrap();
        }
        assert_eq!(pagemap.written(memory.base(), CLUSTER_SIZE, true), Err(Errno::PERM));
    }

    /// Over a hole nothing is left behind: pages come in there by COPY and MOVE, and can be written to.
    #[test]
    fn a_write_waits_where_writes_are_stopped_and_nowhere_else() {
        let _unshared = crate::no_fork();
        let Ok(uffd) = Uffd::open_stopping_writes() else { return };
        let memory = watched(&uffd);
        let page = |page| word(&memory, page) as usize;
        uffd.write_protect(page(100), 200 * PAGE_SIZE, true).unwrap();
        // SAFETY: pages that are there, or come in by the call, of memory of this test.
        unsafe {
            assert_eq!((*word(&memory, 150), *word(&memory, 99)), (150, 99), "reads");
            *word(&memory, 99) += 1;
            assert_eq!(uffd.copy(page(250), &[7; PAGE_SIZE]), (PAGE_SIZE, None));
            *word(&memory, 250) += 1;
            if uffd.features() & crate::uffd::FEATURE_MOVE != 0 {
                assert_eq!(uffd.move_pages(page(251), page(3), PAGE_SIZE, false), (PAGE_SIZE, None));
                *word(&memory, 251) += 1;
            }
        }
        std::thread::scope(|scope| {
            // SAFETY: as above; it waits until the write is allowed.
            let writer = scope.spawn(|| unsafe { *word(&memory, 150) += 1 });
            let fault = uffd.read().unwrap().unwrap();
            assert_eq!((fault.address, fault.write, fault.protected), (page(150), true, true));
            assert!(!writer.is_finished());
            uffd.end_protection(page(150), PAGE_SIZE).unwrap();
            uffd.wake(page(150), PAGE_SIZE);
            writer.join().unwrap();
        });
        // SAFETY: as above.
        unsafe {
            *word(&memory, 150) += 1;
            assert_eq!(*word(&memory, 150), 152);
        }
    }

    #[test]
    fn pages_are_told_that_another_process_has_too() {
        let _alone = crate::may_fork();
        let memory = Reservation::small_pages(CLUSTER_SIZE, CLUSTER_SIZE).unwrap();
        let pagemap = Pagemap::open().unwrap();
        let shared = || pagemap.shared(memory.base(), CLUSTER_SIZE).map(listed).unwrap();
        let (mut told, mut tell) = std::io::pipe().unwrap();
        let (mut ends, end) = std::io::pipe().unwrap();
        // SAFETY: memory of this test; the child touches memory, and ends.
        let child = unsafe {
            (0..9).for_each(|page| *word(&memory, page) = 1);
            assert_eq!(shared(), []);
            match libc::fork() {
                0 => {
                    drop(end);
                    *word(&memory, 2) += 1;
                    let _ = tell.write_all(&[1]);
                    let _ = ends.read(&mut [0]);
                    libc::_exit(0)
                }
                child => child,
            }
        };
        told.read_exact(&mut [0]).unwrap();
        // SAFETY: as above.
        unsafe { *word(&memory, 5) += 1 };
        assert_eq!(shared(), [0, 1, 3, 4, 6, 7, 8], "neither what the child has written nor the parent");
        drop(end);
        // SAFETY: no status is asked for.
        assert_eq!(unsafe { libc::waitpid(child, std::ptr::null_mut(), 0) }, child);
        assert_eq!(shared(), []);
    }

    /// The child's memory is its own, and not watched; the parent's stays watched.
    #[test]
    fn what_a_child_writes_its_parent_did_not() {
        let _alone = crate::may_fork();
        let Some((uffd, pagemap)) = opened() else { return };
        let memory = watched(&uffd);
        pagemap.written(memory.base(), CLUSTER_SIZE, true).unwrap();
        // SAFETY: the child touches memory, and ends.
        let child = unsafe {
            match libc::fork() {
                0 => {
                    *word(&memory, 1) += 1;
                    libc::_exit(i32::from(*word(&memory, 1) != 2 || *word(&memory, 2) != 2))
                }
                child => child,
            }
        };
        let mut status = 0;
        // SAFETY: the status is live for the call; the pages are there.
        unsafe {
            assert_eq!(libc::waitpid(child, &raw mut status, 0), child);
            *word(&memory, 9) += 1;
            assert_eq!((status, *word(&memory, 1), *word(&memory, 9)), (0, 1, 10));
        }
        assert_eq!(pagemap.written(memory.base(), CLUSTER_SIZE, false).map(listed), Ok(vec![9]));
    }
}
