//! The remote tier: pages on a Valkey or Redis server, or a cluster of them.
//!
//! One process of a run has the connection ([`server`]); engines reach it through a ring in shared memory
//! ([`pagetide_device::ring`]). Each write of a run of blocks is one value, under a key of its own ([`values`]).

pub(crate) mod gc;
pub(crate) mod link;
mod outage;
pub(crate) mod server;
pub(crate) mod store;
pub(crate) mod target;
pub(crate) mod values;
