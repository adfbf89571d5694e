//! Tests of staging, with memory of their own as the program's.

use super::*;

#[test]
fn frames_that_are_retained_stay_and_the_others_give_their_memory_back() {
    let _unshared = crate::no_fork();
    let uffd = Uffd::open().unwrap();
    let program = program();
    let mut slots = Staging::slots(1).unwrap();
    let slot = &mut slots[0];
    take(slot, &program, &[(0..CLUSTER_SIZE / PAGE_SIZE, TakeOutWay::Remap)], &uffd);
    let kept = PageSet::range(3..5).or(PageSet::range(200..201));
    slot.retain(kept.or(PageSet::range(100..101)));
    slot.retain(kept);
    assert_eq!(slot.populated().iter().collect::<Vec<_>>(), [3, 4, 200]);
    for page in kept.iter() {
        let frame = slot.frame(page).unwrap();
        assert_eq!(u64::from_ne_bytes(frame[..8].try_into().unwrap()), page as u64 + 1);
    }
    let present = Pagemap::open().unwrap().presence(slot.base(), CLUSTER_SIZE).unwrap().present;
    assert_eq!(present.iter().collect::<Vec<_>>(), [3, 4, 200]);
    slot.retain(PageSet::default());
    assert_eq!(slot.memory_pages(), 0);
}

#[test]
fn frames_that_are_set_aside_hold_nothing_and_are_filled_anew() {
    let mut slots = Staging::slots(1).unwrap();
    let slot = &mut slots[0];
    let fill = |slot: &mut Slot, run: Range<usize>, byte: u8| {
        slot.fill(run.start, run.len(), |bytes| {
            bytes.fill(byte);
            Ok(())
        })
    };
    let present = |slot: &Slot| Pagemap::open().unwrap().presence(slot.base(), CLUSTER_SIZE).unwrap().present;
    fill(slot, 3..9, 1).unwrap();
    slot.set_aside(PageSet::range(4..7).or(PageSet::range(100..200)));
    assert_eq!((slot.populated().iter().collect::<Vec<_>>(), slot.spare_pages()), (vec![3, 7, 8], 3));
    assert!(slot.frame(5).is_none() && present(slot) == PageSet::range(3..9));
    // What lies between frames that are given back stays.
    slot.retain(PageSet::range(3..4));
    assert_eq!((slot.spare_pages(), present(slot)), (3, PageSet::range(3..7)));
    fill(slot, 5..12, 2).unwrap();
    assert_eq!((slot.spare_pages(), present(slot)), (1, PageSet::range(3..12)));
    assert!(slot.frame(3).unwrap().iter().all(|&byte| byte == 1));
    assert!(slot.frames(5, 7).iter().all(|&byte| byte == 2));
    // What could not be read into is given back, spare or not.
    assert_eq!(slot.fill(4, 1, |_| Err(Errno::IO)), Err(Errno::IO));
    assert_eq!((slot.spare_pages(), present(slot).contains(4)), (0, false));
    slot.set_aside(PageSet::range(3..12));
    assert_eq!((slot.drop_spare(), slot.spare_pages(), slot.memory_pages()), (8, 0, 0));
    assert!(present(slot).is_empty());
}

/// A cluster of two mappings, every page of which holds its number.
fn program() -> Reservation {
    let program = Reservation::small_pages(CLUSTER_SIZE, CLUSTER_SIZE).unwrap();
    // SAFETY: advice and contents of a mapping of our own.
    unsafe {
        rustix::mm::madvise(program.base() as *mut _, 300 * PAGE_SIZE, rustix::mm::Advice::LinuxDontDump)
            .unwrap();
        for page in 0..CLUSTER_SIZE / PAGE_SIZE {
            *((program.base() + page * PAGE_SIZE) as *mut u64) = page as u64 + 1;
        }
    }
    program
}

fn holds_all(slot: &Slot) {
    for page in 0..CLUSTER_SIZE / PAGE_SIZE {
        let frame = slot.frame(page).unwrap_or_else(|| panic!("page {page} is missing"));
        assert_eq!(u64::from_ne_bytes(frame[..8].try_into().unwrap()), page as u64 + 1);
    }
}

fn take(slot: &mut Slot, program: &Reservation, pieces: &[(Range<usize>, TakeOutWay)], uffd: &Uffd) {
    let (pagemap, maps) = (Pagemap::open().unwrap(), Maps::open().unwrap());
    // SAFETY: memory of this test, whose pages nobody touches before the slot is cleared.
    unsafe { uffd.register(program.base(), CLUSTER_SIZE).unwrap() };
    for (pages, way) in pieces {
        let start = program.base() + pages.start * PAGE_SIZE;
        let views = Views { uffd, pagemap: &pagemap, maps: &maps };
        // SAFETY: as above.
        let taken = unsafe { slot.take_out(start, pages.len() * PAGE_SIZE, true, *way, views) };
        taken.unwrap();
    }
    holds_all(slot);
}

#[test]
fn a_cluster_of_several_mappings_leaves_whole_by_every_way_and_by_both() {
    let _unshared = crate::no_fork();
    use TakeOutWay::{Move, Remap, Sift};
    let Ok(uffd) = Uffd::open() else { panic!("this test needs a userfaultfd") };
    let slots = &mut Staging::slots(2).unwrap()[1..];
    let slot = &mut slots[0];
    let can_move = uffd.features() & crate::uffd::FEATURE_MOVE != 0;
    take(slot, &program(), &[(0..512, Remap)], &uffd);
    slot.retain(PageSet::default());
    if !can_move {
        return;
    }
    take(slot, &program(), &[(0..512, Move)], &uffd);
    slot.retain(PageSet::default());
    take(slot, &program(), &[(0..512, Sift)], &uffd);
    slot.retain(PageSet::default());
    take(slot, &program(), &[(0..200, Sift), (200..260, Remap), (260..512, Sift)], &uffd);
    slot.retain(PageSet::default());
    take(slot, &program(), &[(0..200, Remap), (200..512, Move)], &uffd);
    slot.retain(PageSet::default());
    take(slot, &program(), &[(0..400, Move), (400..512, Remap)], &uffd);
    slot.retain(PageSet::default());
}

#[test]
fn what_is_pinned_stays_where_it_is_and_may_be_used_as_before() {
    let _unshared = crate::no_fork();
    let uffd = Uffd::open().unwrap();
    let Ok(ring) = io_uring::IoUring::new(2) else { return };
    let (pagemap, maps) = (Pagemap::open().unwrap(), Maps::open().unwrap());
    let views = Views { uffd: &uffd, pagemap: &pagemap, maps: &maps };
    let mut slots = Staging::slots(1).unwrap();
    let (slot, program) = (&mut slots[0], program());
    let at = |page: usize| program.base() + page * PAGE_SIZE;
    // On both sides of the border between its two mappings, and alone.
    let pinned = PageSet::range(7..9).or(PageSet::range(298..303)).or(PageSet::range(511..512));
    let vectors: Vec<_> = pinned
        .runs()
        .map(|run| libc::iovec { iov_base: at(run.start) as *mut _, iov_len: run.len() * PAGE_SIZE })
        .collect();
    // SAFETY: memory of this test, which outlives the ring's use of it.
    unsafe { ring.submitter().register_buffers(&vectors).unwrap() };
    let access = [(0..300, libc::PROT_READ), (300..512, libc::PROT_READ | libc::PROT_EXEC)];
    // SAFETY: memory of this test, whose pages nobody touches before all is in the slot or back.
    unsafe {
        for (pages, protection) in access.clone() {
            mapping::protect(at(pages.start), pages.len() * PAGE_SIZE, protection).unwrap();
        }
        uffd.register(program.base(), CLUSTER_SIZE).unwrap();
        let sifted = slot.take_out(program.base(), CLUSTER_SIZE, false, TakeOutWay::Sift, views);
        assert_eq!(sifted, Err(Errno::BUSY));
    }
    assert_eq!(slot.populated(), PageSet::range(0..512).minus(pinned));
    let left = pagemap.presence(program.base(), CLUSTER_SIZE).unwrap().present;
    assert_eq!(left, pinned);
    for page in 0..512 {
        let protection = access.iter().find(|(pages, _)| pages.contains(&page)).unwrap().1;
        assert_eq!(maps.find(at(page)).unwrap().unwrap().protection, protection, "page {page}");
    }
    for page in pinned.iter() {
        // SAFETY: the page is there and can be read.
        assert_eq!(unsafe { *(at(page) as *const u64) }, page as u64 + 1);
    }
    // Where they were, and registered: what leaves when nothing holds them any more can come back.
    ring.submitter().unregister_buffers().unwrap();
    // SAFETY: as above.
    unsafe { slot.take_out(program.base(), CLUSTER_SIZE, false, TakeOutWay::Sift, views).unwrap() };
    holds_all(slot);
    // SAFETY: the range is registered, and nobody waits there.
    let (copied, error) = unsafe { uffd.copy(at(299), slot.frame(299).unwrap()) };
    assert_eq!((copied, error), (PAGE_SIZE, None));
}

/// The kernel moves it since 6.9.
#[test]
fn the_zero_page_leaves_by_every_way_and_takes_no_memory() {
    let _unshared = crate::no_fork();
    let uffd = Uffd::open().unwrap();
    let pagemap = Pagemap::open().unwrap();
    if uffd.features() & crate::uffd::FEATURE_WP_ASYNC == 0 || !pagemap.can_scan() {
        return;
    }
    let maps = Maps::open().unwrap();
    let views = Views { uffd: &uffd, pagemap: &pagemap, maps: &maps };
    let mut slots = Staging::slots(1).unwrap();
    let slot = &mut slots[0];
    for way in [TakeOutWay::Remap, TakeOutWay::Move, TakeOutWay::Sift] {
        let program = Reservation::small_pages(CLUSTER_SIZE, CLUSTER_SIZE).unwrap();
        let at = |page: usize| program.base() + page * PAGE_SIZE;
        // SAFETY: memory of this test, in which no page is missing that is touched.
        unsafe {
            mapping::protect(at(0), CLUSTER_SIZE, libc::PROT_READ | libc::PROT_WRITE).unwrap();
            uffd.register_watched(at(0), CLUSTER_SIZE).unwrap();
            assert_eq!(uffd.zero_page(at(0), 40 * PAGE_SIZE), (40 * PAGE_SIZE, None));
            assert_eq!(uffd.zero_page(at(30), 20 * PAGE_SIZE), (0, Some(Errno::EXIST)));
            assert_eq!(*(at(7) as *const u64), 0);
            *(at(7) as *mut u64) = 7;
        }
        let found = pagemap.presence(at(0), CLUSTER_SIZE).unwrap();
        let written = PageSet::range(7..8);
        assert_eq!(
            (found.present, found.zero),
            (PageSet::range(0..40), PageSet::range(0..40).minus(written))
        );
        // SAFETY: as above.
        let all = unsafe { slot.take_out(at(0), CLUSTER_SIZE, way != TakeOutWay::Sift, way, views) };
        if all.is_err() && !slot.populated().contains(0) {
            println!("{way:?}: this kernel does not move its zero page");
            slot.retain(PageSet::default());
            continue;
        }
        assert_eq!(
            (all, slot.populated(), slot.memory_pages()),
            (Ok(()), PageSet::range(0..40), 1),
            "{way:?}"
        );
        assert!(slot.frame(3).unwrap().iter().all(|&byte| byte == 0));
        assert_eq!(slot.frame(7).unwrap()[0], 7);
        slot.retain(PageSet::default());
    }
}

#[test]
fn what_a_slot_lost_is_left_alone() {
    let _unshared = crate::no_fork();
    let Ok(uffd) = Uffd::open() else { panic!("this test needs a userfaultfd") };
    let (pagemap, maps) = (Pagemap::open().unwrap(), Maps::open().unwrap());
    let views = Views { uffd: &uffd, pagemap: &pagemap, maps: &maps };
    let mut slots = Staging::slots(1).unwrap();
    let slot = &mut slots[0];
    let program = program();
    // SAFETY: memory of this test.
    unsafe { uffd.register(program.base(), CLUSTER_SIZE).unwrap() };
    slot.lost = PageSet::range(100..110);
    let at = slot.base() + 100 * PAGE_SIZE;
    // SAFETY: the slot is empty; the page plays a mapping of somebody else.
    unsafe { *(at as *mut u64) = 77 };
    // SAFETY: memory of this test.
    unsafe {
        let whole = slot.take_out(program.base(), CLUSTER_SIZE, true, TakeOutWay::Remap, views);
        assert_eq!(whole, Err(Errno::NOMEM));
        let part = slot.take_out(program.base(), 50 * PAGE_SIZE, true, TakeOutWay::Remap, views);
        assert_eq!(part, Ok(()));
    }
    assert_eq!(slot.populated().len(), 50);
    slot.retain(PageSet::default());
    assert!(slot.populated().is_empty());
    // SAFETY: as above.
    assert_eq!(unsafe { *(at as *const u64) }, 77);
}

/// As Linux 6.18 leaves them where it had to wait for a page: see `Slot::uncounted`.
#[test]
fn pages_that_were_moved_and_not_counted_are_found() {
    let _unshared = crate::no_fork();
    let uffd = Uffd::open().unwrap();
    if uffd.features() & crate::uffd::FEATURE_MOVE == 0 {
        return;
    }
    let (pagemap, maps) = (Pagemap::open().unwrap(), Maps::open().unwrap());
    let views = Views { uffd: &uffd, pagemap: &pagemap, maps: &maps };
    let mut slots = Staging::slots(1).unwrap();
    let (slot, program) = (&mut slots[0], program());
    let at = |page: usize| program.base() + page * PAGE_SIZE;
    // SAFETY: memory of this test, whose pages nobody touches while they are out.
    unsafe {
        uffd.register(program.base(), CLUSTER_SIZE).unwrap();
        slot.make_target(program.base(), CLUSTER_SIZE, &uffd).unwrap();
        for run in [100..290, 310..311, 511..512] {
            let moved = uffd.move_pages(
                slot.base() + run.start * PAGE_SIZE,
                at(run.start),
                run.len() * PAGE_SIZE,
                false,
            );
            assert_eq!(moved, (run.len() * PAGE_SIZE, None));
        }
        slot.move_run(program.base(), 0..512, &uffd, &pagemap).unwrap();
        assert_eq!(slot.populated(), PageSet::range(0..512));
        holds_all(slot);
        let back = 20..40;
        let from = slot.base() + back.start * PAGE_SIZE;
        assert_eq!(uffd.move_pages(at(back.start), from, back.len() * PAGE_SIZE, false).1, None);
        assert_eq!(slot.move_from(0, 512, program.base(), &uffd, &pagemap), (CLUSTER_SIZE, None));
        assert_eq!(slot.memory_pages(), 0);
        for page in 0..512 {
            assert_eq!(*(at(page) as *const u64), page as u64 + 1);
        }
        // What somebody else has put there is no page of ours.
        slot.take_out(program.base(), CLUSTER_SIZE, true, TakeOutWay::Move, views).unwrap();
        assert_eq!(uffd.copy(at(7), &[1; PAGE_SIZE]), (PAGE_SIZE, None));
        let back = slot.move_from(0, 512, program.base(), &uffd, &pagemap);
        assert_eq!(back, (7 * PAGE_SIZE, Some(Errno::EXIST)));
        assert_eq!(slot.populated(), PageSet::range(7..512));
    }
}

/// What was watched leaves like anything else, frames can be written, and pages that go back are as they were.
#[test]
fn a_watched_cluster_leaves_and_comes_back() {
    let _unshared = crate::no_fork();
    let uffd = Uffd::open().unwrap();
    if uffd.features() & crate::uffd::FEATURE_WP_ASYNC == 0 {
        return;
    }
    let (pagemap, maps) = (Pagemap::open().unwrap(), Maps::open().unwrap());
    let mut slots = Staging::slots(2).unwrap();
    let program = program();
    let word = |page: usize| (program.base() + page * PAGE_SIZE) as *mut u64;
    for (slot, way) in slots.iter_mut().zip([TakeOutWay::Remap, TakeOutWay::Move]) {
        let views = Views { uffd: &uffd, pagemap: &pagemap, maps: &maps };
        // SAFETY: memory of this test; a page is touched where it is in the program only.
        unsafe {
            uffd.register_watched(program.base(), CLUSTER_SIZE).unwrap();
            pagemap.written(program.base(), CLUSTER_SIZE, true).unwrap();
            (0..512).step_by(5).for_each(|page| *word(page) = page as u64 + 1);
            let hot = pagemap.written(program.base(), CLUSTER_SIZE, false).unwrap();
            assert_eq!(hot.len(), 103);
            slot.take_out(program.base(), CLUSTER_SIZE, true, way, views).unwrap();
            holds_all(slot);
            slot.frames_mut(1, 1).unwrap()[9] = 0;
            for run in hot.runs() {
                let to = word(run.start) as usize;
                assert_eq!(
                    slot.move_from(run.start, run.len(), to, &uffd, &pagemap),
                    (run.len() * PAGE_SIZE, None)
                );
            }
            assert_eq!(slot.populated(), PageSet::range(0..512).minus(hot));
            assert_eq!(pagemap.presence(program.base(), CLUSTER_SIZE).unwrap().present, hot);
            hot.iter().for_each(|page| assert_eq!(*word(page), page as u64 + 1));
            // Scattered frames are given back by a few calls; those between them stay.
            let kept: PageSet = slot.populated().iter().filter(|page| page % 5 < 3).collect();
            slot.retain(kept);
            assert_eq!(pagemap.presence(slot.base(), CLUSTER_SIZE).unwrap().present, kept);
            for run in kept.runs() {
                let to = word(run.start) as usize;
                assert_eq!(slot.move_from(run.start, run.len(), to, &uffd, &pagemap).1, None);
            }
            for page in (0..512).filter(|page| page % 5 >= 3) {
                uffd.copy(word(page) as usize, &[0; PAGE_SIZE]);
                *word(page) = page as u64 + 1;
            }
        }
    }
}
