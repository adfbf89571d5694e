//! What the index of swapped pages costs: bytes and nanoseconds, beside a plain flat table and beside Linux.
//!
//! `cargo run --release -p pagetide-swap --example figures [-- --json]`
//!
//! Times are medians of some runs on one object; run it on a quiet machine.

use pagetide_swap::blocks::Blocks;
use pagetide_swap::hash::HashKey;
use pagetide_swap::place::Place;
use pagetide_swap::swap::Keys;
use pagetide_swap::table::Table;
use pagetide_swap::workingset::Shadow;
use pagetide_swap::zswap::pool::Heap;
use pagetide_swap::zswap::{HEADER_BYTES, Scratch};
use pagetide_swap::{
    CLUSTER_PAGES, ClusterNumber, Config, Counters, FOLIO_PAGES, Handle, PAGE_SIZE, PageIndex, Stored, Swap,
    Swapin, Window, Word,
};
use serde_json::{Value, json};
use std::hint::black_box;
use std::sync::{Mutex, OnceLock};
use std::time::Instant;

/// 30 GiB.
const CLUSTERS: u64 = 30 << 9;
const RANDOM_SWAPINS: usize = 100_000;
/// Clusters that the timed operations walk through: 1 GiB.
const TIMED_CLUSTERS: u64 = 512;
const RUNS: usize = 9;
/// Times that each of two threads goes through its clusters.
const ROUNDS: u64 = 30;
/// Folios that a span of the pool holds: pages of 1.3 KiB.
const SPAN_FOLIOS: u32 = 12;
/// Windows of the run look-up, each way.
const WINDOWS: [usize; 4] = [8, 32, 64, 512];

struct Figure {
    name: String,
    linux: &'static str,
    linux_after: &'static str,
    flat: String,
    ours: String,
    goal: &'static str,
    value: Value,
}

/// A plain flat table: a word a page, in clusters with a lock and the counts that reclaim needs, which are found in two
/// index steps and made when they are first touched.
struct Flat {
    leaves: Vec<OnceLock<FlatLeaf>>,
}

type FlatLeaf = Box<[OnceLock<Box<FlatCluster>>; LEAF]>;
type FlatCluster = Mutex<([u16; 5], [Word; CLUSTER_PAGES])>;

const LEAF: usize = 256;

impl Flat {
    fn new() -> Self {
        Self { leaves: (0..1 << 18).map(|_| OnceLock::new()).collect() }
    }

    fn cluster(&self, number: u64) -> &FlatCluster {
        let leaf =
            self.leaves[number as usize / LEAF].get_or_init(|| Box::new([const { OnceLock::new() }; LEAF]));
        leaf[number as usize % LEAF]
            .get_or_init(|| Box::new(Mutex::new(([0; 5], [Word::HOLE; CLUSTER_PAGES]))))
    }

    fn set(&self, page: PageIndex, word: Word) {
        let (counts, words) = &mut *self.cluster(page.cluster().0).lock().expect("nobody panics");
        let old = std::mem::replace(&mut words[page.offset()], word);
        counts[old.state() as usize] = counts[old.state() as usize].wrapping_sub(1);
        counts[word.state() as usize] = counts[word.state() as usize].wrapping_add(1);
    }

    fn get(&self, page: PageIndex) -> Word {
        self.cluster(page.cluster().0).lock().expect("nobody panics").1[page.offset()]
    }
}

/// Numbers that look random, the same each time.
struct Draw(u64);

impl Draw {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((u128::from(self.0) * u128::from(limit)) >> 64) as u64
    }
}

fn middle(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Medians of two measurements that take turns, and of their ratios.
fn paired(mut one: impl FnMut() -> f64, mut other: impl FnMut() -> f64) -> (f64, f64, f64) {
    let pairs: Vec<(f64, f64)> = (0..RUNS).map(|_| (one(), other())).collect();
    let of = |which: &dyn Fn(&(f64, f64)) -> f64| middle(pairs.iter().map(which).collect());
    (of(&|pair| pair.0), of(&|pair| pair.1), of(&|pair| pair.1 / pair.0))
}

/// Nanoseconds that each of `count` operations takes.
fn each(count: u64, work: impl FnOnce()) -> f64 {
    let start = Instant::now();
    work();
    start.elapsed().as_nanos() as f64 / count as f64
}

fn pages() -> impl Iterator<Item = PageIndex> {
    (0..TIMED_CLUSTERS * CLUSTER_PAGES as u64).map(PageIndex)
}

fn swap(blocks: usize) -> Swap<Heap> {
    let keys = Keys { hash: HashKey::new([1, 2, 3, 4]), cipher: None };
    let config = Config::for_cap(CLUSTERS * CLUSTER_PAGES as u64);
    Swap::new(Heap, Blocks::private(blocks), keys, config, Counters::private())
}

/// Takes whole clusters out and stores their pages where `place` says.
fn swap_out(swap: &Swap<Heap>, place: impl Fn(PageIndex) -> Place) {
    for number in (0..CLUSTERS).map(ClusterNumber) {
        let mut cluster = swap.table().lock_or_create(number);
        let out = swap.taken_out(&mut cluster, 0, 0..CLUSTER_PAGES, |_| true, |_| false);
        swap.begin_store(&mut cluster, 0, 0..CLUSTER_PAGES, |_, _| ());
        drop(cluster);
        for first in (0..CLUSTER_PAGES).step_by(FOLIO_PAGES) {
            let page = number.page(first);
            assert!(swap.finish_store_run(page, FOLIO_PAGES, place(page), out.shadow));
        }
    }
}

fn swap_in_at_random(swap: &Swap<Heap>) {
    let mut draw = Draw(1);
    for _ in 0..RANDOM_SWAPINS {
        let page = PageIndex(draw.below(CLUSTERS * CLUSTER_PAGES as u64));
        if let Swapin::Inserted(transfer) = swap.swapin(page, page..page.plus(1), Window::NONE) {
            swap.finish_swapin(&transfer, 1, false);
        }
    }
}

fn kib(bytes: usize) -> String {
    format!("{} KiB", bytes.div_ceil(1024))
}

fn index_bytes(figures: &mut Vec<Figure>) {
    let flat = kib(CLUSTERS as usize * (CLUSTER_PAGES * 8 + 16));
    let zero = swap(0);
    swap_out(&zero, |_| Place::ZERO);
    let before = zero.table().bytes();
    swap_in_at_random(&zero);
    let after = zero.table().bytes();
    // The index alone: thirty gigabytes of entries would not find room.
    let pooled = swap(0);
    swap_out(&pooled, |page| {
        // A span holds some of them, and their numbers begin anew in the next.
        let folio = page.0 as u32 / FOLIO_PAGES as u32;
        let number = (folio / SPAN_FOLIOS) * 512 + folio % SPAN_FOLIOS;
        Place::Pool(Handle::piece(number, page.0 as usize % FOLIO_PAGES))
    });
    for (name, bytes, goal) in [
        ("index of 30 GiB swapped as 2 MiB folios: zero pages", before, "≤ 512 KiB"),
        ("the same, compressed data in units of 64 KiB", pooled.table().bytes(), "≤ 6 MiB"),
        ("the same after 100 000 random single-page swapins", after, "≤ 16 MiB"),
    ] {
        let first = name.starts_with("index");
        figures.push(Figure {
            name: name.into(),
            linux: if first { "73728K" } else { "" },
            linux_after: if first { "7056K" } else { "" },
            flat: flat.clone(),
            ours: kib(bytes),
            goal,
            value: json!({"bytes": bytes}),
        });
    }
}

/// Everything that a swapped page takes beside its compressed bytes and what its size class rounds up: the table, the
/// header with its hash, what leads to it; on the device hash, count and mark.
fn metadata(figures: &mut Vec<Figure>) {
    const PAGES: usize = (256 << 20) / PAGE_SIZE;
    let fill = |page: &mut [u8], seed: u64| {
        let mut draw = Draw(seed);
        page.fill(0);
        page[..1300].iter_mut().for_each(|byte| *byte = draw.below(256) as u8);
    };
    let mut scratch = Scratch::default();
    let mut pages = vec![0; FOLIO_PAGES * PAGE_SIZE];
    let per_page = |bytes: usize| bytes as f64 / PAGES as f64;
    let mut shown = Vec::new();
    for in_order in [false, true] {
        let swap = swap(0);
        swap.zswap().set_pages_max(usize::MAX / 8);
        for number in (0..PAGES / CLUSTER_PAGES).map(|number| ClusterNumber(number as u64)) {
            let mut cluster = swap.table().lock_or_create(number);
            let out = swap.taken_out(&mut cluster, 0, 0..CLUSTER_PAGES, |_| true, |_| false);
            swap.begin_store(&mut cluster, 0, 0..CLUSTER_PAGES, |_, _| ());
            drop(cluster);
            for first in (0..CLUSTER_PAGES).step_by(FOLIO_PAGES) {
                for (nth, page) in pages.chunks_exact_mut(PAGE_SIZE).enumerate() {
                    fill(page, number.page(first + nth).0);
                }
                let page = |nth: usize| &pages[nth * PAGE_SIZE..][..PAGE_SIZE];
                if in_order {
                    let stored = swap.store_folio(page, &[None; FOLIO_PAGES], &mut scratch);
                    let place = Stored::run(&stored).expect("they compress");
                    assert!(swap.finish_store_run(number.page(first), FOLIO_PAGES, place, out.shadow));
                    continue;
                }
                for nth in 0..FOLIO_PAGES {
                    let Stored::New(place) = swap.store(page(nth), None, false, &mut scratch) else {
                        unreachable!("it compresses")
                    };
                    swap.finish_store(number.page(first + nth), place, out.shadow);
                }
            }
        }
        shown.push(per_page(swap.metadata_bytes()) + HEADER_BYTES as f64);
    }
    // On the device: any two pages apart.
    let swap = swap(2 * PAGES);
    for page in (0..PAGES as u64).map(PageIndex) {
        let mut cluster = swap.table().lock_or_create(page.cluster());
        cluster.set(page.offset(), Word::swapped(Place::Device(page.0 * 2), Shadow(page.0 as u16)));
    }
    (0..PAGES as u64).for_each(|block| swap.blocks().set_hash(block, [1, 2, 3]));
    shown.push(per_page(swap.metadata_bytes()) + 1.0 + 1.0 / 8.0);
    for ((name, goal), bytes) in [
        ("metadata a swapped page: each alone in the pool", "≤ 24 B"),
        ("the same, evicted in order", "≤ 16 B"),
        ("the same, each alone on the device", "≤ 24 B"),
    ]
    .into_iter()
    .zip(shown)
    {
        figures.push(Figure {
            name: name.into(),
            linux: "",
            linux_after: "",
            flat: "8 + 56 B and more".into(),
            ours: format!("{bytes:.1} B"),
            goal,
            value: json!({"bytes": bytes}),
        });
    }
}

/// What a page of the timed ones says.
fn word(page: PageIndex) -> Word {
    Word::swapped(Place::Pool(Handle::page(page.0 as u32)), Shadow(0))
}

fn table_times(figures: &mut Vec<Figure>) {
    let count = TIMED_CLUSTERS * CLUSTER_PAGES as u64;
    let flat = Flat::new();
    let by_flat = || {
        each(count, || {
            pages().for_each(|page| flat.set(page, word(page)));
            pages().for_each(|page| assert_ne!(black_box(flat.get(page)), Word::HOLE));
            pages().for_each(|page| flat.set(page, Word::HOLE));
        })
    };
    let table = Table::default();
    let set = |page: PageIndex, word: Word| table.lock_or_create(page.cluster()).set(page.offset(), word);
    let by_page = || {
        each(count, || {
            pages().for_each(|page| set(page, word(page)));
            pages().for_each(|page| assert_ne!(black_box(table.peek(page)), Word::HOLE));
            pages().for_each(|page| set(page, Word::HOLE));
        })
    };
    let whole = |number: u64, word: Word| {
        table.lock_or_create(ClusterNumber(number)).set_run(0..CLUSTER_PAGES, word);
    };
    let by_folio = || {
        each(count, || {
            (0..TIMED_CLUSTERS).for_each(|number| whole(number, Word::swapped(Place::ZERO, Shadow(1))));
            (0..TIMED_CLUSTERS).for_each(|number| {
                assert_ne!(black_box(table.peek(ClusterNumber(number).page(0))), Word::HOLE);
            });
            (0..TIMED_CLUSTERS).for_each(|number| whole(number, Word::HOLE));
        })
    };
    let (flat_ns, page_ns, ratio) = paired(by_flat, by_page);
    let (_, folio_ns, folio_ratio) = paired(by_flat, by_folio);
    figures.push(Figure {
        name: "insert + look-up + delete, 4 KiB".into(),
        linux: "",
        linux_after: "",
        flat: format!("{flat_ns:.1} ns"),
        ours: format!("{page_ns:.1} ns, × {ratio:.2}"),
        goal: "≤ × 1.15",
        value: json!({"flat_ns": flat_ns, "ns": page_ns, "ratio": ratio}),
    });
    figures.push(Figure {
        name: "the same, whole 2 MiB folios, a page of them".into(),
        linux: "",
        linux_after: "",
        flat: format!("{flat_ns:.1} ns"),
        ours: format!("{folio_ns:.3} ns, 1/{:.0}", 1.0 / folio_ratio),
        goal: "≤ 1/100",
        value: json!({"flat_ns": flat_ns, "ns": folio_ns, "ratio": folio_ratio}),
    });
    thread_rates(figures, &flat, &set);
}

/// What a second thread adds.
fn thread_rates(figures: &mut Vec<Figure>, flat: &Flat, set: &(dyn Fn(PageIndex, Word) + Sync)) {
    let count = TIMED_CLUSTERS * CLUSTER_PAGES as u64;
    let rate = |threads: u64, set: &(dyn Fn(PageIndex, Word) + Sync)| {
        let start = Instant::now();
        std::thread::scope(|scope| {
            for thread in 0..threads {
                scope.spawn(move || {
                    // Neighbours in memory and in number.
                    let own = || pages().filter(move |page| page.cluster().0 % 2 == thread);
                    // Long enough that the system has given each thread a processor.
                    for _ in 0..ROUNDS {
                        own().for_each(|page| set(page, word(page)));
                        own().for_each(|page| set(page, Word::HOLE));
                    }
                });
            }
        });
        threads as f64 * (ROUNDS * count) as f64 / 2.0 / start.elapsed().as_secs_f64()
    };
    let by_flat = |page: PageIndex, word: Word| flat.set(page, word);
    let (_, _, flat_two) = paired(|| rate(1, &by_flat), || rate(2, &by_flat));
    let (_, _, two_to_one) = paired(|| rate(1, set), || rate(2, set));
    figures.push(Figure {
        name: "the same on 2 threads, neighbouring clusters".into(),
        linux: "",
        linux_after: "",
        flat: format!("× {flat_two:.2}"),
        ours: format!("× {two_to_one:.2} one thread's rate"),
        goal: "≥ × 1.8",
        value: json!({"ratio": two_to_one, "flat": flat_two}),
    });
}

fn has_page_times(figures: &mut Vec<Figure>) {
    for (name, in_order, whole) in [
        ("full runs", true, true),
        ("full runs of differing pages", true, false),
        ("runs of one", false, false),
    ] {
        let table = Table::default();
        let mut draw = Draw(3);
        for page in pages() {
            let block = if in_order { page.0 } else { 2 * draw.below(1 << 30) };
            // What left together has one shadow.
            let shadow = if whole { page.cluster().0 } else { page.0 } as u16;
            let word = Word::swapped(Place::Device(block), Shadow(shadow));
            table.lock_or_create(page.cluster()).set(page.offset(), word);
        }
        for window in WINDOWS {
            let looks = if in_order { 20_000 } else { 200_000 };
            let pages = |draw: &mut Draw| {
                PageIndex(CLUSTER_PAGES as u64 + draw.below((TIMED_CLUSTERS - 2) * CLUSTER_PAGES as u64))
            };
            let at_once = || {
                let mut draw = Draw(7);
                each(looks, || {
                    for _ in 0..looks {
                        black_box(table.has_page(pages(&mut draw), window, window));
                    }
                })
            };
            let by_page = || {
                let mut draw = Draw(7);
                each(looks, || {
                    for _ in 0..looks {
                        let page = pages(&mut draw);
                        let Some(Place::Device(block)) = table.peek(page).place() else { unreachable!() };
                        let is = |page: u64, block: u64| {
                            table.peek(PageIndex(page)).place() == Some(Place::Device(block))
                        };
                        let after = (1..=window as u64).take_while(|&by| is(page.0 + by, block + by)).count();
                        let before = (1..=window as u64)
                            .take_while(|&by| block >= by && is(page.0 - by, block - by))
                            .count();
                        black_box((before, after));
                    }
                })
            };
            let (ours, by_page, ratio) = paired(at_once, by_page);
            figures.push(Figure {
                name: format!("has_page, {name}, {window} pages each way"),
                linux: "",
                linux_after: "",
                flat: format!("{by_page:.0} ns by page"),
                ours: format!("{ours:.0} ns, × {ratio:.1} faster"),
                goal: if whole && window == 32 { "≥ × 20" } else { "never slower" },
                value: json!({"by_page_ns": by_page, "ns": ours, "ratio": ratio}),
            });
        }
    }
}

fn main() {
    let as_json = std::env::args().any(|argument| argument == "--json");
    let mut figures = Vec::new();
    index_bytes(&mut figures);
    metadata(&mut figures);
    table_times(&mut figures);
    has_page_times(&mut figures);
    if as_json {
        let values: Vec<_> = figures
            .iter()
            .map(|figure| json!({"figure": figure.name, "goal": figure.goal, "value": figure.value}))
            .collect();
        println!("{}", Value::from(values));
        return;
    }
    println!(
        "{:52}{:>14}{:>14}{:>22}{:>30}  goal",
        "figure", "Linux before", "after S0", "flat table", "Pagetide"
    );
    for figure in figures {
        println!(
            "{:52}{:>14}{:>14}{:>22}{:>30}  {}",
            figure.name, figure.linux, figure.linux_after, figure.flat, figure.ours, figure.goal
        );
    }
}
