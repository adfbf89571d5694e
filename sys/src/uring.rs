//! io_uring with owned buffers: a buffer moves in with its request and comes back when it is done, so no
//! safe caller can touch memory that the kernel is still writing.

use crate::buffer::Buffer;
use crate::lock::lock;
use crate::patience::patiently;
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
    pending: Mutex<Vec<Option<Pending>>>,
}

/// A request under way.
struct Pending {
    token: u64,
    direction: Direction,
    offset: u64,
    buffer: Buffer,
}

impl Pending {
    /// Ends the request as the kernel has said: with so many bytes, or a negative error. What the kernel has given up though
    /// nothing is wrong with the file is done by a call: it begins some requests on threads of its own, and cancels them
    /// where there may be no more threads (`pids.max`, RLIMIT_NPROC).
    fn end(self, file: &OwnedFd, code: i32) -> Done {
        let Self { token, direction, offset, mut buffer } = self;
        let result = match (-code, direction) {
            (..=0, _) => Ok(code as usize),
            (libc::ECANCELED | libc::EAGAIN | libc::EINTR | libc::ENOMEM, Direction::Read) => {
                patiently(|| Ok(rustix::io::pread(file, &mut *buffer, offset)?))
            }
            (libc::ECANCELED | libc::EAGAIN | libc::EINTR | libc::ENOMEM, Direction::Write) => {
                patiently(|| Ok(rustix::io::pwrite(file, &buffer, offset)?))
            }
            (errno, _) => Err(io::Error::from_raw_os_error(errno)),
        };
        Done { token, direction, buffer, result }
    }
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
        pending[at] = Some(Pending { token, direction, offset, buffer });
        // SAFETY: (1) the submission queue is touched only with `pending` locked; (2) the buffer stays in
        // `pending`, unmoved on the heap, until its completion is reaped.
        let pushed = unsafe { self.ring.submission_shared().push(&entry) };
        assert!(pushed.is_ok(), "the queue is as deep as `pending` and emptied at each submit");
        drop(pending);
        // If that does not help it is in the queue all the same, and the next submit takes it.
        let _ = patiently(|| self.ring.submit());
        Ok(())
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
        let mut ended = Vec::new();
        let mut pending = lock(&self.pending);
        // SAFETY: the completion queue is touched only here, with `pending` locked.
        let completions = unsafe { self.ring.completion_shared() };
        for completion in completions {
            if completion.user_data() != u64::MAX
                && let Some(request) = pending[completion.user_data() as usize].take()
            {
                ended.push((request, completion.result()));
            }
        }
        drop(pending);
        into.extend(ended.into_iter().map(|(request, code)| request.end(&self.file, code)));
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_kernel_gives_up_for_want_of_threads_is_done_all_the_same() {
        let file = OwnedFd::from(tempfile());
        let request = |direction, byte| {
            let mut buffer = Buffer::new(1);
            buffer.fill(byte);
            Pending { token: 7, direction, offset: 8192, buffer }
        };
        let written = request(Direction::Write, 5).end(&file, -libc::ECANCELED);
        assert_eq!(written.result.unwrap(), written.buffer.len());
        let read = request(Direction::Read, 0).end(&file, -libc::EAGAIN);
        assert!(read.result.unwrap() == read.buffer.len() && read.buffer.iter().all(|&byte| byte == 5));
        let failed = request(Direction::Read, 0).end(&file, -libc::EIO);
        assert_eq!(failed.result.unwrap_err().raw_os_error(), Some(libc::EIO));
        assert_eq!(request(Direction::Read, 0).end(&file, 100).result.unwrap(), 100);
    }

    fn tempfile() -> std::fs::File {
        let flags = rustix::fs::OFlags::RDWR | rustix::fs::OFlags::TMPFILE;
        rustix::fs::open(std::env::temp_dir().as_path(), flags, rustix::fs::Mode::RUSR).unwrap().into()
    }
}
