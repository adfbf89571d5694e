//! What `LD_PRELOAD` loads into a program under Pagetide.
//!
//! It takes the place of the C library's `malloc` family and of the calls that change mappings, and puts
//! large private memory under the care of the engine. Without a run (no `PAGETIDE_GROUP`) it is an
//! ordinary allocator.

mod advice;
mod allocator;
mod call;
mod dump;
mod mappings;
mod process;
mod raw;
mod references;
mod threads;

#[global_allocator]
static HEAP: pagetide_sys::heap::Heap = pagetide_sys::heap::Heap::new();
