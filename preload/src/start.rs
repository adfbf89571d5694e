//! What a process that starts does not do, or later: most live for milliseconds and never need the engine.

use pagetide_sys::engine_thread;
use std::ffi::c_int;

std::arch::global_asm!(".hidden __wrap_aegis_runtime_get_cpu_features");

unsafe extern "C" {
    /// libaegis's function of that name.
    fn __real_aegis_runtime_get_cpu_features() -> c_int;
}

/// libaegis asks for the processor's features in a constructor and, if that has failed, when the first key is made.
/// They cost 40 µs in a virtual machine, where each CPUID instruction goes to the hypervisor, and what is made of them
/// touches six parts of the library. Keys are made by threads of the engine; constructors never run there.
///
/// # Safety
/// By the linker all calls of this name from other objects come here, and (hidden) no others.
#[unsafe(no_mangle)]
unsafe extern "C" fn __wrap_aegis_runtime_get_cpu_features() -> c_int {
    if !engine_thread::is_engine_thread() {
        return -1;
    }
    // SAFETY: it has no conditions.
    unsafe { __real_aegis_runtime_get_cpu_features() }
}
