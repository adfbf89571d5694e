//! What leaves, in which order, and what stays.

use crate::common::{noise, page, prose};
use crate::small::{BASE, deferred, masked, plain, scattered};
use crate::world::World;
use pagetide::engine::Progress;
use pagetide::mask::Mask;
use pagetide::memory::Memory;
use pagetide::regions::Access;
use pagetide_device::Device;
use pagetide_device::ram::Ram;
use pagetide_swap::{Counter, PAGE_SIZE, State};

#[test]
fn where_nothing_else_is_left_the_pool_gives() {
    let (mut world, device) = deferred(100, 600);
    (BASE..BASE + 64).for_each(|number| world.put(number, prose(number)));
    world.push_out();
    let pool = world.engine.swap().zswap().pool_pages();
    assert!(pool > 0 && device.held() == 0, "all in the pool");
    // Until a step finds nothing; one that is writing already does not count.
    while matches!(world.engine.reclaim(&mut world.work), Progress::Freed(_)) {
        world.drain_requests();
    }
    world.check_books();
    assert_eq!(world.engine.swap().zswap().pool_pages(), 0);
    (BASE..BASE + 64).for_each(|number| world.read(number));
    world.check_end();
}

#[test]
fn a_cluster_that_was_referenced_is_a_victim_when_there_is_no_other() {
    let mut world = plain(Some(Box::new(Ram::new(100))), 0, 300);
    scattered().for_each(|number| world.put(number, noise(number)));
    assert_eq!(world.engine.reclaim(&mut world.work), Progress::Moved, "on probation");
    scattered().for_each(|number| world.read(number));
    assert_eq!(world.engine.reclaim(&mut world.work), Progress::Moved, "hot, but there is nothing else");
    world.drain_requests();
    world.check_end();
}

#[test]
fn what_a_busy_device_cannot_take_yet_waits_on_probation() {
    let (mut world, device) = deferred(0, 600);
    (BASE..BASE + 400).for_each(|number| world.put(number, noise(number)));
    world.push_out_undrained();
    let cached = |world: &World| {
        (BASE..BASE + 400).filter(|&number| world.word(page(number)).state() == State::Cached).count()
    };
    assert_eq!((device.held(), cached(&world)), (4, 400), "as much is being written as may be");
    assert_eq!(world.engine.reclaim(&mut world.work), Progress::Waits);
    assert_eq!((device.held(), world.engine.take_refused()), (4, 0));
    // A hit meanwhile, and the end of a write.
    world.read(BASE + 200);
    device.release(0);
    world.complete();
    assert_eq!(world.engine.reclaim(&mut world.work), Progress::Freed(32));
    assert_eq!((device.held(), cached(&world)), (4, 400 - 1 - 32));
    while device.release(0) {
        world.complete();
        world.push_out_undrained();
    }
    assert_eq!(cached(&world), 0);
    assert_eq!(world.counter(Counter::swap_cache_hit), 1);
    (BASE..BASE + 400).for_each(|number| {
        world.read(number);
        while device.release(0) {
            world.complete();
        }
    });
    world.check_end();
}

#[test]
fn a_page_that_comes_back_clean_is_not_stored_again() {
    let mut world = plain(None, 200, 300);
    (BASE..BASE + 32).for_each(|number| world.put(number, prose(number)));
    world.push_out();
    (BASE..BASE + 32).for_each(|number| world.read(number));
    world.put(BASE + 9, prose(1000));
    world.push_out();
    assert_eq!(world.counter(Counter::swap_reuse), 31);
    assert_eq!(world.counter(Counter::zswpout), 33);
    (BASE..BASE + 32).for_each(|number| world.read(number));
    world.check_end();
}

#[test]
fn pinned_pages_stay_where_they_are() {
    let mut world = plain(None, 200, 300);
    (BASE..BASE + 32).for_each(|number| world.put(number, prose(number)));
    world.memory().set_may_pin(true);
    world.memory().pin(page(BASE + 5), true);
    world.push_out();
    assert_eq!(world.memory().present(), [page(BASE + 5)]);
    world.memory().set_can_move(false);
    world.put(BASE + 600, prose(1));
    world.push_out();
    assert!(world.memory().peek(page(BASE + 600)).is_some(), "without MOVE nothing may leave");
    (BASE..BASE + 32).for_each(|number| world.read(number));
    world.check_end();
}

#[test]
fn what_may_not_be_written_leaves_though_pages_may_be_pinned() {
    let mut world = plain(None, 200, 300);
    (BASE..BASE + 32).for_each(|number| world.put(number, prose(number)));
    world.protect(BASE..BASE + 16, Access::Read);
    world.protect(BASE + 16..BASE + 20, Access::None);
    world.memory().set_may_pin(true);
    world.memory().pin(page(BASE + 5), true);
    world.memory().pin(page(BASE + 25), true);
    world.push_out();
    assert_eq!(world.memory().present(), [page(BASE + 5), page(BASE + 25)]);
    (BASE..BASE + 16).for_each(|number| world.read(number));
    world.check_end();
}

#[test]
fn pages_shared_by_a_fork_leave_by_move_too() {
    let mut world = plain(None, 200, 300);
    world.memory().set_may_pin(true);
    (BASE..BASE + 32).for_each(|number| world.put(number, prose(number)));
    world.memory().share();
    world.push_out();
    assert!(world.memory().present().is_empty());
    (BASE..BASE + 32).for_each(|number| world.read(number));
    // A pinned page among them does not hold up the others.
    world.memory().share();
    world.memory().pin(page(BASE + 5), true);
    world.push_out();
    assert_eq!(world.memory().present(), [page(BASE + 5)]);
    (BASE..BASE + 32).for_each(|number| world.read(number));
    world.check_end();
}

#[test]
fn zeroes_that_are_read_take_no_memory_and_leave_like_others() {
    for (pins, mask) in [(false, Mask::default()), (true, Mask::default()), (false, Mask::NO_ZERO)] {
        let mut world = masked(mask, 200, 300);
        let zero = |world: &World| world.memory().presence(page(BASE)..page(BASE + 32)).zero.len();
        world.memory().set_may_pin(pins);
        (BASE..BASE + 32).for_each(|number| world.put(number, Box::new([0; PAGE_SIZE])));
        world.push_out();
        assert!(world.memory().present().is_empty());
        (BASE..BASE + 32).for_each(|number| world.read(number));
        assert_eq!(zero(&world), if mask == Mask::NO_ZERO { 0 } else { 32 });
        // Each is charged, so that a write takes nothing more.
        assert!(world.engine.usage().resident >= 32);
        (BASE..BASE + 8).for_each(|number| world.put(number, prose(number)));
        world.check_books();
        // What is charged leaves also where a kernel does not move its zero page.
        world.memory().share();
        world.push_out();
        assert_eq!(world.memory().present(), []);
        world.count_zero_pages();
        assert_eq!(world.engine.zero_pages(), 0);
        (BASE..BASE + 32).for_each(|number| world.read(number));
        world.check_end();
    }
}

fn zero(world: &World) -> i64 {
    world.memory().present().iter().filter(|&&page| world.memory().is_zero(page)).count() as i64
}

/// A look that takes long, while pages come and leave, does not take each that passes for one that is there.
#[test]
fn zeroes_that_stream_through_the_program_are_counted_as_they_are() {
    let mut world = plain(None, 200, 300);
    // Pages of other contents are there too, all the time.
    let others = BASE..BASE + 32;
    others.clone().for_each(|number| world.put(number, prose(number)));
    for number in (BASE + 32..BASE + 1024).cycle().take(4000) {
        world.read(number);
        if number % 64 == 0 {
            others.clone().for_each(|number| world.read(number));
            world.engine.count_zero_pages(1);
        }
    }
    assert!(zero(&world) > 0);
    assert_eq!(world.engine.zero_pages(), zero(&world));
    // Those that are written to are noticed by a look; in a hurry by one that begins anew.
    let there: Vec<_> = world.memory().present();
    there.iter().take(100).for_each(|page| world.put(page.0, prose(page.0)));
    world.engine.recount_zero_pages();
    assert_eq!(world.engine.zero_pages(), zero(&world));
    world.check_end();
}

/// Between `mremap` and the change of the words.
#[test]
fn what_moves_is_not_taken_for_gone() {
    let mut world = plain(None, 200, 1000);
    (BASE..BASE + 32).for_each(|number| world.put(number, prose(number)));
    let engine = world.engine.clone();
    let is_present =
        |world: &World| (BASE..BASE + 32).all(|number| world.word(page(number)).state() == State::Present);
    let moving = engine.begin_move(32);
    world.memory().drop_pages(page(BASE)..page(BASE + 32));
    world.push_out();
    assert!(is_present(&world));
    drop(moving);
    // And now nobody moves it.
    world.push_out();
    assert!((BASE..BASE + 32).all(|number| world.word(page(number)).state() == State::Hole));
    (BASE..BASE + 32).for_each(|number| _ = world.model.remove(&number));
    world.check_end();
}

#[test]
fn zeroes_that_were_unmapped_count_no_more_however_many() {
    let mut world = plain(None, 200, 1000);
    for _ in 0..3 {
        (BASE..BASE + 256).for_each(|number| world.read(number));
        world.discard(BASE..BASE + 256);
    }
    (BASE..BASE + 64).for_each(|number| world.read(number));
    world.engine.recount_zero_pages();
    // Pages of other contents leave no room for those that are gone.
    (BASE + 512..BASE + 768).for_each(|number| world.put(number, prose(number)));
    world.engine.recount_zero_pages();
    assert_eq!(world.engine.zero_pages(), zero(&world));
    world.check_end();
}

#[test]
fn zeroes_that_are_written_all_the_same_take_memory_at_once() {
    let mut world = plain(None, 200, 1000);
    let mut read_and_write = |first: u64, writes: bool| {
        (first..first + 256).for_each(|number| {
            world.read(number);
            if writes {
                world.put(number, prose(number));
            }
        });
        let counted = world.engine.zero_pages();
        world.count_zero_pages();
        let zero = world.memory().presence(page(first)..page(first + 256)).zero.len();
        (zero, counted >= zero as i64, world.engine.zero_pages() >= zero as i64)
    };
    assert!(read_and_write(BASE, false).0 == 256, "nobody has written to any");
    assert_eq!(read_and_write(BASE + 256, true), (0, true, true));
    let (zero, ..) = read_and_write(BASE + 512, false);
    assert!(zero <= 64, "one window in sixteen, to see: {zero}");
    world.check_end();
}

#[test]
fn contents_travel_with_a_mapping_that_moves() {
    for (pool, blocks) in [(200, 0), (0, 4096), (20, 4096)] {
        let device = (blocks > 0).then(|| Box::new(Ram::new(blocks)) as Box<dyn Device>);
        let mut world = plain(device, pool, 600);
        (BASE..BASE + 300).for_each(|number| world.put(number, prose(number)));
        world.push_out();
        // Some in the program, some on probation, some stored.
        (BASE..BASE + 40).for_each(|number| world.read(number));
        world.engine.reclaim(&mut world.work);
        world.remap(BASE, BASE + 1024 + 7, 300, false);
        (BASE + 1024..BASE + 1400).for_each(|number| {
            if (BASE + 1031..BASE + 1331).contains(&number) {
                world.read(number);
            }
        });
        world.check_books();
        world.check_end();
    }
}

#[test]
fn frames_of_pages_that_were_copied_back_are_given_back_together() {
    // What is there takes a frame, zeroes too.
    let mut world = masked(Mask::NO_ZERO, 200, 300);
    (BASE..BASE + 64).for_each(|number| world.put(number, noise(number)));
    assert_eq!(world.engine.reclaim(&mut world.work), Progress::Moved, "on probation");
    world.memory().set_can_move(false);
    let counts = |world: &World| (world.engine.usage().frames, world.engine.swap().cached());
    let (frames, cached) = counts(&world);
    assert!(frames == cached && frames >= 64 && !world.engine.has_dead_frames());
    scattered().take(12).for_each(|number| world.read(number));
    let (after, left) = counts(&world);
    assert!(after > left && left + 12 <= cached && world.engine.has_dead_frames(), "{after} {left} {cached}");
    world.check_books();
    world.engine.drop_dead_frames();
    assert_eq!((counts(&world), world.engine.has_dead_frames()), ((left, left), false));
    world.check_books();
    (BASE..BASE + 64).for_each(|number| world.read(number));
    world.engine.drop_dead_frames();
    world.check_end();
}

#[test]
fn what_was_written_of_late_stays_when_the_rest_of_its_cluster_leaves() {
    let mut world = plain(None, 200, 400);
    for first in [BASE, BASE + 512] {
        (first..first + 100).for_each(|number| world.put(number, prose(number)));
    }
    // The second cluster is watched from now on.
    assert_eq!(world.engine.reclaim(&mut world.work), Progress::Moved);
    let hot = [5, 6, 40].map(|nth| BASE + 512 + nth);
    hot.iter().for_each(|&number| world.put(number, prose(number)));
    world.engine.reclaim(&mut world.work);
    assert_eq!(world.memory().present(), hot.map(page));
    assert_eq!(world.counter(Counter::pgactivate), 3);
    world.check_books();
    // Nothing else is left: they leave in the end.
    world.push_out();
    assert_eq!(world.memory().present(), []);
    (BASE..BASE + 100).for_each(|number| world.read(number));
    world.check_end();
}
