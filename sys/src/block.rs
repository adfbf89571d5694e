//! What lies at an engine thread's thread pointer: a thread block that we make, without the C library.
//!
//! ```text
//! … stack │ thread-local data of the C library and of us │ thread pointer: struct pthread … │ end
//! ```
//!
//! Where a library's thread-local data lie below the thread pointer is the same in all threads, if it was there when
//! the process started. An engine thread has those of two: of the C library, for `errno`, and of the one that this code
//! is part of.

use crate::arch::{BLOCK_HEAD, BLOCK_ITSELF, BLOCK_SECRETS, thread_pointer};
use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// Thread-local data of one library.
#[derive(Clone, Copy, Debug, Default)]
struct Image {
    /// Their distance below the thread pointer, in bytes.
    below: usize,
    /// The address and length of their initial values. The rest is zero.
    initial: (usize, usize),
    length: usize,
}

/// The layout of a block in this process.
#[derive(Debug, Default)]
pub(crate) struct Layout {
    images: [Image; 2],
    align: usize,
}

/// `None` if it could not be found out.
static LAYOUT: OnceLock<Option<Layout>> = OnceLock::new();
/// The distance of our own data below the thread pointer, in bytes; 0 before it is known.
static OWN_BELOW: AtomicUsize = AtomicUsize::new(0);

thread_local!(static OWN: Cell<u8> = const { Cell::new(0) });

/// Returns how far below every thread's pointer the thread-local data of this library lie; `None` before [`prepare`].
#[inline]
pub fn own_below() -> Option<usize> {
    Some(OWN_BELOW.load(Relaxed)).filter(|&below| below != 0)
}

/// Finds out how thread blocks are laid out. Call it when the process starts: later the loader's lock may be held by
/// whoever waits for an engine thread, and in a forked child its data may be out of memory.
pub fn prepare() {
    layout();
}

/// The layout; `None` if it cannot be found out.
pub(crate) fn layout() -> Option<&'static Layout> {
    let found = LAYOUT.get_or_init(Layout::of_this_process).as_ref();
    if let Some(layout) = found {
        OWN_BELOW.store(layout.images[0].below, Relaxed);
    }
    found
}

/// Addresses of thread-local data of the calling thread, and what is found of them.
struct Search {
    wanted: [usize; 2],
    layout: Layout,
}

unsafe extern "C" fn look(info: *mut libc::dl_phdr_info, _: usize, search: *mut c_void) -> c_int {
    // SAFETY: the loader passes a library's headers, and what `prepare` gave it.
    let (info, search) = unsafe { (&*info, &mut *search.cast::<Search>()) };
    if info.dlpi_phdr.is_null() || info.dlpi_tls_data.is_null() {
        return 0;
    }
    // SAFETY: as above.
    let headers = unsafe { std::slice::from_raw_parts(info.dlpi_phdr, info.dlpi_phnum.into()) };
    let Some(tls) = headers.iter().find(|header| header.p_type == libc::PT_TLS) else { return 0 };
    let (start, length) = (info.dlpi_tls_data.addr(), tls.p_memsz as usize);
    for (image, wanted) in search.layout.images.iter_mut().zip(search.wanted) {
        if (start..start + length).contains(&wanted) {
            *image = Image {
                below: thread_pointer().wrapping_sub(start),
                initial: ((info.dlpi_addr + tls.p_vaddr) as usize, tls.p_filesz as usize),
                length,
            };
            search.layout.align = search.layout.align.max(tls.p_align as usize);
        }
    }
    0
}

impl Layout {
    fn of_this_process() -> Option<Self> {
        // SAFETY: the location is the calling thread's own.
        let errno = unsafe { libc::__errno_location() }.addr();
        let own = OWN.with(|own| std::ptr::from_ref(own).addr());
        let mut search = Search { wanted: [own, errno], layout: Self::default() };
        // SAFETY: the callback gets what it takes.
        unsafe { libc::dl_iterate_phdr(Some(look), (&raw mut search).cast()) };
        let found = search.layout.images.iter().all(|image| image.length > 0);
        found.then_some(search.layout)
    }

    fn below(&self) -> usize {
        self.images.iter().map(|image| image.below).max().unwrap_or(0)
    }

    fn align(&self) -> usize {
        self.align.next_power_of_two().max(64)
    }

    /// Bytes that a block takes at most.
    pub(crate) fn length(&self) -> usize {
        (BLOCK_HEAD + self.below()).next_multiple_of(self.align()) + self.align()
    }

    /// Returns the address at which the stack below a block begins.
    pub(crate) fn bottom(&self, pointer: usize) -> usize {
        (pointer - self.below()) / 64 * 64
    }

    /// Makes the block of a thread that is to be started, before `end`. Returns the thread's pointer.
    ///
    /// # Safety
    /// [`Layout::length`] bytes before `end` must be writable memory that nobody uses.
    pub(crate) unsafe fn build(&self, end: usize) -> usize {
        let pointer = (end - BLOCK_HEAD) / self.align() * self.align();
        // SAFETY: all of it lies within the caller's range; images are constants of loaded libraries that stay; the
        // offsets read are within the head of the calling thread's block.
        unsafe {
            std::ptr::write_bytes(pointer as *mut u8, 0, end - pointer);
            for Image { below, initial: (from, filled), length } in self.images {
                let data = (pointer - below) as *mut u8;
                data.copy_from_nonoverlapping(from as *const u8, filled);
                data.add(filled).write_bytes(0, length - filled);
            }
            for offset in BLOCK_ITSELF {
                ((pointer + offset) as *mut usize).write(pointer);
            }
            for offset in BLOCK_SECRETS {
                ((pointer + offset) as *mut usize)
                    .write(((thread_pointer() + offset) as *const usize).read());
            }
        }
        pointer
    }
}
