//! `pagetide remote gc`: deletes what runs that are over have left on a server.

use super::store::{About, PREFIX, Store, StoreError, connect};
use super::target::Target;
use crate::failure::Failure;
use crate::out;
use pagetide_cli::options::{RemoteAction, RemoteArgs};
use redis::{Connection, cmd, pipe};
use std::collections::HashSet;
use std::time::Duration;

/// Exit status: the server cannot be reached.
const UNREACHABLE: u8 = 1;
const TIMEOUT: Duration = Duration::from_secs(10);
/// Keys that are looked at in one round trip.
const KEYS: usize = 1000;

/// What was found on the servers.
#[derive(Default)]
struct Found {
    /// The names of runs that go on.
    lives: HashSet<String>,
    deleted: usize,
    kept: usize,
}

/// Does what the arguments say. Returns the exit status.
pub(crate) fn remote(args: &RemoteArgs) -> Result<u8, Failure> {
    let RemoteAction::Gc = args.action;
    let target = Target::new(&args.urls, args.remote_password_file.as_deref(), TIMEOUT, TIMEOUT)?;
    let failed = |error: StoreError| Failure::new(UNREACHABLE, format!("{target:?}: {error}"));
    let about = Store::new(target.clone(), "").about().map_err(failed)?;
    let mut found = Found::default();
    let mut nodes = nodes(&target, &about).map_err(failed)?;
    // Values before signs of life: a run says that it lives before it writes its first value. Signs lie on any node of a
    // cluster, so all are looked for before anything is deleted.
    let values = nodes.iter_mut().map(|node| scan(node, &format!("{PREFIX}:*")));
    let values = values.collect::<Result<Vec<_>, _>>().map_err(failed)?;
    for node in &mut nodes {
        for key in scan(node, &format!("{PREFIX}-run:*")).map_err(failed)? {
            if let Some((_, run)) = key.split_once(':') {
                found.lives.insert(run.to_owned());
            }
        }
    }
    for (node, keys) in nodes.iter_mut().zip(values) {
        let left: Vec<_> = keys.iter().filter(|key| !found.belongs_to_the_living(key)).collect();
        found.kept += keys.len() - left.len();
        for some in left.chunks(KEYS) {
            let mut all = pipe();
            some.iter().for_each(|key| _ = all.cmd("UNLINK").arg(key.as_str()).ignore());
            all.query::<()>(node).map_err(|error| failed(error.into()))?;
            found.deleted += some.len();
        }
    }
    out::print(&format!(
        "{} values of runs that are over deleted, {} values of {} runs that go on kept\n",
        found.deleted,
        found.kept,
        found.lives.len()
    ))?;
    Ok(0)
}

impl Found {
    fn belongs_to_the_living(&self, key: &str) -> bool {
        key.split(':').nth(1).is_some_and(|run| self.lives.contains(run))
    }
}

/// Returns connections to the server, or to all primaries of its cluster.
fn nodes(target: &Target, about: &About) -> Result<Vec<Connection>, StoreError> {
    let mut first = connect(target, &target.urls[0], TIMEOUT)?;
    if !about.is_cluster {
        return Ok(vec![first]);
    }
    let table: String = cmd("CLUSTER").arg("NODES").query(&mut first)?;
    primaries(&table)
        .iter()
        .map(|address| connect(target, &with_address(&target.urls[0], address), TIMEOUT))
        .collect()
}

/// Returns the addresses of the primaries in what `CLUSTER NODES` gives.
fn primaries(table: &str) -> Vec<String> {
    let fields = table.lines().map(|line| line.split(' ').collect::<Vec<_>>());
    let primary = |fields: &Vec<&str>| {
        fields.len() > 2
            && fields[2].contains("master")
            && !fields[2].contains("fail")
            && !fields[2].contains("noaddr")
    };
    let address = |fields: Vec<&str>| fields[1].split(['@', ',']).next().unwrap_or_default().to_owned();
    fields.filter(primary).map(address).collect()
}

/// Returns a URL with another host and port.
fn with_address(url: &str, address: &str) -> String {
    let (scheme, rest) = url.split_once("://").unwrap_or(("redis", url));
    let user = rest.rsplit_once('@').map_or(String::new(), |(user, _)| format!("{user}@"));
    format!("{scheme}://{user}{address}")
}

fn scan(connection: &mut Connection, pattern: &str) -> Result<Vec<String>, StoreError> {
    let (mut cursor, mut keys) = (0u64, Vec::new());
    loop {
        let (next, some): (u64, Vec<String>) =
            cmd("SCAN").arg(cursor).arg("MATCH").arg(pattern).arg("COUNT").arg(KEYS).query(connection)?;
        keys.extend(some);
        if next == 0 {
            // A key may be given more than once.
            keys.sort_unstable();
            keys.dedup();
            return Ok(keys);
        }
        cursor = next;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn primaries_are_found_among_the_nodes_of_a_cluster() {
        let table = "aa 10.0.0.1:7000@17000 myself,master - 0 1 1 connected 0-5460\n\
                     bb 10.0.0.2:7000@17000,host slave aa 0 1 1 connected\n\
                     cc 10.0.0.3:7000@17000 master,fail - 0 1 2 disconnected 5461-9\n\
                     dd 10.0.0.4:7001@17001,host master - 0 1 3 connected 10-16383\n";
        assert_eq!(primaries(table), ["10.0.0.1:7000", "10.0.0.4:7001"]);
        assert_eq!(with_address("rediss://user@host:1", "10.0.0.1:7000"), "rediss://user@10.0.0.1:7000");
        assert_eq!(with_address("redis://host", "10.0.0.1:7000"), "redis://10.0.0.1:7000");
    }

    #[test]
    fn values_of_runs_that_go_on_stay() {
        let found = Found { lives: HashSet::from(["ab".to_owned()]), ..Found::default() };
        assert!(
            found.belongs_to_the_living("pagetide:ab:1f") && !found.belongs_to_the_living("pagetide:cd:1f")
        );
    }
}
