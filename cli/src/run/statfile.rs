//! The file of `--stats`. It is replaced as a whole, so that readers never see half of a report; a pipe, a device
//! and standard output get the last report only. A file whose name ends in `.jsonl` keeps all reports, a line each; one
//! in `.prom` has Prometheus text.

use crate::out;
use crate::show::prometheus;
use rustix::fs::{Access, AtFlags, CWD, accessat};
use serde_json::Value;
use std::fs::{self, File};
use std::io::{self, Seek, SeekFrom, Write};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

/// The name of standard output.
const STANDARD_OUTPUT: &str = "-";

/// The file of `--stats`.
#[derive(Debug)]
pub(crate) struct StatFile {
    path: PathBuf,
    kind: Kind,
}

#[derive(Debug)]
enum Kind {
    /// A file, replaced as a whole.
    Replaced,
    /// A file to which a line is appended for each report.
    Lines(File),
    /// A pipe or a device, which a rename would replace.
    Special,
    StandardOutput,
}

/// Stage of a run at a report.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Stage {
    /// The run goes on.
    Running,
    /// The run has ended: this report is the last.
    Ended,
}

fn ends_with(path: &Path, extension: &str) -> bool {
    path.extension().is_some_and(|found| found == extension)
}

/// Appends a line in one call. Of one for which the disk has no room nothing stays: the next would go on in it.
fn append_line(mut file: &File, line: &str) -> io::Result<()> {
    let whole = file.metadata()?.len();
    file.write_all(line.as_bytes()).inspect_err(|_| {
        let _ = file.set_len(whole);
        let _ = file.seek(SeekFrom::Start(whole));
    })
}

impl StatFile {
    /// Checks that statistics can be written to `path`.
    pub(crate) fn new(path: &Path) -> Result<Self, String> {
        let cannot = |why: &str| Err(format!("--stats: cannot write {}: {why}", path.display()));
        let found = path.metadata().ok().map(|metadata| metadata.file_type());
        let kind = match found {
            _ if path == Path::new(STANDARD_OUTPUT) => Kind::StandardOutput,
            Some(found) if found.is_dir() => return cannot("it is a directory; name a file in it"),
            Some(found) if found.is_socket() => return cannot("it is a socket"),
            Some(found) if !found.is_file() => {
                if let Err(error) = accessat(CWD, path, Access::WRITE_OK, AtFlags::EACCESS) {
                    return cannot(&io::Error::from(error).to_string());
                }
                Kind::Special
            }
            _ if ends_with(path, "jsonl") => match File::create(path) {
                Ok(file) => Kind::Lines(file),
                Err(error) => return cannot(&error.to_string()),
            },
            _ if out::draft(path).is_none() => return cannot("it names no file"),
            _ => Kind::Replaced,
        };
        Ok(Self { path: path.to_owned(), kind })
    }

    /// Writes a report. Standard output, a pipe or a device gets the last one only.
    pub(crate) fn write(&self, report: &Value, stage: Stage) -> Result<(), String> {
        let text =
            if ends_with(&self.path, "prom") { prometheus::text(report) } else { format!("{report:#}\n") };
        let result = match &self.kind {
            Kind::Lines(file) => append_line(file, &format!("{report}\n")),
            Kind::Replaced => out::replace(&self.path, &text),
            _ if stage == Stage::Running => return Ok(()),
            Kind::Special => match fs::write(&self.path, text) {
                // As for standard output, a reader may close the pipe.
                Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
                other => other,
            },
            Kind::StandardOutput => {
                return out::print(&text).map(|_| ()).map_err(|failure| format!("--stats: {failure}"));
            }
        };
        result.map_err(|error| format!("--stats: cannot write {}: {error}", self.path.display()))
    }
}
