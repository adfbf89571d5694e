//! The engine of a keeper on fake objects that several processes map: beside a naive model, one event at a time, and
//! under real threads.
//!
//! In the model, between any two steps of an access the engine may reclaim, requests may end, and processes map, unmap,
//! fork, are killed, give contents back or begin to pin memory; objects come and go, and are retired. After every event
//! the books must balance; every page that is read must be what was last written, by whichever process.
//!
//! `PAGETIDE_SEED=n` replays one run, `PAGETIDE_MODEL_SEEDS=n` sets how many are made; those that failed once
//! (tests/seeds/objects.txt) are made too. `PAGETIDE_THREADS_OPS=n` says how much each thread does.

#[path = "../common/mod.rs"]
mod common;
#[path = "../../../tests/seeds/kept.rs"]
mod kept;

mod events;
mod seeds;
mod spare;
mod threads;
mod world;
