//! A repository as a workspace: checked out once for each commit, in a sandbox, and then only shown copy-on-write.
//!
//! A repository is hostile input. git never reads it on the host: a courier sandbox without network sees it read-only, resolves the reference,
//! and clones it with hooks, submodules and unusual protocols off. What comes out is copied by descriptors.

use super::log::{Log, Manner};
use super::pipeline::{Watcher, place};
use super::secrets::Held;
use super::store::Store;
use crate::error::{Error, Kind, Result, Step};
use crate::files::{self, Lock};
use crate::sandbox::{self, Options, Outcome, Report, Site};
use std::ffi::OsString;
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};

/// A checkout that no agent ever writes.
pub(super) struct Base {
    pub path: PathBuf,
    pub commit: String,
}

/// Where the courier sees the repository.
const SOURCE: &str = "/source";

/// What git must not do with a hostile repository; as `-c` so that nothing in the repository overrides it.
const SAFE: [&str; 8] = [
    "safe.directory=*",           // the source belongs to somebody else
    "core.hooksPath=/dev/null",   // no hook of a template
    "core.fsmonitor=false",       // a program by configuration
    "protocol.allow=never",       // no transport …
    "protocol.file.allow=always", // … but the local one
    "transfer.fsckObjects=true",  // malformed objects (CVE-2014-9390 and its kin) are refused
    "submodule.recurse=false",    // no second repository
    "advice.detachedHead=false",
];

/// The local path of a repository's URL. Anything that needs a network is refused here, by name.
pub(super) fn local_path(url: &str) -> Result<PathBuf> {
    let path = match url.split_once("://") {
        Some(("file", path)) => PathBuf::from(path),
        Some((scheme, _)) => {
            return Err(Error::new(
                Kind::Workspace,
                format!("`{scheme}` repositories need a network, and this version clones only local ones"),
            )
            .doing(format!("use the repository `{url}`"))
            .hint("clone it first and give its path, or a file:// URL"));
        }
        None => PathBuf::from(url),
    };
    let path = std::fs::canonicalize(&path).map_err(|cause| {
        Error::os(Kind::Workspace, cause)
            .doing(format!("open the repository `{url}`"))
            .hint("name a git repository that exists")
    })?;
    let bare = path.join("objects").is_dir() && path.join("HEAD").exists();
    if bare || path.join(".git").exists() {
        return Ok(path);
    }
    Err(Error::new(Kind::Workspace, "it is no git repository")
        .doing(format!("open the repository `{url}`"))
        .hint("name the folder that has `.git` in it; a plain folder goes with --dir"))
}

/// The checkout of a reference, made now or long ago.
pub(super) fn base(
    store: &Store,
    id: &str,
    url: &str,
    reference: Option<&str>,
    may_degrade: &[String],
) -> Result<Base> {
    let path = local_path(url)?;
    let reference = reference.unwrap_or("HEAD");
    if reference.starts_with('-') {
        return Err(Error::new(Kind::Usage, format!("`{reference}` is no name of a commit"))
            .hint("give a branch, a tag or a commit"));
    }
    let courier = Courier { store, id, source: &path, may_degrade };
    let resolved = courier
        .git(&["rev-parse", "--verify", "--end-of-options", &format!("{reference}^{{commit}}")], None)
        .doing(|| format!("find `{reference}` in the repository `{url}`"))?;
    let commit = resolved.trim().to_owned();
    if commit.len() < 40 || !commit.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return Err(Error::new(Kind::Workspace, "git gave no commit")
            .doing(format!("find `{reference}` in the repository `{url}`")));
    }
    let bases = store.bases();
    files::create_directories(&bases, 0o700)?;
    let _lock = Lock::wait(&bases.join(".lock"))?;
    let finished = bases.join(format!("{}-{commit}", name_of(&path)));
    if !finished.exists() {
        let unfinished = store.unfinished_base(id);
        let cloned = courier.clone_to(&commit, &unfinished).doing(|| format!("clone the repository `{url}`"));
        let named = cloned.and_then(|()| {
            std::fs::rename(&unfinished, &finished)
                .map_err(|cause| files::failed(cause, "keep the checkout".to_owned()))
        });
        if named.is_err() {
            // Already failing; what is left here is not seen as a checkout by anyone.
            let _ = std::fs::remove_dir_all(&unfinished);
        }
        named?;
    }
    Ok(Base { path: finished, commit })
}

/// A readable and unique name for a source path.
fn name_of(path: &Path) -> String {
    use std::hash::{DefaultHasher, Hash, Hasher};
    let mut hasher = DefaultHasher::new();
    path.hash(&mut hasher);
    let last = path.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned());
    let plain: String = last.chars().filter(|character| character.is_ascii_alphanumeric()).take(32).collect();
    format!("{plain}-{:016x}", hasher.finish())
}

/// Takes what a courier made out of its scratch file system.
type Collect<'run> = dyn FnMut(BorrowedFd<'_>) -> Result<()> + 'run;

struct Courier<'run> {
    store: &'run Store,
    id: &'run str,
    source: &'run Path,
    may_degrade: &'run [String],
}

impl Courier<'_> {
    fn clone_to(&self, commit: &str, target: &Path) -> Result<()> {
        // Full history, so that the agent can read it; not a link to the source's objects, which the agent could then break.
        // The other side of the clone is a git of its own, which `-c` does not reach.
        let script = "printf '[safe]\n\tdirectory = *\n' > ~/.gitconfig && git \"$@\" clone --quiet --no-local --no-checkout --template= /source . && git \"$@\" checkout --quiet --detach \"$COMMIT\" && git \"$@\" remote remove origin";
        let mut collect = |scratch: BorrowedFd<'_>| super::tree::copy(scratch, Path::new(sandbox::FILES), target);
        self.run(script, &[], commit, Some(&mut collect)).map(|_| ())
    }

    fn git(&self, arguments: &[&str], _none: Option<()>) -> Result<String> {
        self.run("git \"$@\"", arguments, "", None)
    }

    fn run(&self, script: &str, arguments: &[&str], commit: &str, collect: Option<&mut Collect<'_>>) -> Result<String> {
        let safe = SAFE.iter().flat_map(|setting| ["-c", setting]);
        let place_flag = if collect.is_some() { vec![] } else { vec!["-C", SOURCE] };
        let words =
            ["sh", "-euc", script, "sh"].into_iter().chain(safe).chain(place_flag).chain(arguments.iter().copied());
        let mut options = Options::new(words.map(OsString::from).collect());
        options.environment.push(("COMMIT".into(), commit.into()));
        options.shown.push((self.source.to_owned(), SOURCE.into()));
        options.may_degrade = self.may_degrade.to_vec();
        let mut output = Captured::default();
        let mut nothing = |_: BorrowedFd<'_>| Ok(());
        let collect = collect.unwrap_or(&mut nothing);
        let mut held = Held::none();
        let mut log = Log::create(&self.store.task(self.id), self.id, Manner::default(), &mut output, &mut held)?;
        let mut courier_place = place(self.store, self.id);
        courier_place.id = format!("{}-git", self.id);
        let report = sandbox::run(
            &options,
            Site {
                place: courier_place,
                sink: &mut log,
                forward_input: false,
                open_input: false,
                progress: None,
                control: None,
                collect,
            },
        )?;
        drop(log);
        check(report, &output)?;
        Ok(String::from_utf8_lossy(&output.output).into_owned())
    }
}

fn check(report: Report, output: &Captured) -> Result<()> {
    if report.outcome == Outcome::Succeeded {
        return Ok(());
    }
    if let Some(error) = report.error {
        return Err(error);
    }
    let words = String::from_utf8_lossy(&output.error).trim().replace('\n', "; ").escape_debug().to_string();
    Err(Error::new(Kind::Workspace, format!("git ended with `{}`: {words}", report.outcome.word()))
        .hint("see whether `git fsck` in the repository finds something wrong"))
}

/// A courier's output, kept to be read; it is short.
#[derive(Default)]
struct Captured {
    output: Vec<u8>,
    error: Vec<u8>,
}

/// More than any answer of git that we ask for.
const ENOUGH: usize = 64 * 1024;

impl Watcher for Captured {
    fn began(&mut self, _: &str) {}

    fn output(&mut self, error: bool, bytes: &[u8]) {
        let kept = if error { &mut self.error } else { &mut self.output };
        let room = ENOUGH.saturating_sub(kept.len());
        kept.extend_from_slice(&bytes[..bytes.len().min(room)]);
    }

    fn gate(&self, _: bool) -> Option<BorrowedFd<'_>> {
        None
    }

    fn forward_input(&self) -> bool {
        false
    }
}
