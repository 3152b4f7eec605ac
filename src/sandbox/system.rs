//! The host's own system folders, of which the default root consists: what is there, looked up once a start.

use std::fs;
use std::path::{Path, PathBuf};

/// What of the host the default root shows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct System {
    /// Folders shown as they are: `/usr`, and `/bin` and the like where they are folders.
    pub folders: Vec<PathBuf>,
    /// Links made anew: `/bin -> usr/bin` on a merged system.
    pub links: Vec<(PathBuf, PathBuf)>,
    /// Files and folders of /etc without which programs of /usr do not work, and in which no secret ever is.
    pub settings: Vec<PathBuf>,
}

/// Top-level names that hold programs and libraries (hier(7)).
const TOP: [&str; 8] = ["/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/opt"];

/// Each with the reason: the whole of /etc is never shown, because keys and passwords live there.
const SETTINGS: [&str; 7] = [
    "/etc/alternatives",    // /usr/bin/cc, awk, java … are links through it
    "/etc/ld.so.cache",     // where shared libraries are
    "/etc/ssl/certs",       // public certificates; the keys are in /etc/ssl/private
    "/etc/ca-certificates", // the same on other distributions
    "/etc/pki/tls/certs",   // the same on Fedora
    "/etc/java-17-openjdk", // the JVM does not start without its security settings
    "/etc/java-21-openjdk",
];

/// Looks at the host.
pub(crate) fn look() -> System {
    let mut system = System::default();
    for path in TOP.map(Path::new) {
        match fs::read_link(path) {
            Ok(target) => system.links.push((path.to_owned(), target)),
            Err(_) if path.is_dir() && path != Path::new("/opt") => system.folders.push(path.to_owned()),
            Err(_) => {}
        }
    }
    system.settings = SETTINGS.iter().map(PathBuf::from).filter(|path| path.exists()).collect();
    system
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_host_has_a_usr_and_no_secret_is_among_the_settings() {
        let system = look();
        assert!(system.folders.contains(&PathBuf::from("/usr")));
        let secret = ["shadow", "private", "ssh", "sudoers", "machine-id"];
        assert!(system.settings.iter().all(|path| !secret.iter().any(|word| path.ends_with(word))));
    }
}
