//! The swap file of a run: its directory and its size.

use crate::disk::growth::{Growth, News, Seen, Use};
use crate::machine::container;
use crate::units::show_bytes;
use crate::verbosity::Verbosity;
use pagetide::group::{self, DeviceKind, DeviceSpec, TierSpec};
use pagetide_device::file;
use pagetide_swap::frontier::{EXTENT, Frontier};
use rustix::process::{Resource, getrlimit};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

const BLOCK: u64 = pagetide_device::BLOCK as u64;
/// Bytes of the smallest swap file that is made by default.
const SMALLEST: u64 = 1 << 20;
/// A swap file of default size may have this many times the cap, if the disk has room; more only outside of
/// containers.
const CAPS: u64 = 4;
/// Under `ulimit -v` the group page may take one part in this many of the address space: each process maps it.
const BOOKS_PART: u64 = 16;
/// Bytes of the group page for each block, rounded up.
const BOOKS_OF_BLOCK: u64 = 33;

/// A swap file.
#[derive(Debug)]
pub(crate) struct SwapFile {
    /// Its descriptor: the file has no name.
    pub(crate) fd: OwnedFd,
    /// Its directory.
    pub(crate) directory: PathBuf,
    /// Bytes to which it may grow.
    pub(crate) bytes: u64,
    /// A phrase that says where that limit comes from.
    pub(crate) bound: String,
    /// State of its growth.
    growth: Growth,
}

/// Resource limits of this process, in bytes.
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

    /// Returns whether a swap file of that size, and the group page for it, stay within the limits.
    fn suffices(self, bytes: u64) -> bool {
        let books = group::bytes_needed(bytes / BLOCK) as u64;
        self.file.is_none_or(|most| bytes <= most)
            && self.address.is_none_or(|most| books <= most / BOOKS_PART)
    }
}

/// Returns the size to which a file of default size may grow, and a phrase that says where it comes from.
fn largest(pledge: u64, free: u64, directory: &Path, contained: bool, allowance: Allowance) -> (u64, String) {
    let half = free / 2;
    if contained && pledge < half {
        return (pledge, "4 × the cap, since this is a container".to_owned());
    }
    if allowance.suffices(half) {
        return (half, format!("half of what was free in {}", directory.display()));
    }
    // As much as the limits allow, but no less than the pledge.
    let by_books = allowance.address.map_or(u64::MAX, |most| most / BOOKS_PART / BOOKS_OF_BLOCK * BLOCK);
    let most = half.min(allowance.file.unwrap_or(u64::MAX)).min(by_books).max(pledge.min(half));
    (most, "as far as ulimit allows".to_owned())
}

impl SwapFile {
    /// Returns the number of its blocks.
    pub(crate) fn blocks(&self) -> u64 {
        self.bytes / BLOCK
    }

    /// Returns what processes of the run are told of it: they open it by paths that may come to name another file.
    pub(crate) fn spec(&self) -> Result<TierSpec, String> {
        let identity =
            file::identity(&self.fd).map_err(|error| format!("cannot look at the swap file: {error}"))?;
        let device = DeviceSpec { kind: DeviceKind::File, fd: self.fd.as_raw_fd() as u64, identity };
        Ok(TierSpec { device, blocks: self.blocks() })
    }

    /// Has the file end with an extent, for another tier is behind it.
    pub(crate) fn end_with_extent(&mut self) -> Result<(), String> {
        let extent = EXTENT * BLOCK;
        self.bytes -= self.bytes % extent;
        if self.bytes == 0 {
            return Err(format!("--swap-size: beside --remote it takes {} at least", show_bytes(extent)));
        }
        self.growth.end_before_remote(self.bytes);
        Ok(())
    }

    /// Creates a swap file. Returns `None` if no default directory will do.
    pub(crate) fn create(
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

    /// Takes a look, if one is due, and sets how far the file may grow. Returns messages for the user.
    pub(crate) fn look(&mut self, frontier: Frontier, now: Use) -> Vec<News> {
        if self.growth.is_due(frontier) { self.look_now(frontier, now) } else { Vec::new() }
    }

    /// Does the same at once.
    pub(crate) fn look_now(&mut self, frontier: Frontier, Use { held, refused }: Use) -> Vec<News> {
        self.growth.note_look();
        // In this order: blocks written meanwhile are not counted as room.
        let (open, taken) = (frontier.open(), file::taken_bytes(&self.fd));
        let (Ok(taken), Ok(room)) = (taken, file::room(&self.fd)) else { return Vec::new() };
        let seen = Seen { room, taken, open, held };
        self.growth.follow(frontier, &seen, refused, &self.directory, &self.bound)
    }

    /// Returns the default directories, first choice first.
    pub(crate) fn places() -> Vec<PathBuf> {
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
