//! The differences between architectures: instructions, and the layout of the C library's data of a thread.

#[cfg(target_arch = "x86_64")]
mod x86_64;
#[cfg(target_arch = "x86_64")]
pub use self::x86_64::*;

#[cfg(not(target_arch = "x86_64"))]
compile_error!(
    "Pagetide has no instructions for this architecture: give it a file beside sys/src/arch/x86_64.rs"
);
