//! Pagetide's engine: swap in user space.
//!
//! An [`engine::Engine`] serves the faults of a program, takes its cold pages out and brings them back.
//! It is generic over the program's [`memory::Memory`]: the kernel's ([`program_memory`]) or a fake one.
#![forbid(unsafe_code)]

pub mod budget;
pub mod census;
mod clock;
pub mod dump;
pub mod engine;
pub mod engine_memory;
pub mod fake;
pub mod group;
pub mod injection;
pub mod latency;
pub mod mask;
pub mod memory;
pub mod note;
pub mod object_memory;
pub mod pause;
pub mod process;
pub mod program_memory;
mod readers;
pub mod recorder;
pub mod regions;
pub mod runtime;
pub mod ticket;
