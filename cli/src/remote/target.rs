//! What a remote server is called, and how it is spoken to.

use redis::{ConnectionInfo, IntoConnectionInfo};
use serde_json::{Value, json};
use std::path::Path;
use std::time::Duration;

/// The variable that has the server's password, for the launcher alone.
pub(crate) const PASSWORD: &str = "PAGETIDE_REMOTE_PASSWORD";

/// A remote server, or the seeds of a cluster.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Target {
    /// Their addresses, without passwords.
    pub(crate) urls: Vec<String>,
    password: Option<String>,
    /// How long an answer is waited for before pages are given up.
    pub(crate) timeout: Duration,
    /// How long the server keeps a value that nobody renews.
    pub(crate) ttl: Duration,
}

impl std::fmt::Debug for Target {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.urls.join(", "))
    }
}

impl Target {
    /// Returns the target of these addresses. The password comes from `file`, or from the environment.
    pub(crate) fn new(
        urls: &[String],
        file: Option<&Path>,
        timeout: Duration,
        ttl: Duration,
    ) -> Result<Self, String> {
        let urls = urls.iter().map(|url| checked(url)).collect::<Result<Vec<_>, _>>()?;
        let password = match file {
            Some(path) => {
                let text = std::fs::read_to_string(path)
                    .map_err(|error| format!("--remote-password-file: {}: {error}", path.display()))?;
                Some(text.trim_end_matches(['\r', '\n']).to_owned())
            }
            None => std::env::var(PASSWORD).ok(),
        };
        Ok(Self { urls, password: password.filter(|password| !password.is_empty()), timeout, ttl })
    }

    /// Returns what the client library is told of an address.
    pub(crate) fn info(&self, url: &str) -> Result<ConnectionInfo, String> {
        // Of several calls the first counts.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let info = url.into_connection_info().map_err(|error| format!("--remote: {url}: {error}"))?;
        Ok(match &self.password {
            None => info,
            Some(password) => {
                let settings = info.redis_settings().clone().set_password(password);
                info.set_redis_settings(settings)
            }
        })
    }

    /// Returns the target as one line, for the process that has the connection.
    pub(crate) fn to_line(&self) -> String {
        let Self { urls, password, timeout, ttl } = self;
        json!({ "urls": urls, "password": password, "timeout": timeout.as_secs_f64(), "ttl": ttl.as_secs() })
            .to_string()
    }

    /// Reads a target from its line.
    pub(crate) fn from_line(line: &str) -> Option<Self> {
        let read: Value = serde_json::from_str(line).ok()?;
        let urls = read["urls"].as_array()?.iter().map(|url| url.as_str().map(str::to_owned));
        Some(Self {
            urls: urls.collect::<Option<_>>()?,
            password: read["password"].as_str().map(str::to_owned),
            timeout: Duration::try_from_secs_f64(read["timeout"].as_f64()?).ok()?,
            ttl: Duration::from_secs(read["ttl"].as_u64()?),
        })
    }
}

/// Returns an address, if it is one, and names no password: other users see command lines.
fn checked(url: &str) -> Result<String, String> {
    if !["redis://", "rediss://", "valkey://", "valkeys://"].iter().any(|scheme| url.starts_with(scheme)) {
        return Err(format!("--remote: {url}: write redis://HOST:PORT, or rediss:// for TLS"));
    }
    let info = url.into_connection_info().map_err(|error| format!("--remote: {url}: {error}"))?;
    if info.redis_settings().password().is_some() {
        return Err(format!(
            "--remote: a password has no place on a command line, where others see it: {PASSWORD}=…, or --remote-password-file FILE"
        ));
    }
    Ok(url.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target(urls: &[&str]) -> Result<Target, String> {
        let urls: Vec<_> = urls.iter().map(|&url| url.to_owned()).collect();
        Target::new(&urls, None, Duration::from_secs(30), Duration::from_secs(86_400))
    }

    #[test]
    fn addresses_are_checked_and_passwords_are_not_taken_from_them() {
        assert!(target(&["redis://127.0.0.1:6379", "rediss://user@host"]).is_ok());
        for wrong in ["127.0.0.1:6379", "http://host", "redis://"] {
            assert!(target(&[wrong]).unwrap_err().contains("--remote"), "{wrong}");
        }
        let refused = target(&["redis://user:secret@host"]).unwrap_err();
        assert!(refused.contains(PASSWORD) && !refused.contains("secret"), "{refused}");
    }

    #[test]
    fn a_target_is_read_from_its_line_and_shows_no_password() {
        let urls = vec!["redis://user@host:7000".to_owned()];
        let (timeout, ttl) = (Duration::from_millis(1500), Duration::from_secs(60));
        let target = Target { urls, password: Some("a \"secret\"".to_owned()), timeout, ttl };
        assert_eq!(Target::from_line(&target.to_line()), Some(target.clone()));
        assert!(!format!("{target:?}").contains("secret"));
        assert_eq!(
            target.info("redis://user@host:7000").unwrap().redis_settings().password(),
            Some("a \"secret\"")
        );
        assert!(Target::from_line("{}").is_none());
    }
}
