//! The program `pasta` of passt (https://passt.top), which gives a network namespace a network without any right: how it is found and started.

use crate::error::{Error, Kind, Result};
use crate::process::{Companion, Service};
use std::ffi::CString;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// Where it is looked for besides PATH.
const PLACES: [&str; 3] = ["/usr/bin", "/usr/local/bin", "/bin"];
/// Nothing of the host's loopback is shown inside, and no port of either side leads to the other: what is published goes by sockets of our own.
const ARGUMENTS: [&str; 16] = [
    "pasta",
    "--quiet",
    "--config-net",
    "--no-map-gw",
    "--ns-ifname",
    DEVICE,
    "--tcp-ports",
    "none",
    "--udp-ports",
    "none",
    "--tcp-ns",
    "none",
    "--udp-ns",
    "none",
    "--netns-only",
    "--netns",
];
/// What its device is called inside.
pub(super) const DEVICE: &str = "eth0";

/// Finds it.
pub(crate) fn find() -> Result<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let directories = std::env::split_paths(&path).chain(PLACES.iter().map(PathBuf::from));
    let is_program = |path: &PathBuf| {
        path.is_absolute()
            && std::fs::metadata(path).is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
    };
    directories.map(|directory| directory.join("pasta")).find(is_program).ok_or_else(|| {
        Error::new(Kind::Network, "the network `pasta` needs the program `pasta`, which is not on this host")
            .hint("install the package `passt`, or use --network egress")
    })
}

/// Starts it for a namespace. `user` is a host id that nobody else has, where there is one.
pub(super) fn start(network: OwnedFd, users: Option<OwnedFd>, user: Option<u32>) -> Result<Companion> {
    let path = find()?;
    let word = |bytes: &[u8]| CString::new(bytes).map_err(|_| Error::new(Kind::Internal, "a word with a NUL"));
    let mut arguments = ARGUMENTS.iter().map(|each| word(each.as_bytes())).collect::<Result<Vec<_>>>()?;
    // Its standard input: every further descriptor it closes as it begins.
    arguments.push(word(b"/proc/self/fd/0")?);
    let user = user.filter(|_| is_everybodys(Path::new("/dev/net/tun")));
    if user.is_none() && rustix::process::geteuid().is_root() {
        // Else it becomes `nobody`, and may not enter the namespace any more.
        arguments.splice(1..1, [word(b"--runas")?, word(b"0")?]);
    }
    let path = word(path.as_os_str().as_bytes())?;
    Companion::start(Service { path, arguments, network, users, user })
        .map_err(|error| error.hint("try it by hand: pasta --config-net -- true; or use --network egress"))
}

/// Whether everybody may use a device, as udev has it.
fn is_everybodys(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|found| found.permissions().mode() & 0o006 == 0o006)
}
