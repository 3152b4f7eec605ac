//! How a sandbox gets to trust the authority of its broker: files where programs look for certificates, and variables for those that look nowhere. Pure.

use super::network::NetworkMode;
use super::options::Options;
use crate::egress::{Broker, Trust};
use crate::spec::root::{Attributes, Change, Owner, Shown, Step};
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

/// Where Debian, Alpine, Arch and what is built for them look.
pub(super) const FOLDER: &str = "/etc/ssl/certs";
/// The directory of the scratch file system for what is changed there.
const CHANGES: &str = "certificates";
const BUNDLE: &str = "ca-certificates.crt";
const OWN: &str = "brig.pem";

/// Where others look; what a root has of them is changed.
const BUNDLES: [&str; 3] = [
    "/etc/pki/tls/certs/ca-bundle.crt",     // Fedora, RHEL, Amazon Linux
    "/etc/ssl/ca-bundle.pem",               // openSUSE
    "/usr/local/share/certs/ca-bundle.crt", // curl and git built elsewhere
];
/// Stores of Java's: of the distributions, and below the folder of a Java that brings its own.
const JAVA: [&str; 2] = ["/etc/ssl/certs/java/cacerts", "/etc/pki/java/cacerts"];
const JAVA_BELOW: [&str; 2] = ["lib/security/cacerts", "jre/lib/security/cacerts"];

/// Programs that bring certificates of their own, and the variable by which each takes others: a file below the folder.
const VARIABLES: [(&str, &str); 3] = [
    ("SSL_CERT_FILE", BUNDLE),      // OpenSSL built elsewhere, Go, rustls, uv
    ("REQUESTS_CA_BUNDLE", BUNDLE), // Python's requests and pip
    ("NODE_EXTRA_CA_CERTS", OWN),   // Node adds it to its own
];

/// The steps that make the files, in the host's folder shown copy-on-write, and frozen again.
///
/// `owns_all` says whether files of the machine's root can be replaced in the copy: an ordinary user's view has no power over the folder of Java's,
/// and another is put in its place.
pub(super) fn in_host(broker: &Broker, has_folder: bool, owns_all: bool) -> Vec<Step> {
    let folder = Path::new(FOLDER);
    let trust = trust(broker);
    let mut steps = Vec::new();
    if has_folder {
        steps.push(Step::Overlay {
            lower: folder.to_owned(),
            changes: CHANGES,
            at: folder.to_owned(),
            attributes: Attributes::WRITABLE,
            shown: Shown::Inside,
        });
    }
    let file = |name: &str, content: Vec<u8>| Step::File { at: folder.join(name), content, mode: 0o644 };
    steps.push(file(BUNDLE, trust.bundle()));
    steps.extend(own(&trust));
    if has_folder && folder.join("java/cacerts").exists() {
        let store = trust.java();
        if !owns_all {
            steps.push(Step::Tmpfs {
                at: folder.join("java"),
                bytes: (store.len() as u64).next_multiple_of(4096) + (64 << 10),
                inodes: 8,
                mode: 0o755,
                owner: Owner::Administrator,
                attributes: Attributes::KERNEL,
            });
        }
        steps.push(file("java/cacerts", store));
        if !owns_all {
            steps.push(Step::Freeze { at: folder.join("java"), attributes: Attributes::KERNEL.read_only() });
        }
    }
    if has_folder {
        steps.push(Step::Freeze { at: folder.to_owned(), attributes: Attributes::READ_ONLY });
    }
    steps
}

/// The same in a root that brings its own certificates, which stay: what is there already is changed.
pub(super) fn in_root(broker: &Broker, options: &Options) -> Vec<Step> {
    let trust = trust(broker);
    let of_image = options.image.iter().flat_map(|image| &image.environment);
    let homes = options.environment.iter().chain(of_image).filter(|(name, _)| name == "JAVA_HOME");
    let homes = homes.map(|(_, value)| PathBuf::from(value)).filter(|home| home.is_absolute());
    let of_homes = homes.flat_map(|home| JAVA_BELOW.map(|store| home.join(store)));
    let amend = |at: PathBuf, change, missing| Step::Amend { at, change, missing, mode: 0o644 };
    let append = || Change::Append(trust.authority.clone());
    let mut steps = vec![amend(Path::new(FOLDER).join(BUNDLE), append(), Some(trust.machine.clone()))];
    steps.extend(BUNDLES.map(|at| amend(at.into(), append(), None)));
    let java = trust.java();
    let stores = JAVA.into_iter().map(PathBuf::from).chain(of_homes);
    steps.extend(stores.map(|at| amend(at, Change::Replace(java.clone()), None)));
    steps.extend(own(&trust));
    steps
}

fn trust(broker: &Broker) -> Trust {
    Trust::new(&broker.certificate, broker.roots.as_deref().map(Vec::as_slice))
}

/// The authority alone, and as OpenSSL finds it in a folder.
fn own(trust: &Trust) -> impl Iterator<Item = Step> {
    let names = [Some(OWN.to_owned()), trust.hashed.clone()].into_iter().flatten();
    names.map(|name| Step::File { at: Path::new(FOLDER).join(name), content: trust.authority.clone(), mode: 0o644 })
}

/// The variables: all with a broker, and with the host's bundle alone those that name it.
pub(super) fn variables(has_broker: bool, has_bundle: bool) -> impl Iterator<Item = (OsString, OsString)> {
    let is_set = move |(_, file): &(&str, &str)| has_broker || has_bundle && *file == BUNDLE;
    VARIABLES.into_iter().filter(is_set).map(|(name, file)| (name.into(), Path::new(FOLDER).join(file).into()))
}

/// The host's certificates, where a sandbox with a network is shown them.
pub(super) fn shown_bundle(options: &Options) -> Option<PathBuf> {
    let is_shown = options.image.is_none() && options.rootfs.is_none();
    (is_shown && options.network.mode != NetworkMode::None).then(|| Path::new(FOLDER).join(BUNDLE))
}

/// Whether a variable is one of them: what an image says there would lead past the files.
pub(super) fn is_variable(name: &OsStr) -> bool {
    VARIABLES.iter().any(|(each, _)| *each == name)
}
