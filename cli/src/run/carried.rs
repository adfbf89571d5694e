//! The library that the program itself carries: it is written to a file, which programs can load.
//!
//! The file lies in a folder that its owner alone may write, and that everybody may read: a program of the run may give up
//! its user. Its owner, its mode and its contents are checked before each run.

use rustix::fs::{AtFlags, CWD, Mode, OFlags, StatVfsMountFlags};
use std::ffi::OsString;
use std::fs::{self, File};
use std::hash::{DefaultHasher, Hasher};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

mod embedded {
    include!(concat!(env!("OUT_DIR"), "/library.rs"));
}
pub(super) use embedded::LIBRARY;

/// Where a file that root writes is for all users.
const FOR_ALL: &str = "/var/cache/pagetide";
const FOLDER_MODE: u32 = 0o755;
const FILE_MODE: u32 = 0o644;
/// Who may write besides the owner: nobody.
const OTHERS_WRITE: u32 = 0o022;

/// Returns the path of a file with these contents. The error names each folder that was tried, and what is wrong with it.
pub(super) fn place(library: &[u8]) -> Result<PathBuf, String> {
    let folders = folders(rustix::process::geteuid().is_root(), |name| std::env::var_os(name));
    let mut problems = Vec::new();
    for folder in folders {
        match place_in(&folder, library) {
            Ok(path) => return Ok(path),
            Err(problem) => problems.push(format!("{}: {problem}", folder.display())),
        }
    }
    if problems.is_empty() {
        problems.push("neither XDG_CACHE_HOME, HOME nor XDG_RUNTIME_DIR is set".to_owned());
    }
    Err(format!(
        "there is no folder for the library that programs load: {}. Set XDG_CACHE_HOME to a folder of yours",
        problems.join("; ")
    ))
}

/// Returns the folders that may be used, the best first: for root what all users can read; what the user names; what is his
/// own. A root whose environment is another user's is safe in the first.
fn folders(is_root: bool, variable: impl Fn(&str) -> Option<OsString>) -> Vec<PathBuf> {
    let set = |name: &str| variable(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let named = set("XDG_CACHE_HOME").map(|cache| cache.join("pagetide"));
    let for_all = is_root.then(|| FOR_ALL.into());
    let home = set("HOME").map(|home| home.join(".cache/pagetide"));
    let while_logged_in = set("XDG_RUNTIME_DIR").map(|folder| folder.join("pagetide"));
    [for_all, named, home, while_logged_in].into_iter().flatten().collect()
}

fn place_in(folder: &Path, library: &[u8]) -> Result<PathBuf, String> {
    if folder.as_os_str().as_bytes().iter().any(|byte| b" :\t\n".contains(byte)) {
        return Err("LD_PRELOAD cannot name a path with a space or a colon".to_owned());
    }
    let explain = |error: io::Error| error.to_string();
    let existed = folder.exists();
    fs::DirBuilder::new().recursive(true).mode(FOLDER_MODE).create(folder).map_err(explain)?;
    // As a link it could come to name another one after this look.
    let found = fs::symlink_metadata(folder).map_err(explain)?;
    if !found.is_dir() {
        return Err("is no folder".to_owned());
    }
    check_owner(&found)?;
    // Whatever the umask is, or was: a program may become a user who reads it as any other does.
    if found.mode() & FOLDER_MODE != FOLDER_MODE && (!existed || found.uid() == own_user()) {
        fs::set_permissions(folder, fs::Permissions::from_mode(FOLDER_MODE)).map_err(explain)?;
    }
    check_way(folder)?;
    let mounted = rustix::fs::statvfs(folder).map_err(|error| explain(error.into()))?;
    if mounted.f_flag.contains(StatVfsMountFlags::NOEXEC) {
        return Err("is mounted noexec, so no program can load a library from it".to_owned());
    }
    let mut hasher = DefaultHasher::new();
    hasher.write(library);
    let path = folder.join(format!("libpagetide_preload-{:016x}.so", hasher.finish()));
    match is_current(&path, library) {
        Ok(true) => return Ok(path),
        Ok(false) => {}
        Err(error) if error.kind() == ErrorKind::NotFound => {}
        Err(error) => return Err(explain(error)),
    }
    write(folder, &path, library).map_err(explain)?;
    match is_current(&path, library) {
        Ok(true) => Ok(path),
        Ok(false) => Err("the library changes as soon as it is written".to_owned()),
        Err(error) => Err(explain(error)),
    }
}

/// Checks that a file or folder is this user's, or root's, and that no other may write to it.
fn check_owner(found: &fs::Metadata) -> Result<(), String> {
    if ![0, own_user()].contains(&found.uid()) {
        return Err(format!("belongs to user {}", found.uid()));
    }
    if found.mode() & OTHERS_WRITE != 0 {
        return Err(format!("others may write there (mode {:o})", found.mode() & 0o7777));
    }
    Ok(())
}

fn own_user() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// Checks that nobody else can put another folder in its place: its path stays in LD_PRELOAD for the whole run.
fn check_way(folder: &Path) -> Result<(), String> {
    const STICKY: u32 = 0o1000;
    let explain = |error: io::Error| error.to_string();
    let real = folder.canonicalize().map_err(explain)?;
    for above in real.ancestors().skip(1) {
        let found = fs::metadata(above).map_err(explain)?;
        let is_own = [0, own_user()].contains(&found.uid());
        // A group of the user's own number is his alone, by the custom of most distributions.
        let others = if found.gid() == own_user() { 0o002 } else { OTHERS_WRITE };
        if !is_own || found.mode() & others != 0 && found.mode() & STICKY == 0 {
            return Err(format!("others may change {}", above.display()));
        }
    }
    Ok(())
}

/// Returns whether a file is there that has these contents and that nobody else may change.
fn is_current(path: &Path, library: &[u8]) -> io::Result<bool> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let mut file = match rustix::fs::openat(CWD, path, flags, Mode::empty()) {
        Ok(file) => File::from(file),
        // A link: it is replaced.
        Err(rustix::io::Errno::LOOP) => return Ok(false),
        Err(error) => return Err(error.into()),
    };
    let found = file.metadata()?;
    let is_fit = found.is_file()
        && found.len() == library.len() as u64
        && found.mode() & FILE_MODE == FILE_MODE
        && check_owner(&found).is_ok();
    if !is_fit {
        return Ok(false);
    }
    let mut contents = Vec::with_capacity(library.len());
    file.read_to_end(&mut contents)?;
    Ok(contents == library)
}

/// Writes the file anew under a name of its own, and gives it its name when it is whole.
fn write(folder: &Path, path: &Path, library: &[u8]) -> io::Result<()> {
    let unfinished = folder.join(format!(".{}-{:x}", std::process::id(), pagetide_sys::random::words()[0]));
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mut file = File::from(rustix::fs::openat(CWD, &unfinished, flags, Mode::from(FILE_MODE))?);
    let written = file
        .write_all(library)
        // Whatever the umask is.
        .and_then(|()| file.set_permissions(fs::Permissions::from_mode(FILE_MODE)))
        .and_then(|()| Ok(rustix::fs::renameat(CWD, &unfinished, CWD, path)?));
    if written.is_err() {
        let _ = rustix::fs::unlinkat(CWD, &unfinished, AtFlags::empty());
    }
    written
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    /// A folder that goes with the test.
    struct Scratch(PathBuf);

    impl Scratch {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("pagetide-carried-{name}-{}", std::process::id()));
            fs::create_dir(&path).unwrap();
            Self(path)
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().mode() & 0o7777
    }

    #[test]
    fn the_library_is_written_once_and_mended_when_somebody_has_changed_it() {
        let scratch = Scratch::new("written");
        let folder = scratch.0.join("cache/pagetide");
        let path = place_in(&folder, b"library").unwrap();
        assert_eq!(
            (fs::read(&path).unwrap(), mode(&path), mode(&folder)),
            (b"library".to_vec(), 0o644, 0o755)
        );
        let first = fs::metadata(&path).unwrap().ino();
        assert_eq!(place_in(&folder, b"library").unwrap(), path);
        assert_eq!(fs::metadata(&path).unwrap().ino(), first, "it is written once");
        assert_ne!(place_in(&folder, b"another").unwrap(), path);

        let changes: [(&str, &dyn Fn()); 5] = [
            ("other contents", &|| fs::write(&path, b"evil!!!").unwrap()),
            ("shorter", &|| fs::write(&path, b"lib").unwrap()),
            ("others may write", &|| fs::set_permissions(&path, fs::Permissions::from_mode(0o666)).unwrap()),
            ("others cannot read", &|| {
                fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap()
            }),
            ("a link", &|| {
                fs::write(scratch.0.join("theirs"), b"library").unwrap();
                fs::remove_file(&path).unwrap();
                symlink(scratch.0.join("theirs"), &path).unwrap();
            }),
        ];
        for (what, change) in changes {
            change();
            assert_eq!(place_in(&folder, b"library").unwrap(), path, "{what}");
            let found = fs::symlink_metadata(&path).unwrap();
            assert!(found.is_file() && mode(&path) == 0o644, "{what}");
            assert_eq!(fs::read(&path).unwrap(), b"library", "{what}");
        }
        assert_eq!(
            fs::read(scratch.0.join("theirs")).unwrap(),
            b"library",
            "what the link named is as it was"
        );
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 2, "nothing unfinished is left");
    }

    #[test]
    fn a_folder_that_others_could_put_another_in_the_place_of_is_refused() {
        let scratch = Scratch::new("way");
        let above = scratch.0.join("above");
        let folder = above.join("pagetide");
        fs::create_dir_all(&folder).unwrap();
        let allow = |mode| fs::set_permissions(&above, fs::Permissions::from_mode(mode)).unwrap();
        for (mode, is_safe) in [(0o755, true), (0o757, false), (0o1777, true), (0o700, true)] {
            allow(mode);
            let placed = place_in(&folder, b"library");
            assert_eq!(placed.is_ok(), is_safe, "{mode:o}: {placed:?}");
        }
        // A folder that a narrow umask made is opened: programs may become other users.
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o700)).unwrap();
        place_in(&folder, b"library").unwrap();
        assert_eq!(mode(&folder), 0o755);
    }

    #[test]
    fn a_folder_of_others_or_in_which_others_write_is_refused() {
        let scratch = Scratch::new("refused");
        let folder = scratch.0.join("pagetide");
        fs::create_dir(&folder).unwrap();
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o777)).unwrap();
        assert!(place_in(&folder, b"library").unwrap_err().contains("others may write there (mode 777)"));
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o755)).unwrap();
        let link = scratch.0.join("link");
        symlink(&folder, &link).unwrap();
        assert_eq!(place_in(&link, b"library").unwrap_err(), "is no folder");
        assert!(place_in(&scratch.0.join("a b"), b"library").unwrap_err().contains("a space or a colon"));
        fs::write(scratch.0.join("file"), b"").unwrap();
        assert!(place_in(&scratch.0.join("file/pagetide"), b"library").is_err());
        if rustix::process::geteuid().is_root() {
            std::os::unix::fs::chown(&folder, Some(65534), None).unwrap();
            assert_eq!(place_in(&folder, b"library").unwrap_err(), "belongs to user 65534");
        }
    }

    #[test]
    fn folders_are_those_that_the_user_or_all_users_have() {
        let paths = |is_root, set: &[(&str, &str)]| {
            let variable =
                |name: &str| set.iter().find(|(key, _)| *key == name).map(|(_, value)| value.into());
            folders(is_root, variable).iter().map(|path| path.display().to_string()).collect::<Vec<_>>()
        };
        let home = [("HOME", "/home/a"), ("XDG_RUNTIME_DIR", "/run/user/7")];
        assert_eq!(paths(false, &home), ["/home/a/.cache/pagetide", "/run/user/7/pagetide"]);
        assert_eq!(paths(true, &home[..1]), ["/var/cache/pagetide", "/home/a/.cache/pagetide"]);
        let named = [("HOME", "/home/a"), ("XDG_CACHE_HOME", "/c")];
        let all = ["/var/cache/pagetide", "/c/pagetide", "/home/a/.cache/pagetide"];
        assert_eq!(paths(true, &named), all, "whose environment may be another user's");
        assert_eq!(paths(false, &named), all[1..]);
        assert_eq!(paths(false, &[("HOME", "here"), ("XDG_CACHE_HOME", "")]), [""; 0]);
    }
}
