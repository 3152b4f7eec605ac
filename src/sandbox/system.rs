//! The host's system folders for the default root, looked up once a start.

use crate::files::clean_path;
use crate::spec::root::Version;
use std::fs::{self, Metadata};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct System {
    /// Folders shown as they are: `/usr`, and `/bin` and others if they are folders.
    pub folders: Vec<PathBuf>,
    /// Links to make: `/bin -> usr/bin` on a merged system.
    pub links: Vec<(PathBuf, PathBuf)>,
    /// Files and folders of /etc that programs of /usr need, and that never contain a secret.
    pub settings: Vec<PathBuf>,
    /// Small files that seldom change: a copy costs less than a mount.
    pub copies: Vec<(PathBuf, Version)>,
    /// The host's mount point of cgroup v2.
    pub hierarchy: Option<PathBuf>,
}

/// Programs and libraries (hier(7)).
const TOP: [&str; 8] = ["/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/opt"];

/// /etc as a whole is never shown: it contains keys and passwords.
const SETTINGS: [&str; 25] = [
    "/etc/alternatives",    // /usr/bin/cc, awk, java … are links through it
    "/etc/ld.so.cache",     // where shared libraries are
    "/etc/ssl/certs",       // public certificates; the keys are in /etc/ssl/private
    "/etc/ca-certificates", // the same on other distributions
    "/etc/pki/tls/certs",   // the same on Fedora
    "/etc/java-17-openjdk", // the JVM does not start without its security settings
    "/etc/java-21-openjdk",
    "/etc/java-8-openjdk",
    "/etc/java-11-openjdk",
    "/etc/java-25-openjdk",
    "/etc/java",     // the same on Fedora
    "/etc/services", // names of ports and protocols: getservbyname(3)
    "/etc/protocols",
    "/etc/localtime", // the time zone
    "/etc/timezone",
    "/etc/os-release", // which distribution the programs are of
    "/etc/mime.types", // types of files
    "/etc/fonts",
    "/etc/mtab",            // a link to /proc
    "/etc/ssl/openssl.cnf", // which ciphers
    "/etc/crypto-policies", // the same on Fedora
    "/etc/pki/tls/openssl.cnf",
    "/etc/chromium.d", // Chromium's start script reads it
    "/etc/maven/m2.conf",
    "/etc/maven/logging",
];

const HIERARCHIES: [&str; 2] = ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"];

/// Larger files are mounted.
const COPIED: u64 = 128 << 10;
/// Always mounted: each installation of a library changes it, and each change would need another kept root.
const CHANGING: &str = "/etc/ld.so.cache";

pub(crate) fn find_folders() -> System {
    let mut system = System::default();
    for path in TOP.map(Path::new) {
        match fs::read_link(path) {
            Ok(target) => system.links.push((path.to_owned(), target)),
            Err(_) if path.is_dir() && path != Path::new("/opt") => system.folders.push(path.to_owned()),
            Err(_) => {}
        }
    }
    SETTINGS.iter().for_each(|path| system.add(Path::new(path)));
    system.hierarchy = hierarchy();
    system
}

impl System {
    /// Adds it in the cheapest way. Skips a file that is not readable for all users of the host.
    fn add(&mut self, path: &Path) {
        let Ok(mut status) = fs::symlink_metadata(path) else { return };
        if status.is_symlink() {
            let Ok(target) = fs::read_link(path) else { return };
            if is_shown(path, &target) {
                return self.links.push((path.to_owned(), target));
            }
            let Ok(led_to) = fs::metadata(path) else { return };
            status = led_to;
        }
        if status.permissions().mode() & 0o004 == 0 {
            return;
        }
        if status.is_file() && status.len() <= COPIED && path != Path::new(CHANGING) {
            self.copies.push((path.to_owned(), version(&status)));
        } else if status.is_dir() || status.is_file() {
            self.settings.push(path.to_owned());
        }
    }
}

fn hierarchy() -> Option<PathBuf> {
    /// `CGROUP2_SUPER_MAGIC` of linux/magic.h.
    const MAGIC: i128 = 0x6367_7270;
    let is_v2 = |path: &&&str| rustix::fs::statfs(**path).is_ok_and(|found| i128::from(found.f_type) == MAGIC);
    HIERARCHIES.iter().find(is_v2).map(PathBuf::from)
}

fn version(status: &Metadata) -> Version {
    Version {
        size: status.len(),
        modified: (status.mtime(), status.mtime_nsec()),
        changed: (status.ctime(), status.ctime_nsec()),
    }
}

/// Whether a link's target is in the root too: below /usr or /proc.
fn is_shown(link: &Path, target: &Path) -> bool {
    let whole = clean_path(&link.parent().unwrap_or(link).join(target));
    whole.starts_with("/usr") || whole.starts_with("/proc")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_host_has_a_usr_and_no_secret_is_among_the_settings() {
        let system = find_folders();
        assert!(system.folders.contains(&PathBuf::from("/usr")));
        let secret = ["shadow", "private", "ssh", "sudoers", "machine-id"];
        assert!(SETTINGS.iter().all(|path| !secret.iter().any(|word| Path::new(path).ends_with(word))));
    }

    #[test]
    fn a_setting_is_a_link_a_copy_or_a_mount_and_nothing_that_is_not_for_all() {
        let etc = tempfile::tempdir().unwrap();
        let at = |name: &str| etc.path().join(name);
        std::os::unix::fs::symlink("/usr/share/zoneinfo/Etc/UTC", at("localtime")).unwrap();
        fs::write(at("services"), "https 443/tcp").unwrap();
        std::os::unix::fs::symlink("services", at("elsewhere")).unwrap();
        fs::write(at("mime.types"), vec![b'x'; 256 << 10]).unwrap();
        fs::create_dir(at("fonts")).unwrap();
        fs::write(at("private"), "secret").unwrap();
        fs::set_permissions(at("private"), fs::Permissions::from_mode(0o640)).unwrap();
        let mut system = System::default();
        for name in ["localtime", "services", "elsewhere", "mime.types", "fonts", "private", "missing"] {
            system.add(&at(name));
        }
        assert_eq!(system.links, [(at("localtime"), "/usr/share/zoneinfo/Etc/UTC".into())]);
        let copied = version(&fs::metadata(at("services")).unwrap());
        assert_eq!(system.copies, [(at("services"), copied), (at("elsewhere"), copied)]);
        assert_eq!(system.settings, [at("mime.types"), at("fonts")]);
    }

    #[test]
    fn a_link_is_kept_where_its_target_is_in_the_root() {
        let check = |target: &str, expected| assert_eq!(is_shown(Path::new("/etc/x"), Path::new(target)), expected);
        check("../usr/lib/os-release", true);
        check("/usr/share/zoneinfo/Europe/Berlin", true);
        check("../proc/self/mounts", true);
        check("/usr/../root/x", false);
        check("services", false);
        check("/run/x", false);
    }
}
