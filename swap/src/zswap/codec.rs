//! The codecs of the pool, behind one trait. The contexts of one thread are kept in [`Codecs`].

use super::compression::{Compression, Compressor};
use super::lzpage;
use crate::error::{LoadError, StoreError};
use lz4::block::{compress_to_buffer, decompress_to_buffer};
use pagetide_page::PAGE_SIZE;
use zstd_safe::zstd_sys::ZSTD_ErrorCode::ZSTD_error_dstSize_tooSmall;
use zstd_safe::{CCtx, CParameter, DCtx, DParameter, FrameFormat, ResetDirective};

/// A codec: it compresses pages and decompresses them.
pub trait Codec: std::fmt::Debug {
    /// Compresses `page` into `out`, and returns the length in bytes.
    ///
    /// # Errors
    /// [`StoreError::Incompressible`] if it needs more room than `out` has; a few bytes more than it needs may be
    /// necessary. [`StoreError::Compress`] if the codec failed; [`StoreError::NoMemory`] if there is none for the
    /// codec's context.
    fn compress(&mut self, page: &[u8], out: &mut [u8]) -> Result<usize, StoreError>;

    /// Decompresses `bytes` into all of `out`.
    ///
    /// # Errors
    /// [`LoadError::Decompress`] if the codec finds that they are no compressed page of that length. It may fail to
    /// find out: then `out` has some bytes.
    fn decompress(&mut self, bytes: &[u8], out: &mut [u8]) -> Result<(), LoadError>;
}

/// The codec that is made for pages.
#[derive(Debug, Default)]
pub struct LzPage;

impl Codec for LzPage {
    fn compress(&mut self, page: &[u8], out: &mut [u8]) -> Result<usize, StoreError> {
        let page = page.try_into().map_err(|_| StoreError::Compress)?;
        lzpage::compress(page, out).ok_or(StoreError::Incompressible)
    }

    fn decompress(&mut self, bytes: &[u8], out: &mut [u8]) -> Result<(), LoadError> {
        let page = out.try_into().map_err(|_| LoadError::Decompress)?;
        lzpage::decompress(bytes, page).ok_or(LoadError::Decompress)
    }
}

/// The codec of the LZ4 block format, by its authors' library.
#[derive(Debug, Default)]
pub struct Lz4;

impl Codec for Lz4 {
    fn compress(&mut self, page: &[u8], out: &mut [u8]) -> Result<usize, StoreError> {
        // It fails where the room does not suffice, and for nothing else. It takes ever longer steps where it finds no
        // match, so that pages of noise take a quarter of the time of others.
        compress_to_buffer(page, None, false, out).map_err(|_| StoreError::Incompressible)
    }

    fn decompress(&mut self, bytes: &[u8], out: &mut [u8]) -> Result<(), LoadError> {
        let length = i32::try_from(out.len()).map_err(|_| LoadError::Decompress)?;
        match decompress_to_buffer(bytes, Some(length), out) {
            Ok(length) if length == out.len() => Ok(()),
            _ => Err(LoadError::Decompress),
        }
    }
}

/// The codec of Zstandard, by its authors' library. Frames have no magic number, length and checksum.
#[derive(Default)]
pub struct Zstd {
    level: i32,
    /// Contexts, which are made when they are needed, and used again.
    encoder: Option<CCtx<'static>>,
    decoder: Option<DCtx<'static>>,
}

impl std::fmt::Debug for Zstd {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Zstd({})", self.level)
    }
}

impl Zstd {
    fn encoder(&mut self) -> Result<&mut CCtx<'static>, StoreError> {
        if self.encoder.is_none() {
            let mut context = CCtx::try_create().ok_or(StoreError::NoMemory)?;
            for parameter in [
                CParameter::Format(FrameFormat::Magicless),
                CParameter::ContentSizeFlag(false),
                CParameter::ChecksumFlag(false),
                CParameter::DictIdFlag(false),
                CParameter::SrcSizeHint(PAGE_SIZE as u32),
                CParameter::CompressionLevel(self.level),
            ] {
                context.set_parameter(parameter).map_err(|_| StoreError::Compress)?;
            }
            self.encoder = Some(context);
        }
        Ok(self.encoder.as_mut().expect("made above"))
    }

    /// Sets the level. The context stays: compressor and recompressor may take turns at it.
    fn set_level(&mut self, level: i32) {
        if std::mem::replace(&mut self.level, level) != level
            && let Some(context) = &mut self.encoder
            && context.set_parameter(CParameter::CompressionLevel(level)).is_err()
        {
            self.encoder = None;
        }
    }
}

impl Codec for Zstd {
    fn compress(&mut self, page: &[u8], out: &mut [u8]) -> Result<usize, StoreError> {
        if is_noise(page, out) {
            return Err(StoreError::Incompressible);
        }
        let context = self.encoder()?;
        context.compress2(out, page).map_err(|code| {
            _ = context.reset(ResetDirective::SessionOnly);
            if zstd_safe::is_error_kind(code, ZSTD_error_dstSize_tooSmall) {
                StoreError::Incompressible
            } else {
                StoreError::Compress
            }
        })
    }

    fn decompress(&mut self, bytes: &[u8], out: &mut [u8]) -> Result<(), LoadError> {
        let context = self.decoder.get_or_insert_with(|| {
            let mut context = DCtx::create();
            let set = context.set_parameter(DParameter::Format(FrameFormat::Magicless));
            set.expect("the format is known to it");
            context
        });
        match context.decompress(out, bytes) {
            Ok(length) if length == out.len() => Ok(()),
            _ => Err(LoadError::Decompress),
        }
    }
}

/// The codec that leaves pages as they are.
#[derive(Debug, Default)]
pub struct Raw;

impl Codec for Raw {
    fn compress(&mut self, page: &[u8], out: &mut [u8]) -> Result<usize, StoreError> {
        out.get_mut(..page.len()).ok_or(StoreError::Incompressible)?.copy_from_slice(page);
        Ok(page.len())
    }

    fn decompress(&mut self, bytes: &[u8], out: &mut [u8]) -> Result<(), LoadError> {
        if bytes.len() != out.len() {
            return Err(LoadError::Decompress);
        }
        out.copy_from_slice(bytes);
        Ok(())
    }
}

/// The number of bytes that are looked at to tell noise.
const SAMPLES: usize = 256;
/// The number of different values among the samples from which on a page may be noise: random bytes have 162, give or
/// take 5; text has less than 100.
const NOISE_MIN: u32 = 140;

/// Returns whether a page is noise to Zstandard, too: its bytes take all values, and `lzpage`, which gives up in little
/// time, cannot make it fit.
fn is_noise(page: &[u8], room: &mut [u8]) -> bool {
    takes_all_values(page) && LzPage.compress(page, room).is_err()
}

/// Returns whether the bytes of a page take as many values as those of noise.
fn takes_all_values(page: &[u8]) -> bool {
    let mut seen = [0u64; 4];
    // One byte of each sixteen, at a place that varies: many structures have a size that is a power of two.
    for (nth, bytes) in page.as_chunks::<{ PAGE_SIZE / SAMPLES }>().0.iter().enumerate() {
        let byte = bytes[nth * 7 % bytes.len()];
        seen[usize::from(byte >> 6)] |= 1 << (byte & 63);
    }
    seen.iter().map(|word| word.count_ones()).sum::<u32>() >= NOISE_MIN
}

/// The codecs of one thread, one of each.
#[derive(Debug, Default)]
pub struct Codecs {
    lzpage: LzPage,
    lz4: Lz4,
    zstd: Zstd,
    raw: Raw,
    /// Pages that were compressed by the second of two ways.
    recompressed: u64,
}

impl Codecs {
    /// Returns the codec that compresses in this way.
    pub fn encoder(&mut self, compression: Compression) -> &mut dyn Codec {
        self.zstd.set_level(if compression.compressor == Compressor::Zstd {
            compression.level.into()
        } else {
            self.zstd.level
        });
        self.decoder(compression.compressor)
    }

    /// Compresses a page that the codec of `first` has refused in the way of `again`.
    ///
    /// # Errors
    /// As [`Codec::compress`] returns.
    pub fn recompress(
        &mut self,
        first: Compression,
        again: Compression,
        page: &[u8],
        out: &mut [u8],
    ) -> Result<usize, StoreError> {
        if matches!(first.compressor, Compressor::LzPage | Compressor::Lz4) && takes_all_values(page) {
            return Err(StoreError::Incompressible);
        }
        let length = self.encoder(again).compress(page, out)?;
        self.recompressed += 1;
        Ok(length)
    }

    /// Returns whether `bytes` are decompressed to `page`.
    pub fn gives_back(&mut self, compressor: Compressor, bytes: &[u8], page: &[u8]) -> bool {
        let mut back = [0; PAGE_SIZE];
        self.decoder(compressor).decompress(bytes, &mut back).is_ok() && back == page
    }

    /// Returns the number of pages that [`Codecs::recompress`] has compressed since the last call.
    pub fn take_recompressed(&mut self) -> u64 {
        std::mem::take(&mut self.recompressed)
    }

    /// Returns the codec that decompresses the output of this compressor, whatever its level was.
    pub fn decoder(&mut self, compressor: Compressor) -> &mut dyn Codec {
        match compressor {
            Compressor::None => &mut self.raw,
            Compressor::LzPage => &mut self.lzpage,
            Compressor::Lz4 => &mut self.lz4,
            Compressor::Zstd => &mut self.zstd,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn any_compression() -> impl Strategy<Value = Compression> {
        prop_oneof!["lzpage", "lz4", "zstd:-5", "zstd:-1", "zstd:1", "zstd:3", "zstd:19", "none"]
            .prop_map(|name| name.parse().unwrap())
    }

    fn page_of(values: u16, seed: u64) -> Vec<u8> {
        let mut state = seed | 1;
        (0..PAGE_SIZE)
            .map(|_| {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                ((state >> 32) % u64::from(values)) as u8
            })
            .collect()
    }

    proptest! {
        #[test]
        fn whatever_goes_in_comes_out(
            compressions in proptest::collection::vec(any_compression(), 1..6),
            values in 1u16..257,
            seed in any::<u64>(),
        ) {
            // One after the other with the same contexts.
            let mut codecs = Codecs::default();
            let page = page_of(values, seed);
            for compression in compressions {
                let mut out = vec![0; 2 * PAGE_SIZE];
                let Ok(length) = codecs.encoder(compression).compress(&page, &mut out) else {
                    prop_assert!(compression.compressor == Compressor::Zstd && values > 128);
                    continue;
                };
                let mut back = vec![0; PAGE_SIZE];
                codecs.decoder(compression.compressor).decompress(&out[..length], &mut back).unwrap();
                prop_assert_eq!(&page, &back);
            }
        }

        #[test]
        fn damaged_input_is_an_error_or_some_bytes_but_never_a_panic(
            bytes in proptest::collection::vec(any::<u8>(), 0..600),
            compression in any_compression(),
        ) {
            let mut back = vec![0; PAGE_SIZE];
            let _ = Codecs::default().decoder(compression.compressor).decompress(&bytes, &mut back);
        }

        #[test]
        fn a_damaged_page_is_an_error_or_some_bytes_but_never_a_panic(
            compression in any_compression(),
            values in 1u16..100,
            flips in proptest::collection::vec((any::<u16>(), 0..8u8), 1..8),
            cut in any::<u16>(),
        ) {
            let mut codecs = Codecs::default();
            let mut out = vec![0; 2 * PAGE_SIZE];
            let length = codecs.encoder(compression).compress(&page_of(values, 7), &mut out).unwrap();
            for (at, bit) in flips {
                out[usize::from(at) % length] ^= 1 << bit;
            }
            let mut back = vec![0; PAGE_SIZE];
            let bytes = &out[..length - usize::from(cut) % length / 8];
            let _ = codecs.decoder(compression.compressor).decompress(bytes, &mut back);
        }
    }

    #[test]
    fn levels_that_take_turns_compress_as_each_would_alone() {
        let levels = ["zstd:-5", "zstd:19", "zstd:1", "zstd:-5", "zstd:1"].map(|name| name.parse().unwrap());
        let mut page = page_of(40, 7);
        page.copy_within(..PAGE_SIZE / 2, PAGE_SIZE / 2);
        let compressed = |codecs: &mut Codecs, level| {
            let mut out = [0; PAGE_SIZE];
            let length = codecs.encoder(level).compress(&page, &mut out).unwrap();
            out[..length].to_vec()
        };
        let mut codecs = Codecs::default();
        for level in levels {
            let alone = compressed(&mut Codecs::default(), level);
            assert_eq!(compressed(&mut codecs, level), alone, "{level}");
        }
    }

    #[test]
    fn noise_is_told_from_what_is_not() {
        let mut room = vec![0; 3 * PAGE_SIZE / 4];
        for seed in 1..200 {
            assert!(is_noise(&page_of(256, seed * 0x9e37_79b9), &mut room), "seed {seed}");
            assert!(!is_noise(&page_of(100, seed), &mut room));
        }
        let mut twice = page_of(256, 5);
        let half = twice[..PAGE_SIZE / 2].to_vec();
        twice[PAGE_SIZE / 2..].copy_from_slice(&half);
        assert!(!is_noise(&twice, &mut room), "said twice");
    }
}
