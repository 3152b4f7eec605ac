//! Finds and starts `pasta` of passt (<https://passt.top>), which connects a network namespace without any right.

use crate::error::{Error, Kind, Result};
use crate::process::{Companion, Service};
use crate::sys::weaken;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use std::ffi::CString;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// Besides PATH.
const PLACES: [&str; 3] = ["/usr/bin", "/usr/local/bin", "/bin"];
/// The host's loopback is invisible inside, and no port is forwarded: published ports use our sockets.
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
const TUN: &str = "/dev/net/tun";
pub(super) const DEVICE: &str = "eth0";

fn find() -> Result<PathBuf> {
    // Root may act for a caller that has set PATH (sudo).
    let is_own = !rustix::process::geteuid().is_root() || weaken::is_off("pasta-path");
    let own = std::env::var_os("PATH").filter(|_| is_own);
    let path = own.unwrap_or_default();
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

/// An ordinary user must be able to open the device.
pub(crate) fn check() -> Result<()> {
    find()?;
    if rustix::process::geteuid().is_root() {
        return Ok(()); // root may make a device node itself
    }
    let advice = match rustix::fs::open(TUN, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()) {
        Ok(_) => return Ok(()),
        Err(errno @ (Errno::ACCESS | Errno::PERM)) => (errno, "let root give it to you (chmod 666, as udev has it)"),
        Err(errno) => (errno, "let root load its driver (modprobe tun)"),
    };
    Err(Error::os(Kind::Network, advice.0)
        .doing(format!("open `{TUN}`, by which `pasta` makes the sandbox's network device"))
        .hint(format!("{}, or use --network egress", advice.1)))
}

/// `users` owns the network namespace, where the program has all its power as `user`.
pub(super) fn start(network: OwnedFd, users: OwnedFd, user: Option<u32>) -> Result<Companion> {
    let path = find()?;
    let word = |bytes: &[u8]| CString::new(bytes).map_err(|_| Error::new(Kind::Internal, "a word with a NUL"));
    let mut arguments = ARGUMENTS.iter().map(|each| word(each.as_bytes())).collect::<Result<Vec<_>>>()?;
    // Its standard input: it closes all other descriptors.
    arguments.push(word(b"/proc/self/fd/0")?);
    let own_tun = rustix::process::geteuid().is_root() && !is_everybodys(Path::new(TUN));
    let path = word(path.as_os_str().as_bytes())?;
    Companion::start(Service { path, arguments, network, users, user, own_tun })
        .map_err(|error| error.hint("try it by hand: pasta --config-net -- true; or use --network egress"))
}

/// As udev sets it up.
fn is_everybodys(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|found| found.permissions().mode() & 0o006 == 0o006)
}
