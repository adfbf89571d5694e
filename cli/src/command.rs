//! CMD: where its file is, and whether a preloaded library reaches it.

use crate::failure::{Failure, NOT_EXECUTABLE, NOT_FOUND};
use rustix::fs::{Access, AtFlags, CWD};
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{ErrorKind, Read, Seek, SeekFrom};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Scripts whose interpreter is a script again, at most: as the kernel has it.
const SCRIPT_DEPTH: usize = 4;
/// Bytes of a `#!` line that the kernel reads.
const SCRIPT_LINE: usize = 256;
const ELF_HEADER: usize = 64;
const CLASS_64: u8 = 2;
const PROGRAM_HEADERS_MAX: usize = 64 * 1024;
const PT_INTERP: u32 = 3;
const MACHINE: u16 = if cfg!(target_arch = "x86_64") {
    62
} else if cfg!(target_arch = "aarch64") {
    183
} else {
    0
};

/// Finds the file of CMD, as `execvp` does.
pub fn find(name: &OsStr, path: Option<&OsStr>) -> Result<PathBuf, Failure> {
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

/// Checks that a library can be preloaded into `file`, or into the interpreter that it names.
pub fn check(file: &Path, path: Option<&OsStr>) -> Result<(), String> {
    let mut file = file.to_owned();
    for _ in 0..=SCRIPT_DEPTH {
        check_privileges(&file)?;
        match Format::read(&file) {
            // Executable and not readable: nothing can be said beforehand.
            Err(_) => return Ok(()),
            Ok(Format::Dynamic) => return Ok(()),
            Ok(Format::Static) => {
                return Err(format!(
                    "{}: it is statically linked. Pagetide reaches a program through the dynamic loader \
                     (LD_PRELOAD), which this one does not use",
                    file.display()
                ));
            }
            Ok(Format::Foreign) => {
                return Err(format!(
                    "{}: it is a program for another kind of machine (32 bits, or another processor)",
                    file.display()
                ));
            }
            Ok(Format::Script(line)) => match interpreter(&line, path) {
                Some(next) => file = next,
                None => return Ok(()),
            },
        }
    }
    // Too deep: the kernel says so better.
    Ok(())
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

/// What the kernel would do with a file.
#[derive(PartialEq, Eq, Debug)]
enum Format {
    Dynamic,
    Static,
    Foreign,
    /// What stands behind `#!`; empty for a file that `execvp` hands to the shell.
    Script(Vec<u8>),
}

impl Format {
    fn read(path: &Path) -> std::io::Result<Self> {
        Self::of(&mut File::open(path)?)
    }

    fn of(file: &mut (impl Read + Seek)) -> std::io::Result<Self> {
        let mut start = Vec::with_capacity(SCRIPT_LINE);
        file.by_ref().take(SCRIPT_LINE as u64).read_to_end(&mut start)?;
        if let Some(line) = start.strip_prefix(b"#!") {
            return Ok(Self::Script(line.split(|&byte| byte == b'\n').next().unwrap_or_default().to_vec()));
        }
        if !start.starts_with(b"\x7fELF") {
            return Ok(Self::Script(Vec::new()));
        }
        if start.len() < ELF_HEADER || start[4] != CLASS_64 || (MACHINE != 0 && half(&start, 18) != MACHINE) {
            return Ok(Self::Foreign);
        }
        let offset = u64::from_le_bytes(start[32..40].try_into().expect("eight bytes"));
        let (size, count) = (usize::from(half(&start, 54)), usize::from(half(&start, 56)));
        if size < 4 || size * count > PROGRAM_HEADERS_MAX {
            return Ok(Self::Static);
        }
        let mut headers = Vec::with_capacity(size * count);
        file.seek(SeekFrom::Start(offset))?;
        file.take((size * count) as u64).read_to_end(&mut headers)?;
        let dynamic = headers.chunks_exact(size).any(|header| header[..4] == PT_INTERP.to_le_bytes());
        Ok(if dynamic { Self::Dynamic } else { Self::Static })
    }
}

fn half(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

/// The program that runs a script whose first line is `line`. `None` when it is not found: whoever
/// executes it says so.
fn interpreter(line: &[u8], path: Option<&OsStr>) -> Option<PathBuf> {
    let mut words = line.split(|byte| b" \t\r".contains(byte)).filter(|word| !word.is_empty());
    let Some(program) = words.next() else { return Some("/bin/sh".into()) };
    let program = Path::new(OsStr::from_bytes(program));
    if program.file_name() != Some(OsStr::new("env")) {
        return Some(program.to_owned());
    }
    // env prog, env -S prog, env NAME=value prog.
    let name = words.find(|word| !word.starts_with(b"-") && !word.contains(&b'='))?;
    find(OsStr::from_bytes(name), path).ok()
}

/// The library that is preloaded.
pub fn preload_library() -> Result<PathBuf, String> {
    const NAME: &str = "libpagetide_preload.so";
    const VARIABLE: &str = "PAGETIDE_PRELOAD";
    let library = if let Some(given) = std::env::var_os(VARIABLE).filter(|value| !value.is_empty()) {
        let given = std::path::absolute(given).map_err(|error| format!("{VARIABLE}: {error}"))?;
        if !given.is_file() {
            return Err(format!("{VARIABLE} names {}, which is no file", given.display()));
        }
        given
    } else {
        let executable = std::env::current_exe().map_err(|error| format!("where am I? {error}"))?;
        let directory = executable.parent().unwrap_or(Path::new("/"));
        let places = [directory.join(NAME), directory.join("../lib/pagetide").join(NAME)];
        let found = places.iter().find_map(|place| place.canonicalize().ok().filter(|place| place.is_file()));
        found.ok_or_else(|| {
            let [beside, lib] = places.each_ref().map(|place| place.display());
            format!("{NAME} is neither {beside} nor {lib}. Set {VARIABLE} to its path")
        })?
    };
    if library.as_os_str().as_bytes().iter().any(|byte| b" :\t\n".contains(byte)) {
        return Err(format!(
            "{}: LD_PRELOAD cannot name a path with a space or a colon. Set {VARIABLE} to another one",
            library.display()
        ));
    }
    Ok(library)
}

/// The value of LD_PRELOAD with our library behind what is there: a user's own allocator wins.
pub fn ld_preload(existing: Option<&OsStr>, library: &Path) -> OsString {
    let Some(existing) = existing.filter(|value| !value.is_empty()) else { return library.into() };
    let already = existing.as_bytes().split(|byte| b" :".contains(byte));
    if already.into_iter().any(|entry| entry == library.as_os_str().as_bytes()) {
        return existing.into();
    }
    let mut value = existing.to_owned();
    value.push(":");
    value.push(library);
    value
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Cursor;

    fn format(bytes: &[u8]) -> Format {
        Format::of(&mut Cursor::new(bytes)).unwrap()
    }

    /// An ELF header and one program header of type `kind`.
    fn elf(class: u8, machine: u16, kind: u32) -> Vec<u8> {
        let mut bytes = vec![0; ELF_HEADER + 56];
        bytes[..4].copy_from_slice(b"\x7fELF");
        (bytes[4], bytes[5]) = (class, 1);
        bytes[18..20].copy_from_slice(&machine.to_le_bytes());
        bytes[32] = ELF_HEADER as u8;
        (bytes[54], bytes[56]) = (56, 1);
        bytes[64..68].copy_from_slice(&kind.to_le_bytes());
        bytes
    }

    #[test]
    fn programs_are_told_apart() {
        assert_eq!(Format::read(Path::new("/bin/true")).unwrap(), Format::Dynamic);
        assert_eq!(format(&elf(CLASS_64, MACHINE, PT_INTERP)), Format::Dynamic);
        assert_eq!(format(&elf(CLASS_64, MACHINE, 1)), Format::Static);
        assert_eq!(format(&elf(1, MACHINE, PT_INTERP)), Format::Foreign);
        assert_eq!(format(&elf(CLASS_64, 8, PT_INTERP)), Format::Foreign);
        assert_eq!(format(b"\x7fELF"), Format::Foreign);
        assert_eq!(format(b"echo hello"), Format::Script(vec![]));
        assert_eq!(format(b"#! /bin/sh -e\nexit"), Format::Script(b" /bin/sh -e".to_vec()));
    }

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

    #[test]
    fn our_library_comes_last_and_once() {
        let ours = Path::new("/lib/ours.so");
        assert_eq!(ld_preload(None, ours), "/lib/ours.so");
        assert_eq!(ld_preload(Some(OsStr::new("")), ours), "/lib/ours.so");
        assert_eq!(ld_preload(Some(OsStr::new("a.so b.so")), ours), "a.so b.so:/lib/ours.so");
        assert_eq!(ld_preload(Some(OsStr::new("/lib/ours.so a.so")), ours), "/lib/ours.so a.so");
    }
}
