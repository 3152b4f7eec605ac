//! Calls to systemd's manager.

use super::bus::{Address, Bus, CallError, Peer, REPLY_WAIT};
use super::names::{Manager, Unit};
use super::properties::{Host, of_limits, of_unit};
use super::wire::{Call, Message, Property, Writer};
use crate::error::{Context, Error, Kind, Result, Step};
use crate::spec::resources::Resources;
use std::path::PathBuf;
use std::time::Instant;

const SERVICE: &str = "org.freedesktop.systemd1";
const MANAGER_PATH: &str = "/org/freedesktop/systemd1";
const MANAGER: &str = "org.freedesktop.systemd1.Manager";
const UNIT_EXISTS: &str = "org.freedesktop.systemd1.UnitExists";
const NO_SUCH_UNIT: &str = "org.freedesktop.systemd1.NoSuchUnit";

#[derive(Debug)]
pub(crate) struct Systemd {
    bus: Bus,
    version: u32,
}

impl Systemd {
    pub(crate) fn connect(manager: Manager) -> Result<Systemd> {
        let step = || match manager {
            Manager::System => "connect to systemd",
            Manager::User => "connect to the user's systemd",
        };
        let mut cause = Error::new(Kind::Cgroup, "no bus was found");
        for (address, peer) in addresses(manager) {
            match Bus::connect(&address, peer).and_then(Systemd::on) {
                Ok(systemd) => return Ok(systemd),
                Err(error) => cause = error,
            }
        }
        Err(cause.doing(step()).hint("use the cgroupfs driver (without --systemd-cgroup), or start systemd and D-Bus"))
    }

    pub(super) fn on(mut bus: Bus) -> Result<Systemd> {
        if bus.peer() == Peer::Bus {
            // A bus sends signals only to a client with a match rule, and systemd only to a subscriber.
            let mut rule = Writer::default();
            rule.text(&format!("type='signal',sender='{SERVICE}',interface='{MANAGER}',member='JobRemoved'"));
            let call = Call {
                destination: Some("org.freedesktop.DBus"),
                path: "/org/freedesktop/DBus",
                interface: "org.freedesktop.DBus",
                member: "AddMatch",
                signature: "s",
                body: rule.into_bytes(),
            };
            bus.call(&call).map_err(Error::from)?;
        }
        let mut systemd = Systemd { bus, version: 0 };
        if systemd.bus.peer() == Peer::Bus {
            systemd.call("Subscribe", "", Writer::default()).map_err(Error::from)?;
        }
        systemd.version = version(&systemd.property("Version")?);
        Ok(systemd)
    }

    #[cfg(test)]
    pub(crate) fn version(&self) -> u32 {
        self.version
    }

    /// It contains the manager's units: empty for the system's, `user.slice/…/user@1000.service` for a user's.
    pub(crate) fn group(&mut self) -> Result<String> {
        Ok(self.property("ControlGroup")?.trim_matches('/').to_owned())
    }

    /// Waits for the job. Resets a failed unit of that name, which a dead container left.
    pub(crate) fn start(
        &mut self,
        unit: &Unit,
        pid: Option<i32>,
        limits: &Resources,
        extra: &[Property],
        is_v2: bool,
    ) -> Result<()> {
        let step = || format!("start the unit `{}`", unit.name);
        let devices = devices_of_host();
        let host = Host { version: self.version, is_v2, devices: &devices };
        let mut properties = of_unit(unit, pid, host);
        properties.extend(of_limits(limits, host).doing(step)?);
        properties.extend(extra.iter().cloned());
        let job = match self.start_once(unit, &properties) {
            Err(CallError::Refused { name, .. }) if name == UNIT_EXISTS => {
                if unit.is_slice() {
                    return self.set(unit, limits, is_v2);
                }
                // If the reset fails, the second try reports the cause.
                let _ = self.reset(unit);
                self.start_once(unit, &properties)
            }
            other => other,
        };
        let job = job.map_err(Error::from).doing(step)?;
        self.wait(&job).map_err(|error| {
            let _ = self.reset(unit);
            error.doing(step())
        })
    }

    fn start_once(&mut self, unit: &Unit, properties: &[Property]) -> Result<String, CallError> {
        let mut body = Writer::default();
        body.text(&unit.name);
        body.text("replace");
        body.properties(properties);
        // No auxiliary units.
        body.array(8, &[(); 0], |_, ()| {});
        self.call_for_job("StartTransientUnit", "ssa(sv)a(sa(sv))", body)
    }

    pub(crate) fn set(&mut self, unit: &Unit, limits: &Resources, is_v2: bool) -> Result<()> {
        let step = || format!("set the limits of the unit `{}`", unit.name);
        let devices = devices_of_host();
        let properties = of_limits(limits, Host { version: self.version, is_v2, devices: &devices }).doing(step)?;
        if properties.is_empty() {
            return Ok(());
        }
        let mut body = Writer::default();
        body.text(&unit.name);
        // Runtime: until the next boot.
        body.u32(1);
        body.properties(&properties);
        self.call("SetUnitProperties", "sba(sv)", body).map(drop).map_err(Error::from).doing(step)
    }

    /// Or into the group `below` of it.
    #[cfg(test)] // brig's processes are born in the group
    pub(crate) fn attach(&mut self, unit: &Unit, below: &str, processes: &[u32]) -> Result<()> {
        let mut body = Writer::default();
        body.text(&unit.name);
        body.text(below);
        body.array(4, processes, |out, process| out.u32(*process));
        let done = self.call("AttachProcessesToUnit", "ssau", body).map(drop).map_err(Error::from);
        done.doing(|| format!("move processes into the unit `{}`", unit.name))
    }

    /// Kills the unit's processes and resets its failure. A unit that is gone is not an error.
    pub(crate) fn stop(&mut self, unit: &Unit) -> Result<()> {
        let step = || format!("stop the unit `{}`", unit.name);
        let mut body = Writer::default();
        body.text(&unit.name);
        body.text("replace");
        match self.call_for_job("StopUnit", "ss", body) {
            Ok(job) => self.wait(&job).doing(step)?,
            Err(CallError::Refused { name, .. }) if name == NO_SUCH_UNIT => return Ok(()),
            Err(error) => return Err(Error::from(error).doing(step())),
        }
        // Best effort: only a failed unit needs it.
        let _ = self.reset(unit);
        Ok(())
    }

    fn reset(&mut self, unit: &Unit) -> Result<(), CallError> {
        let mut body = Writer::default();
        body.text(&unit.name);
        self.call("ResetFailedUnit", "s", body).map(drop)
    }

    fn property(&mut self, name: &str) -> Result<String> {
        let mut body = Writer::default();
        body.text(MANAGER);
        body.text(name);
        let answer = self.call_of("org.freedesktop.DBus.Properties", "Get", "ss", body).map_err(Error::from);
        let step = || format!("read systemd's `{name}`");
        answer
            .doing(step)?
            .body()
            .text_variant()
            .ok_or_else(|| Error::new(Kind::Cgroup, "it is not a string").doing(step()))
    }

    fn call(&mut self, member: &str, signature: &str, body: Writer) -> Result<Message, CallError> {
        self.call_of(MANAGER, member, signature, body)
    }

    fn call_of(&mut self, interface: &str, member: &str, signature: &str, body: Writer) -> Result<Message, CallError> {
        let destination = (self.bus.peer() == Peer::Bus).then_some(SERVICE);
        let body = body.into_bytes();
        self.bus.call(&Call { destination, path: MANAGER_PATH, interface, member, signature, body })
    }

    fn call_for_job(&mut self, member: &str, signature: &str, body: Writer) -> Result<String, CallError> {
        let answer = self.call(member, signature, body)?;
        let torn = || CallError::Broken(Error::new(Kind::Cgroup, "systemd replied without a job"));
        answer.body().text().ok_or_else(torn)
    }

    fn wait(&mut self, job: &str) -> Result<()> {
        let end = Instant::now() + REPLY_WAIT;
        while let Some(signal) = self.bus.signal(end)? {
            if (signal.interface.as_str(), signal.member.as_str()) != (MANAGER, "JobRemoved") {
                continue;
            }
            let mut body = signal.body();
            let (_, path, _, result) = (body.u32(), body.text(), body.text(), body.text());
            if path.as_deref() != Some(job) {
                continue;
            }
            return match result.as_deref() {
                Some("done") => Ok(()),
                other => Err(Error::new(Kind::Cgroup, format!("the job ended as `{}`", other.unwrap_or("")))),
            };
        }
        Err(Error::new(Kind::Cgroup, format!("the job did not end within {} s", REPLY_WAIT.as_secs())))
    }
}

/// Best first. The system's private socket needs no bus daemon.
fn addresses(manager: Manager) -> Vec<(Address, Peer)> {
    let of_variable = |name: &str| std::env::var(name).map(|text| Address::parse(&text)).unwrap_or_default();
    let path = |path: PathBuf| Address::Path(path);
    match manager {
        Manager::System => {
            let mut list = vec![(path("/run/systemd/private".into()), Peer::Direct)];
            list.extend(of_variable("DBUS_SYSTEM_BUS_ADDRESS").into_iter().map(|address| (address, Peer::Bus)));
            list.push((path("/run/dbus/system_bus_socket".into()), Peer::Bus));
            list
        }
        Manager::User => {
            let runtime = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
            let runtime =
                runtime.unwrap_or_else(|| format!("/run/user/{}", rustix::process::geteuid().as_raw()).into());
            let mut list: Vec<_> =
                of_variable("DBUS_SESSION_BUS_ADDRESS").into_iter().map(|address| (address, Peer::Bus)).collect();
            list.push((path(runtime.join("bus")), Peer::Bus));
            list.push((path(runtime.join("systemd/private")), Peer::Direct));
            list
        }
    }
}

/// Only rules for all minor numbers of a driver need it; otherwise brig's own filter enforces them.
fn devices_of_host() -> String {
    std::fs::read_to_string("/proc/devices").failing(Kind::Cgroup, || "read `/proc/devices`").unwrap_or_default()
}

/// `257 (257.13-1~deb13u1)`, `v245.4-1.fc32`.
fn version(text: &str) -> u32 {
    let digits = text.trim_start_matches(|letter: char| !letter.is_ascii_digit());
    let end = digits.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(digits.len());
    digits[..end].parse().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn version_is_the_first_number() {
        for (text, expected) in [("257.13-1~deb13u1", 257), ("v245.4-1.fc32", 245), ("\"v239\"", 239), ("", 0)] {
            assert_eq!(version(text), expected, "{text}");
        }
    }
}
