//! The cipher under which pages lie on the device: memory holds passwords and keys.
//!
//! The cipher is the key stream of AEGIS-128X2 (draft-irtf-cfrg-aegis-aead, Denis and Lucas) under a random key of
//! the process. The nonce is the page's keyed hash and the number of its block: a *synthetic* initialisation
//! vector (Rogaway and Shrimpton 2006). So no counter has to survive forks, no key stream serves two pages, and what
//! an observer of the device can tell is that a block was written with the same page twice. The hash, which stays in
//! memory, proves what is read: another block's bytes, or an older page's, are an error.

use crate::hash::{PageHash, bytes};
use aegis::aegis128x2::Aegis128X2;

/// The key under which a process's pages lie on the device.
#[derive(Clone)]
pub struct Cipher([u8; 16]);

impl Cipher {
    /// Makes a key from 16 random bytes.
    pub fn new(random: [u64; 2]) -> Self {
        Self(bytes(random[0], random[1]))
    }

    /// Encrypts a page on its way to `block`, or decrypts it on its way back. `hash` is that of the plain page.
    pub fn apply(&self, block: u64, hash: PageHash, page: &mut [u8]) {
        let [a, b, c] = hash.map(u64::from);
        // Blocks beyond 16 TiB share the last part, and differ in the middle.
        let nonce = bytes(a | (b << 32 ^ block & !0xffff_ffff), c | block << 32);
        Aegis128X2::<16>::new(&self.0, &nonce).stream_xor_in_place(page);
    }
}

impl std::fmt::Debug for Cipher {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Cipher(…)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn applied(key: [u64; 2], block: u64, hash: PageHash, page: &[u8]) -> Vec<u8> {
        let mut page = page.to_vec();
        Cipher::new(key).apply(block, hash, &mut page);
        page
    }

    #[test]
    fn what_goes_in_comes_out_and_nothing_of_it_shows() {
        let page: Vec<u8> = (0..4096).map(|at| (at / 700) as u8).collect();
        let hidden = applied([1, 2], 7, [3, 4, 5], &page);
        assert_eq!(applied([1, 2], 7, [3, 4, 5], &hidden), page);
        // No more bytes are as they were than chance leaves: one in 256.
        assert!(hidden.iter().zip(&page).filter(|(a, b)| a == b).count() < 60);
    }

    #[test]
    fn key_block_and_hash_each_make_another_key_stream() {
        let zeroes = [0; 4096];
        let streams = [
            applied([1, 2], 7, [3, 4, 5], &zeroes),
            applied([1, 3], 7, [3, 4, 5], &zeroes),
            applied([1, 2], 8, [3, 4, 5], &zeroes),
            applied([1, 2], 7, [3, 4, 6], &zeroes),
            applied([1, 2], 7, [11, 4, 5], &zeroes),
        ];
        for (nth, one) in streams.iter().enumerate() {
            for other in &streams[nth + 1..] {
                assert!(one.iter().zip(other).filter(|(a, b)| a == b).count() < 60);
            }
        }
    }
}
