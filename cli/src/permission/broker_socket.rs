//! The socket of a broker.

use pagetide_sys::handout;
use rustix::io::Errno;
use std::fs;
use std::io::ErrorKind;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// Sockets at which a broker listens.
#[derive(Debug)]
pub(super) struct Listening {
    /// The sockets.
    pub(super) sockets: Vec<OwnedFd>,
    /// What they are called.
    pub(super) name: String,
    /// Whether the service manager opened them.
    pub(super) is_inherited: bool,
}

/// Returns the sockets that the service manager passed, or a new one at `path`.
///
/// # Errors
/// Another broker listens there; something else has that name; the socket cannot be made.
pub(super) fn listeners(path: PathBuf) -> Result<Listening, String> {
    let inherited = handout::inherited_listeners()
        .map_err(|error| format!("LISTEN_FDS: these are no sockets of a broker: {}", explain(error)))?;
    if !inherited.is_empty() {
        return Ok(Listening {
            sockets: inherited,
            name: "the service manager's socket".into(),
            is_inherited: true,
        });
    }
    let name = path.display().to_string();
    let socket = create(&path).map_err(|problem| format!("{name}: {problem}"))?;
    Ok(Listening { sockets: vec![socket], name, is_inherited: false })
}

fn create(path: &Path) -> Result<OwnedFd, String> {
    if let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
        let made = fs::DirBuilder::new().recursive(true).mode(0o755).create(folder);
        made.map_err(|error| format!("its folder cannot be made: {error}"))?;
    }
    remove_stale(path)?;
    let socket = handout::listen_at(path).map_err(|error| format!("cannot listen: {}", explain(error)))?;
    // Whatever the umask: the broker looks at who connects.
    fs::set_permissions(path, fs::Permissions::from_mode(0o666)).map_err(|error| error.to_string())?;
    Ok(socket)
}

/// Removes the socket of a broker that has ended.
fn remove_stale(path: &Path) -> Result<(), String> {
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error.to_string()),
        Ok(found) if !found.file_type().is_socket() => return Err("is there, and no socket".into()),
        Ok(_) => {}
    }
    match handout::Question::ask(path, handout::Thing::Userfaultfd).map(drop) {
        Ok(()) => Err("a broker listens there already".into()),
        Err(Errno::CONNREFUSED) => fs::remove_file(path).map_err(|error| error.to_string()),
        Err(error) => Err(explain(error)),
    }
}

fn explain(error: Errno) -> String {
    std::io::Error::from(error).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Folder;

    #[test]
    fn a_socket_is_taken_over_from_the_dead_and_not_from_the_living() {
        let folder = Folder::new("broker-socket");
        let path = folder.0.join("below/socket");
        let first = create(&path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o666);
        assert!(create(&path).unwrap_err().contains("already"));
        drop(first);
        // A child that another test starts has the socket, too, until it executes its program.
        let second = loop {
            match create(&path) {
                Err(problem) if problem.contains("already") => std::thread::yield_now(),
                made => break made.unwrap(),
            }
        };
        drop(second);
        let file = folder.0.join("file");
        fs::write(&file, "kept").unwrap();
        assert!(create(&file).unwrap_err().contains("no socket"));
        assert_eq!(fs::read(&file).unwrap(), b"kept");
        let long = folder.0.join("x".repeat(200));
        assert!(create(&long).unwrap_err().contains("too long"));
    }
}
