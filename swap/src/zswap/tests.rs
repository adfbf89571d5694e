//! Tests of the pool.

use super::*;
use pool::Heap;

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
