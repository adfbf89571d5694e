//! What `/proc` says of memory and of processes.

mod descriptors;
mod file;
mod identity;
mod memory;
mod mounts;
mod stat;

pub(crate) use self::descriptors::program_tasks;
pub use self::descriptors::{has_open, is_own_pidfd, may_pin};
pub use self::file::{field, read, small, tasks};
pub use self::identity::{Identity, is_sandboxed, own_pid, own_task};
pub use self::memory::{
    Memory, OWN, Watched, counted_anonymous, counted_elsewhere, memory, of_memory, young_memory,
};
pub use self::mounts::{known_mount, mount_may_pin};
pub use self::stat::{
    Stat, age, last_pid, processor_of, processor_of_any, processor_times, run_times, start_time, thread_count,
};
