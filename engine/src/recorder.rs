//! Records what an engine sees, for replay.

use pagetide_swap::trace::{Chunk, Event};
use std::io::{self, Write};
use std::sync::{Mutex, PoisonError};

/// Bytes of events that wait to be written at most: what comes when there are more is not recorded.
const ROOM: usize = 2 << 20;

/// Events on their way to a file. Whoever sees one takes no memory and does no I/O.
#[derive(Debug)]
pub struct Recorder {
    chunk: Mutex<Chunk>,
}

impl Default for Recorder {
    fn default() -> Self {
        Self { chunk: Mutex::new(Chunk::with_room(ROOM)) }
    }
}

/// The other end: writes chunks to the trace, by the one thread that does.
#[derive(Debug)]
pub struct Writer {
    file: std::fs::File,
    process: u64,
    spare: Chunk,
    lost: u64,
}

impl Recorder {
    /// Notes an event.
    pub fn note(&self, event: Event) {
        self.chunk.lock().unwrap_or_else(PoisonError::into_inner).push(event);
    }

    /// Writes what there is.
    ///
    /// # Errors
    /// It cannot be written: a part of a chunk may be there, so nothing more should be.
    pub fn flush(&self, to: &mut Writer) -> io::Result<()> {
        std::mem::swap(&mut *self.chunk.lock().unwrap_or_else(PoisonError::into_inner), &mut to.spare);
        let written = match to.spare.finish(to.process) {
            // One call: chunks of several processes stand one behind the other.
            Some(bytes) => match to.file.write(bytes) {
                Ok(written) if written < bytes.len() => Err(io::ErrorKind::StorageFull.into()),
                other => other.map(drop),
            },
            None => Ok(()),
        };
        to.lost += to.spare.clear();
        written
    }
}

impl Writer {
    /// Writes to `file`, which was opened to append, in the name of `process`.
    pub fn new(file: std::fs::File, process: u64) -> Self {
        Self { file, process, spare: Chunk::with_room(ROOM), lost: 0 }
    }

    /// Events that came when there was no room for more.
    pub fn lost(&self) -> u64 {
        self.lost
    }
}
