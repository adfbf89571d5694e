//! What `LD_PRELOAD` loads into a program under Pagetide.
//!
//! It takes the place of the C library's `malloc` family and of the calls that change mappings, and puts
//! large private memory under the care of the engine. Without a run (no `PAGETIDE_GROUP`) it is an
//! ordinary allocator.

mod advice;
mod announce;
mod call;
mod clones;
mod confined;
mod constructor;
mod credentials;
mod cross_memory;
mod current;
mod descriptors;
mod dump;
mod exec;
mod figures;
mod fork;
mod glibc;
mod heap_end;
mod loader;
mod locks;
mod malloc;
mod mappings;
mod memory_locks;
mod next;
mod objects;
mod originals;
mod range;
mod raw;
mod references;
mod shared;
mod small_mappings;
mod start;
mod static_data;
mod thread_data;
mod threads;
mod userfault;
mod wraps;

/// The note by which the launcher knows the library.
#[used]
#[unsafe(link_section = ".note.pagetide")]
static NOTE: pagetide::note::Note = pagetide::note::Note::own();

#[global_allocator]
static HEAP: pagetide_sys::heap::Heap = pagetide_sys::heap::Heap::new();
