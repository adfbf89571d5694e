//! Which addresses of the program map which pages of shared memory.

use pagetide_page::PageIndex;
use std::collections::BTreeMap;
use std::ffi::c_int;
use std::ops::Range;

/// What a range of addresses maps.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Piece {
    /// The first page of the object, in the keeper's numbers.
    pub(crate) object: PageIndex,
    /// The page that its first address maps.
    pub(crate) page: PageIndex,
    /// What the program may do there: PROT_READ and the like.
    pub(crate) protection: c_int,
    /// Whether a forked child has nothing there: MADV_DONTFORK.
    pub(crate) omit: bool,
    /// Whether its file was opened for reading alone: it can never be written to here.
    pub(crate) read_only: bool,
}

impl Piece {
    /// Nothing.
    pub(crate) const NONE: Self =
        Self { object: PageIndex(0), page: PageIndex(0), protection: 0, omit: false, read_only: false };

    fn from(self, pages: u64) -> Self {
        Self { page: self.page.plus(pages), ..self }
    }
}

/// All of them, by their first page of addresses. They never overlap.
#[derive(Debug, Default)]
pub(crate) struct Pieces(BTreeMap<PageIndex, (PageIndex, Piece)>);

impl Pieces {
    pub(crate) fn iter(&self) -> impl Iterator<Item = (Range<PageIndex>, Piece)> + '_ {
        self.0.iter().map(|(&start, &(end, piece))| (start..end, piece))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The parts of `range` that are shared memory, ascending.
    pub(crate) fn parts(
        &self,
        range: &Range<PageIndex>,
    ) -> impl Iterator<Item = (Range<PageIndex>, Piece)> + '_ {
        let range = range.clone();
        let before = self.0.range(..range.start).next_back();
        before.into_iter().chain(self.0.range(range.clone())).filter_map(move |(&start, &(end, piece))| {
            let part = start.max(range.start)..end.min(range.end);
            (part.start < part.end).then(|| (part.clone(), piece.from(part.start.0 - start.0)))
        })
    }

    pub(crate) fn insert(&mut self, range: Range<PageIndex>, piece: Piece) {
        self.remove(&range);
        self.put(range, piece);
    }

    /// Adds a piece where there is none, and makes it one with those beside it that go on in the same way, as the kernel does:
    /// `mremap` moves what is one mapping.
    fn put(&mut self, mut range: Range<PageIndex>, mut piece: Piece) {
        if let Some((&start, &(end, before))) = self.0.range(..range.start).next_back()
            && end == range.start
            && before.from(end.0 - start.0) == piece
        {
            (range.start, piece) = (start, before);
        }
        if let Some(&(end, after)) = self.0.get(&range.end)
            && piece.from(range.end.0 - range.start.0) == after
        {
            self.0.remove(&range.end);
            range.end = end;
        }
        self.0.insert(range.start, (range.end, piece));
    }

    /// Forgets `range`. Returns what was there.
    pub(crate) fn remove(&mut self, range: &Range<PageIndex>) -> Vec<(Range<PageIndex>, Piece)> {
        let removed: Vec<_> = self.parts(range).collect();
        for (part, _) in &removed {
            let (&start, &(end, piece)) = self.0.range(..=part.start).next_back().expect("it has a part");
            self.0.remove(&start);
            if start < part.start {
                self.0.insert(start, (part.start, piece));
            }
            if part.end < end {
                self.0.insert(part.end, (end, piece.from(part.end.0 - start.0)));
            }
        }
        removed
    }

    /// Changes what is noted of `range`.
    pub(crate) fn change(&mut self, range: &Range<PageIndex>, change: impl Fn(&mut Piece)) {
        for (part, mut piece) in self.remove(range) {
            change(&mut piece);
            self.put(part, piece);
        }
    }

    /// What a forked child has of them.
    pub(crate) fn inherited(&self) -> Self {
        Self(self.0.iter().filter(|(_, (_, piece))| !piece.omit).map(|(&start, &end)| (start, end)).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_goes_on_in_the_same_way_is_one_piece() {
        let range = |start: u64, end: u64| PageIndex(start)..PageIndex(end);
        let at = |page: u64| Piece { page: PageIndex(page), protection: 3, ..Piece::NONE };
        let mut pieces = Pieces::default();
        pieces.insert(range(100, 120), at(7));
        pieces.change(&range(104, 108), |piece| piece.protection = 1);
        assert_eq!(pieces.iter().count(), 3);
        pieces.change(&range(104, 108), |piece| piece.protection = 3);
        assert_eq!(pieces.iter().collect::<Vec<_>>(), [(range(100, 120), at(7))]);
        // What is unmapped and mapped again, from the same page on; then from another one.
        pieces.remove(&range(110, 112));
        pieces.insert(range(110, 112), at(17));
        assert_eq!(pieces.iter().collect::<Vec<_>>(), [(range(100, 120), at(7))]);
        pieces.insert(range(110, 112), at(18));
        let parts = [(range(100, 110), at(7)), (range(110, 112), at(18)), (range(112, 120), at(19))];
        assert_eq!(pieces.iter().collect::<Vec<_>>(), parts);
        pieces.insert(range(112, 114), at(20));
        assert_eq!(pieces.iter().nth(1), Some((range(110, 114), at(18))));
    }
}
