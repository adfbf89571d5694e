//! The keyed 128-bit hash that proves a page clean and guards every stored copy.
//!
//! HighwayHash (Alakuijala, Cox, Wassenberg 2016): a keyed pseudo-random function, so that a program
//! cannot craft two pages that collide without knowing the key of the run.

use highway::{HighwayHash, HighwayHasher, Key};

/// The key of a run.
#[derive(Clone)]
pub struct HashKey(Key);

/// A page's fingerprint.
pub type PageHash = [u64; 2];

impl HashKey {
    /// A key from 32 random bytes.
    pub fn new(random: [u64; 4]) -> Self {
        Self(Key(random))
    }

    /// The fingerprint of `page` under this key.
    pub fn hash(&self, page: &[u8]) -> PageHash {
        HighwayHasher::new(self.0).hash128(page)
    }
}

impl std::fmt::Debug for HashKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("HashKey(…)")
    }
}
