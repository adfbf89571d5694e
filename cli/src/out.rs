//! Standard output, which its reader may close, and files that are replaced as a whole.

use crate::failure::Failure;
use std::ffi::OsString;
use std::fs;
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};

/// Whether standard output has a reader.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Audience {
    /// It has, as far as can be told.
    Listens,
    /// The reader of the pipe has closed it. The rest of the output is lost, which is no error.
    Gone,
}

/// Prints `text` and flushes it.
///
/// # Errors
/// The output cannot be written, as on a full disk. A closed pipe is no error.
pub(crate) fn print(text: &str) -> Result<Audience, Failure> {
    print_to(&mut std::io::stdout().lock(), text)
}

fn print_to(out: &mut impl Write, text: &str) -> Result<Audience, Failure> {
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Ok(()) => Ok(Audience::Listens),
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(Audience::Gone),
        Err(error) => Err(format!("cannot write to standard output: {error}").into()),
    }
}

/// Returns the name under which a file is written before it takes the place of `path`; `None` if that names no file.
pub(crate) fn draft(path: &Path) -> Option<PathBuf> {
    let mut name: OsString = path.file_name()?.to_owned();
    name.push(format!(".{}.tmp", std::process::id()));
    Some(path.with_file_name(name))
}

/// Puts `text` in the place of a file, of which readers see the old contents or the new, and never a part.
///
/// # Errors
/// It cannot be written, as on a full disk: what was there stays.
pub(crate) fn replace(path: &Path, text: &str) -> io::Result<()> {
    let draft = draft(path).ok_or(ErrorKind::InvalidFilename)?;
    fs::write(&draft, text).and_then(|()| fs::rename(&draft, path)).inspect_err(|_| {
        let _ = fs::remove_file(&draft);
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::failure::OURS;

    #[test]
    fn a_reader_that_has_gone_is_no_error_and_a_full_disk_is_one() {
        let (reader, mut writer) = std::io::pipe().unwrap();
        assert_eq!(print_to(&mut writer, "a line\n"), Ok(Audience::Listens));
        drop(reader);
        assert_eq!(print_to(&mut writer, "a line\n"), Ok(Audience::Gone));
        let mut full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
        let failure = print_to(&mut full, "a line\n").unwrap_err();
        assert!(failure.status == OURS && failure.message.contains("standard output"), "{failure}");
    }
}
