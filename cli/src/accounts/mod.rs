//! Memory of a run, counted.

pub mod exact;
