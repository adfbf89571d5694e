//! Which pages of a range are in the page tables: PAGEMAP_SCAN (6.7), else `/proc/self/pagemap`.

use crate::handout::{self, Thing};
use crate::mapping::last_errno;
use crate::{CLUSTER, PAGE};
use rustix::io::Errno;
use std::ops::Range;
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

/// A set of the pages of one cluster.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PageSet([u64; 8]);

impl FromIterator<usize> for PageSet {
    fn from_iter<T: IntoIterator<Item = usize>>(pages: T) -> Self {
        let mut set = Self::default();
        pages.into_iter().for_each(|page| set.insert(page));
        set
    }
}

impl PageSet {
    /// The pages of a range.
    pub fn range(pages: Range<usize>) -> Self {
        let below = |end: usize, word: usize| match end.saturating_sub(word * 64) {
            0 => 0,
            bits @ 1..64 => (1 << bits) - 1,
            _ => u64::MAX,
        };
        Self(std::array::from_fn(|word| below(pages.end, word) & !below(pages.start, word)))
    }
    /// The pages of `[start, start + length)`, addresses of one cluster.
    pub fn of(start: usize, length: usize) -> Self {
        Self::range(start % CLUSTER / PAGE..(start % CLUSTER + length) / PAGE)
    }
    /// Pages in either set.
    pub fn or(self, other: Self) -> Self {
        Self(std::array::from_fn(|word| self.0[word] | other.0[word]))
    }
    /// Pages in both sets.
    pub fn and(self, other: Self) -> Self {
        Self(std::array::from_fn(|word| self.0[word] & other.0[word]))
    }
    /// Pages in this set and not in the other.
    pub fn minus(self, other: Self) -> Self {
        Self(std::array::from_fn(|word| self.0[word] & !other.0[word]))
    }
    /// Whether the page is in the set.
    pub fn contains(&self, page: usize) -> bool {
        self.0[page / 64] >> (page % 64) & 1 == 1
    }
    /// Adds a page.
    pub fn insert(&mut self, page: usize) {
        self.0[page / 64] |= 1 << (page % 64);
    }
    /// Removes a page.
    pub fn remove(&mut self, page: usize) {
        self.0[page / 64] &= !(1 << (page % 64));
    }
    /// Pages in the set.
    pub fn len(&self) -> usize {
        self.0.iter().map(|word| word.count_ones() as usize).sum()
    }
    /// Whether the set is empty.
    pub fn is_empty(&self) -> bool {
        self.0.iter().all(|&word| word == 0)
    }
    /// The pages, ascending.
    pub fn iter(self) -> impl Iterator<Item = usize> {
        (0..512).filter(move |&page| self.contains(page))
    }
    /// The runs of adjacent pages, ascending.
    pub fn runs(self) -> impl Iterator<Item = Range<usize>> {
        let mut pages = self.iter().peekable();
        std::iter::from_fn(move || {
            let first = pages.next()?;
            let mut end = first + 1;
            while pages.next_if_eq(&end).is_some() {
                end += 1;
            }
            Some(first..end)
        })
    }
    /// The first run of `length` pages in the set, from `from` on.
    pub fn find_run(&self, from: usize, length: usize) -> Option<usize> {
        let mut run = 0;
        for page in from..512 {
            run = if self.contains(page) { run + 1 } else { 0 };
            if run == length {
                return Some(page + 1 - length);
            }
        }
        None
    }
}

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

/// What a scan of a range within one cluster found; bit 0 is the cluster's first page.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Presence {
    /// Pages that are there.
    pub present: PageSet,
    /// Those of them that are the kernel's shared zero page: they take no memory.
    pub zero: PageSet,
}

impl Pagemap {
    /// Opens the view of the calling process.
    pub fn open() -> Result<Self, Errno> {
        let fd = open_own("/proc/self/pagemap", Thing::Pagemap)?;
        Ok(Self { fd, scan: AtomicBool::new(true) })
    }

    /// Whether PAGEMAP_SCAN works (6.7).
    pub fn can_scan(&self) -> bool {
        let here = std::ptr::from_ref(self).addr() / PAGE * PAGE;
        self.scan(here, PAGE).is_ok()
    }

    /// Looks at `[start, start + length)`, which lies in one cluster.
    pub fn presence(&self, start: usize, length: usize) -> Result<Presence, Errno> {
        debug_assert!(start / CLUSTER == (start + length - 1) / CLUSTER);
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
                for page in region.start as usize / PAGE..region.end as usize / PAGE {
                    found.present.insert(page % 512);
                    if region.categories & PFNZERO != 0 {
                        found.zero.insert(page % 512);
                    }
                }
            }
            at = arg.walk_end.max(at + PAGE as u64);
        }
        Ok(found)
    }

    fn pread(&self, start: usize, length: usize) -> Result<Presence, Errno> {
        let mut entries = [0u64; 512];
        let count = length / PAGE;
        // SAFETY: a u64 array viewed as bytes, of the same length.
        let bytes = unsafe { std::slice::from_raw_parts_mut(entries.as_mut_ptr().cast::<u8>(), count * 8) };
        let mut done = 0;
        while done < bytes.len() {
            let got = rustix::io::pread(&self.fd, &mut bytes[done..], (start / PAGE * 8 + done) as u64)?;
            if got == 0 {
                return Err(Errno::IO);
            }
            done += got;
        }
        let mut found = Presence::default();
        for (nth, entry) in entries[..count].iter().enumerate() {
            // Bits 63 and 62: present, swapped.
            if entry >> 62 != 0 {
                found.present.insert((start / PAGE + nth) % 512);
            }
        }
        Ok(found)
    }

    /// Uses `/proc/self/pagemap` even where PAGEMAP_SCAN works: for tests of the fallback.
    pub fn mask_scan(&self) {
        self.scan.store(false, Relaxed);
    }
}
