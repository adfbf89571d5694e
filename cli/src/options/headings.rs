//! Headings of groups of options.

/// Options that most people need.
pub(super) const NEEDED: &str = "What most people need";
/// Files and directories.
pub(super) const PLACES: &str = "Where things go";
/// Rules and limits.
pub(super) const DECISIONS: &str = "How it decides";
/// What is there to compare.
pub(super) const EXPERIMENTS: &str = "For experiments";
