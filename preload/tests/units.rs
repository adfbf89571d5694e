//! Unit tests of files of the library that need nothing of a program. The library itself takes `malloc`'s place, so it cannot be
//! what a test is linked to.

#[allow(dead_code)]
#[path = "../src/shared/pieces.rs"]
mod pieces;
#[allow(dead_code)]
#[path = "../src/small_mappings.rs"]
mod small_mappings;
