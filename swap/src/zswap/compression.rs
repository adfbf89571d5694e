//! Compression as users name it: a codec and its level.

pagetide_page::numbered_enum! {
    /// A codec of the compressed pool.
    #[derive(Default)]
    pub enum Compressor: u8 {
        /// LZ77 for blocks of one page ([`crate::zswap::lzpage`]).
        #[default]
        LzPage = 3,
        /// The LZ4 block format.
        Lz4 = 1,
        /// Zstandard.
        Zstd = 2,
        /// No compression: pages are stored as they are.
        None = 0,
    }
}

/// The way in which pages are compressed: a codec and its level.
///
/// ```
/// use pagetide_swap::{Compression, Compressor};
///
/// let compression: Compression = "zstd:3".parse()?;
/// assert_eq!(compression, Compression { compressor: Compressor::Zstd, level: 3 });
/// assert_eq!(compression.to_string(), "zstd:3");
/// assert!("lz4:3".parse::<Compression>().is_err(), "only zstd has levels");
/// # Ok::<(), String>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Compression {
    /// The codec.
    pub compressor: Compressor,
    /// The level of Zstandard, from -7 (fast) to 19 (small); 0 for the other codecs.
    pub level: i8,
}

impl Compression {
    /// The levels of Zstandard that can be chosen. Those below do little else than copy.
    pub const ZSTD_LEVELS: std::ops::RangeInclusive<i8> = -7..=19;
    /// The level of Zstandard if none is given.
    pub const ZSTD_LEVEL: i8 = 1;

    /// Returns the compression as one word.
    pub const fn to_bits(self) -> u64 {
        self.compressor as u64 | (self.level as u8 as u64) << 8
    }

    /// Returns whether this may make smaller what `first` refuses: it is another codec, or a higher level.
    pub const fn is_stronger(self, first: Self) -> bool {
        // Level 0 is the default of Zstandard.
        const fn level(of: Compression) -> i8 {
            if of.level == 0 { 3 } else { of.level }
        }
        // What LZ77 for pages refuses has no repetition for LZ4 either.
        !matches!(
            (self.compressor, first.compressor),
            (Compressor::None, _) | (Compressor::Lz4, Compressor::LzPage)
        ) && (self.compressor as u8 != first.compressor as u8 || level(self) > level(first))
    }

    /// Returns the compression from its word; the default if the word names no codec.
    pub fn from_bits(bits: u64) -> Self {
        let level =
            |bits: u64| ((bits >> 8) as u8 as i8).clamp(*Self::ZSTD_LEVELS.start(), *Self::ZSTD_LEVELS.end());
        Compressor::from_bits(bits as u8)
            .map_or_else(Self::default, |compressor| Self { compressor, level: level(bits) })
    }
}

impl std::fmt::Display for Compression {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.compressor {
            Compressor::None => f.write_str("none"),
            Compressor::LzPage => f.write_str("lzpage"),
            Compressor::Lz4 => f.write_str("lz4"),
            Compressor::Zstd => write!(f, "zstd:{}", self.level),
        }
    }
}

impl std::str::FromStr for Compression {
    type Err = String;

    /// Reads `lzpage`, `lz4`, `zstd`, `zstd:LEVEL` or `none`.
    fn from_str(text: &str) -> Result<Self, String> {
        let (name, level) = text.split_once(':').map_or((text, None), |(name, level)| (name, Some(level)));
        let compressor = match name {
            "lzpage" => Compressor::LzPage,
            "lz4" => Compressor::Lz4,
            "zstd" => Compressor::Zstd,
            "none" => Compressor::None,
            _ => return Err(format!("`{text}`: there are lzpage, lz4, zstd, zstd:LEVEL and none")),
        };
        let level = match (compressor, level) {
            (Compressor::Zstd, None) => Self::ZSTD_LEVEL,
            (Compressor::Zstd, Some(level)) => {
                let (low, high) = Self::ZSTD_LEVELS.into_inner();
                let level = level.parse().ok().filter(|level| Self::ZSTD_LEVELS.contains(level));
                level.ok_or_else(|| format!("`{text}`: levels of zstd are {low} to {high}"))?
            }
            (_, None) => 0,
            (_, Some(_)) => return Err(format!("`{text}`: only zstd has levels")),
        };
        Ok(Self { compressor, level })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_compression_is_what_its_name_says() {
        for name in ["lzpage", "lz4", "none", "zstd:1", "zstd:-7", "zstd:19"] {
            let compression: Compression = name.parse().unwrap();
            assert_eq!(compression.to_string(), name);
            assert_eq!(Compression::from_bits(compression.to_bits()), compression);
        }
        assert_eq!("zstd".parse::<Compression>().unwrap().level, Compression::ZSTD_LEVEL);
        for name in
            ["", "lzo", "lzpage:1", "lz4:1", "none:0", "zstd:", "zstd:20", "zstd:-8", "zstd:x", "zstd:1:1"]
        {
            assert!(name.parse::<Compression>().is_err(), "{name}");
        }
    }

    #[test]
    fn another_codec_or_a_higher_level_is_stronger() {
        let stronger = |again: &str, first: &str| {
            again.parse::<Compression>().unwrap().is_stronger(first.parse().unwrap())
        };
        for (again, first) in [
            ("zstd", "lzpage"),
            ("lzpage", "lz4"),
            ("zstd", "lz4"),
            ("zstd:1", "zstd:-3"),
            ("zstd:0", "zstd:2"),
            ("lz4", "zstd"),
        ] {
            assert!(stronger(again, first), "{again} {first}");
        }
        for (again, first) in [
            ("none", "lz4"),
            ("lz4", "lz4"),
            ("lz4", "lzpage"),
            ("zstd:1", "zstd:3"),
            ("zstd:3", "zstd:0"),
            ("zstd:-1", "zstd"),
        ] {
            assert!(!stronger(again, first), "{again} {first}");
        }
    }
}
