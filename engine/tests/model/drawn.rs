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
use std::sync::Arc;

pub const EIO: i32 = 5;
pub const ENOSPC: i32 = 28;

/// A world that follows from a seed.
pub fn world(random: &mut Random) -> (World, String) {
    let blocks = 64 + random.below(3000);
    let refuse_every = [0, 0, 5][random.below(3) as usize];
    let kind = random.below(7);
    let mut deferred = None;
    let mut may_lose = false;
    let device: Option<Box<dyn Device>> = match kind {
        0 => None,
        1 => Some(Shared::refusing(&Arc::new(Ram::new(blocks)), refuse_every)),
        2 => {
            may_lose = true;
            let nth = 2 + random.below(20);
            Some(Shared::new(&Arc::new(Faulty::new(
                Box::new(Ram::new(blocks)),
                Direction::Read,
                nth,
                Failure::Errno(5),
            ))))
        }
        3 => {
            may_lose = true;
            let nth = 2 + random.below(20);
            Some(Shared::new(&Arc::new(Faulty::new(
                Box::new(Ram::new(blocks)),
                Direction::Read,
                nth,
                Failure::Corrupt,
            ))))
        }
        4 => {
            let nth = 1 + random.below(20);
            Some(Shared::new(&Arc::new(Faulty::new(
                Box::new(Ram::new(blocks)),
                Direction::Write,
                nth,
                Failure::Errno(if random.one_in(2) { EIO } else { ENOSPC }),
            ))))
        }
        _ => {
            let device = Arc::new(Deferred::new(blocks));
            deferred = Some(Arc::clone(&device));
            Some(Shared::refusing(&device, refuse_every))
        }
    };
    let ways = ["", "", "remap", "copy", "remap,copy", "move"][random.below(6) as usize];
    let pool_pages_max = [0, 8, 40, 200][random.below(4) as usize];
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
        mask: Mask::parse(ways).unwrap(),
    };
    let text = format!(
        "device {kind} of {blocks}, refuse {refuse_every}, ways {ways:?}, budget {granted}, {setup:?}"
    );
    let mut world = World::new(setup, granted);
    if ways == "move" {
        world.memory().set_can_move(false);
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
pub fn any_switches(random: &mut Random) -> Switches {
    Switches {
        enabled: !random.one_in(8),
        compression: ["lz4", "lz4", "zstd:-3", "zstd", "none"][random.below(5) as usize].parse().unwrap(),
        max_compression_ratio: [75, 100, 30][random.below(3) as usize],
        accept_threshold_percent: [90, 100, 1][random.below(3) as usize],
        shrinker: Shrinker::from_bits(random.below(3)),
        fixed_share: false,
    }
}
