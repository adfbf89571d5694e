//! Files and directories of `/proc`, and the words in them.

use rustix::io::Errno;
use std::ffi::CStr;
use std::os::fd::{AsFd, OwnedFd};

/// Reads the beginning of a file of `/proc`, which is made anew for each opening, in one read.
fn read_once(path: impl rustix::path::Arg, text: &mut [u8]) -> rustix::io::Result<usize> {
    read_at(rustix::fs::CWD, path, text)
}

/// Reads the beginning of a file in an open directory, likewise.
pub(super) fn read_at(
    directory: impl AsFd,
    path: impl rustix::path::Arg,
    text: &mut [u8],
) -> rustix::io::Result<usize> {
    let flags = rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::CLOEXEC;
    let file = rustix::fs::openat(directory, path, flags, rustix::fs::Mode::empty())?;
    rustix::io::retry_on_intr(|| rustix::io::read(&file, &mut *text))
}

/// Such a file, if it is shorter than a page.
pub fn small(path: &str) -> Option<String> {
    let mut text = [0; pagetide_page::PAGE_SIZE];
    let length = read_once(path, &mut text).ok()?;
    Some(String::from_utf8_lossy(&text[..length]).into_owned())
}

/// The beginning of such a file, as far as there is room. Allocates nothing; empty if it cannot be read.
pub fn read<'a>(path: &CStr, text: &'a mut [u8]) -> &'a str {
    let length = read_once(path, text).unwrap_or(0);
    std::str::from_utf8(&text[..length]).unwrap_or_default()
}

/// The number after a name at the beginning of a line.
pub fn field(text: &str, name: &str) -> Option<u64> {
    let rest = text.lines().find_map(|line| line.strip_prefix(name))?;
    rest.split_ascii_whitespace().next()?.parse().ok()
}

/// A small file of a process. `None` if the process is dead; an error if nobody can tell.
pub(super) fn of_process(pid: u32, name: &str) -> Result<Option<String>, Errno> {
    let mut text = [0; pagetide_page::PAGE_SIZE];
    match read_once(format!("/proc/{pid}/{name}"), &mut text) {
        Ok(length) => Ok(Some(String::from_utf8_lossy(&text[..length]).into_owned())),
        Err(error @ (Errno::NOENT | Errno::SRCH)) => {
            // `/proc` may be mounted so that it hides processes (hidepid). From signals they cannot be hidden.
            let pid = i32::try_from(pid).ok().and_then(rustix::process::Pid::from_raw);
            let hidden = pid.is_some_and(|pid| rustix::process::test_kill_process(pid) != Err(Errno::SRCH));
            if hidden { Err(error) } else { Ok(None) }
        }
        Err(error) => Err(error),
    }
}

/// Returns the entries of a directory of `/proc`. Not by `read_dir`: the C library's directory streams come from the
/// program's `malloc`.
pub(super) fn directory(path: &str) -> Result<rustix::fs::Dir, Errno> {
    rustix::fs::Dir::new(open_directory(path)?)
}

/// Returns the threads of a process, as paths below its directory.
pub fn tasks(process: &str) -> impl Iterator<Item = String> {
    let tasks = directory(&format!("{process}/task")).into_iter().flatten().flatten();
    let names = tasks.filter_map(|task| Some(task.file_name().to_str().ok()?.to_owned()));
    names.filter(|name| !name.starts_with('.')).map(move |name| format!("{process}/task/{name}"))
}

pub(super) fn open_directory(path: &str) -> Result<OwnedFd, Errno> {
    let flags = rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::DIRECTORY | rustix::fs::OFlags::CLOEXEC;
    rustix::fs::open(path, flags, rustix::fs::Mode::empty())
}

pub(super) fn parsed(number: &str) -> Option<u64> {
    number.parse().ok()
}
