//! The codecs of the pool.

use crate::error::LoadError;
use lz4::block::{compress_bound, compress_to_buffer, decompress_to_buffer};

/// LZ4 block format, by its authors' library.
#[derive(Debug)]
pub struct Codec;

impl Codec {
    /// The most that `length` bytes can become.
    pub fn output_max(length: usize) -> usize {
        compress_bound(length).expect("a page is short")
    }

    /// Compresses `page` into `out`, which holds [`Codec::output_max`], and returns the length.
    pub fn compress(page: &[u8], out: &mut [u8]) -> usize {
        // The output is as large as the worst case, so the encoder cannot fail; should it, the page
        // counts as incompressible.
        compress_to_buffer(page, None, false, out).unwrap_or(usize::MAX)
    }

    /// Decompresses `bytes` into all of `out`.
    pub fn decompress(bytes: &[u8], out: &mut [u8]) -> Result<(), LoadError> {
        let length = i32::try_from(out.len()).map_err(|_| LoadError::Decompress)?;
        match decompress_to_buffer(bytes, Some(length), out) {
            Ok(length) if length == out.len() => Ok(()),
            _ => Err(LoadError::Decompress),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn whatever_goes_in_comes_out(page in proptest::collection::vec(0u8..4, 4096)) {
            let mut out = vec![0; Codec::output_max(4096)];
            let length = Codec::compress(&page, &mut out);
            let mut back = vec![0; 4096];
            Codec::decompress(&out[..length], &mut back).unwrap();
            prop_assert_eq!(page, back);
        }

        #[test]
        fn damaged_input_is_an_error_or_some_bytes_but_never_a_panic(
            bytes in proptest::collection::vec(any::<u8>(), 0..600),
        ) {
            let mut back = vec![0; 4096];
            let _ = Codec::decompress(&bytes, &mut back);
        }
    }
}
