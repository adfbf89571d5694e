//! Processes and runs of this machine, and what is done to them.

pub mod killed;
#[allow(unsafe_code, reason = "the only file that may")]
pub mod os;
pub mod program;
pub mod runs;
pub mod tree;
