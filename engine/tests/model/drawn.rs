//! Worlds that follow from a seed.

use crate::common::{Random, Shared, manage, pages};
use crate::world::{AREA, World};
use pagetide::engine::Limits;
use pagetide::fake::Setup;
use pagetide::mask::Mask;
use pagetide::regions::Access;
use pagetide_device::deferred::Deferred;
use pagetide_device::faulty::{Failure, Faulty};
use pagetide_device::ram::Ram;
use pagetide_device::{Device, Direction};
use pagetide_swap::zswap::shrinker::Shrinker;
use pagetide_swap::{Allocator, Config, Readahead, Reclaim, Switches};
use std::ops::Range;
use std::sync::Arc;

pub(crate) const EIO: i32 = 5;
pub(crate) const ENOSPC: i32 = 28;

/// A device, and what a world must know of it.
struct Drawn {
    device: Option<Box<dyn Device>>,
    deferred: Option<Arc<Deferred>>,
    /// Whether pages may be lost to errors of reads.
    may_lose: bool,
}

fn any_device(random: &mut Random, kind: u64, blocks: u64, refuse_every: u64) -> Drawn {
    let mut faulty = |direction, within: Range<u64>, failure: &dyn Fn(&mut Random) -> Failure| {
        let nth = within.start + random.below(within.end - within.start);
        let failure = failure(random);
        Some(Shared::new(&Arc::new(Faulty::new(Box::new(Ram::new(blocks)), direction, nth, failure)))
            as Box<dyn Device>)
    };
    let full_or_broken = |random: &mut Random| Failure::Errno(if random.one_in(2) { EIO } else { ENOSPC });
    let mut deferred = None;
    let device: Option<Box<dyn Device>> = match kind {
        0 => None,
        1 => Some(Shared::refusing(&Arc::new(Ram::new(blocks)), refuse_every)),
        2 => faulty(Direction::Read, 2..22, &|_| Failure::Errno(EIO)),
        3 => faulty(Direction::Read, 2..22, &|_| Failure::Corrupt),
        4 => faulty(Direction::Write, 1..21, &full_or_broken),
        _ => {
            let device = Arc::new(Deferred::new(blocks));
            deferred = Some(Arc::clone(&device));
            Some(Shared::refusing(&device, refuse_every))
        }
    };
    Drawn { device, deferred, may_lose: kind == 2 || kind == 3 }
}

/// A world that follows from a seed.
pub(crate) fn world(random: &mut Random) -> (World, String) {
    let blocks = 64 + random.below(3000);
    let refuse_every = [0, 0, 5][random.below(3) as usize];
    let kind = random.below(7);
    let Drawn { device, deferred, may_lose } = any_device(random, kind, blocks, refuse_every);
    let ways = ["", "", "remap", "copy", "remap,copy", "move"][random.below(6) as usize];
    let pool_pages_max = [0, 8, 40, 200][random.below(4) as usize];
    // Some devices have two tiers. (What is drawn stays what it was, for the seeds that are kept.)
    const EXTENT: u64 = pagetide_swap::frontier::EXTENT;
    let has_two = kind != 0 && blocks > EXTENT && blocks.is_multiple_of(2);
    let tiers = if has_two { vec![EXTENT as usize, (blocks - EXTENT) as usize] } else { Vec::new() };
    let granted = 64 + random.below(536) as i64;
    let setup = Setup {
        slots: 3 + random.below(6) as usize,
        limits: Limits { low: 8 + granted / 16, high: 16 + granted / 8, probation: random.below(3) as usize },
        pool_pages_max,
        span_pages: [1 << 16, 1 << 16, 64][random.below(3) as usize],
        config: Config {
            zpool: if random.one_in(4) { Allocator::Zbud } else { Allocator::Zsmalloc },
            switches: any_switches(random),
            reclaim: if random.one_in(4) { Reclaim::Fifo } else { Reclaim::SecondChance },
            readahead: [Readahead::Object, Readahead::Object, Readahead::Cluster, Readahead::None]
                [random.below(4) as usize],
            page_cluster: random.below(10) as u32,
            ..Config::for_cap(4096)
        },
        device,
        tiers,
        mask: Mask::parse(ways).unwrap(),
    };
    let text = format!(
        "device {kind} of {blocks}, refuse {refuse_every}, ways {ways:?}, budget {granted}, {setup:?}"
    );
    let mut world = World::new(setup, granted);
    if ways == "move" {
        world.memory().set_can_move(false);
    }
    if blocks.is_multiple_of(4) {
        world.engine.swap().blocks().prefer(1);
    }
    (world.deferred, world.may_lose) = (deferred, may_lose);
    world.swaps_off = random.one_in(3);
    // Three regions with a gap between each two.
    let length = AREA.end - AREA.start;
    for third in 0..3 {
        let start = AREA.start + third * length / 3;
        manage(&world.engine, start..start + length / 3 - 20, Access::Write);
        world.memory().unmap(pages(start + length / 3 - 20..start + length / 3));
    }
    (world, text)
}

/// Any way to work for the pool.
pub(crate) fn any_switches(random: &mut Random) -> Switches {
    Switches {
        enabled: !random.one_in(8),
        compression: ["lzpage", "lz4", "zstd:-3", "zstd", "none"][random.below(5) as usize].parse().unwrap(),
        recompression: ["zstd", "zstd:-3", "none"][random.below(3) as usize].parse().unwrap(),
        max_compression_ratio: [75, 100, 30][random.below(3) as usize],
        accept_threshold_percent: [90, 100, 1][random.below(3) as usize],
        shrinker: Shrinker::ALL[random.below(3) as usize],
        fixed_share: false,
    }
}
