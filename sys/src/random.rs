//! Random bytes from the kernel.

/// Four random words.
///
/// # Panics
/// If the kernel has no random numbers to give: nothing else may take their place.
pub fn words() -> [u64; 4] {
    let mut words = [0u64; 4];
    // SAFETY: the buffer is 32 writable bytes, and any bytes are valid words.
    let got = unsafe { libc::syscall(libc::SYS_getrandom, words.as_mut_ptr(), 32usize, 0u32) };
    assert_eq!(got, 32, "getrandom failed: {}", std::io::Error::last_os_error());
    words
}
