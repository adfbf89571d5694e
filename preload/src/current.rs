//! This process, as the other modules find it: set once, by the constructor.

use pagetide::process::Process;
use pagetide_sys::engine_thread;
use std::sync::OnceLock;

static PROCESS: OnceLock<Process> = OnceLock::new();

/// This process, if it belongs to a run and has joined it.
pub(crate) fn process() -> Option<&'static Process> {
    PROCESS.get()
}

/// The process, unless an engine thread asks: its own mappings are nobody's business.
pub(crate) fn managed() -> Option<&'static Process> {
    process().filter(|_| !engine_thread::is_engine_thread())
}

/// Makes `process` this process's side of its run.
pub(crate) fn set(process: Process) {
    let _ = PROCESS.set(process);
}
