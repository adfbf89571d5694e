//! What a program loads while it runs: by `dlopen`, its libraries may look elsewhere than here first.
//!
//! A library that is opened with RTLD_DEEPBIND, and whoever asks a handle of the C library
//! (`ctypes.CDLL("libc.so.6")`), gets the C library's own functions: its `free` would be given our objects, and its
//! `munmap` our mappings, unseen. So before the first library is opened the C library's table of symbols is made to
//! lead here, for every name that we have. Nothing changes for the order in which a library's names are looked up.

use crate::current::managed;
use crate::locks::Lock;
use crate::next::Next;
use crate::objects::{self, Object};
use crate::originals;
use pagetide_page::PAGE_SIZE;
use pagetide_sys::{jump_to_result_of, jump_to_target_of};
use std::ffi::{CStr, c_char, c_int, c_long, c_void};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};

/// Returns whether an object is a part of the C library that has functions which we take the place of.
fn is_of_c_library(object: &Object) -> bool {
    let name = object.name().to_bytes();
    let file = name.rsplit(|&byte| byte == b'/').next().unwrap_or(name);
    [&b"libc.so.6"[..], b"libpthread.so.0", b"libdl.so.2"].contains(&file)
}

/// Makes the C library's names lead here, once. A name that another library takes the place of too is left alone: it
/// asks for the next function when it is called, and would be given ours again.
fn lead_here() {
    static DONE: AtomicBool = AtomicBool::new(false);
    /// Others wait until all names lead here, and so does a fork.
    static LEADING: Lock = Lock::new();
    if !DONE.load(Acquire) {
        LEADING.take();
        if !DONE.load(Relaxed) {
            lead_all_here();
            DONE.store(true, Release);
        }
        LEADING.release();
    }
}

fn lead_all_here() {
    let Some(own) = objects::own() else { return };
    own.each_defined(|name, symbol| {
        let function = own.base().wrapping_add(symbol.st_value as usize);
        let first =
            objects::find(|object| (object.base() != own.base() && object.defines(name)).then_some(object));
        let Some(object) = first.filter(is_of_c_library) else { return };
        let mut versions = Vec::new();
        object.each_named(name, |symbol| versions.push(symbol));
        // SAFETY: the symbols are the object's.
        let Some(newest) = versions.iter().map(|&symbol| unsafe { (*symbol).st_value }).next() else {
            return;
        };
        // Before the first of them leads here: whoever looks for the next function from then on finds it.
        if !originals::note(name, object.base().wrapping_add(newest as usize)) {
            return;
        }
        for symbol in versions {
            // SAFETY: the symbol is the object's, and the function has its type.
            unsafe { point(symbol, function.wrapping_sub(object.base()), &object) };
        }
    });
}

/// Changes a symbol's value.
///
/// # Safety
/// The symbol is of `object`'s table, and what it leads to is of the same type.
unsafe fn point(symbol: *mut libc::Elf64_Sym, value: usize, object: &Object) {
    const STT_FUNC: u8 = 2;
    // SAFETY: the table is readable.
    if unsafe { (*symbol).st_info } & 15 != STT_FUNC {
        return;
    }
    // SAFETY: within the symbol.
    let at = unsafe { (&raw mut (*symbol).st_value).cast::<AtomicUsize>() };
    let page = at.addr() & !(PAGE_SIZE - 1);
    let access = object.access(at.addr());
    let set = |access: c_int| {
        let arguments = [page, PAGE_SIZE, access as usize, 0, 0, 0];
        // SAFETY: the page is the object's; whoever reads or runs it may go on.
        unsafe { crate::call::kernel(libc::SYS_mprotect, arguments) }.is_ok()
    };
    if set(access | libc::PROT_WRITE) {
        // SAFETY: writable now; an aligned word, which the loader reads whole.
        unsafe { (*at).store(value, Release) };
        set(access);
    }
}

static DLOPEN: Next = Next::new(c"dlopen");
static DLMOPEN: Next = Next::new(c"dlmopen");

extern "C" fn before_dlopen() -> *mut c_void {
    if managed().is_some() {
        lead_here();
    }
    DLOPEN.get()
}

/// `dlopen(3)`: the C library's, which looks at its caller (its RUNPATH, its namespace): so this is a jump, not a call.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
#[unsafe(naked)]
pub(crate) unsafe extern "C" fn dlopen(path: *const c_char, flags: c_int) -> *mut c_void {
    jump_to_result_of!(before_dlopen)
}

/// The path that the loader is asked for where a new namespace is refused: it says that there is no such file.
static REFUSED: &CStr =
    c"/dlmopen into a new namespace is refused under Pagetide, which would not see its forks and mappings";

/// The function and the argument with which `dlmopen` goes on.
#[repr(C)]
struct Target {
    function: *mut c_void,
    path: *const c_char,
}

extern "C" fn before_dlmopen(namespace: c_long, path: *const c_char, target: &mut Target) {
    const LM_ID_NEWLM: c_long = -1;
    let refused = namespace == LM_ID_NEWLM && managed().is_some();
    *target = Target { function: DLMOPEN.get(), path: if refused { REFUSED.as_ptr() } else { path } };
}

/// `dlmopen(3)`: not into a namespace of its own, where a second C library would fork and map unseen.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
#[unsafe(naked)]
pub(crate) unsafe extern "C" fn dlmopen(namespace: c_long, path: *const c_char, flags: c_int) -> *mut c_void {
    jump_to_target_of!(before_dlmopen)
}
