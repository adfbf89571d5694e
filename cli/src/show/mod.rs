//! What a run did and holds, for people and programs to read.

pub mod report;
pub mod stat;
pub mod summary;
#[cfg(test)]
pub mod testing;
