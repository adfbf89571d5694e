//! Standard output, of which whoever reads it may have seen enough.

use crate::failure::Failure;
use std::io::{ErrorKind, Write};

/// Whether anybody reads what is printed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Audience {
    /// As far as can be told.
    Listens,
    /// The reader of a pipe has closed it: what was printed is lost, which is no error.
    Gone,
}

/// Prints `text`, at once. A pipe that nobody reads any more is no error, and changes no exit status; a full disk is
/// one.
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
