//! Output about a run, for people and for programs.

pub(crate) mod notices;
pub(crate) mod prometheus;
pub(crate) mod ps;
pub(crate) mod report;
pub(crate) mod stat;
pub(crate) mod summary;
pub(crate) mod table;
#[cfg(test)]
pub(crate) mod testing;
