//! The keyed 96-bit hash of a page's contents. It tells whether a page is still what its copy in the pool or on the device
//! is, and whether the bytes that come back are those that went there.
//!
//! AEGIS-128X2 as a MAC (draft-irtf-cfrg-aegis-aead, Denis and Lucas): a program cannot craft two pages that
//! collide without knowing the key of the run. It is built from the AES round, which processors have as an
//! instruction; where it is missing the library's own code does the same, slowly.

use aegis::aegis128x2::Aegis128X2Mac;

/// The key of a process's hashes.
#[derive(Clone)]
pub struct HashKey(Aegis128X2Mac<16>);

/// A page's fingerprint: three quarters of the tag. One is held for every page in the pool or on the device, so each word
/// of it counts.
pub type PageHash = [u32; 3];

/// Bytes of a fingerprint.
pub const HASH_BYTES: usize = size_of::<PageHash>();

/// A fingerprint as entries of the pool keep it, which lie at any byte.
pub type HashBytes = [u8; HASH_BYTES];

/// Returns the bytes of a fingerprint.
pub fn to_bytes(hash: PageHash) -> HashBytes {
    let mut bytes = [0; HASH_BYTES];
    for (to, word) in bytes.as_chunks_mut().0.iter_mut().zip(hash) {
        *to = word.to_ne_bytes();
    }
    bytes
}

impl HashKey {
    /// Makes a key from 32 random bytes.
    pub fn new(random: [u64; 4]) -> Self {
        let half = |at: usize| bytes(random[at], random[at + 1]);
        Self(Aegis128X2Mac::new_with_nonce(&half(0), &half(2)))
    }

    /// Returns the fingerprint of `page` under this key.
    pub fn hash(&self, page: &[u8]) -> PageHash {
        let mut mac = self.0.clone();
        mac.update(page);
        let tag = u128::from_ne_bytes(mac.finalize());
        [tag as u32, (tag >> 32) as u32, (tag >> 64) as u32]
    }
}

pub(crate) fn bytes(low: u64, high: u64) -> [u8; 16] {
    (u128::from(low) | u128::from(high) << 64).to_ne_bytes()
}

impl std::fmt::Debug for HashKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("HashKey(…)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_bit_of_page_and_key_counts() {
        let page = vec![0x5a; 4096];
        let key = [1, 2, 3, 4];
        let hash = HashKey::new(key).hash(&page);
        assert_eq!(HashKey::new(key).hash(&page), hash);
        for bit in (0..4096 * 8).step_by(7) {
            let mut other = page.clone();
            other[bit / 8] ^= 1 << (bit % 8);
            assert_ne!(HashKey::new(key).hash(&other), hash, "bit {bit}");
        }
        for bit in 0..256 {
            let mut other = key;
            other[bit / 64] ^= 1 << (bit % 64);
            assert_ne!(HashKey::new(other).hash(&page), hash, "key bit {bit}");
        }
    }

    #[test]
    fn pages_of_the_same_words_in_another_order_differ() {
        let key = HashKey::new([5, 6, 7, 8]);
        let page: Vec<u8> = (0..512u64).flat_map(u64::to_ne_bytes).collect();
        let hash = key.hash(&page);
        for distance in [8, 16, 32, 64, 128, 256, 2048] {
            let mut other = page.clone();
            other.rotate_left(distance);
            assert_ne!(key.hash(&other), hash, "rotated by {distance}");
        }
    }
}
