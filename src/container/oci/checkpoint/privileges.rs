//! CRIU restores what the image contains: the processes may have no more privileges than the configuration gives.

use crate::container::oci::prepare;
use crate::container::tree::descendants;
use crate::error::{Error, Kind, Result};
use crate::spec::config::Config;
use crate::sys::weaken;
use std::path::Path;

/// Checks `pid` and its descendants, which are stopped.
pub(super) fn check(config: &Config, pid: i32) -> Result<()> {
    let Some(process) = config.process.as_ref().filter(|_| !weaken::is_off("restored-privileges")) else {
        return Ok(());
    };
    let allowed = Allowed {
        capabilities: prepare::identity(process).0.capabilities.bounding,
        no_new_privileges: process.no_new_privileges,
        filtered: config.linux.seccomp.is_some(),
    };
    for pid in descendants(pid).into_iter().chain([pid]) {
        for thread in std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten() {
            allowed.check(&thread.path())?;
        }
    }
    Ok(())
}

struct Allowed {
    capabilities: u64,
    no_new_privileges: bool,
    filtered: bool,
}

impl Allowed {
    fn check(&self, thread: &Path) -> Result<()> {
        let Ok(status) = std::fs::read_to_string(thread.join("status")) else { return Ok(()) }; // it has ended
        let excess = self.excess(&status);
        excess.map_or(Ok(()), |excess| {
            let words = format!("a process of the checkpoint has {excess}, which the configuration does not give");
            Err(Error::new(Kind::Identity, words)
                .hint("restore it with the configuration that it was checkpointed with"))
        })
    }

    fn excess(&self, status: &str) -> Option<&'static str> {
        let field =
            |name: &str| status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim);
        // CRIU restores a zombie without its credentials, and it runs no code.
        if field("State").is_some_and(|state| state.starts_with('Z')) {
            return None;
        }
        let set = |name: &str| field(name).and_then(|text| u64::from_str_radix(text, 16).ok()).unwrap_or(u64::MAX);
        if ["CapBnd", "CapPrm", "CapInh", "CapAmb"].iter().any(|name| set(name) & !self.capabilities != 0) {
            return Some("capabilities");
        }
        if self.no_new_privileges && field("NoNewPrivs") != Some("1") {
            return Some("no `noNewPrivileges`");
        }
        (self.filtered && field("Seccomp") != Some("2")).then_some("no filter of system calls")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_than_the_configuration_gives_is_found() {
        let strict = Allowed { capabilities: 0b101, no_new_privileges: true, filtered: true };
        let loose = Allowed { capabilities: u64::MAX, no_new_privileges: false, filtered: false };
        let status = |bounding: &str, ambient: &str, rest: &str| {
            format!("CapInh:\t0\nCapPrm:\t0\nCapEff:\t0\nCapBnd:\t{bounding}\nCapAmb:\t{ambient}\n{rest}\n")
        };
        for (status, found) in [
            (status("0000000000000005", "0", "NoNewPrivs:\t1\nSeccomp:\t2"), None),
            (status("0000000000000007", "0", "NoNewPrivs:\t1\nSeccomp:\t2"), Some("capabilities")),
            (status("5", "2", "NoNewPrivs:\t1\nSeccomp:\t2"), Some("capabilities")),
            (status("not a number", "0", "NoNewPrivs:\t1\nSeccomp:\t2"), Some("capabilities")),
            (status("7", "0", "State:\tZ (zombie)"), None),
            (status("7", "0", "State:\tT (stopped)"), Some("capabilities")),
            (status("5", "0", "NoNewPrivs:\t0\nSeccomp:\t2"), Some("no `noNewPrivileges`")),
            (status("5", "0", "NoNewPrivs:\t1\nSeccomp:\t0"), Some("no filter of system calls")),
        ] {
            assert_eq!(strict.excess(&status), found, "{status}");
            assert_eq!(loose.excess(&status), None, "{status}");
        }
    }
}
