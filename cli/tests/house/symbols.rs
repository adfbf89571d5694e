//! What the preloaded library takes from others by name: nothing that may lead back to it.
//!
//! Any program may have a function of its own by any of these names. One that maps, allocates, opens, tells the time or
//! forks could call us while we wait for it.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

/// Each name that is left undefined in the library, and why that is harmless.
const ALLOWED: &[(&[&str], &str)] = &[
    (
        &["memcpy", "memmove", "memset", "memcmp", "bcmp", "strlen", "strtol"],
        "moves or compares bytes, no more",
    ),
    (&["__errno_location", "environ", "stdout", "stderr", "_r_debug"], "a variable"),
    (&["getauxval"], "whether there is a vDSO, once: reads what is there"),
    (&["getenv", "sysconf"], "mimalloc's options and sizes, when it starts: reads what is there"),
    (
        &[
            "_IO_iter_begin",
            "_IO_iter_end",
            "_IO_iter_file",
            "_IO_iter_next",
            "_IO_list_lock",
            "_IO_list_unlock",
        ],
        "the C library's list of streams, which nobody else has",
    ),
    (&["__register_atfork", "__cxa_finalize"], "the C library's lists of handlers, from the constructor"),
    (
        &["dlsym", "dladdr", "dl_iterate_phdr", "_dl_find_object"],
        "the loader, in the constructor or from a call of the program's; what it allocates is the program's",
    ),
    (&["__tls_get_addr"], "our thread-local data, before the constructor has found them"),
    (
        &["pthread_key_create", "pthread_key_delete", "pthread_setspecific"],
        "mimalloc's, in threads of the program: for a key beyond the first 32 something is allocated, when the thread has its heap",
    ),
    (&["pthread_attr_getstack", "pthread_mutexattr_getrobust"], "reads what the program passes"),
    (
        &["pthread_mutex_destroy", "pthread_mutex_lock", "pthread_mutex_unlock"],
        "mimalloc's locks, never contended by an engine thread",
    ),
    (&["pthread_once"], "the unwinder's tables, when a defect is reported"),
    (
        &["__pthread_key_create", "pthread_getspecific"],
        "the unwinder's, which asks by the first whether there are threads",
    ),
    (&["fwrite"], "`malloc_info` writes to the stream that the program passes"),
    (&["sigaction", "sigfillset", "raise"], "fatal signals with PAGETIDE_DUMP; sets of signals"),
    (&["abort", "__xpg_strerror_r", "getcwd", "realpath"], "messages of a defect, as the last thing"),
    (
        &["_ITM_deregisterTMCloneTable", "_ITM_registerTMCloneTable", "__gmon_start__"],
        "the linker's, weak and absent",
    ),
    (
        &[
            "ZSTD_trace_compress_begin",
            "ZSTD_trace_compress_end",
            "ZSTD_trace_decompress_begin",
            "ZSTD_trace_decompress_end",
        ],
        "Zstandard's hooks for tracing, weak and absent",
    ),
];

/// Unwinding, when a thread is cancelled in a call of ours or a defect is reported.
const UNWINDING: &str = "_Unwind_";

fn undefined(library: &Path) -> Vec<String> {
    let listed =
        Command::new("nm").args(["-D", "--undefined-only", "--format=posix"]).arg(library).output().unwrap();
    assert!(listed.status.success(), "{listed:?}");
    let listed = String::from_utf8(listed.stdout).unwrap();
    let names = listed.lines().filter_map(|line| line.split([' ', '@']).next());
    names.map(str::to_owned).collect()
}

#[test]
fn the_library_calls_nothing_that_may_lead_back_to_it() {
    let library = Path::new(env!("CARGO_BIN_EXE_pagetide")).with_file_name("libpagetide_preload.so");
    let reasons: BTreeMap<&str, &str> =
        ALLOWED.iter().flat_map(|(names, reason)| names.iter().map(move |name| (*name, *reason))).collect();
    let names = undefined(&library);
    assert!(names.len() > 10, "{names:?}");
    let unknown: Vec<_> = names
        .iter()
        .filter(|name| !name.starts_with(UNWINDING) && !reasons.contains_key(name.as_str()))
        .collect();
    assert!(
        unknown.is_empty(),
        "give a reason for these in ALLOWED, or lead them elsewhere (wraps.rs): {unknown:?}"
    );
}

/// mimalloc's constructor is left out by a linker script, which goes by the name of an object file.
#[test]
fn the_allocator_has_no_constructor() {
    let library = Path::new(env!("CARGO_BIN_EXE_pagetide")).with_file_name("libpagetide_preload.so");
    let run =
        |command: &mut Command| String::from_utf8(command.arg(&library).output().unwrap().stdout).unwrap();
    let symbols = run(Command::new("nm").arg("--defined-only"));
    let address = |name: &str| {
        let line = symbols.lines().find(|line| line.split(' ').nth(2) == Some(name));
        u64::from_str_radix(line?.split(' ').next()?, 16).ok()
    };
    // Constructors are addresses that the loader fills in.
    let relocations = run(Command::new("readelf").args(["-rW"]));
    let is_filled_in = |with: u64| {
        let ends = format!(" {with:x}");
        relocations.lines().any(|line| line.contains("R_X86_64_RELATIVE") && line.ends_with(&ends))
    };
    let destructor = address("mi_process_detach").expect("its destructor stays");
    assert!(is_filled_in(destructor), "which is known in the same way");
    assert!(address("mi_process_attach").is_none_or(|constructor| !is_filled_in(constructor)));
}
