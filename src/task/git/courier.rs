//! A courier: git in a sandbox of its own, for one errand, with a network to one host or none.

use super::Errand;
use super::remote::{Far, Scheme};
use crate::error::{Error, Kind, Result, Step};
use crate::sandbox::{self, Audience, Hidden, Options, Outcome, Report, Sink, Site, Stream};
use crate::task::pipeline::place;
use std::ffi::OsString;
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// What git must not do with a hostile repository; as `-c` so that nothing in the repository overrides it.
const SAFE: [&str; 12] = [
    "safe.directory=*",          // the source belongs to somebody else
    "core.hooksPath=/dev/null",  // no hook of a template
    "core.fsmonitor=false",      // a program by configuration
    "protocol.allow=never",      // no transport but those that are named below
    "transfer.fsckObjects=true", // malformed objects (CVE-2014-9390 and its kin) are refused
    "submodule.recurse=false",   // no second repository
    "fetch.recurseSubmodules=false",
    "advice.detachedHead=false",
    "gc.auto=0", // nothing in the background
    "maintenance.auto=false",
    "core.askPass=true", // nobody is there to be asked
    "http.followRedirects=initial",
];

/// Where a courier sees its credentials.
const CREDENTIAL: &str = "git-credential";
const KEY: &str = "ssh-key";
const KNOWN_HOSTS: &str = "known-hosts";

/// Takes what a courier made out of its scratch file system.
pub(super) type Collect<'run> = dyn FnMut(BorrowedFd<'_>) -> Result<()> + 'run;

/// What a courier answered: what it printed, or how it ended otherwise.
pub(super) struct Answer {
    pub outcome: Outcome,
    pub output: String,
    /// What it said on standard error, in one line.
    pub words: String,
}

/// One errand in the making.
pub(super) struct Courier<'run> {
    errand: &'run Errand<'run>,
    options: Options,
    protocols: Vec<String>,
    far: Option<&'run Far>,
}

impl<'run> Courier<'run> {
    /// Runs this script of the shell, in which `git "$@"` is git with everything dangerous off. Its working directory is empty.
    pub(super) fn new(errand: &'run Errand<'run>, script: &str) -> Courier<'run> {
        let words = ["sh", "-euc", script, "sh"];
        let mut options = Options::new(words.into_iter().map(OsString::from).collect());
        options.may_degrade = errand.may_degrade.to_vec();
        options.limits.idle = Duration::from_secs(10 * 60);
        let quiet = [("GIT_TERMINAL_PROMPT", "0"), ("GIT_CONFIG_NOSYSTEM", "1"), ("GIT_LFS_SKIP_SMUDGE", "1")];
        options.environment = quiet.map(|(name, value)| (name.into(), value.into())).into();
        Courier { errand, options, protocols: vec!["protocol.file.allow=always".into()], far: None }
    }

    /// Shows a folder of the host, read-only.
    pub(super) fn show(mut self, path: &Path, at: &str) -> Courier<'run> {
        self.options.shown.push((path.to_owned(), at.into()));
        self
    }

    /// Lets it write a folder of the host.
    pub(super) fn lend(mut self, path: &Path, at: &str) -> Courier<'run> {
        self.options.lent.push((path.to_owned(), at.into()));
        self
    }

    /// Sets a variable.
    pub(super) fn with(mut self, name: &str, value: impl Into<OsString>) -> Courier<'run> {
        self.options.environment.push((name.into(), value.into()));
        self
    }

    /// Lets it reach this host, with the credentials for it.
    pub(super) fn reach(mut self, far: &'run Far) -> Result<Courier<'run>> {
        self.protocols.push(format!("protocol.{}.allow=always", far.scheme.word()));
        network(far)?;
        self.far = Some(far);
        self.credentials(far).doing(|| format!("reach the repository `{}`", far.url))?;
        Ok(self)
    }

    fn credentials(&mut self, far: &Far) -> Result<()> {
        let options = self.errand.options;
        match far.scheme {
            Scheme::Https | Scheme::Http => {
                let Some(source) = &options.credential else { return Ok(()) };
                let value = source.read()?;
                self.errand.redactor.add("git-credential", &value);
                let text = String::from_utf8(value).map_err(|_| Error::new(Kind::Secret, "it is no text"))?;
                // Whoever has a token alone: the hosts that give them out take any user's name.
                let (user, password) = text.split_once(':').unwrap_or(("x-access-token", &text));
                self.errand.redactor.add("git-credential", password.as_bytes());
                if text.contains(['\n', '\r', '\0']) {
                    return Err(Error::new(Kind::Secret, "a credential is one line: `user:password`, or a token"));
                }
                let answer = format!("username={user}\npassword={password}\n");
                self.options.secrets.push((CREDENTIAL.into(), Hidden(answer.into_bytes())));
                let helper = format!("!f() {{ test \"$1\" = get && cat {}/{CREDENTIAL}; }}; f", sandbox::SECRETS);
                self.protocols.extend(["credential.helper=".to_owned(), format!("credential.helper={helper}")]);
            }
            Scheme::Ssh => {
                let mut command =
                    "ssh -F none -o BatchMode=yes -o StrictHostKeyChecking=yes -o GlobalKnownHostsFile=/dev/null"
                        .to_owned();
                command += &format!(" -o UserKnownHostsFile={}/{KNOWN_HOSTS} -o IdentitiesOnly=yes", sandbox::SECRETS);
                self.options.secrets.push((KNOWN_HOSTS.into(), Hidden(self.known_hosts()?)));
                if let Some(source) = &options.ssh_key {
                    let mut key = source.read()?;
                    self.errand.redactor.add("ssh-key", &key);
                    key.push(b'\n'); // without it ssh takes the file for another form
                    self.options.secrets.push((KEY.into(), Hidden(key)));
                    command += &format!(" -i {}/{KEY}", sandbox::SECRETS);
                }
                self.options.environment.push(("GIT_SSH_COMMAND".into(), command.into()));
            }
        }
        Ok(())
    }

    fn known_hosts(&self) -> Result<Vec<u8>> {
        const LONGEST: u64 = 4 << 20;
        let own = || std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".ssh/known_hosts"));
        let path = self.errand.options.known_hosts.clone().or_else(own);
        let hint = "name a file with the host's key: --git-known-hosts FILE (ssh-keyscan makes one; compare it with what the host publishes)";
        let path = path.ok_or_else(|| Error::new(Kind::Secret, "nobody knows the host's key").hint(hint))?;
        crate::files::read_bounded(&path, LONGEST).map_err(|error| error.of_kind(Kind::Secret)).hint(|| hint)
    }

    /// Runs it and returns what it printed. With `collect` its files are looked at when it has ended well.
    pub(super) fn run(self, collect: Option<&mut Collect<'_>>) -> Result<String> {
        let answer = self.ask(collect)?;
        if answer.outcome == Outcome::Succeeded {
            return Ok(answer.output);
        }
        Err(failed(&answer))
    }

    /// The same for a script that says more by its exit code. An error means that it could not be run.
    pub(super) fn ask(mut self, collect: Option<&mut Collect<'_>>) -> Result<Answer> {
        let safe = SAFE.map(str::to_owned);
        let settings = safe.iter().chain(&self.protocols).flat_map(|setting| ["-c", setting]).map(OsString::from);
        self.options.command.extend(settings);
        let mut output = Captured::default();
        let mut place = place(self.errand.store, self.errand.id);
        place.id = format!("{}-git", self.errand.id);
        // The stage covers what it is mounted over, and couriers are shown parts of the task's own directory.
        place.stage = self.errand.store.live();
        let mut nothing = |_: BorrowedFd<'_>| Ok(());
        let site = Site { place, forward_input: false, open_input: false, progress: None };
        let audience = Audience { sink: &mut output, control: None, collect: collect.unwrap_or(&mut nothing) };
        let report: Report = sandbox::run(&self.options, site, audience)?;
        let redactor = self.errand.redactor;
        if let Some(error) = report.error {
            return Err(error);
        }
        let words = String::from_utf8_lossy(&output.error).trim().replace('\n', "; ").escape_debug().to_string();
        Ok(Answer {
            outcome: report.outcome,
            output: String::from_utf8_lossy(&output.output).into_owned(),
            words: redactor.text(&words),
        })
    }
}

/// The error of a courier that ended badly.
pub(super) fn failed(answer: &Answer) -> Error {
    let hint = if answer.words.contains("fsck") || answer.words.contains("malformed") {
        "see what `git fsck` finds in the repository"
    } else {
        "see that the repository and the reference exist, and that the credential may use them"
    };
    Error::new(Kind::Workspace, format!("git ended with `{}`: {}", answer.outcome.word(), answer.words)).hint(hint)
}

/// A courier's output, kept to be read; it is short.
#[derive(Default)]
struct Captured {
    output: Vec<u8>,
    error: Vec<u8>,
}

/// More than any answer of git that we ask for.
const ENOUGH: usize = 64 * 1024;

impl Sink for Captured {
    fn take(&mut self, stream: Stream, bytes: &[u8]) -> Result<()> {
        let kept = if stream == Stream::Error { &mut self.error } else { &mut self.output };
        let room = ENOUGH.saturating_sub(kept.len());
        kept.extend_from_slice(&bytes[..bytes.len().min(room)]);
        Ok(())
    }
}

/// A way to this host alone.
pub(in crate::task) fn network(far: &Far) -> Result<()> {
    Err(Error::new(Kind::Network, "it needs a network, which this version does not give to couriers of git")
        .doing(format!("reach the repository `{}`", far.url))
        .hint("clone it first and give its path"))
}
