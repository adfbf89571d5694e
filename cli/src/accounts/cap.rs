//! When a cap counts as passed.

const PAGE: u64 = pagetide_sys::PAGE as u64;
/// A cap is passed beyond so much of it.
const PASSED: f64 = 1.03;

/// Whether so many bytes are more than a cap, by more than sampling explains.
pub(crate) fn is_passed(bytes: u64, cap_pages: u64) -> bool {
    bytes as f64 > (cap_pages * PAGE) as f64 * PASSED
}
