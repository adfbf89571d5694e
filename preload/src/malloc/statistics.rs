//! `mallinfo`, `mallinfo2`, `malloc_info` and `malloc_stats`: what the allocator knows of itself, in glibc's form.
//!
//! There is one heap. Its figures are counted anew at each call, page of the allocator by page, while other threads go
//! on: they are exact where nobody else allocates. Nothing here allocates.
//!
//! | glibc's word | here |
//! |---|---|
//! | `arena`, system | bytes of the arenas that are committed, and what is used of the first heap |
//! | `uordblks`, in use | objects in the arenas, each with what its size is rounded up to; all of the first heap |
//! | `fordblks` | the rest of `arena` |
//! | `ordblks`, rest | places for objects that are free |
//! | `keepcost` | committed bytes that no page of the allocator takes: the most that `malloc_trim` may give back |
//! | `hblks`, `hblkhd`, mmap | objects that are mappings of their own |

use super::figures::{COMMITTED, MAPPED, MAPPED_BYTES};
use super::state::{FIRST, is_ready};
use libmimalloc_sys as mi;
use pagetide_swap::PAGE_SIZE;
use std::ffi::{c_int, c_void};
use std::fmt::{self, Write};
use std::ptr::null_mut;

/// The places for objects of one size.
#[derive(Clone, Copy)]
struct Size {
    bytes: usize,
    free: usize,
}

/// More than mimalloc has sizes below that of objects which have a page for themselves.
const SIZES_MAX: usize = 80;

/// The contents of the arenas.
struct Heap {
    committed: usize,
    /// Bytes of objects.
    used: usize,
    /// Bytes of pages of the allocator, as far as objects have reached them.
    reached: usize,
    /// Sizes of which places are free, in order.
    sizes: [Size; SIZES_MAX],
    count: usize,
}

impl Heap {
    fn count() -> Self {
        let empty = Size { bytes: 0, free: 0 };
        let mut heap = Self { committed: 0, used: 0, reached: 0, sizes: [empty; SIZES_MAX], count: 0 };
        if is_ready() {
            // SAFETY: null is the heap of all threads. Its pages' descriptions lie in what arenas commit for good, so
            // that a page which goes meanwhile has one; single objects are not looked at.
            unsafe { mi::mi_heap_visit_blocks(null_mut(), false, Some(add_page), (&raw mut heap).cast()) };
        }
        // What is free of it is not known.
        heap.used += FIRST.used();
        // Last: an object that another thread allocated meanwhile lies in memory that was committed before.
        heap.committed = (COMMITTED.now() + FIRST.used()).max(heap.used);
        heap
    }

    fn add(&mut self, area: &mi::mi_heap_area_t) {
        let bytes = area.full_block_size;
        if bytes == 0 {
            return;
        }
        let reached = area.committed / bytes;
        let used = area.used.min(reached);
        self.used += used * bytes;
        self.reached += area.committed.next_multiple_of(PAGE_SIZE);
        if used < reached {
            self.add_free(bytes, reached - used);
        }
    }

    fn add_free(&mut self, bytes: usize, free: usize) {
        match self.sizes[..self.count].binary_search_by_key(&bytes, |size| size.bytes) {
            Ok(at) => self.sizes[at].free += free,
            // An object of a page of its own that is being freed.
            Err(_) if self.count == SIZES_MAX => {}
            Err(at) => {
                self.sizes.copy_within(at..self.count, at + 1);
                self.sizes[at] = Size { bytes, free };
                self.count += 1;
            }
        }
    }

    fn sizes(&self) -> &[Size] {
        &self.sizes[..self.count]
    }

    fn free_places(&self) -> usize {
        self.sizes().iter().map(|size| size.free).sum()
    }

    fn free_bytes(&self) -> usize {
        self.committed - self.used
    }
}

unsafe extern "C" fn add_page(
    _: *const mi::mi_heap_t,
    area: *const mi::mi_heap_area_t,
    _: *mut c_void,
    _: usize,
    heap: *mut c_void,
) -> bool {
    // SAFETY: mimalloc passes a page's description, and what `Heap::count` has given it.
    unsafe { (*heap.cast::<Heap>()).add(&*area) };
    true
}

/// `mallinfo2(3)`.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn mallinfo2() -> libc::mallinfo2 {
    let heap = Heap::count();
    libc::mallinfo2 {
        arena: heap.committed,
        ordblks: heap.free_places(),
        smblks: 0,
        hblks: MAPPED.now(),
        hblkhd: MAPPED_BYTES.now(),
        usmblks: 0,
        fsmblks: 0,
        uordblks: heap.used,
        fordblks: heap.free_bytes(),
        keepcost: heap.committed.saturating_sub(heap.reached),
    }
}

/// `mallinfo(3)`: figures above 2 GiB wrap around, as glibc's do.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn mallinfo() -> libc::mallinfo {
    let info = mallinfo2();
    libc::mallinfo {
        arena: info.arena as c_int,
        ordblks: info.ordblks as c_int,
        smblks: 0,
        hblks: info.hblks as c_int,
        hblkhd: info.hblkhd as c_int,
        usmblks: 0,
        fsmblks: 0,
        uordblks: info.uordblks as c_int,
        fordblks: info.fordblks as c_int,
        keepcost: info.keepcost as c_int,
    }
}

/// Text on its way to a stream of the C library.
struct Stream {
    file: *mut libc::FILE,
    text: [u8; 1024],
    length: usize,
}

impl Stream {
    /// # Safety
    /// `file` must be an open stream for as long as this lives.
    unsafe fn new(file: *mut libc::FILE) -> Self {
        Self { file, text: [0; 1024], length: 0 }
    }

    fn flush(&mut self) {
        // SAFETY: the stream is open; the bytes are initialised. Errors are the stream's, as after `fprintf`.
        unsafe { libc::fwrite(self.text.as_ptr().cast(), 1, self.length, self.file) };
        self.length = 0;
    }
}

impl Write for Stream {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for &byte in text.as_bytes() {
            if self.length == self.text.len() {
                self.flush();
            }
            self.text[self.length] = byte;
            self.length += 1;
        }
        Ok(())
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.flush();
    }
}

/// Writes what stands in the element of the heap, and in that of the whole.
fn write_totals(out: &mut Stream, heap: &Heap, mapped: Option<(usize, usize)>) -> fmt::Result {
    let (committed, most) = (heap.committed, COMMITTED.most().max(heap.committed));
    writeln!(out, "<total type=\"fast\" count=\"0\" size=\"0\"/>")?;
    writeln!(out, "<total type=\"rest\" count=\"{}\" size=\"{}\"/>", heap.free_places(), heap.free_bytes())?;
    if let Some((count, bytes)) = mapped {
        writeln!(out, "<total type=\"mmap\" count=\"{count}\" size=\"{bytes}\"/>")?;
    }
    writeln!(out, "<system type=\"current\" size=\"{committed}\"/>\n<system type=\"max\" size=\"{most}\"/>")?;
    writeln!(
        out,
        "<aspace type=\"total\" size=\"{committed}\"/>\n<aspace type=\"mprotect\" size=\"{committed}\"/>"
    )
}

fn write_info(out: &mut Stream, heap: &Heap) -> fmt::Result {
    writeln!(out, "<malloc version=\"1\">\n<heap nr=\"0\">\n<sizes>")?;
    for &Size { bytes, free } in heap.sizes() {
        let total = bytes * free;
        writeln!(out, "  <size from=\"{bytes}\" to=\"{bytes}\" total=\"{total}\" count=\"{free}\"/>")?;
    }
    writeln!(out, "</sizes>")?;
    write_totals(out, heap, None)?;
    writeln!(out, "</heap>")?;
    write_totals(out, heap, Some((MAPPED.now(), MAPPED_BYTES.now())))?;
    writeln!(out, "</malloc>")
}

/// `malloc_info(3)`.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn malloc_info(options: c_int, file: *mut libc::FILE) -> c_int {
    if options != 0 {
        return libc::EINVAL;
    }
    let heap = Heap::count();
    // SAFETY: the caller's contract.
    let mut out = unsafe { Stream::new(file) };
    // A stream takes all of it, or remembers the error.
    let _ = write_info(&mut out, &heap);
    0
}

fn write_stats(out: &mut Stream, heap: &Heap) -> fmt::Result {
    let mapped = MAPPED_BYTES.now();
    for (title, more) in [("Arena 0:", 0), ("Total (incl. mmap):", mapped)] {
        writeln!(out, "{title}\nsystem bytes     = {:10}", heap.committed + more)?;
        writeln!(out, "in use bytes     = {:10}", heap.used + more)?;
    }
    writeln!(out, "max mmap regions = {:10}\nmax mmap bytes   = {:10}", MAPPED.most(), MAPPED_BYTES.most())
}

unsafe extern "C" {
    static stderr: *mut libc::FILE;
}

/// `malloc_stats(3)`.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn malloc_stats() {
    let heap = Heap::count();
    // SAFETY: the C library's standard stream.
    let mut out = unsafe { Stream::new(stderr) };
    let _ = write_stats(&mut out, &heap);
}
