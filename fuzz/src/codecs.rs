//! Entries of the pool and of the swap file: a decoder gives bytes or an error, writes none beyond the page, and the same
//! for the same input.

use pagetide_swap::zswap::codec::Codecs;
use pagetide_swap::{Compression, Compressor, PAGE_SIZE};
use std::cell::RefCell;

const GUARD: usize = 256;
const GUARD_BYTE: u8 = 0xA5;

struct Room {
    codecs: Codecs,
    /// A page, and what must stay as it is behind it.
    bytes: Vec<u8>,
}

thread_local! {
    // The same contexts for one input after another, as an engine thread has them.
    static ROOM: RefCell<Room> =
        RefCell::new(Room { codecs: Codecs::default(), bytes: vec![GUARD_BYTE; PAGE_SIZE + GUARD] });
}

/// Decodes by `lzpage`; what is as long as a page is also encoded.
pub fn lzpage(input: &[u8]) -> bool {
    round_trip(input, "lzpage");
    decodes(Compressor::LzPage, input)
}

/// Decodes by LZ4; what is as long as a page is also encoded.
pub fn lz4(input: &[u8]) -> bool {
    round_trip(input, "lz4");
    decodes(Compressor::Lz4, input)
}

/// Decodes by Zstandard; what is as long as a page is also encoded.
pub fn zstd(input: &[u8]) -> bool {
    round_trip(input, "zstd:3");
    decodes(Compressor::Zstd, input)
}

/// Whether a decoder takes the input for a page.
pub fn decodes(compressor: Compressor, input: &[u8]) -> bool {
    ROOM.with_borrow_mut(|Room { codecs, bytes }| {
        let (page, guard) = bytes.split_at_mut(PAGE_SIZE);
        let decoded = codecs.decoder(compressor).decompress(input, page).is_ok();
        assert!(guard.iter().all(|&byte| byte == GUARD_BYTE), "written beyond the page");
        if decoded {
            // Nothing of the input before is left in the context.
            let first = page.to_vec();
            page.fill(GUARD_BYTE);
            codecs.decoder(compressor).decompress(input, page).expect("as before");
            assert!(first == page, "not the same twice");
        }
        decoded
    })
}

/// A page is the same after it was compressed, if it can be.
fn round_trip(input: &[u8], compression: &str) {
    if input.len() != PAGE_SIZE {
        return;
    }
    let compression: Compression = compression.parse().expect("a compression");
    let mut compressed = vec![0; PAGE_SIZE];
    ROOM.with_borrow_mut(|Room { codecs, bytes }| {
        let Ok(length) = codecs.encoder(compression).compress(input, &mut compressed) else { return };
        let page = &mut bytes[..PAGE_SIZE];
        codecs
            .decoder(compression.compressor)
            .decompress(&compressed[..length], page)
            .expect("it was made so");
        assert!(page == input, "not what was compressed");
    });
}
