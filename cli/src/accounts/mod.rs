//! Memory of a run, counted.

pub mod cap;
pub mod exact;
pub mod gathered;
pub mod most;
pub mod pages;
