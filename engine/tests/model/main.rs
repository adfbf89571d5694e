//! The whole engine on a fake memory, one event at a time, beside a naive model.
//!
//! A few virtual threads read and write pages; between any two of their steps the engine may reclaim,
//! requests may end (in any order), and the program may discard, move, protect or unmap ranges. After every
//! event the books must balance; every page that is read must be what was last written.
//!
//! `PAGETIDE_SEED=n` replays one run, `PAGETIDE_MODEL_SEEDS=n` sets how many are made; those that failed once
//! (tests/seeds/model.txt) are made too.

#[path = "../common/mod.rs"]
mod common;
#[path = "../../../tests/seeds/kept.rs"]
mod kept;

mod calls;
mod drawn;
mod errors;
mod events;
mod flight;
mod readahead;
mod reclaim;
mod seeds;
mod small;
mod swapoff;
mod tiers;
mod waiting;
mod world;
