//! Sizes and times, as people write them.

use std::time::Duration;

/// An amount of memory or of disk, as given on the command line.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Size {
    /// So many bytes.
    Bytes(u64),
    /// A share of the memory that this process may have.
    Percent(f64),
}

impl Size {
    /// The size in bytes, where `whole` is what a percentage refers to.
    pub fn bytes(self, whole: u64) -> u64 {
        match self {
            Self::Bytes(bytes) => bytes,
            Self::Percent(percent) => (whole as f64 * percent / 100.0) as u64,
        }
    }
}

/// Splits `text` behind its number.
fn number(text: &str) -> Option<(f64, &str)> {
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    Some((number.parse().ok()?, unit.trim_start()))
}

/// Reads a size: `512M`, `1.5GiB`, `60%`. Units are binary.
///
/// # Errors
/// A text for the user that says which forms there are, or that the size is more than any machine has.
pub fn parse_size(text: &str) -> Result<Size, String> {
    let wrong = || "expected a number with K, M, G or T, or a percentage: 512M, 1.5G, 60%".to_owned();
    let (value, unit) = number(text).ok_or_else(wrong)?;
    if unit == "%" {
        return Ok(Size::Percent(value));
    }
    let unit = unit.to_ascii_lowercase();
    let (unit, binary) = unit.strip_suffix("ib").map_or((unit.as_str(), false), |unit| (unit, true));
    let unit = if binary { unit } else { unit.strip_suffix('b').unwrap_or(unit) };
    let shift = match unit {
        "" if !binary => 0,
        "k" => 10,
        "m" => 20,
        "g" => 30,
        "t" => 40,
        _ => return Err(wrong()),
    };
    let bytes = value * (1u64 << shift) as f64;
    if bytes >= i64::MAX as f64 {
        return Err("that is more than any machine has".to_owned());
    }
    Ok(Size::Bytes(bytes as u64))
}

/// Reads a time: `500ms`, `60s`, `2m`, `1h`. Without a unit it is seconds.
///
/// # Errors
/// A text for the user that says which forms there are, or that the time is zero or too long.
pub fn parse_time(text: &str) -> Result<Duration, String> {
    let wrong = || "expected a number with ms, s, m or h: 500ms, 60s, 2m".to_owned();
    let (value, unit) = number(text).ok_or_else(wrong)?;
    let seconds = match unit {
        "ms" => value / 1000.0,
        "" | "s" => value,
        "m" => value * 60.0,
        "h" => value * 3600.0,
        _ => return Err(wrong()),
    };
    let time = Duration::try_from_secs_f64(seconds).map_err(|error| error.to_string())?;
    if time.is_zero() { Err("it must be more than nothing".to_owned()) } else { Ok(time) }
}

/// The shortest time between two reports: the launcher samples no more often, so that others would say the same.
const INTERVAL_MIN: Duration = Duration::from_millis(20);

/// Reads the time between two reports.
///
/// # Errors
/// A text for the user that says which forms there are, or that the time is too short or too long.
pub fn parse_interval(text: &str) -> Result<Duration, String> {
    let time = parse_time(text)?;
    if time < INTERVAL_MIN { Err(format!("it must be {INTERVAL_MIN:?} at least")) } else { Ok(time) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_in_binary_units() {
        for (text, bytes) in [
            ("0", 0),
            ("4096", 4096),
            ("4096B", 4096),
            ("512M", 512 << 20),
            ("512 MiB", 512 << 20),
            ("512mb", 512 << 20),
            ("1.5G", 3 << 29),
            ("0.5k", 512),
            ("2T", 2 << 40),
        ] {
            assert_eq!(parse_size(text), Ok(Size::Bytes(bytes)), "{text}");
        }
        assert_eq!(parse_size("60%"), Ok(Size::Percent(60.0)));
        assert_eq!(Size::Percent(12.5).bytes(800), 100);
    }

    #[test]
    fn what_is_no_size_is_refused() {
        for text in ["", "M", "-1M", "1X", "1.2.3", "iB", "5iB", "1e3", "99999999T", "nan", "1M2"] {
            assert!(parse_size(text).is_err(), "{text}");
        }
    }

    #[test]
    fn times_are_read() {
        for (text, millis) in
            [("500ms", 500), ("60s", 60_000), ("2m", 120_000), ("1h", 3_600_000), ("1.5", 1500)]
        {
            assert_eq!(parse_time(text), Ok(Duration::from_millis(millis)), "{text}");
        }
        for text in ["", "s", "0s", "5d", "-1s", "1 2s"] {
            assert!(parse_time(text).is_err(), "{text}");
        }
    }

    #[test]
    fn an_interval_is_a_time_that_is_not_too_short() {
        for text in ["20ms", "0.02", "1h", "18000000000000000000"] {
            assert_eq!(parse_interval(text), parse_time(text), "{text}");
        }
        for text in ["0", "19ms", "0.019", "soon"] {
            assert!(parse_interval(text).is_err(), "{text}");
        }
    }
}
