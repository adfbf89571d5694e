//! The ticket of a run: the facts that a process knows of it from its environment.
//!
//! Every process of a run can write to all of the group page, and they need not be the same user's. So the facts that
//! decide which files a process opens, and whether it encrypts what it writes there, do not come from the group page: a
//! process has them, as it has its library, from the process that started it.

use crate::group::{DeviceKind, DeviceSpec, Group, OpenError, Setup, TierSpec};
use pagetide_swap::frontier::TIERS;
use pagetide_sys::handout::{self, Address, Thing};
use pagetide_sys::procfs::Identity;
use std::path::Path;
use std::str::FromStr;

/// The environment variable that has a run's ticket, for its processes.
pub const ENVIRONMENT: &str = "PAGETIDE_RUN";

/// Fields of its text, with commas between: four of a device, seven others.
const FIELDS: usize = 7 + 4 * TIERS;

/// The facts that the launcher tells the processes of its run.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Ticket {
    /// The identity of the launcher.
    pub launcher: Identity,
    /// The number of the group page's descriptor in the launcher.
    pub group_fd: u64,
    /// The tiers of the device, as far as there are any.
    pub devices: [DeviceSpec; TIERS],
    /// The number of the trace's descriptor in the launcher, if there is one.
    pub trace_fd: Option<u64>,
    /// Whether the swap file is encrypted.
    pub encrypt: bool,
    /// The address where the launcher hands out descriptors, if it does.
    pub address: Option<Address>,
}

impl Ticket {
    /// Returns the ticket of a run with this setup.
    pub fn new(setup: &Setup, group_fd: u64, address: Option<Address>) -> Self {
        let &Setup { launcher, tiers, trace_fd, encrypt, .. } = setup;
        let devices = tiers.map(|tier| tier.device);
        Self { launcher, group_fd, devices, trace_fd, encrypt, address }
    }

    /// Returns `setup`, as the group page tells it, with the facts of the ticket in place of the page's.
    pub fn correct(&self, setup: Setup) -> Setup {
        let &Self { launcher, devices, trace_fd, encrypt, .. } = self;
        let tiers =
            std::array::from_fn(|tier| TierSpec { device: devices[tier], blocks: setup.tiers[tier].blocks });
        Setup { launcher, tiers, trace_fd, encrypt, ..setup }
    }

    /// Returns whether the group page at `path` is that of the same run.
    pub fn is_for(&self, path: &Path) -> bool {
        path == Path::new(&format!("/proc/{}/fd/{}", self.launcher.pid, self.group_fd))
    }

    /// Remembers the address where descriptors are handed out, for this process.
    pub fn remember(&self) {
        if let Some(address) = &self.address {
            handout::remember(address.clone(), self.launcher.pid);
        }
    }
}

impl std::fmt::Display for Ticket {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Identity { pid, start_time, namespace } = self.launcher;
        let trace = self.trace_fd.map_or(0, |fd| fd + 1);
        let (group_fd, encrypt) = (self.group_fd, u8::from(self.encrypt));
        write!(f, "{pid},{start_time},{namespace},{group_fd},")?;
        for DeviceSpec { kind, fd, identity: (device, inode) } in self.devices {
            write!(f, "{},{fd},{device},{inode},", kind.to_bits())?;
        }
        write!(f, "{trace},{encrypt},")?;
        self.address.as_ref().map_or(Ok(()), |address| write!(f, "{address}"))
    }
}

impl FromStr for Ticket {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let mut words = text.splitn(FIELDS, ',');
        let mut number = || words.next().and_then(|word| word.parse::<u64>().ok()).ok_or(());
        let pid = number()?.try_into().map_err(drop)?;
        let launcher = Identity { pid, start_time: number()?, namespace: number()? };
        let group_fd = number()?;
        let mut devices = [DeviceSpec::default(); TIERS];
        for device in &mut devices {
            let kind = DeviceKind::from_bits(number()?).ok_or(())?;
            *device = DeviceSpec { kind, fd: number()?, identity: (number()?, number()?) };
        }
        Ok(Self {
            launcher,
            group_fd,
            devices,
            trace_fd: number()?.checked_sub(1),
            encrypt: number()? != 0,
            address: words.next().filter(|text| !text.is_empty()).map(Address::parse),
        })
    }
}

impl Group {
    /// Opens the group page of the run of which the process has a ticket.
    ///
    /// # Errors
    /// As for [`Group::open`]. [`OpenError::Foreign`] also if the page is of another run than the ticket.
    pub fn join(path: &Path, ticket: &Ticket) -> Result<Self, OpenError> {
        if !ticket.is_for(path) {
            return Err(OpenError::Foreign);
        }
        ticket.remember();
        let group = match Self::open(path) {
            // It has given up its privileges, or has another root. (Without a `/proc` it could not say who it is.)
            Err(error @ OpenError::System(_)) => match handout::ask(Thing::GroupPage) {
                Ok(page) if Identity::own().start_time != 0 => Self::adopt(&page)?,
                _ => return Err(error),
            },
            other => other?,
        };
        let group = group.corrected(|setup| ticket.correct(setup));
        group.count_kills();
        Ok(group)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ticket_is_read_as_it_was_written() {
        let ticket = Ticket {
            launcher: Identity { pid: 7, start_time: 8, namespace: 9 },
            group_fd: 3,
            devices: [
                DeviceSpec { kind: DeviceKind::File, fd: 4, identity: (5, 6) },
                DeviceSpec { kind: DeviceKind::Remote, fd: 7, identity: (8, 9) },
            ],
            trace_fd: Some(0),
            encrypt: true,
            address: Some(Address::parse("/tmp/a,b/socket")),
        };
        for ticket in [ticket.clone(), Ticket { trace_fd: None, address: None, ..ticket.clone() }] {
            assert_eq!(ticket.to_string().parse(), Ok(ticket));
        }
        assert!(ticket.is_for(Path::new("/proc/7/fd/3")) && !ticket.is_for(Path::new("/proc/7/fd/4")));
        for bad in [
            "",
            "1,2,3",
            "1,2,3,4,0,6,7,8,1,10,11,12,13",
            "-1,2,3,4,0,6,7,8,1,10,11,12,13,0,",
            "1,2,3,4,5,6,7,8,1,10,11,12,13,0,",
            "4294967296,2,3,4,0,6,7,8,1,10,11,12,13,0,",
        ] {
            assert_eq!(bad.parse::<Ticket>(), Err(()), "{bad}");
        }
    }
}
