//! `brig task run`: one attempt, from the command line to the exit status.

use super::flags::{LimitFlags, NetworkFlags, of_flag, refuse_idle, set_limits};
use super::image::Pull;
use super::screen::Screen;
use crate::cli::{output, terminal};
use brig::error::{Error, Kind, Result};
use brig::sandbox::Outcome;
use brig::task::{
    Definition, Elsewhere, Keep, PushOptions, PushState, Receipt, Secret, Source, Store, Variable, WorkspaceSource,
};
use clap::Args;
use rustix::termios::isatty;
use std::ffi::OsString;
use std::net::IpAddr;
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

/// Refused artifacts that are told one by one.
const MOST_TOLD: usize = 5;

/// Run a command in a fresh sandbox on a copy-on-write workspace
#[derive(Args)]
#[cfg_attr(test, derive(Debug, PartialEq))]
#[command(after_help = "\
Examples:
  brig task run --dir . -- make test              your folder, never written
  brig task run --dir . --at /src -w tests -- ./run   the folder at /src; the command starts in /src/tests
  brig task run --repo ~/src/app --ref v2 -- ./agent.sh
  brig task run --repo https://github.com/me/app --git-credential env:GH_TOKEN --push-branch agent/fix -- ./agent.sh
  brig task run --repo ~/src/app --push-branch agent/fix -- ./agent.sh
  brig task run --empty --memory 512M --wall 10m -e API_MODE=test -- python3 job.py
  brig task run --image debian:12 --dir . -- make test
  brig task run --secret TOKEN=env:GH_TOKEN --dir . -- sh -c 'login < /run/secrets/TOKEN'
  brig task run --explain --dir .                 what would be in force; runs nothing
  brig task run --dir . --allow api.example.com:443 -- ./agent.sh
  brig task run --json --dir . -- make | jq .outcome
  brig task run --dir . --artifact 'reports/**' --artifacts-dir out -- make report
  id=$(brig task run -d --dir . -- ./agent.sh)    in the background; then: brig task logs -f $id

The exit status is the command's own. A limit or a failure of ours has one of its own:
124 wall or idle time, 137 memory, 152 processor time, 153 output, 130 cancelled, 125 brig,
126 command not executable, 127 command not found.")]
pub(super) struct Arguments {
    /// Work on a folder, copy-on-write: it is never written
    #[arg(long, value_name = "PATH", conflicts_with_all = ["repo", "empty"])]
    dir: Option<PathBuf>,
    /// Where the workspace appears inside [default: a folder at its own path, anything else at /workspace]
    #[arg(long, value_name = "PATH")]
    at: Option<PathBuf>,
    /// Work on a clone of a git repository: a path, https://…, ssh://…, user@host:path or file://…
    #[arg(long, value_name = "PATH|URL", conflicts_with = "empty")]
    repo: Option<String>,
    /// The branch, tag or commit of --repo
    #[arg(long = "ref", value_name = "REF", requires = "repo")]
    reference: Option<String>,
    /// Fetch only this many commits of history
    #[arg(long, value_name = "N", requires = "repo")]
    depth: Option<NonZeroU32>,
    /// Leave the contents of older commits out: blob:none, or blob:limit=SIZE
    #[arg(long, value_name = "FILTER", requires = "repo")]
    filter: Option<String>,
    /// Fetch the submodules of --repo too: those at its own host, and at the places of --git-from
    #[arg(long, requires = "repo")]
    submodules: bool,
    /// Fetch the contents of large files that git LFS keeps elsewhere
    #[arg(long, requires = "repo")]
    lfs: bool,
    /// Where submodules and large files may be besides: a host, host:port, or a folder of this machine for a local --repo (repeat)
    #[arg(long, value_name = "HOST|DIR", requires = "repo")]
    git_from: Vec<String>,
    /// user:password or a token for --repo over https, which the agent never has. SOURCE as in --secret
    #[arg(long, value_name = "SOURCE", requires = "repo")]
    git_credential: Option<String>,
    /// A private key for --repo over ssh, which the agent never has. SOURCE as in --secret
    #[arg(long, value_name = "SOURCE", requires = "repo")]
    git_ssh_key: Option<String>,
    /// The host's key for --repo over ssh [default: ~/.ssh/known_hosts]
    #[arg(long, value_name = "FILE", requires = "repo")]
    git_known_hosts: Option<PathBuf>,
    /// The authorities that sign the certificate of --repo's host, in PEM form [default: this machine's]
    #[arg(long, value_name = "FILE", requires = "repo")]
    git_ca: Option<PathBuf>,
    /// An address that the name of --repo's host may lead to although it is none of the public internet (repeat)
    #[arg(long, value_name = "ADDRESS", requires = "repo")]
    git_address: Vec<IpAddr>,
    /// When the command has succeeded, push its commits to this branch of --repo; fast-forward only
    #[arg(long, value_name = "BRANCH", requires = "repo")]
    push_branch: Option<String>,
    /// Let the branch be the default one of --repo
    #[arg(long, requires = "push_branch")]
    push_default_branch: bool,
    /// Work in an empty folder (the default)
    #[arg(long)]
    empty: bool,
    /// The root file system [default: the host's own system folders, read-only]
    #[arg(long, value_name = "DIR")]
    rootfs: Option<PathBuf>,
    #[command(flatten)]
    image: super::image::Flags,
    /// Read limits and settings from a TOML file, or from NAME.toml in ~/.config/brig; flags go before it
    #[arg(long, value_name = "FILE|NAME")]
    profile: Option<PathBuf>,
    #[command(flatten)]
    network: NetworkFlags,
    /// Set a variable, or pass on the caller's own, which is then hidden in all output
    #[arg(short, long = "env", value_name = "NAME[=VALUE]", help_heading = None)]
    environment: Vec<OsString>,
    /// Give the command a secret as a file /run/secrets/NAME, hidden in all output. SOURCE: env:VARIABLE, file:PATH or cmd:COMMAND
    #[arg(long = "secret", value_name = "NAME=SOURCE", help_heading = None)]
    secrets: Vec<String>,
    #[command(flatten)]
    limits: LimitFlags,
    /// A file of the workspace that comes out, if the command makes or changes it: result.json, reports/**, *.log (repeat)
    #[arg(long = "artifact", value_name = "PATH")]
    artifacts: Vec<String>,
    /// Where to copy artifacts: a folder that is empty or not there yet [default: in the task's record]
    #[arg(long, value_name = "DIR")]
    artifacts_dir: Option<PathBuf>,
    /// Bytes of all artifacts together [default: 256M]
    #[arg(long, value_name = "SIZE")]
    artifact_bytes: Option<String>,
    /// Where the command leaves its result, a JSON document that the receipt then has [default: .brig/result.json]
    #[arg(long, value_name = "PATH")]
    result: Option<String>,
    /// A JSON schema for the result: without one that fits, the task has not succeeded (outcome policy)
    #[arg(long, value_name = "FILE")]
    result_schema: Option<PathBuf>,
    /// Keep nothing of the workspace but artifacts and the result: no `brig task diff`, `apply`, `export`
    #[arg(long, conflicts_with_all = ["keep", "keep_on_failure", "push_branch"])]
    no_changes: bool,
    /// Keep what git ignores, such as build output, which is left out and counted otherwise
    #[arg(long, conflicts_with = "no_changes")]
    ignored: bool,
    /// Plant a made-up secret, and fail the task (outcome policy) if it shows up in anything that comes out
    #[arg(long)]
    canary: bool,
    /// Who isolates: native, oci:/path/to/runtime (another OCI runtime), or local (nobody: for development only) [default: native]
    #[arg(long, value_name = "BACKEND")]
    backend: Option<brig::sandbox::Backend>,
    /// How long the command may take to end when it is asked to [default: 10s]
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration)]
    grace: Option<Duration>,
    /// Run although this limit or protection cannot be had on this machine (repeat, or separate by commas)
    #[arg(long, value_name = "LIMIT", value_delimiter = ',')]
    allow_degraded: Vec<String>,
    /// Give the command a terminal [default: if input and output are one]
    #[arg(short, long, overrides_with = "no_tty")]
    tty: bool,
    /// Give the command no terminal
    #[arg(long)]
    no_tty: bool,
    /// Keep the workspace: `brig task resume` and `fork` go on from it; not with --image
    #[arg(long, conflicts_with = "keep_on_failure")]
    keep: bool,
    /// Keep the workspace unless the task succeeds
    #[arg(long)]
    keep_on_failure: bool,
    /// Begin only when fewer tasks of the store run that were begun with this flag; first come, first served
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(1..))]
    max_parallel: Option<u32>,
    /// With --max-parallel: how long to wait for the turn [default: for ever]
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration, requires = "max_parallel")]
    queue_wait: Option<Duration>,
    /// No command: the sandbox stays for `brig task exec` until it is stopped
    #[arg(long, requires = "detach", conflicts_with = "command")]
    hold: bool,
    /// Send events elsewhere too: a path, unix:PATH, http://… or https://… (repeat for more)
    #[arg(long, value_name = "WHERE")]
    events: Vec<String>,
    /// Lines of the output that are JSON objects are events of the agent's progress
    #[arg(long)]
    stream_json: bool,
    /// Run in the background: print the task's id and return. `brig task attach`, `wait`, `stop` go on from there
    #[arg(short, long, conflicts_with = "explain")]
    detach: bool,
    /// With --detach: keep the command's input open for `brig task attach`
    #[arg(short, long, requires = "detach")]
    interactive: bool,
    /// Print the receipt as JSON on standard output, or {"error":…} if nothing was started; the command's own output goes to standard error
    #[arg(long)]
    pub(super) json: bool,
    /// Print what would be in force and run nothing
    #[arg(long)]
    explain: bool,
    /// The command and its arguments; `--` before it is needed only if it begins with a dash
    #[arg(trailing_var_arg = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

impl Arguments {
    /// Refuses what says something of a repository where there is none.
    fn check_repository(&self) -> Result<()> {
        if self.repo.is_some() {
            return Ok(());
        }
        let flags = [
            ("--ref", self.reference.is_some()),
            ("--depth", self.depth.is_some()),
            ("--filter", self.filter.is_some()),
            ("--submodules", self.submodules),
            ("--lfs", self.lfs),
            ("--git-from", !self.git_from.is_empty()),
            ("--git-credential", self.git_credential.is_some()),
            ("--git-ssh-key", self.git_ssh_key.is_some()),
            ("--git-known-hosts", self.git_known_hosts.is_some()),
            ("--git-ca", self.git_ca.is_some()),
            ("--git-address", !self.git_address.is_empty()),
            ("--push-branch", self.push_branch.is_some()),
        ];
        refuse_idle(&flags, "a repository, and the task works on none", "--repo")
    }
}

/// Runs a task and returns the exit status that tells how it ended.
pub(super) fn main(store: &Store, arguments: Arguments) -> Result<ExitCode> {
    let (json, explain, detach, interactive) =
        (arguments.json, arguments.explain, arguments.detach, arguments.interactive);
    let learn = arguments.network.learn;
    let (definition, pull) = definition(arguments)?;
    if let Some(wish) = &definition.image
        && let Some(failed) = super::image::fetch(store.root(), wish, pull)?
    {
        if json {
            output::json_error(Kind::Image.code(), "the image was not fetched", Some("standard error has the reason"));
        }
        return Ok(failed);
    }
    if explain {
        output::pairs(&brig::task::explain(store, &definition)?, json);
        return Ok(ExitCode::SUCCESS);
    }
    if detach {
        let id = brig::task::run_detached(store, &definition, interactive)?;
        if json {
            output::json(&serde_json::json!({ "id": id }))
        } else {
            output::lines([id])
        }
        return Ok(ExitCode::SUCCESS);
    }
    let raw = if definition.terminal { Some(terminal::Raw::enter()?) } else { None };
    let mut watcher = Screen::new(json, definition.terminal);
    let receipt = brig::task::run(store, &definition, &mut watcher);
    drop(raw);
    let receipt = receipt?;
    if learn {
        print_rules(&receipt);
    }
    if json {
        output::json(&receipt);
    } else {
        tell(&receipt);
    }
    Ok(ExitCode::from(receipt.exit_status))
}

/// What a run wanted of the network, as a part of a profile, on standard error.
fn print_rules(receipt: &Receipt) {
    let rules = receipt.egress.as_ref().map(brig::sandbox::Ledger::as_rules).unwrap_or_default();
    tell!("brig: what it wanted of the network, for a profile:\n\n[network]\nmode = \"egress\"\nallow = [");
    rules.iter().for_each(|rule| tell!("    \"{}\",", output::escaped(rule)));
    tell!("]");
}

/// The end in a few words, for a person; a command that simply succeeded needs none.
pub(super) fn tell(receipt: &Receipt) {
    if let Some(failure) = &receipt.error {
        output::failure(&failure.code, &failure.message, failure.hint.as_deref());
    }
    let hits = receipt.limits_hit.iter().map(|hit| format!("{}: {}", hit.limit.word(), hit.evidence));
    let left = receipt.cleanup.left.iter().map(|left| format!("left behind: {left}"));
    let pushed = receipt.push.iter().filter_map(|push| match push.state {
        PushState::Pushed => Some(format!("pushed to `{}`", push.branch)),
        PushState::UpToDate => Some(format!("`{}` was at that commit already", push.branch)),
        PushState::NothingNew => Some("no new commit, so nothing was pushed".to_owned()),
        PushState::NotTried | PushState::Failed => {
            push.bundle.as_ref().map(|path| format!("the commits are in {}", path.display()))
        }
    });
    // Where the attempt itself has not failed, the receipt's error says it.
    let told = |why: &&String| receipt.error.as_ref().is_none_or(|failure| failure.message != **why);
    let not_pushed = receipt.push.iter().filter_map(|push| push.error.as_ref()).filter(told);
    let not_pushed = not_pushed.map(|why| format!("not pushed: {why}"));
    let behind = receipt.push.iter().flat_map(|push| &push.left_behind).take(MOST_TOLD);
    let behind =
        behind.map(|what| format!("the push does not carry {what}: push that too, or the branch leads nowhere there"));
    let secrets = receipt.changes.iter().flat_map(|changes| &changes.secrets).take(MOST_TOLD);
    let secrets = secrets.map(|path| format!("a secret is in the changed file {path}, and in its patch"));
    // What ended well did without it.
    let refused = receipt.egress.iter().filter(|_| receipt.outcome != Outcome::Succeeded);
    let refused = refused.flat_map(|ledger| ledger.rows.iter().filter(|line| !line.allowed)).take(MOST_TOLD);
    let refused = refused.map(|line| format!("network: {}", super::show::network(line)));
    let namespaces = receipt.refused_namespaces.iter().map(brig::sandbox::Refused::words);
    let mut text = String::new();
    for line in hits
        .chain(namespaces)
        .chain(left)
        .chain(refused)
        .chain(not_taken(receipt))
        .chain(secrets)
        .chain(not_pushed)
        .chain(pushed)
        .chain(behind)
        .chain(told_artifacts(receipt))
    {
        text += &format!("brig: {}\n", output::escaped(&line));
    }
    let (id, outcome) = (&receipt.id, receipt.outcome.word());
    text += &format!("brig: task {id} {outcome} in {:.2} s", receipt.usage.wall_seconds);
    tell!("{text}");
}

/// What the task left in its workspace and what is in none of its changes.
pub(super) fn not_taken(receipt: &Receipt) -> Vec<String> {
    let Some(changes) = &receipt.changes else { return Vec::new() };
    let told = changes.not_taken.iter().take(MOST_TOLD).map(|each| format!("not taken: {}: {}", each.path, each.why));
    let more = changes.skipped.saturating_sub(told.len() as u64);
    let ignored = (changes.ignored > 0).then(|| {
        let first = changes.first_ignored.iter().take(MOST_TOLD).map(String::as_str).collect::<Vec<_>>().join(", ");
        let more = if changes.ignored > MOST_TOLD as u64 { ", …" } else { "" };
        format!("left out, since git ignores it: {first}{more} ({} in all; --ignored keeps it)", changes.ignored)
    });
    told.chain((more > 0).then(|| format!("{more} more were not taken: see the receipt"))).chain(ignored).collect()
}

fn told_artifacts(receipt: &Receipt) -> Vec<String> {
    let Some(artifacts) = &receipt.artifacts else { return Vec::new() };
    let taken = artifacts.path.iter().map(|path| match artifacts.files.len() {
        1 => format!("1 artifact in {}", path.display()),
        count => format!("{count} artifacts in {}", path.display()),
    });
    let refused = artifacts
        .refused
        .iter()
        .take(MOST_TOLD)
        .map(|each| format!("no artifact: {}: {}", each.path, each.why.words()));
    let more = artifacts.refused.len().saturating_sub(MOST_TOLD) as u64 + artifacts.refused_more;
    let more = (more > 0).then(|| format!("{more} more are no artifacts: see the receipt"));
    let unmatched = artifacts.unmatched.iter().map(|text| format!("no artifact: nothing fits `{text}`"));
    taken.chain(refused).chain(more).chain(unmatched).collect()
}

/// Everything that the command line says, checked; all of it before anything is made.
fn definition(arguments: Arguments) -> Result<(Definition, Pull)> {
    let absolute = |path: &Path| {
        std::path::absolute(path)
            .map_err(|cause| Error::os(Kind::Usage, cause).doing(format!("find `{}`", path.display())))
    };
    arguments.check_repository()?;
    let mut definition = Definition::new(arguments.command);
    if let Some(path) = &arguments.profile {
        brig::task::read_profile(path, &mut definition)?;
    }
    if arguments.rootfs.is_some() {
        definition.image = None; // a profile's: what the command line says counts
    }
    let pull = arguments.image.take(&mut definition)?;
    if definition.command.is_empty() && arguments.explain && definition.image.is_none() {
        definition.command = vec!["true".into()];
    }
    set_limits(&mut definition.limits, &arguments.limits.0)?;
    definition.workspace = match (arguments.dir, arguments.repo) {
        (Some(path), _) => WorkspaceSource::Directory(absolute(&path)?),
        (_, Some(url)) => {
            WorkspaceSource::Repository { url: brig::task::absolute_repository(&url), reference: arguments.reference }
        }
        _ => WorkspaceSource::Empty,
    };
    definition.at = arguments.at.or(definition.at.take());
    arguments.network.apply(&mut definition.network)?;
    for variable in &arguments.environment {
        match of_flag("--env", None, brig::task::given_variable(variable))? {
            Variable::Set(name, value) => definition.environment.push((name, value)),
            Variable::Passed(secret) => definition.secrets.push(secret),
        }
    }
    let source = |flag: &str, text: &Option<String>| {
        text.as_deref().map(|text| of_flag(flag, None, Source::parse(text))).transpose()
    };
    let git = &mut definition.git;
    git.credential = source("--git-credential", &arguments.git_credential)?.or(git.credential.take());
    git.ssh_key = source("--git-ssh-key", &arguments.git_ssh_key)?.or(git.ssh_key.take());
    git.known_hosts = arguments.git_known_hosts.as_deref().map(absolute).transpose()?.or(git.known_hosts.take());
    git.ca = arguments.git_ca.as_deref().map(absolute).transpose()?.or(git.ca.take());
    git.addresses.extend(arguments.git_address);
    git.depth = arguments.depth.or(git.depth);
    git.filter = arguments.filter.or(git.filter.take());
    git.submodules |= arguments.submodules;
    git.lfs |= arguments.lfs;
    for text in &arguments.git_from {
        git.elsewhere.push(of_flag("--git-from", Some(text), Elsewhere::parse(text))?);
    }
    if let Some(branch) = arguments.push_branch {
        git.push = Some(PushOptions { branch, default_branch: arguments.push_default_branch });
    }
    for secret in &arguments.secrets {
        definition.secrets.push(of_flag("--secret", None, Secret::parse(secret))?);
    }
    if let Some(rootfs) = arguments.rootfs {
        definition.rootfs = Some(absolute(&rootfs)?);
    }
    for word in &arguments.events {
        definition.events.push(of_flag("--events", Some(word), brig::task::Receiver::parse(word))?);
    }
    let artifacts = &mut definition.artifacts;
    artifacts.patterns.extend(arguments.artifacts);
    artifacts.directory = arguments.artifacts_dir.as_deref().map(absolute).transpose()?;
    if let Some(text) = &arguments.artifact_bytes {
        artifacts.bytes = of_flag("--artifact-bytes", Some(text), brig::task::size(text))?;
    }
    definition.result.path = arguments.result.unwrap_or(definition.result.path);
    definition.result.schema = match &arguments.result_schema {
        Some(file) => Some(absolute(file)?),
        None => definition.result.schema.take().map(|file| absolute(&file)).transpose()?,
    };
    definition.changes &= !arguments.no_changes;
    definition.ignored |= arguments.ignored;
    definition.canary |= arguments.canary;
    definition.stream_json |= arguments.stream_json;
    definition.keep = match (arguments.keep, arguments.keep_on_failure) {
        (true, _) => Keep::Always,
        (_, true) => Keep::OnFailure,
        _ => Keep::No,
    };
    (definition.max_parallel, definition.queue_wait) = (arguments.max_parallel, arguments.queue_wait);
    if arguments.hold {
        if !rustix::process::geteuid().is_root() {
            // An ordinary user enters by way of the command, which must be a program then: a process of ours cannot be looked into.
            return Err(Error::new(
                Kind::Usage,
                "--hold is root's: an ordinary user enters a sandbox by way of its command",
            )
            .hint("give it a command that waits: `brig task run -d … -- sleep infinity`"));
        }
        definition.holds = true;
        definition.command = vec!["hold".into()];
        definition.limits.idle = definition.limits.wall; // it has no output
    }
    let git = &mut definition.git;
    for path in [&mut definition.rootfs, &mut git.ca, &mut git.known_hosts].into_iter().flatten() {
        *path = absolute(path)?; // a task in the background has another working directory
    }
    for place in &mut git.elsewhere {
        if let Elsewhere::Folder(path) = place {
            *path = absolute(path)?;
        }
    }
    if let Some(grace) = arguments.grace {
        definition.grace = grace;
    }
    definition.backend = arguments.backend.unwrap_or(definition.backend);
    for name in arguments.allow_degraded {
        definition.may_degrade.push(of_flag("--allow-degraded", Some(&name), brig::task::degradable(&name))?);
    }
    let (input, out) = (rustix::stdio::stdin(), rustix::stdio::stdout());
    let at_terminal = !arguments.json && !arguments.detach && isatty(input) && isatty(out);
    definition.terminal = arguments.tty || (!arguments.no_tty && at_terminal);
    if arguments.tty && !arguments.detach && !isatty(input) {
        return Err(Error::new(Kind::Usage, "--tty needs a terminal as standard input").hint("leave --tty out"));
    }
    Ok((definition, pull))
}
