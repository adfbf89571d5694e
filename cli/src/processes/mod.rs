//! Processes and runs of this machine.

pub(crate) mod killed;
#[allow(unsafe_code, reason = "the only file that may")]
pub(crate) mod os;
pub(crate) mod program;
pub(crate) mod runs;
pub(crate) mod tree;
pub(crate) mod vfork;
