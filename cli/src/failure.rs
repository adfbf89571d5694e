//! Failures of a command, with their exit status.

use std::fmt;

/// Exit status: Pagetide failed.
pub(crate) const OURS: u8 = 125;
/// Exit status: CMD was found and cannot be executed.
pub(crate) const NOT_EXECUTABLE: u8 = 126;
/// Exit status: CMD was not found.
pub(crate) const NOT_FOUND: u8 = 127;

/// A message and an exit status.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Failure {
    /// The exit status.
    pub(crate) status: u8,
    /// The message, of one line or several.
    pub(crate) message: String,
}

impl Failure {
    /// Returns a failure with this exit status.
    pub(crate) fn new(status: u8, message: impl Into<String>) -> Self {
        Self { status, message: message.into() }
    }
}

impl From<String> for Failure {
    fn from(message: String) -> Self {
        Self { status: OURS, message }
    }
}

impl From<&str> for Failure {
    fn from(message: &str) -> Self {
        message.to_owned().into()
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}
