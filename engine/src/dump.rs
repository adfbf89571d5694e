//! The state that an engine shows to `pagetide dump`, and the reading of it from outside.
//!
//! ```text
//! group page                              memory of the process
//! ┌─────────────────────────────┐         ┌────────────────────────────┐
//! │ board, one a process:       │         │ counts, flags              │
//! │  what each thread does      │ address │ slots on probation         │
//! │  faults that are parked     │ ──────▶ │ the table                  │
//! │  requests under way         │         │                            │
//! └─────────────────────────────┘         └────────────────────────────┘
//! ```
//!
//! A [`board::Board`] is written by plain stores: a reader sees what a thread did last, also where that thread has
//! stopped for good. All else is read from the memory of the process ([`reading`]), at addresses that the board tells.
//! No thread of that process is asked for anything, and no lock is taken.

pub mod board;
pub mod reading;
