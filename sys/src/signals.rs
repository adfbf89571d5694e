//! Signals of the calling thread.

/// Signals that were blocked; restored when dropped.
#[derive(Debug)]
pub struct SignalsBlocked(libc::sigset_t);

impl SignalsBlocked {
    /// Blocks every signal in this thread, but for those that the C library keeps for itself.
    pub fn new() -> Self {
        // SAFETY: both sets are initialised by the calls before they are read.
        unsafe {
            let mut all: libc::sigset_t = std::mem::zeroed();
            let mut old: libc::sigset_t = std::mem::zeroed();
            libc::sigfillset(&raw mut all);
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut old);
            Self(old)
        }
    }
}

impl Default for SignalsBlocked {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for SignalsBlocked {
    fn drop(&mut self) {
        // SAFETY: the set was filled by `pthread_sigmask`.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.0, std::ptr::null_mut()) };
    }
}
