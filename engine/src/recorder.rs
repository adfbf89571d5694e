//! The recorder of an engine's events, for replay.

use pagetide_swap::PageIndex;
use pagetide_swap::trace::{Chunk, Event};
use pagetide_sys::handout::{self, Thing};
use std::fs::File;
use std::io::{self, Write};
use std::path::Path;
use std::sync::{Mutex, PoisonError};

/// Bytes of events that wait to be written at most: what comes when there are more is not recorded.
const ROOM: usize = 2 << 20;

fn open(path: &Path) -> io::Result<File> {
    // Who has given up its privileges cannot open it, but is handed it out.
    let handed = |error| handout::ask(Thing::Trace).map(File::from).map_err(|_| error);
    File::options().append(true).open(path).or_else(handed)
}

/// By one call: chunks of several processes stand one behind the other.
fn append(file: &mut File, bytes: &[u8]) -> io::Result<()> {
    match file.write(bytes) {
        Ok(written) if written < bytes.len() => Err(io::ErrorKind::StorageFull.into()),
        other => other.map(drop),
    }
}

/// Writes into the trace at `path` that `process` has ended: an event that discards all of its pages.
///
/// # Errors
/// The error of the system: the trace cannot be opened or written to. `StorageFull` if only a part of the event was
/// written.
pub fn note_end(path: &Path, process: u64) -> io::Result<()> {
    let mut chunk = Chunk::with_room(0);
    chunk.push(Event::Discard { page: PageIndex(0), pages: u64::MAX });
    append(&mut open(path)?, chunk.finish(process).unwrap_or_default())
}

/// A recorder: events on their way to the trace. Noting one takes no memory and does no I/O.
#[derive(Debug)]
pub struct Recorder {
    chunk: Mutex<Chunk>,
}

impl Default for Recorder {
    fn default() -> Self {
        Self { chunk: Mutex::new(Chunk::with_room(ROOM)) }
    }
}

/// The writer of a recorder's events to the trace. One thread has it.
#[derive(Debug)]
pub struct Writer {
    file: File,
    process: u64,
    spare: Chunk,
    lost: u64,
}

impl Recorder {
    /// Notes an event. It is lost if there is no room for it.
    pub fn note(&self, event: Event) {
        self.chunk.lock().unwrap_or_else(PoisonError::into_inner).push(event);
    }

    /// Writes the events that were noted since the last call.
    ///
    /// # Errors
    /// The error of the system, or `StorageFull` if only a part was written. The caller writes nothing more then: the
    /// trace may end amid a chunk.
    pub fn flush(&self, to: &mut Writer) -> io::Result<()> {
        std::mem::swap(&mut *self.chunk.lock().unwrap_or_else(PoisonError::into_inner), &mut to.spare);
        let written = to.spare.finish(to.process).map_or(Ok(()), |bytes| append(&mut to.file, bytes));
        to.lost += to.spare.clear();
        written
    }
}

impl Writer {
    /// Opens the trace at `path` to write at its end, in the name of `process`.
    ///
    /// # Errors
    /// The error of the system: the trace cannot be opened.
    pub fn open(path: &Path, process: u64) -> io::Result<Self> {
        Ok(Self { file: open(path)?, process, spare: Chunk::with_room(ROOM), lost: 0 })
    }

    /// Returns the number of events that came when there was no room for more.
    pub fn lost(&self) -> u64 {
        self.lost
    }
}
