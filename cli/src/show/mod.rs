//! What a run did and holds, for people and programs to read.

pub(crate) mod report;
pub(crate) mod stat;
pub(crate) mod summary;
mod table;
#[cfg(test)]
pub(crate) mod testing;
