//! CMD: where its file is, and whether a preloaded library reaches it.

use crate::failure::{Failure, NOT_EXECUTABLE, NOT_FOUND};
use object::LittleEndian;
use object::elf::{EM_AARCH64, EM_X86_64, FileHeader64};
use object::read::elf::{FileHeader, ProgramHeader};
use object::read::{ReadCache, ReadRef};
use rustix::fs::{Access, AtFlags, CWD};
use std::ffi::OsStr;
use std::fs::File;
use std::io::{ErrorKind, Read, Seek};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Scripts whose interpreter is a script again, at most: as the kernel has it.
const SCRIPT_DEPTH: usize = 4;
/// Bytes of a `#!` line that the kernel reads.
const SCRIPT_LINE: usize = 256;
const MACHINE: u16 = if cfg!(target_arch = "aarch64") { EM_AARCH64 } else { EM_X86_64 };

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

/// Checks that a library can be preloaded into `file`, or into the interpreter that it names, and that there is one.
pub fn check(file: &Path, path: Option<&OsStr>) -> Result<(), Failure> {
    let mut file = file.to_owned();
    for _ in 0..=SCRIPT_DEPTH {
        check_privileges(&file)?;
        match Format::read(&file) {
            // Executable and not readable: nothing can be said beforehand.
            Err(_) => return Ok(()),
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
    // Too deep: the kernel says so better.
    Ok(())
}

/// Checks that the program is there by which the kernel runs `file`: of a missing one it says that `file` is missing.
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
    // As a string literal: the name may end in what cannot be seen.
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

/// What the kernel would do with a file.
#[derive(PartialEq, Eq, Debug)]
pub enum Format {
    /// The dynamic loader that it names.
    Dynamic(Vec<u8>),
    /// It names none.
    Static,
    /// It is for another kind of machine.
    Foreign,
    /// What stands behind `#!`; empty for a file that `execvp` hands to the shell.
    Script(Vec<u8>),
}

impl Format {
    fn read(path: &Path) -> std::io::Result<Self> {
        Self::of(&mut File::open(path)?)
    }

    /// Of an open file.
    pub fn of(file: &mut (impl Read + Seek)) -> std::io::Result<Self> {
        let mut start = Vec::with_capacity(SCRIPT_LINE);
        file.by_ref().take(SCRIPT_LINE as u64).read_to_end(&mut start)?;
        if let Some(line) = start.strip_prefix(b"#!") {
            return Ok(Self::Script(line.split(|&byte| byte == b'\n').next().unwrap_or_default().to_vec()));
        }
        if !start.starts_with(b"\x7fELF") {
            return Ok(Self::Script(Vec::new()));
        }
        Ok(Self::of_elf(&ReadCache::new(file)))
    }

    fn of_elf<'a>(file: impl ReadRef<'a>) -> Self {
        let Ok(header) = FileHeader64::<LittleEndian>::parse(file) else { return Self::Foreign };
        if header.e_machine(LittleEndian) != MACHINE {
            return Self::Foreign;
        }
        let headers = header.program_headers(LittleEndian, file).unwrap_or_default();
        let loader = headers.iter().find_map(|header| header.interpreter(LittleEndian, file).ok().flatten());
        loader.map_or(Self::Static, |loader| Self::Dynamic(loader.to_vec()))
    }
}

/// Whether a process with this environment, as `/proc` has it, was told of the run that `variable` names, and to load a
/// library.
pub fn is_told_of_a_run(environment: &[u8], variable: &str) -> bool {
    let has = |name: &str| {
        let value =
            |entry: &[u8]| entry.strip_prefix(name.as_bytes())?.strip_prefix(b"=").map(<[u8]>::is_empty);
        environment.split(|&byte| byte == 0).any(|entry| value(entry) == Some(false))
    };
    has(variable) && has("LD_PRELOAD")
}

/// What a script's first line names, as the kernel reads it. `None` for a script without one.
fn program(line: &[u8]) -> Option<&Path> {
    let name = line.split(|byte| b" \t".contains(byte)).find(|word| !word.is_empty())?;
    Some(Path::new(OsStr::from_bytes(name)))
}

/// The program that runs a script whose first line is `line`. `None` when it is not found: whoever
/// executes it says so.
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
    use object::elf::{ELFCLASS32, ELFCLASS64, PT_INTERP};
    use std::io::Cursor;

    const ELF_HEADER: usize = size_of::<FileHeader64<LittleEndian>>();

    fn format(bytes: &[u8]) -> Format {
        Format::of(&mut Cursor::new(bytes)).unwrap()
    }

    /// An ELF header and one program header of type `kind`, of what `bytes` ends in.
    fn elf(class: u8, machine: u16, kind: u32) -> Vec<u8> {
        let mut bytes = vec![0; ELF_HEADER + 56];
        bytes[..4].copy_from_slice(b"\x7fELF");
        (bytes[4], bytes[5], bytes[6]) = (class, 1, 1);
        bytes[18..20].copy_from_slice(&machine.to_le_bytes());
        bytes[32] = ELF_HEADER as u8;
        (bytes[54], bytes[56]) = (56, 1);
        bytes[64..68].copy_from_slice(&kind.to_le_bytes());
        (bytes[72], bytes[96]) = (bytes.len() as u8, b"/a/loader\0".len() as u8);
        bytes.extend(b"/a/loader\0");
        bytes
    }

    #[test]
    fn programs_are_told_apart() {
        assert!(matches!(Format::read(Path::new("/bin/true")).unwrap(), Format::Dynamic(_)));
        assert_eq!(format(&elf(ELFCLASS64, MACHINE, PT_INTERP)), Format::Dynamic(b"/a/loader".to_vec()));
        assert_eq!(format(&elf(ELFCLASS64, MACHINE, 1)), Format::Static);
        assert_eq!(format(&elf(ELFCLASS32, MACHINE, PT_INTERP)), Format::Foreign);
        assert_eq!(format(&elf(ELFCLASS64, 8, PT_INTERP)), Format::Foreign);
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
