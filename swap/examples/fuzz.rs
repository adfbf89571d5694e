//! Feeds decoders what nobody made: valid input that is cut, flipped, spliced and grown, for as long as is asked for.
//!
//! `cargo run --release -p pagetide-swap --example fuzz -- lzpage|lz4|zstd|trace MINUTES [SEED]`
//!
//! What a decoder must hold to says fuzz/src/codecs.rs, and of traces fuzz/src/traces.rs: those are fuzzed by coverage
//! too (fuzz/README.md); here inputs are made by the encoders. The seed is printed; the same seed gives the same inputs.

use pagetide_swap::trace::{Chunk, Event, Found, HEADER};
use pagetide_swap::zswap::codec::Codecs;
use pagetide_swap::{Compression, PAGE_SIZE, PageIndex};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

#[path = "../../fuzz/src/codecs.rs"]
#[allow(dead_code, unreachable_pub, reason = "the fuzzer and the tests use the rest")]
mod codecs;
#[path = "../../fuzz/src/draw.rs"]
#[allow(unreachable_pub, reason = "of another crate")]
mod draw;
#[path = "../../fuzz/src/traces.rs"]
#[allow(unreachable_pub, reason = "of another crate")]
mod traces;

use draw::Draw;

/// Cases between two looks at the clock.
const ROUND: u64 = 4096;
/// Inputs that are made anew by mutation, kept to be mutated again.
const CORPUS: usize = 512;

/// A page of some values, with runs and repeats of what came before, as programs have them.
fn page(draw: &mut Draw) -> Vec<u8> {
    let values = 1 + draw.below(256);
    let mut page = Vec::with_capacity(PAGE_SIZE);
    while page.len() < PAGE_SIZE {
        let length = (1 + draw.below(64)).min(PAGE_SIZE - page.len());
        match draw.below(4) {
            0 => page.extend(std::iter::repeat_n(draw.below(values) as u8, length)),
            1 if !page.is_empty() => {
                let from = draw.below(page.len());
                (0..length).for_each(|nth| page.push(page[from + nth]));
            }
            _ => page.extend((0..length).map(|_| draw.below(values) as u8)),
        }
    }
    page
}

fn mutate(draw: &mut Draw, input: &mut Vec<u8>, other: &[u8]) {
    for _ in 0..=draw.below(6) {
        let at = draw.below(input.len());
        match draw.below(7) {
            0 if !input.is_empty() => input[at] ^= 1 << draw.below(8),
            1 if !input.is_empty() => input[at] = draw.next() as u8,
            2 if !input.is_empty() => input[at] = [0, 1, 0x0F, 0x7F, 0x80, 0xF0, 0xFF][draw.below(7)],
            3 => input.truncate(at),
            4 => input.splice(at..at, (0..draw.below(40)).map(|_| 0xFF)).for_each(drop),
            5 => {
                let from = draw.below(other.len());
                let part = &other[from..(from + draw.below(200)).min(other.len())];
                input.splice(at..at, part.iter().copied()).for_each(drop);
            }
            _ => drop(input.drain(at..(at + draw.below(20)).min(input.len()))),
        }
    }
    input.truncate(2 * PAGE_SIZE);
}

/// Runs cases until the time is over: `valid` makes an input, `check` looks at one that is none. Returns how many were
/// taken for valid, of how many.
fn fuzz(
    draw: &mut Draw,
    until: Instant,
    mut valid: impl FnMut(&mut Draw) -> Vec<u8>,
    mut check: impl FnMut(&[u8]) -> bool,
) -> (u64, u64) {
    let mut corpus: Vec<Vec<u8>> = (0..CORPUS).map(|_| valid(draw)).collect();
    let (mut taken, mut cases) = (0, 0);
    while Instant::now() < until {
        for _ in 0..ROUND {
            let mut input = corpus[draw.below(CORPUS)].clone();
            let other = draw.below(CORPUS);
            mutate(draw, &mut input, &corpus[other]);
            let valid_still = check(&input);
            taken += u64::from(valid_still);
            cases += 1;
            // What got through leads further; the others make room for new ones.
            if valid_still && draw.below(4) == 0 {
                corpus[draw.below(CORPUS)] = input;
            } else if draw.below(256) == 0 {
                corpus[draw.below(CORPUS)] = valid(draw);
            }
        }
    }
    (taken, cases)
}

fn fuzz_codec(draw: &mut Draw, until: Instant, names: &[&str]) -> (u64, u64) {
    let compressions: Vec<Compression> = names.iter().map(|name| name.parse().expect("a codec")).collect();
    let compressor = compressions[0].compressor;
    let mut encoders = Codecs::default();
    fuzz(
        draw,
        until,
        |draw| {
            let mut out = vec![0; 2 * PAGE_SIZE];
            let compression = compressions[draw.below(compressions.len())];
            let page = page(draw);
            let length = encoders.encoder(compression).compress(&page, &mut out).unwrap_or(PAGE_SIZE);
            out.truncate(length);
            out
        },
        |input| codecs::decodes(compressor, input),
    )
}

fn event(draw: &mut Draw) -> Event {
    let page = PageIndex(draw.next() >> draw.below(64));
    match draw.below(4) {
        0 => {
            Event::Access { page, write: draw.below(2) == 0, from: Found::ALL[draw.below(Found::ALL.len())] }
        }
        1 => Event::Stored { page, bytes: draw.next() as u32 },
        2 => Event::Discard { page, pages: draw.next() >> draw.below(64) },
        _ => Event::TakenOut { page, pages: draw.next() >> draw.below(64) },
    }
}

fn fuzz_trace(draw: &mut Draw, until: Instant) -> (u64, u64) {
    fuzz(
        draw,
        until,
        |draw| {
            let mut trace = HEADER.to_vec();
            trace.extend(b"{}\n");
            for process in 0..draw.below(3) as u64 {
                let mut chunk = Chunk::with_room(2000);
                (0..draw.below(60)).for_each(|_| chunk.push(event(draw)));
                trace.extend(chunk.finish(process).unwrap_or_default());
            }
            trace
        },
        traces::trace,
    )
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let usage = || -> ! {
        eprintln!("fuzz lzpage|lz4|zstd|trace MINUTES [SEED]");
        std::process::exit(2)
    };
    let minutes: f64 = arguments.get(1).and_then(|minutes| minutes.parse().ok()).unwrap_or_else(|| usage());
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(1, |time| time.as_nanos() as u64);
    let seed = arguments.get(2).map_or(now, |seed| seed.parse().unwrap_or_else(|_| usage())) | 1;
    println!("{} for {minutes} minutes, seed {seed}", arguments[0]);
    let until = Instant::now() + Duration::from_secs_f64(60.0 * minutes);
    let draw = &mut Draw(seed);
    let (taken, cases) = match &*arguments[0] {
        "lzpage" => fuzz_codec(draw, until, &["lzpage"]),
        "lz4" => fuzz_codec(draw, until, &["lz4"]),
        "zstd" => fuzz_codec(draw, until, &["zstd:-5", "zstd:-1", "zstd:1", "zstd:3", "zstd:19"]),
        "trace" => fuzz_trace(draw, until),
        _ => usage(),
    };
    println!("{cases} inputs, of which {taken} were taken for valid");
}
