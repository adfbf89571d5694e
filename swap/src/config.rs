//! Every limit and switch of the swap subsystem, in one place.

use crate::policy::Reclaim;
use crate::streams::Readahead;
use crate::zswap::shrinker::Shrinker;
use pagetide_page::PAGE_SIZE;

/// Bytes of a pool span, the unit in which the pool takes and returns memory.
pub const SPAN_BYTES: usize = 64 * 1024;
/// Pages of a pool span.
pub const SPAN_PAGES: usize = SPAN_BYTES / PAGE_SIZE;
/// Bytes of a span of folios: it takes and returns memory by the page.
pub const FOLIO_SPAN_BYTES: usize = 256 * 1024;
/// Device blocks that one write carries at most: 128 KiB.
pub const WRITE_BATCH_PAGES: usize = 32;

/// A codec of the compressed pool.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(u8)]
pub enum Compressor {
    /// LZ4 block format.
    #[default]
    Lz4 = 1,
    /// Zstandard.
    Zstd = 2,
    /// Stores pages as they are.
    None = 0,
}

impl Compressor {
    pub(crate) const fn from_bits(bits: u8) -> Option<Self> {
        match bits {
            0 => Some(Self::None),
            1 => Some(Self::Lz4),
            2 => Some(Self::Zstd),
            _ => None,
        }
    }
}

/// How pages are compressed that are stored from now on.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Compression {
    /// The codec.
    pub compressor: Compressor,
    /// How hard Zstandard tries; negative levels are faster. 0 for the others.
    pub level: i8,
}

impl Compression {
    /// Levels that Zstandard has, those below being little else than copies.
    pub const ZSTD_LEVELS: std::ops::RangeInclusive<i8> = -7..=19;
    /// The level if none is given.
    pub const ZSTD_LEVEL: i8 = 1;

    /// As one word.
    pub const fn to_bits(self) -> u64 {
        self.compressor as u64 | (self.level as u8 as u64) << 8
    }

    /// From [`Compression::to_bits`]; the default for others.
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
            Compressor::Lz4 => f.write_str("lz4"),
            Compressor::Zstd => write!(f, "zstd:{}", self.level),
        }
    }
}

impl std::str::FromStr for Compression {
    type Err = String;

    /// `lz4`, `zstd`, `zstd:LEVEL` or `none`.
    fn from_str(text: &str) -> Result<Self, String> {
        let (name, level) = text.split_once(':').map_or((text, None), |(name, level)| (name, Some(level)));
        let compressor = match name {
            "lz4" => Compressor::Lz4,
            "zstd" => Compressor::Zstd,
            "none" => Compressor::None,
            _ => return Err(format!("`{text}`: there are lz4, zstd, zstd:LEVEL and none")),
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

/// What may change while a run goes on: see [`crate::zswap::Zswap::switch`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Switches {
    /// Whether pages are stored in the pool at all. What is there stays readable.
    pub enabled: bool,
    /// How pages are compressed.
    pub compression: Compression,
    /// A page whose compressed form is larger than this, in percent, is incompressible.
    pub max_compression_ratio: u8,
    /// A pool that has reached its limit takes pages again when it is below this part of it, in percent.
    pub accept_threshold_percent: u8,
    /// What of the pool is written back under pressure.
    pub shrinker: Shrinker,
    /// Whether the pool may take its most whatever misses cost, and the shrinker is asked whenever pages leave the
    /// program.
    pub fixed_share: bool,
}

impl Default for Switches {
    fn default() -> Self {
        Self {
            enabled: true,
            compression: Compression::default(),
            max_compression_ratio: 75,
            accept_threshold_percent: 90,
            shrinker: Shrinker::default(),
            fixed_share: false,
        }
    }
}

impl Switches {
    /// As one word.
    pub const fn to_bits(self) -> u64 {
        self.compression.to_bits()
            | (self.enabled as u64) << 16
            | (self.max_compression_ratio as u64) << 24
            | (self.accept_threshold_percent as u64) << 32
            | (self.shrinker as u64) << 40
            | (self.fixed_share as u64) << 48
    }

    /// From [`Switches::to_bits`].
    pub fn from_bits(bits: u64) -> Self {
        Self {
            enabled: bits >> 16 & 1 == 1,
            compression: Compression::from_bits(bits & 0xffff),
            max_compression_ratio: ((bits >> 24) as u8).clamp(1, 100),
            accept_threshold_percent: ((bits >> 32) as u8).clamp(1, 100),
            shrinker: Shrinker::from_bits(bits >> 40 & 0xff),
            fixed_share: bits >> 48 & 1 == 1,
        }
    }

    /// The largest compressed form that is stored, in bytes.
    pub const fn compressed_max(self) -> usize {
        match self.compression.compressor {
            Compressor::None => PAGE_SIZE,
            _ => PAGE_SIZE * self.max_compression_ratio as usize / 100,
        }
    }
}

/// The allocator of the pool's memory, for pages that leave alone.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(u8)]
pub enum Allocator {
    /// [`crate::zswap::pool::zsmalloc`], and [`crate::zswap::folios`] for pages that leave together.
    #[default]
    Zsmalloc = 0,
    /// [`crate::zswap::pool::zbud`].
    Zbud = 1,
}

impl Allocator {
    /// The allocator of this number; the default for others.
    pub const fn from_bits(bits: u64) -> Self {
        if bits == Self::Zbud as u64 { Self::Zbud } else { Self::Zsmalloc }
    }
}

/// Settings of one process's swap subsystem.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// The pool's allocator.
    pub zpool: Allocator,
    /// How the pool begins.
    pub switches: Switches,
    /// What decides which clusters leave.
    pub reclaim: Reclaim,
    /// Which neighbours of a page come in with it.
    pub readahead: Readahead,
    /// log2 of the pages that are read from the device at once, at most: the kernel's `page-cluster`.
    pub page_cluster: u32,
    /// Pages that the process may have, in memory and compressed.
    pub cap_pages: u64,
}

/// The largest [`Config::page_cluster`]: 2 MiB.
pub const PAGE_CLUSTER_MAX: u32 = 9;

impl Config {
    /// The defaults, for a process that may have `cap_pages`.
    pub fn for_cap(cap_pages: u64) -> Self {
        Self {
            zpool: Allocator::default(),
            switches: Switches::default(),
            reclaim: Reclaim::default(),
            readahead: Readahead::default(),
            page_cluster: PAGE_CLUSTER_MAX,
            cap_pages,
        }
    }
}

const _: () = assert!(SPAN_BYTES.is_multiple_of(PAGE_SIZE) && FOLIO_SPAN_BYTES.is_multiple_of(PAGE_SIZE));

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn switches_are_one_word() {
        let compression = "zstd:-3".parse().unwrap();
        let switches = Switches {
            enabled: false,
            compression,
            max_compression_ratio: 99,
            accept_threshold_percent: 1,
            shrinker: Shrinker::None,
            fixed_share: true,
        };
        for switches in [switches, Switches::default()] {
            assert_eq!(Switches::from_bits(switches.to_bits()), switches);
        }
    }

    #[test]
    fn a_compression_is_what_its_name_says() {
        for name in ["lz4", "none", "zstd:1", "zstd:-7", "zstd:19"] {
            let compression: Compression = name.parse().unwrap();
            assert_eq!(compression.to_string(), name);
            assert_eq!(Compression::from_bits(compression.to_bits()), compression);
        }
        assert_eq!("zstd".parse::<Compression>().unwrap().level, Compression::ZSTD_LEVEL);
        for name in ["", "lzo", "lz4:1", "none:0", "zstd:", "zstd:20", "zstd:-8", "zstd:x", "zstd:1:1"] {
            assert!(name.parse::<Compression>().is_err(), "{name}");
        }
    }
}
