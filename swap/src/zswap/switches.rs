//! Switches of the pool: settings that may change while a run goes on.

use super::compression::{Compression, Compressor};
use super::shrinker::Shrinker;
use pagetide_page::PAGE_SIZE;

/// The switches of the pool, which [`crate::zswap::Zswap::switch`] changes while a run goes on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Switches {
    /// Whether pages are stored in the pool at all. Stored ones stay readable in any case.
    pub enabled: bool,
    /// The way in which pages are compressed from now on.
    pub compression: Compression,
    /// The way in which pages are compressed that this refuses, while the pool is small
    /// ([`crate::zswap::Zswap::set_recompress_max`]); [`Compressor::None`] for not at all.
    pub recompression: Compression,
    /// The largest compressed form that is stored, in percent of a page: a page that needs more is incompressible.
    pub max_compression_ratio: u8,
    /// The part of its limit, in percent, below which a pool must fall that has reached the limit, before it takes
    /// pages again.
    pub accept_threshold_percent: u8,
    /// The shrinker, which tells what is written back under pressure.
    pub shrinker: Shrinker,
    /// Whether the pool may grow to its limit whatever misses cost, and the shrinker is asked whenever pages leave the
    /// program.
    pub fixed_share: bool,
}

impl Default for Switches {
    fn default() -> Self {
        Self {
            enabled: true,
            compression: Compression::default(),
            recompression: Compression { compressor: Compressor::Zstd, level: 1 },
            max_compression_ratio: 75,
            accept_threshold_percent: 90,
            shrinker: Shrinker::default(),
            fixed_share: false,
        }
    }
}

impl Switches {
    /// Returns the switches as one word.
    pub const fn to_bits(self) -> u64 {
        self.compression.to_bits()
            | (self.enabled as u64) << 16
            | (self.fixed_share as u64) << 17
            | (self.max_compression_ratio as u64) << 24
            | (self.accept_threshold_percent as u64) << 32
            | (self.shrinker as u64) << 40
            | self.recompression.to_bits() << 48
    }

    /// Returns the switches from their word. Values out of range become the nearest in range, or the default.
    pub fn from_bits(bits: u64) -> Self {
        Self {
            enabled: bits >> 16 & 1 == 1,
            compression: Compression::from_bits(bits & 0xffff),
            recompression: Compression::from_bits(bits >> 48),
            max_compression_ratio: ((bits >> 24) as u8).clamp(1, 100),
            accept_threshold_percent: ((bits >> 32) as u8).clamp(1, 100),
            shrinker: Shrinker::from_bits((bits >> 40) as u8).unwrap_or_default(),
            fixed_share: bits >> 17 & 1 == 1,
        }
    }

    /// Returns the size of the largest compressed form that is stored, in bytes.
    pub const fn compressed_max(self) -> usize {
        match self.compression.compressor {
            Compressor::None => PAGE_SIZE,
            _ => PAGE_SIZE * self.max_compression_ratio as usize / 100,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn switches_are_one_word() {
        let compression = "zstd:-3".parse().unwrap();
        let switches = Switches {
            enabled: false,
            compression,
            recompression: "zstd:19".parse().unwrap(),
            max_compression_ratio: 99,
            accept_threshold_percent: 1,
            shrinker: Shrinker::None,
            fixed_share: true,
        };
        for switches in [switches, Switches::default()] {
            assert_eq!(Switches::from_bits(switches.to_bits()), switches);
        }
    }
}
