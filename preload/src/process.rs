//! The process's side of a run: joins it at load time, and keeps it through forks.

use crate::call::{Next, count};
use crate::dump;
use crate::objects;
use pagetide::group::{ENVIRONMENT, Group, OpenError};
use pagetide::process::Process;
use pagetide::ticket;
use pagetide_sys::kernel::Kernel;
use pagetide_sys::{engine_thread, task};
use std::cell::Cell;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::path::Path;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU8, Ordering::Relaxed};

/// The exit status of `pagetide run` if Pagetide failed.
const FAILED: i32 = 125;

static PROCESS: OnceLock<Process> = OnceLock::new();

/// This process, if it belongs to a run and has joined it.
pub(crate) fn process() -> Option<&'static Process> {
    PROCESS.get()
}

/// The process, unless an engine thread asks: its own mappings are nobody's business.
pub(crate) fn managed() -> Option<&'static Process> {
    process().filter(|_| !engine_thread::is_engine_thread())
}

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
    // SAFETY: the dynamic loader passes the environment of the process.
    if !unsafe { join(environment) } {
        crate::allocator::start();
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
    let Some(process) = Process::join(group, open_kernel) else {
        task::say("too many processes in this run: this one runs without Pagetide");
        return false;
    };
    // SAFETY: the name is a C string.
    SINGLE.store(unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"__libc_single_threaded".as_ptr()) }, Relaxed);
    if objects::is_taken(c"calloc") {
        crate::allocator::start();
    }
    let _ = PROCESS.set(process);
    engine_thread::prepare();
    crate::references::prepare();
    crate::allocator::join();
    // SAFETY: as above.
    if unsafe { variable(environment, dump::VARIABLE) }.is_some() {
        dump::install();
    }
    // SAFETY: the handlers are functions of this library, which is never unloaded.
    unsafe { libc::pthread_atfork(Some(before_fork), Some(after_fork_in_parent), Some(after_fork_in_child)) };
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

/// Runs on the engine's control thread, before it opens anything.
fn open_kernel() -> std::io::Result<Kernel> {
    // SAFETY: the thread is new and has used no descriptor. Where the system forbids it, the thread shares
    // the program's table: that works until the program closes descriptors it does not know.
    let _ = unsafe { task::leave_descriptor_table() };
    // SAFETY: the engine passes ranges that `mappings` and `allocator` have told it of, which are the
    // program's private memory, and its fault threads answer every fault there.
    Ok(unsafe { Kernel::open() }?)
}

// The C library's list of open streams. In a child of a program with threads it walks the list and resets
// each stream's lock before any handler of ours runs; those pages must be in the program by then.
unsafe extern "C" {
    fn _IO_list_lock();
    fn _IO_list_unlock();
    fn _IO_iter_begin() -> *mut c_void;
    fn _IO_iter_end() -> *mut c_void;
    fn _IO_iter_next(iter: *mut c_void) -> *mut c_void;
    fn _IO_iter_file(iter: *mut c_void) -> *mut c_void;
}

/// Where the C library notes that it has started no thread so far (glibc 2.32 and later): it leaves the list's lock
/// alone in a fork then, in the parent and in the child.
static SINGLE: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());

/// Whether the C library has started no thread so far, and starts none just now. False where it does not say.
pub(crate) fn has_one_thread() -> bool {
    // SAFETY: null, or a byte of the C library's, which it changes when it starts a thread.
    let single = unsafe { SINGLE.load(Relaxed).cast::<AtomicU8>().as_ref() };
    single.is_some_and(|single| single.load(Relaxed) != 0)
}

/// Whether the fork under way holds the list's lock.
static LISTED: AtomicBool = AtomicBool::new(false);

/// Offset of `_lock` in glibc's `struct _IO_FILE` on x86-64: part of its ABI.
const FILE_LOCK_OFFSET: usize = 136;

extern "C" fn before_fork() {
    let Some(process) = process() else { return };
    if !has_one_thread() {
        // Taken first: a thread that holds it must not be stopped while it waits for a page. The C library
        // takes it again (it is recursive) when our handler has run.
        // SAFETY: these functions have no conditions.
        unsafe { _IO_list_lock() };
        LISTED.store(true, Relaxed);
    }
    process.before_fork();
    if LISTED.load(Relaxed) {
        touch_streams();
    }
    process.quiesce_before_fork();
}

/// Brings in what the C library resets in the child: the locks of all streams.
fn touch_streams() {
    // SAFETY: the list is locked; its elements are live streams, whose layout is the C library's ABI.
    unsafe {
        let mut iter = _IO_iter_begin();
        while iter != _IO_iter_end() {
            let file = _IO_iter_file(iter).cast::<u8>();
            for at in [0, 512] {
                std::ptr::read_volatile(file.add(at));
            }
            let lock = file.add(FILE_LOCK_OFFSET).cast::<*mut c_int>().read();
            if !lock.is_null() {
                // So that it is in memory: the C library writes it in the child.
                lock.read_volatile();
            }
            iter = _IO_iter_next(iter);
        }
    }
}

/// Runs `call`, a fork past the C library's handlers, with ours around it. `call` returns 0 in the child.
pub(crate) fn fork_by<E>(call: impl FnOnce() -> Result<usize, E>) -> Result<usize, E> {
    before_fork();
    let result = call();
    if let Ok(0) = result {
        let listed = LISTED.load(Relaxed);
        after_fork_in_child();
        if listed {
            // SAFETY: taken in `before_fork`; the C library did not reset it.
            unsafe { _IO_list_unlock() };
        }
    } else {
        after_fork_in_parent();
        if result.is_err() {
            fork_failed();
        }
    }
    result
}

thread_local! {
    /// The slot of the child that this thread has forked, if it has.
    static CHILD: Cell<Option<usize>> = const { Cell::new(None) };
}

/// The handlers do not hear whether there was a fork.
fn fork_failed() {
    if let (Some(process), Some(child)) = (process(), CHILD.take()) {
        process.fork_failed(child);
    }
}

/// `fork(3)`, with the handlers around it.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fork() -> libc::pid_t {
    static NEXT: Next = Next::new(c"fork");
    CHILD.set(None);
    // SAFETY: the caller's contract.
    let result = unsafe { NEXT.fork() };
    if result.is_err() {
        fork_failed();
    }
    count(result) as libc::pid_t
}

extern "C" fn after_fork_in_parent() {
    let Some(process) = process() else { return };
    CHILD.set(process.after_fork_in_parent());
    if LISTED.swap(false, Relaxed) {
        // SAFETY: taken in `before_fork`.
        unsafe { _IO_list_unlock() };
    }
}

extern "C" fn after_fork_in_child() {
    let Some(process) = process() else { return };
    // If the list's lock was taken, the C library has reset it.
    LISTED.store(false, Relaxed);
    // SAFETY: a forked child has one thread.
    unsafe { crate::HEAP.begin_anew() };
    process.after_fork_in_child();
}
