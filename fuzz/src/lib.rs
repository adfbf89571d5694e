//! What is done with bytes that nobody made, by the fuzzer and by the tests: `cli/tests/targets.rs`.
//!
//! Each target returns whether it took the input for valid, and panics if that was wrong.

pub mod codecs;
pub mod draw;
pub mod notes;
pub mod options;
pub mod replays;
pub mod sizes;
pub mod tickets;
pub mod traces;

/// A target: whether it took the bytes for valid.
pub type Target = fn(&[u8]) -> bool;

/// All targets by their names, which are those of the directories of `corpus/`.
pub const TARGETS: [(&str, Target); 9] = [
    ("lzpage", codecs::lzpage),
    ("lz4", codecs::lz4),
    ("zstd", codecs::zstd),
    ("trace", traces::trace),
    ("replay", replays::replay),
    ("size", sizes::size),
    ("ticket", tickets::ticket),
    ("option", options::option),
    ("note", notes::note),
];

/// A valid input of a target that each version makes anew, which no file can hold.
pub fn made(name: &str) -> Option<Vec<u8>> {
    (name == "note").then(notes::own)
}

/// The target of that name.
pub fn by_name(name: &str) -> Target {
    TARGETS.iter().find(|(known, _)| *known == name).expect("a target").1
}
