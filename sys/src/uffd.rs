//! userfaultfd: thin bindings of our own (see `ioctl_userfaultfd(2)`), with MOVE and POISON.

use crate::handout::{self, Thing};
use crate::mapping::last_errno;
use rustix::io::Errno;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

const API: u64 = 0xaa;
const IOC_NEW: u64 = 0xaa00;

const fn iowr(number: u64, size: usize) -> u64 {
    3 << 30 | (size as u64) << 16 | API << 8 | number
}
const fn ior(number: u64, size: usize) -> u64 {
    2 << 30 | (size as u64) << 16 | API << 8 | number
}

/// `UFFD_FEATURE_PAGEFAULT_FLAG_WP`: writes to protected pages are faults too.
pub const FEATURE_PAGEFAULT_WP: u64 = 1 << 0;
/// `UFFD_FEATURE_MISSING_SHMEM`: shared memory can be registered.
const FEATURE_MISSING_SHMEM: u64 = 1 << 5;
/// `UFFD_FEATURE_WP_HUGETLBFS_SHMEM` (5.19): shared memory can be protected against writes.
const FEATURE_WP_SHMEM: u64 = 1 << 12;
/// `UFFD_FEATURE_THREAD_ID`: messages carry the thread that faulted.
pub const FEATURE_THREAD_ID: u64 = 1 << 8;
/// `UFFD_FEATURE_POISON` (6.6).
pub const FEATURE_POISON: u64 = 1 << 14;
/// `UFFD_FEATURE_MOVE` (6.8).
pub const FEATURE_MOVE: u64 = 1 << 16;

/// `UFFD_FEATURE_WP_ASYNC` (6.7): the kernel ends protection against writes by itself.
pub const FEATURE_WP_ASYNC: u64 = 1 << 15;
/// The device that makes them, for those who may open it (6.1).
pub const DEVICE: &str = "/dev/userfaultfd";

const MODE_MISSING: u64 = 1;
const MODE_WP: u64 = 2;
const WRITEPROTECT_WP: u64 = 1;
const WRITEPROTECT_DONTWAKE: u64 = 2;
const MOVE_ALLOW_SRC_HOLES: u64 = 2;
const EVENT_PAGEFAULT: u8 = 0x12;
const FLAG_WRITE: u64 = 1;
const FLAG_WP: u64 = 2;

#[repr(C)]
#[derive(Default)]
struct ApiArg {
    api: u64,
    features: u64,
    ioctls: u64,
}
#[repr(C)]
struct Range {
    start: u64,
    len: u64,
}
#[repr(C)]
struct Register {
    range: Range,
    mode: u64,
    ioctls: u64,
}
/// The argument of COPY and MOVE.
#[repr(C)]
struct CopyArg {
    dst: u64,
    src: u64,
    len: u64,
    mode: u64,
    done: i64,
}
#[repr(C)]
struct ZeroArg {
    range: Range,
    mode: u64,
    done: i64,
}

#[repr(C)]
struct WriteProtect {
    range: Range,
    mode: u64,
}

/// The kernel's `struct uffd_msg`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Message {
    event: u8,
    reserved: [u8; 7],
    flags: u64,
    address: u64,
    tid: u32,
    padding: u32,
}
const _: () = assert!(size_of::<Message>() == 32);

/// A fault that a thread waits in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Fault {
    /// The address, rounded down to a page.
    pub address: usize,
    /// Whether it was a write.
    pub write: bool,
    /// Whether the page is there, and protected against writes ([`Uffd::write_protect`]).
    pub protected: bool,
    /// The thread, if [`FEATURE_THREAD_ID`] is on.
    pub tid: u32,
}

/// A userfaultfd.
#[derive(Debug)]
pub struct Uffd {
    fd: OwnedFd,
    features: u64,
}

/// The end of an operation on a range of pages: bytes done, and the error that stopped it.
pub type Partial = (usize, Option<Errno>);

impl Uffd {
    /// Opens a userfaultfd that serves faults from kernel mode too, and probes its features.
    ///
    /// # Errors
    /// EPERM if neither the system call nor the device gives one: see the ways to get the permission in the
    /// documentation of `pagetide run`.
    pub fn open() -> Result<Self, Errno> {
        Self::open_with(0, FEATURE_THREAD_ID | FEATURE_POISON | FEATURE_MOVE | FEATURE_WP_ASYNC)
    }

    /// Opens a userfaultfd that stops writes to protected pages ([`Uffd::write_protect`]) until somebody answers them. The
    /// kernel does not end protection by itself there: no page is watched.
    ///
    /// # Errors
    /// As for [`Uffd::open`]; NOSYS where writes cannot be stopped (before Linux 5.7).
    pub fn open_stopping_writes() -> Result<Self, Errno> {
        Self::open_with(FEATURE_PAGEFAULT_WP, FEATURE_THREAD_ID | FEATURE_POISON | FEATURE_MOVE)
    }

    /// Opens a userfaultfd for shared memory, that another process is to serve: reading it does not wait.
    ///
    /// # Errors
    /// As for [`Uffd::open`]; NOSYS where shared memory cannot be protected against writes (before Linux 5.19).
    pub fn open_for_shared() -> Result<Self, Errno> {
        let needed = FEATURE_PAGEFAULT_WP | FEATURE_MISSING_SHMEM | FEATURE_WP_SHMEM;
        let this = Self::open_with(needed, FEATURE_THREAD_ID | FEATURE_POISON)?;
        rustix::fs::fcntl_setfl(&this.fd, rustix::fs::OFlags::NONBLOCK)?;
        Ok(this)
    }

    /// The same userfaultfd as another process opened it, with these features.
    pub fn received(fd: OwnedFd, features: u64) -> Self {
        Self { fd, features }
    }

    /// Opens a userfaultfd with the features `needed`, and those of `wanted` that the kernel has.
    fn open_with(needed: u64, wanted: u64) -> Result<Self, Errno> {
        let [probe, mut this] = Self::open_two()?;
        let has = probe.kernel_features()?;
        if has & needed != needed {
            return Err(Errno::NOSYS);
        }
        // A descriptor takes its features once: the probe is thrown away.
        let features = has & (needed | wanted);
        let mut arg = ApiArg { api: API, features, ioctls: 0 };
        this.ioctl(iowr(0x3f, size_of::<ApiArg>()), (&raw mut arg).cast())?;
        this.features = features;
        Ok(this)
    }

    fn open_two() -> Result<[Self; 2], Errno> {
        match Self::open_by_call() {
            Ok(one) => Ok([one, Self::open_by_call()?]),
            // The device: for those who may open it, whatever the sysctl and the system call filter say; or whom it is
            // handed out to.
            Err(first) => {
                let device =
                    Self::device().or_else(|_| handout::ask(Thing::Userfaultfd)).map_err(|_| first)?;
                Ok([Self::make(&device)?, Self::make(&device)?])
            }
        }
    }

    fn open_by_call() -> Result<Self, Errno> {
        // SAFETY: no memory is passed.
        let fd = unsafe { libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC) } as RawFd;
        Self::own(fd)
    }

    fn device() -> Result<OwnedFd, Errno> {
        let flags = rustix::fs::OFlags::RDWR | rustix::fs::OFlags::CLOEXEC;
        rustix::fs::open(DEVICE, flags, rustix::fs::Mode::empty())
    }

    fn make(device: &OwnedFd) -> Result<Self, Errno> {
        // SAFETY: the request takes flags by value.
        let fd = unsafe { libc::ioctl(device.as_raw_fd(), IOC_NEW as _, libc::O_CLOEXEC) };
        Self::own(fd)
    }

    fn own(fd: RawFd) -> Result<Self, Errno> {
        if fd < 0 {
            return Err(last_errno());
        }
        // SAFETY: the descriptor is new and nobody else's.
        Ok(Self { fd: unsafe { OwnedFd::from_raw_fd(fd) }, features: 0 })
    }

    /// Returns what the kernel has. The descriptor is of no other use then.
    fn kernel_features(&self) -> Result<u64, Errno> {
        let mut arg = ApiArg { api: API, ..ApiArg::default() };
        self.ioctl(iowr(0x3f, size_of::<ApiArg>()), (&raw mut arg).cast())?;
        Ok(arg.features)
    }

    /// Tries each way to a full userfaultfd: the system call, then the device. What the kernel has by that way
    /// (its `UFFD_FEATURE_*`), or why it is closed.
    pub fn probe() -> [Result<u64, Errno>; 2] {
        [Self::open_by_call(), Self::device().and_then(|device| Self::make(&device))]
            .map(|opened| opened?.kernel_features())
    }

    /// Tries an open descriptor of the device, as [`Uffd::probe`] does. Whoever has one is permitted: the kernel looks at
    /// the user only when the device is opened.
    ///
    /// # Errors
    /// NOTTY if `device` is something else.
    pub fn probe_device(device: &OwnedFd) -> Result<u64, Errno> {
        Self::make(device)?.kernel_features()
    }

    /// Returns the features that we use and the kernel has.
    pub fn features(&self) -> u64 {
        self.features
    }

    /// The descriptor, to be passed on.
    pub fn descriptor(&self) -> std::os::fd::BorrowedFd<'_> {
        std::os::fd::AsFd::as_fd(&self.fd)
    }

    fn ioctl(&self, request: u64, arg: *mut libc::c_void) -> Result<(), Errno> {
        // SAFETY: every caller in this file passes the struct that the request encodes.
        if unsafe { libc::ioctl(self.fd.as_raw_fd(), request as _, arg) } == 0 {
            Ok(())
        } else {
            Err(last_errno())
        }
    }

    /// Waits for a fault. `None` for a message that is not one.
    ///
    /// # Errors
    /// INTR: a signal came.
    pub fn read(&self) -> Result<Option<Fault>, Errno> {
        let mut message = Message::default();
        // SAFETY: the buffer is one message, and any bytes are a valid one.
        let got = unsafe {
            libc::syscall(libc::SYS_read, self.fd.as_raw_fd(), &raw mut message, size_of::<Message>())
        };
        if got != size_of::<Message>() as libc::c_long {
            return Err(last_errno());
        }
        Ok((message.event == EVENT_PAGEFAULT).then_some(Fault {
            address: message.address as usize & !(pagetide_page::PAGE_SIZE - 1),
            write: message.flags & FLAG_WRITE != 0,
            protected: message.flags & FLAG_WP != 0,
            tid: message.tid,
        }))
    }

    /// Registers a range for missing faults.
    ///
    /// # Errors
    /// INVAL if something else than private anonymous memory is mapped there; BUSY if another userfaultfd has it.
    ///
    /// # Safety
    /// Whoever faults there waits until this descriptor's owner answers: the range must be memory whose
    /// users may wait, none of it the engine's own.
    pub unsafe fn register(&self, start: usize, length: usize) -> Result<(), Errno> {
        self.register_as(MODE_MISSING, start, length)
    }

    /// Registers a range for missing faults, and to be watched for writes ([`crate::pagemap::Pagemap::written`]) where the
    /// kernel can do so; or to have writes stopped, where this userfaultfd was opened for that.
    ///
    /// # Errors
    /// As for [`Uffd::register`].
    ///
    /// # Safety
    /// As for [`Uffd::register`].
    pub unsafe fn register_watched(&self, start: usize, length: usize) -> Result<(), Errno> {
        let protects = self.features & (FEATURE_WP_ASYNC | FEATURE_PAGEFAULT_WP) != 0;
        self.register_as(MODE_MISSING | if protects { MODE_WP } else { 0 }, start, length)
    }

    fn register_as(&self, mode: u64, start: usize, length: usize) -> Result<(), Errno> {
        let range = Range { start: start as u64, len: length as u64 };
        let mut arg = Register { range, mode, ioctls: 0 };
        self.ioctl(iowr(0x00, size_of::<Register>()), (&raw mut arg).cast())
    }

    /// Registers a range of shared memory, for missing faults and for writes to protected pages.
    ///
    /// # Errors
    /// As for [`Uffd::register`]; PERM where the mapping can never be written; SRCH if its process has ended.
    ///
    /// # Safety
    /// As for [`Uffd::register`].
    pub unsafe fn register_shared(&self, start: usize, length: usize) -> Result<(), Errno> {
        self.register_as(MODE_MISSING | MODE_WP, start, length)
    }

    /// Protects a range against writes, also where no page is; or ends that, and wakes whoever waits to write.
    ///
    /// # Errors
    /// NOENT if a part of what is mapped there is not registered, or nothing is; SRCH if its process has ended.
    pub fn write_protect(&self, start: usize, length: usize, on: bool) -> Result<(), Errno> {
        self.write_protect_as(if on { WRITEPROTECT_WP } else { 0 }, start, length)
    }

    /// Ends the protection of a range against writes, and wakes nobody.
    ///
    /// # Errors
    /// As for [`Uffd::write_protect`].
    pub fn end_protection(&self, start: usize, length: usize) -> Result<(), Errno> {
        self.write_protect_as(WRITEPROTECT_DONTWAKE, start, length)
    }

    fn write_protect_as(&self, mode: u64, start: usize, length: usize) -> Result<(), Errno> {
        let range = || Range { start: start as u64, len: length as u64 };
        loop {
            let mut arg = WriteProtect { range: range(), mode };
            match self.ioctl(iowr(0x06, size_of::<WriteProtect>()), (&raw mut arg).cast()) {
                Err(Errno::AGAIN) => rustix::thread::sched_yield(),
                other => return other,
            }
        }
    }

    /// Takes a range out of our care.
    ///
    /// # Errors
    /// INVAL if something is mapped there that could not be registered.
    ///
    /// # Safety
    /// A page of the range that is out of the program reads as zeroes until the range is registered again: none
    /// may be, or nothing may look.
    pub unsafe fn unregister(&self, start: usize, length: usize) -> Result<(), Errno> {
        let mut arg = Range { start: start as u64, len: length as u64 };
        self.ioctl(ior(0x01, size_of::<Range>()), (&raw mut arg).cast())
    }

    /// Wakes every thread that waits in the range.
    pub fn wake(&self, start: usize, length: usize) {
        let mut arg = Range { start: start as u64, len: length as u64 };
        let _ = self.ioctl(ior(0x02, size_of::<Range>()), (&raw mut arg).cast());
    }

    fn partial(&self, number: u64, dst: usize, src: usize, length: usize, mode: u64) -> Partial {
        self.in_steps(length, |done| {
            let (dst, src) = ((dst + done) as u64, (src + done) as u64);
            let mut arg = CopyArg { dst, src, len: (length - done) as u64, mode, done: 0 };
            let result = self.ioctl(iowr(number, size_of::<CopyArg>()), (&raw mut arg).cast());
            (result, arg.done)
        })
    }

    /// Repeats a call, which is told how much of `length` is done and returns how much more it did, as long as there is
    /// progress.
    fn in_steps(&self, length: usize, mut call: impl FnMut(usize) -> (Result<(), Errno>, i64)) -> Partial {
        let mut done = 0;
        while done < length {
            match call(done) {
                (Ok(()), _) => return (length, None),
                (Err(error), more) => {
                    let step = more.max(0) as usize;
                    done += step;
                    // EAGAIN with progress, or while a fork holds the map: go on from there.
                    if error != Errno::AGAIN && step == 0 {
                        return (done, Some(error));
                    }
                    if step == 0 {
                        rustix::thread::sched_yield();
                    }
                }
            }
        }
        (done, None)
    }

    /// Copies `bytes` to missing pages at `dst` and wakes whoever waits there.
    ///
    /// # Safety
    /// The destination must be registered program memory; missing pages become `bytes`.
    pub unsafe fn copy(&self, dst: usize, bytes: &[u8]) -> Partial {
        self.partial(0x03, dst, bytes.as_ptr() as usize, bytes.len(), 0)
    }

    /// Maps the kernel's zero page at missing pages at `dst`, and wakes whoever waits there.
    ///
    /// # Safety
    /// As for [`Uffd::copy`]; missing pages become zeroes.
    pub unsafe fn zero_page(&self, dst: usize, length: usize) -> Partial {
        self.in_steps(length, |done| {
            let range = Range { start: (dst + done) as u64, len: (length - done) as u64 };
            let mut arg = ZeroArg { range, mode: 0, done: 0 };
            let result = self.ioctl(iowr(0x04, size_of::<ZeroArg>()), (&raw mut arg).cast());
            (result, arg.done)
        })
    }

    /// Moves pages from `src` to missing pages at `dst` and wakes. Pages that are pinned, or shared by
    /// fork, stop it with EBUSY.
    ///
    /// # Safety
    /// Both ranges must be the caller's to change: the source becomes holes, without a trace in any
    /// reference to it.
    pub unsafe fn move_pages(&self, dst: usize, src: usize, length: usize, allow_holes: bool) -> Partial {
        self.partial(0x05, dst, src, length, if allow_holes { MOVE_ALLOW_SRC_HOLES } else { 0 })
    }

    /// Makes the pages of a range unreadable: an access gets SIGBUS. False without [`FEATURE_POISON`].
    ///
    /// # Safety
    /// As for [`Uffd::copy`].
    pub unsafe fn poison(&self, start: usize, length: usize) -> bool {
        let mut arg = ZeroArg { range: Range { start: start as u64, len: length as u64 }, mode: 0, done: 0 };
        self.features & FEATURE_POISON != 0
            && matches!(
                self.ioctl(iowr(0x08, size_of::<ZeroArg>()), (&raw mut arg).cast()),
                // It is poisoned already.
                Ok(()) | Err(Errno::EXIST)
            )
    }
}
