//! The boards of the processes, and what is written to the run's log.

use super::layout::{BOARD_BYTES, Field, Header, boards_at};
use super::{Group, ProcessSlot, SLOTS};
use crate::dump::board::{Board, WORDS};
use pagetide_sys::log::{self, Level, Sharing};
use pagetide_sys::{engine_thread, task};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering::Acquire, Ordering::Release};

const LEVEL_BITS: u32 = 8;

impl Group {
    fn board_words(&self, slot: ProcessSlot) -> &'static [AtomicU64] {
        assert!(slot.index() < SLOTS);
        self.shared.words(boards_at(self.setup().blocks()) + slot.index() * BOARD_BYTES, WORDS)
    }

    /// Returns the board of a process, to be read.
    pub fn board(&self, slot: ProcessSlot) -> Board {
        Board::of(self.board_words(slot))
    }

    /// Clears the board of a process, which calls this and whose clock shows `clock` now.
    pub fn begin_board(&self, slot: ProcessSlot, clock: u64) -> Board {
        Board::begin(self.board_words(slot), slot.get(Field::Tenancy), clock)
    }

    /// Sets how much is written to the log of the run, and to which descriptor of the launcher: `None` for the standard
    /// error of each process.
    pub fn set_log(&self, level: Level, fd: Option<u64>) {
        let word = level as u64 | fd.map_or(0, |fd| fd + 1) << LEVEL_BITS;
        self.header[Header::Log as usize].store(word, Release);
    }

    /// Has the engine threads of this process write to the log. To be called on one of them, which share a descriptor
    /// table; in a process that is nothing but an engine all its threads do, from the first call on.
    pub fn join_log(&self) {
        let (level, path) = self.log();
        let has_joined = engine_thread::are_ordinary() && log::is_on(Level::Error);
        if level == Level::Off || has_joined {
            return;
        }
        let opened = path.map(|path| std::fs::OpenOptions::new().append(true).open(path)).transpose();
        match opened {
            Ok(file) => {
                let sharing =
                    if engine_thread::are_ordinary() { Sharing::Engine } else { Sharing::EngineThreads };
                log::begin(level, file.map(Into::into), sharing);
            }
            Err(error) => task::say(&format!(
                "cannot open the log: {error}; this process writes nothing there (PAGETIDE_LOG)"
            )),
        }
    }

    /// Returns how much is written to the log, and the path of its file.
    pub fn log(&self) -> (Level, Option<PathBuf>) {
        let word = self.header[Header::Log as usize].load(Acquire);
        let fd = (word >> LEVEL_BITS).checked_sub(1);
        let path = fd.map(|fd| format!("/proc/{}/fd/{fd}", self.setup().launcher.pid).into());
        (Level::from_number(word as u8), path)
    }
}
