//! The command line of `pagetide`.
//!
//! [`options`] has the only definitions of its commands and options. Help, manual pages, completions and the table in
//! `docs/run.md` are made from them: `cli/tests/house/options.rs` compares what is committed with what they make, and
//! writes it anew if `PAGETIDE_BLESS=1` is set.

#![forbid(unsafe_code)]
#![warn(unreachable_pub)]

pub mod options;
