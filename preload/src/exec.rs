//! The calls that start another program: what it needs to find the run is put back where it is missing.
//!
//! A program that is started with an environment of its own (`env -i`, `subprocess.run(…, env={})`, a script that
//! unsets LD_PRELOAD) would run without Pagetide. So the environment that is passed gets the variables by which the
//! launcher started CMD, where it lacks them. What is there stays: our library comes behind the others of LD_PRELOAD,
//! as the launcher has it (an allocator of the user's own wins, and ASan insists on being the first); and an
//! environment that names another run is left alone.
//!
//! Everything here may run in a child of `vfork`, which works in its parent's memory, and in a signal handler: nothing
//! is allocated, and nothing is written but the stack. (Where the stack is no place for so many variables, a mapping
//! is made, which in a child of `vfork` is the parent's to keep.)

use crate::call::{count, kernel};
use crate::next::Next;
use pagetide_sys::call_with_array;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::mem::MaybeUninit;
use std::sync::OnceLock;

/// The entry with which the environment of a started program is let alone.
const KEEP: &CStr = c"PAGETIDE_KEEP=0";
const PRELOAD: &[u8] = b"LD_PRELOAD=";
/// Words that a mended environment may take of the stack: few for most, and as many as fit a small one.
const WORDS_FEW: usize = 192;
const WORDS_MANY: usize = 1024;

type Strings = *const *const c_char;
type Execve = unsafe extern "C" fn(*const c_char, Strings, Strings) -> c_int;
type Execveat = unsafe extern "C" fn(c_int, *const c_char, Strings, Strings, c_int) -> c_int;
type Fexecve = unsafe extern "C" fn(c_int, Strings, Strings) -> c_int;
type Spawn = unsafe extern "C" fn(
    *mut libc::pid_t,
    *const c_char,
    *const c_void,
    *const c_void,
    Strings,
    Strings,
) -> c_int;

static EXECVE: Next = Next::new(c"execve");
static EXECVPE: Next = Next::new(c"execvpe");
static EXECVEAT: Next = Next::new(c"execveat");
static FEXECVE: Next = Next::new(c"fexecve");
static POSIX_SPAWN: Next = Next::new(c"posix_spawn");
static POSIX_SPAWNP: Next = Next::new(c"posix_spawnp");

unsafe extern "C" {
    static environ: Strings;
}

/// The entries of the environment by which a program finds the run.
#[derive(Debug)]
struct Passage {
    /// Entries of the environment that must be there as they are. The first says which run it is.
    entries: Vec<CString>,
    /// The entry for our library, if there is none for others.
    preload: CString,
}

static PASSAGE: OnceLock<Passage> = OnceLock::new();

/// Remembers, from the environment of this process, what the programs that it starts need: the variables of these
/// names, of which the first says which run it is, and our library. Not if that is not to be kept.
///
/// # Safety
/// `environment` must be a null-terminated array of C strings.
pub(crate) unsafe fn prepare(environment: Strings, names: &[&str]) {
    // SAFETY: as the caller says.
    let all = || unsafe { strings(environment) };
    let Some(library) = library().filter(|_| all().all(|entry| entry != KEEP)) else { return };
    let named = |name: &&str| all().find(|entry| value(entry, name.as_bytes()).is_some()).map(CStr::to_owned);
    let entries = names.iter().filter_map(named).collect();
    let preload = [PRELOAD, library.to_bytes()].concat();
    let _ = PASSAGE.set(Passage { entries, preload: CString::new(preload).expect("no zero in a path") });
    // What children of forks call: they had better not ask the loader. (The others are rare there, or called before.)
    EXECVE.find();
    EXECVPE.find();
}

/// The path of our library.
fn library() -> Option<CString> {
    // SAFETY: all zero is a value of the structure, which the call fills; the name that it gives is a C string that the
    // loader keeps.
    unsafe {
        let mut info: libc::Dl_info = std::mem::zeroed();
        let found = libc::dladdr((&raw const PASSAGE).cast(), &raw mut info) != 0;
        (found && !info.dli_fname.is_null()).then(|| CStr::from_ptr(info.dli_fname).to_owned())
    }
}

/// The strings of an array that ends at a null pointer. A null pointer is an empty one, as for the kernel.
///
/// # Safety
/// It must be such an array.
unsafe fn strings<'a>(mut array: Strings) -> impl Iterator<Item = &'a CStr> {
    std::iter::from_fn(move || {
        // SAFETY: as the caller says; the walk ends at the null pointer.
        unsafe {
            if array.is_null() || (*array).is_null() {
                return None;
            }
            let string = CStr::from_ptr(*array);
            array = array.add(1);
            Some(string)
        }
    })
}

/// The value of an entry of the environment, if it is that of `name`.
fn value<'a>(entry: &'a CStr, name: &[u8]) -> Option<&'a [u8]> {
    entry.to_bytes().strip_prefix(name)?.strip_prefix(b"=")
}

/// An environment that is to be mended.
struct Mending<'a> {
    passage: &'a Passage,
    environment: Strings,
    /// Its entries.
    count: usize,
    /// The entry of LD_PRELOAD that counts, and its number, if our library is missing there.
    others: Option<(usize, &'a CStr)>,
    /// Whether there is none.
    bare: bool,
}

impl<'a> Mending<'a> {
    /// Returns how `environment` is to be mended. `None` if it lacks nothing.
    ///
    /// # Safety
    /// It must be a null-terminated array of C strings, or null.
    unsafe fn of(environment: Strings) -> Option<Self> {
        let passage: &'a Passage = PASSAGE.get()?;
        let (mut count, mut preload, mut found) = (0, None, 0u32);
        // SAFETY: as the caller says.
        for entry in unsafe { strings(environment) } {
            if entry == KEEP {
                return None;
            }
            if entry.to_bytes().starts_with(PRELOAD) {
                // The loader goes by the last one.
                preload = Some((count, entry));
            }
            for (nth, ours) in passage.entries.iter().enumerate() {
                if entry == ours.as_c_str() {
                    found |= 1 << nth;
                } else if nth == 0 && same_name(entry, ours) {
                    return None;
                }
            }
            count += 1;
        }
        let ours = &passage.preload.to_bytes()[PRELOAD.len()..];
        let list = |entry: &'a CStr| entry.to_bytes()[PRELOAD.len()..].split(|byte| b" :".contains(byte));
        let loads = preload.is_some_and(|(_, entry)| list(entry).any(|entry| entry == ours));
        if loads && found.count_ones() as usize == passage.entries.len() {
            return None;
        }
        // In another root it may not be there: the loader would complain of it.
        if !loads && !is_readable(&passage.preload.as_c_str()[PRELOAD.len()..]) {
            return None;
        }
        let others = preload.filter(|_| !loads);
        Some(Self { passage, environment, count, others, bare: preload.is_none() })
    }

    /// Words that the mended environment takes: pointers, and the list of libraries.
    fn words(&self) -> usize {
        let list =
            self.others.map_or(0, |(_, entry)| entry.count_bytes() + self.passage.preload.count_bytes());
        self.count + self.passage.entries.len() + 2 + list / size_of::<usize>() + 1
    }

    /// The mended environment.
    ///
    /// # Safety
    /// At `room` there must be [`Mending::words`] words to write.
    unsafe fn fill(&self, room: *mut usize) -> Strings {
        let array = room.cast::<*const c_char>();
        let mut filled = 0;
        let mut push = |entry: *const c_char| {
            // SAFETY: there is room for all old entries, all of ours, that of the library, and the end.
            unsafe { array.add(filled).write(entry) };
            filled += 1;
        };
        // SAFETY: the environment is an array of C strings (of `count`).
        let old = |nth: usize| unsafe { *self.environment.add(nth) };
        (0..self.count).for_each(|nth| push(old(nth)));
        for ours in &self.passage.entries {
            // SAFETY: as above.
            if !unsafe { strings(self.environment) }.any(|entry| same_name(entry, ours)) {
                push(ours.as_ptr());
            }
        }
        if self.bare {
            push(self.passage.preload.as_ptr());
        }
        push(std::ptr::null());
        if let Some((nth, entry)) = self.others {
            let (list, ours) = (entry.to_bytes(), &self.passage.preload.to_bytes_with_nul()[PRELOAD.len()..]);
            // SAFETY: behind the array there is room for both and what parts them; the entry exists.
            unsafe {
                let text = array.add(filled).cast::<u8>();
                text.copy_from_nonoverlapping(list.as_ptr(), list.len());
                text.add(list.len()).write(b':');
                text.add(list.len() + 1).copy_from_nonoverlapping(ours.as_ptr(), ours.len());
                array.add(nth).write(text.cast());
            }
        }
        array.cast_const().cast()
    }
}

fn same_name(entry: &CStr, other: &CStr) -> bool {
    let other = other.to_bytes();
    let end = other.iter().position(|&byte| byte == b'=').map_or(other.len(), |at| at + 1);
    entry.to_bytes().starts_with(&other[..end])
}

fn is_readable(path: &CStr) -> bool {
    // SAFETY: the path is a C string.
    unsafe { kernel(libc::SYS_access, [path.as_ptr().addr(), libc::R_OK as usize, 0, 0, 0, 0]) }.is_ok()
}

/// Calls `call` with `environment`, mended where that is to be done.
///
/// # Safety
/// The environment must be a null-terminated array of C strings, or null.
unsafe fn mended(environment: Strings, call: &dyn Fn(Strings) -> c_int) -> c_int {
    // SAFETY: the caller's contract.
    match unsafe { Mending::of(environment) } {
        None => call(environment),
        // SAFETY: each has as much room as it is asked for.
        Some(mending) => unsafe {
            match mending.words() {
                0..=WORDS_FEW => on_stack::<WORDS_FEW>(&mending, call),
                words if words <= WORDS_MANY => on_stack::<WORDS_MANY>(&mending, call),
                words => in_mapping(&mending, words, call),
            }
        },
    }
}

/// # Safety
/// The mended environment must take no more than so many words.
#[inline(never)]
unsafe fn on_stack<const WORDS: usize>(mending: &Mending<'_>, call: &dyn Fn(Strings) -> c_int) -> c_int {
    let mut room = [const { MaybeUninit::<usize>::uninit() }; WORDS];
    // SAFETY: the caller's contract.
    call(unsafe { mending.fill(room.as_mut_ptr().cast()) })
}

/// # Safety
/// The mended environment must take no more than so many words.
#[cold]
unsafe fn in_mapping(mending: &Mending<'_>, words: usize, call: &dyn Fn(Strings) -> c_int) -> c_int {
    let bytes = words * size_of::<usize>();
    let access = (libc::PROT_READ | libc::PROT_WRITE) as usize;
    let kind = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS) as usize;
    // SAFETY: a new mapping at an address of the kernel's choice, which is given up when nobody uses it any more.
    unsafe {
        let Ok(room) = kernel(libc::SYS_mmap, [0, bytes, access, kind, usize::MAX, 0]) else {
            return call(mending.environment);
        };
        let result = call(mending.fill(room as *mut usize));
        let _ = kernel(libc::SYS_munmap, [room, bytes, 0, 0, 0, 0]);
        result
    }
}

/// The environment of this process.
fn own() -> Strings {
    // SAFETY: it is changed as C has it: by whoever sees to it that nobody uses it meanwhile.
    unsafe { environ }
}

/// `execve(2)` by number.
///
/// # Safety
/// As for the call.
pub(crate) unsafe fn execve_by_number(path: usize, arguments: usize, environment: usize) -> c_int {
    // SAFETY: the caller's contract.
    unsafe {
        mended(environment as Strings, &|environment| {
            count(kernel(libc::SYS_execve, [path, arguments, environment.addr(), 0, 0, 0])) as c_int
        })
    }
}

/// `execveat(2)` by number.
///
/// # Safety
/// As for the call.
pub(crate) unsafe fn execveat_by_number([at, path, arguments, environment, flags]: [usize; 5]) -> c_int {
    // SAFETY: the caller's contract.
    unsafe {
        mended(environment as Strings, &|environment| {
            count(kernel(libc::SYS_execveat, [at, path, arguments, environment.addr(), flags, 0])) as c_int
        })
    }
}

/// `execve(2)`.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn execve(
    path: *const c_char,
    arguments: Strings,
    environment: Strings,
) -> c_int {
    // SAFETY: the function of that name has this type; the rest is the caller's contract.
    unsafe {
        let next = std::mem::transmute::<*mut c_void, Execve>(EXECVE.get());
        mended(environment, &|environment| next(path, arguments, environment))
    }
}

/// `execv(3)`.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn execv(path: *const c_char, arguments: Strings) -> c_int {
    // SAFETY: the caller's contract.
    unsafe { execve(path, arguments, own()) }
}

/// `execvpe(3)`.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn execvpe(
    file: *const c_char,
    arguments: Strings,
    environment: Strings,
) -> c_int {
    // SAFETY: as for `execve`.
    unsafe {
        let next = std::mem::transmute::<*mut c_void, Execve>(EXECVPE.get());
        mended(environment, &|environment| next(file, arguments, environment))
    }
}

/// `execvp(3)`.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn execvp(file: *const c_char, arguments: Strings) -> c_int {
    // SAFETY: the caller's contract.
    unsafe { execvpe(file, arguments, own()) }
}

/// `execveat(2)`.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn execveat(
    at: c_int,
    path: *const c_char,
    arguments: Strings,
    environment: Strings,
    flags: c_int,
) -> c_int {
    // The C library has it from 2.34 on: nobody can have linked against it before.
    let Some(next) = EXECVEAT.find() else {
        // SAFETY: the caller's contract.
        return unsafe {
            execveat_by_number([
                at as usize,
                path.addr(),
                arguments.addr(),
                environment.addr(),
                flags as usize,
            ])
        };
    };
    // SAFETY: as for `execve`.
    unsafe {
        let next = std::mem::transmute::<*mut c_void, Execveat>(next);
        mended(environment, &|environment| next(at, path, arguments, environment, flags))
    }
}

/// `fexecve(3)`.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn fexecve(fd: c_int, arguments: Strings, environment: Strings) -> c_int {
    // SAFETY: as for `execve`.
    unsafe {
        let next = std::mem::transmute::<*mut c_void, Fexecve>(FEXECVE.get());
        mended(environment, &|environment| next(fd, arguments, environment))
    }
}

macro_rules! spawn_functions {
    ($($(#[$doc:meta])* $name:ident: $next:ident;)+) => {$(
        $(#[$doc])*
        ///
        /// # Safety
        /// As in C.
        #[unsafe(no_mangle)]
        pub(crate) unsafe extern "C" fn $name(
            pid: *mut libc::pid_t,
            path: *const c_char,
            actions: *const c_void,
            attributes: *const c_void,
            arguments: Strings,
            environment: Strings,
        ) -> c_int {
            // SAFETY: as for `execve`.
            unsafe {
                let next = std::mem::transmute::<*mut c_void, Spawn>($next.get());
                mended(environment, &|environment| next(pid, path, actions, attributes, arguments, environment))
            }
        }
    )+};
}

spawn_functions! {
    /// `posix_spawn(3)`.
    posix_spawn: POSIX_SPAWN;
    /// `posix_spawnp(3)`.
    posix_spawnp: POSIX_SPAWNP;
}

/// `execl(3)`, from the array of its arguments.
unsafe extern "C" fn execl_from(path: *const c_char, arguments: Strings) -> c_int {
    // SAFETY: the caller's contract.
    unsafe { execve(path, arguments, own()) }
}

/// `execlp(3)`, likewise.
unsafe extern "C" fn execlp_from(file: *const c_char, arguments: Strings) -> c_int {
    // SAFETY: the caller's contract.
    unsafe { execvpe(file, arguments, own()) }
}

/// `execle(3)`, likewise: behind the null pointer stands the environment.
unsafe extern "C" fn execle_from(path: *const c_char, arguments: Strings) -> c_int {
    // SAFETY: the caller's contract.
    unsafe {
        let length = strings(arguments).count();
        execve(path, arguments, *arguments.add(length + 1).cast())
    }
}

/// Functions whose arguments are listed in the call.
macro_rules! listing_functions {
    ($($(#[$doc:meta])* $name:ident: $from:ident;)+) => {$(
        $(#[$doc])*
        ///
        /// # Safety
        /// As in C.
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        pub(crate) unsafe extern "C" fn $name(_: *const c_char, _: *const c_char) -> c_int {
            call_with_array!($from)
        }
    )+};
}

listing_functions! {
    /// `execl(3)`.
    execl: execl_from;
    /// `execlp(3)`.
    execlp: execlp_from;
    /// `execle(3)`.
    execle: execle_from;
}
