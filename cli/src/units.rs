//! Sizes, counts and times, as people read them; and the size of a page.

/// Bytes of a page.
pub(crate) const PAGE: u64 = pagetide_page::PAGE_SIZE as u64;

/// Formats bytes with up to three digits and a binary unit.
pub(crate) fn show_bytes(bytes: u64) -> String {
    let mut value = bytes as f64 / 1024.0;
    for unit in ["KiB", "MiB", "GiB"] {
        if value < 999.5 {
            return scaled(value, unit);
        }
        value /= 1024.0;
    }
    scaled(value, "TiB")
}

/// Formats a count.
pub(crate) fn show_count(count: u64) -> String {
    match count as f64 {
        value if value < 9_999.5 => count.to_string(),
        value if value < 999_500.0 => format!("{:.0} k", value / 1e3),
        value if value < 999_500_000.0 => scaled(value / 1e6, "M"),
        value => scaled(value / 1e9, "G"),
    }
}

/// Formats a latency.
pub(crate) fn show_nanos(nanos: u64) -> String {
    match nanos as f64 {
        value if value < 999_500.0 => scaled(value / 1e3, "µs"),
        value if value < 999_500_000.0 => scaled(value / 1e6, "ms"),
        value => scaled(value / 1e9, "s"),
    }
}

fn scaled(value: f64, unit: &str) -> String {
    if value < 9.95 && value.fract() != 0.0 {
        format!("{value:.1} {unit}")
    } else {
        format!("{value:.0} {unit}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_shown_short() {
        assert_eq!(show_bytes(0), "0 KiB");
        assert_eq!(show_bytes(702 << 20), "702 MiB");
        assert_eq!(show_bytes(3 << 29), "1.5 GiB");
        assert_eq!(show_count(9_999), "9999");
        assert_eq!(show_count(210_400), "210 k");
        assert_eq!(show_count(1_500_000), "1.5 M");
        assert_eq!(show_nanos(11_000), "11 µs");
        assert_eq!(show_nanos(2_100_000), "2.1 ms");
        assert_eq!(show_nanos(1_000_000_000), "1 s");
    }
}
