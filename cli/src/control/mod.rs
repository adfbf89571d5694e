//! Commands that change a run while it goes on.

pub(crate) mod set;
pub(crate) mod swapoff;
