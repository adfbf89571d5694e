//! The device that the pages of a run go to, as its processes are told of it.

use pagetide_device::file::{self, Identity};
use pagetide_device::{File, FileKind, OpenError};
use pagetide_sys::handout::{self, Thing};
use std::path::{Path, PathBuf};

/// The swap file of a run, as its processes find it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct DeviceSpec {
    /// The number of its descriptor in the launcher.
    pub fd: u64,
    /// The identity that tells it from all other files.
    pub identity: Identity,
}

impl DeviceSpec {
    /// Returns the path under which processes of the run find the device, by the pid of the launcher.
    pub fn path(&self, launcher: u32) -> PathBuf {
        format!("/proc/{launcher}/fd/{}", self.fd).into()
    }

    /// Opens the device, with `blocks` blocks, at the first of `paths` where it is, or else takes it from the launcher,
    /// which hands it out to processes that have given up their privileges.
    ///
    /// # Errors
    /// The error at the last path, where no path leads to the device and the launcher hands it out to nobody:
    /// [`OpenError::Another`] if another file is there by now, [`OpenError::System`] if it cannot be opened.
    ///
    /// # Panics
    /// If there is no path.
    pub fn open(&self, paths: &[PathBuf], blocks: u64, kind: FileKind) -> Result<File, OpenError> {
        let open = |path: &PathBuf| File::open(path, self.identity, blocks, kind);
        let (first, others) = paths.split_first().expect("there is a path");
        let opened = others.iter().fold(open(first), |opened, path| opened.or_else(|_| open(path)));
        opened.or_else(|error| match handout::ask(Thing::SwapFile) {
            Ok(file) => File::adopt(file, self.identity, blocks, kind),
            Err(_) => Err(error),
        })
    }

    /// Waits for the writes that ended threads began, by `path` or as the launcher hands the device out: see
    /// [`file::await_writes`]. Writes that cannot be waited for have ended by now, as a rule; and a read of a wrong
    /// block is found by its hash.
    pub fn await_writes(&self, path: &Path) {
        if file::await_writes(path, self.identity).is_err()
            && let Ok(file) = handout::ask(Thing::SwapFile)
        {
            let _ = file::await_writes_by(&file, self.identity);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsRawFd;

    #[test]
    fn it_opens_at_the_first_path_that_names_the_file_and_says_what_the_last_one_does() {
        let directory = Path::new(env!("CARGO_MANIFEST_DIR"));
        let [file, other] = [(); 2].map(|()| file::create(directory).unwrap());
        let path = |fd: i32| PathBuf::from(format!("/proc/self/fd/{fd}"));
        let spec = DeviceSpec { fd: file.as_raw_fd() as u64, identity: file::identity(&file).unwrap() };
        assert_eq!(spec.path(7), PathBuf::from(format!("/proc/7/fd/{}", file.as_raw_fd())));
        let missing = PathBuf::from("/proc/self/fd/none");
        let paths = [missing.clone(), path(other.as_raw_fd()), path(file.as_raw_fd())];
        assert!(spec.open(&paths, 8, FileKind::Auto).is_ok());
        assert!(matches!(spec.open(&paths[..2], 8, FileKind::Auto), Err(OpenError::Another)));
        let last = spec.open(&[path(other.as_raw_fd()), missing], 8, FileKind::Auto);
        assert!(matches!(last, Err(OpenError::System(_))), "{last:?}");
        spec.await_writes(&path(file.as_raw_fd()));
    }
}
