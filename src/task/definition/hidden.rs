//! Files that a sandbox does not show (`--hide`, `.brigignore`), and a note about credentials that it does show.

use super::{Definition, WorkspaceSource};
use crate::error::{Context, Error, Kind, Result, Step};
use crate::files::{Bounds, DIRECTORY, HiddenMatcher, Names, Walk, WalkStep};
use crate::sandbox::{Backend, Options, also_shows};
use rustix::fs::{CWD, FileType, Mode, OFlags, fstat, openat};
use rustix::io::Errno;
use std::ffi::OsStr;
use std::fs::File;
use std::io::Read;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

const FILE: &str = ".brigignore";
/// Bytes.
const LONGEST: u64 = 1 << 20;
/// The start waits for the walk.
const MOST: usize = 500;
/// The deepest names are those in `config/deploy/`.
const DEEPEST: usize = 3;
const NAMED: usize = 3;

/// Files that usually have passwords, tokens or private keys. Plain comparisons: compiled patterns would take half a
/// millisecond of each start.
const CREDENTIALS: [&str; 17] = [
    ".env",
    ".envrc",
    ".netrc",
    ".npmrc",
    ".pypirc",
    ".pgpass",
    ".my.cnf",
    ".git-credentials",
    ".htpasswd",
    ".dockercfg",
    ".vault-token",
    "kubeconfig",
    "credentials.json",
    "id_rsa",
    "id_dsa",
    "id_ecdsa",
    "id_ed25519",
];
const IN_FOLDERS: [(&str, &str); 3] = [(".docker", "config.json"), (".aws", "credentials"), (".kube", "config")];
const ENDINGS: [&str; 5] = [".key", ".p12", ".pfx", ".jks", ".kdbx"];
const FOLDERS: [&str; 2] = [".ssh", ".gnupg"];
/// Exceptions from `.env.*`.
const EXAMPLES: [&str; 4] = [".env.example", ".env.sample", ".env.template", ".env.dist"];
/// Folders with many names and no credentials of the user's.
const PASSED: [&str; 2] = [".git", "node_modules"];

fn has_credentials(path: &Path, is_directory: bool) -> bool {
    let text = |name: Option<&OsStr>| name.and_then(OsStr::to_str).map(str::to_owned);
    let Some(name) = text(path.file_name()) else { return false };
    if is_directory {
        return FOLDERS.contains(&name.as_str());
    }
    let folder = text(path.parent().and_then(Path::file_name)).unwrap_or_default();
    CREDENTIALS.contains(&name.as_str())
        || IN_FOLDERS.contains(&(folder.as_str(), name.as_str()))
        || ENDINGS.iter().any(|ending| name.ends_with(ending))
        || name.starts_with(".env.") && !EXAMPLES.contains(&name.as_str())
        || name.starts_with("service-account") && name.ends_with(".json")
}

/// Adds the folder's own list to the options. Refuses a list that would not hold.
pub(crate) fn complete(definition: &Definition, options: &mut Options) -> Result<()> {
    let WorkspaceSource::Directory(path) = &definition.workspace else {
        return match options.hidden.is_empty() {
            true => Ok(()),
            false => Err(Error::new(Kind::Usage, "--hide is about a folder, and the task works on none")
                .hint("name one with --dir, or leave --hide out")),
        };
    };
    let folder = openat(CWD, options.pinned.path(path), DIRECTORY.difference(OFlags::NOFOLLOW), Mode::empty())
        .failing(Kind::Workspace, || format!("open the folder `{}`", path.display()))
        .hint(|| "name a folder that exists")?;
    options.hidden.lines = read(folder.as_fd()).doing(|| format!("read `{}`", path.join(FILE).display()))?;
    if options.hidden.is_empty() {
        return Ok(());
    }
    HiddenMatcher::new(&options.hidden.flags, &options.hidden.lines)?;
    if options.backend == Backend::Local {
        return Err(Error::new(Kind::Backend, "the backend `local` has no way to hide files")
            .hint("leave --hide out, or use the backend native"));
    }
    let real = std::fs::canonicalize(options.pinned.path(path)).unwrap_or_else(|_| path.clone());
    match also_shows(options, &real) {
        None => Ok(()),
        Some(place) => Err(Error::new(Kind::Usage, format!("the sandbox shows its files at {place} too"))
            .doing(format!("hide files of `{}`", path.display()))
            .hint("leave that out, or work on a folder that is not in it")),
    }
}

/// A link or an unreadable list is an error.
fn read(folder: BorrowedFd<'_>) -> Result<Vec<String>> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = match openat(folder, FILE, flags, Mode::empty()) {
        Err(Errno::NOENT) => return Ok(Vec::new()),
        other => {
            other.map_err(|errno| Error::os(Kind::Workspace, errno).hint("make it a readable file, not a link"))?
        }
    };
    let status = fstat(&file).failing(Kind::Workspace, || "look at it")?;
    if FileType::from_raw_mode(status.st_mode) != FileType::RegularFile || status.st_size as u64 > LONGEST {
        return Err(Error::new(Kind::Workspace, format!("it is not a file of at most {LONGEST} bytes"))
            .hint("write one pattern a line, as in .gitignore"));
    }
    let mut text = String::new();
    File::from(file).take(LONGEST).read_to_string(&mut text).failing(Kind::Workspace, || "read its lines")?;
    Ok(text.trim_start_matches('\u{feff}').lines().map(str::to_owned).collect())
}

pub(crate) fn note(definition: &Definition, options: &Options) -> Option<String> {
    let WorkspaceSource::Directory(path) = &definition.workspace else { return None };
    let flags = DIRECTORY.difference(OFlags::NOFOLLOW);
    let folder = openat(CWD, options.pinned.path(path), flags, Mode::empty()).ok()?;
    let found = shown_credentials(folder, &HiddenMatcher::new(&options.hidden.flags, &options.hidden.lines).ok()?);
    let names: Vec<_> =
        found.iter().take(NAMED).map(|path| format!("`{}`", path.display().to_string().escape_debug())).collect();
    let more = match found.len().saturating_sub(NAMED) {
        0 => String::new(),
        count => format!(" and {count} more"),
    };
    let first = found.first()?.file_name()?.to_string_lossy().into_owned();
    Some(format!(
        "the agent can read {}{more}: to hide a file use --hide '{}', or {FILE} in the folder",
        names.join(", "),
        first.escape_debug()
    ))
}

fn shown_credentials(folder: OwnedFd, hidden: &HiddenMatcher) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let bounds = Bounds { entries: MOST, depth: DEEPEST, end: None };
    let mut walk = Walk::new(bounds);
    let mut names = Names::default();
    let entered = walk.list(&folder, &mut names).is_ok();
    if !entered || walk.enter([Some(folder)], names, PathBuf::new()).is_err() {
        return found;
    }
    // An unreadable folder or too many names end the walk: the note is advice.
    while let Ok(Some(next)) = walk.next() {
        let WalkStep::Entry(kind) = next else { continue };
        let name = Path::new(OsStr::from_bytes(walk.name().to_bytes()));
        let Some(path) = walk.state().map(|above: &PathBuf| above.join(name)) else { break };
        let is_directory = kind == FileType::Directory;
        if hidden.hides(&path, is_directory) {
            continue;
        }
        if has_credentials(&path, is_directory) && kind != FileType::Symlink {
            found.push(path);
        } else if is_directory
            && !PASSED.iter().any(|each| name == Path::new(each))
            && !walk.is_deepest()
            && walk.descend(path).is_err()
        {
            continue;
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lab() -> (tempfile::TempDir, Definition) {
        let lab = tempfile::tempdir().unwrap();
        let mut definition = Definition::new(vec!["true".into()]);
        definition.workspace = WorkspaceSource::Directory(lab.path().to_owned());
        (lab, definition)
    }

    #[test]
    fn a_list_that_would_not_hold_is_refused() {
        let (lab, mut definition) = lab();
        let check = |definition: &Definition| {
            let mut options = definition.sandbox.clone();
            complete(definition, &mut options).map(|()| options.hidden)
        };
        assert!(check(&definition).unwrap().is_empty());
        std::fs::write(lab.path().join(FILE), "# ours\n.env\n").unwrap();
        definition.sandbox.hidden.flags.push("*.pem".to_owned());
        assert_eq!(check(&definition).unwrap().lines, ["# ours", ".env"]);
        let refused = |definition: &Definition, words: &str| {
            let error = check(definition).unwrap_err().to_string();
            assert!(error.contains(words), "{error}");
        };
        let inside = lab.path().join("inside");
        std::fs::create_dir(&inside).unwrap();
        for source in [lab.path(), lab.path().parent().unwrap(), &inside] {
            let mut definition = definition.clone();
            definition.sandbox.mounts = vec![format!("{}:/x", source.display()).parse().unwrap()];
            refused(&definition, "at `/x` too");
        }
        let mut other = definition.clone();
        other.sandbox.rootfs = Some(lab.path().parent().unwrap().to_owned());
        refused(&other, "root file system");
        other = definition.clone();
        other.sandbox.backend = crate::sandbox::Backend::Local;
        refused(&other, "`local`");
        other = definition.clone();
        other.workspace = WorkspaceSource::Empty;
        refused(&other, "works on none");
        std::fs::write(lab.path().join(FILE), "[z-a]\n").unwrap();
        refused(&definition, "pattern 1");
        std::fs::remove_file(lab.path().join(FILE)).unwrap();
        std::os::unix::fs::symlink("/dev/null", lab.path().join(FILE)).unwrap();
        refused(&definition, FILE);
    }

    #[test]
    fn files_with_credentials_are_named_unless_they_are_hidden() {
        let (lab, definition) = lab();
        let mut options = definition.sandbox.clone();
        assert_eq!(note(&definition, &options), None);
        for name in [".env.example", "src/main.rs", "monkey", "x.pem.txt"] {
            std::fs::create_dir_all(lab.path().join(name).parent().unwrap()).unwrap();
            std::fs::write(lab.path().join(name), "").unwrap();
        }
        assert_eq!(note(&definition, &options), None);
        std::fs::create_dir_all(lab.path().join("config/.ssh")).unwrap();
        for name in [".env", ".env.local", "config/server.key", "config/.ssh/known_hosts"] {
            std::fs::write(lab.path().join(name), "").unwrap();
        }
        let words = note(&definition, &options).unwrap();
        assert!(words.contains("`.env`") && words.contains("and 1 more") && words.contains("--hide"), "{words}");
        options.hidden.flags = [".env*", "config/"].map(str::to_owned).to_vec();
        assert_eq!(note(&definition, &options), None);
    }
}
