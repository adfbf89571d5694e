//! Options that are small languages of their own: what is taken is written as what is taken for the same.

use pagetide::injection::Plan;
use pagetide::mask::Mask;
use pagetide_swap::Compression;

/// Reads a compression, a list of masks, and a fault.
pub fn option(input: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(input) else { return false };
    let compression = text.parse::<Compression>();
    if let Ok(compression) = &compression {
        assert_eq!(compression.to_string().parse(), Ok(*compression));
        assert_eq!(Compression::from_bits(compression.to_bits()), *compression);
    }
    let mask = Mask::parse(text);
    if let Ok(mask) = mask {
        assert_eq!(Mask::from_bits(mask.bits()), mask);
    }
    let injection = Plan::parse(text);
    if let Some(injection) = &injection {
        assert_eq!(Plan::from_bits(injection.bits()).bits(), injection.bits());
    }
    compression.is_ok() || mask.is_ok() || injection.is_some()
}
