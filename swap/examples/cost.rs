//! What hashing, encrypting and compressing a page costs on this machine: nanoseconds a page, medians of some runs.
//!
//! `cargo run --release -p pagetide-swap --example cost [-- --json] [FILE…]`: of the pages of each FILE; without any,
//! of pages that are made up.

use pagetide_swap::cipher::Cipher;
use pagetide_swap::hash::HashKey;
use pagetide_swap::zswap::codec::Codecs;
use pagetide_swap::{Compression, PAGE_SIZE};
use serde_json::json;
use std::hint::black_box;
use std::time::Instant;

const PAGES: usize = 2048;
const RUNS: usize = 9;
const COMPRESSIONS: [&str; 10] =
    ["none", "lzpage", "lz4", "zstd:-7", "zstd:-5", "zstd:-3", "zstd:-1", "zstd:1", "zstd:3", "zstd:6"];

/// Of some runs, each of one step a page.
fn median_ns(count: usize, mut step: impl FnMut(usize)) -> u64 {
    let mut times: Vec<u64> = (0..RUNS)
        .map(|_| {
            let start = Instant::now();
            (0..count).for_each(&mut step);
            start.elapsed().as_nanos() as u64 / count as u64
        })
        .collect();
    times.sort_unstable();
    times[RUNS / 2]
}

/// Pages that compress about as well as a program's heap: some words that differ, and much that repeats.
fn made_up() -> Vec<u8> {
    let mut state = 1u64;
    let words = (0..PAGES * PAGE_SIZE / 8).flat_map(|at| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let word = if at % 4 == 0 { state >> 16 } else { (at as u64 >> 9) << 4 };
        word.to_ne_bytes()
    });
    words.collect()
}

/// As many pages as are looked at, from all over the file.
fn sample(bytes: &[u8]) -> Vec<&[u8]> {
    let pages = bytes.len() / PAGE_SIZE;
    let step = pages.div_ceil(PAGES).max(1);
    bytes.chunks_exact(PAGE_SIZE).step_by(step).collect()
}

fn measure(name: &str, bytes: &[u8], as_json: bool) {
    let pages = sample(bytes);
    if pages.is_empty() {
        eprintln!("{name}: not a page of {PAGE_SIZE} bytes");
        std::process::exit(1);
    }
    let key = HashKey::new([1, 2, 3, 4]);
    let cipher = Cipher::new([5, 6]);
    let mut codecs = Codecs::default();
    let mut room = vec![0; PAGE_SIZE];
    let hash = median_ns(pages.len(), |at| _ = black_box(key.hash(pages[at])));
    let encrypt = median_ns(pages.len(), |_| cipher.apply(7, [8, 9, 10], &mut room));
    let mut found = Vec::new();
    for compression in COMPRESSIONS.map(|name| name.parse::<Compression>().expect("a name of ours")) {
        // What does not get smaller counts as it is: so would the pool keep it.
        let encoder = codecs.encoder(compression);
        let packed: Vec<Vec<u8>> = pages
            .iter()
            .map(|page| {
                encoder
                    .compress(page, &mut room)
                    .map_or_else(|_| page.to_vec(), |length| room[..length].to_vec())
            })
            .collect();
        let encode = median_ns(pages.len(), |at| _ = black_box(encoder.compress(pages[at], &mut room)));
        let whole: Vec<&Vec<u8>> = packed
            .iter()
            .filter(|bytes| bytes.len() < PAGE_SIZE || compression.to_string() == "none")
            .collect();
        let decoder = codecs.decoder(compression.compressor);
        let decode = match whole.len() {
            0 => 0,
            count => median_ns(count, |at| decoder.decompress(whole[at], &mut room).expect("it is whole")),
        };
        let bytes: usize = packed.iter().map(Vec::len).sum();
        found.push((
            compression.to_string(),
            (pages.len() * PAGE_SIZE) as f64 / bytes as f64,
            encode,
            decode,
        ));
    }
    if as_json {
        let codecs = found.iter().map(|(name, ratio, encode, decode)| {
            json!({ "codec": name, "ratio": ratio, "ns_in": encode, "ns_out": decode })
        });
        let all = json!({
            "pages": name, "count": pages.len(), "hash_ns": hash, "encrypt_ns": encrypt,
            "codecs": codecs.collect::<Vec<_>>(),
        });
        println!("{all}");
        return;
    }
    println!("{name}: {} pages; hash {hash} ns, encrypt {encrypt} ns (decrypt alike)", pages.len());
    println!("  codec     ratio   ns in  ns out");
    for (codec, ratio, encode, decode) in found {
        println!("  {codec:<8}{ratio:7.2}{encode:8}{decode:8}");
    }
}

fn main() {
    let (flags, files): (Vec<String>, Vec<String>) =
        std::env::args().skip(1).partition(|word| word.starts_with("--"));
    let as_json = flags.iter().any(|flag| flag == "--json");
    if let Some(flag) = flags.iter().find(|flag| *flag != "--json") {
        eprintln!("cost: there is no {flag}; usage: cost [--json] [FILE…]");
        std::process::exit(2);
    }
    if files.is_empty() {
        measure("made up", &made_up(), as_json);
    }
    for file in files {
        match std::fs::read(&file) {
            Ok(bytes) => measure(&file, &bytes, as_json),
            Err(error) => {
                eprintln!("{file}: {error}");
                std::process::exit(1);
            }
        }
    }
}
