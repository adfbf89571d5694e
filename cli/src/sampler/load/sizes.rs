//! Sizes at which processes have ended, by which those that begin are judged.

use std::collections::VecDeque;

/// The number of processes that are remembered.
const REMEMBERED: usize = 32;

/// The sizes at which the last processes of a run have ended, in pages.
#[derive(Debug, Default)]
pub(super) struct EndedSizes(VecDeque<i64>);

impl EndedSizes {
    /// Notes that a process of `size` pages has ended.
    pub(super) fn note(&mut self, size: i64) {
        if self.0.len() == REMEMBERED {
            self.0.pop_front();
        }
        self.0.push_back(size);
    }

    /// Returns how many pages a process of `size` pages comes to have in the end: the average of those that have ended larger,
    /// or what it has if none did.
    pub(super) fn expected(&self, size: i64) -> i64 {
        let larger = || self.0.iter().filter(|&&ended| ended > size);
        let count = larger().count() as i64;
        if count == 0 { size } else { larger().sum::<i64>() / count }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_begun_is_expected_to_end_as_those_that_ended_larger() {
        let mut ended = EndedSizes::default();
        assert_eq!(ended.expected(5), 5, "nothing is known");
        [100, 300, 500].into_iter().for_each(|size| ended.note(size));
        assert_eq!(
            [0, 99, 100, 299, 300, 500, 700].map(|size| ended.expected(size)),
            [300, 300, 400, 400, 500, 500, 700]
        );
        (0..REMEMBERED).for_each(|_| ended.note(10));
        assert_eq!([0, 10].map(|size| ended.expected(size)), [10, 10], "the others are forgotten");
    }
}
