//! `lzpage`, the codec that is made for pages: LZ77 (Ziv and Lempel 1977) in whole bytes, as LZ4, for blocks of one page.
//!
//! What lies on a page of a heap is laid out in words, and structures that are alike follow one another. The format is
//! built on that:
//!
//! - Many repetitions lie as far back as the one before. Such a *repeated offset* takes no byte of its own (LZX;
//!   Zstandard, RFC 8878, section 3.1.1.5).
//! - An offset takes 12 bits at most, and 8 where it is a number of words, up to 256.
//!
//! # Format
//!
//! A page is a list of sequences: *literals*, bytes that stand in the input, then a *match*, `length` bytes that are
//! copied from `offset` bytes before. A sequence begins with a byte that says how many of both there are:
//!
//! | first byte | literals | length of the match | offset |
//! |---|---|---|---|
//! | `00ll lmmm` | `l` + 1 | `m` + 2; no match if `m` is 0 | that of the match before |
//! | `01ll lmmm` | `l` | `m` + 4 | 8 × (the next byte + 1) |
//! | `1mmm oooo` | 0 | `m` + 4 | 256 × `o` + the next byte |
//!
//! The next byte of the offset comes first. Three bits `l` or `m` that are all set are continued: bytes follow that are
//! added to the number, up to and with the first that is not 255; those of `l` come before those of `m`. Then come the
//! literals. Before the first match the offset is 8.
//!
//! The output is one page, and ends with the input. An offset of 0, or to before the page, is an error, and so is what
//! would be written beyond the page.

use pagetide_page::PAGE_SIZE;

/// What is compressed, and comes back: an offset has 12 bits.
pub type Page = [u8; PAGE_SIZE];
const _: () = assert!(PAGE_SIZE <= 1 << 12);

/// The offset before the first match.
const FIRST_OFFSET: usize = 8;
/// The unit of short offsets, in bytes, and the longest of them.
const WORD: usize = 8;
const WORDS_MAX: usize = 256 * WORD;
/// The first bytes of sequences by their offset: that before, some words, some bytes.
const SAME: u8 = 0;
const WORDS: u8 = 0x40;
const BYTES: u8 = 0x80;
/// The least numbers that the bits of a first byte stand for.
const SAME_LITERALS: usize = 1;
const WORDS_LITERALS: usize = 0;
const SAME_LENGTH: usize = 2;
const LENGTH: usize = 4;
/// Three bits that are all set: the number is continued.
const CONTINUED: usize = 7;
/// So many bytes are copied at once where there is room, for a copy of a fixed length takes few instructions: most
/// literals and matches have no more.
const FEW: usize = 2 * WORD;

#[inline(always)]
fn word32(page: &Page, at: usize) -> u32 {
    u32::from_le_bytes(page[at..at + 4].try_into().expect("four bytes"))
}

#[inline(always)]
fn word64(page: &Page, at: usize) -> u64 {
    u64::from_le_bytes(page[at..at + WORD].try_into().expect("eight bytes"))
}

/// Returns how many bytes from `start` on are as those from `earlier` on.
#[inline(always)]
fn common(page: &Page, mut earlier: usize, start: usize) -> usize {
    let mut at = start;
    while at + WORD <= PAGE_SIZE {
        let differ = word64(page, earlier) ^ word64(page, at);
        if differ != 0 {
            return at - start + differ.trailing_zeros() as usize / 8;
        }
        (earlier, at) = (earlier + WORD, at + WORD);
    }
    while at < PAGE_SIZE && page[earlier] == page[at] {
        (earlier, at) = (earlier + 1, at + 1);
    }
    at - start
}

/// The number of bits of the hash by which a match is found.
const HASH_BITS: u32 = 12;
/// After each so many bytes without a match the step to the next look grows by one.
const STEP_BYTES: usize = 64;
/// The last bytes of a page in which no match begins.
const TAIL: usize = 8;

/// Where bytes were met that have this hash: the last place of each; 0 if none.
struct Places([u16; 1 << HASH_BITS]);

impl Places {
    #[inline(always)]
    fn replace(&mut self, word: u32, at: usize) -> usize {
        let hash = word.wrapping_mul(2_654_435_761) >> (u32::BITS - HASH_BITS);
        std::mem::replace(&mut self.0[hash as usize], at as u16).into()
    }
}

/// Returns the bits that stand for a number, and what is left of it if it is continued.
#[inline(always)]
fn split(number: usize, least: usize) -> (u8, Option<usize>) {
    let over = number - least;
    (over.min(CONTINUED) as u8, over.checked_sub(CONTINUED))
}

/// The compressed page as it is written.
struct Writer<'a> {
    out: &'a mut [u8],
    at: usize,
}

impl Writer<'_> {
    /// What a sequence takes beside its literals and the further bytes of large numbers, at most: two first bytes, one of
    /// the offset, and one each of both numbers.
    const SEQUENCE_MAX: usize = 5;

    /// Returns whether there is room for a sequence of so many bytes, of which some are literals.
    #[inline(always)]
    fn has_room(&self, literals: usize, bytes: usize) -> bool {
        self.at + literals + Self::SEQUENCE_MAX + bytes / 255 <= self.out.len()
    }

    #[inline(always)]
    fn put(&mut self, byte: u8) {
        self.out[self.at] = byte;
        self.at += 1;
    }

    #[inline(always)]
    fn put_left(&mut self, left: Option<usize>) {
        let Some(mut left) = left else { return };
        while left >= 255 {
            self.put(255);
            left -= 255;
        }
        self.put(left as u8);
    }

    #[inline(always)]
    fn put_literals(&mut self, page: &Page, from: usize, to: usize) {
        let length = to - from;
        if length <= FEW && from + FEW <= PAGE_SIZE && self.at + FEW <= self.out.len() {
            self.out[self.at..self.at + FEW].copy_from_slice(&page[from..from + FEW]);
        } else {
            self.out[self.at..self.at + length].copy_from_slice(&page[from..to]);
        }
        self.at += length;
    }

    /// Writes the literals from `anchor` to `at`, and no match.
    #[inline(always)]
    fn put_only_literals(&mut self, page: &Page, anchor: usize, at: usize) {
        let (bits, left) = split(at - anchor, SAME_LITERALS);
        self.put(SAME | bits << 3);
        self.put_left(left);
        self.put_literals(page, anchor, at);
    }

    /// Writes the literals from `anchor` to `at`, and the match there.
    #[inline(always)]
    fn put_sequence(
        &mut self,
        page: &Page,
        anchor: usize,
        at: usize,
        length: usize,
        offset: usize,
        last: usize,
    ) {
        let literals = at - anchor;
        if offset == last && literals > 0 {
            let (first, left) = split(literals, SAME_LITERALS);
            let (second, longer) = split(length, SAME_LENGTH);
            self.put(SAME | first << 3 | second);
            self.put_left(left);
            self.put_left(longer);
            self.put_literals(page, anchor, at);
        } else if literals > 0 && offset.is_multiple_of(WORD) && offset <= WORDS_MAX {
            let (first, left) = split(literals, WORDS_LITERALS);
            let (second, longer) = split(length, LENGTH);
            self.put(WORDS | first << 3 | second);
            self.put((offset / WORD - 1) as u8);
            self.put_left(left);
            self.put_left(longer);
            self.put_literals(page, anchor, at);
        } else {
            if literals > 0 {
                self.put_only_literals(page, anchor, at);
            }
            let (bits, longer) = split(length, LENGTH);
            self.put(BYTES | bits << 4 | (offset >> 8) as u8);
            self.put(offset as u8);
            self.put_left(longer);
        }
    }
}

/// Compresses a page into `out`, and returns the length in bytes; nothing if there is too little room. Five bytes more
/// than that length are always enough.
pub fn compress(page: &Page, out: &mut [u8]) -> Option<usize> {
    let mut places = Places([0; 1 << HASH_BITS]);
    let mut writer = Writer { out, at: 0 };
    let mut last = FIRST_OFFSET;
    // All before `anchor` is written. The first look goes back to the begin of the page.
    let (mut anchor, mut at) = (0, FIRST_OFFSET);
    while at < PAGE_SIZE - TAIL {
        let word = word32(page, at);
        let place = places.replace(word, at);
        let differ = word ^ word32(page, at - last);
        let (offset, length) = if differ == 0 {
            (last, 4 + common(page, at - last + 4, at + 4))
        } else if word == word32(page, place) {
            (at - place, 4 + common(page, place + 4, at + 4))
        } else if differ << 8 == 0 {
            (last, 3)
        } else {
            at += 1 + (at - anchor) / STEP_BYTES;
            continue;
        };
        let mut begin = at;
        while begin > anchor && begin > offset && page[begin - 1] == page[begin - 1 - offset] {
            begin -= 1;
        }
        if !writer.has_room(begin - anchor, at + length - anchor) {
            return None;
        }
        // A match goes on as far as it can, so the next one begins at once only with another offset.
        debug_assert!(offset != last || begin > anchor, "no first byte stands for it");
        at += length;
        writer.put_sequence(page, anchor, begin, at - begin, offset, last);
        (last, anchor) = (offset, at);
        if at < PAGE_SIZE - TAIL {
            places.replace(word32(page, at - 2), at - 2);
        }
    }
    if anchor < PAGE_SIZE {
        if !writer.has_room(PAGE_SIZE - anchor, PAGE_SIZE - anchor) {
            return None;
        }
        writer.put_only_literals(page, anchor, PAGE_SIZE);
    }
    Some(writer.at)
}

/// A compressed page as it is read.
struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl Reader<'_> {
    #[inline(always)]
    fn take(&mut self) -> Option<usize> {
        let byte = *self.bytes.get(self.at)?;
        self.at += 1;
        Some(byte.into())
    }

    /// Reads the rest of the number that three bits begin.
    #[inline(always)]
    fn number(&mut self, bits: u8, least: usize) -> Option<usize> {
        let mut number = usize::from(bits & 7);
        if number == CONTINUED {
            loop {
                let byte = self.take()?;
                number += byte;
                if byte < 255 {
                    break;
                }
            }
        }
        Some(least + number)
    }

    /// Copies so many literals to `to`, and returns where the page goes on.
    #[inline(always)]
    fn copy_literals(&mut self, page: &mut Page, to: usize, length: usize) -> Option<usize> {
        if length <= FEW
            && to <= PAGE_SIZE - FEW
            && let Some(literals) = self.bytes.get(self.at..self.at + FEW)
        {
            page[to..to + FEW].copy_from_slice(literals);
        } else {
            let literals = self.bytes.get(self.at..self.at + length)?;
            page.get_mut(to..to + length)?.copy_from_slice(literals);
        }
        self.at += length;
        Some(to + length)
    }
}

/// Copies `length` bytes of the page to `to`, from `offset` bytes before, and returns where the page goes on.
#[inline(always)]
fn copy_match(page: &mut Page, to: usize, length: usize, offset: usize) -> Option<usize> {
    let end = to + length;
    if offset > to || offset == 0 || end > PAGE_SIZE {
        return None;
    }
    if offset >= WORD && length <= FEW && to <= PAGE_SIZE - FEW {
        for at in [to, to + WORD] {
            let word = word64(page, at - offset);
            page[at..at + WORD].copy_from_slice(&word.to_le_bytes());
        }
    } else {
        copy_run(page, to, end, offset);
    }
    Some(end)
}

/// Copies a match that is long, near the end or overlaps itself, in parts that double: what is copied can be copied
/// again.
fn copy_run(page: &mut Page, to: usize, end: usize, offset: usize) {
    let begin = to - offset;
    let mut at = to;
    while at < end {
        let length = (at - begin).min(end - at);
        page.copy_within(begin..begin + length, at);
        at += length;
    }
}

/// Decompresses all of `bytes` into `page`; nothing if they are no compressed page. Then `page` has some bytes.
pub fn decompress(bytes: &[u8], page: &mut Page) -> Option<()> {
    let mut reader = Reader { bytes, at: 0 };
    let (mut to, mut offset) = (0, FIRST_OFFSET);
    while let Some(first) = reader.take() {
        let bits = first as u8;
        let length;
        if bits < BYTES {
            // Which of the two kinds it is comes at random: a branch would be guessed wrong. Where the offset's byte is
            // missing `at` is past the end, and literals cannot be copied, even if there are none.
            let words = first >> 6;
            let next = reader.bytes.get(reader.at).map_or(0, |&next| usize::from(next));
            let here = (next + 1) * WORD;
            offset ^= (offset ^ here) & words.wrapping_neg();
            reader.at += words;
            let literals =
                reader.number(bits >> 3, SAME_LITERALS - words * (SAME_LITERALS - WORDS_LITERALS))?;
            length = reader.number(bits, SAME_LENGTH + words * (LENGTH - SAME_LENGTH))?;
            to = reader.copy_literals(page, to, literals)?;
            if length == SAME_LENGTH {
                continue;
            }
        } else {
            offset = (first & 15) << 8 | reader.take()?;
            length = reader.number(bits >> 4, LENGTH)?;
        }
        to = copy_match(page, to, length, offset)?;
    }
    (to == PAGE_SIZE).then_some(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The table of the format, read byte by byte.
    fn read_plainly(bytes: &[u8]) -> Option<Vec<u8>> {
        let mut bytes = bytes.iter().copied();
        let (mut page, mut offset) = (Vec::new(), 8);
        while let Some(first) = bytes.next() {
            let mut next = || bytes.next().map(usize::from);
            let (l, m) = (usize::from(first >> 3 & 7), usize::from(first & 7));
            let (mut literals, mut length) = match first >> 6 {
                0 => (l + 1, m + 2),
                1 => {
                    offset = 8 * (next()? + 1);
                    (l, m + 4)
                }
                _ => {
                    offset = 256 * usize::from(first & 15) + next()?;
                    (0, usize::from(first >> 4 & 7) + 4)
                }
            };
            let continued = match first >> 6 {
                0 | 1 => [l == 7, m == 7],
                _ => [false, first >> 4 & 7 == 7],
            };
            for (number, mut continued) in [(&mut literals, continued[0]), (&mut length, continued[1])] {
                while continued {
                    let byte = next()?;
                    *number += byte;
                    continued = byte == 255;
                }
            }
            for _ in 0..literals {
                page.push(next()? as u8);
            }
            if first >> 6 == 0 && m == 0 {
                length = 0;
            }
            if length > 0 && offset == 0 || page.len() + length > PAGE_SIZE {
                return None;
            }
            for _ in 0..length {
                page.push(page[page.len().checked_sub(offset)?]);
            }
        }
        (page.len() == PAGE_SIZE).then_some(page)
    }

    fn read(bytes: &[u8]) -> Option<Vec<u8>> {
        let mut page = [0xa5; PAGE_SIZE];
        decompress(bytes, &mut page).map(|()| page.to_vec())
    }

    fn compressed(page: &[u8]) -> Vec<u8> {
        let mut out = vec![0; 2 * PAGE_SIZE];
        let length = compress(page.try_into().unwrap(), &mut out).unwrap();
        out.truncate(length);
        out
    }

    /// Parts of a page: runs, noise, what was there so many bytes before, and structures of some size of which a few
    /// bytes differ.
    fn any_page() -> impl Strategy<Value = Vec<u8>> {
        let part = (0..5u8, 1..600usize, 1..5000usize, any::<u64>());
        proptest::collection::vec(part, 1..80).prop_map(|parts| {
            let mut page = Vec::with_capacity(PAGE_SIZE);
            for (kind, length, offset, seed) in parts.into_iter().cycle() {
                let mut state = seed | 1;
                let mut draw = || {
                    state ^= state << 13;
                    state ^= state >> 7;
                    state ^= state << 17;
                    (state >> 40) as u8
                };
                for nth in 0..length {
                    let before = |offset: usize| page.len().checked_sub(offset).map(|at| page[at]);
                    page.push(match kind {
                        0 => seed as u8,
                        1 => draw(),
                        2 => before(1 + offset % 12).unwrap_or(7),
                        3 => before(offset).unwrap_or(9),
                        _ if nth % 5 == 0 => draw() & 3,
                        _ => before(8 * (1 + offset % 20)).unwrap_or(1),
                    });
                }
                if page.len() >= PAGE_SIZE {
                    break;
                }
            }
            page.truncate(PAGE_SIZE);
            page
        })
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_as_the_format_says(bytes in proptest::collection::vec(any::<u8>(), 0..2000)) {
            prop_assert_eq!(read(&bytes), read_plainly(&bytes));
        }

        #[test]
        fn a_page_comes_back_and_the_format_is_what_it_is_said_to_be(page in any_page()) {
            let bytes = compressed(&page);
            let (read, plainly) = (read(&bytes), read_plainly(&bytes));
            prop_assert_eq!(read.as_ref(), Some(&page));
            prop_assert_eq!(plainly.as_ref(), Some(&page));
        }

        #[test]
        fn in_less_room_it_is_the_same_or_nothing(page in any_page(), room in 0..PAGE_SIZE) {
            let mut out = vec![0xa5; room];
            if let Some(length) = compress(page.as_slice().try_into().unwrap(), &mut out) {
                prop_assert_eq!(&out[..length], compressed(&page));
            } else {
                prop_assert!(compressed(&page).len() + Writer::SEQUENCE_MAX > room);
            }
        }

        #[test]
        fn damaged_bytes_are_read_as_the_format_says(
            page in any_page(),
            changes in proptest::collection::vec((any::<u16>(), any::<u8>()), 1..6),
            cut in 0..40usize,
        ) {
            let mut bytes = compressed(&page);
            for (at, byte) in changes {
                let at = usize::from(at) % bytes.len();
                bytes[at] = byte;
            }
            bytes.truncate(bytes.len() - cut.min(bytes.len()));
            prop_assert_eq!(read(&bytes), read_plainly(&bytes));
        }
    }

    /// What continues a number of which the bits of a first byte stand for `limit` at most.
    fn continued(number: usize, limit: usize) -> Vec<u8> {
        let Some(left) = number.checked_sub(limit) else { return Vec::new() };
        let mut bytes = vec![255; left / 255];
        bytes.push((left % 255) as u8);
        bytes
    }

    #[test]
    fn numbers_at_their_edges_are_read_as_the_format_says() {
        const NUMBERS: [usize; 14] = [1, 2, 4, 7, 8, 9, 11, 16, 17, 255, 262, 263, 518, 1500];
        let mut valid = 0;
        for (literals, length) in NUMBERS.iter().flat_map(|&l| NUMBERS.map(|m| (l, m + 3))) {
            for (kind, offset) in [(0, 8), (1, 8), (1, 2048), (2, 1), (2, 7), (2, 9), (2, 2056), (2, 4000)] {
                // Literals first, as many as the offset needs; in the end those that fill the page, or one less.
                let before = offset.max(9);
                let mut bytes = vec![0x38];
                bytes.extend(continued(before, 8));
                bytes.extend((0..before).map(|nth| (nth * 7) as u8));
                let text = (0..literals).map(|nth| (nth * 11) as u8);
                let l = |least: usize| (literals - least).min(7) as u8;
                let m = |least: usize| (length - least).min(7) as u8;
                let (first, bits, longer) = match kind {
                    0 => (vec![l(1) << 3 | m(2)], continued(literals, 8), continued(length, 9)),
                    1 => {
                        let first = vec![0x40 | l(0) << 3 | m(4), (offset / 8 - 1) as u8];
                        (first, continued(literals, 7), continued(length, 11))
                    }
                    _ => {
                        let first = vec![0x80 | m(4) << 4 | (offset >> 8) as u8, offset as u8];
                        (first, Vec::new(), continued(length, 11))
                    }
                };
                let literals = if kind == 2 { 0 } else { literals };
                bytes.extend(first.into_iter().chain(bits).chain(longer).chain(text.take(literals)));
                for missing in [0, 1] {
                    let mut bytes = bytes.clone();
                    if let Some(left @ 1..) = PAGE_SIZE.checked_sub(before + literals + length + missing) {
                        bytes.push((left - 1).min(7) as u8 * 8);
                        bytes.extend(continued(left, 8));
                        bytes.resize(bytes.len() + left, 0xe5);
                    }
                    assert_eq!(read(&bytes), read_plainly(&bytes), "{kind} {offset}: {literals}, {length}");
                    valid += u32::from(read(&bytes).is_some());
                }
            }
        }
        assert!(valid > 1000, "{valid}");
    }

    #[test]
    fn in_each_room_it_is_the_same_or_nothing() {
        let mut state = 5u64;
        let mut noise = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 56) as u8
        };
        // Noise, and from so many bytes before what is said again: two large numbers in one sequence.
        for (before, again) in [(PAGE_SIZE, 1), (1000, 999), (1504, 1504), (2052, 2043), (300, 13)] {
            let mut page: Vec<u8> = (0..before).map(|_| noise()).collect();
            while page.len() < PAGE_SIZE {
                page.push(page[page.len() - again]);
            }
            let page: Page = page.try_into().unwrap();
            let whole = compressed(&page);
            assert!(whole.len() <= before + 40, "{}", whole.len());
            for room in 0..PAGE_SIZE + 40 {
                let mut out = vec![0; room];
                match compress(&page, &mut out) {
                    Some(length) => assert_eq!(out[..length], whole),
                    None => assert!(room < whole.len() + Writer::SEQUENCE_MAX, "{room} of {}", whole.len()),
                }
            }
        }
    }

    #[test]
    fn an_example_has_each_kind_of_sequence() {
        let mut bytes = vec![0x38, 0];
        bytes.extend(b"abcdefgh"); // eight literals
        bytes.extend([0x49, 0, b'X']); // one literal, and five bytes from a word before
        bytes.extend([0x01, b'Y']); // one literal, and three bytes from as far
        bytes.extend([0x90, 6]); // five bytes from six before
        bytes.extend([0xf0, 1]); // the last byte over and over: 11 times, and
        let known = b"abcdefghXbcdefYhXbefYhX";
        let left = PAGE_SIZE - known.len() - 11;
        bytes.extend(std::iter::repeat_n(255, left / 255));
        bytes.push((left % 255) as u8);
        let page = read(&bytes).unwrap();
        assert_eq!(page[..known.len()], known[..]);
        assert!(page[known.len()..].iter().all(|&byte| byte == b'X'));
    }

    #[test]
    fn the_smallest_and_the_largest() {
        assert_eq!(compressed(&[0; PAGE_SIZE]).len(), 9 + 1 + 16);
        let words: Vec<u8> = (0..PAGE_SIZE / 8).flat_map(|nth| (nth as u64).to_le_bytes()).collect();
        assert!(compressed(&words).len() < PAGE_SIZE / 3);
        for bytes in [&[][..], &[0], &[0x38, 255], &[0x80], &[0x80, 0], &[0xf0, 8, 255], &[0x47]] {
            assert_eq!(read(bytes), None, "{bytes:?}");
        }
    }
}
