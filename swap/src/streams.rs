//! How far to read on: a small table of sequential streams.
//!
//! A fault next to where a stream was about to read continues it, and the window doubles; any other fault
//! starts a stream of one page in place of the stalest. So random access brings in single pages and
//! never pays for a neighbour, and several threads that scan keep a window each.

use crate::entry::PageIndex;
use crate::sync::{Mutex, lock};

const STREAMS: usize = 8;

#[derive(Clone, Copy, Debug, Default)]
struct Stream {
    /// The first page beyond what this stream brought in.
    next: u64,
    window: u32,
    used_at: u64,
}

/// The streams of a process.
#[derive(Debug, Default)]
pub struct Streams {
    inner: Mutex<([Stream; STREAMS], u64)>,
}

impl Streams {
    /// The window, in pages, for a fault at `page`; at most `window_max`.
    pub fn window(&self, page: PageIndex, window_max: usize) -> usize {
        let mut inner = lock(&self.inner);
        let (streams, clock) = &mut *inner;
        *clock += 1;
        let now = *clock;
        // A stream is met at its next page, or a little beyond it: other threads' faults and pages that
        // were present already leave small gaps.
        let hit = streams
            .iter_mut()
            .find(|s| s.window > 0 && page.0 >= s.next && page.0 - s.next <= u64::from(s.window.min(4)));
        let stream = match hit {
            Some(stream) => {
                stream.window = (stream.window * 2).min(window_max as u32);
                stream
            }
            None => {
                let stalest = streams.iter_mut().min_by_key(|s| s.used_at).expect("there are streams");
                stalest.window = 1;
                stalest
            }
        };
        stream.used_at = now;
        stream.next = page.0 + u64::from(stream.window);
        stream.window as usize
    }

    /// Corrects a stream whose window could not be filled: it brought in `length` pages from `page` on.
    pub fn brought_in(&self, page: PageIndex, asked: usize, length: usize) {
        if asked == length {
            return;
        }
        let mut inner = lock(&self.inner);
        if let Some(stream) = inner.0.iter_mut().find(|s| s.next == page.0 + asked as u64) {
            stream.next = page.0 + length as u64;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scan_doubles_its_window_and_random_access_gets_one_page() {
        let streams = Streams::default();
        let mut page = 1000;
        let mut windows = Vec::new();
        for n in 0..9u64 {
            let window = streams.window(PageIndex(page), 64);
            windows.push(window);
            page += window as u64;
            assert_eq!(streams.window(PageIndex((1 << 30) + n * 977), 64), 1);
        }
        assert_eq!(windows, [1, 2, 4, 8, 16, 32, 64, 64, 64]);
    }

    #[test]
    fn a_window_that_was_cut_short_is_continued_where_it_ended() {
        let streams = Streams::default();
        assert_eq!(streams.window(PageIndex(10), 64), 1);
        assert_eq!(streams.window(PageIndex(11), 64), 2);
        assert_eq!(streams.window(PageIndex(13), 64), 4);
        streams.brought_in(PageIndex(13), 4, 1);
        assert_eq!(streams.window(PageIndex(14), 64), 8);
    }
}
