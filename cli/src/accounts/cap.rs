//! The threshold above which a cap counts as passed.

use crate::units::PAGE;

/// A run passes its cap when it holds more than this multiple of it: samples are 20 ms apart.
const PASSED: f64 = 1.03;

/// Returns whether a run that holds `bytes` has passed its cap by more than sampling explains.
pub(crate) fn is_passed(bytes: u64, cap_pages: u64) -> bool {
    bytes as f64 > (cap_pages * PAGE) as f64 * PASSED
}
