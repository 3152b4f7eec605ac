//! What is in force around a process in a container.

use crate::container::landlock_layers;
use crate::error::{Context, Kind, Result};
use serde::{Deserialize, Serialize};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// For documentation (RFC 5737). A network with a route takes the packet and never answers.
const NOWHERE: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 1)), 443);
/// For a connection that no rule allows.
const PATIENCE: Duration = Duration::from_millis(500);

/// The findings of a process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Inside {
    /// Filters of system calls.
    pub filters: u32,
    /// Whether execve(2) gives no new privileges.
    pub no_new_privileges: bool,
    /// Landlock domains.
    pub landlock: u32,
    /// Bytes of the root file system.
    pub disk_bytes: u64,
    /// Its files, directories and links.
    pub disk_inodes: u64,
    /// The first name server of /etc/resolv.conf.
    pub resolver: String,
    /// The result of a connection that no rule allows.
    pub outside: String,
    /// The first line of /proc/self/uid_map.
    pub users: String,
}

/// Puts Landlock domains in force: the process must end soon.
pub fn probe() -> Result<Inside> {
    let status = std::fs::read_to_string("/proc/self/status").failing(Kind::NotFound, || "read /proc/self/status")?;
    let field = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        line.and_then(|value| value.trim().parse().ok()).unwrap_or(0_u32)
    };
    let root = rustix::fs::statvfs("/").failing(Kind::Disk, || "look at the root file system")?;
    let text = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let resolver =
        text("/etc/resolv.conf").lines().find_map(|line| line.strip_prefix("nameserver ").map(str::to_owned));
    let outside = match TcpStream::connect_timeout(&NOWHERE, PATIENCE) {
        Ok(_) => "answered".to_owned(),
        Err(cause) if cause.kind() == std::io::ErrorKind::TimedOut => "sent".to_owned(),
        Err(cause) => cause.to_string(),
    };
    let users =
        text("/proc/self/uid_map").lines().next().unwrap_or_default().split_whitespace().collect::<Vec<_>>().join(" ");
    Ok(Inside {
        filters: field("Seccomp_filters"),
        no_new_privileges: field("NoNewPrivs") == 1,
        disk_bytes: root.f_blocks.saturating_mul(root.f_frsize),
        disk_inodes: root.f_files,
        resolver: resolver.unwrap_or_default(),
        outside,
        users,
        landlock: landlock_layers(), // last: it restricts this process
    })
}
