//! Members of a group, as the system's user database has them.

use nix::unistd::{Gid, Group, Uid, User, getgrouplist};
use rustix::io::Errno;
use std::ffi::CString;
use std::fs;

/// The number that the kernel shows for users who have none in this user namespace, unless `/proc` names another.
const OVERFLOW_USER: u32 = 65534;

/// Users who may have the device.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Members {
    /// Root, and the members of a group.
    Group(String),
    /// Whoever connects: who may reach the socket is decided otherwise.
    Anyone,
}

fn errno(error: nix::Error) -> Errno {
    Errno::from_raw_os_error(error as i32)
}

/// Returns the user of this name.
///
/// # Errors
/// The user database cannot be read.
pub(crate) fn user_named(name: &str) -> Result<Option<User>, Errno> {
    User::from_name(name).map_err(errno)
}

/// Returns the name of a user, or its number if it has none.
pub(crate) fn name_of(user: u32) -> String {
    let found = User::from_uid(Uid::from_raw(user)).ok().flatten();
    found.map_or_else(|| user.to_string(), |found| found.name)
}

/// Returns the number of the group of this name.
///
/// # Errors
/// The user database cannot be read.
pub(crate) fn group_named(name: &str) -> Result<Option<u32>, Errno> {
    Ok(Group::from_name(name).map_err(errno)?.map(|group| group.gid.as_raw()))
}

/// Returns whether the database has `user` in `group`, as its first group or a further one.
///
/// # Errors
/// The user database cannot be read.
pub(crate) fn is_member(user: u32, group: &str) -> Result<bool, Errno> {
    let Some(number) = group_named(group)? else { return Ok(false) };
    let Some(found) = User::from_uid(Uid::from_raw(user)).map_err(errno)? else { return Ok(false) };
    let Ok(name) = CString::new(found.name) else { return Ok(false) };
    Ok(getgrouplist(&name, found.gid).map_err(errno)?.contains(&Gid::from_raw(number)))
}

impl Members {
    /// Returns whether a user may have the device.
    ///
    /// # Errors
    /// The user database cannot be read.
    pub(crate) fn has(&self, user: u32) -> Result<bool, Errno> {
        match self {
            Self::Anyone => Ok(true),
            Self::Group(_) if user == 0 => Ok(true),
            // Users of other namespaces share this number.
            Self::Group(_) if user == overflow_user() => Ok(false),
            Self::Group(group) => is_member(user, group),
        }
    }
}

fn overflow_user() -> u32 {
    let told = fs::read_to_string("/proc/sys/kernel/overflowuid").ok();
    told.and_then(|text| text.trim().parse().ok()).unwrap_or(OVERFLOW_USER)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_are_those_of_the_database() {
        let of = |group: &str| Members::Group(group.into());
        assert_eq!(of("daemon").has(1), Ok(true), "its first group");
        assert_eq!(of("daemon").has(2), Ok(false));
        assert_eq!(of("no such group").has(1), Ok(false));
        assert_eq!(of("no such group").has(0), Ok(true), "root needs no group");
        assert_eq!(of("daemon").has(3_999_999_999), Ok(false), "a user without a name");
        assert_eq!(of("nogroup").has(OVERFLOW_USER), Ok(false), "users of other namespaces");
        assert_eq!(Members::Anyone.has(3_999_999_999), Ok(true));
        assert_eq!(user_named("no such user"), Ok(None));
        assert_eq!((name_of(0), name_of(3_999_999_999)), ("root".to_owned(), "3999999999".to_owned()));
    }
}
