//! Links the preload library so that it resolves everything at load time and is initialised first.

use std::env;
use std::path::Path;
use std::process::Command;

/// Names in `locks.rs` and `wraps.rs`.
const WRAPPED: &[&str] = &[
    "pthread_mutex_init",
    "pthread_mutex_destroy",
    "pthread_mutex_lock",
    "pthread_mutex_trylock",
    "pthread_mutex_unlock",
    "read",
    "write",
    "writev",
    "close",
    "open",
    "open64",
    "lseek64",
    "fstat",
    "fstat64",
    "stat64",
    "statx",
    "readlink",
    "fcntl",
    "ioctl",
    "poll",
    "mmap",
    "munmap",
    "madvise",
    "mincore",
    "prctl",
    "getpid",
    "getppid",
    "gettid",
    "getrandom",
    "getrusage",
    "sysinfo",
    "sched_yield",
    "sched_setscheduler",
    "syscall",
    "clock_gettime",
    "clock_nanosleep",
    "sleep",
    "fputs",
    "pthread_sigmask",
];

fn main() {
    // A symbol bound lazily would be resolved inside the first `malloc`, which resolving calls.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,now");
    // Our fork handlers must run before everybody else's: they are registered by our constructor.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,initfirst");
    // Calls among us stay among us: the program may have functions of these names too.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-Bsymbolic-functions");
    // System calls of ours, and of the libraries in us, go to the kernel: see `wraps.rs`.
    for name in WRAPPED {
        println!("cargo:rustc-cdylib-link-arg=-Wl,--wrap={name}");
    }
    // What mimalloc commits bit by bit it does by this call: ours knows that from the program's.
    println!("cargo:rustc-cdylib-link-arg=-Wl,--wrap=mprotect");
    // The engine's threads have no C library to ask for thread-local data: see `thread_data.rs`.
    for name in ["__tls_get_addr", "__cxa_thread_atexit_impl"] {
        println!("cargo:rustc-cdylib-link-arg=-Wl,--wrap={name}");
    }
    // The cipher's constructor asks for the processor's features by this call: ours says no until the engine asks.
    println!("cargo:rustc-cdylib-link-arg=-Wl,--wrap=aegis_runtime_get_cpu_features");
    unwind_by_ourselves();
    start_mimalloc_late();
    println!("cargo:rerun-if-changed=build.rs");
}

/// Puts gcc's static unwinder in the place of libgcc_s, which takes a process a sixth of its start to load: in a
/// virtual machine its constructor alone costs 90 µs, for the CPUID instruction. rustc names the shared one; the linker
/// finds a script of that name first.
fn unwind_by_ourselves() {
    let compiler = env::var("CC").unwrap_or_else(|_| "cc".to_owned());
    let asked = Command::new(compiler).arg("-print-file-name=libgcc_eh.a").output();
    let found = asked.ok().and_then(|output| String::from_utf8(output.stdout).ok());
    // Where there is none the compiler repeats the name.
    let Some(archive) = found.map(|path| path.trim().to_owned()).filter(|path| Path::new(path).is_absolute())
    else {
        println!(
            "cargo:warning=no libgcc_eh.a: programs load libgcc_s.so.1 when they start, which is slower"
        );
        return;
    };
    let directory = env::var("OUT_DIR").expect("cargo sets it");
    std::fs::write(Path::new(&directory).join("libgcc_s.so"), format!("INPUT({archive})\n"))
        .expect("the build directory can be written");
    println!("cargo:rustc-link-search=native={directory}");
    println!("cargo:rerun-if-env-changed=CC");
}

/// Leaves mimalloc's constructor out: most processes never need it (see `sys/src/first_heap.rs`), and `malloc/state.rs`
/// calls it when one does. libmimalloc-sys compiles one file, `static.c`, which cc names `…-static.o`.
fn start_mimalloc_late() {
    let directory = env::var("OUT_DIR").expect("cargo sets it");
    let script = Path::new(&directory).join("late.ld");
    let sections =
        "SECTIONS { /DISCARD/ : { *-static.o(.init_array .init_array.*) } } INSERT BEFORE .init_array;\n";
    std::fs::write(&script, sections).expect("the build directory can be written");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-T,{}", script.display());
}
