//! The swap file of a run.

pub mod growth;
pub mod swapfile;
