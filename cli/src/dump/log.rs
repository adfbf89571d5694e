//! `PAGETIDE_LOG`: what processes of a run and its launcher write down of what happens.

use pagetide::group::Group;
use pagetide_sys::log::{self, Level, Sharing};
use std::fs::{File, OpenOptions};
use std::os::fd::AsRawFd;

const VARIABLE: &str = "PAGETIDE_LOG";

/// How much is written, and where.
#[derive(Debug)]
pub(crate) struct Log {
    level: Level,
    file: Option<File>,
}

impl Log {
    /// What the environment asks for.
    ///
    /// # Errors
    /// It is no level, or the file cannot be written: the text names the variable.
    pub(crate) fn from_environment() -> Result<Self, String> {
        let text = std::env::var_os(VARIABLE).unwrap_or_default();
        Self::parse(&text.to_string_lossy())
    }

    fn parse(text: &str) -> Result<Self, String> {
        let (name, path) = text.split_once(':').map_or((text, None), |(name, path)| (name, Some(path)));
        let known = Level::NAMES.iter().find(|(known, _)| *known == name);
        let level = match known {
            Some(&(_, level)) => level,
            None if text.is_empty() => Level::Off,
            None => {
                let names = Level::NAMES.map(|(name, _)| name).join(", ");
                return Err(format!(
                    "{VARIABLE}: {name:?} is no level; there are {names} (LEVEL or LEVEL:FILE)"
                ));
            }
        };
        let open = |path: &str| {
            OpenOptions::new()
                .create(true)
                .append(true)
                .open(path)
                .map_err(|error| format!("{VARIABLE}: {path}: {error}"))
        };
        let file = path.filter(|_| level != Level::Off).map(open).transpose()?;
        Ok(Self { level, file })
    }

    /// Begins to write, and tells the processes of the run. The file stays open for as long as this process lives.
    pub(crate) fn begin(self, group: &Group) {
        group.set_log(self.level, self.file.as_ref().map(|file| file.as_raw_fd() as u64));
        if self.level != Level::Off {
            log::begin(self.level, self.file.map(Into::into), Sharing::Launcher);
            pagetide_sys::log!(Info, "the run begins");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_level_and_a_file_are_read_and_anything_else_is_an_error() {
        for (text, level) in
            [("", Level::Off), ("off", Level::Off), ("error", Level::Error), ("debug", Level::Debug)]
        {
            let log = Log::parse(text).unwrap();
            assert!(log.level == level && log.file.is_none(), "{text}");
        }
        let log = Log::parse("info:/dev/null").unwrap();
        assert!(log.level == Level::Info && log.file.is_some());
        assert!(Log::parse("off:/nowhere/at/all").unwrap().file.is_none(), "nothing is written there");
        for wrong in ["loud", "loud:/dev/null", "info:/nowhere/at/all", "debug:"] {
            assert!(Log::parse(wrong).unwrap_err().starts_with("PAGETIDE_LOG: "), "{wrong}");
        }
    }
}
