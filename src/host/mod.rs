//! The features of this machine that a sandbox needs: tested, never guessed, each with its remedy.
//!
//! A probe changes nothing: trials run in a child with new namespaces. Not here: cgroups, whose module decides on
//! limits (`container::possible`).

mod hardening;
mod kernel;
mod mounts;
mod namespaces;

// For `sandbox`, which imports no module of system calls.
pub(crate) use crate::sys::weaken::is_off;
pub(crate) use kernel::{is_local, landlock_abi, landlock_lacks, shows_other_owners};
pub(crate) use mounts::{MountEntry, mounts, parse_mount, parse_mounts};
pub(crate) use namespaces::{can_be_mapped, overlays_take, subordinate_range, user_namespace_advice};
use rustix::fs::{Access, access};
use rustix::process::geteuid;
use serde::Serialize;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use ureq::Proxy;
use ureq::tls::{Certificate, PemItem, RootCerts, parse_pem};

/// The result of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// A sandbox has all that it needs.
    Good,
    /// A sandbox starts with weaker protection.
    Weaker,
    /// A sandbox does not start as requested; the error names this.
    Missing,
}

/// A check.
#[derive(Clone, Debug, Serialize)]
pub struct Check {
    /// Also the heading of its section in `docs/host.md`.
    pub name: &'static str,
    /// Its result.
    pub state: State,
    /// The finding.
    pub found: String,
    /// One action; `None` if the state is good.
    pub remedy: Option<String>,
    /// The page with details.
    pub see: String,
}

impl Check {
    pub(crate) fn good(name: &'static str, found: impl Into<String>) -> Check {
        Check { name, state: State::Good, found: found.into(), remedy: None, see: page(name) }
    }

    pub(crate) fn bad(name: &'static str, state: State, found: impl Into<String>, remedy: impl Into<String>) -> Check {
        Check { name, state, found: found.into(), remedy: Some(remedy.into()), see: page(name) }
    }
}

/// In the order of the output.
const PROBES: [fn() -> Check; 12] = [
    kernel::version,
    kernel::system_calls,
    kernel::seccomp,
    kernel::landlock,
    namespaces::user_namespaces,
    namespaces::id_mapped_mounts,
    namespaces::overlay,
    loop_devices,
    formatter,
    namespaces::subordinate_ids,
    hardening::security_modules,
    hardening::switches,
];

pub(crate) fn checks() -> Vec<Check> {
    PROBES.iter().map(|probe| probe()).collect()
}

fn page(name: &str) -> String {
    format!("docs/host.md#{}", name.replace(' ', "-"))
}

fn setting(path: &str) -> Option<String> {
    Some(std::fs::read_to_string(path).ok()?.trim().to_owned())
}

/// Not the caller's PATH: root's often lacks the sbin folders.
const FOLDERS: [&str; 4] = ["/usr/sbin", "/sbin", "/usr/bin", "/bin"];

const NOT_NEEDED: &str = "not needed: the disk cap of an ordinary user's sandbox is a tmpfs";

fn loop_devices() -> Check {
    const NAME: &str = "loop devices";
    if !geteuid().is_root() {
        return Check::good(NAME, NOT_NEEDED);
    }
    match access("/dev/loop-control", Access::READ_OK | Access::WRITE_OK) {
        Ok(()) => Check::good(NAME, "/dev/loop-control"),
        Err(errno) => {
            Check::bad(NAME, State::Missing, format!("/dev/loop-control: {errno}"), "load the module (`modprobe loop`)")
        }
    }
}

fn formatter() -> Check {
    const NAME: &str = "mke2fs";
    if !geteuid().is_root() {
        return Check::good(NAME, NOT_NEEDED);
    }
    match FOLDERS
        .iter()
        .map(|folder| Path::new(folder).join("mke2fs"))
        .find(|path| access(path, Access::EXEC_OK).is_ok())
    {
        Some(path) => Check::good(NAME, path.display().to_string()),
        None => Check::bad(NAME, State::Missing, "not found", "install e2fsprogs"),
    }
}

// The certificates that this machine trusts.

const CERTIFICATE_FILES: [&str; 3] =
    ["/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/cert.pem"];
/// RFC 7468.
const PEM_BEGINNING: &[u8] = b"-----BEGIN CERTIFICATE-----";

/// Whether `SSL_CERT_FILE` and variables for proxies are read.
static CALLER_CHOOSES: AtomicBool = AtomicBool::new(true);

/// In hosted mode the caller must choose neither a file to read, nor the trusted authorities, nor a proxy.
pub(crate) fn ignore_callers_network() {
    CALLER_CHOOSES.store(false, Ordering::Relaxed);
}

/// The proxy of the caller's variables.
pub(crate) fn proxy() -> Option<Proxy> {
    Proxy::try_from_env().filter(|_| CALLER_CHOOSES.load(Ordering::Relaxed))
}

/// PEM of `SSL_CERT_FILE`, else of the machine; may contain other text.
pub(crate) fn certificates() -> Option<Vec<u8>> {
    let chosen = std::env::var_os("SSL_CERT_FILE").filter(|_| CALLER_CHOOSES.load(Ordering::Relaxed));
    let chosen = chosen.map(PathBuf::from);
    let mut paths = chosen.into_iter().chain(CERTIFICATE_FILES.map(PathBuf::from));
    paths.find_map(|path| std::fs::read(path).ok().filter(|pem| has_certificate(pem)))
}

pub(crate) fn has_certificate(pem: &[u8]) -> bool {
    pem.windows(PEM_BEGINNING.len()).any(|each| each == PEM_BEGINNING)
}

/// The machine's certificates and `more`. Without any, Mozilla's list in this program.
pub(crate) fn roots(more: &[Certificate<'static>]) -> RootCerts {
    let mut found = in_pem(&certificates().unwrap_or_default());
    found.extend_from_slice(more);
    if found.is_empty() { RootCerts::WebPki } else { RootCerts::new_with_certs(&found) }
}

/// Skips other text.
pub(crate) fn in_pem(pem: &[u8]) -> Vec<Certificate<'static>> {
    let certificates = parse_pem(pem).filter_map(|item| match item {
        Ok(PemItem::Certificate(certificate)) => Some(certificate),
        _ => None,
    });
    certificates.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_check_has_a_section_in_the_page_about_the_host_and_a_bad_one_a_remedy() {
        let page = include_str!("../../docs/host.md");
        let checks = checks();
        for check in &checks {
            assert!(page.contains(&format!("\n## {}\n", check.name)), "docs/host.md has no section `{}`", check.name);
            assert!(!check.found.is_empty() && !check.found.contains('\n'), "{check:?}");
            assert_eq!(check.state == State::Good, check.remedy.is_none(), "{check:?}");
        }
        let mut names: Vec<_> = checks.iter().map(|check| check.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), PROBES.len());
    }
}
