//! The room of `unsafe`: what Pagetide asks of the kernel, with safe interfaces where that is possible.
//!
//! Every system call here goes to the kernel directly (`rustix`'s raw back end, or `syscall`), never
//! through the C library's `mmap` or `malloc`: inside a preloaded library those names are ours. So is
//! `syscall` there, which passes calls on: but mapping calls on the program's memory go by `rustix`.

pub mod arch;
mod block;
pub mod buffer;
pub mod credentials;
pub mod engine_thread;
pub mod first_heap;
pub mod fork_gate;
pub mod handout;
pub mod heap;
pub mod keeper;
pub mod kernel;
mod lock;
pub mod log;
pub mod mapped_files;
pub mod mapping;
pub mod maps;
pub mod pagemap;
pub mod patience;
mod places;
pub mod procfs;
pub mod random;
pub mod shared;
pub mod sieve;
pub mod signals;
pub mod spans;
pub mod staging;
pub mod task;
pub mod uffd;
pub mod uring;

pub use lock::{lock, wait};

/// Held, shared, by tests whose pages are moved, which the kernel refuses while a fork shares them; alone by tests that fork.
#[cfg(test)]
static FORKS: std::sync::RwLock<()> = std::sync::RwLock::new(());

/// Keeps other tests from forking.
#[cfg(test)]
fn no_fork() -> std::sync::RwLockReadGuard<'static, ()> {
    FORKS.read().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Waits for tests whose pages no fork may share, and keeps others from beginning.
#[cfg(test)]
fn may_fork() -> std::sync::RwLockWriteGuard<'static, ()> {
    FORKS.write().unwrap_or_else(std::sync::PoisonError::into_inner)
}
