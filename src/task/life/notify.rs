//! Messages to the service manager that runs the supervisor (sd_notify(3)).
//!
//! A service in the foreground sends them: a sandbox without a command, one with a health check, or a worker. With a
//! health check it is ready when that first passes, and alive while it passes. The socket is the host's: no process of
//! the sandbox gets it.

use rustix::process::getpid;
use std::ffi::OsString;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::{Duration, Instant};

#[derive(Debug)]
pub(super) struct ServiceManager {
    socket: UnixDatagram,
    address: SocketAddr,
    /// Interval and next time of the signs of life.
    watchdog: Option<(Duration, Instant)>,
    is_ready: bool,
    /// Whether the health check passes; without one, whether the sandbox runs.
    is_passing: bool,
}

impl ServiceManager {
    pub(super) fn of_environment() -> Option<ServiceManager> {
        let address = address(&std::env::var_os("NOTIFY_SOCKET")?)?;
        let socket = UnixDatagram::unbound().ok()?;
        socket.set_nonblocking(true).ok()?;
        let text = |name: &str| std::env::var(name).ok();
        let watchdog = interval(text("WATCHDOG_USEC").as_deref(), text("WATCHDOG_PID").as_deref());
        let watchdog = watchdog.map(|interval| (interval, Instant::now()));
        Some(ServiceManager { socket, address, watchdog, is_ready: false, is_passing: false })
    }

    /// The first time that it passes, the sandbox is ready.
    pub(super) fn set_passing(&mut self, is_passing: bool) {
        self.is_passing = is_passing;
        if is_passing && !std::mem::replace(&mut self.is_ready, true) {
            self.send("READY=1");
        }
    }

    pub(super) fn stopping(&self) {
        self.send("STOPPING=1");
    }

    /// Called often. An unhealthy sandbox shows no sign of life.
    pub(super) fn tick(&mut self) {
        let Some((interval, next)) = self.watchdog else { return };
        if self.is_passing && Instant::now() >= next {
            self.watchdog = Some((interval, Instant::now() + interval));
            self.send("WATCHDOG=1");
        }
    }

    fn send(&self, text: &str) {
        // A service manager that is gone or busy needs no message.
        let _ = self.socket.send_to_addr(text.as_bytes(), &self.address);
    }
}

/// An absolute path, or `@` and the name of an abstract socket.
fn address(word: &OsString) -> Option<SocketAddr> {
    match word.as_bytes().split_first()? {
        (b'@', name) => SocketAddr::from_abstract_name(name).ok(),
        (b'/', _) => SocketAddr::from_pathname(word).ok(),
        _ => None,
    }
}

/// Half of the time after which the service manager takes the process for dead (sd_watchdog_enabled(3)).
fn interval(microseconds: Option<&str>, pid: Option<&str>) -> Option<Duration> {
    let microseconds: u64 = microseconds?.parse().ok().filter(|number| *number > 0)?;
    let is_ours = pid.is_none_or(|pid| pid == getpid().as_raw_nonzero().to_string());
    is_ours.then(|| Duration::from_micros(microseconds / 2))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_watchdog_is_this_processs_own() {
        let own = getpid().as_raw_nonzero().to_string();
        assert_eq!(interval(Some("3000000"), None), Some(Duration::from_millis(1500)));
        assert_eq!(interval(Some("3000000"), Some(&own)), Some(Duration::from_millis(1500)));
        assert_eq!(interval(Some("3000000"), Some("1")), None);
        assert!([None, Some(""), Some("0"), Some("-1")].iter().all(|text| interval(*text, None).is_none()));
        assert!(address(&"relative".into()).is_none() && address(&"".into()).is_none());
        assert!(address(&"@abstract".into()).is_some() && address(&"/run/notify".into()).is_some());
    }
}
