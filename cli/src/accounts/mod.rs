//! Memory of a run, counted.

pub(crate) mod cap;
pub(crate) mod exact;
pub(crate) mod gathered;
pub(crate) mod most;
pub(crate) mod pages;
