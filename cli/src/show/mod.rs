//! What a run did and holds, for people and programs to read.

pub mod report;
pub mod stat;
pub mod summary;
mod table;
#[cfg(test)]
pub mod testing;
