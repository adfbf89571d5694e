//! Programs: the format of their files, and the environment that they were given.

use object::LittleEndian;
use object::elf::{DT_SONAME, EM_AARCH64, EM_X86_64, FileHeader64};
use object::read::elf::{Dyn, FileHeader, ProgramHeader};
use object::read::{ReadCache, ReadRef};
use std::fs::File;
use std::io::{Read, Seek};
use std::path::Path;

/// Bytes of a `#!` line that the kernel reads.
const SCRIPT_LINE: usize = 256;
const MACHINE: u16 = if cfg!(target_arch = "aarch64") { EM_AARCH64 } else { EM_X86_64 };

/// Format of the file of a program.
#[derive(PartialEq, Eq, Debug)]
pub(crate) enum Format {
    /// An ELF file that names this dynamic loader.
    Dynamic(Vec<u8>),
    /// An ELF file that names no dynamic loader.
    Static,
    /// A dynamic loader, or another library that can be run: a loader runs the program that it is given.
    Loader,
    /// A program for another kind of machine.
    Foreign,
    /// A script, with the text behind `#!`; empty for a file that `execvp` hands to the shell.
    Script(Vec<u8>),
}

impl Format {
    /// Reads the format of the file at a path.
    pub(crate) fn read(path: &Path) -> std::io::Result<Self> {
        Self::of(&mut File::open(path)?)
    }

    /// Reads the format of an open file.
    pub(crate) fn of(file: &mut (impl Read + Seek)) -> std::io::Result<Self> {
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
        if let Some(loader) = loader {
            return Self::Dynamic(loader.to_vec());
        }
        // Only libraries have a name for those that need them.
        let mut dynamic =
            headers.iter().filter_map(|header| header.dynamic(LittleEndian, file).ok().flatten()).flatten();
        let is_library = dynamic.any(|entry| entry.tag32(LittleEndian) == Some(DT_SONAME));
        if is_library { Self::Loader } else { Self::Static }
    }
}

/// Returns whether an environment, in the form of `/proc/PID/environ`, sets `variable` and `LD_PRELOAD`: whether its
/// process was told of the run.
pub(crate) fn is_told_of_a_run(environment: &[u8], variable: &str) -> bool {
    let has = |name: &str| {
        let value =
            |entry: &[u8]| entry.strip_prefix(name.as_bytes())?.strip_prefix(b"=").map(<[u8]>::is_empty);
        environment.split(|&byte| byte == 0).any(|entry| value(entry) == Some(false))
    };
    has(variable) && has("LD_PRELOAD")
}

#[cfg(test)]
mod tests {
    use super::*;
    use object::elf::{ELFCLASS32, ELFCLASS64, PT_INTERP};
    use std::ffi::OsStr;
    use std::io::Cursor;
    use std::os::unix::ffi::OsStrExt;

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
        let Format::Dynamic(loader) = Format::read(Path::new("/bin/true")).unwrap() else { panic!() };
        assert_eq!(Format::read(Path::new(OsStr::from_bytes(&loader))).unwrap(), Format::Loader);
        assert_eq!(format(&elf(ELFCLASS64, MACHINE, PT_INTERP)), Format::Dynamic(b"/a/loader".to_vec()));
        assert_eq!(format(&elf(ELFCLASS64, MACHINE, 1)), Format::Static);
        assert_eq!(format(&elf(ELFCLASS32, MACHINE, PT_INTERP)), Format::Foreign);
        assert_eq!(format(&elf(ELFCLASS64, 8, PT_INTERP)), Format::Foreign);
        assert_eq!(format(b"\x7fELF"), Format::Foreign);
        assert_eq!(format(b"echo hello"), Format::Script(vec![]));
        assert_eq!(format(b"#! /bin/sh -e\nexit"), Format::Script(b" /bin/sh -e".to_vec()));
    }
}
