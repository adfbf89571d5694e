//! The compact form of a trace: the events that an engine saw, for replay.
//!
//! A trace is [`HEADER`], a line of JSON about the run, and chunks in the order in which processes gave them:
//!
//! ```text
//! ┌──────────────┬──────────────┬───────────────┬┄┄┄      an event: ┌─────┬─────────────┬──────────┐
//! │ process, u64 │ bytes, u32   │ events, u32   │ events            │ tag │ page, delta │ argument │
//! └──────────────┴──────────────┴───────────────┴┄┄┄                └─────┴─────────────┴──────────┘
//! ```
//!
//! Numbers of a chunk's head are little-endian. The tag is the kind (three bits) and a small argument. Pages are
//! differences to the page before, the first of a chunk to 0, folded so that small ones are small (zigzag); they and
//! the other arguments are written seven bits a byte (LEB128).

use pagetide_page::PageIndex;
use std::fmt;

/// The bytes with which a trace begins.
pub const HEADER: &[u8; 17] = b"pagetide trace 1\n";
/// The length of a chunk's head, in bytes.
pub const CHUNK_HEAD: usize = 16;
/// The length of an event at most, in bytes.
const EVENT_MAX: usize = 1 + 10 + 10;

/// The place at which an access found its page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Found {
    /// Nowhere: the page had never been touched, or was discarded.
    Hole = 0,
    /// On probation.
    Probation = 1,
    /// In its word: the page was one word, repeated.
    Same = 2,
    /// In the pool.
    Pool = 3,
    /// On the device.
    Device = 4,
    /// In memory, or it is not known: for traces that were not written by an engine.
    Anywhere = 5,
}

impl Found {
    /// All places, in the order of their numbers.
    pub const ALL: [Self; 6] =
        [Self::Hole, Self::Probation, Self::Same, Self::Pool, Self::Device, Self::Anywhere];
}

/// One event of a process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Event {
    /// A page was accessed.
    Access {
        /// The page.
        page: PageIndex,
        /// Whether the access was a write.
        write: bool,
        /// The place of the page.
        from: Found,
    },
    /// A page was stored.
    Stored {
        /// The page.
        page: PageIndex,
        /// The bytes of its compressed form: 4096 if it does not compress, 0 if it is one word, repeated.
        bytes: u32,
    },
    /// Pages were discarded: they read as zeroes from then on.
    Discard {
        /// The first page.
        page: PageIndex,
        /// The number of pages.
        pages: u64,
    },
    /// Pages of a cluster were taken out.
    TakenOut {
        /// The first page of the cluster.
        page: PageIndex,
        /// The number of pages that were taken out.
        pages: u64,
    },
}

const ACCESS: u8 = 0;
const STORED: u8 = 1;
const DISCARD: u8 = 2;
const TAKEN_OUT: u8 = 3;
const KIND_BITS: u32 = 3;
const WRITE: u8 = 1;

/// Events of one process that are to be written together.
///
/// ```
/// use pagetide_swap::PageIndex;
/// use pagetide_swap::trace::{Chunk, Event, HEADER, Reader};
///
/// let mut chunk = Chunk::with_room(1000);
/// let event = Event::Stored { page: PageIndex(7), bytes: 900 };
/// chunk.push(event);
/// let mut trace = [HEADER.as_slice(), b"{\"cap\": 100}\n"].concat();
/// trace.extend(chunk.finish(42).expect("there is an event in it"));
///
/// let (line, mut events) = Reader::new(&trace)?;
/// assert_eq!(line, b"{\"cap\": 100}");
/// assert_eq!(events.next(), Some(Ok((42, event))));
/// assert_eq!(events.next(), None);
/// # Ok::<(), pagetide_swap::trace::TraceError>(())
/// ```
#[derive(Debug, Default)]
pub struct Chunk {
    bytes: Vec<u8>,
    events: u32,
    page: u64,
    /// Events that found no room since the last chunk.
    lost: u64,
}

impl Chunk {
    /// Returns a chunk without events that has room for `bytes` bytes of them. Events that do not fit are lost.
    pub fn with_room(bytes: usize) -> Self {
        Self { bytes: Vec::with_capacity(bytes.max(CHUNK_HEAD + EVENT_MAX)), ..Self::default() }
    }

    /// Adds an event. It takes no memory: without room the event is lost.
    pub fn push(&mut self, event: Event) {
        if self.bytes.is_empty() {
            self.bytes.extend([0; CHUNK_HEAD]);
        }
        if self.bytes.capacity() - self.bytes.len() < EVENT_MAX {
            self.lost += 1;
            return;
        }
        let (kind, small, page, argument) = match event {
            Event::Access { page, write, from } => (ACCESS, (from as u8) << 1 | u8::from(write), page, None),
            Event::Stored { page, bytes } => (STORED, 0, page, Some(bytes.into())),
            Event::Discard { page, pages } => (DISCARD, 0, page, Some(pages)),
            Event::TakenOut { page, pages } => (TAKEN_OUT, 0, page, Some(pages)),
        };
        self.bytes.push(kind | small << KIND_BITS);
        let delta = page.0.wrapping_sub(self.page) as i64;
        self.number((delta << 1 ^ delta >> 63) as u64);
        self.page = page.0;
        if let Some(argument) = argument {
            self.number(argument);
        }
        self.events += 1;
    }

    fn number(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.bytes.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.bytes.push(value as u8);
    }

    /// Returns the bytes that are to be written for the chunk, as process number `process`; `None` if it has no events.
    pub fn finish(&mut self, process: u64) -> Option<&[u8]> {
        if self.events == 0 {
            return None;
        }
        let length = (self.bytes.len() - CHUNK_HEAD) as u32;
        self.bytes[..8].copy_from_slice(&process.to_le_bytes());
        self.bytes[8..12].copy_from_slice(&length.to_le_bytes());
        self.bytes[12..16].copy_from_slice(&self.events.to_le_bytes());
        Some(&self.bytes)
    }

    /// Removes all events. Returns how many had found no room.
    pub fn clear(&mut self) -> u64 {
        self.bytes.clear();
        (self.events, self.page) = (0, 0);
        std::mem::take(&mut self.lost)
    }
}

/// The reason for which bytes are no trace.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TraceError {
    /// The bytes do not begin as a trace does.
    NoTrace,
    /// The bytes end amid a chunk.
    CutOff,
    /// A chunk does not hold what its head says, or an event is none that is known.
    Damaged,
}

impl fmt::Display for TraceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NoTrace => "this is no trace of Pagetide",
            Self::CutOff => "the trace is cut off",
            Self::Damaged => "the trace is damaged",
        })
    }
}

impl std::error::Error for TraceError {}

/// A reader of a trace: it gives the events one after the other, each with the number of its process. The first error
/// is the last item.
#[derive(Clone, Copy, Debug)]
pub struct Reader<'a> {
    chunks: &'a [u8],
    events: &'a [u8],
    process: u64,
    left: u32,
    page: u64,
}

impl<'a> Reader<'a> {
    /// Begins to read a trace. Returns its line of JSON, and the reader of its events.
    ///
    /// # Errors
    /// [`TraceError::NoTrace`] if the bytes do not begin with [`HEADER`] and a whole line.
    pub fn new(trace: &'a [u8]) -> Result<(&'a [u8], Self), TraceError> {
        let rest = trace.strip_prefix(HEADER).ok_or(TraceError::NoTrace)?;
        let end = rest.iter().position(|&byte| byte == b'\n').ok_or(TraceError::NoTrace)?;
        let chunks = &rest[end + 1..];
        Ok((&rest[..end], Self { chunks, events: &[], process: 0, left: 0, page: 0 }))
    }

    fn next_chunk(&mut self) -> Result<bool, TraceError> {
        if !self.events.is_empty() {
            return Err(TraceError::Damaged);
        }
        if self.chunks.is_empty() {
            return Ok(false);
        }
        let (head, rest) = self.chunks.split_at_checked(CHUNK_HEAD).ok_or(TraceError::CutOff)?;
        let word = |at: usize| u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
        let (events, rest) = rest.split_at_checked(word(8) as usize).ok_or(TraceError::CutOff)?;
        self.process = u64::from(word(0)) | u64::from(word(4)) << 32;
        (self.events, self.left, self.page) = (events, word(12), 0);
        self.chunks = rest;
        Ok(true)
    }

    fn number(&mut self) -> Result<u64, TraceError> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let (&byte, rest) = self.events.split_first().ok_or(TraceError::Damaged)?;
            self.events = rest;
            value |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Ok(value);
            }
        }
        Err(TraceError::Damaged)
    }

    fn event(&mut self) -> Result<Option<(u64, Event)>, TraceError> {
        while self.left == 0 {
            if !self.next_chunk()? {
                return Ok(None);
            }
        }
        self.left -= 1;
        let (&tag, rest) = self.events.split_first().ok_or(TraceError::Damaged)?;
        self.events = rest;
        let folded = self.number()?;
        self.page = self.page.wrapping_add(folded >> 1 ^ (folded & 1).wrapping_neg());
        let page = PageIndex(self.page);
        let small = tag >> KIND_BITS;
        let event = match tag & ((1 << KIND_BITS) - 1) {
            ACCESS => {
                let from = *Found::ALL.get(usize::from(small >> 1)).ok_or(TraceError::Damaged)?;
                Event::Access { page, write: small & WRITE != 0, from }
            }
            STORED => {
                let bytes = u32::try_from(self.number()?).map_err(|_| TraceError::Damaged)?;
                Event::Stored { page, bytes }
            }
            DISCARD => Event::Discard { page, pages: self.number()? },
            TAKEN_OUT => Event::TakenOut { page, pages: self.number()? },
            _ => return Err(TraceError::Damaged),
        };
        Ok(Some((self.process, event)))
    }
}

impl Iterator for Reader<'_> {
    /// The process, and what happened in it.
    type Item = Result<(u64, Event), TraceError>;

    fn next(&mut self) -> Option<Self::Item> {
        let found = self.event().transpose();
        if matches!(found, Some(Err(_))) {
            // Nothing after that can be told.
            (self.chunks, self.events, self.left) = (&[], &[], 0);
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn any_event() -> impl Strategy<Value = Event> {
        let page = prop_oneof![any::<u64>(), 0..1000u64].prop_map(PageIndex);
        (page, 0..4u8, any::<u64>(), any::<u32>(), 0..6usize, any::<bool>()).prop_map(
            |(page, kind, pages, bytes, from, write)| match kind {
                0 => Event::Access { page, write, from: Found::ALL[from] },
                1 => Event::Stored { page, bytes },
                2 => Event::Discard { page, pages },
                _ => Event::TakenOut { page, pages },
            },
        )
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(
            chunks in proptest::collection::vec((any::<u64>(), proptest::collection::vec(any_event(), 0..50)), 0..5),
        ) {
            let mut trace = HEADER.to_vec();
            trace.extend(b"{}\n");
            for (process, events) in &chunks {
                let mut chunk = Chunk::with_room(2000);
                events.iter().for_each(|&event| chunk.push(event));
                trace.extend(chunk.finish(*process).unwrap_or_default());
                prop_assert_eq!(chunk.clear(), 0);
            }
            let (line, reader) = Reader::new(&trace).unwrap();
            prop_assert_eq!(line, b"{}");
            let found: Vec<_> = reader.map(Result::unwrap).collect();
            let written: Vec<_> =
                chunks.iter().flat_map(|(process, events)| events.iter().map(|&event| (*process, event))).collect();
            prop_assert_eq!(found, written);
        }

        #[test]
        fn what_is_damaged_is_read_to_an_end(
            events in proptest::collection::vec(any_event(), 1..50),
            flips in proptest::collection::vec((any::<u16>(), 0..8u8), 0..8),
            cut in 0..100usize,
        ) {
            let mut trace = HEADER.to_vec();
            trace.extend(b"{}\n");
            let mut chunk = Chunk::with_room(2000);
            events.iter().for_each(|&event| chunk.push(event));
            trace.extend(chunk.finish(1).unwrap());
            for (at, bit) in flips {
                let at = usize::from(at) % trace.len();
                trace[at] ^= 1 << bit;
            }
            trace.truncate(trace.len() - cut.min(trace.len()));
            if let Ok((_, reader)) = Reader::new(&trace) {
                prop_assert!(reader.count() <= trace.len());
            }
        }
    }

    #[test]
    fn a_full_chunk_says_what_it_lost() {
        let mut chunk = Chunk::with_room(0);
        for nth in 0..10 {
            chunk.push(Event::Access {
                page: PageIndex(u64::MAX / 2 * (nth % 2)),
                write: true,
                from: Found::Pool,
            });
        }
        assert_eq!(chunk.finish(3).unwrap().len(), CHUNK_HEAD + 2);
        assert_eq!(chunk.clear(), 9);
        assert!(chunk.finish(3).is_none());
    }
}
