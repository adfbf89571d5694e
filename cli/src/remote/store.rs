//! A connection to the remote server, or to a cluster of them: what a run asks of it.

use super::target::Target;
use super::values::Segment;
use pagetide_device::BLOCK;
use redis::cluster::{ClusterClient, ClusterConnection, cluster_pipe};
use redis::cluster_routing::{MultipleNodeRoutingInfo, RoutingInfo};
use redis::{Client, Cmd, Connection, ErrorKind, RedisError, Value, cmd, pipe};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long one try may take: a server that does not answer is then connected to anew.
const TRY: Duration = Duration::from_secs(2);
/// How long replicas are waited for, in milliseconds.
const REPLICA_MS: u64 = 500;
/// How often it is looked whether there are replicas.
const LOOK_FOR_REPLICAS: Duration = Duration::from_secs(10);
/// Requests of much that are asked for at a time: of a cluster, each that is not answered takes a [`TRY`].
const PART: usize = 32;
/// Interruptions after which a request counts as not answered.
const INTERRUPTIONS: usize = 64;
/// The prefix of all keys.
pub(crate) const PREFIX: &str = "pagetide";

/// The reason for which the server did not do what it was asked.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum StoreError {
    /// It cannot be reached: the same may succeed later.
    Away(String),
    /// It answers, and is not ready for this: the same may succeed later.
    Busy(String),
    /// It has no room.
    Full(String),
    /// It refuses: nothing will change that.
    Refused(String),
    /// A call was interrupted, which says nothing of the server. A socket with a timeout does that without a signal too:
    /// at the end of an io_uring, or when the process is frozen for a moment (signal(7)).
    Interrupted,
}

impl std::fmt::Display for StoreError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Away(text) | Self::Busy(text) | Self::Full(text) | Self::Refused(text) => f.write_str(text),
            Self::Interrupted => f.write_str("a call was interrupted"),
        }
    }
}

impl From<RedisError> for StoreError {
    fn from(error: RedisError) -> Self {
        let text = error.to_string();
        // Of a batch the first counts.
        let code = match error.clone().into_server_errors() {
            Some(errors) => errors.first().map_or(String::new(), |(_, error)| error.code().to_owned()),
            None => String::new(),
        };
        match (code.as_str(), error.kind()) {
            (_, ErrorKind::Io) if is_interrupted(&error) => Self::Interrupted,
            ("OOM", _) => Self::Full(text),
            ("NOAUTH" | "WRONGPASS" | "NOPERM" | "MISCONF", _)
            | (_, ErrorKind::AuthenticationFailed | ErrorKind::InvalidClientConfig) => Self::Refused(text),
            ("", _) => Self::Away(text),
            _ => Self::Busy(text),
        }
    }
}

enum Link {
    One(Box<Connection>),
    Cluster(Box<ClusterConnection>),
}

/// What a server says of itself.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct About {
    /// Its name and version: `redis 7.0.15`.
    pub(crate) version: String,
    /// Whether it is one of a cluster.
    pub(crate) is_cluster: bool,
    /// Whether it is a replica.
    pub(crate) is_replica: bool,
    /// Replicas that are connected to it.
    pub(crate) replicas: u64,
    /// Bytes that it may hold; `None` where it has no limit.
    pub(crate) limit: Option<u64>,
    /// Bytes that it holds.
    pub(crate) used: u64,
    /// What it does when it is full: `noeviction`.
    pub(crate) policy: String,
}

impl About {
    /// Reads what `INFO` gives.
    pub(crate) fn parse(info: &str) -> Self {
        let get = |name: &str| {
            let mut lines = info.lines().filter_map(|line| line.split_once(':'));
            lines.find(|(key, _)| *key == name).map(|(_, value)| value.trim())
        };
        let number = |name| get(name).and_then(|text| text.parse::<u64>().ok());
        let (name, version) = match get("valkey_version") {
            Some(version) => ("valkey", version),
            None => ("redis", get("redis_version").unwrap_or("of an unknown version")),
        };
        Self {
            version: format!("{name} {version}"),
            is_cluster: number("cluster_enabled") == Some(1),
            is_replica: get("role") == Some("slave"),
            replicas: number("connected_slaves").unwrap_or(0),
            limit: number("maxmemory").filter(|&bytes| bytes > 0),
            used: number("used_memory").unwrap_or(0),
            policy: get("maxmemory_policy").unwrap_or("noeviction").to_owned(),
        }
    }

    /// Returns the bytes that are free; `None` where there is no limit.
    pub(crate) fn free(&self) -> Option<u64> {
        self.limit.map(|limit| limit.saturating_sub(self.used))
    }
}

/// The values of one run on the remote server.
pub(crate) struct Store {
    target: Target,
    run: String,
    link: Option<Link>,
    /// Whether a write is to be on a replica too before it counts, and when that was looked up.
    replicated: Option<(bool, Instant)>,
}

impl Store {
    /// Returns the store of the run with this name. It connects when it is first asked for something.
    pub(crate) fn new(target: Target, run: &str) -> Self {
        Self { target, run: run.to_owned(), link: None, replicated: None }
    }

    /// Returns what the server says of itself. Of a cluster, the first seed that answers.
    pub(crate) fn about(&self) -> Result<About, StoreError> {
        let mut failed = no_address();
        for url in &self.target.urls {
            match again(|| self.connect_to(url)) {
                Ok((_, about)) => return Ok(about),
                Err(error) => failed = error,
            }
        }
        Err(failed)
    }

    fn connect_to(&self, url: &str) -> Result<(Connection, About), StoreError> {
        let mut connection = connect(&self.target, url, self.try_time())?;
        let about = about(&mut connection)?;
        Ok((connection, about))
    }

    fn try_time(&self) -> Duration {
        TRY.min(self.target.timeout)
    }

    fn link(&self) -> Result<Link, StoreError> {
        let mut failed = no_address();
        for url in &self.target.urls {
            match again(|| self.connect_to(url)) {
                Ok((_, about)) if about.is_cluster => {
                    return self.connect_to_cluster().map(|cluster| Link::Cluster(Box::new(cluster)));
                }
                Ok((_, about)) if about.is_replica => {
                    failed = StoreError::Away(format!("{url} is a replica: nothing can be written to it"));
                }
                Ok((one, _)) => return Ok(Link::One(Box::new(one))),
                Err(error) => failed = error,
            }
        }
        Err(failed)
    }

    fn connect_to_cluster(&self) -> Result<ClusterConnection, StoreError> {
        let nodes = self.target.urls.iter().map(|url| self.target.info(url)).collect::<Result<Vec<_>, _>>();
        let client = ClusterClient::builder(nodes.map_err(StoreError::Refused)?)
            .connection_timeout(self.try_time())
            .response_timeout(self.try_time())
            // Whoever asks tries again, and says so.
            .retries(2)
            .build()?;
        Ok(client.get_connection()?)
    }

    /// Asks over the connection, which is made if there is none. After an error the next try connects anew.
    fn over<T>(&mut self, ask: impl FnOnce(&mut Link) -> Result<T, RedisError>) -> Result<T, StoreError> {
        let mut link = match self.link.take() {
            Some(link) => link,
            None => self.link()?,
        };
        let answer = ask(&mut link)?;
        self.link = Some(link);
        Ok(answer)
    }

    /// Has the server do all of this, and returns its answers. Each may be done twice.
    fn ask(&mut self, commands: &[Cmd]) -> Result<Vec<Value>, StoreError> {
        let ask = |link: &mut Link| match link {
            Link::One(one) => ask_one(one, commands),
            Link::Cluster(cluster) => {
                let mut all = cluster_pipe();
                commands.iter().for_each(|command| _ = all.add_command(command.clone()));
                all.query(cluster.as_mut())
            }
        };
        again(|| self.over(ask))
    }

    fn key(&self, value: u64) -> String {
        format!("{PREFIX}:{}:{value:x}", self.run)
    }

    /// Reads parts of values; `None` for one that the server does not have.
    pub(crate) fn read(&mut self, segments: &[Segment]) -> Result<Vec<Option<Vec<u8>>>, StoreError> {
        let range = |segment: &Segment| {
            let first = segment.offset * BLOCK;
            let last = first + segment.count * BLOCK - 1;
            cmd("GETRANGE").arg(self.key(segment.value)).arg(first).arg(last).to_owned()
        };
        let answers = self.ask(&segments.iter().map(range).collect::<Vec<_>>())?;
        let whole = |(answer, segment): (Value, &Segment)| match answer {
            Value::BulkString(bytes) if bytes.len() == segment.count * BLOCK => Some(bytes),
            _ => None,
        };
        Ok(answers.into_iter().zip(segments).map(whole).collect())
    }

    /// Writes values. Where the server has replicas one of them has each value too, by then.
    pub(crate) fn write(&mut self, values: &[(u64, Vec<u8>)]) -> Result<(), StoreError> {
        // Looked up beforehand: what replicas have is asked over the connection by which it was written.
        let replicated = self.is_replicated()?;
        let ttl = self.target.ttl.as_secs();
        let set = |(value, bytes): &(u64, Vec<u8>)| {
            cmd("SET").arg(self.key(*value)).arg(bytes.as_slice()).arg("EX").arg(ttl).to_owned()
        };
        self.ask(&values.iter().map(set).collect::<Vec<_>>())?;
        if replicated { self.await_replica() } else { Ok(()) }
    }

    /// Returns whether every server to which is written has a replica. That may change: it is looked up again at times.
    fn is_replicated(&mut self) -> Result<bool, StoreError> {
        if let Some((replicated, looked)) = self.replicated
            && looked.elapsed() < LOOK_FOR_REPLICAS
        {
            return Ok(replicated);
        }
        let info = cmd("INFO").arg("replication").to_owned();
        let ask = |link: &mut Link| match link {
            Link::One(one) => info.query(one.as_mut()),
            Link::Cluster(cluster) => {
                let primaries = RoutingInfo::MultiNode((MultipleNodeRoutingInfo::AllMasters, None));
                cluster.route_command(&info, primaries)
            }
        };
        let answer: Value = again(|| self.over(ask))?;
        let mut texts = Vec::new();
        collect_texts(&answer, &mut texts);
        texts.retain(|text| text.contains("connected_slaves"));
        let replicated = !texts.is_empty() && texts.iter().all(|text| About::parse(text).replicas > 0);
        self.replicated = Some((replicated, Instant::now()));
        Ok(replicated)
    }

    /// Waits for a replica to have what was written over the connection.
    fn await_replica(&mut self) -> Result<(), StoreError> {
        let wait = cmd("WAIT").arg(1).arg(REPLICA_MS).to_owned();
        // It says nothing of what went over another connection.
        if self.link.is_none() {
            return Err(StoreError::Away("the connection was lost".to_owned()));
        }
        let reached = self
            .over(|link| match link {
                Link::One(one) => wait.query::<i64>(one.as_mut()),
                Link::Cluster(cluster) => wait.query::<i64>(cluster.as_mut()),
            })
            .map_err(|error| match error {
                // What was asked over a new connection would be said of nothing.
                StoreError::Interrupted => StoreError::Away(error.to_string()),
                other => other,
            })?;
        if reached > 0 {
            return Ok(());
        }
        // After a failover there may be none any more.
        self.replicated = None;
        if !self.is_replicated()? {
            return Ok(());
        }
        Err(StoreError::Busy("no replica has taken what was written".to_owned()))
    }

    /// Deletes values.
    pub(crate) fn delete(&mut self, values: &[u64]) -> Result<(), StoreError> {
        let keys = values.iter().map(|&value| cmd("UNLINK").arg(self.key(value)).to_owned());
        self.ask_in_parts(&keys.collect::<Vec<_>>()).map(drop)
    }

    /// Asks for much, a part at a time: after one that is not answered no other is asked for.
    fn ask_in_parts(&mut self, commands: &[Cmd]) -> Result<Vec<Value>, StoreError> {
        let mut answers = Vec::with_capacity(commands.len());
        for part in commands.chunks(PART) {
            answers.extend(self.ask(part)?);
        }
        Ok(answers)
    }

    /// Asks over a new connection whether the server gives what it has: one that loads its data does not.
    pub(crate) fn ping(&mut self) -> Result<(), StoreError> {
        self.disconnect();
        let key = Self::sign_of_life(&self.run);
        self.ask(&[cmd("GETRANGE").arg(key).arg(0).arg(0).to_owned()]).map(drop)
    }

    /// Returns whether the connection that there is leads to a cluster.
    pub(crate) fn is_cluster(&self) -> bool {
        matches!(self.link, Some(Link::Cluster(_)))
    }

    /// Gives the connection up: the next request makes a new one.
    pub(crate) fn disconnect(&mut self) {
        self.link = None;
    }

    /// Has the server keep values for the full time again. Returns how many it does not have any more.
    pub(crate) fn renew(&mut self, values: &[u64]) -> Result<usize, StoreError> {
        let ttl = self.target.ttl.as_secs();
        let expire = |&value: &u64| cmd("EXPIRE").arg(self.key(value)).arg(ttl).to_owned();
        let answers = self.ask_in_parts(&values.iter().map(expire).collect::<Vec<_>>())?;
        Ok(answers.iter().filter(|answer| **answer == Value::Int(0)).count())
    }

    /// The key that says that the run goes on.
    pub(crate) fn sign_of_life(run: &str) -> String {
        format!("{PREFIX}-run:{run}")
    }

    /// Says that the run goes on, for so many seconds.
    pub(crate) fn note_alive(&mut self, seconds: u64) -> Result<(), StoreError> {
        let key = Self::sign_of_life(&self.run);
        self.ask(&[cmd("SET").arg(key).arg(1).arg("EX").arg(seconds).to_owned()]).map(drop)
    }

    /// Takes back that the run goes on.
    pub(crate) fn note_over(&mut self) -> Result<(), StoreError> {
        self.ask(&[cmd("UNLINK").arg(Self::sign_of_life(&self.run)).to_owned()]).map(drop)
    }
}

/// Appends all texts in an answer: several servers give a map of theirs.
fn collect_texts(answer: &Value, into: &mut Vec<String>) {
    match answer {
        Value::BulkString(bytes) => into.push(String::from_utf8_lossy(bytes).into_owned()),
        Value::SimpleString(text) | Value::VerbatimString { text, .. } => into.push(text.clone()),
        Value::Array(all) => all.iter().for_each(|one| collect_texts(one, into)),
        Value::Map(all) => all.iter().for_each(|(_, one)| collect_texts(one, into)),
        _ => {}
    }
}

/// Has one server do all of this. After the first request that is not answered none is waited for: the client library would
/// wait for each of them.
fn ask_one(one: &mut Connection, commands: &[Cmd]) -> Result<Vec<Value>, RedisError> {
    let mut all = pipe();
    commands.iter().for_each(|command| _ = all.add_command(command.clone()));
    one.send_packed_command(&all.get_packed_pipeline())?;
    let (mut answers, mut refusal) = (Vec::with_capacity(commands.len()), None);
    while answers.len() < commands.len() {
        match one.recv_response().and_then(Value::extract_error) {
            Ok(Value::Push { .. }) => {}
            Ok(answer) => answers.push(answer),
            Err(error) if error.kind() == ErrorKind::Io || error.is_connection_dropped() => {
                return Err(error);
            }
            Err(error) => {
                answers.push(Value::Nil);
                refusal.get_or_insert(error);
            }
        }
    }
    refusal.map_or(Ok(answers), Err)
}

fn is_interrupted(error: &RedisError) -> bool {
    let cause = std::error::Error::source(error);
    let cause = cause.and_then(|cause| cause.downcast_ref::<Arc<dyn std::error::Error + Send + Sync>>());
    let cause = cause.and_then(|cause| cause.downcast_ref::<std::io::Error>());
    cause.is_some_and(|cause| cause.kind() == std::io::ErrorKind::Interrupted)
}

/// Asks until it is not interrupted, and for so often: what stops it again and again may do so for ever.
pub(super) fn again<T>(mut ask: impl FnMut() -> Result<T, StoreError>) -> Result<T, StoreError> {
    for _ in 0..INTERRUPTIONS {
        match ask() {
            Err(StoreError::Interrupted) => {}
            other => return other,
        }
    }
    Err(StoreError::Away("calls were interrupted again and again".to_owned()))
}

fn no_address() -> StoreError {
    StoreError::Away("no address was given".to_owned())
}

/// Connects to one server of a target, each answer of which may take so long.
pub(crate) fn connect(target: &Target, url: &str, time: Duration) -> Result<Connection, StoreError> {
    let info = target.info(url).map_err(StoreError::Refused)?;
    let connection = Client::open(info)?.get_connection_with_timeout(time)?;
    connection.set_read_timeout(Some(time))?;
    connection.set_write_timeout(Some(time))?;
    Ok(connection)
}

fn about(connection: &mut Connection) -> Result<About, StoreError> {
    let text: String = cmd("INFO").query(connection)?;
    Ok(About::parse(&text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_server_says_of_itself_is_read() {
        let info = "# Server\r\nredis_version:7.0.15\r\nrole:master\r\nconnected_slaves:1\r\nused_memory:1000\r\nmaxmemory:5000\r\n\
                    maxmemory_policy:allkeys-lru\r\ncluster_enabled:1\r\n";
        let about = About::parse(info);
        assert_eq!(
            (about.version.as_str(), about.is_cluster, about.is_replica, about.replicas),
            ("redis 7.0.15", true, false, 1)
        );
        assert_eq!((about.free(), about.policy.as_str()), (Some(4000), "allkeys-lru"));
        assert_eq!(About::parse("maxmemory:0\r\n").free(), None);
        assert_eq!(About::parse("valkey_version:8.1.0\r\nredis_version:7.2.4\r\n").version, "valkey 8.1.0");
    }

    #[test]
    fn errors_that_pass_are_told_from_those_that_stay() {
        let of = |text: &str| {
            let line = format!("-{text}\r\n");
            let value = redis::parse_redis_value(line.as_bytes()).unwrap();
            StoreError::from(value.extract_error().unwrap_err())
        };
        assert!(matches!(of("OOM command not allowed when used memory > 'maxmemory'"), StoreError::Full(_)));
        for passing in ["LOADING", "READONLY", "CLUSTERDOWN", "MASTERDOWN", "TRYAGAIN"] {
            assert!(matches!(of(&format!("{passing} for now")), StoreError::Busy(_)), "{passing}");
        }
        for refused in ["NOAUTH", "WRONGPASS", "NOPERM"] {
            assert!(matches!(of(&format!("{refused} no")), StoreError::Refused(_)), "{refused}");
        }
    }

    #[test]
    fn what_is_interrupted_is_asked_again_and_not_for_ever() {
        let of = |kind: std::io::ErrorKind| StoreError::from(RedisError::from(std::io::Error::from(kind)));
        assert_eq!(of(std::io::ErrorKind::Interrupted), StoreError::Interrupted);
        assert!(matches!(of(std::io::ErrorKind::ConnectionReset), StoreError::Away(_)));
        let mut asked = 0;
        let mut ask = |interruptions: usize| {
            again(|| {
                asked += 1;
                if asked <= interruptions { Err(StoreError::Interrupted) } else { Ok(asked) }
            })
        };
        assert_eq!(ask(3), Ok(4));
        assert!(matches!(ask(usize::MAX), Err(StoreError::Away(_))));
        assert_eq!(asked, 4 + INTERRUPTIONS);
    }
}
