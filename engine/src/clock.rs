//! The clock of a process.

use std::sync::OnceLock;
use std::time::Instant;

/// Nanoseconds of a clock that never goes back.
pub(crate) fn clock() -> u64 {
    static START: OnceLock<Instant> = OnceLock::new();
    START.get_or_init(Instant::now).elapsed().as_nanos() as u64
}
