//! Why a run does not come about, and the exit status that says so.

use std::fmt;

/// Something of ours went wrong.
pub(crate) const OURS: u8 = 125;
/// CMD was found and cannot be executed.
pub(crate) const NOT_EXECUTABLE: u8 = 126;
/// CMD was not found.
pub(crate) const NOT_FOUND: u8 = 127;

/// A message and an exit status.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Failure {
    /// The exit status.
    pub(crate) status: u8,
    /// What to tell, in one line or several.
    pub(crate) message: String,
}

impl Failure {
    /// A failure with a status of its own.
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
