//! Faults that a test injects into a run (after the kernel's fault injection, `Documentation/fault-injection`).

use pagetide_device::faulty::{Failure, Faulty};
use pagetide_device::{Device, Direction};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// The time for which a thread is stalled.
const STALL: Duration = Duration::from_millis(50);

pagetide_page::numbered_enum! {
    /// A kind of fault that is injected.
    pub enum Fault: u8 {
        /// A read of the swap file fails with EIO.
        ReadError = 1,
        /// A read of the swap file ends before all is read.
        ReadShort = 2,
        /// A read of the swap file returns other bytes than were written, and reports no error.
        ReadCorrupt = 3,
        /// A read of the swap file returns the bytes of another place, and reports no error.
        ReadMisplaced = 4,
        /// A write to the swap file fails with EIO.
        WriteError = 5,
        /// A write to the swap file fails with ENOSPC.
        WriteFull = 6,
        /// The pool gets no memory.
        Pool = 7,
        /// A thread that answers faults stops for 50 ms.
        StallFault = 8,
        /// The thread that reclaims does.
        StallReclaim = 9,
        /// The thread that ends requests does.
        StallIo = 10,
        /// The control thread does.
        StallControl = 11,
        /// The process is told to rest, or to go on: at every n-th round of its control thread.
        Rest = 12,
        /// The process is told to rest, and is not told to go on.
        RestForgotten = 13,
        /// A thread that answers faults panics.
        PanicFault = 14,
        /// The thread that reclaims does.
        PanicReclaim = 15,
        /// The thread that ends requests does.
        PanicIo = 16,
        /// The control thread does.
        PanicControl = 17,
        /// A thread that answers faults stops for good.
        HangFault = 18,
        /// The thread that reclaims does.
        HangReclaim = 19,
        /// The thread that ends requests does.
        HangIo = 20,
        /// The control thread does.
        HangControl = 21,
    }
}

/// The names of all kinds, as in the environment variable `PAGETIDE_FAIL`.
pub const NAMES: [(&str, Fault); 21] = [
    ("read-error", Fault::ReadError),
    ("read-short", Fault::ReadShort),
    ("read-corrupt", Fault::ReadCorrupt),
    ("read-misplaced", Fault::ReadMisplaced),
    ("write-error", Fault::WriteError),
    ("write-full", Fault::WriteFull),
    ("pool", Fault::Pool),
    ("stall-fault", Fault::StallFault),
    ("stall-reclaim", Fault::StallReclaim),
    ("stall-io", Fault::StallIo),
    ("stall-control", Fault::StallControl),
    ("rest", Fault::Rest),
    ("rest-forgotten", Fault::RestForgotten),
    ("panic-fault", Fault::PanicFault),
    ("panic-reclaim", Fault::PanicReclaim),
    ("panic-io", Fault::PanicIo),
    ("panic-control", Fault::PanicControl),
    ("hang-fault", Fault::HangFault),
    ("hang-reclaim", Fault::HangReclaim),
    ("hang-io", Fault::HangIo),
    ("hang-control", Fault::HangControl),
];

/// A plan: a kind of fault and the number n if it happens at every n-th occasion, or no fault.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Plan(Option<(Fault, u32)>);

impl Plan {
    /// Reads a plan as `NAME:N`; an empty text is no fault. `None` if it is neither.
    pub fn parse(text: &str) -> Option<Self> {
        if text.is_empty() {
            return Some(Self::default());
        }
        let (name, nth) = text.split_once(':')?;
        let (_, fault) = NAMES.iter().find(|(known, _)| *known == name)?;
        let nth = nth.parse().ok().filter(|&nth: &u32| nth > 0)?;
        Some(Self(Some((*fault, nth))))
    }

    /// Returns the plan as a number, for the group page.
    pub fn bits(self) -> u64 {
        self.0.map_or(0, |(fault, nth)| u64::from(fault.to_bits()) << 32 | u64::from(nth))
    }

    /// Returns the plan from its number; no fault if that is of none.
    pub fn from_bits(bits: u64) -> Self {
        let fault = u8::try_from(bits >> 32).ok().and_then(Fault::from_bits);
        Self(fault.map(|fault| (fault, bits as u32)))
    }
}

/// A plan under way: it counts occasions, and tells whether the fault happens at one.
#[derive(Debug, Default)]
pub struct Injection {
    plan: Plan,
    count: AtomicU64,
}

impl Injection {
    /// Returns an injection that follows `plan`, before the first occasion.
    pub fn new(plan: Plan) -> Self {
        Self { plan, count: AtomicU64::new(0) }
    }

    /// Returns whether `fault` happens now.
    pub fn happens(&self, fault: Fault) -> bool {
        let Some((_, nth)) = self.plan.0.filter(|&(known, _)| known == fault) else { return false };
        (self.count.fetch_add(1, Relaxed) + 1).is_multiple_of(nth.into())
    }

    /// Returns whether a thread of that kind has stopped for good.
    fn hangs(&self, fault: Fault) -> bool {
        self.plan.0.is_some_and(|(known, nth)| known == fault && self.count.load(Relaxed) >= nth.into())
    }

    /// Stops the calling thread if the fault `stall` happens now.
    ///
    /// # Panics
    /// If the fault `panic` happens now.
    pub fn strike(&self, stall: Fault, panic: Fault) {
        if self.happens(stall) {
            std::thread::sleep(STALL);
        }
        let hang = match stall {
            Fault::StallFault => Fault::HangFault,
            Fault::StallReclaim => Fault::HangReclaim,
            Fault::StallIo => Fault::HangIo,
            _ => Fault::HangControl,
        };
        while self.happens(hang) || self.hangs(hang) {
            std::thread::sleep(STALL);
        }
        assert!(!self.happens(panic), "injected");
    }

    /// Returns a device that does what `inner` does, but for the faults of this plan.
    pub fn device(&self, inner: Box<dyn Device>) -> Box<dyn Device> {
        const EIO: i32 = 5;
        const ENOSPC: i32 = 28;
        let Some((fault, nth)) = self.plan.0 else { return inner };
        let (direction, failure) = match fault {
            Fault::ReadError => (Direction::Read, Failure::Errno(EIO)),
            Fault::ReadShort => (Direction::Read, Failure::Short),
            Fault::ReadCorrupt => (Direction::Read, Failure::Corrupt),
            Fault::ReadMisplaced => (Direction::Read, Failure::Misplaced),
            Fault::WriteError => (Direction::Write, Failure::Errno(EIO)),
            Fault::WriteFull => (Direction::Write, Failure::Errno(ENOSPC)),
            _ => return inner,
        };
        Box::new(Faulty::new(inner, direction, nth.into(), failure))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_asked_for_happens_every_nth_time() {
        for (name, fault) in NAMES {
            let plan = Plan::parse(&format!("{name}:3")).unwrap();
            assert_eq!(Plan::from_bits(plan.bits()), plan);
            let injection = Injection::new(plan);
            let happened = [(); 6].map(|()| injection.happens(fault));
            assert_eq!(happened, [false, false, true, false, false, true]);
            let (_, other) = NAMES[(fault as usize) % NAMES.len()];
            assert!(!(0..6).any(|_| injection.happens(other)));
        }
        assert!(!(0..6).any(|_| Injection::new(Plan::from_bits(0)).happens(Fault::Pool)));
        for wrong in ["pool", "pool:", "pool:0", "pool:-1", "puddle:1"] {
            assert!(Plan::parse(wrong).is_none(), "{wrong}");
        }
    }
}
