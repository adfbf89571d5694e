//! Lists of numbers, each number in one list at most: whatever is put into a list needs no memory for that.

/// Not a number.
const NONE: u32 = u32::MAX;
/// The links of a number that is in no list.
const ALONE: Link = Link { next: NONE, previous: NONE };

#[derive(Clone, Copy)]
struct Link {
    next: u32,
    /// The number before, or the list (from the top down) that it is the first of.
    previous: u32,
}

/// Numbers from 0 on, and lists of them.
#[derive(Default)]
pub(super) struct Links {
    links: Vec<Link>,
    heads: Vec<u32>,
}

impl Links {
    /// No numbers, and so many empty lists.
    pub(super) fn new(lists: usize) -> Self {
        Self { links: Vec::new(), heads: vec![NONE; lists] }
    }

    /// Returns how many numbers there are.
    pub(super) fn len(&self) -> u32 {
        self.links.len() as u32
    }

    /// One more number, in no list.
    pub(super) fn add(&mut self) -> u32 {
        if self.links.len() == self.links.capacity() {
            // A sixteenth at a time: there are many, and the room is counted.
            self.links.reserve_exact(self.links.len() / 16 + 16);
        }
        self.links.push(ALONE);
        self.len() - 1
    }

    /// The number that was put into a list last.
    pub(super) fn first(&self, list: usize) -> Option<u32> {
        Some(self.heads[list]).filter(|&id| id != NONE)
    }

    /// The numbers of a list, the one that was put there last first.
    pub(super) fn iter(&self, list: usize) -> impl Iterator<Item = u32> + '_ {
        std::iter::successors(self.first(list), |&id| {
            Some(self.links[id as usize].next).filter(|&id| id != NONE)
        })
    }

    /// Returns whether a number is in a list.
    pub(super) fn is_linked(&self, id: u32) -> bool {
        self.links[id as usize].previous != NONE
    }

    /// Puts a number that is in no list into one.
    pub(super) fn link(&mut self, list: usize, id: u32) {
        debug_assert!(!self.is_linked(id));
        let next = std::mem::replace(&mut self.heads[list], id);
        self.links[id as usize] = Link { next, previous: Self::as_previous(list) };
        if next != NONE {
            self.links[next as usize].previous = id;
        }
    }

    /// Takes a number out of the list that it is in, if it is in one.
    pub(super) fn unlink(&mut self, id: u32) {
        let Link { next, previous } = std::mem::replace(&mut self.links[id as usize], ALONE);
        if previous == NONE {
            return;
        }
        match self.heads.get_mut((NONE - 1 - previous) as usize) {
            Some(head) => *head = next,
            None => self.links[previous as usize].next = next,
        }
        if next != NONE {
            self.links[next as usize].previous = previous;
        }
    }

    /// How a list stands for the number before the first.
    fn as_previous(list: usize) -> u32 {
        NONE - 1 - list as u32
    }

    /// Empties a list.
    pub(super) fn clear(&mut self, list: usize) {
        while let Some(id) = self.first(list) {
            self.unlink(id);
        }
    }

    /// Bytes that all this takes.
    pub(super) fn bytes(&self) -> usize {
        self.links.capacity() * size_of::<Link>() + self.heads.capacity() * size_of::<u32>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::VecDeque;

    proptest! {
        #[test]
        fn lists_are_lists(steps in proptest::collection::vec((0u32..20, 0usize..4), 1..200)) {
            let mut links = Links::new(3);
            (0..20).for_each(|id| assert_eq!(links.add(), id));
            let mut model = vec![VecDeque::new(); 3];
            for (id, list) in steps {
                links.unlink(id);
                model.iter_mut().for_each(|list| list.retain(|&other| other != id));
                if list < 3 {
                    links.link(list, id);
                    model[list].push_front(id);
                }
                for (list, ids) in model.iter().enumerate() {
                    prop_assert_eq!(links.iter(list).collect::<VecDeque<_>>(), ids.clone());
                    prop_assert_eq!(links.first(list), ids.front().copied());
                }
                for id in 0..20 {
                    prop_assert_eq!(links.is_linked(id), model.iter().any(|list| list.contains(&id)));
                }
            }
            links.clear(0);
            prop_assert_eq!(links.first(0), None);
        }
    }
}
