//! io_uring with owned buffers: a buffer moves in with its request and comes back when it is done, so no
//! safe caller can touch memory that the kernel is still writing.

use crate::buffer::Buffer;
use crate::lock::lock;
use io_uring::{IoUring, opcode, types};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Mutex;

/// The direction in which the bytes go.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Direction {
    /// A read: from the file into the buffer.
    Read,
    /// A write: from the buffer to the file.
    Write,
}

/// A request that is done.
#[derive(Debug)]
pub struct Done {
    /// The caller's token.
    pub token: u64,
    /// The direction in which it went.
    pub direction: Direction,
    /// Its buffer.
    pub buffer: Buffer,
    /// Bytes done, or the error.
    pub result: io::Result<usize>,
}

/// Returns whether io_uring can be had, or why not.
///
/// # Errors
/// ENOSYS or EPERM where io_uring is switched off or filtered.
pub fn probe() -> io::Result<()> {
    IoUring::new(2).map(drop)
}

/// One file's ring.
pub struct Ring {
    ring: IoUring,
    file: OwnedFd,
    pending: Mutex<Vec<Option<(u64, Direction, Buffer)>>>,
}

impl std::fmt::Debug for Ring {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Ring({:?})", self.file)
    }
}

impl Ring {
    /// A ring of `depth` requests at most.
    ///
    /// # Errors
    /// ENOSYS or EPERM where io_uring is switched off or filtered.
    pub fn new(file: OwnedFd, depth: u32) -> Result<Self, (OwnedFd, io::Error)> {
        match IoUring::new(depth) {
            Ok(ring) => {
                let pending = Mutex::new((0..depth).map(|_| None).collect());
                Ok(Self { ring, file, pending })
            }
            Err(error) => Err((file, error)),
        }
    }

    /// The file's descriptor's number.
    pub fn number(&self) -> i32 {
        self.file.as_raw_fd()
    }

    /// Starts a request. Gives the buffer back if the ring is full.
    ///
    /// # Errors
    /// The buffer itself: the ring is full.
    pub fn submit(
        &self,
        direction: Direction,
        offset: u64,
        mut buffer: Buffer,
        token: u64,
    ) -> Result<(), Buffer> {
        let mut pending = lock(&self.pending);
        let Some(at) = pending.iter().position(Option::is_none) else { return Err(buffer) };
        let fd = types::Fd(self.file.as_raw_fd());
        let length = buffer.len() as u32;
        let entry = match direction {
            Direction::Read => opcode::Read::new(fd, buffer.as_mut_ptr(), length).offset(offset).build(),
            Direction::Write => opcode::Write::new(fd, buffer.as_ptr(), length).offset(offset).build(),
        }
        .user_data(at as u64);
        pending[at] = Some((token, direction, buffer));
        // SAFETY: (1) the submission queue is touched only with `pending` locked; (2) the buffer stays in
        // `pending`, unmoved on the heap, until its completion is reaped.
        let pushed = unsafe { self.ring.submission_shared().push(&entry) };
        assert!(pushed.is_ok(), "the queue is as deep as `pending` and emptied at each submit");
        drop(pending);
        loop {
            match self.ring.submit() {
                Ok(_) => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // The kernel is short of memory for it: it is in the queue, the next submit takes it.
                Err(_) => return Ok(()),
            }
        }
    }

    /// Starts a request that moves no bytes: whoever waits in [`Ring::wait`] returns.
    pub fn nudge(&self) {
        let _pending = lock(&self.pending);
        let entry = opcode::Nop::new().build().user_data(u64::MAX);
        // SAFETY: as in `submit`; a Nop refers to no memory.
        let _ = unsafe { self.ring.submission_shared().push(&entry) };
        let _ = self.ring.submit();
    }

    /// Waits for requests to be done and reaps them. One thread at a time may wait.
    pub fn wait(&self, into: &mut Vec<Done>) {
        let _ = self.ring.submit_and_wait(1);
        let mut pending = lock(&self.pending);
        // SAFETY: the completion queue is touched only here, with `pending` locked.
        let completions = unsafe { self.ring.completion_shared() };
        for completion in completions {
            if completion.user_data() == u64::MAX {
                continue;
            }
            if let Some((token, direction, buffer)) = pending[completion.user_data() as usize].take() {
                let result = match completion.result() {
                    code if code < 0 => Err(io::Error::from_raw_os_error(-code)),
                    bytes => Ok(bytes as usize),
                };
                into.push(Done { token, direction, buffer, result });
            }
        }
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // Buffers may not be freed while the kernel writes to them.
        let mut done = Vec::new();
        while lock(&self.pending).iter().any(Option::is_some) {
            self.wait(&mut done);
        }
    }
}
