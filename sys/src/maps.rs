//! What the calling process may do with its memory: PROCMAP_QUERY (6.11), else `/proc/self/maps`.

use crate::mapping::last_errno;
use rustix::io::Errno;
use std::os::fd::{AsRawFd, OwnedFd};

/// The kernel's `struct procmap_query`.
#[repr(C)]
#[derive(Default)]
struct Query {
    size: u64,
    flags: u64,
    address: u64,
    start: u64,
    end: u64,
    access: u64,
    page_size: u64,
    offset: u64,
    inode: u64,
    device: [u32; 2],
    name_size: u32,
    build_id_size: u32,
    name: u64,
    build_id: u64,
}
const _: () = assert!(size_of::<Query>() == 104);
const QUERY: u64 = 3 << 30 | (size_of::<Query>() as u64) << 16 | (b'f' as u64) << 8 | 17;

/// A view of the caller's mappings.
#[derive(Debug)]
pub struct Maps(OwnedFd);

/// A mapping, from an address in it on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Mapping {
    /// The first address behind it.
    pub end: usize,
    /// The access that the process has there: `PROT_*`.
    pub protection: i32,
}

impl Maps {
    /// Opens the view of the calling process.
    ///
    /// # Errors
    /// The error of the file in `/proc`, if it cannot be opened and the launcher hands out no descriptor of it.
    pub fn open() -> Result<Self, Errno> {
        crate::pagemap::open_own("maps", crate::handout::Thing::Maps).map(Self)
    }

    /// The mapping in which an address lies, if there is one.
    ///
    /// # Errors
    /// The error of reading the file in `/proc`.
    pub fn find(&self, address: usize) -> Result<Option<Mapping>, Errno> {
        match self.query(address) {
            Err(Errno::NOTTY | Errno::INVAL | Errno::NOSYS) => self.read(address),
            other => other,
        }
    }

    fn query(&self, address: usize) -> Result<Option<Mapping>, Errno> {
        let mut query =
            Query { size: size_of::<Query>() as u64, address: address as u64, ..Query::default() };
        // SAFETY: the structure is the one that the request encodes, and names no other memory.
        if unsafe { libc::ioctl(self.0.as_raw_fd(), QUERY as _, &raw mut query) } == 0 {
            // Readable, writable, executable: the bits are those of PROT_*.
            return Ok(Some(Mapping { end: query.end as usize, protection: (query.access & 7) as i32 }));
        }
        match last_errno() {
            Errno::NOENT => Ok(None),
            error => Err(error),
        }
    }

    fn read(&self, address: usize) -> Result<Option<Mapping>, Errno> {
        let mut text = [0; 4 * pagetide_page::PAGE_SIZE];
        let (mut read, mut kept) = (0, 0);
        loop {
            let got = rustix::io::retry_on_intr(|| rustix::io::pread(&self.0, &mut text[kept..], read))?;
            if got == 0 {
                return Ok(None);
            }
            read += got as u64;
            let whole = kept + got;
            let lines = text[..whole].iter().rposition(|&byte| byte == b'\n').map_or(0, |at| at + 1);
            let found = text[..lines].split(|&byte| byte == b'\n').filter_map(parse);
            if let Some((_, mapping)) =
                found.into_iter().find(|(start, mapping)| (*start..mapping.end).contains(&address))
            {
                return Ok(Some(mapping));
            }
            // No line is longer than a path may be, and some.
            text.copy_within(lines..whole, 0);
            kept = whole - lines;
        }
    }
}

/// A line of `/proc/PID/maps`: where the mapping begins, and what it is.
fn parse(line: &[u8]) -> Option<(usize, Mapping)> {
    let line = std::str::from_utf8(line.get(..line.len().min(64))?).ok()?;
    let mut fields = line.split(' ');
    let (start, end) = fields.next()?.split_once('-')?;
    let address = |text| usize::from_str_radix(text, 16).ok();
    let may = fields.next()?.bytes();
    let bits = [(b'r', libc::PROT_READ), (b'w', libc::PROT_WRITE), (b'x', libc::PROT_EXEC)];
    let protection = may.zip(bits).filter(|(has, (letter, _))| has == letter).map(|(_, (_, bit))| bit).sum();
    Some((address(start)?, Mapping { end: address(end)?, protection }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mapping::{Reservation, protect};
    use pagetide_page::PAGE_SIZE;

    #[test]
    fn what_may_be_done_with_memory_is_told_by_either_way() {
        const ACCESS: [i32; 5] = [0, 1, 5, 3, 7];
        let memory = Reservation::new(ACCESS.len() * PAGE_SIZE, PAGE_SIZE).unwrap();
        for (nth, &access) in ACCESS.iter().enumerate() {
            // SAFETY: memory of this test, to which nothing refers.
            unsafe { protect(memory.base() + nth * PAGE_SIZE, PAGE_SIZE, access).unwrap() };
        }
        let maps = Maps::open().unwrap();
        for (nth, &protection) in ACCESS.iter().enumerate() {
            let at = memory.base() + nth * PAGE_SIZE;
            let read = maps.read(at + 5).unwrap().unwrap();
            assert_eq!(read.protection, protection);
            assert!(read.end > at);
            if let Ok(queried) = maps.query(at + 5) {
                assert_eq!(queried, Some(read));
            }
            assert_eq!(maps.find(at), Ok(Some(read)));
        }
        assert_eq!((maps.find(0), maps.read(0)), (Ok(None), Ok(None)));
    }
}
