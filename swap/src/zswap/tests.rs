//! Tests of the pool.

use super::*;
use crate::in_vain;
use pool::Heap;

/// A page of bytes that are drawn, of which the bits in `mask` differ.
fn drawn(mask: u8, base: u8) -> [u8; PAGE_SIZE] {
    let mut state = 1u64;
    std::array::from_fn(|_| {
        state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
        (state >> 56) as u8 & mask | base
    })
}

#[test]
fn what_the_recompressor_refuses_too_is_tried_seldom() {
    let key = HashKey::new([1, 2, 3, 4]);
    let (digits, bytes_of_seven_bits) = (drawn(0x0f, b'0'), drawn(0x7f, 0));
    for (pages, tried_at_once) in [(1000, false), (usize::MAX, true)] {
        let (zswap, scratch) =
            (Zswap::new(Heap, Allocator::Zsmalloc, Switches::default()), &mut Scratch::default());
        zswap.set_pages_max(1000);
        zswap.set_recompress_max(pages);
        let mut is_taken = |page: &[u8; PAGE_SIZE]| zswap.store(page, key.hash(page), scratch).is_ok();
        assert!((0..in_vain::RUN).all(|_| !is_taken(&bytes_of_seven_bits)));
        assert!(!is_taken(&bytes_of_seven_bits), "the first of the next sixteen");
        let refused = (0..in_vain::SAMPLE).take_while(|_| !is_taken(&digits)).count();
        assert_eq!(refused, if tried_at_once { 0 } else { in_vain::SAMPLE as usize - 1 });
        assert!((0..100).all(|_| is_taken(&digits)), "what was taken is tried again");
        assert_eq!(scratch.take_recompressed(), 101);
    }
}

#[test]
fn what_the_compressor_refuses_is_recompressed_while_the_pool_is_small() {
    let key = HashKey::new([1, 2, 3, 4]);
    let (digits, noise) = (drawn(0x0f, b'0'), drawn(0xff, 0));
    for allocator in [Allocator::Zsmalloc, Allocator::Zbud] {
        let (zswap, scratch) = (Zswap::new(Heap, allocator, Switches::default()), &mut Scratch::default());
        zswap.set_pages_max(100);
        let mut store = |page: &[u8; PAGE_SIZE]| zswap.store(page, key.hash(page), scratch);
        assert_eq!(store(&digits), Err(StoreError::Incompressible), "not allowed at first");
        zswap.set_recompress_max(1);
        let handle = store(&digits).unwrap();
        assert!(zswap.length(handle).unwrap() < PAGE_SIZE * 6 / 10);
        assert_eq!(store(&digits), Err(StoreError::Incompressible), "the pool has a page");
        zswap.set_recompress_max(100);
        assert_eq!(store(&noise), Err(StoreError::Incompressible));
        let folio = zswap.store_folio(|_| &digits, &[key.hash(&digits); FOLIO_PAGES], u16::MAX, scratch);
        for handle in folio.into_iter().map(Result::unwrap).chain([handle]) {
            let mut back = [0; PAGE_SIZE];
            zswap.load(handle, &mut back, &key, scratch).unwrap();
            assert!(back == digits);
            zswap.free(handle);
        }
        for recompression in ["none", "lz4", "lzpage"] {
            let recompression = recompression.parse().unwrap();
            zswap.switch(Switches { recompression, ..Switches::default() });
            let refused = zswap.store(&digits, key.hash(&digits), scratch);
            assert_eq!(refused, Err(StoreError::Incompressible), "{recompression}");
        }
    }
}

#[test]
fn an_entry_is_of_the_page_with_its_whole_hash() {
    let key = HashKey::new([1, 2, 3, 4]);
    let page: [u8; PAGE_SIZE] = std::array::from_fn(|at| at as u8 / 7);
    let hash = key.hash(&page);
    for allocator in [Allocator::Zsmalloc, Allocator::Zbud] {
        let (zswap, scratch) = (Zswap::new(Heap, allocator, Switches::default()), &mut Scratch::default());
        zswap.set_pages_max(100);
        let alone = zswap.store(&page, hash, scratch).unwrap();
        let folio = zswap.store_folio(|_| &page, &[hash; FOLIO_PAGES], u16::MAX, scratch);
        for handle in [alone, folio[5].unwrap()] {
            assert!(zswap.is_of(handle, hash));
            for bit in 0..HASH_BYTES * 8 {
                let mut other = hash;
                other[bit / 32] ^= 1 << (bit % 32);
                assert!(!zswap.is_of(handle, other), "bit {bit}");
            }
        }
    }
}
