//! Where a run's swap file lies, and how large it may become.

use crate::container;
use crate::growth::Growth;
use crate::size::show_bytes;
use crate::verbosity::Verbosity;
use pagetide::group::{self, DeviceSpec};
use pagetide_device::file;
use rustix::process::{Resource, getrlimit};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

const BLOCK: u64 = pagetide_device::BLOCK as u64;
/// A smaller swap file is not worth having.
const SMALLEST: u64 = 1 << 20;
/// A swap file may have so many times the cap, if the disk has room for it; more only where that can be seen.
const CAPS: u64 = 4;
/// The part of an address space that is limited which the run's books may take: each of its processes maps them.
const BOOKS_PART: u64 = 16;

/// A swap file.
#[derive(Debug)]
pub struct SwapFile {
    /// It has no name.
    pub fd: OwnedFd,
    /// Where it lies.
    pub directory: PathBuf,
    /// What it may grow to.
    pub bytes: u64,
    /// What that is.
    pub bound: String,
    /// How far it may grow just now.
    pub growth: Growth,
}

/// What a process may have, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Allowance {
    /// The largest file (`ulimit -f`).
    file: Option<u64>,
    /// Address space (`ulimit -v`).
    address: Option<u64>,
}

impl Allowance {
    fn own() -> Self {
        let limit = |resource| getrlimit(resource).current;
        Self { file: limit(Resource::Fsize), address: limit(Resource::As) }
    }

    /// Whether a swap file may be as large, and with it the run's books.
    fn suffices(self, bytes: u64) -> bool {
        let books = group::bytes_needed(bytes / BLOCK) as u64;
        self.file.is_none_or(|most| bytes <= most)
            && self.address.is_none_or(|most| books <= most / BOOKS_PART)
    }
}

/// What a file may grow to of which no size was given, and what that is.
fn largest(pledge: u64, free: u64, directory: &Path, contained: bool, allowance: Allowance) -> (u64, String) {
    let half = free / 2;
    if contained && pledge < half {
        return (pledge, "4 × the cap, since this is a container".to_owned());
    }
    if allowance.suffices(half) {
        return (half, format!("half of what was free in {}", directory.display()));
    }
    // As much as the limits allow, but not less than they were not asked for before.
    let by_books = allowance.address.map_or(u64::MAX, |most| most / BOOKS_PART / BOOKS_OF_BLOCK * BLOCK);
    let most = half.min(allowance.file.unwrap_or(u64::MAX)).min(by_books).max(pledge.min(half));
    (most, "as far as ulimit allows".to_owned())
}

/// Bytes of the run's books that a block takes, rounded up.
const BOOKS_OF_BLOCK: u64 = 33;

impl SwapFile {
    /// Blocks that it has.
    pub fn blocks(&self) -> u64 {
        self.bytes / BLOCK
    }

    /// What processes of the run are told of it: they open it by paths that may come to name another file.
    pub fn spec(&self) -> Result<DeviceSpec, String> {
        let identity =
            file::identity(&self.fd).map_err(|error| format!("cannot look at the swap file: {error}"))?;
        Ok(DeviceSpec { fd: self.fd.as_raw_fd() as u64, identity })
    }

    /// Creates one. `None` if there is no place for it and none was asked for.
    pub fn create(
        directory: Option<&Path>,
        size: Option<u64>,
        memory: u64,
        verbosity: Verbosity,
    ) -> Result<Option<Self>, String> {
        if let Some(size) = size.filter(|&size| size < BLOCK) {
            return Err(format!(
                "--swap-size: {size} bytes hold no page. --no-disk goes without a swap file"
            ));
        }
        let (fd, directory) = match directory {
            Some(directory) => {
                let fd = file::create(directory).map_err(|error| {
                    format!("--swap-dir: no swap file in {}: {error}", directory.display())
                })?;
                (fd, directory.to_owned())
            }
            None => match Self::by_default() {
                Ok(found) => found,
                Err(reasons) => {
                    verbosity.warn(&format!(
                        "no swap file ({reasons}), going on without. --swap-dir names another place"
                    ));
                    return Ok(None);
                }
            },
        };
        let free = file::free_bytes(&directory)
            .map_err(|error| format!("how much is free in {}? {error}", directory.display()))?;
        let pledge = memory.saturating_mul(CAPS);
        let (bytes, bound) = match size {
            Some(size) => (size, "--swap-size".to_owned()),
            None => largest(pledge, free, &directory, container::is_here(), Allowance::own()),
        };
        if size.is_none() && bytes < SMALLEST {
            verbosity.warn(&format!("{} is full, going on without a swap file", directory.display()));
            return Ok(None);
        }
        if bytes > free {
            let (bytes, free) = (show_bytes(bytes), show_bytes(free));
            verbosity.warn(&format!("--swap-size is {bytes}, and {} has {free} free", directory.display()));
        }
        let growth = Growth::new(bytes, size.is_none().then_some(pledge));
        Ok(Some(Self { fd, directory, bytes, bound, growth }))
    }

    /// Where a swap file may lie if nothing is said, the first choice first.
    pub fn places() -> Vec<PathBuf> {
        let temporary = std::env::var_os("TMPDIR").filter(|value| !value.is_empty()).map(PathBuf::from);
        temporary.into_iter().chain([PathBuf::from("/var/tmp")]).collect()
    }

    fn by_default() -> Result<(OwnedFd, PathBuf), String> {
        let mut reasons = Vec::new();
        for directory in Self::places() {
            match file::create(&directory) {
                Ok(fd) => return Ok((fd, directory)),
                Err(error) => reasons.push(format!("{}: {error}", directory.display())),
            }
        }
        Err(reasons.join("; "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_size_follows_from_the_cap_and_can_be_given() {
        let here = Path::new(env!("CARGO_MANIFEST_DIR"));
        let create = |size| SwapFile::create(Some(here), size, 1 << 20, Verbosity::Quiet);
        assert_eq!(create(Some(40_960)).unwrap().unwrap().blocks(), 10);
        assert!(create(Some(4095)).unwrap_err().contains("--swap-size"));
    }

    #[test]
    fn a_file_may_grow_to_half_of_what_is_free_where_that_can_be_seen() {
        let free = Allowance { file: None, address: None };
        let most = |contained, allowance| {
            largest(256 << 20, 80 << 30, Path::new("/var/tmp"), contained, allowance).0
        };
        assert_eq!(most(false, free), 40 << 30);
        assert_eq!(most(true, free), 256 << 20);
        assert_eq!(largest(256 << 20, 300 << 20, Path::new("/"), true, free).0, 150 << 20);
        assert_eq!(most(false, Allowance { file: Some(2 << 30), ..free }), 2 << 30);
        assert_eq!(most(false, Allowance { file: Some(1 << 20), ..free }), 256 << 20);
        let address = Some(4 << 30);
        let bytes = most(false, Allowance { address, ..free });
        assert!((256 << 20..40 << 30).contains(&bytes) && Allowance { address, ..free }.suffices(bytes));
    }

    #[test]
    fn a_directory_that_was_asked_for_must_do() {
        let error =
            SwapFile::create(Some(Path::new("/no/such")), None, 1 << 30, Verbosity::Quiet).unwrap_err();
        assert!(error.starts_with("--swap-dir: no swap file in /no/such"), "{error}");
    }
}
