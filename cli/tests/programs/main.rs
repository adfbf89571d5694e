//! Whole programs under `pagetide run`, in less memory than they need: one theme a file.

#[path = "../common/mod.rs"]
mod common;
#[path = "../../../tests/seeds/kept.rs"]
mod kept;

mod accounts;
mod allocator;
mod calls;
mod containers;
mod contents;
mod control;
mod disk;
mod exec;
mod failures;
mod forks;
mod interfaces;
mod limits;
mod loader;
mod mappings;
mod permission;
mod pins;
mod privileges;
mod remote;
mod reports;
mod shared_memory;
