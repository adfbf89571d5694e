//! What this machine, or this container, gives.

pub mod container;
pub mod limits;
