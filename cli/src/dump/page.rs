//! All that is known of one page.

use super::memory::ProcessMemory;
use pagetide::dump::board::{ParkedFault, RequestShown};
use pagetide::dump::reading::{Heap, Slot};
use pagetide_swap::place::Entry;
use pagetide_swap::table::History;
use pagetide_swap::table::outside::Outside;
use pagetide_swap::{CLUSTER_PAGES, PageIndex, Place, State, Word};
use pagetide_sys::keeper::SHOWN_AS;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::FileExt;

/// The flag of a mapping whose faults the engine answers.
const MANAGED: &str = "managed";
/// The flag of a mapping that the program has locked. A *locked* page is one that somebody moves.
const MLOCKED: &str = "mlocked";

/// The mapping that a page belongs to, as the kernel has it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Mapping {
    pub range: (u64, u64),
    /// `rwxp`, and what is mapped.
    pub access: String,
    pub name: String,
    /// Whether the engine answers its faults, and other flags that matter here.
    pub flags: Vec<&'static str>,
}

/// What is known of a page.
#[derive(Clone, Debug)]
pub(crate) struct PageSeen {
    pub page: PageIndex,
    pub word: Word,
    pub history: History,
    /// Whether somebody holds the latch of its cluster, and others wait for it.
    pub held: bool,
    pub parked: bool,
    pub torn: bool,
    /// Whether the page is in the page tables of the program; `None` if the kernel does not say.
    pub mapped: Option<bool>,
    pub mapping: Option<Mapping>,
    pub slot: Option<Slot>,
    pub requests: Vec<RequestShown>,
    pub faults: Vec<ParkedFault>,
}

impl PageSeen {
    /// Returns where the page is, in words.
    pub(crate) fn state(&self) -> String {
        match &self.mapping {
            Some(mapping) if mapping.name.starts_with(SHOWN_AS.trim_end()) => {
                "shared memory, which the keeper serves".to_owned()
            }
            // The table has words of what is managed only.
            Some(mapping) if self.word == Word::HOLE && !mapping.flags.contains(&MANAGED) => {
                "not managed: the engine knows nothing of it".to_owned()
            }
            _ => state(self.word),
        }
    }

    /// Returns why a page that is in memory does not leave, as far as its mapping tells.
    ///
    /// That does not tell of pins, of `mlockall`, which is not passed on to the kernel, and of what is kept for threads that
    /// end.
    pub(crate) fn stays(&self) -> Option<&'static str> {
        let mapping = self.mapping.as_ref()?;
        let is = |flag| mapping.flags.contains(&flag);
        if self.mapped != Some(true) {
            None
        } else if !is(MANAGED) {
            Some("Pagetide does not manage its mapping")
        } else if is(MLOCKED) {
            Some("the program has locked it (mlock)")
        } else {
            None
        }
    }

    /// Adds those of these requests and parked faults that are on the page.
    pub(crate) fn with(self, requests: &[RequestShown], faults: &[ParkedFault]) -> Self {
        let page = self.page;
        let covers = |request: &&RequestShown| {
            // Entries of the pool that are written together lie anywhere: the first alone is known.
            let pages = request.pages.min(CLUSTER_PAGES as u64);
            (request.first..request.first.plus(pages)).contains(&page)
                || request.demand.is_some_and(|(demand, _)| demand == page)
        };
        Self {
            requests: requests.iter().filter(covers).copied().collect(),
            faults: faults.iter().filter(|fault| fault.page == page).copied().collect(),
            ..self
        }
    }
}

/// Looks a page of a process up. `slots` are those on probation, as far as they could be read.
pub(crate) fn look(
    pid: u64,
    table: &Outside<'_, Heap<ProcessMemory>>,
    address: u64,
    slots: &[Slot],
) -> Result<PageSeen, String> {
    let page = PageIndex::of_address(address as usize);
    let seen = table.cluster(page.cluster())?;
    let word = seen.as_ref().map_or(Word::HOLE, |seen| seen.words[page.offset()]);
    let is_its_slot = |slot: &&Slot| word.state() == State::Cached && slot.number == word.slot();
    Ok(PageSeen {
        page,
        word,
        history: seen.as_ref().map(|seen| seen.history).unwrap_or_default(),
        held: seen.as_ref().is_some_and(|seen| seen.held),
        parked: seen.as_ref().is_some_and(|seen| seen.parked),
        torn: seen.as_ref().is_some_and(|seen| seen.torn),
        mapped: is_mapped(pid, page),
        mapping: mapping(pid, address),
        slot: slots.iter().find(is_its_slot).copied(),
        requests: Vec::new(),
        faults: Vec::new(),
    })
}

fn is_mapped(pid: u64, page: PageIndex) -> Option<bool> {
    const PRESENT: u64 = 1 << 63;
    let mut entry = [0; 8];
    let file = File::open(format!("/proc/{pid}/pagemap")).ok()?;
    file.read_exact_at(&mut entry, page.0 * 8).ok()?;
    Some(u64::from_ne_bytes(entry) & PRESENT != 0)
}

fn mapping(pid: u64, address: u64) -> Option<Mapping> {
    const FLAGS: [(&str, &str); 5] = [
        ("um", MANAGED),
        ("lo", MLOCKED),
        ("dc", "not copied by a fork"),
        ("wf", "wiped by a fork"),
        ("io", "of a device"),
    ];
    let mut found: Option<Mapping> = None;
    for line in BufReader::new(File::open(format!("/proc/{pid}/smaps")).ok()?).lines() {
        let line = line.ok()?;
        if let (Some(mapping), Some(flags)) = (&mut found, line.strip_prefix("VmFlags:")) {
            let is_set =
                |(short, _): &&(&str, &str)| flags.split_ascii_whitespace().any(|flag| flag == *short);
            mapping.flags = FLAGS.iter().filter(is_set).map(|&(_, text)| text).collect();
            return found;
        }
        // Attributes begin with a capital letter.
        if found.is_some() || line.starts_with(|first: char| first.is_ascii_uppercase()) {
            continue;
        }
        let mut fields = line.split_ascii_whitespace();
        let (start, end) = fields.next()?.split_once('-')?;
        let range = (u64::from_str_radix(start, 16).ok()?, u64::from_str_radix(end, 16).ok()?);
        if (range.0..range.1).contains(&address) {
            let access = fields.next()?.to_owned();
            found = Some(Mapping {
                range,
                access,
                name: fields.nth(3).unwrap_or("").to_owned(),
                flags: Vec::new(),
            });
        }
    }
    found
}

/// Where a page is, in words.
pub(crate) fn state(word: Word) -> String {
    let place = |place: Option<Place>| match place {
        None => "nowhere".to_owned(),
        Some(Place::Same(0)) => "a zero page".to_owned(),
        Some(Place::Same(pattern)) => format!("the word {pattern:#010x} repeated"),
        Some(Place::Pool(handle)) => match handle.entry() {
            Entry::Page(number) => format!("in the pool, entry {number}"),
            Entry::Piece(folio, piece) => format!("in the pool, piece {piece} of folio {folio}"),
        },
        Some(Place::Device(block)) => format!("on the device, block {block}"),
    };
    let kept = |word: Word| {
        word.place().map_or(String::new(), |kept| format!("; a copy is kept: {}", place(Some(kept))))
    };
    match word.state() {
        State::Hole => "a hole: never touched, or dropped".to_owned(),
        State::Present => format!("in the program{}", kept(word)),
        State::Cached => format!("on probation in slot {}{}", word.slot(), kept(word)),
        State::Swapped => format!("out: {}", place(word.place())),
        State::Poisoned => "lost: an access gets SIGBUS".to_owned(),
    }
}

/// What is said of a page beside where it is.
pub(crate) fn flags(word: Word) -> Vec<&'static str> {
    let all = [
        (word.is_locked(), "locked"),
        (word.is_wanted(), "wanted"),
        (word.is_writeback(), "writeback"),
        (word.chances() > 0, "spared"),
    ];
    all.into_iter().filter(|(on, _)| *on).map(|(_, name)| name).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_without_a_word_is_told_by_its_mapping() {
        let seen = |name: &str, flags: &[&'static str]| PageSeen {
            page: PageIndex(1),
            word: Word::HOLE,
            history: History::default(),
            held: false,
            parked: false,
            torn: false,
            mapped: Some(true),
            mapping: Some(Mapping {
                range: (4096, 8192),
                access: "rw-p".into(),
                name: name.into(),
                flags: flags.into(),
            }),
            slot: None,
            requests: Vec::new(),
            faults: Vec::new(),
        };
        let states = [("", &[MANAGED][..]), ("[stack]", &[]), (SHOWN_AS.trim_end(), &[MANAGED])]
            .map(|(name, flags)| seen(name, flags).state());
        let starts = ["a hole", "not managed", "shared memory"];
        assert!(states.iter().zip(starts).all(|(state, start)| state.starts_with(start)), "{states:?}");
        assert_eq!(seen("", &[MANAGED]).stays(), None);
        assert!(seen("", &[MANAGED, MLOCKED]).stays().is_some_and(|why| why.contains("mlock")));
    }
}
