//! Commands that change a run while it goes on.

pub mod set;
pub mod swapoff;
