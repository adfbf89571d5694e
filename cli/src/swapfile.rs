//! Where a run's swap file lies, and how large it may become.

use crate::size::show_bytes;
use crate::voice::Voice;
use pagetide_device::file;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

const BLOCK: u64 = pagetide_device::BLOCK as u64;
/// A smaller swap file is not worth having.
const SMALLEST: u64 = 1 << 20;
/// A swap file is so many times the cap, if the disk has room for it.
const CAPS: u64 = 4;

/// A swap file.
#[derive(Debug)]
pub struct SwapFile {
    /// It has no name.
    pub fd: OwnedFd,
    /// Where it lies.
    pub directory: PathBuf,
    /// Its size.
    pub bytes: u64,
}

impl SwapFile {
    /// Blocks that it has.
    pub fn blocks(&self) -> u64 {
        self.bytes / BLOCK
    }

    /// Its identity: processes of the run open it by paths that may come to name another file.
    pub fn identity(&self) -> Result<file::Identity, String> {
        file::identity(&self.fd).map_err(|error| format!("cannot look at the swap file: {error}"))
    }

    /// Creates one. `None` if there is no place for it and none was asked for.
    pub fn create(
        directory: Option<&Path>,
        size: Option<u64>,
        memory: u64,
        voice: Voice,
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
                    voice.warn(&format!(
                        "no swap file ({reasons}), going on without. --swap-dir names another place"
                    ));
                    return Ok(None);
                }
            },
        };
        let free = file::free_bytes(&directory)
            .map_err(|error| format!("how much is free in {}? {error}", directory.display()))?;
        let bytes = size.unwrap_or_else(|| memory.saturating_mul(CAPS).min(free / 2));
        if size.is_none() && bytes < SMALLEST {
            voice.warn(&format!("{} is full, going on without a swap file", directory.display()));
            return Ok(None);
        }
        if bytes > free {
            let (bytes, free) = (show_bytes(bytes), show_bytes(free));
            voice.warn(&format!("--swap-size is {bytes}, and {} has {free} free", directory.display()));
        }
        Ok(Some(Self { fd, directory, bytes }))
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
        let create = |size| SwapFile::create(Some(here), size, 1 << 20, Voice::Quiet);
        assert!(create(None).unwrap().is_none_or(|file| file.blocks() <= 1024));
        assert_eq!(create(Some(40_960)).unwrap().unwrap().blocks(), 10);
        assert!(create(Some(4095)).unwrap_err().contains("--swap-size"));
    }

    #[test]
    fn a_directory_that_was_asked_for_must_do() {
        let error = SwapFile::create(Some(Path::new("/no/such")), None, 1 << 30, Voice::Quiet).unwrap_err();
        assert!(error.starts_with("--swap-dir: no swap file in /no/such"), "{error}");
    }
}
