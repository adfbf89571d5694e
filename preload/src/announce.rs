//! Calls on large buffers: the engine hears beforehand which pages they touch.
//!
//! A call may do less than it is asked to, and touch less: `read` from a socket returns what has come. So a call is announced
//! only if the last one of its kind on its descriptor did all. No lock is taken: these functions may be called in signal handlers.

use crate::current::managed;
use crate::range::pages;
use pagetide::runtime::Runtime;
use pagetide_swap::PAGE_SIZE;
use pagetide_swap::announced::Call;
use std::ffi::c_int;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// The shortest buffer that is announced: below nothing follows the first fault, or hardly anything.
const LARGE: usize = 2 * PAGE_SIZE;
/// Descriptors that are told from each other.
const DESCRIPTORS: usize = 1024;
const WORD: usize = u64::BITS as usize;

/// A bit for each descriptor: whether the last call on a large buffer did all that it was asked to.
type Complete = [AtomicU64; DESCRIPTORS / WORD];
static FILLS: Complete = [const { AtomicU64::new(0) }; DESCRIPTORS / WORD];
static EMPTIES: Complete = [const { AtomicU64::new(0) }; DESCRIPTORS / WORD];

/// A call on a large buffer that is under way. It has no destructor: a thread that is cancelled unwinds past it.
#[derive(Clone, Copy)]
pub(crate) struct Large {
    /// The word of its descriptor, and the bit there.
    complete: (&'static AtomicU64, u64),
    length: usize,
    call: Option<(&'static Runtime, Call)>,
}

/// Notes that a call is about to fill a buffer from a descriptor. `None` if that is small, or no engine runs.
pub(crate) fn fills(fd: c_int, address: usize, length: usize) -> Option<Large> {
    announce(&FILLS, fd, address, length)
}

/// Notes that a call is about to write a buffer to a descriptor. `None` as of [`fills`].
pub(crate) fn empties(fd: c_int, address: usize, length: usize) -> Option<Large> {
    announce(&EMPTIES, fd, address, length)
}

fn announce(complete: &'static Complete, fd: c_int, address: usize, length: usize) -> Option<Large> {
    if length < LARGE {
        return None;
    }
    let runtime = managed()?.runtime()?;
    let fd = fd as usize % DESCRIPTORS;
    let (word, bit) = (&complete[fd / WORD], 1 << (fd % WORD));
    let range = pages(address, length).filter(|_| word.load(Relaxed) & bit != 0);
    let call = range.and_then(|range| runtime.engine().announce(range));
    Some(Large { complete: (word, bit), length, call: call.map(|call| (runtime, call)) })
}

impl Large {
    /// Notes that the call has ended, with this result.
    pub(crate) fn ended(self, result: isize) {
        if let Some((runtime, call)) = self.call {
            runtime.engine().retract(call);
        }
        let (word, bit) = self.complete;
        let is_complete = result == self.length as isize;
        if is_complete != (word.load(Relaxed) & bit != 0) {
            _ = if is_complete { word.fetch_or(bit, Relaxed) } else { word.fetch_and(!bit, Relaxed) };
        }
    }
}
