//! Numbers that a seed gives, for inputs that are made without the fuzzer.

/// Xorshift (Marsaglia 2003).
pub struct Draw(pub u64);

impl Draw {
    /// The next number.
    #[allow(clippy::should_implement_trait)]
    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// A number below `limit`, which counts as 1 if it is 0.
    pub fn below(&mut self, limit: usize) -> usize {
        (self.next() >> 16) as usize % limit.max(1)
    }
}
