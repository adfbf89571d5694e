//! The swap subsystem of Pagetide, sans-IO.
//!
//! This crate decides; it never acts. It owns the swap cache ([`table`]), the compressed pool
//! ([`zswap`]), device space ([`blocks`]), the order in which memory is given up ([`probation`],
//! [`reclaimer`], [`queue`]) and the
//! counters ([`stats`]). It has no thread, no clock, no system call and no `unsafe`: the engine above it
//! moves pages and bytes, and tells it what happened.
//!
//! It does *not* own frames (memory that holds a page outside the program), the program's page tables,
//! or the device itself.
//!
//! # The state of a page
//!
//! ```text
//!             fault: zero page                     take-out
//!   Hole ───────────────────────────▶ Present ───────────────▶ Cached (probation)
//!    ▲                                 ▲   ▲                     │    │
//!    │ discard (from any state)        │   └──── fault: hit ─────┘    │ store
//!    │                                 └──── fault: read ── Swapped ◀─┘
//! ```
//!
//! Every arrow is one transfer: the word is *locked* while bytes move, so that there is one read and one
//! store in flight per entry at most, and nobody waits for a lock while it runs.
#![forbid(unsafe_code)]

pub mod announced;
pub mod balance;
mod bits;
pub mod blocks;
pub mod cipher;
pub mod config;
pub mod cost;
pub mod distances;
pub mod error;
pub mod frontier;
pub mod hash;
pub mod held;
mod hot;
mod in_vain;
mod latch;
pub mod object;
pub mod place;
pub mod policy;
pub mod probation;
pub mod queue;
pub mod reclaimer;
mod slab;
mod sparse;
pub mod stats;
pub mod streams;
pub mod swap;
mod sync;
pub mod table;
pub mod trace;
pub mod word;
pub mod workingset;
pub mod zswap;

pub use config::Config;
pub use error::{LoadError, StoreError};
pub use pagetide_page::{CLUSTER_PAGES, ClusterNumber, FOLIO_PAGES, PAGE_SIZE, PageIndex};
pub use place::{Handle, Place};
pub use policy::Reclaim;
pub use stats::{Counter, Counters};
pub use streams::{Readahead, Window};
pub use swap::{
    DeviceRun, Discarded, PoolScope, Source, StoreOutcome, Stored, Swap, Swapin, TakenOut, Transfer,
    WINDOW_MAX,
};
pub use word::{State, Word};
pub use zswap::Scratch;
pub use zswap::compression::{Compression, Compressor};
pub use zswap::pool::{Allocator, SpanMemory, SpanSource};
pub use zswap::switches::Switches;
