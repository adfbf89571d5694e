//! What Pagetide itself says, on standard error.

use pagetide_cli::options::RunArgs;
use pagetide_sys::task::say;

/// How much it says.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Verbosity {
    /// Errors and warnings only.
    Quiet,
    /// What it decided by itself, and a summary.
    Normal,
    /// The setup too.
    Verbose,
}

impl Verbosity {
    /// How much is said of a run with these options.
    pub(crate) fn of(args: &RunArgs) -> Self {
        match (args.quiet, args.verbose) {
            (true, _) => Self::Quiet,
            (_, true) => Self::Verbose,
            _ => Self::Normal,
        }
    }

    /// Something that the user should know.
    pub(crate) fn tell(self, line: &str) {
        if self >= Self::Normal {
            say(line);
        }
    }

    /// Something that the user may not have wanted: said whatever else is.
    pub(crate) fn warn(self, line: &str) {
        say(&format!("warning: {line}"));
    }

    /// A detail.
    pub(crate) fn detail(self, line: &str) {
        if self >= Self::Verbose {
            say(line);
        }
    }
}
