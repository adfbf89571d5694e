//! What parents and children of a fork share in memory, and the charge for it.
//!
//! A parent keeps a pot beside its budget ([`Field::Lent`]): a page for each frame that only its children may have, since they
//! borrow it and the parent has written to its page or may do so. It shrinks as they are charged for what they write; what is left goes
//!
//! - back to the parent, when no child borrows any more;
//! - to the only child that borrows, if that is short: then each is charged for all that it has.

use super::sharing::Sharing;
use super::{Runtime, clock, lock};
use crate::engine::Ledger;
use crate::group::{Field, GRANTED, Group, ProcessSlot, SLOTS, WANTED};
use crate::mask::Mask;
use pagetide_swap::table::CLUSTERS_MAX;
use pagetide_sys::shared::Shared;
use pagetide_sys::task;
use std::sync::atomic::Ordering::SeqCst;

/// How often what a process has in memory would have to be free for a child to be charged for all that it may write: then no
/// write is stopped.
const AMPLE: i64 = 3;
/// Pages in memory below which lending is not worth the faults: 2 MiB.
const LENDABLE_MIN: i64 = 512;

/// Clusters that a ledger has places for beside twice those that there are.
const LEDGER_MORE: usize = 256;
/// A process that has only this part left of what it borrowed at first writes to most of it: once it is short, it is charged for the
/// rest as well, which may leave then.
const WRITER_PART: i64 = 2;
/// A look at what children borrow takes one part in so many of the time at most.
const POT_SHARE: u64 = 100;
/// Looks in a row, a hundredth of a second apart, at which a child is the only one before it asks for the pot: its parent may
/// be forking more of them.
const ALONE_LOOKS: u32 = 10;

/// Returns whether so much is free that a child can be charged for all the `pages` that it may write.
pub(crate) fn is_ample(free: i64, pages: i64) -> bool {
    free >= AMPLE * pages
}

/// Returns whether a process of the run can lend, once its engine runs: for what a child has of its own to leave alone it takes
/// UFFDIO_MOVE (6.8).
pub(crate) fn can_lend(group: &Group) -> bool {
    let mask = group.setup().mask;
    let is_masked = mask.masks(Mask::NO_LEND) || mask.masks(Mask::NO_MOVE);
    !is_masked && !task::is_confined() && pagetide_sys::mapping::kernel_version() >= (6, 8)
}

impl Runtime {
    /// Prepares for a fork which would share what is in memory: this process is charged for what it has borrowed itself, and
    /// knows what it has lent before. Returns whether the child is to borrow: `needed` pages would be charged for it otherwise.
    pub fn prepare_to_lend(&self, needed: i64) -> bool {
        self.settle();
        // Who has ended borrows no more.
        self.group.collect_from_ended(self.slot);
        self.charge_shared();
        self.engine.review_lent();
        let free = self.group.free() + self.engine.budget().free().max(0);
        self.engine.can_lend()
            && self.engine.usage().resident >= LENDABLE_MIN
            && !is_ample(free, needed)
            && self.make_ledger()
    }

    /// Makes the memory in which children tell what they borrow. Returns whether there is some.
    fn make_ledger(&self) -> bool {
        if self.engine.has_ledger() {
            return true;
        }
        // A sandbox may not allow the calls.
        if pagetide_sys::mapping::room() != usize::MAX || task::is_confined() {
            return false;
        }
        let clusters = 2 * self.engine.swap().table().touched(0..CLUSTERS_MAX).count() + LEDGER_MORE;
        let count = Ledger::words(SLOTS, clusters);
        let made = Shared::create("pagetide-lent", count * size_of::<u64>());
        if let Ok((_, shared)) = &made {
            self.engine.keep_ledger(Ledger::new(shared.words(0, count), clusters));
        }
        made.is_ok()
    }

    /// Lends what is in memory to the child of this slot, which was granted that much already: what the pot grows by comes from
    /// its grant.
    pub fn lend(&self, child: ProcessSlot) {
        let mut sharing = lock(&self.sharing);
        let elders: Vec<_> = self.borrowers(self.slot.tenant() + 1).map(|slot| slot.index()).collect();
        sharing.lent_again += self.engine.lend(child.index(), &elders);
        child.set(Field::Settles, 0);
        child.set(Field::Borrowed, self.engine.lent() as u64);
        let (before, pot) = (self.slot.get(Field::Lent) as i64, self.pot(&sharing));
        let more = (pot - before).max(0);
        child.word(Field::Grant).fetch_sub(more as u64, SeqCst);
        self.slot.word(Field::Grant).fetch_add(more as u64, SeqCst);
        self.slot.set(Field::Lent, (before + more) as u64);
        pagetide_sys::log!(Info, "lends {} pages, the pot grows by {more}", self.engine.lent());
    }

    /// Returns how many frames only children may have: of each page that any of them borrows one, and one more for each time that it
    /// was lent anew; no more than all of them borrow together.
    fn pot(&self, sharing: &Sharing) -> i64 {
        let borrowers = || self.borrowers(self.slot.tenant() + 1);
        let rows: Vec<_> = borrowers().map(|slot| slot.index()).collect();
        let together: i64 = borrowers().map(|slot| slot.get(Field::Borrowed) as i64).sum();
        (self.engine.borrowed_by(&rows) + sharing.lent_again).min(together)
    }

    /// Returns the children that borrow, and have not settled.
    fn borrowers(&self, parent: u64) -> impl Iterator<Item = ProcessSlot> + '_ {
        let borrows = move |slot: &ProcessSlot| {
            slot.get(Field::Forker) == parent
                && slot.get(Field::Borrowed) > 0
                && slot.get(Field::Settles) != GRANTED
        };
        self.group.live().filter(borrows)
    }

    /// Gives up what is not needed of the pot. Returns whether that was some. The caller has `sharing` locked.
    pub(super) fn review_pot(&self, sharing: &mut Sharing) -> bool {
        let before = self.slot.get(Field::Lent) as i64;
        if before == 0 {
            return false;
        }
        let mut borrowers = self.borrowers(self.slot.tenant() + 1);
        let (only, moved) = match (borrowers.next(), borrowers.next()) {
            (None, _) => (None, 0),
            (Some(only), None) if only.get(Field::Settles) == WANTED => {
                (Some(only), before.min(only.get(Field::Borrowed) as i64))
            }
            _ => return self.cut_pot(before, sharing),
        };
        // In this order: killed amid it, this process leaves some pages nobody's, and none twice.
        self.slot.word(Field::Grant).fetch_sub(moved as u64, SeqCst);
        self.slot.set(Field::Lent, 0);
        sharing.lent_again = 0;
        self.engine.end_lending();
        self.engine.budget().give(before - moved);
        if let Some(only) = only {
            only.set(Field::Settles, GRANTED);
            only.word(Field::Added).fetch_add(moved as u64, SeqCst);
            only.ring();
        }
        pagetide_sys::log!(
            Info,
            "gives up the {before} pages for what it has lent, {moved} to the only child"
        );
        true
    }

    /// Cuts the pot to what its children may have. To see that takes no more than one part in [`POT_SHARE`] of the time.
    fn cut_pot(&self, before: i64, sharing: &mut Sharing) -> bool {
        let start = clock();
        if start < sharing.pot_due {
            return false;
        }
        let pot = self.pot(sharing).min(before);
        self.slot.set(Field::Lent, pot as u64);
        self.engine.budget().give(before - pot);
        let end = clock();
        sharing.pot_due = end + (end - start) * POT_SHARE;
        pot < before
    }

    /// Has this process charged for all that it has borrowed.
    pub(super) fn settle(&self) {
        if self.engine.borrowed() > 0 {
            let pages = self.engine.pay_all();
            pagetide_sys::log!(Info, "is charged for the {pages} pages that it has borrowed");
        }
        if self.publish_borrowed() {
            // The parent may have its pot to spare, and whoever concludes that nothing can leave has to wait for that.
            let forker = self.slot.get(Field::Forker);
            self.group.live().filter(|slot| slot.tenant() + 1 == forker).for_each(|parent| parent.ring());
            self.group.stir();
        }
    }

    /// Shows how much is borrowed. Returns whether that was some, and is nothing now.
    pub(super) fn publish_borrowed(&self) -> bool {
        let _sharing = lock(&self.sharing);
        let borrowed = self.engine.borrowed();
        let before = self.slot.get(Field::Borrowed);
        self.slot.set(Field::Borrowed, borrowed as u64);
        before > 0 && borrowed == 0
    }

    /// Has this process charged for what it has borrowed, if nobody else is: its parent has ended, or gives its pot up.
    pub(super) fn follow_parent(&self) {
        let borrowed = self.engine.borrowed();
        if borrowed > 0
            && (self.slot.get(Field::Settles) == GRANTED
                || self.group.has_lost_forker(self.slot)
                || (self.engine.is_short() && borrowed < self.engine.borrowed_at_first() / WRITER_PART))
        {
            self.settle();
        }
        self.publish_borrowed();
    }

    /// Asks for the parent's pot where this has been the only process that borrows, and short, for some looks: what is charged to
    /// it may leave.
    pub(super) fn ask_for_pot(&self) {
        if self.engine.borrowed() == 0 || self.slot.get(Field::Settles) != 0 {
            return;
        }
        let parent = self.slot.get(Field::Forker);
        let is_pressed = self.engine.is_short() || self.asked() > 0;
        let is_alone = is_pressed && self.borrowers(parent).nth(1).is_none();
        let mut sharing = lock(&self.sharing);
        sharing.alone = if is_alone { sharing.alone + 1 } else { 0 };
        if sharing.alone >= ALONE_LOOKS
            && let Some(parent) = self.group.live().find(|slot| slot.tenant() + 1 == parent)
        {
            self.slot.set(Field::Settles, WANTED);
            parent.ring();
        }
    }
}
