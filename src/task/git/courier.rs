//! A courier: git in a separate sandbox, for one job, with a network to one host or none.

use super::GitJob;
use super::captured::Captured;
use super::reach::{Reach, meaning, meaning_here, meaning_of_silence};
use super::remote::RemoteHost;
use crate::error::{Error, Kind, Result, Step};
use crate::files::{self, Contents};
use crate::host::is_off;
use crate::sandbox::{self, Audience, Ledger, Options, Outcome, Remains, Report, Site, Stopped};
use crate::task::redact::SHORTEST;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use zeroize::Zeroizing;

/// Against a hostile repository, as `-c`: the repository cannot override them.
const SAFE: [&str; 15] = [
    "safe.directory=*",          // the source belongs to another user
    "core.hooksPath=/dev/null",  // no hook of a template
    "core.fsmonitor=false",      // a program by configuration
    "protocol.allow=never",      // no transport but those that are named below
    "transfer.fsckObjects=true", // refuses malformed objects (CVE-2014-9390 and others)
    "fetch.unpackLimit=1",       // what comes is one file, which can be bounded
    "submodule.recurse=false",   // no second repository
    "fetch.recurseSubmodules=false",
    "advice.detachedHead=false",
    "gc.auto=0", // nothing in the background
    "maintenance.auto=false",
    "core.askPass=true", // a user cannot be asked
    "http.followRedirects=initial",
    "lfs.transfer.maxRetries=2", // default: eight, with growing pauses
    "lfs.locksVerify=false",
];

/// git ends at the first signal. After a limit no time is left anyway.
const GRACE: Duration = Duration::from_secs(2);

pub(super) type Collect<'run> = dyn FnMut(Remains<'_>) -> Result<()> + 'run;

pub(super) struct Answer {
    pub outcome: Outcome,
    pub output: String,
    /// Standard error, in one line.
    pub words: String,
    pub egress: Option<Ledger>,
}

pub(super) struct Courier<'run> {
    errand: &'run GitJob<'run>,
    options: Options,
    settings: Vec<String>,
    far: Option<&'run RemoteHost>,
    /// Secrets to hide in all output.
    hidden: Vec<Zeroizing<String>>,
    growth: Option<Growth>,
}

impl<'run> Courier<'run> {
    /// In the script, `git "$@"` is git with [`SAFE`]. The working directory is empty.
    pub(super) fn new(errand: &'run GitJob<'run>, script: &str) -> Courier<'run> {
        let words = ["sh", "-euc", script, "sh"];
        let mut options = Options::new(words.into_iter().map(OsString::from).collect());
        options.grace = GRACE;
        options.may_degrade = errand.may_degrade.to_vec();
        options.pinned = errand.pinned.clone();
        let quiet = [("GIT_TERMINAL_PROMPT", "0"), ("GIT_CONFIG_NOSYSTEM", "1"), ("GIT_LFS_SKIP_SMUDGE", "1")];
        options.environment = quiet.map(|(name, value)| (name.into(), value.into())).into();
        Courier {
            errand,
            options,
            settings: vec!["protocol.file.allow=always".into()],
            far: None,
            hidden: Vec::new(),
            growth: None,
        }
    }

    /// Shows a host folder, read-only.
    pub(super) fn show(mut self, path: &Path, at: &str) -> Courier<'run> {
        self.options.shown.push((path.to_owned(), at.into()));
        self
    }

    /// Makes a host folder writable for the courier.
    pub(super) fn lend(mut self, path: &Path, at: &str) -> Courier<'run> {
        self.options.lent.push((path.to_owned(), at.into()));
        self
    }

    /// Ends the courier if a folder that it writes grows too large.
    pub(super) fn bound(mut self, growth: Growth) -> Courier<'run> {
        self.growth = Some(growth);
        self
    }

    pub(super) fn with(mut self, name: &str, value: impl Into<OsString>) -> Courier<'run> {
        self.options.environment.push((name.into(), value.into()));
        self
    }

    /// `git init` makes repositories with the hash of this id, whatever this version's default is (git(1),
    /// `GIT_DEFAULT_HASH`).
    pub(super) fn with_hash_of(self, id: &str) -> Courier<'run> {
        self.with("GIT_DEFAULT_HASH", if id.len() == 64 { "sha256" } else { "sha1" })
    }

    pub(super) fn with_portion(self) -> Courier<'run> {
        let options = self.errand.options;
        let depth = options.depth.map(|depth| depth.to_string()).unwrap_or_default();
        self.with("DEPTH", depth).with("FILTER", options.filter.clone().unwrap_or_default())
    }

    /// Allows only this host, with its credentials.
    pub(super) fn reach(mut self, far: &'run RemoteHost) -> Result<Courier<'run>> {
        let errand = self.errand;
        let reach =
            Reach::new(errand.options, errand.resolver, far).doing(|| format!("reach the repository `{}`", far.url))?;
        self.hidden = reach.hidden;
        self.options.network = reach.network;
        self.options.secrets = reach.files;
        self.options.environment.extend(reach.environment);
        self.settings.extend(reach.settings);
        self.far = Some(far);
        Ok(self)
    }

    /// Returns the output. Calls `collect` after a successful end.
    pub(super) fn run(self, collect: Option<&mut Collect<'_>>) -> Result<String> {
        let (far, errand) = (self.far, self.errand);
        let answer = self.ask(collect)?;
        if answer.outcome == Outcome::Succeeded {
            return Ok(answer.output);
        }
        Err(failed(&answer, errand, far))
    }

    /// Like [`Courier::run`], for exit codes that carry a result. An error means that the courier could not run.
    pub(super) fn ask(mut self, collect: Option<&mut Collect<'_>>) -> Result<Answer> {
        self.options.limits = self.errand.budget.limits()?;
        let safe = SAFE.map(str::to_owned);
        let settings = safe.iter().chain(&self.settings).flat_map(|setting| ["-c", setting]).map(OsString::from);
        self.options.command.extend(settings);
        let errand = self.errand;
        let mut must_end = || {
            let mut is_over = || self.growth.as_mut().is_some_and(Growth::is_over).then_some(Stopped::Disk);
            if errand.is_asked_to_end() { Some(Stopped::Cancelled) } else { is_over() }
        };
        let mut output = Captured::new(self.errand.progress, &mut must_end);
        let mut paths = self.errand.store.host_paths(self.errand.id);
        paths.id = format!("{}-git", self.errand.id);
        // The stage covers its mount point, and couriers see parts of the task's own directory.
        let mut nothing = |_: Remains<'_>| Ok(());
        let site = Site { paths, volumes: Vec::new(), forward_input: false, open_input: false, progress: None };
        let audience = Audience { sink: &mut output, control: None, collect: collect.unwrap_or(&mut nothing) };
        let report: Report = sandbox::run(&self.options, site, audience)?;
        let redactor = self.errand.redactor;
        if let Some(ledger) = report.egress.clone() {
            self.errand.account.borrow_mut().get_or_insert_default().add(ledger);
        }
        if report.outcome == Outcome::Cancelled {
            self.errand.budget.cancel();
        }
        self.errand.budget.count(&report.usage);
        if let Some(error) = report.error {
            return Err(error);
        }
        let mut words = one_line(&String::from_utf8_lossy(&output.error));
        for value in self.hidden.iter().filter(|value| value.len() >= SHORTEST) {
            words = words.replace(value.as_str(), "[redacted:git-credential]");
        }
        Ok(Answer {
            outcome: report.outcome,
            output: String::from_utf8_lossy(&output.output).into_owned(),
            words: redactor.text(&words),
            egress: report.egress,
        })
    }
}

/// Without control characters.
fn one_line(text: &str) -> String {
    // git always adds this, for users at a terminal.
    const ADVICE: [&str; 3] = [
        "Please make sure you have the correct access rights",
        "and the repository exists.",
        "fatal: Could not read from remote repository.",
    ];
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !ADVICE.contains(line));
    let lines: Vec<_> = lines.collect();
    let quotes = |letter: char| letter == '\'' || letter == '"';
    let escape = |letter: char| if quotes(letter) { letter.to_string() } else { letter.escape_debug().to_string() };
    lines.join("; ").chars().map(escape).collect()
}

pub(super) fn failed(answer: &Answer, errand: &GitJob<'_>, far: Option<&RemoteHost>) -> Error {
    if matches!(answer.outcome, Outcome::Timeout | Outcome::CpuTime | Outcome::Memory) {
        return errand.budget.reached(&answer.outcome);
    }
    let known = far.and_then(|far| meaning(far, errand.options, &answer.words, answer.egress.as_ref()));
    let known = known.or_else(|| meaning_here(&answer.words));
    // A limit tells nothing about the host.
    let is_silent = answer.words.is_empty() && matches!(answer.outcome, Outcome::Failed { .. });
    let known = known.or_else(|| far.filter(|_| is_silent).and_then(meaning_of_silence));
    if let Some((why, hint)) = known {
        return Error::new(Kind::Workspace, format!("{why}: {}", answer.words)).hint(hint);
    }
    let hint = if answer.words.contains("fsck") || answer.words.contains("malformed") {
        "see what `git fsck` finds in the repository"
    } else {
        "see that the repository and the reference exist, and that the credential may use them"
    };
    Error::new(Kind::Workspace, format!("git ended with `{}`: {}", answer.outcome.word(), answer.words)).hint(hint)
}

/// The least time between two measurements.
const PAUSE: Duration = Duration::from_millis(500);
/// A measurement takes at most this part of the time.
const SHARE: u32 = 20;

/// Bounds a folder of the store while a courier writes to it. `ulimit -f` bounds one file, and a remote decides how many
/// there are. So the supervisor measures the folder at intervals. The disk's speed bounds the growth in between.
pub(super) struct Growth {
    folder: PathBuf,
    most: Contents,
    next: Instant,
}

impl Growth {
    pub(super) fn new(folder: &Path, most: Contents) -> Growth {
        Growth { folder: folder.to_owned(), most, next: Instant::now() }
    }

    /// Measures only when the interval is over.
    pub(super) fn is_over(&mut self) -> bool {
        let began = Instant::now();
        if began < self.next || is_off("courier-growth") {
            return false;
        }
        // After the courier's end the folder is measured again.
        let is_over = files::contents(&self.folder).is_ok_and(|found| exceeds(&found, &self.most));
        self.next = Instant::now() + PAUSE.max(SHARE * began.elapsed());
        is_over
    }
}

pub(super) fn exceeds(found: &Contents, most: &Contents) -> bool {
    found.entries > most.entries || found.bytes > most.bytes || found.depth > most.depth
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_bytes_and_levels_are_bounded() {
        let most = Contents { entries: 3, bytes: 1 << 20, depth: 2 };
        let check = |make: &dyn Fn(&Path), expected: bool| {
            let folder = tempfile::tempdir().unwrap();
            make(folder.path());
            assert_eq!(Growth::new(folder.path(), most).is_over(), expected);
        };
        check(&|_| {}, false);
        check(&|folder| (0..3).for_each(|number| std::fs::write(folder.join(number.to_string()), "x").unwrap()), false);
        check(&|folder| (0..4).for_each(|number| std::fs::write(folder.join(number.to_string()), "").unwrap()), true);
        check(&|folder| std::fs::write(folder.join("large"), vec![b'x'; 2 << 20]).unwrap(), true);
        check(&|folder| std::fs::create_dir_all(folder.join("a/b/c")).unwrap(), true);
    }
}
