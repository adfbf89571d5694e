//! Which pages of a range are in the page tables: PAGEMAP_SCAN (6.7), else `/proc/self/pagemap`.

use crate::handout::{self, Thing};
use crate::mapping::last_errno;
use pagetide_page::{CLUSTER_PAGES, CLUSTER_SIZE, PAGE_SIZE, PageSet};
use rustix::io::Errno;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

const PRESENT: u64 = 1 << 3;
const SWAPPED: u64 = 1 << 4;
const PFNZERO: u64 = 1 << 5;

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
const SCAN: u64 = 3 << 30 | (size_of::<ScanArg>() as u64) << 16 | (b'f' as u64) << 8 | 16;

/// Opens a file of `/proc` that tells of the calling process's memory. In another root there may be none: it is asked
/// for.
///
/// In a process that is not to be dumped, which cannot open it unless it is root's, that is suspended for a moment.
pub(crate) fn open_own(path: &str, thing: Thing) -> Result<OwnedFd, Errno> {
    use rustix::process::{DumpableBehavior, dumpable_behavior, set_dumpable_behavior};
    let open = || {
        let flags = rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::CLOEXEC;
        rustix::fs::open(path, flags, rustix::fs::Mode::empty())
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
        let fd = open_own("/proc/self/pagemap", Thing::Pagemap)?;
        Ok(Self { fd, scan: AtomicBool::new(true) })
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

    fn scan(&self, start: usize, length: usize) -> Result<Presence, Errno> {
        let mut found = Presence::default();
        let mut regions = [Region::default(); 64];
        let mut at = start as u64;
        let end = (start + length) as u64;
        while at < end {
            let mut arg = ScanArg {
                size: size_of::<ScanArg>() as u64,
                flags: 0,
                start: at,
                end,
                walk_end: 0,
                vec: regions.as_mut_ptr() as u64,
                vec_len: regions.len() as u64,
                max_pages: 0,
                category_inverted: 0,
                category_mask: 0,
                category_anyof_mask: PRESENT | SWAPPED,
                return_mask: PRESENT | SWAPPED | PFNZERO,
            };
            // SAFETY: the argument and the vector that it names are live for the call.
            let count = unsafe { libc::ioctl(self.fd.as_raw_fd(), SCAN as _, &raw mut arg) };
            if count < 0 {
                return Err(last_errno());
            }
            for region in &regions[..count as usize] {
                for page in region.start as usize / PAGE_SIZE..region.end as usize / PAGE_SIZE {
                    found.present.insert(page % CLUSTER_PAGES);
                    if region.categories & PFNZERO != 0 {
                        found.zero.insert(page % CLUSTER_PAGES);
                    }
                }
            }
            at = arg.walk_end.max(at + PAGE_SIZE as u64);
        }
        Ok(found)
    }

    fn pread(&self, start: usize, length: usize) -> Result<Presence, Errno> {
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
        let mut found = Presence::default();
        for (nth, entry) in entries[..count].iter().enumerate() {
            // Bits 63 and 62: present, swapped.
            if entry >> 62 != 0 {
                found.present.insert((start / PAGE_SIZE + nth) % CLUSTER_PAGES);
            }
        }
        Ok(found)
    }

    /// Uses `/proc/self/pagemap` even where PAGEMAP_SCAN works: for tests of the fallback.
    pub fn mask_scan(&self) {
        self.scan.store(false, Relaxed);
    }
}
