//! Files of Debian packages of this machine, with all that they need: what a real image is made of, without fetching
//! anything.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

/// What no program needs.
const LEFT_OUT: [&str; 9] = [
    "/usr/share/doc/",
    "/usr/share/man/",
    "/usr/share/locale/",
    "/usr/share/i18n/",
    "/usr/share/info/",
    "/usr/share/lintian/",
    "/usr/share/bug/",
    "/usr/include/",
    "/usr/lib/node_modules/",
];
/// What packages make when they are configured.
const MADE: [&str; 4] = ["/usr/bin/java", "/etc/alternatives/java", "/etc/ssl/certs", "/etc/ssl/certs/java"];

/// The files of the packages and of what they depend on, below `/`, one a line as tar takes them.
pub(super) fn files(names: &[&str]) -> String {
    let mut command = Command::new("dpkg");
    let list = text(command.arg("--listfiles").args(closure(names)));
    let mut paths: BTreeSet<String> = list.lines().map(str::to_owned).collect();
    for made in MADE {
        paths.insert(made.to_owned());
        let entries = std::fs::read_dir(made).into_iter().flatten().flatten();
        paths.extend(entries.map(|entry| entry.path().display().to_string()));
    }
    // Readable files, without directories: unpacking makes the needed ones, also in place of links such as /bin and
    // /lib here.
    let leads_on = |path: &str| {
        let below = format!("{path}/");
        paths.range(below.clone()..).next().is_some_and(|next| next.starts_with(&below))
    };
    let is_wanted = |path: &&String| {
        let kind = std::fs::symlink_metadata(path).map(|found| found.file_type());
        let is_left_out = LEFT_OUT.iter().any(|folder| path.starts_with(folder));
        !is_left_out
            && !leads_on(path)
            && kind.is_ok_and(|kind| kind.is_symlink() || kind.is_file() && std::fs::File::open(path).is_ok())
    };
    paths.iter().filter(is_wanted).map(|path| format!("{}\n", &path[1..])).collect()
}

/// The packages and those that they depend on.
fn closure(names: &[&str]) -> BTreeSet<String> {
    let form = "${Package}|${Provides}|${Pre-Depends}, ${Depends}\n";
    let all = text(Command::new("dpkg-query").args(["--show", "--showformat", form]));
    let mut provided: BTreeMap<&str, &str> = BTreeMap::new();
    let mut wanted: BTreeMap<&str, &str> = BTreeMap::new();
    for line in all.lines() {
        let (package, rest) = line.split_once('|').unwrap();
        let (provides, depends) = rest.split_once('|').unwrap();
        provided.extend(provides.split(',').map(|each| (name_of(each), package)));
        wanted.insert(package, depends);
    }
    let mut found = BTreeSet::new();
    let mut pending: Vec<&str> = names.to_vec();
    while let Some(name) = pending.pop() {
        let package = if wanted.contains_key(name) { Some(name) } else { provided.get(name).copied() };
        let Some(package) = package.filter(|package| !found.contains(*package)) else { continue };
        found.insert(package.to_owned());
        // Of alternatives the first that is installed.
        let there = |name: &&str| wanted.contains_key(name) || provided.contains_key(name);
        pending.extend(wanted[package].split(',').filter_map(|all| all.split('|').map(name_of).find(there)));
    }
    found
}

fn name_of(word: &str) -> &str {
    word.trim().split([' ', ':', '(']).next().unwrap_or_default()
}

#[track_caller]
fn text(command: &mut Command) -> String {
    let done = command.output().unwrap();
    assert!(done.status.success(), "{command:?}: {}", String::from_utf8_lossy(&done.stderr));
    String::from_utf8(done.stdout).unwrap()
}
