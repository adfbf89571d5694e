//! Static data of the executable that begins as zeroes (`.bss`): managed where it is large, as Fortran's arrays are and C's may be.

use crate::current::managed;
use crate::objects;
use pagetide::regions::{Access, Attributes, Charging};
use pagetide_swap::{PAGE_SIZE, PageIndex};
use std::ffi::CStr;
use std::ops::Range;

/// Less is not worth managing: 4 MiB. It is charged as a whole, and compilers have 2 MiB of which they use little.
const MANAGED_MIN: usize = 4 << 20;

/// Functions that engine threads call, and that lead to the executable if it has them. Those of a sanitizer that is linked in look at
/// data of its own.
const CALLED: [&CStr; 6] = [c"memcpy", c"memmove", c"memset", c"memcmp", c"bcmp", c"strlen"];
/// Sanitizers stop all threads, those of the engine too, and look at all static data then.
const SANITIZERS: [&CStr; 4] = [c"__asan_init", c"__lsan_init", c"__msan_init", c"__hwasan_init"];

/// Manages what is large of it. Called once, when the process has joined its run.
pub(crate) fn manage() {
    let Some(process) = managed() else { return };
    let Some(base) = base() else { return };
    let ranges = || headers().iter().filter_map(|header| zeroes(header, base));
    if ranges().next().is_none() || must_stay() {
        return;
    }
    for range in ranges() {
        let pages = (range.end.0 - range.start.0) as i64;
        process.charge(pages);
        let released = process.enter().mapped(range, Attributes::new(Access::Write, Charging::ByMapping));
        process.uncharge(released);
    }
}

/// Whether threads of the engine, or what stops them, may need it.
fn must_stay() -> bool {
    let must = |object: objects::Object| {
        let is_executable = object.name().is_empty();
        let defines = |name: &&CStr| object.defines(name);
        (is_executable && CALLED.iter().any(defines) || SANITIZERS.iter().any(defines)).then_some(())
    };
    objects::find(must).is_some()
}

/// The program headers of the executable.
fn headers() -> &'static [libc::Elf64_Phdr] {
    // SAFETY: asks for words that the kernel has passed.
    let (at, count, size) = unsafe {
        (libc::getauxval(libc::AT_PHDR), libc::getauxval(libc::AT_PHNUM), libc::getauxval(libc::AT_PHENT))
    };
    if at == 0 || size as usize != size_of::<libc::Elf64_Phdr>() {
        return &[];
    }
    // SAFETY: the kernel has mapped so many headers of that size there, as the loader relies on.
    unsafe { std::slice::from_raw_parts(at as *const libc::Elf64_Phdr, count as usize) }
}

/// The number that is added to the addresses in its file: 0 where it has a place of its own.
fn base() -> Option<usize> {
    let headers = headers();
    let own = headers.iter().find(|header| header.p_type == libc::PT_PHDR)?;
    (headers.as_ptr() as usize).checked_sub(own.p_vaddr as usize)
}

/// The pages of a segment that are of no file, if they are worth managing.
fn zeroes(header: &libc::Elf64_Phdr, base: usize) -> Option<Range<PageIndex>> {
    if header.p_type != libc::PT_LOAD || header.p_flags & libc::PF_W == 0 {
        return None;
    }
    let start = base + header.p_vaddr as usize;
    let of_file = (start + header.p_filesz as usize).next_multiple_of(PAGE_SIZE);
    let end = (start + header.p_memsz as usize).next_multiple_of(PAGE_SIZE);
    // What the loader makes read-only, as copies of constants in an executable of LLVM's linker, is another kind of memory.
    let is_relro = |header: &libc::Elf64_Phdr| {
        let relro = base + header.p_vaddr as usize;
        header.p_type == libc::PT_GNU_RELRO && relro < end && relro + header.p_memsz as usize > of_file
    };
    let is_large = end >= of_file + MANAGED_MIN;
    (is_large && !headers().iter().any(is_relro))
        .then(|| PageIndex::of_address(of_file)..PageIndex::of_address(end))
}
