//! The fewest misses that any policy can have: who is asked for last, or never again, leaves (Belady 1966).

use super::events::{Said, Steps};
use std::collections::BinaryHeap;

/// Never.
const NEVER: u32 = u32::MAX;

/// Accesses to pages that had been in memory before and are not, in `memory` pages, compression left aside.
pub(super) fn misses(steps: &Steps, memory: usize) -> u64 {
    let next = next_uses(steps);
    let pages = steps.pages as usize;
    // Of each page in memory, when it is asked for next.
    let mut until: Vec<Option<u32>> = vec![None; pages];
    let mut seen = vec![false; pages];
    let mut order = BinaryHeap::new();
    let (mut resident, mut misses) = (0, 0);
    for (step, &next) in steps.steps.iter().zip(&next) {
        let page = step.page as usize;
        match step.said() {
            Said::Access { .. } => {
                if until[page].is_none() {
                    misses += u64::from(seen[page]);
                    seen[page] = true;
                    resident += 1;
                }
                until[page] = Some(next);
                order.push((next, step.page));
                while resident > memory {
                    let (at, page) = order.pop().expect("what is in memory is in the heap");
                    // Older entries of a page say less than the newest.
                    if until[page as usize] == Some(at) {
                        until[page as usize] = None;
                        resident -= 1;
                    }
                }
            }
            Said::Discard(count) => {
                for page in page..page + usize::from(count) {
                    resident -= usize::from(until[page].take().is_some());
                    seen[page] = false;
                }
            }
            Said::Size(_) => {}
        }
    }
    misses
}

/// When the page of each step is asked for next, before it is forgotten.
fn next_uses(steps: &Steps) -> Vec<u32> {
    let mut next = vec![NEVER; steps.pages as usize];
    let mut found = vec![NEVER; steps.steps.len()];
    for (at, step) in steps.steps.iter().enumerate().rev() {
        let page = step.page as usize;
        match step.said() {
            Said::Access { .. } => found[at] = std::mem::replace(&mut next[page], at as u32),
            Said::Discard(count) => next[page..page + usize::from(count)].fill(NEVER),
            Said::Size(_) => {}
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn steps(pages: &[u32]) -> Steps {
        let text: String = pages.iter().map(|page| format!("{page}\n")).collect();
        Steps::read(text.as_bytes()).unwrap()
    }

    /// The fewest misses of all ways to choose who leaves.
    fn fewest(pages: &[u32], memory: usize, resident: &[u32], seen: &[u32]) -> u64 {
        let Some((&page, rest)) = pages.split_first() else { return 0 };
        if resident.contains(&page) {
            return fewest(rest, memory, resident, seen);
        }
        let miss = u64::from(seen.contains(&page));
        let (mut with, mut seen) = (resident.to_vec(), seen.to_vec());
        with.push(page);
        seen.push(page);
        if with.len() <= memory {
            return miss + fewest(rest, memory, &with, &seen);
        }
        let without = |gone: usize| {
            let mut left = with.clone();
            left.remove(gone);
            fewest(rest, memory, &left, &seen)
        };
        miss + (0..with.len()).map(without).min().unwrap_or_default()
    }

    proptest! {
        #[test]
        fn no_choice_is_better(pages in proptest::collection::vec(0..5u32, 0..10), memory in 1..4usize) {
            prop_assert_eq!(misses(&steps(&pages), memory), fewest(&pages, memory, &[], &[]));
        }
    }
}
