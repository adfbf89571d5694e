//! Samples over time, in a bounded number: when they are full, each two become one.

/// Samples, the oldest first.
#[derive(Clone, Debug)]
pub(crate) struct Thinned<T> {
    samples: Vec<T>,
    most: usize,
    /// Makes one of two that follow each other.
    join: fn(T, T) -> T,
    /// Samples that were added for each that is kept, and for the last one so far.
    each: usize,
    latest: usize,
}

impl<T: Copy> Thinned<T> {
    /// Returns room for `most` samples, of which two become one by `join`.
    pub(crate) fn new(most: usize, join: fn(T, T) -> T) -> Self {
        Self { samples: Vec::new(), most, join, each: 1, latest: 0 }
    }

    /// Adds a sample.
    pub(crate) fn push(&mut self, sample: T) {
        match self.samples.last_mut() {
            Some(last) if self.latest < self.each => {
                *last = (self.join)(*last, sample);
                self.latest += 1;
            }
            _ => {
                if self.samples.len() == self.most {
                    let join =
                        |two: &[T]| two.iter().copied().reduce(self.join).expect("a chunk is not empty");
                    self.samples = self.samples.chunks(2).map(join).collect();
                    self.each *= 2;
                }
                self.samples.push(sample);
                self.latest = 1;
            }
        }
    }

    /// Returns the samples that are kept.
    pub(crate) fn samples(&self) -> &[T] {
        &self.samples
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_samples_become_few_that_stand_for_all() {
        // What each stands for: its first and its last.
        let mut thinned = Thinned::new(64, |one: (u32, u32), next: (u32, u32)| {
            assert_eq!(one.1 + 1, next.0);
            (one.0, next.1)
        });
        for number in 0..10_000 {
            thinned.push((number, number));
            let samples = thinned.samples();
            assert!(
                samples.len() <= 64 && (number < 64 || samples.len() >= 32),
                "{} at {number}",
                samples.len()
            );
            assert_eq!((samples[0].0, samples[samples.len() - 1].1), (0, number));
        }
        let lengths = thinned.samples().windows(2).map(|two| two[1].0 - two[0].0);
        assert_eq!(lengths.collect::<std::collections::BTreeSet<_>>().len(), 1);
    }
}
