//! Makes a sandbox trust its broker's authority: certificate files, and variables for programs that read none. Pure.

use super::network::NetworkMode;
use super::options::Options;
pub(super) use crate::egress::trust::FOLDER;
use crate::egress::trust::{BUNDLE, BUNDLES, OWN, VARIABLES};
use crate::egress::{Broker, Trust};
use crate::spec::root::HiddenFiles;
use crate::spec::root::{Attributes, Change, Owner, Shown, Step};
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

const CHANGES: &str = "certificates";

/// Java's stores: of distributions, and below the folder of a bundled Java.
const JAVA: [&str; 2] = ["/etc/ssl/certs/java/cacerts", "/etc/pki/java/cacerts"];
const JAVA_BELOW: [&str; 2] = ["lib/security/cacerts", "jre/lib/security/cacerts"];

/// The steps change a copy-on-write view of the host's folder, and freeze it.
///
/// `owns_all`: whether the view can replace files of the machine's root. An ordinary user's cannot change Java's
/// folder, so another one replaces it.
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
            hidden: HiddenFiles::default(),
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

/// Changes existing files in a root with its own certificates.
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

/// The authority alone, and under OpenSSL's name in a folder.
fn own(trust: &Trust) -> impl Iterator<Item = Step> {
    let names = [Some(OWN.to_owned()), trust.hashed.clone()].into_iter().flatten();
    names.map(|name| Step::File { at: Path::new(FOLDER).join(name), content: trust.authority.clone(), mode: 0o644 })
}

/// All with a broker; with the host's bundle alone only those for it.
pub(super) fn variables(has_broker: bool, has_bundle: bool) -> impl Iterator<Item = (OsString, OsString)> {
    let is_set = move |(_, file): &(&str, &str)| has_broker || has_bundle && *file == BUNDLE;
    VARIABLES.into_iter().filter(is_set).map(|(name, file)| (name.into(), Path::new(FOLDER).join(file).into()))
}

/// The host's certificates, for a sandbox with a network.
pub(super) fn shown_bundle(options: &Options) -> Option<PathBuf> {
    let is_shown = options.image.is_none() && options.rootfs.is_none();
    (is_shown && options.network.mode != NetworkMode::None).then(|| Path::new(FOLDER).join(BUNDLE))
}

/// An image's value would bypass the files.
pub(super) fn is_variable(name: &OsStr) -> bool {
    VARIABLES.iter().any(|(each, _)| *each == name)
}
