//! What processes ask of the keeper, over a socket that keeps messages apart (`SOCK_SEQPACKET`).
//!
//! ```text
//! request  │ magic │ version, what │ four numbers │   and at most one descriptor (SCM_RIGHTS)
//! answer   │ magic │ version, error │ four numbers │  and at most one descriptor
//! ```
//!
//! A process has one connection for as long as it maps objects, and one request under way at a time. Numbers of pages
//! are the keeper's: objects lie apart from each other in them.

use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags,
};
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

const MAGIC: u64 = u64::from_le_bytes(*b"pagetidk");
const VERSION: u64 = 2;
const WORDS: usize = 6;
const LENGTH: usize = WORDS * 8;

pagetide_page::numbered_enum! {
    /// What a request is about, and the meaning of its numbers.
    pub enum Ask: u64 {
        /// The process joins, with its userfaultfd: features of that, one more than the number of its slot (0: it has
        /// none), and the tenancy of that.
        Join = 1,
        /// A new object: pages. Answer: its first page, and its memfd.
        Create = 2,
        /// The memfd of an object: its first page.
        Open = 3,
        /// The process has mapped a part of an object, and touches nothing of it until the answer: address, bytes, page.
        Attach = 4,
        /// It has unmapped what it had there: address, bytes.
        Detach = 5,
        /// Contents go: page, pages.
        Discard = 6,
        /// Pages stay in memory from now on: page, pages.
        Lock = 7,
        /// A process comes: sent by the launcher, with the connection: its pid.
        Admit = 8,
        /// The process is about to fork: number and tenancy of the child's slot. The child may open what its parent has
        /// mapped now, whatever the parent does meanwhile.
        Fork = 9,
        /// All that the process created or opened is attached: what it has not mapped need not be kept for it.
        Settle = 10,
        /// An object of a file that the program had open and has no more: with a descriptor for reading and writing, which
        /// is the only one. Answer: its first page, its pages.
        Adopt = 11,
        /// The object of a file, of which a descriptor comes too. Answer: its first page, its pages, and 1 if it is the
        /// kernel's alone again.
        Find = 12,
        /// All of an object comes into memory, and is the kernel's alone from then on: its first page. Answered when that
        /// is done.
        Retire = 13,
    }
}

/// A request, or an answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Message {
    /// What is asked, or the error.
    pub word: u64,
    /// Its numbers.
    pub numbers: [u64; 4],
}

impl Message {
    /// A request.
    pub fn ask(ask: Ask, numbers: [u64; 4]) -> Self {
        Self { word: ask.to_bits(), numbers }
    }

    /// An answer.
    pub fn answer(result: Result<[u64; 4], Errno>) -> Self {
        match result {
            Ok(numbers) => Self { word: 0, numbers },
            Err(error) => Self { word: error.raw_os_error() as u64, numbers: [0; 4] },
        }
    }

    fn encode(&self) -> [u8; LENGTH] {
        let mut bytes = [0; LENGTH];
        let words = [MAGIC, VERSION << 32 | self.word].into_iter().chain(self.numbers);
        for (word, at) in words.zip(bytes.chunks_exact_mut(8)) {
            at.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let words: Vec<u64> = bytes
            .chunks_exact(8)
            .map(|word| u64::from_le_bytes(word.try_into().expect("eight bytes")))
            .collect();
        let &[magic, head, a, b, c, d] = &words[..] else { return None };
        let fits = bytes.len() == LENGTH && magic == MAGIC && head >> 32 == VERSION;
        fits.then_some(Self { word: head & u64::from(u32::MAX), numbers: [a, b, c, d] })
    }
}

/// Sends a message, with a descriptor if there is one.
///
/// # Errors
/// PIPE or CONNRESET if nobody is at the other end; AGAIN if it does not read and the socket does not wait.
pub fn send(socket: impl AsFd, message: &Message, descriptor: Option<BorrowedFd<'_>>) -> Result<(), Errno> {
    let bytes = message.encode();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let descriptors = descriptor.map(|fd| [fd]);
    if let Some(descriptors) = &descriptors {
        control.push(SendAncillaryMessage::ScmRights(descriptors));
    }
    let buffers = [IoSlice::new(&bytes)];
    rustix::io::retry_on_intr(|| rustix::net::sendmsg(&socket, &buffers, &mut control, SendFlags::NOSIGNAL))
        .map(drop)
}

/// Receives a message, and the descriptor that came with it.
///
/// # Errors
/// CONNRESET if nobody is at the other end any more; BADMSG if it is none of ours; AGAIN if there is none and the socket
/// does not wait.
pub fn receive(socket: impl AsFd) -> Result<(Message, Option<OwnedFd>), Errno> {
    let mut bytes = [0; LENGTH + 1];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let received = rustix::io::retry_on_intr(|| {
        let mut buffers = [IoSliceMut::new(&mut bytes)];
        rustix::net::recvmsg(&socket, &mut buffers, &mut control, RecvFlags::CMSG_CLOEXEC)
    })?;
    let descriptor = control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
        _ => None,
    });
    if received.bytes == 0 {
        return Err(Errno::CONNRESET);
    }
    let message = Message::decode(&bytes[..received.bytes.min(LENGTH + 1)]).ok_or(Errno::BADMSG)?;
    Ok((message, descriptor))
}

/// Asks, and waits for the answer.
///
/// # Errors
/// The error of the answer, or of the connection ([`receive`]).
pub fn call(
    socket: impl AsFd,
    ask: Ask,
    numbers: [u64; 4],
    descriptor: Option<BorrowedFd<'_>>,
) -> Result<([u64; 4], Option<OwnedFd>), Errno> {
    send(&socket, &Message::ask(ask, numbers), descriptor)?;
    let (answer, descriptor) = receive(&socket)?;
    match answer.word {
        0 => Ok((answer.numbers, descriptor)),
        error => Err(Errno::from_raw_os_error(error as i32)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

    fn pair() -> (OwnedFd, OwnedFd) {
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap()
    }

    #[test]
    fn a_message_arrives_with_its_descriptor() {
        let (here, there) = pair();
        let message = Message::ask(Ask::Attach, [1, u64::MAX, 3, 4]);
        send(&here, &message, Some(here.as_fd())).unwrap();
        let (received, descriptor) = receive(&there).unwrap();
        assert_eq!((received, descriptor.is_some()), (message, true));
        assert_eq!(Ask::from_bits(received.word), Some(Ask::Attach));
        drop(descriptor);
        send(&here, &Message::answer(Err(Errno::NOMEM)), None).unwrap();
        let (received, descriptor) = receive(&there).unwrap();
        assert_eq!((received.word, descriptor.is_none()), (Errno::NOMEM.raw_os_error() as u64, true));
        drop(here);
        assert_eq!(receive(&there).map(drop), Err(Errno::CONNRESET));
    }

    #[test]
    fn what_is_none_of_ours_is_refused() {
        let (here, there) = pair();
        for bytes in [&[0; LENGTH][..], &[1; 3], &[0; LENGTH + 1]] {
            rustix::net::send(&here, bytes, SendFlags::empty()).unwrap();
            assert_eq!(receive(&there).map(drop), Err(Errno::BADMSG));
        }
    }
}
