//! The log of a run: one line an event, written by one call.
//!
//! Off, a line costs one relaxed load. A line is put together on the stack: nothing is allocated, and no lock is taken.
//! Its descriptor belongs to a descriptor table, and only threads with that table write to a file: the engine threads of a
//! program, all threads of the launcher and of the keeper. A thread of the program may write to standard error alone.

use crate::places::is_engine_thread;
use crate::task;
use rustix::fd::{BorrowedFd, IntoRawFd, OwnedFd};
use std::fmt::{self, Write};
use std::sync::atomic::{AtomicI32, AtomicU8, Ordering::Relaxed};

/// How much is written.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[repr(u8)]
pub enum Level {
    /// Nothing.
    Off = 0,
    /// What went wrong.
    Error = 1,
    /// What changes the course of a run, too.
    Info = 2,
    /// What processes ask of each other, and steps towards room, too.
    Debug = 3,
}

impl Level {
    /// Every level, by the name that a user gives.
    pub const NAMES: [(&str, Self); 4] =
        [("off", Self::Off), ("error", Self::Error), ("info", Self::Info), ("debug", Self::Debug)];

    /// Returns the level of a number, [`Level::Off`] for one that is none.
    pub fn from_number(number: u8) -> Self {
        Self::NAMES.iter().map(|&(_, level)| level).find(|&level| level as u8 == number).unwrap_or(Self::Off)
    }

    fn name(self) -> &'static str {
        Self::NAMES[self as usize].0
    }
}

static LEVEL: AtomicU8 = AtomicU8::new(0);
/// A descriptor; -1 stands for standard error.
static FILE: AtomicI32 = AtomicI32::new(-1);
/// An engine thread with a descriptor table of its own; 0 if there is none.
static APART: AtomicI32 = AtomicI32::new(0);
/// A [`Sharing`].
static SHARING: AtomicU8 = AtomicU8::new(Sharing::EngineThreads as u8);

/// Who shares the descriptor of a log.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Sharing {
    /// All threads of the launcher.
    Launcher,
    /// Engine threads, which have a descriptor table of their own.
    EngineThreads,
    /// All threads of a process that is nothing but an engine.
    Engine,
}

/// Begins to write lines of up to `level`, to `file` or to standard error. The descriptor stays open.
pub fn begin(level: Level, file: Option<OwnedFd>, sharing: Sharing) {
    FILE.store(file.map_or(-1, IntoRawFd::into_raw_fd), Relaxed);
    SHARING.store(sharing as u8, Relaxed);
    LEVEL.store(level as u8, Relaxed);
}

/// Has the calling thread, which has left the engine threads' descriptor table, write nothing to a file: the number is
/// another descriptor there. One thread of a process at most.
pub fn leave() {
    APART.store(task::tid() as i32, Relaxed);
}

/// Writes nothing from now on. In a forked child the descriptor is another's.
pub fn end() {
    LEVEL.store(0, Relaxed);
    FILE.store(-1, Relaxed);
    APART.store(0, Relaxed);
}

/// Whether lines of this level are written.
#[inline]
pub fn is_on(level: Level) -> bool {
    LEVEL.load(Relaxed) >= level as u8
}

/// Nanoseconds of the kernel's clock that never goes back, which all processes of a machine share.
pub fn now() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Bytes of a line; what is longer is cut.
const LINE: usize = 400;

/// A line that is put together.
struct Line {
    bytes: [u8; LINE],
    length: usize,
}

impl Write for Line {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        // One byte stays for the end of the line. Where a character is cut its rest is lost.
        let room = &mut self.bytes[self.length..LINE - 1];
        let count = text.len().min(room.len());
        for (to, from) in room.iter_mut().zip(text.bytes()) {
            *to = if from.is_ascii_control() { b' ' } else { from };
        }
        self.length += count;
        Ok(())
    }
}

/// What the calling thread is called in the log.
fn thread_kind(name: &str) -> &str {
    match SHARING.load(Relaxed) {
        sharing if sharing == Sharing::Launcher as u8 => return "launcher",
        sharing if sharing == Sharing::EngineThreads as u8 && !is_engine_thread() => return "program",
        _ => {}
    }
    match name.strip_prefix("pagetide-") {
        Some(kind) => kind.strip_suffix("reclai").map_or(kind, |_| "reclaim"),
        None => "control",
    }
}

/// Writes a line, if lines of its level are written. Callers ask [`is_on`] first: the macro `log!` does.
#[cold]
pub fn write(level: Level, text: fmt::Arguments<'_>) {
    let name = rustix::thread::name().unwrap_or_default();
    let mut line = Line { bytes: [0; LINE], length: 0 };
    let (now, kind) = (now(), thread_kind(name.to_str().unwrap_or_default()));
    let (seconds, micros) = (now / 1_000_000_000, now / 1000 % 1_000_000);
    let pid = rustix::process::getpid();
    let _ = write!(
        line,
        "pagetide[{} {kind}] {seconds}.{micros:06} {}: {text}",
        pid.as_raw_nonzero(),
        level.name()
    );
    line.bytes[line.length] = b'\n';
    let bytes = &line.bytes[..=line.length];
    match FILE.load(Relaxed) {
        -1 => task::write_error(bytes),
        _ if APART.load(Relaxed) == task::tid() as i32 => {}
        file if SHARING.load(Relaxed) != Sharing::EngineThreads as u8 || is_engine_thread() => {
            // SAFETY: `begin` keeps the descriptor open for good, in the table of whoever comes here: a thread with another
            // has called `leave`, and a forked child calls `end` before any of its threads comes.
            let file = unsafe { BorrowedFd::borrow_raw(file) };
            let _ = rustix::io::write(file, bytes);
        }
        _ => {}
    }
}

/// Writes a line to the log of the run, if lines of its level are written: `log!(Info, "{} pages", count)`.
#[macro_export]
macro_rules! log {
    ($level:ident, $($text:tt)+) => {
        if $crate::log::is_on($crate::log::Level::$level) {
            $crate::log::write($crate::log::Level::$level, format_args!($($text)+));
        }
    };
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;

    #[test]
    fn a_line_is_whole_or_cut_and_off_writes_nothing() {
        let (mut reader, writer) = std::io::pipe().unwrap();
        log!(Error, "nobody reads this");
        begin(Level::Info, Some(writer.into()), Sharing::Launcher);
        log!(Info, "{} pages\nin two lines", 7);
        log!(Debug, "too much");
        log!(Error, "{}", "long ".repeat(LINE));
        let mut text = [0; 2 * LINE];
        let count = reader.read(&mut text).unwrap();
        end();
        log!(Error, "nobody reads this");
        let text = std::str::from_utf8(&text[..count]).unwrap();
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines.len(), 2, "{text}");
        let start = format!("pagetide[{} launcher] ", std::process::id());
        assert!(lines.iter().all(|line| line.starts_with(&start)), "{text}");
        assert!(lines[0].ends_with(" info: 7 pages in two lines"), "{text}");
        assert!(lines[1].contains(" error: long long") && lines[1].len() == LINE - 1, "{text}");
    }
}
