//! Shared memory of a run, served by one process for all that map it: the *keeper*.
//!
//! An object of shared memory is a memfd ([`Memfd`]). Each process that maps it makes a userfaultfd and passes it to the
//! keeper over a socket ([`wire`]); the keeper answers the faults of all of them ([`Objects`]). A page that is out is a
//! hole of the memfd. The kernel would fill a hole with zeroes, for everybody, when a process touched it that nobody
//! serves: so a mapping is registered before it can be touched, and no mapping is inherited by fork.
//!
//! An object may also be a file that a program had open itself: a memfd, or a file of tmpfs ([`Memfd::adopt`]). The keeper
//! has a lease of it then: the kernel lets nobody open it before the keeper has brought it back whole.

mod lease;
mod mappings;
mod member;
mod memfd;
mod objects;
mod room;
pub mod wire;

pub use lease::Breaks;
pub use member::Pins;
pub use memfd::{Memfd, NAME, SHOWN_AS, are_pages_small};
pub use objects::{Adopted, Objects};
