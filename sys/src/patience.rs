//! Calls that are made again: what the kernel lacks just now (memory, a task) others may give back soon.

use std::io;
use std::time::Duration;

/// Tries, and the time between two.
const TRIES: u32 = 300;
const PAUSE: Duration = Duration::from_millis(10);

/// Makes a call until it does not fail for want of memory or of a task, or because a signal came: at most 300 times, 10 ms
/// apart.
///
/// # Errors
/// What the call says, at last.
///
/// ```
/// use pagetide_sys::patience::patiently;
/// use std::io::ErrorKind;
///
/// let mut tries = 0;
/// let result = patiently(|| {
///     tries += 1;
///     if tries < 3 { Err(ErrorKind::WouldBlock.into()) } else { Ok(tries) }
/// });
/// assert_eq!(result.unwrap(), 3);
/// ```
pub fn patiently<T>(mut call: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    let mut tries = 0;
    loop {
        tries += 1;
        match call() {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if tries < TRIES && passes(&error) => std::thread::sleep(PAUSE),
            other => return other,
        }
    }
}

/// Returns whether it is the error of a call that may succeed a moment later: for want of memory, or of a task.
pub fn passes(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::OutOfMemory | io::ErrorKind::WouldBlock)
}
