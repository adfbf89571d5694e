//! The fuzz targets on the stable toolchain: every file of fuzz/corpus, and mutations of those.
//!
//! `PAGETIDE_SEED=n` chooses the mutations (1), `PAGETIDE_FUZZ_CASES=n` how many there are of each target. For hours of
//! fuzzing, guided by coverage: fuzz/README.md.

#[path = "../../fuzz/src/lib.rs"]
#[allow(missing_docs, unreachable_pub, dead_code, reason = "of another crate")]
mod fuzz;

use fuzz::draw::Draw;
use fuzz::{TARGETS, Target};
use std::fs;
use std::panic::catch_unwind;
use std::path::{Path, PathBuf};

const CASES: u64 = 50_000;
/// Longer inputs are cut.
const BYTES_MAX: usize = 16 << 10;

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| text.parse().unwrap_or_else(|_| panic!("{name} is a number")))
}

/// The inputs of a target, and where they lie: files, and what each version makes anew.
fn corpus(name: &str) -> Vec<(PathBuf, Vec<u8>)> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/corpus").join(name);
    let files = fs::read_dir(&directory).unwrap_or_else(|error| panic!("{}: {error}", directory.display()));
    let mut files: Vec<_> = files.map(|file| file.unwrap().path()).collect();
    files.sort();
    let made = fuzz::made(name).map(|input| (PathBuf::from("what this version makes"), input));
    files.into_iter().map(|file| (file.clone(), fs::read(file).unwrap())).chain(made).collect()
}

/// Changes some bytes, cuts, or takes a part of another input.
fn mutate(draw: &mut Draw, input: &mut Vec<u8>, other: &[u8]) {
    for _ in 0..=draw.below(4) {
        let at = draw.below(input.len() + 1);
        match draw.below(7) {
            0 if at < input.len() => input[at] ^= 1 << draw.below(8),
            1 if at < input.len() => input[at] = draw.next() as u8,
            2 if at < input.len() => input[at] = [0, 1, 0x7F, 0x80, 0xFF, b'0', b','][draw.below(7)],
            3 => input.truncate(at),
            4 => input.splice(at..at, (0..draw.below(20)).map(|_| 0xFF)).for_each(drop),
            5 => {
                let from = draw.below(other.len());
                let part = &other[from..(from + draw.below(100)).min(other.len())];
                input.splice(at..at, part.iter().copied()).for_each(drop);
            }
            _ => drop(input.drain(at..(at + draw.below(8)).min(input.len()))),
        }
    }
    input.truncate(BYTES_MAX);
}

/// Says how to see it again what a target fails with.
fn run(name: &str, target: Target, input: &[u8], from: &str) -> bool {
    catch_unwind(|| target(input)).unwrap_or_else(|_| {
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("failed-{name}"));
        fs::write(&path, input).unwrap();
        panic!(
            "target {name} fails with {from}; the input is in {}: copy it to fuzz/corpus/{name}, named after what it showed",
            path.display()
        );
    })
}

#[test]
fn every_target_has_a_corpus_of_valid_and_of_other_inputs() {
    for (name, target) in TARGETS {
        let files = corpus(name);
        let valid =
            files.iter().filter(|(file, input)| run(name, target, input, &file.display().to_string()));
        let valid = valid.count();
        assert!(valid > 0 && valid < files.len(), "{name}: {valid} of {} are valid", files.len());
    }
}

#[test]
fn no_target_fails_on_what_is_nearly_valid() {
    let (seed, cases) = (number("PAGETIDE_SEED", 1), number("PAGETIDE_FUZZ_CASES", CASES));
    for (name, target) in TARGETS {
        let mut draw = Draw(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        let mut inputs: Vec<_> = corpus(name).into_iter().map(|(_, input)| input).collect();
        for case in 0..cases {
            let which = draw.below(inputs.len());
            let mut input = inputs[which].clone();
            let other = draw.below(inputs.len());
            mutate(&mut draw, &mut input, &inputs[other]);
            let from = format!("case {case} of PAGETIDE_SEED={seed}");
            // What is valid still leads further.
            if run(name, target, &input, &from) && draw.below(8) == 0 {
                inputs[which] = input;
            }
        }
    }
}

/// The fuzzer's targets are those of the table, each with its file.
#[test]
fn every_target_is_one_of_the_fuzzers() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz");
    let manifest = fs::read_to_string(directory.join("Cargo.toml")).unwrap();
    for (name, _) in TARGETS {
        let source =
            fs::read_to_string(directory.join("fuzz_targets").join(name).with_extension("rs")).unwrap();
        assert!(source.contains(&format!("by_name(\"{name}\")")), "{name}");
        assert!(manifest.contains(&format!("path = \"fuzz_targets/{name}.rs\"")), "{name}");
    }
    assert_eq!(manifest.matches("[[bin]]").count(), TARGETS.len());
}
