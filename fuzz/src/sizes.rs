//! Sizes and times of the command line: what is taken is in bounds, and can be shown.

#[path = "../../cli/src/options/size.rs"]
#[allow(dead_code, unreachable_pub, reason = "the command line uses the rest")]
mod size;
#[path = "../../cli/src/units.rs"]
#[allow(dead_code, unreachable_pub, reason = "the command line uses the rest")]
mod units;

use size::{Size, parse_size, parse_time};
use units::{show_bytes, show_count, show_nanos};

/// Reads a size and a time.
pub fn size(input: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(input) else { return false };
    let size = parse_size(text);
    if let Ok(size) = size {
        if let Size::Bytes(bytes) = size {
            assert!(bytes < i64::MAX as u64, "{bytes}");
        }
        if let Size::Percent(percent) = size {
            assert!(percent >= 0.0, "{percent} %");
        }
        assert!(size.bytes(0) == 0 || size == Size::Bytes(size.bytes(0)));
        assert!(!show_bytes(size.bytes(1 << 40)).is_empty());
    }
    let time = parse_time(text);
    if let Ok(time) = time {
        assert!(!time.is_zero());
        assert!(!show_nanos(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)).is_empty());
        assert!(!show_count(time.as_secs()).is_empty());
    }
    size.is_ok() || time.is_ok()
}
