//! The objects that the loader has loaded, and what their symbol tables say.
//!
//! The tables are read where they lie. Asked by name, the loader would give the address of a stub in the executable for
//! a function whose address a program at a fixed place takes (a canonical PLT entry: undefined, with a value).

use std::ffi::{CStr, c_char, c_int};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering::Acquire, Ordering::Release};

const DT_NULL: i64 = 0;
const DT_HASH: i64 = 4;
const DT_STRTAB: i64 = 5;
const DT_SYMTAB: i64 = 6;
const DT_GNU_HASH: i64 = 0x6fff_fef5;
const SHN_UNDEF: u16 = 0;

/// A loaded object that has a table of symbols.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Object {
    /// The number that is added to the addresses in its file.
    base: usize,
    name: &'static CStr,
    dynamic: *const Dynamic,
    hashes: Hashes,
    symbols: *mut libc::Elf64_Sym,
    strings: *const c_char,
}

/// The table by which its symbols are found.
#[derive(Clone, Copy, Debug)]
enum Hashes {
    /// `DT_GNU_HASH`, which linkers have made since 2006.
    Gnu(*const u32),
    /// `DT_HASH`, of which only the number of symbols is used.
    Counted(*const u32),
}

/// An entry of a dynamic section: `Elf64_Dyn`.
#[repr(C)]
struct Dynamic {
    tag: i64,
    value: usize,
}

/// The hash of `DT_GNU_HASH`.
fn gnu_hash(name: &CStr) -> u32 {
    name.to_bytes().iter().fold(5381, |hash: u32, &byte| hash.wrapping_mul(33).wrapping_add(byte.into()))
}

impl Object {
    /// The object that `map` describes.
    ///
    /// # Safety
    /// `map` is of an object that stays loaded.
    unsafe fn new(map: &LinkMap) -> Option<Self> {
        let base = map.base;
        let (mut hashes, mut symbols, mut strings) = (None, 0, 0);
        let mut entry = map.dynamic;
        loop {
            // SAFETY: a dynamic section goes on until DT_NULL.
            let Dynamic { tag, value } = unsafe { entry.read() };
            // The loader has made addresses of these, except in a section that it cannot write (the vDSO's).
            let address = if value < base { base + value } else { value };
            match tag {
                DT_NULL => break,
                DT_GNU_HASH => hashes = Some(Hashes::Gnu(address as *const u32)),
                DT_HASH if hashes.is_none() => hashes = Some(Hashes::Counted(address as *const u32)),
                DT_SYMTAB => symbols = address,
                DT_STRTAB => strings = address,
                _ => {}
            }
            entry = entry.wrapping_add(1);
        }
        (symbols != 0 && strings != 0).then_some(Self {
            base,
            // SAFETY: the loader's name of the object.
            name: unsafe { CStr::from_ptr(map.name) },
            dynamic: map.dynamic,
            hashes: hashes?,
            symbols: symbols as *mut libc::Elf64_Sym,
            strings: strings as *const c_char,
        })
    }

    /// The loader's name of it: a path, or empty for the executable.
    pub(crate) fn name(&self) -> &'static CStr {
        self.name
    }

    /// The number that is added to the addresses in its file.
    pub(crate) fn base(&self) -> usize {
        self.base
    }

    /// Returns whether it is this library.
    pub(crate) fn is_own(&self) -> bool {
        // SAFETY: the linker's name of this library's section; only its address is taken.
        self.dynamic == &raw const _DYNAMIC
    }

    /// Calls `each` with its symbols of that name, of every version, defined or not.
    pub(crate) fn each_named(&self, name: &CStr, mut each: impl FnMut(*mut libc::Elf64_Sym)) {
        let mut look = |index: u32| {
            // SAFETY: the hashes name symbols of the table, and those their names.
            unsafe {
                let symbol = self.symbols.add(index as usize);
                if CStr::from_ptr(self.strings.add((*symbol).st_name as usize)) == name {
                    each(symbol);
                }
            }
        };
        match self.hashes {
            // SAFETY: the second word of the table is the number of symbols, the first of which is none.
            Hashes::Counted(table) => (1..unsafe { table.add(1).read() }).for_each(look),
            // SAFETY: the table is of that form.
            Hashes::Gnu(table) => unsafe { each_hashed(table, gnu_hash(name), &mut look) },
        }
    }

    /// Calls `each` with every symbol that it defines for others, and its name. Only of an object of the newer form.
    pub(crate) fn each_defined(&self, mut each: impl FnMut(&'static CStr, &libc::Elf64_Sym)) {
        let Hashes::Gnu(table) = self.hashes else { return };
        // SAFETY: the table is of the form that `each_hashed` describes: it has the symbols from `first` on, bucket by
        // bucket, and the chain of the last bucket that is not empty ends it.
        unsafe {
            let [buckets, first, filter, _] = table.cast::<[u32; 4]>().read();
            let heads = table.add(4 + 2 * filter as usize);
            let chains = heads.add(buckets as usize);
            let last = (0..buckets).map(|bucket| heads.add(bucket as usize).read()).max().unwrap_or(0);
            if last < first {
                return;
            }
            let mut index = first;
            loop {
                let symbol = &*self.symbols.add(index as usize);
                if symbol.st_shndx != SHN_UNDEF {
                    each(CStr::from_ptr(self.strings.add(symbol.st_name as usize)), symbol);
                }
                if index >= last && chains.add((index - first) as usize).read() & 1 == 1 {
                    return;
                }
                index += 1;
            }
        }
    }

    /// Returns the access to the page of an address, as the file has it (PROT_READ and so on). Not of the executable.
    pub(crate) fn access(&self, address: usize) -> c_int {
        let at = (address - self.base) as u64;
        // SAFETY: a library begins with its header, which says where the program headers lie.
        let headers = unsafe {
            let header = &*(self.base as *const libc::Elf64_Ehdr);
            let start = (self.base + header.e_phoff as usize) as *const libc::Elf64_Phdr;
            std::slice::from_raw_parts(start, header.e_phnum.into())
        };
        let mut segments = headers.iter().filter(|header| header.p_type == libc::PT_LOAD);
        let segment = segments.find(|header| (header.p_vaddr..header.p_vaddr + header.p_memsz).contains(&at));
        let flags = segment.map_or(libc::PF_R, |header| header.p_flags);
        [(libc::PF_R, libc::PROT_READ), (libc::PF_W, libc::PROT_WRITE), (libc::PF_X, libc::PROT_EXEC)]
            .into_iter()
            .fold(0, |access, (flag, bit)| access | if flags & flag != 0 { bit } else { 0 })
    }

    /// Returns whether it defines that name for others.
    pub(crate) fn defines(&self, name: &CStr) -> bool {
        let mut defined = false;
        // SAFETY: the symbol is in the object's table.
        self.each_named(name, |symbol| defined |= unsafe { (*symbol).st_shndx } != SHN_UNDEF);
        defined
    }
}

/// Calls `look` with the index of each symbol that has this hash.
///
/// # Safety
/// `table` is what `DT_GNU_HASH` names: four words, a Bloom filter of 64-bit words, the buckets, and the chains, a word
/// for each symbol from `first` on. A chain ends where the lowest bit is set.
unsafe fn each_hashed(table: *const u32, hash: u32, look: &mut impl FnMut(u32)) {
    // SAFETY: the caller's contract.
    unsafe {
        let [buckets, first, filter, shift] = table.cast::<[u32; 4]>().read();
        let bloom = table.add(4).cast::<u64>();
        let bits = bloom.add((hash / 64 % filter.max(1)) as usize).read_unaligned();
        let both = 1u64 << (hash % 64) | 1u64 << ((hash >> shift) % 64);
        if buckets == 0 || bits & both != both {
            return;
        }
        let heads = table.add(4 + 2 * filter as usize);
        let chains = heads.add(buckets as usize);
        let mut index = heads.add((hash % buckets) as usize).read();
        while index >= first {
            let entry = chains.add((index - first) as usize).read();
            if (entry ^ hash) >> 1 == 0 {
                look(index);
            }
            if entry & 1 == 1 {
                return;
            }
            index += 1;
        }
    }
}

// The loader's list, for debuggers; and this library's own dynamic section.
unsafe extern "C" {
    static _r_debug: Debug;
    static _DYNAMIC: Dynamic;
}

/// The beginning of `struct r_debug`.
#[repr(C)]
struct Debug {
    version: c_int,
    first: *const LinkMap,
}

/// The beginning of `struct link_map`, which has been so since the loader exists.
#[repr(C)]
struct LinkMap {
    base: usize,
    name: *const c_char,
    dynamic: *const Dynamic,
    next: *const LinkMap,
}

/// The last object that was there when the program started: what is loaded later may go again.
static LAST: AtomicPtr<LinkMap> = AtomicPtr::new(null_mut());

/// Notes the objects with which the program starts: from the constructor.
pub(crate) fn prepare() {
    // SAFETY: no other thread loads anything yet.
    unsafe {
        let mut map = _r_debug.first;
        while let Some(LinkMap { next, .. }) = map.as_ref().filter(|map| !map.next.is_null()) {
            map = *next;
        }
        LAST.store(map.cast_mut(), Release);
    }
}

/// Calls `visit` with each object with which the program started, in the order in which the loader looks for names,
/// until it returns something. (Not by `dl_iterate_phdr`: sanitizers have a function of that name.)
pub(crate) fn find<T>(mut visit: impl FnMut(Object) -> Option<T>) -> Option<T> {
    let last = LAST.load(Acquire).cast_const();
    // SAFETY: what is in the list up to `last` stays there.
    unsafe {
        let mut map = if last.is_null() { std::ptr::null() } else { _r_debug.first };
        while let Some(this) = map.as_ref() {
            if let Some(found) = Object::new(this).and_then(&mut visit) {
                return Some(found);
            }
            map = if map == last { std::ptr::null() } else { this.next };
        }
    }
    None
}

/// This library.
pub(crate) fn own() -> Option<Object> {
    find(|object| object.is_own().then_some(object))
}

/// Returns whether an object of the program's, before this library in the order of look-ups, defines that name.
pub(crate) fn is_taken(name: &CStr) -> bool {
    find(|object| match (object.is_own(), object.defines(name)) {
        (true, _) => Some(false),
        (false, true) => Some(true),
        (false, false) => None,
    })
    .unwrap_or(false)
}
