//! The memfd of an object, or its file of tmpfs, by whole pages.

use super::lease;
use crate::mapped_files::FileId;
use pagetide_page::PAGE_SIZE;
use rustix::fs::{FallocateFlags, FileType, MemfdFlags, SealFlags, SeekFrom};
use rustix::io::Errno;
use rustix::process::Resource;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

/// The name by which `/proc/PID/maps` shows the memfds of a run: `/memfd:NAME (deleted)`.
pub const NAME: &str = "pagetide-object";

/// How the names of those mappings begin.
pub const SHOWN_AS: &str = "/memfd:pagetide-object ";

/// Where the kernel says which sizes of pages shared memory has.
const HUGE_PAGES: &str = "/sys/kernel/mm/transparent_hugepage";

/// What `statfs` says of memfds and files of tmpfs.
const TMPFS_MAGIC: i64 = 0x0102_1994;

/// A memfd, or a file of tmpfs, whose length never changes.
#[derive(Debug)]
pub struct Memfd {
    fd: OwnedFd,
    pages: u64,
    /// Whether its last page is a part of one.
    ragged: bool,
    /// Which file it is, if it was a program's.
    adopted: Option<FileId>,
}

impl Memfd {
    /// Creates a memfd of so many pages, all of them holes.
    ///
    /// # Errors
    /// FBIG beyond RLIMIT_FSIZE; no memory, or no descriptor.
    pub fn create(pages: u64) -> Result<Self, Errno> {
        let length = pages.checked_mul(PAGE_SIZE as u64).ok_or(Errno::FBIG)?;
        // The kernel would not just refuse, but send SIGXFSZ.
        if rustix::process::getrlimit(Resource::Fsize).current.is_some_and(|most| most < length) {
            return Err(Errno::FBIG);
        }
        let fd = rustix::fs::memfd_create(NAME, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        rustix::fs::ftruncate(&fd, length)?;
        rustix::fs::fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        Ok(Self { fd, pages, ragged: false, adopted: None })
    }

    /// Takes over a file of a program's. From now on nobody opens it, or changes its length, before [`Memfd::give_up`].
    ///
    /// # Errors
    /// AGAIN if somebody else has it open or mapped; NOSPC if its file system has no room for it once more, or could fill
    /// and has memory for some of its unwritten pages; OPNOTSUPP if it is no memfd or file of tmpfs, is empty, sealed
    /// against writes, or has huge pages; what a lease says.
    pub fn adopt(fd: OwnedFd) -> Result<Self, Errno> {
        lease::take(&fd)?;
        let stat = rustix::fs::fstat(&fd)?;
        let file_system = rustix::fs::fstatfs(&fd)?;
        let fits = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile
            && stat.st_blksize as usize == PAGE_SIZE
            && stat.st_size > 0
            && file_system.f_type == TMPFS_MAGIC;
        let read_only = SealFlags::WRITE | SealFlags::FUTURE_WRITE;
        if !fits || rustix::fs::fcntl_get_seals(&fd)?.intersects(read_only) {
            return Err(Errno::OPNOTSUPP);
        }
        let size = stat.st_size as u64;
        // What leaves it others may take: so there is to be room for all of it once more.
        if file_system.f_blocks > 0 && file_system.f_bavail * PAGE_SIZE as u64 <= size {
            return Err(Errno::NOSPC);
        }
        let ragged = !size.is_multiple_of(PAGE_SIZE as u64);
        let memfd =
            Self { fd, pages: size.div_ceil(PAGE_SIZE as u64), ragged, adopted: Some(FileId::of(&stat)) };
        let written: u64 = memfd.present(0..memfd.pages)?.iter().map(|run| run.end - run.start).sum();
        let allocated = stat.st_blocks as u64 * 512 / PAGE_SIZE as u64;
        match (allocated > written, file_system.f_blocks > 0) {
            (false, _) => {}
            (true, false) => memfd.punch_unwritten()?,
            // Room that was set aside where others could take it stays so, and is counted, for as long as it is in memory.
            (true, true) if allocated >= memfd.pages => memfd.write_unwritten(size)?,
            // Which pages those are, nobody tells.
            (true, true) => return Err(Errno::NOSPC),
        }
        Ok(memfd)
    }

    /// The ranges of pages that nobody has written.
    fn unwritten(&self) -> Result<Vec<Range<u64>>, Errno> {
        let written = self.present(0..self.pages)?;
        let starts = std::iter::once(0).chain(written.iter().map(|run| run.end));
        let ends = written.iter().map(|run| run.start).chain([self.pages]);
        Ok(starts.zip(ends).map(|(start, end)| start..end).filter(|hole| !hole.is_empty()).collect())
    }

    /// Makes zeroes of what was set aside and not written, without which the kernel would map it unseen.
    fn write_unwritten(&self, size: u64) -> Result<(), Errno> {
        for page in self.unwritten()?.into_iter().flatten() {
            let at = page * PAGE_SIZE as u64;
            // A whole last page would make the file longer.
            let length = (PAGE_SIZE as u64).min(size - at) as usize;
            rustix::io::retry_on_intr(|| rustix::io::pwrite(&self.fd, &[0; PAGE_SIZE][..length], at))?;
        }
        Ok(())
    }

    /// Gives back what `fallocate` has set aside and nobody has written (a collector's heap): such pages count as holes
    /// for SEEK_DATA, and the kernel maps them without a missing fault, so nobody would ever learn that they are there.
    fn punch_unwritten(&self) -> Result<(), Errno> {
        self.unwritten()?.into_iter().try_for_each(|hole| self.punch(hole))?;
        // Beyond the end (FALLOC_FL_KEEP_SIZE), too.
        self.punch(self.pages..i64::MAX as u64 / PAGE_SIZE as u64)
    }

    /// Lets everybody open it. What is a hole of it now is zeroes.
    pub fn give_up(&self) {
        lease::end(&self.fd);
    }

    /// Whether somebody waits to open it.
    pub fn is_wanted(&self) -> bool {
        self.adopted.is_some() && !lease::holds(&self.fd)
    }

    /// Which file it is, if it was a program's.
    pub fn adopted(&self) -> Option<FileId> {
        self.adopted
    }

    /// Whether its length is no whole number of pages: what lies beyond its end is in memory only.
    pub fn is_ragged(&self) -> bool {
        self.ragged
    }

    /// Whether it has a name in a directory.
    pub fn has_name(&self) -> bool {
        rustix::fs::fstat(&self.fd).is_ok_and(|stat| stat.st_nlink > 0)
    }

    /// Its path, as the kernel shows it, for messages.
    pub fn shown(&self) -> String {
        let path = rustix::fs::readlink(format!("/proc/self/fd/{}", self.fd.as_raw_fd()), Vec::new());
        path.map_or("a file".into(), |path| path.to_string_lossy().into_owned())
    }

    /// Pages for which its file system has room; `None` if it has no limit.
    pub fn room(&self) -> Option<u64> {
        let found = rustix::fs::fstatfs(&self.fd).ok()?;
        (found.f_blocks > 0).then_some(found.f_bavail)
    }

    /// Takes all that it holds away, also from those who could still open it.
    pub fn clear(&self) {
        let _ = rustix::fs::ftruncate(&self.fd, 0);
    }

    /// Its length in pages.
    pub fn pages(&self) -> u64 {
        self.pages
    }

    /// The descriptor, to be passed on.
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Runs of pages in `range` that are there, ascending.
    ///
    /// # Errors
    /// What the kernel says of a descriptor that is no memfd.
    pub fn present(&self, range: Range<u64>) -> Result<Vec<Range<u64>>, Errno> {
        let mut runs = Vec::new();
        let mut next = self.data(range.start)?;
        while let Some(data) = next.filter(|&data| data < range.end) {
            // SEEK_HOLE looks at each page up to the next hole, which may lie at the end of the object: a pass over 1 GiB
            // cluster by cluster took twice as long by it.
            let hole = if range.end < self.pages { data + 1 } else { self.hole(data)?.min(range.end) };
            match runs.last_mut() {
                Some(Range { end, .. }) if *end == data => *end = hole,
                _ => runs.push(data..hole),
            }
            next = self.data(hole)?;
        }
        Ok(runs)
    }

    /// The first page from `page` on that is there.
    fn data(&self, page: u64) -> Result<Option<u64>, Errno> {
        match rustix::fs::seek(&self.fd, SeekFrom::Data(page * PAGE_SIZE as u64)) {
            Ok(at) => Ok(Some(at / PAGE_SIZE as u64)),
            // There is nothing up to the end.
            Err(Errno::NXIO) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The first page after `page`, which is there, that is not.
    fn hole(&self, page: u64) -> Result<u64, Errno> {
        // The end of the file may lie within a page.
        let hole = rustix::fs::seek(&self.fd, SeekFrom::Hole(page * PAGE_SIZE as u64))?;
        Ok(hole.div_ceil(PAGE_SIZE as u64).max(page + 1))
    }

    /// Reads whole pages from `page` on. Holes read as zeroes, and stay holes.
    ///
    /// # Errors
    /// IO past the end.
    pub fn read(&self, page: u64, bytes: &mut [u8]) -> Result<(), Errno> {
        let mut done = 0;
        while done < bytes.len() {
            let at = page * PAGE_SIZE as u64 + done as u64;
            match rustix::io::retry_on_intr(|| rustix::io::pread(&self.fd, &mut bytes[done..], at))? {
                0 => return Err(Errno::IO),
                read => done += read,
            }
        }
        Ok(())
    }

    /// Writes whole pages from `page` on. Whoever touches one meanwhile waits for the whole page.
    ///
    /// # Errors
    /// NOSPC or NOMEM: there is no memory for a page.
    pub fn write(&self, page: u64, bytes: &[u8]) -> Result<(), Errno> {
        for (nth, one) in bytes.chunks(PAGE_SIZE).enumerate() {
            let at = (page + nth as u64) * PAGE_SIZE as u64;
            match rustix::io::retry_on_intr(|| rustix::io::pwrite(&self.fd, one, at))? {
                PAGE_SIZE => {}
                _ => return Err(Errno::IO),
            }
        }
        Ok(())
    }

    /// Gives the memory of pages back: they are holes from now on.
    ///
    /// # Errors
    /// What the kernel says; some pages may be holes then.
    pub fn punch(&self, range: Range<u64>) -> Result<(), Errno> {
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        let (start, pages) = (range.start * PAGE_SIZE as u64, range.end - range.start);
        rustix::io::retry_on_intr(|| rustix::fs::fallocate(&self.fd, flags, start, pages * PAGE_SIZE as u64))
    }
}

/// Returns whether memfds have pages of 4 KiB only, unless a program asks for larger ones. Of a larger page no part can
/// be given back for sure: what is punched may read as zeroes and stay.
pub fn are_pages_small() -> bool {
    let chosen = |path: std::path::PathBuf| {
        let text = std::fs::read_to_string(path).ok()?;
        Some(text.split_once('[')?.1.split_once(']')?.0.to_owned())
    };
    let is_small = |choice: String| matches!(&*choice, "never" | "deny" | "advise" | "inherit");
    let sizes = std::fs::read_dir(HUGE_PAGES).into_iter().flatten().flatten();
    let files = sizes.map(|entry| entry.path()).filter(|path| path.is_dir());
    let mut files = files.chain([HUGE_PAGES.into()]).map(|directory| directory.join("shmem_enabled"));
    files.all(|path| chosen(path).is_none_or(is_small))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_taken_over_and_given_up() {
        let memfd = rustix::fs::memfd_create("theirs", MemfdFlags::CLOEXEC).unwrap();
        rustix::fs::ftruncate(&memfd, 2 * PAGE_SIZE as u64 + 1).unwrap();
        rustix::fs::fallocate(&memfd, FallocateFlags::empty(), 0, 2 * PAGE_SIZE as u64).unwrap();
        rustix::io::pwrite(&memfd, b"x", 2 * PAGE_SIZE as u64).unwrap();
        assert_eq!(rustix::fs::fstat(&memfd).unwrap().st_blocks as usize * 512, 3 * PAGE_SIZE);
        let path = format!("/proc/self/fd/{}", memfd.as_raw_fd());
        let open = || rustix::fs::open(&*path, rustix::fs::OFlags::RDWR, rustix::fs::Mode::empty()).unwrap();
        let (file, second) = (open(), open());
        assert_eq!(Memfd::adopt(file).map(drop), Err(Errno::AGAIN), "somebody else has it open");
        let adopted = Memfd::adopt(second).unwrap();
        assert_eq!((adopted.pages(), adopted.is_ragged()), (3, true));
        assert_eq!(adopted.present(0..3).unwrap(), std::iter::once(2..3).collect::<Vec<_>>());
        assert_eq!(
            rustix::fs::fstat(&adopted.fd).unwrap().st_blocks as usize * 512,
            PAGE_SIZE,
            "only what was written is left"
        );
        assert!(!adopted.is_wanted() && !adopted.has_name());
        adopted.give_up();
        assert!(rustix::fs::fstat(open()).unwrap().st_size > 0);
    }

    #[test]
    fn room_that_was_set_aside_stays_so_where_others_could_take_it() {
        let path = format!("/dev/shm/pagetide-set-aside-{}", std::process::id());
        let open = || {
            let flags = rustix::fs::OFlags::RDWR | rustix::fs::OFlags::CREATE;
            rustix::fs::open(&*path, flags, rustix::fs::Mode::RUSR).unwrap()
        };
        let (all, some) = (open(), 5 * PAGE_SIZE as u64 + 100);
        rustix::fs::fallocate(&all, FallocateFlags::empty(), 0, some).unwrap();
        rustix::io::pwrite(&all, b"x", 2 * PAGE_SIZE as u64).unwrap();
        let adopted = Memfd::adopt(all).unwrap();
        assert_eq!(adopted.present(0..6).unwrap(), std::iter::once(0..6).collect::<Vec<_>>());
        let stat = rustix::fs::fstat(&adopted.fd).unwrap();
        assert_eq!((stat.st_size as u64, stat.st_blocks as usize * 512), (some, 6 * PAGE_SIZE));
        let mut read = vec![1; PAGE_SIZE];
        adopted.read(2, &mut read).unwrap();
        assert!(read[0] == b'x' && read[1..].iter().all(|&byte| byte == 0));
        drop(adopted);
        let part = open();
        rustix::fs::ftruncate(&part, 9 * PAGE_SIZE as u64).unwrap();
        let refused = Memfd::adopt(part).map(drop);
        std::fs::remove_file(&path).unwrap();
        assert_eq!(refused, Ok(()), "all that has memory was written");
    }

    #[test]
    fn pages_are_there_when_written_and_not_when_punched() {
        let memfd = Memfd::create(1024).unwrap();
        assert_eq!(memfd.present(0..1024).unwrap(), []);
        let bytes: Vec<u8> = (0..3 * PAGE_SIZE).map(|at| (at / 7) as u8).collect();
        memfd.write(5, &bytes).unwrap();
        memfd.write(1023, &bytes[..PAGE_SIZE]).unwrap();
        assert_eq!(memfd.present(0..1024).unwrap(), [5..8, 1023..1024]);
        assert_eq!(memfd.present(6..7).unwrap(), std::iter::once(6..7).collect::<Vec<_>>());
        assert_eq!(memfd.present(0..10).unwrap(), std::iter::once(5..8).collect::<Vec<_>>());
        assert_eq!(memfd.present(8..1023).unwrap(), []);
        memfd.punch(6..7).unwrap();
        assert_eq!(memfd.present(0..10).unwrap(), [5..6, 7..8]);
        let mut read = vec![1; 3 * PAGE_SIZE];
        memfd.read(5, &mut read).unwrap();
        assert_eq!(read[..PAGE_SIZE], bytes[..PAGE_SIZE]);
        assert!(read[PAGE_SIZE..2 * PAGE_SIZE].iter().all(|&byte| byte == 0));
        assert_eq!(read[2 * PAGE_SIZE..], bytes[2 * PAGE_SIZE..]);
        assert_eq!(memfd.present(0..10).unwrap(), [5..6, 7..8], "reading fills no hole");
        assert_eq!(memfd.read(1023, &mut read), Err(Errno::IO));
    }
}
