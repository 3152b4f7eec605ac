//! A courier's access to a repository's host.
//!
//! A credential is a file in memory that only the courier's user can read. git's helper answers for this host alone, so
//! a redirection does not carry it elsewhere. It is never on an argv, in a variable, or in an agent's sandbox. brig
//! overwrites its copy before it forks the agent's first process.

use super::remote::{RemoteHost, Scheme};
use super::{GitOptions, elsewhere};
use crate::error::{Error, Kind, Result, Step};
use crate::files;
use crate::sandbox::{self, Hidden, Ledger, Network, NetworkMode, Policy};
use crate::task::secrets::Source;
use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use zeroize::Zeroizing;

/// Files below [`sandbox::SECRETS`].
const CREDENTIAL: &str = "git-credential";
const AUTHORITIES: &str = "git-ca";
const KEY: &str = "ssh-key";
const KNOWN_HOSTS: &str = "known-hosts";
/// Bytes; longer than any list of certificates or hosts.
const LONGEST: u64 = 4 << 20;
/// The beginning of an OpenSSH private key with the cipher `none`, so without a passphrase.
const OPEN_KEY: &str = "b3BlbnNzaC1rZXktdjEAAAAABG5vbmU";

pub(super) struct Reach {
    pub network: Network,
    pub files: Vec<(String, Hidden)>,
    pub environment: Vec<(OsString, OsString)>,
    /// For git's `-c`.
    pub settings: Vec<String>,
    /// Values to hide in all output.
    pub hidden: Vec<Zeroizing<String>>,
}

pub(super) fn network(options: &GitOptions, resolver: Option<SocketAddr>, far: &RemoteHost) -> Result<Network> {
    let mut allowed = far.rules(&options.addresses)?;
    if options.lfs {
        allowed.extend(elsewhere::of_lfs(far, &options.elsewhere)?);
    }
    let policy = Policy { allowed, resolver, ..Policy::default() };
    Ok(Network { mode: NetworkMode::Egress, policy, ..Network::default() })
}

/// Runs no command that gives a credential.
pub(super) fn check(options: &GitOptions, far: &RemoteHost) -> Result<()> {
    network(options, None, far)?;
    let used = match far.scheme {
        Scheme::Https | Scheme::Http => {
            options.ca.as_deref().map(authorities).transpose()?;
            &options.credential
        }
        Scheme::Ssh => {
            known_hosts(options)?;
            &options.ssh_key
        }
    };
    match used {
        Some(Source::Command(_)) | None => Ok(()),
        Some(_) => Reach::new(options, None, far).map(|_| ()),
    }
}

impl Reach {
    pub(super) fn new(options: &GitOptions, resolver: Option<SocketAddr>, far: &RemoteHost) -> Result<Reach> {
        let mut reach = Reach {
            network: network(options, resolver, far)?,
            files: Vec::new(),
            environment: Vec::new(),
            settings: vec![format!("protocol.{}.allow=always", far.scheme.word())],
            hidden: Vec::new(),
        };
        match far.scheme {
            Scheme::Https | Scheme::Http => reach.by_http(options, far)?,
            Scheme::Ssh => reach.by_ssh(options)?,
        }
        Ok(reach)
    }

    fn by_http(&mut self, options: &GitOptions, far: &RemoteHost) -> Result<()> {
        // Wait at most two minutes for a silent server.
        self.settings.extend(["http.lowSpeedLimit=1".to_owned(), "http.lowSpeedTime=120".to_owned()]);
        if let Some(path) = &options.ca {
            self.files.push((AUTHORITIES.to_owned(), Hidden(authorities(path)?)));
            self.settings.push(format!("http.sslCAInfo={}/{AUTHORITIES}", sandbox::SECRETS));
            self.settings.push("http.sslCAPath=/tmp".to_owned()); // an empty folder: without the machine's own certificates
        }
        let Some(source) = &options.credential else { return Ok(()) };
        let wrong = || Error::new(Kind::Secret, "a credential is one line: `user:password`, or a token");
        let text = Zeroizing::new(String::from_utf8(source.read()?).map_err(|_| wrong())?);
        if text.chars().any(char::is_control) {
            return Err(wrong());
        }
        // A token without a user: hosts that issue tokens accept any user name.
        let (user, password) = text.split_once(':').unwrap_or(("x-access-token", &text));
        let words = ["username=", user, "\npassword=", password, "\n"];
        let mut answer = String::with_capacity(words.iter().map(|word| word.len()).sum()); // never reallocated
        words.iter().for_each(|word| answer.push_str(word));
        self.files.push((CREDENTIAL.to_owned(), Hidden(answer.into_bytes())));
        self.hidden.push(Zeroizing::new(password.to_owned()));
        let helper = format!("!f() {{ test \"$1\" = get && cat {}/{CREDENTIAL}; }}; f", sandbox::SECRETS);
        let context = format!("credential.{}://{}.helper", far.scheme.word(), far.place());
        self.settings.extend(["credential.helper=".to_owned(), format!("{context}={helper}")]);
        Ok(())
    }

    fn by_ssh(&mut self, options: &GitOptions) -> Result<()> {
        let held = sandbox::SECRETS;
        // No configuration, no question, no forwarding, no unnamed key.
        let mut command = format!(
            "ssh -F none -o BatchMode=yes -o StrictHostKeyChecking=yes -o GlobalKnownHostsFile=/dev/null \
             -o UserKnownHostsFile={held}/{KNOWN_HOSTS} -o UpdateHostKeys=no -o IdentitiesOnly=yes -o IdentityAgent=none \
             -o PasswordAuthentication=no -o KbdInteractiveAuthentication=no -o ClearAllForwardings=yes \
             -o ConnectTimeout=30 -o ServerAliveInterval=30 -o ServerAliveCountMax=4 -o LogLevel=ERROR"
        );
        self.files.push((KNOWN_HOSTS.to_owned(), Hidden(known_hosts(options)?)));
        match &options.ssh_key {
            Some(source) => {
                let value = Zeroizing::new(source.read()?);
                check_key(&value)?;
                let mut key = Vec::with_capacity(value.len() + 1); // never reallocated
                key.extend_from_slice(&value);
                key.push(b'\n'); // ssh needs it to recognise the format
                self.files.push((KEY.to_owned(), Hidden(key)));
                command += &format!(" -i {held}/{KEY}");
            }
            None => command += " -o IdentityFile=none",
        }
        self.environment.push(("GIT_SSH_COMMAND".into(), command.into()));
        self.environment.push(("GIT_SSH_VARIANT".into(), "ssh".into()));
        Ok(())
    }
}

/// ssh must use the key without a question.
fn check_key(key: &[u8]) -> Result<()> {
    let text = String::from_utf8_lossy(key);
    let refuse = |why: &str, hint: &str| Err(Error::new(Kind::Secret, why.to_owned()).hint(hint));
    if !text.trim_start().starts_with("-----BEGIN ") {
        return refuse("it is not a private key", "name the file without `.pub`, as ssh-keygen made it");
    }
    let body = text.lines().map(str::trim).find(|line| !line.starts_with("-----")).unwrap_or_default();
    let is_locked = text.contains("BEGIN ENCRYPTED") || text.contains("Proc-Type: 4,ENCRYPTED");
    if is_locked || text.contains("BEGIN OPENSSH") && !body.starts_with(OPEN_KEY) {
        return refuse(
            "the key is protected by a passphrase, and a courier cannot ask for it",
            "give a deploy key without one, or cmd:COMMAND that prints the key without it",
        );
    }
    Ok(())
}

fn authorities(path: &Path) -> Result<Vec<u8>> {
    let hint = || "name a file of certificates in PEM form: --git-ca FILE";
    let bytes = files::read_bounded(path, LONGEST).map_err(|error| error.of_kind(Kind::Secret)).hint(hint)?;
    if crate::host::has_certificate(&bytes) {
        return Ok(bytes);
    }
    Err(Error::new(Kind::Secret, format!("`{}` has no certificate", path.display())).hint(hint()))
}

pub(crate) fn own_known_hosts() -> Option<PathBuf> {
    std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".ssh/known_hosts"))
}

fn known_hosts(options: &GitOptions) -> Result<Vec<u8>> {
    let hint = || "name a file with the host's key: --git-known-hosts FILE (ssh-keyscan makes one; compare it with what the host publishes)";
    let path = options.known_hosts.clone().or_else(own_known_hosts);
    let path = path.ok_or_else(|| Error::new(Kind::Secret, "the host's key is unknown").hint(hint()))?;
    files::read_bounded(&path, LONGEST).map_err(|error| error.of_kind(Kind::Secret)).hint(hint)
}

const NO_ANSWER: &str = "the host does not answer";
const SEE_PORT: &str = "see that it is up, and that it answers at the port of the URL";

/// From brig's scripts, if git-lfs(1) is missing.
const NO_LFS: (&str, &str, &str) =
    ("git-lfs: not found", "git-lfs is missing on this machine", "install it: git-lfs; or leave --lfs out");

/// From the shell, for a file over `ulimit -f`.
const TOO_LARGE: (&str, &str, &str) = (
    "File size limit exceeded",
    "the repository is larger than a mirror may be",
    "fetch less: --depth N, or --filter blob:none; an old mirror goes with brig task prune --older-than TIME",
);

/// From git, of the alternates of a repository of this machine, which a courier does not see.
const ALTERNATES: (&str, &str, &str) = (
    "unable to normalize alternate object path",
    "the repository has objects of another one, which a courier does not see",
    "copy them into it: git repack -ad, then remove .git/objects/info/alternates",
);

pub(super) fn meaning_here(words: &str) -> Option<(String, String)> {
    let found = [NO_LFS, TOO_LARGE, ALTERNATES].into_iter().find(|(needle, ..)| words.contains(needle));
    found.map(|(_, why, hint)| (why.to_owned(), hint.to_owned()))
}

/// At log level ERROR, ssh does not report a connection that is cut after the server's version line (sshpkt_fatal logs
/// it as information).
pub(super) fn meaning_of_silence(far: &RemoteHost) -> Option<(String, String)> {
    (far.scheme == Scheme::Ssh).then(|| (NO_ANSWER.to_owned(), SEE_PORT.to_owned()))
}

/// From git, curl and ssh, with meaning and advice, the most specific first.
const MEANINGS: [(&str, &str, &str); 23] = [
    (
        "REMOTE HOST IDENTIFICATION HAS CHANGED",
        "the host has another key than the known one, so it may be another host",
        "ask the operator of the host; if the new key is right, put it into the file of --git-known-hosts",
    ),
    (
        "host key is known for",
        "the host's key is unknown",
        "put it into a file for --git-known-hosts (ssh-keyscan makes one; compare it with what the host publishes)",
    ),
    (
        "Host key verification failed",
        "the host's key is not a known one",
        "put it into a file for --git-known-hosts (ssh-keyscan makes one; compare it with what the host publishes)",
    ),
    (
        "Permission denied (",
        "the host does not take the key",
        "see that --git-ssh-key is a key of that account, and that the user in the URL is right",
    ),
    ("error in libcrypto", "the key cannot be read", "give a private key as ssh-keygen makes it"),
    ("cannot run ssh", "ssh is missing on this machine", "install it: openssh-client"),
    ("ssh: not found", "ssh is missing on this machine", "install it: openssh-client"),
    NO_LFS,
    ("git: not found", "git is missing on this machine", "install it: git"),
    (
        "Authentication failed",
        "the remote does not take the credential",
        "see that it is `user:password` or a token, still valid, and for this repository",
    ),
    ("returned error: 403", "the remote forbids that", "see what the credential may do there"),
    (
        "certificate",
        "the host's certificate is not to be trusted",
        "if an authority of your own signed it, name that: --git-ca FILE",
    ),
    (
        "SSL",
        "no safe connection came about",
        "see that the URL's port speaks TLS; if an authority of your own signed its certificate, name that: --git-ca FILE",
    ),
    ("not found", "the repository does not exist, or the credential may not see it", "see the URL and the credential"),
    (
        "does not appear to be a git repository",
        "the repository does not exist, or the key may not see it",
        "see the path in the URL and the key",
    ),
    (
        "Protocol \"",
        "the remote sends to another protocol than the URL's",
        "see the URL, and where the remote sends to",
    ),
    ("redirect", "the remote sends elsewhere", "give the URL that it sends to"),
    ("reset by peer", NO_ANSWER, SEE_PORT),
    ("Failed to connect", NO_ANSWER, SEE_PORT),
    ("Connection refused", NO_ANSWER, SEE_PORT),
    ("Connection closed", NO_ANSWER, SEE_PORT),
    ("timed out", NO_ANSWER, SEE_PORT),
    ("Operation too slow", NO_ANSWER, SEE_PORT),
];

/// Returns meaning and advice; `None` if only git's own message has both.
pub(super) fn meaning(
    far: &RemoteHost,
    options: &GitOptions,
    words: &str,
    egress: Option<&Ledger>,
) -> Option<(String, String)> {
    let denied = || egress.into_iter().flat_map(|ledger| &ledger.rows).filter(|row| !row.allowed);
    if let Some(row) = denied().find(|row| row.host != far.host && !row.rule.contains("leads to")) {
        let host = row.host.escape_debug();
        if options.lfs {
            return Some((
                format!("the remote sends to `{host}`, which is not an allowed location"),
                format!("if it keeps the contents of large files, allow it by name: --git-from {host}"),
            ));
        }
        return Some((
            format!("the remote sends to `{host}`, and a courier reaches `{}` alone", far.place()),
            "if that is right, give the URL that it sends to".to_owned(),
        ));
    }
    if let Some(row) = denied().find(|row| row.rule.contains("leads to")) {
        return Some((
            row.rule.clone(),
            "if that is the repository's own address, name it: --git-address ADDRESS".to_owned(),
        ));
    }
    if let Some(row) = denied().find(|row| row.host == far.host) {
        return Some((row.rule.clone(), "see that the name is right and that it can be resolved here".to_owned()));
    }
    let held = if far.scheme == Scheme::Ssh { &options.ssh_key } else { &options.credential };
    let asks = ["Authentication failed", "could not read Username", "Permission denied ("];
    if held.is_none() && asks.iter().any(|needle| words.contains(needle)) {
        let flag = if far.scheme == Scheme::Ssh { "--git-ssh-key file:PATH" } else { "--git-credential env:VARIABLE" };
        return Some((
            "the remote asks for a credential, and none is given".to_owned(),
            format!("give one: {flag}, or in the `[git]` of a profile"),
        ));
    }
    let found = MEANINGS.iter().find(|(needle, ..)| words.contains(needle));
    found.map(|(_, why, hint)| ((*why).to_owned(), (*hint).to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_of_ssh_that_is_cut_without_a_word_is_a_host_that_does_not_answer() {
        let far = |scheme| RemoteHost { url: String::new(), scheme, host: "a.test".to_owned(), port: 22 };
        let means = |scheme| meaning_of_silence(&far(scheme));
        assert_eq!(means(Scheme::Ssh).unwrap().0, NO_ANSWER);
        assert!(means(Scheme::Https).is_none());
    }

    #[test]
    fn a_key_that_would_ask_for_a_passphrase_is_refused() {
        let check = |key: &str, words: Option<&str>| match (check_key(key.as_bytes()), words) {
            (Ok(()), None) => {}
            (Err(error), Some(words)) => assert!(error.to_string().contains(words), "{error}"),
            (other, _) => panic!("{key}: {other:?}"),
        };
        check("-----BEGIN OPENSSH PRIVATE KEY-----\nb3BlbnNzaC1rZXktdjEAAAAABG5vbmUAAAAEbm9uZQ\n", None);
        check("-----BEGIN RSA PRIVATE KEY-----\nMIIE\n", None);
        check("-----BEGIN OPENSSH PRIVATE KEY-----\nb3BlbnNzaC1rZXktdjEAAAAACmFlczI1Ni1jdHI\n", Some("passphrase"));
        check("-----BEGIN RSA PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\n", Some("passphrase"));
        check("-----BEGIN ENCRYPTED PRIVATE KEY-----\n", Some("passphrase"));
        check("ssh-ed25519 AAAA me@here", Some("not a private key"));
    }
}
