//! What a replay goes through: the events of a trace, their pages numbered anew.

use pagetide_swap::trace::{Event, Found, Reader};
use pagetide_swap::{CLUSTER_PAGES, PAGE_SIZE, PageIndex};
use std::collections::BTreeMap;

/// Bytes that a page compresses to of which the trace says nothing.
const UNKNOWN_BYTES: u16 = PAGE_SIZE as u16 / 3;

/// One event, in eight bytes. Pages are numbers from 0 on: those of a cluster stay together, and clusters that were
/// neighbours are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Step {
    /// The page.
    pub(super) page: u32,
    what: What,
    argument: u16,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum What {
    Read,
    Write,
    Size,
    Discard,
}

/// What an event says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Said {
    /// The page is asked for.
    Access {
        /// To write to it.
        write: bool,
    },
    /// From now on it takes so many bytes when compressed, 0 for a repeated word: its contents are others than before.
    Size(u16),
    /// So many pages from it on are forgotten.
    Discard(u16),
}

impl Step {
    #[cfg(test)]
    pub(super) fn new(page: u32, said: Said) -> Self {
        let (what, argument) = match said {
            Said::Access { write: false } => (What::Read, 0),
            Said::Access { write: true } => (What::Write, 0),
            Said::Size(bytes) => (What::Size, bytes),
            Said::Discard(pages) => (What::Discard, pages),
        };
        Self { page, what, argument }
    }

    /// What it says.
    pub(super) fn said(self) -> Said {
        match self.what {
            What::Read => Said::Access { write: false },
            What::Write => Said::Access { write: true },
            What::Size => Said::Size(self.argument),
            What::Discard => Said::Discard(self.argument),
        }
    }
}

/// A trace that can be replayed.
#[derive(Debug)]
pub(super) struct Steps {
    /// The events.
    pub(super) steps: Vec<Step>,
    /// Numbers of pages: one more than the highest.
    pub(super) pages: u32,
    /// Pages that are asked for.
    pub(super) footprint: usize,
    /// The cap of the run that was recorded.
    pub(super) recorded_cap: Option<u64>,
    /// What the first size of each page is, where the trace says it.
    pub(super) sizes: Vec<u16>,
    /// Why the trace could not be read to its end.
    pub(super) damage: Option<String>,
}

const RECENT: usize = 1024;

/// Clusters of processes, each with the number of its first page.
#[derive(Default)]
struct Places {
    all: BTreeMap<(u64, u64), u32>,
    /// Some that were looked up last, each where its number has it.
    recent: Vec<Option<((u64, u64), u32)>>,
}

impl Steps {
    /// Reads a trace, ours or a text of `page [r|w]` lines.
    ///
    /// # Errors
    /// It is neither.
    pub(super) fn read(bytes: &[u8]) -> Result<Self, String> {
        match Reader::new(bytes) {
            Ok((line, reader)) => Self::ours(line, reader),
            Err(_) => Self::text(bytes),
        }
    }

    fn ours(line: &[u8], reader: Reader<'_>) -> Result<Self, String> {
        let about: serde_json::Value = serde_json::from_slice(line).unwrap_or_default();
        let mut damage = None;
        let events: Vec<(u64, Event)> =
            reader.map_while(|found| found.map_err(|error| damage = Some(error.to_string())).ok()).collect();
        let mut places = Places::new(events.iter().filter_map(|&(process, event)| match event {
            Event::Access { page, .. } | Event::Stored { page, .. } => Some((process, page)),
            Event::Discard { .. } | Event::TakenOut { .. } => None,
        }))?;
        let mut steps = Vec::with_capacity(events.len());
        for &(process, event) in &events {
            match event {
                Event::Access { page, write, from } => {
                    let write = write || from == Found::Hole;
                    let what = if write { What::Write } else { What::Read };
                    steps.push(Step { page: places.place(process, page), what, argument: 0 });
                }
                Event::Stored { page, bytes } => {
                    let argument = bytes.min(PAGE_SIZE as u32) as u16;
                    steps.push(Step { page: places.place(process, page), what: What::Size, argument });
                }
                Event::Discard { page, pages } => forget(&mut steps, &places, process, page, pages),
                // What leaves is for the replay to decide.
                Event::TakenOut { .. } => {}
            }
        }
        let recorded_cap = about["cap_bytes"].as_u64();
        let mut this = Self::new(steps, &places);
        (this.recorded_cap, this.damage) = (recorded_cap, damage);
        Ok(this)
    }

    fn text(bytes: &[u8]) -> Result<Self, String> {
        let text =
            std::str::from_utf8(bytes).map_err(|_| "neither a trace of Pagetide nor a text".to_owned())?;
        let mut accesses = Vec::new();
        for (nth, line) in text.lines().enumerate() {
            let mut words = line.split('#').next().unwrap_or_default().split_ascii_whitespace();
            let Some(page) = words.next() else { continue };
            let wrong = || format!("line {}: `{line}` is not `PAGE [r|w]`", nth + 1);
            let number = match page.strip_prefix("0x") {
                Some(digits) => u64::from_str_radix(digits, 16),
                None => page.parse(),
            };
            let page = PageIndex(number.map_err(|_| wrong())?);
            let what = match words.next() {
                None | Some("r") => What::Read,
                Some("w") => What::Write,
                Some(_) => return Err(wrong()),
            };
            if words.next().is_some() {
                return Err(wrong());
            }
            accesses.push((page, what));
        }
        let mut places = Places::new(accesses.iter().map(|&(page, _)| (0, page)))?;
        let steps =
            accesses.iter().map(|&(page, what)| Step { page: places.place(0, page), what, argument: 0 });
        Ok(Self::new(steps.collect(), &places))
    }

    fn new(steps: Vec<Step>, places: &Places) -> Self {
        let pages = places.all.values().max().map_or(0, |&first| first + CLUSTER_PAGES as u32);
        let mut sizes = vec![None; pages as usize];
        let mut seen = vec![false; pages as usize];
        for step in &steps {
            match step.said() {
                Said::Access { .. } => seen[step.page as usize] = true,
                Said::Size(bytes) => _ = sizes[step.page as usize].get_or_insert(bytes),
                Said::Discard(_) => {}
            }
        }
        let footprint = seen.iter().filter(|&&seen| seen).count();
        let sizes = sizes.into_iter().map(|bytes| bytes.unwrap_or(UNKNOWN_BYTES)).collect();
        Self { steps, pages, footprint, recorded_cap: None, sizes, damage: None }
    }

    /// All pages take so many bytes of which the trace says nothing: of a text, all.
    pub(super) fn assume_bytes(&mut self, bytes: u16) {
        let mut known = vec![false; self.sizes.len()];
        for step in self.steps.iter().filter(|step| matches!(step.said(), Said::Size(_))) {
            known[step.page as usize] = true;
        }
        for (size, _) in self.sizes.iter_mut().zip(known).filter(|(_, known)| !known) {
            *size = bytes;
        }
    }
}

impl Places {
    /// Numbers the clusters of pages, in the order of processes and addresses, with one between two that are not
    /// neighbours.
    fn new(pages: impl Iterator<Item = (u64, PageIndex)>) -> Result<Self, String> {
        let mut this = Self { all: BTreeMap::new(), recent: vec![None; RECENT] };
        for (process, page) in pages {
            let cluster = (process, page.cluster().0);
            let recent = &mut this.recent[cluster.1 as usize % RECENT];
            if recent.is_none_or(|(known, _)| known != cluster) {
                *recent = Some((cluster, 0));
                this.all.insert(cluster, 0);
            }
        }
        this.recent.fill(None);
        let mut next = 0u64;
        let mut before: Option<(u64, u64)> = None;
        for (&(process, cluster), first) in &mut this.all {
            if before.is_some_and(|before| before != (process, cluster.wrapping_sub(1))) {
                next += CLUSTER_PAGES as u64;
            }
            *first = number(next)?;
            next += CLUSTER_PAGES as u64;
            before = Some((process, cluster));
        }
        number(next)?;
        Ok(this)
    }

    fn place(&mut self, process: u64, page: PageIndex) -> u32 {
        let cluster = (process, page.cluster().0);
        let recent = &mut self.recent[cluster.1 as usize % RECENT];
        let first = match *recent {
            Some((known, first)) if known == cluster => first,
            _ => recent.insert((cluster, self.all[&cluster])).1,
        };
        first + page.offset() as u32
    }
}

fn number(page: u64) -> Result<u32, String> {
    u32::try_from(page).map_err(|_| "the trace has more pages than 16 TiB".to_owned())
}

/// Pages are forgotten: one step for each cluster that is known.
fn forget(steps: &mut Vec<Step>, places: &Places, process: u64, page: PageIndex, pages: u64) {
    let end = page.0.saturating_add(pages);
    let last = PageIndex(end.saturating_sub(1)).cluster().0;
    if pages == 0 {
        return;
    }
    for (&(_, cluster), &first) in places.all.range((process, page.cluster().0)..=(process, last)) {
        let start = cluster * CLUSTER_PAGES as u64;
        let from = page.0.max(start);
        let to = end.min(start.saturating_add(CLUSTER_PAGES as u64));
        steps.push(Step {
            page: first + (from - start) as u32,
            what: What::Discard,
            argument: (to - from) as u16,
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pagetide_swap::trace::{Chunk, HEADER};

    #[test]
    fn a_text_is_read() {
        let steps = Steps::read(b"# a comment\n5\n0x6 w\n\n100000 r # far away\n5 w\n").unwrap();
        let said: Vec<_> = steps.steps.iter().map(|step| (step.page, step.said())).collect();
        let (read, write) = (Said::Access { write: false }, Said::Access { write: true });
        assert_eq!(said, [(5, read), (6, write), (1024 + 100_000 % 512, read), (5, write)]);
        assert_eq!((steps.footprint, steps.pages), (3, 1536));
        for wrong in ["x", "5 x", "5 r r", "-1", "0xg w"] {
            let error = Steps::read(format!("1\n{wrong}\n").as_bytes()).unwrap_err();
            assert!(error.starts_with("line 2: "), "{error}");
        }
        assert!(Steps::read(&[0xff, 0xfe]).is_err());
        assert_eq!(Steps::read(b"").unwrap().steps, []);
    }

    #[test]
    fn a_trace_of_two_processes_is_read_up_to_where_it_is_damaged() {
        let page = |number: u64| PageIndex(0x7f00_0000 + number);
        let mut chunk = Chunk::with_room(1000);
        chunk.push(Event::Access { page: page(0), write: true, from: Found::Hole });
        chunk.push(Event::Access { page: page(512), write: false, from: Found::Pool });
        chunk.push(Event::Stored { page: page(512), bytes: 700 });
        chunk.push(Event::TakenOut { page: page(512), pages: 9 });
        chunk.push(Event::Discard { page: page(500), pages: 4000 });
        let mut trace = HEADER.to_vec();
        trace.extend(b"{\"cap_bytes\": 4096}\n");
        trace.extend(chunk.finish(7).unwrap());
        trace.extend(chunk.finish(8).unwrap());
        let steps = Steps::read(&trace).unwrap();
        assert_eq!((steps.steps.len(), steps.footprint, steps.recorded_cap), (10, 4, Some(4096)));
        assert_eq!((steps.pages, steps.sizes[512], steps.sizes[513]), (5 * 512, 700, UNKNOWN_BYTES));
        let forgotten: Vec<_> =
            steps.steps.iter().filter(|step| matches!(step.said(), Said::Discard(_))).collect();
        assert_eq!((forgotten[0].page, forgotten[0].said()), (500, Said::Discard(12)));
        assert_eq!((forgotten[1].page, forgotten[1].said()), (512, Said::Discard(512)));
        trace.pop();
        let steps = Steps::read(&trace).unwrap();
        assert_eq!(steps.steps.len(), 5);
        assert!(steps.damage.unwrap().contains("cut off"));
    }
}
