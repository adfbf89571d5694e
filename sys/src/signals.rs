//! Signals of the calling thread.

/// The signal by which the C library changes the user of all threads: it waits for each of them.
const SETXID: u32 = 33;
/// Bytes of the kernel's set of signals.
const SET_BYTES: usize = size_of::<u64>();

/// Signals that were blocked; restored when dropped.
#[derive(Debug)]
pub struct SignalsBlocked {
    before: u64,
}

/// The bit of a signal in the kernel's sets.
const fn bit(signal: u32) -> u64 {
    1 << (signal - 1)
}

fn set_mask(mask: u64) -> u64 {
    let mut before = 0u64;
    // SAFETY: two sets of that size are passed.
    unsafe {
        libc::syscall(
            libc::SYS_rt_sigprocmask,
            libc::SIG_SETMASK,
            &raw const mask,
            &raw mut before,
            SET_BYTES,
        )
    };
    before
}

impl SignalsBlocked {
    /// Blocks every signal in this thread, also that by which the C library cancels threads, but for the one by which it
    /// changes their user.
    pub fn new() -> Self {
        Self { before: set_mask(!bit(SETXID)) }
    }

    /// Returns whether a signal waits that was not blocked before.
    ///
    /// ```
    /// use pagetide_sys::signals::SignalsBlocked;
    ///
    /// let blocked = SignalsBlocked::new();
    /// assert!(!blocked.is_any_pending());
    /// ```
    pub fn is_any_pending(&self) -> bool {
        let mut pending = 0u64;
        // SAFETY: one set of that size is passed.
        unsafe { libc::syscall(libc::SYS_rt_sigpending, &raw mut pending, SET_BYTES) };
        pending & !self.before != 0
    }

    /// Returns whether the signals were blocked before by which a process is told to end: then nobody may hear of them soon.
    pub fn hid_ends(&self) -> bool {
        self.before & (bit(libc::SIGTERM as u32) | bit(libc::SIGINT as u32)) != 0
    }
}

impl Default for SignalsBlocked {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for SignalsBlocked {
    fn drop(&mut self) {
        set_mask(self.before);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn send(signal: i32) {
        // SAFETY: no memory is passed.
        unsafe { libc::syscall(libc::SYS_tgkill, std::process::id(), crate::task::tid(), signal) };
    }

    #[test]
    fn a_signal_waits_while_it_is_blocked_and_is_seen() {
        // Ignored by default, so that its end does nothing.
        let outer = SignalsBlocked::new();
        assert!(!outer.is_any_pending() && !outer.hid_ends());
        send(libc::SIGURG);
        assert!(outer.is_any_pending());
        let inner = SignalsBlocked::new();
        assert!(!inner.is_any_pending(), "it was blocked before");
        assert!(inner.hid_ends());
        drop(inner);
        assert!(outer.is_any_pending());
        drop(outer);
        assert!(!SignalsBlocked::new().is_any_pending(), "it was handled");
    }
}
