//! Single changes to a machine that `pagetide setup` makes. Each may be made again.

use crate::permission::GROUP;
use crate::permission::members::{group_named, is_member};
use pagetide_sys::uffd::DEVICE;
use rustix::fs::{CWD, FileType, Mode, makedev, mknodat};
use std::fs;
use std::io::{ErrorKind, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::Command;

/// The major number of the kernel's small devices.
const MISC: u32 = 10;
/// Mode of the device for its group, and the one that the kernel gives it.
const GROUP_MODE: u32 = 0o660;
const KERNELS_MODE: u32 = 0o600;
const OTHERS_WRITE: u32 = 0o022;

/// Runs a program that changes the system.
///
/// # Errors
/// It is not there, or fails: the message has its command line and what it said.
pub(super) fn run(program: &str, arguments: &[&str]) -> Result<(), String> {
    let line = [&[program], arguments].concat().join(" ");
    let output =
        Command::new(program).args(arguments).output().map_err(|error| format!("{line}: {error}"))?;
    let said = String::from_utf8_lossy(&output.stderr);
    if output.status.success() { Ok(()) } else { Err(format!("{line}: {}: {}", output.status, said.trim())) }
}

/// Runs the first of these programs that is installed.
fn run_one_of(commands: &[(&str, &[&str])]) -> Result<(), String> {
    for (program, arguments) in commands {
        let result = run(program, arguments);
        let is_missing =
            matches!(&result, Err(said) if said.contains("No such file or directory (os error 2)"));
        if !is_missing {
            return result;
        }
    }
    let names: Vec<_> = commands.iter().map(|(program, _)| *program).collect();
    Err(format!("none of these programs is installed: {}", names.join(", ")))
}

/// Makes the group, if there is none of its name. Returns its number.
pub(super) fn make_group() -> Result<u32, String> {
    let number = || group_named(GROUP).map_err(|error| format!("the groups cannot be read: {error}"));
    if let Some(number) = number()? {
        return Ok(number);
    }
    run_one_of(&[("groupadd", &["--system", GROUP]), ("addgroup", &["-S", GROUP])])?;
    number()?.ok_or_else(|| format!("the group {GROUP} is not there after it was made"))
}

/// Adds a user to the group.
pub(super) fn add_member(name: &str, user: u32) -> Result<(), String> {
    let is_in = || is_member(user, GROUP).map_err(|error| format!("the groups cannot be read: {error}"));
    if is_in()? {
        return Ok(());
    }
    run_one_of(&[("usermod", &["--append", "--groups", GROUP, name]), ("addgroup", &[name, GROUP])])?;
    if is_in()? { Ok(()) } else { Err(format!("{name} is not in the group {GROUP} after being added")) }
}

/// Removes the group. Returns whether there was one.
pub(super) fn remove_group() -> Result<bool, String> {
    match group_named(GROUP) {
        Ok(None) => Ok(false),
        Ok(Some(_)) => run_one_of(&[("groupdel", &[GROUP]), ("delgroup", &[GROUP])]).map(|()| true),
        Err(error) => Err(format!("the groups cannot be read: {error}")),
    }
}

/// Returns the device's minor number, if the kernel has it.
pub(super) fn device_number() -> Option<u32> {
    let listed = fs::read_to_string("/proc/misc").ok()?;
    listed.lines().find_map(|line| {
        let mut words = line.split_whitespace();
        let number = words.next()?.parse().ok()?;
        (words.next() == Some("userfaultfd")).then_some(number)
    })
}

/// Makes the device's node where it is missing.
///
/// # Errors
/// The kernel has no such device.
pub(super) fn make_node() -> Result<(), String> {
    if Path::new(DEVICE).exists() {
        return Ok(());
    }
    let number = device_number().ok_or_else(|| {
        format!(
            "this kernel has no {DEVICE} (Linux 6.1): sysctl vm.unprivileged_userfaultfd=1 is the other way"
        )
    })?;
    let mode = Mode::from_raw_mode(KERNELS_MODE);
    mknodat(CWD, DEVICE, FileType::CharacterDevice, mode, makedev(MISC, number))
        .map_err(|error| format!("{DEVICE}: {}", std::io::Error::from(error)))
}

/// Returns whether the device belongs to a group that may open it.
pub(super) fn is_node_for(group: u32) -> bool {
    fs::metadata(DEVICE).is_ok_and(|node| node.gid() == group && node.mode() & GROUP_MODE == GROUP_MODE)
}

/// Gives the device to a group; without one, to root alone.
pub(super) fn give_node(group: Option<u32>) -> Result<(), String> {
    let mode = if group.is_some() { GROUP_MODE } else { KERNELS_MODE };
    chown(DEVICE, Some(0), Some(group.unwrap_or(0)))
        .and_then(|()| fs::set_permissions(DEVICE, fs::Permissions::from_mode(mode)))
        .map_err(|error| format!("{DEVICE}: {error}"))
}

/// Writes a file that everybody may read, if it has not these contents.
pub(super) fn write_file(path: &Path, contents: &[u8], mode: u32) -> Result<(), String> {
    let explain = |error: std::io::Error| format!("{}: {error}", path.display());
    let is_there = fs::read(path).is_ok_and(|found| found == contents)
        && fs::metadata(path).is_ok_and(|found| found.uid() == 0 && found.mode() & 0o7777 == mode);
    if is_there {
        return Ok(());
    }
    let folder = path.parent().unwrap_or(Path::new("/"));
    fs::DirBuilder::new().recursive(true).mode(0o755).create(folder).map_err(explain)?;
    // Never half a file under its name.
    let draft = path.with_extension(format!("new-{}", std::process::id()));
    let written = || {
        let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(mode).open(&draft)?;
        file.write_all(contents)?;
        file.set_permissions(fs::Permissions::from_mode(mode))?;
        file.sync_all()?;
        fs::rename(&draft, path)
    };
    written().map_err(|error| {
        let _ = fs::remove_file(&draft);
        explain(error)
    })
}

/// Removes a file. Returns whether it was there.
pub(super) fn remove_file(path: &Path) -> Result<bool, String> {
    match fs::remove_file(path) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
        Err(error) => Err(format!("{}: {error}", path.display())),
    }
}

/// Returns the path of this program for a service that runs as root: its own, if root alone can change what lies there;
/// else that of a copy.
pub(super) fn program_for_root(copy: &Path) -> Result<PathBuf, String> {
    let own = std::env::current_exe().map_err(|error| format!("/proc/self/exe: {error}"))?;
    if is_roots(&own) {
        return Ok(own);
    }
    let contents = fs::read("/proc/self/exe").map_err(|error| format!("{}: {error}", own.display()))?;
    write_file(copy, &contents, 0o755)?;
    Ok(copy.to_owned())
}

/// Returns whether only root can change a file: by itself, or by a folder on its way.
fn is_roots(path: &Path) -> bool {
    path.ancestors().all(|part| {
        fs::symlink_metadata(part).is_ok_and(|found| found.uid() == 0 && found.mode() & OTHERS_WRITE == 0)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_in_a_folder_of_everybodys_is_not_roots_alone() {
        assert!(is_roots(Path::new("/proc/self")) || !is_roots(Path::new("/proc/self/none")));
        assert!(is_roots(Path::new("/usr/bin/env")));
        assert!(!is_roots(Path::new("/tmp/some program")));
        assert!(!is_roots(Path::new("/var/tmp")));
    }

    #[test]
    fn a_program_that_fails_is_quoted() {
        let failed = run("sh", &["-c", "echo why >&2; exit 3"]).unwrap_err();
        assert!(failed.contains("exit status: 3: why"), "{failed}");
        let missing = run_one_of(&[("no-such-program", &[]), ("no-such-other", &[])]).unwrap_err();
        assert!(missing.contains("no-such-program, no-such-other"), "{missing}");
        assert_eq!(run_one_of(&[("no-such-program", &[]), ("true", &[])]), Ok(()));
    }
}
