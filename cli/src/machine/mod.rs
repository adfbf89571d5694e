//! Limits of this machine or container.

pub(crate) mod container;
pub(crate) mod limits;
