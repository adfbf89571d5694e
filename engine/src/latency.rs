//! A histogram of fault latencies in shared memory: four buckets an octave, so that a quantile is off by
//! a fifth at most.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// The number of buckets: 32 octaves, from 64 ns to 4 minutes.
pub const BUCKETS: usize = 128;
/// The number of words that a histogram takes: its buckets and the maximum.
pub const WORDS: usize = BUCKETS + 1;
const FIRST_OCTAVE: u32 = 6;

/// A histogram over shared words.
#[derive(Clone, Copy, Debug)]
pub struct Latency(&'static [AtomicU64]);

fn bucket(nanos: u64) -> usize {
    let nanos = nanos.max(1 << FIRST_OCTAVE);
    let octave = nanos.ilog2();
    let quarter = (nanos >> (octave - 2)) & 3;
    (((octave - FIRST_OCTAVE) * 4 + quarter as u32) as usize).min(BUCKETS - 1)
}

fn upper_bound(bucket: usize) -> u64 {
    let (octave, quarter) = (bucket as u32 / 4 + FIRST_OCTAVE, bucket as u64 % 4);
    (1 << octave) + ((quarter + 1) << (octave - 2))
}

impl Latency {
    /// Returns the histogram that stands in `words`.
    pub fn new(words: &'static [AtomicU64]) -> Self {
        Self(&words[..WORDS])
    }

    /// Counts one fault of this latency.
    pub fn record(self, latency: Duration) {
        let nanos = latency.as_nanos() as u64;
        self.0[bucket(nanos)].fetch_add(1, Relaxed);
        self.0[BUCKETS].fetch_max(nanos, Relaxed);
    }

    /// Adds the counts to `sum`, and the maximum to its last element.
    pub fn add_to(self, sum: &mut [u64; WORDS]) {
        for (to, from) in sum[..BUCKETS].iter_mut().zip(self.0) {
            *to = to.saturating_add(from.load(Relaxed));
        }
        sum[BUCKETS] = sum[BUCKETS].max(self.0[BUCKETS].load(Relaxed));
    }
}

/// Returns the latency in nanoseconds that a share `quantile`, from 0 to 1, of the faults in `sum` did not exceed.
pub fn quantile_ns(sum: &[u64; WORDS], quantile: f64) -> u64 {
    let total = sum[..BUCKETS].iter().fold(0u64, |total, &count| total.saturating_add(count));
    let rank = (total as f64 * quantile).ceil() as u64;
    let mut seen = 0u64;
    for (bucket, count) in sum[..BUCKETS].iter().enumerate() {
        seen = seen.saturating_add(*count);
        if seen >= rank && seen > 0 {
            return upper_bound(bucket).min(sum[BUCKETS]);
        }
    }
    0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_within_a_fifth() {
        let words = Vec::leak((0..WORDS).map(|_| AtomicU64::new(0)).collect());
        let latency = Latency::new(words);
        for micros in 1..=1000 {
            latency.record(Duration::from_micros(micros));
        }
        let mut sum = [0; WORDS];
        latency.add_to(&mut sum);
        for (quantile, exact) in [(0.5, 500_000.0), (0.99, 990_000.0), (0.999, 999_000.0)] {
            let found = quantile_ns(&sum, quantile) as f64;
            assert!((found / exact - 1.0).abs() < 0.25, "{quantile}: {found}");
        }
        assert_eq!(sum[BUCKETS], 1_000_000);
        assert_eq!(quantile_ns(&[0; WORDS], 0.5), 0);
    }
}
