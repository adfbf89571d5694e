//! The swap file of a run.

pub(crate) mod growth;
pub(crate) mod swapfile;
