//! Permission for userfaultfd: who may have it, how it is given, and what would give it here.
//!
//! An open descriptor of `/dev/userfaultfd` is the permission: the kernel looks at the user when the device is opened, and
//! not when a userfaultfd is made with it. So a broker, which may open the device, hands such descriptors to members of a
//! group; `pagetide setup` makes the group, a udev rule for the device, and the broker's socket.

pub(crate) mod broker;
mod broker_socket;
pub(crate) mod device;
mod members;
pub(crate) mod remedy;
pub(crate) mod setup;
mod steps;

use std::path::PathBuf;

/// The group whose members may have the device.
pub(crate) const GROUP: &str = "pagetide";
/// Where a broker listens.
const SOCKET: &str = "/run/pagetide/broker.socket";
/// The variable that names another socket.
const SOCKET_VARIABLE: &str = "PAGETIDE_BROKER";

/// Returns the path of the broker's socket.
pub(crate) fn socket() -> PathBuf {
    let named = std::env::var_os(SOCKET_VARIABLE).filter(|path| !path.is_empty());
    named.map_or_else(|| SOCKET.into(), PathBuf::from)
}
