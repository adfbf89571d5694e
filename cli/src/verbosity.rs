//! Messages of Pagetide itself, on standard error.

use pagetide_cli::options::RunArgs;
use pagetide_sys::task::say;

/// Amount of messages.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Verbosity {
    /// Errors and warnings only.
    Quiet,
    /// Decisions that Pagetide made by itself, and a summary, too.
    Normal,
    /// The setup, too.
    Verbose,
}

impl Verbosity {
    /// Returns the verbosity that options ask for.
    pub(crate) fn of(args: &RunArgs) -> Self {
        match (args.quiet, args.verbose) {
            (true, _) => Self::Quiet,
            (_, true) => Self::Verbose,
            _ => Self::Normal,
        }
    }

    /// Says something that the user should know, unless quiet.
    pub(crate) fn tell(self, line: &str) {
        if self >= Self::Normal {
            say(line);
        }
    }

    /// Says a warning, however quiet.
    pub(crate) fn warn(self, line: &str) {
        say(&format!("warning: {line}"));
    }

    /// Says a detail, if verbose.
    pub(crate) fn detail(self, line: &str) {
        if self >= Self::Verbose {
            say(line);
        }
    }
}
