//! The constructor, by which a process joins its run at load time.

use crate::fork::{after_fork_in_child, after_fork_in_parent, before_fork};
use crate::{current, dump, glibc, objects};
use pagetide::group::{ENVIRONMENT, Group, OpenError};
use pagetide::process::Process;
use pagetide::runtime::MemorySource;
use pagetide::ticket;
use pagetide_sys::kernel::{Kernel, Writes};
use pagetide_sys::{engine_thread, task};
use std::ffi::{CStr, c_char, c_int};
use std::path::Path;

/// The exit status of `pagetide run` if Pagetide failed.
const FAILED: i32 = 125;

/// Runs before `main`, and before the constructors of other libraries (`-z initfirst`).
#[unsafe(link_section = ".init_array")]
#[used]
static CONSTRUCTOR: extern "C" fn(c_int, *const *const c_char, *const *const c_char) = construct;

/// The value of a variable, from the environment that glibc passes to constructors: so early in the life
/// of a process its `getenv` finds nothing yet.
///
/// # Safety
/// `environment` must be a null-terminated array of C strings.
unsafe fn variable(mut environment: *const *const c_char, name: &str) -> Option<String> {
    // SAFETY: as the caller says; the walk ends at the null pointer.
    unsafe {
        while !(*environment).is_null() {
            let entry = CStr::from_ptr(*environment).to_bytes();
            if let Some(value) = entry.strip_prefix(name.as_bytes()).and_then(|rest| rest.strip_prefix(b"="))
            {
                return String::from_utf8(value.to_vec()).ok();
            }
            environment = environment.add(1);
        }
    }
    None
}

extern "C" fn construct(_: c_int, _: *const *const c_char, environment: *const *const c_char) {
    glibc::prepare();
    // Also for a process that joins no run: its memory comes from here.
    // SAFETY: the handlers are functions of this library, which is never unloaded.
    unsafe { libc::pthread_atfork(Some(before_fork), Some(after_fork_in_parent), Some(after_fork_in_child)) };
    // SAFETY: the dynamic loader passes the environment of the process.
    if !unsafe { join(environment) } {
        crate::malloc::start();
    }
}

/// Joins the run that the environment names. False if there is none, or it takes nobody any more.
///
/// # Safety
/// As for [`variable`].
unsafe fn join(environment: *const *const c_char) -> bool {
    // SAFETY: the caller's contract.
    let Some(path) = (unsafe { variable(environment, ENVIRONMENT) }) else { return false };
    objects::prepare();
    if let Some(sanitizer) = sanitizer() {
        task::say(&format!(
            "this program is built with {sanitizer}, which must come before every other library: it cannot run under \
             Pagetide. Run it on its own, or build it without"
        ));
        task::exit(FAILED);
    }
    if is_emulated() {
        return false;
    }
    // SAFETY: as above.
    let ticket = unsafe { variable(environment, ticket::ENVIRONMENT) }.and_then(|text| text.parse().ok());
    let joined = ticket.map_or(Err(OpenError::Foreign), |ticket| Group::join(Path::new(&path), &ticket));
    let group = match joined {
        Ok(group) => group,
        Err(error @ OpenError::Foreign) => {
            task::say(&format!("{error}: this program runs without Pagetide"));
            return false;
        }
        Err(error @ OpenError::System(_)) => {
            // The launcher is gone (a process that outlived the run), or not ours to see.
            // SAFETY: as above.
            if unsafe { variable(environment, "PAGETIDE_VERBOSE") }.is_some() {
                task::say(&format!("{error}: this program runs without Pagetide"));
            }
            return false;
        }
    };
    // SAFETY: as above.
    unsafe { crate::exec::prepare(environment, &[ENVIRONMENT, ticket::ENVIRONMENT]) };
    let Some(process) = Process::join(group, MemorySource::Program(open_kernel)) else {
        task::say("too many processes in this run: this one runs without Pagetide");
        return false;
    };
    if objects::is_taken(c"calloc") {
        crate::malloc::start();
    }
    current::set(process);
    engine_thread::prepare();
    crate::references::prepare();
    crate::descriptors::prepare();
    crate::malloc::join();
    crate::static_data::manage();
    // SAFETY: as above.
    if unsafe { variable(environment, dump::VARIABLE) }.is_some() {
        dump::install();
    }
    true
}

/// The sanitizer that the program is built with, if it is one that does not work behind another library:
/// ThreadSanitizer, and AddressSanitizer where it is a library too.
fn sanitizer() -> Option<&'static str> {
    objects::find(|object| {
        let is_library = !object.name().is_empty();
        if object.defines(c"__tsan_init") {
            Some("ThreadSanitizer")
        } else {
            (is_library && object.defines(c"__asan_init")).then_some("AddressSanitizer")
        }
    })
}

/// Whether valgrind runs the program, on a processor of its own making: it has neither the kernel's vDSO nor threads other than those
/// of the C library.
fn is_emulated() -> bool {
    let is_valgrinds = |path: &[u8]| {
        path.rsplit(|&byte| byte == b'/').next().is_some_and(|name| name.starts_with(b"vgpreload_"))
    };
    objects::find(|object| is_valgrinds(object.name().to_bytes()).then_some(())).is_some()
}

/// Runs on the engine's control thread, before it opens anything.
fn open_kernel(writes: Writes) -> std::io::Result<Kernel> {
    // SAFETY: the thread is new and has used no descriptor. Where the system forbids it, the thread shares
    // the program's table: that works until the program closes descriptors it does not know.
    let _ = unsafe { task::leave_descriptor_table() };
    // SAFETY: the engine passes ranges that `mappings` and `allocator` have told it of, which are the
    // program's private memory, and its fault threads answer every fault there.
    Ok(unsafe { Kernel::open(writes) }?)
}
