//! Cross-memory attach: copies between processes' memory, for which the kernel pins pages of one side while it may wait for
//! pages of the other.

use crate::call::{count, kernel};
use crate::current::managed;
use pagetide::process::Process;
use pagetide_swap::PAGE_SIZE;
use pagetide_sys::task;
use std::ffi::{c_int, c_long, c_ulong};

/// Bytes that one call to the kernel copies: what it pins stays in memory meanwhile.
const PIECE: usize = PIECE_PAGES * PAGE_SIZE;
const PIECE_PAGES: usize = 64;
/// Ranges that one call takes at most.
const UIO_MAXIOV: usize = 1024;

macro_rules! crossing_calls {
    ($($(#[$doc:meta])* $name:ident, $number:ident;)+) => {$(
        $(#[$doc])*
        ///
        /// # Safety
        /// As in C.
        #[unsafe(no_mangle)]
        pub(crate) unsafe extern "C" fn $name(
            pid: libc::pid_t,
            local: *const libc::iovec,
            locals: c_ulong,
            remote: *const libc::iovec,
            remotes: c_ulong,
            flags: c_ulong,
        ) -> isize {
            let vectors = [local as usize, locals as usize, remote as usize, remotes as usize];
            let [local, locals, remote, remotes] = vectors;
            // SAFETY: the caller's contract.
            unsafe { by_number(libc::$number, [pid as usize, local, locals, remote, remotes, flags as usize]) }
        }
    )+};
}

crossing_calls! {
    /// `process_vm_readv(2)`.
    process_vm_readv, SYS_process_vm_readv;
    /// `process_vm_writev(2)`.
    process_vm_writev, SYS_process_vm_writev;
}

/// Makes such a call by its number: piece by piece, and each while no page of the run leaves in a way that takes pinned ones
/// along.
///
/// # Safety
/// As of `process_vm_readv`.
pub(crate) unsafe fn by_number(number: c_long, arguments: [usize; 6]) -> isize {
    let [pid, local, locals, remote, remotes, flags] = arguments;
    let plain = || {
        // SAFETY: the caller's contract.
        count(unsafe { kernel(number, arguments) })
    };
    let Some(process) = managed() else { return plain() };
    // (A child of `vfork` that were killed amid this would leave its parent's count behind.)
    if flags != 0 || locals > UIO_MAXIOV || remotes > UIO_MAXIOV || !process.is_current() {
        return plain();
    }
    // SAFETY: the caller passes so many of each.
    let sides = unsafe { [Side::new(local, locals), Side::new(remote, remotes)] };
    if sides.iter().any(Side::is_refused) {
        // The kernel says why.
        return plain();
    }
    count(copy(process, number, pid, sides))
}

/// Copies from or to all of both sides, up to the end of the shorter one. Returns the number of bytes: fewer where the kernel
/// stops, and its error if it copies none.
fn copy(
    process: &'static Process,
    number: c_long,
    pid: usize,
    [mut local, mut remote]: [Side; 2],
) -> Result<usize, c_int> {
    let mut copied = 0;
    while let (Some(here), Some(there)) = (local.next(), remote.next()) {
        let length = here.iov_len.min(there.iov_len).min(PIECE);
        let [here, there] = [here, there].map(|from| libc::iovec { iov_len: length, ..from });
        bring_in(pid, number == libc::SYS_process_vm_readv, here, there);
        let arguments = [pid, (&raw const here).addr(), 1, (&raw const there).addr(), 1, 0];
        // SAFETY: the caller's contract: parts of what it passes.
        match process.crossing(|| unsafe { kernel(number, arguments) }) {
            Ok(done) => {
                copied += done;
                if done < length {
                    break;
                }
            }
            Err(_) if copied > 0 => break,
            Err(error) => return Err(error),
        }
        local.done += length;
        remote.done += length;
    }
    Ok(copied)
}

/// Brings in what is about to be copied, while there may be a wait for room.
fn bring_in(pid: usize, reads: bool, here: libc::iovec, there: libc::iovec) {
    let start = here.iov_base as usize / PAGE_SIZE * PAGE_SIZE;
    let length = here.iov_base as usize - start + here.iov_len;
    if reads {
        task::populate(start, length);
    } else {
        task::bring_in(start, length);
    }
    // A byte of each page, read into one that nobody looks at. What the kernel pins for that it does not write to.
    let mut bytes = [0_u8; PIECE_PAGES + 1];
    let first = there.iov_base as usize;
    let ends = first.saturating_add(there.iov_len);
    let pages = (first..ends).step_by(PAGE_SIZE).map(|at| at / PAGE_SIZE * PAGE_SIZE).chain([ends - 1]);
    let mut parts = [libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 1 }; PIECE_PAGES + 1];
    let mut number = 0;
    for (part, page) in parts.iter_mut().zip(pages) {
        part.iov_base = page.max(first) as *mut _;
        number += 1;
    }
    let into = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: number };
    let arguments = [pid, (&raw const into).addr(), 1, parts.as_ptr().addr(), number, 0];
    // SAFETY: as many bytes are read as there is room for. Where it fails the call itself will say so.
    let _ = unsafe { kernel(libc::SYS_process_vm_readv, arguments) };
}

/// The ranges of one side that are still to be copied. Nothing is allocated: many are read where the caller has them, and only a
/// few may lie in what is written.
struct Side {
    vector: *const libc::iovec,
    few: Option<[libc::iovec; FEW]>,
    number: usize,
    at: usize,
    /// Bytes of the range at `at` that have been copied.
    done: usize,
}

/// Ranges that are copied beforehand.
const FEW: usize = 8;

impl Side {
    /// # Safety
    /// `number` ranges lie at `vector`, for as long as this lives.
    unsafe fn new(vector: usize, number: usize) -> Self {
        let mut this = Self { vector: vector as *const libc::iovec, few: None, number, at: 0, done: 0 };
        if number <= FEW {
            let mut few = [libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 }; FEW];
            few.iter_mut().take(number).enumerate().for_each(|(nth, range)| *range = this.range(nth));
            this.few = Some(few);
        }
        this
    }

    fn range(&self, nth: usize) -> libc::iovec {
        if let Some(few) = &self.few {
            return few[nth];
        }
        // SAFETY: as whoever made this says. The kernel does not ask for any alignment.
        unsafe { self.vector.add(nth).read_unaligned() }
    }

    /// Whether there is nothing to copy, or the kernel would refuse so many bytes, or a range ends beyond all addresses.
    fn is_refused(&self) -> bool {
        let sum = (0..self.number).map(|nth| self.range(nth)).try_fold(0_usize, |all, range| {
            (range.iov_base as usize).checked_add(range.iov_len)?;
            all.checked_add(range.iov_len)
        });
        !matches!(sum, Some(all) if all > 0 && isize::try_from(all).is_ok())
    }

    fn next(&mut self) -> Option<libc::iovec> {
        while self.at < self.number {
            let range = self.range(self.at);
            if range.iov_len > self.done {
                let iov_base = range.iov_base.wrapping_byte_add(self.done);
                return Some(libc::iovec { iov_base, iov_len: range.iov_len - self.done });
            }
            (self.at, self.done) = (self.at + 1, 0);
        }
        None
    }
}
