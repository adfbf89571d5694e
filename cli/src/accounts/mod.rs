//! Figures of the memory and the disk of a run.

pub(crate) mod cap;
pub(crate) mod exact;
pub(crate) mod gathered;
pub(crate) mod memory;
pub(crate) mod most;
pub(crate) mod pages;
mod remote;
