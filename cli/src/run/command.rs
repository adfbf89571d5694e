//! CMD: lookup of its file, and checks that a preloaded library reaches it.

use crate::failure::{Failure, NOT_EXECUTABLE, NOT_FOUND};
use crate::processes::program::Format;
use rustix::fs::{Access, AtFlags, CWD};
use std::ffi::OsStr;
use std::io::ErrorKind;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// The most scripts in a row whose interpreter is a script again, as in the kernel.
const SCRIPT_DEPTH: usize = 4;

/// Finds the file of CMD, as `execvp` does.
pub(crate) fn find(name: &OsStr, path: Option<&OsStr>) -> Result<PathBuf, Failure> {
    let not_found = || Failure::new(NOT_FOUND, format!("{}: command not found", name.display()));
    if name.is_empty() {
        return Err(not_found());
    }
    if name.as_bytes().contains(&b'/') {
        return match executable(Path::new(name)) {
            Ok(()) => Ok(name.into()),
            Err(ErrorKind::NotFound) => {
                Err(Failure::new(NOT_FOUND, format!("{}: no such file", name.display())))
            }
            Err(kind) => Err(Failure::new(NOT_EXECUTABLE, format!("{}: {kind}", name.display()))),
        };
    }
    let mut refused = None;
    for directory in path.unwrap_or(OsStr::new("/bin:/usr/bin")).as_bytes().split(|&byte| byte == b':') {
        let directory = if directory.is_empty() { OsStr::new(".") } else { OsStr::from_bytes(directory) };
        let file = Path::new(directory).join(name);
        match executable(&file) {
            Ok(()) => return Ok(file),
            Err(ErrorKind::PermissionDenied) => {
                refused.get_or_insert(file);
            }
            Err(_) => {}
        }
    }
    Err(refused.map_or_else(not_found, |file| {
        Failure::new(NOT_EXECUTABLE, format!("{}: permission denied", file.display()))
    }))
}

fn executable(file: &Path) -> Result<(), ErrorKind> {
    let metadata = file.metadata().map_err(|error| error.kind())?;
    if !metadata.is_file() {
        return Err(ErrorKind::PermissionDenied);
    }
    rustix::fs::accessat(CWD, file, Access::EXEC_OK, AtFlags::EACCESS)
        .map_err(|error| std::io::Error::from(error).kind())
}

/// Checks that a library can be preloaded into `file`, or into the interpreter that it names, and that there is one.
pub(crate) fn check(file: &Path, path: Option<&OsStr>) -> Result<(), Failure> {
    let mut file = file.to_owned();
    for _ in 0..=SCRIPT_DEPTH {
        check_privileges(&file)?;
        match Format::read(&file) {
            // Executable but not readable, or a loader that is given the program: nothing can be checked.
            Err(_) | Ok(Format::Loader) => return Ok(()),
            Ok(Format::Dynamic(loader)) => {
                return check_interpreter(&file, "dynamic loader", Path::new(OsStr::from_bytes(&loader)));
            }
            Ok(Format::Static) => {
                return Err(format!(
                    "{}: it is statically linked. Pagetide reaches a program through the dynamic loader \
                     (LD_PRELOAD), which this one does not use",
                    file.display()
                )
                .into());
            }
            Ok(Format::Foreign) => {
                return Err(format!(
                    "{}: it is a program for another kind of machine (32 bits, or another processor)",
                    file.display()
                )
                .into());
            }
            Ok(Format::Script(line)) => {
                if let Some(program) = program(&line) {
                    check_interpreter(&file, "interpreter", program)?;
                }
                match interpreter(&line, path) {
                    Some(next) => file = next,
                    None => return Ok(()),
                }
            }
        }
    }
    // Too many scripts in a row: exec fails with ELOOP.
    Ok(())
}

/// Checks that the interpreter or loader of `file` exists. If it is missing, exec says that `file` is.
fn check_interpreter(file: &Path, what: &str, interpreter: &Path) -> Result<(), Failure> {
    let Err(kind) = executable(interpreter) else { return Ok(()) };
    let (status, problem) = match kind {
        ErrorKind::NotFound => (NOT_FOUND, "does not exist".to_owned()),
        kind => (NOT_EXECUTABLE, format!("cannot be executed ({kind})")),
    };
    let line_end = if interpreter.as_os_str().as_bytes().ends_with(b"\r") {
        " (its first line ends as on Windows, by a carriage return)"
    } else {
        ""
    };
    // As a string literal: the name may end in an invisible character.
    Err(Failure::new(status, format!("{}: its {what} {interpreter:?} {problem}{line_end}", file.display())))
}

fn check_privileges(file: &Path) -> Result<(), String> {
    let Ok(metadata) = file.metadata() else { return Ok(()) };
    let gains_user =
        metadata.mode() & libc::S_ISUID != 0 && metadata.uid() != rustix::process::geteuid().as_raw();
    // Set-gid without group execute is not set-gid.
    let set_gid = libc::S_ISGID | libc::S_IXGRP;
    let gains_group =
        metadata.mode() & set_gid == set_gid && metadata.gid() != rustix::process::getegid().as_raw();
    let what = if gains_user {
        "set-user-ID"
    } else if gains_group {
        "set-group-ID"
    } else if rustix::fs::getxattr(file, "security.capability", &mut [0; 64][..]).is_ok() {
        "file capabilities"
    } else {
        return Ok(());
    };
    Err(format!(
        "{}: it gains privileges when it starts ({what}), and the dynamic loader then takes no library from us",
        file.display()
    ))
}

/// Returns the program that a script's first line names, as the kernel reads it; `None` if it names none.
fn program(line: &[u8]) -> Option<&Path> {
    let name = line.split(|byte| b" \t".contains(byte)).find(|word| !word.is_empty())?;
    Some(Path::new(OsStr::from_bytes(name)))
}

/// Returns the program that runs a script whose first line is `line`; `None` if it is not found, which exec reports.
fn interpreter(line: &[u8], path: Option<&OsStr>) -> Option<PathBuf> {
    let Some(program) = program(line) else { return Some("/bin/sh".into()) };
    let mut words = line.split(|byte| b" \t\r".contains(byte)).filter(|word| !word.is_empty()).skip(1);
    if program.file_name() != Some(OsStr::new("env")) {
        return Some(program.to_owned());
    }
    // env prog, env -S prog, env NAME=value prog.
    let name = words.find(|word| !word.starts_with(b"-") && !word.contains(&b'='))?;
    find(OsStr::from_bytes(name), path).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    #[test]
    fn interpreters_are_found_through_env() {
        let path = Some(OsStr::new("/nowhere:/bin:/usr/bin"));
        assert_eq!(interpreter(b" /bin/sh -e", path), Some("/bin/sh".into()));
        assert_eq!(interpreter(b"/usr/bin/env sh", path), Some("/bin/sh".into()));
        assert_eq!(interpreter(b"/usr/bin/env -S A=1 sh -e", path), Some("/bin/sh".into()));
        assert_eq!(interpreter(b"/usr/bin/env no-such-program", path), None);
        assert_eq!(interpreter(b"", path), Some("/bin/sh".into()));
    }

    #[test]
    fn an_interpreter_that_is_missing_is_named() {
        let check = |name: &str| check_interpreter(Path::new("file"), "interpreter", Path::new(name));
        assert_eq!(check("/bin/sh"), Ok(()));
        for (name, status, message) in [
            ("/no/such", NOT_FOUND, "file: its interpreter \"/no/such\" does not exist"),
            (
                "/etc/passwd",
                NOT_EXECUTABLE,
                "file: its interpreter \"/etc/passwd\" cannot be executed (permission denied)",
            ),
            (
                "/bin/sh\r",
                NOT_FOUND,
                "file: its interpreter \"/bin/sh\\r\" does not exist (its first line ends as on Windows, by a \
                 carriage return)",
            ),
        ] {
            assert_eq!(check(name), Err(Failure::new(status, message)));
        }
        assert_eq!(program(b" /bin/sh\r"), Some(Path::new("/bin/sh\r")));
        assert_eq!(program(b" \t"), None);
    }

    #[test]
    fn lookup_tells_missing_from_forbidden() {
        let find = |name: &str, path: &str| find(OsStr::new(name), Some(OsStr::new(path)));
        assert_eq!(find("sh", "/nowhere:/bin"), Ok("/bin/sh".into()));
        assert_eq!(find("/bin/sh", ""), Ok("/bin/sh".into()));
        assert_eq!(find("sh", "/nowhere").unwrap_err().status, NOT_FOUND);
        assert_eq!(find("", "/bin").unwrap_err().status, NOT_FOUND);
        assert_eq!(find("/no/such", "/bin").unwrap_err().status, NOT_FOUND);
        assert_eq!(find("/etc/passwd", "/bin").unwrap_err().status, NOT_EXECUTABLE);
        assert_eq!(find("/bin", "/bin").unwrap_err().status, NOT_EXECUTABLE);
        assert_eq!(find("passwd", "/etc:/nowhere").unwrap_err().status, NOT_EXECUTABLE);
        assert!(check(Path::new("/bin/true"), None).is_ok());
    }
}
