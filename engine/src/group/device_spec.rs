//! The device that the pages of a run go to, as its processes are told of it: its tiers.

use super::layout::TierWord;
use pagetide_device::file::{self, Identity};
use pagetide_device::ring::Member;
use pagetide_device::{Device, File, FileKind, OpenError, Remote};
use pagetide_sys::handout::{self, Thing};
use std::path::{Path, PathBuf};

pagetide_page::numbered_enum! {
    /// A kind of device.
    #[derive(Default)]
    pub enum DeviceKind: u64 {
        /// A swap file.
        #[default]
        File = 0,
        /// The remote tier: the file is the ring by which its server is asked.
        Remote = 1,
    }
}

/// A tier of a run's device.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct TierSpec {
    /// What it is, and where.
    pub device: DeviceSpec,
    /// Its blocks; 0 if there is no such tier.
    pub blocks: u64,
}

impl TierSpec {
    /// Returns the words that the group page has of it.
    pub(super) fn words(self) -> [(TierWord, u64); TierWord::COUNT] {
        let Self { device: DeviceSpec { kind, fd, identity: (device, inode) }, blocks } = self;
        [
            (TierWord::Blocks, blocks),
            (TierWord::Kind, kind.to_bits()),
            (TierWord::Fd, fd),
            (TierWord::Device, device),
            (TierWord::Inode, inode),
        ]
    }

    /// Returns the tier of which the group page has these words.
    pub(super) fn of_words(get: impl Fn(TierWord) -> u64) -> Self {
        let kind = DeviceKind::from_bits(get(TierWord::Kind)).unwrap_or_default();
        let identity = (get(TierWord::Device), get(TierWord::Inode));
        let device = DeviceSpec { kind, fd: get(TierWord::Fd), identity };
        Self { device, blocks: get(TierWord::Blocks) }
    }

    /// Opens the tier at the first of `paths` where it is, or else takes it from the launcher,
    /// which hands it out to processes that have given up their privileges.
    ///
    /// # Errors
    /// The error at the last path, where no path leads to the device and the launcher hands it out to nobody:
    /// [`OpenError::Another`] if another file is there by now, [`OpenError::System`] if it cannot be opened.
    ///
    /// # Panics
    /// If there is no path.
    pub fn open(&self, paths: &[PathBuf], by: Access) -> Result<OpenDevice, OpenError> {
        let &Self { device: DeviceSpec { kind, identity, .. }, blocks } = self;
        let open = |path: &PathBuf| match kind {
            DeviceKind::File => File::open(path, identity, blocks, by.kind).map(OpenDevice::of_file),
            DeviceKind::Remote => Remote::open(path, identity, blocks, by.member).map(OpenDevice::of_remote),
        };
        let (first, others) = paths.split_first().expect("there is a path");
        let opened = others.iter().fold(open(first), |opened, path| opened.or_else(|_| open(path)));
        opened.or_else(|error| match handout::ask(kind.thing()) {
            Ok(file) => match kind {
                DeviceKind::File => File::adopt(file, identity, blocks, by.kind).map(OpenDevice::of_file),
                DeviceKind::Remote => {
                    Remote::adopt(file, identity, blocks, by.member).map(OpenDevice::of_remote)
                }
            },
            Err(_) => Err(error),
        })
    }
}

impl DeviceKind {
    /// Returns the thing that the launcher hands out.
    fn thing(self) -> Thing {
        match self {
            Self::File => Thing::SwapFile,
            Self::Remote => Thing::RemoteRing,
        }
    }
}

/// The device that is a tier of a run, as its processes find it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct DeviceSpec {
    /// What its file is.
    pub kind: DeviceKind,
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

/// How a process uses a tier.
#[derive(Clone, Copy, Debug)]
pub struct Access {
    /// The calls by which a swap file is read and written.
    pub kind: FileKind,
    /// The process, as the server of a remote tier knows it.
    pub member: Member,
}

/// An open device.
#[derive(Debug)]
pub struct OpenDevice {
    /// The device.
    pub device: Box<dyn Device>,
    /// The number of its descriptor, in the table of the thread that opened it.
    pub number: i32,
}

impl OpenDevice {
    fn of_file(file: File) -> Self {
        Self { number: file.number(), device: Box::new(file) }
    }

    fn of_remote(remote: Remote) -> Self {
        Self { number: remote.number(), device: Box::new(remote) }
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
        let kind = DeviceKind::File;
        let device =
            DeviceSpec { kind, fd: file.as_raw_fd() as u64, identity: file::identity(&file).unwrap() };
        let spec = TierSpec { device, blocks: 8 };
        let by = Access { kind: FileKind::Auto, member: Member { index: 0, tenancy: 1 } };
        assert_eq!(device.path(7), PathBuf::from(format!("/proc/7/fd/{}", file.as_raw_fd())));
        let missing = PathBuf::from("/proc/self/fd/none");
        let paths = [missing.clone(), path(other.as_raw_fd()), path(file.as_raw_fd())];
        assert!(spec.open(&paths, by).is_ok());
        assert!(matches!(spec.open(&paths[..2], by), Err(OpenError::Another)));
        let last = spec.open(&[path(other.as_raw_fd()), missing], by);
        assert!(matches!(last, Err(OpenError::System(_))), "{last:?}");
        device.await_writes(&path(file.as_raw_fd()));
    }
}
