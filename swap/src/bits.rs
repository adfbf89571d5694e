//! The bits of a word that are set, one after the other.

/// The positions of the bits that are set.
pub(crate) struct Bits(pub u64);

impl Iterator for Bits {
    type Item = usize;
    fn next(&mut self) -> Option<usize> {
        let bit = self.0.trailing_zeros() as usize;
        self.0 &= self.0.wrapping_sub(1);
        (bit < 64).then_some(bit)
    }
}
