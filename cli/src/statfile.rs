//! The file of `--stats`: always whole, at whatever instant it is read.

use serde_json::Value;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Where statistics go.
#[derive(Debug)]
pub struct StatFile {
    path: PathBuf,
    temporary: PathBuf,
    /// It is a pipe or a device, which a rename would replace.
    special: bool,
}

/// Whether a run has ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stage {
    /// It goes on.
    Running,
    /// This report is the last.
    Ended,
}

impl StatFile {
    /// Statistics to `path`.
    pub fn new(path: &Path) -> Self {
        let mut name = path.file_name().unwrap_or_default().to_owned();
        name.push(format!(".{}.tmp", std::process::id()));
        let special = path.metadata().is_ok_and(|metadata| !metadata.is_file());
        Self { path: path.to_owned(), temporary: path.with_file_name(name), special }
    }

    /// Writes a report. A pipe or a device gets the last one only.
    pub fn write(&self, report: &Value, stage: Stage) -> Result<(), String> {
        if self.special && stage == Stage::Running {
            return Ok(());
        }
        let text = format!("{report:#}\n");
        let result = if self.special { fs::write(&self.path, text) } else { self.replace(&text) };
        result.map_err(|error| format!("--stats: cannot write {}: {error}", self.path.display()))
    }

    fn replace(&self, text: &str) -> io::Result<()> {
        fs::write(&self.temporary, text)?;
        fs::rename(&self.temporary, &self.path).inspect_err(|_| {
            let _ = fs::remove_file(&self.temporary);
        })
    }
}
