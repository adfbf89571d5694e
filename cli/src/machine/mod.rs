//! What this machine, or this container, gives.

pub(crate) mod container;
pub(crate) mod limits;
