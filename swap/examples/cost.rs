//! What hashing, encrypting and compressing a page costs on this machine, in nanoseconds: the median of some runs.

use pagetide_swap::PAGE_SIZE;
use pagetide_swap::cipher::Cipher;
use pagetide_swap::hash::HashKey;
use pagetide_swap::zswap::codec::Codec;
use std::hint::black_box;
use std::time::Instant;

const PAGES: usize = 2048;
const RUNS: usize = 15;

fn median_ns(pages: &mut [u8], mut step: impl FnMut(&mut [u8])) -> u128 {
    let mut times: Vec<u128> = (0..RUNS)
        .map(|_| {
            let start = Instant::now();
            pages.chunks_exact_mut(PAGE_SIZE).for_each(&mut step);
            start.elapsed().as_nanos() / PAGES as u128
        })
        .collect();
    times.sort_unstable();
    times[RUNS / 2]
}

fn main() {
    // Pages that compress about as well as a program's heap: some words that differ, and much that repeats.
    let mut state = 1u64;
    let words = (0..PAGES * PAGE_SIZE / 8).flat_map(|at| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let word = if at % 4 == 0 { state >> 16 } else { (at as u64 >> 9) << 4 };
        word.to_ne_bytes()
    });
    let mut pages: Vec<u8> = words.collect();
    let key = HashKey::new([1, 2, 3, 4]);
    let cipher = Cipher::new([5, 6]);
    let mut packed = vec![0; Codec::output_max(PAGE_SIZE)];
    let mut lengths = Vec::new();
    let hash = median_ns(&mut pages, |page| _ = black_box(key.hash(page)));
    let compress = median_ns(&mut pages, |page| lengths.push(Codec::compress(page, &mut packed)));
    let mut out = vec![0; PAGE_SIZE];
    let length = *lengths.last().expect("pages were compressed");
    let decompress =
        median_ns(&mut pages, |_| Codec::decompress(&packed[..length], &mut out).expect("whole"));
    let encrypt = median_ns(&mut pages, |page| cipher.apply(7, [8, 9, 10], page));
    let ratio = PAGE_SIZE as f64 * lengths.len() as f64 / lengths.iter().sum::<usize>() as f64;
    println!("ns a page of {PAGE_SIZE} bytes:");
    println!("hash        {hash:6}");
    println!("encrypt     {encrypt:6}   (decrypt alike)");
    println!("compress    {compress:6}   (LZ4, {ratio:.1} : 1)");
    println!("decompress  {decompress:6}");
}
