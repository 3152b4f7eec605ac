//! `brig task run`: one attempt, from the command line to the exit status.

use super::flags::{ALL, SettingFlags};
use super::screen::Screen;
use crate::cli::{console, output};
use brig::error::{Context, Error, Kind, Result};
use brig::image;
use brig::sandbox::{Caller, Outcome};
use brig::task::{Definition, ImageWish, PushState, Receipt, Store};
use clap::{Args, ValueEnum};
use nix::sys::signal::{SigSet, SigmaskHow, Signal as NixSignal, sigprocmask};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::retry_on_intr;
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open};
use rustix::termios::isatty;
use std::ffi::OsString;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};

/// Refused artifacts that are told one by one.
const MOST_TOLD: usize = 5;

/// Run a command in a fresh sandbox on a copy-on-write workspace
#[derive(Args)]
#[cfg_attr(test, derive(Debug, PartialEq))]
#[command(after_help = "\
Examples:
  brig task run --dir . -- make test              your folder, never written
  brig task run --image debian:12 --dir . -- make test
  brig task run --dir . --allow @npm -- npm ci
  id=$(brig task run -d --dir . -- ./agent.sh)    in the background; then: brig task logs -f $id

`--help` has all flags, in groups. The exit status is the command's own; limits and failures of brig have others.")]
#[command(after_long_help = "\
Examples:
  brig task run --dir . -- make test              your folder, never written
  brig task run --dir . --at /src -w tests -- ./run   the folder at /src; the command starts in /src/tests
  brig task run --dir . --ro ~/.rustup --mount ~/fixtures:/fixtures:cow -- cargo test
  brig task run --repo ~/src/app --ref v2 -- ./agent.sh
  brig task run --repo https://github.com/me/app --git-credential env:GH_TOKEN --push-branch agent/fix -- ./agent.sh
  brig task run --repo ~/src/app --push-branch agent/fix -- ./agent.sh
  brig task run --empty --memory 512M --wall 10m -e API_MODE=test -- python3 job.py
  brig task run --image debian:12 --dir . -- make test
  brig task run --secret TOKEN=env:GH_TOKEN --dir . -- sh -c 'login < /run/secrets/TOKEN'
  brig task run --home me --volume data:/data --cache npm:/home/agent/.npm -- ./agent.sh
  brig task run --explain --dir .                 what would be in force; runs nothing
  brig task run --dir . --allow api.example.com:443 -- ./agent.sh
  brig task run --json --dir . -- make | jq .outcome
  brig task run --dir . --artifact 'reports/**' --artifacts-dir out -- make report
  id=$(brig task run -d --dir . -- ./agent.sh)    in the background; then: brig task logs -f $id

The exit status is the command's own. A limit or a failure of ours has one of its own:
124 wall or idle time, 137 memory, 152 processor time, 153 output, 130 cancelled, 125 brig,
126 command not executable, 127 command not found.")]
pub(super) struct Arguments {
    #[command(flatten)]
    flags: SettingFlags<ALL>,
    /// The command and its arguments; `--` before it is needed only if it begins with a dash
    #[arg(trailing_var_arg = true, value_name = "COMMAND")]
    pub(super) command: Vec<OsString>,
}

impl Arguments {
    pub(super) fn json(&self) -> bool {
        self.flags.has("--json")
    }
}

/// Replace the files of a volume by what a command makes of a copy
#[derive(Args)]
#[command(after_help = "\
Examples:
  brig volume fill npm --image node:22 --allow @npm --dir . -- npm ci --cache /volume
  brig volume fill models --allow huggingface.co:443 -- sh -c 'curl -o $BRIG_VOLUME/model https://huggingface.co/…'
  brig volume fill npm:/home/agent/.npm --image node:22 --allow @npm -- npm i -g typescript

The command has the volume at /volume, or at TARGET, and its path in BRIG_VOLUME. When it succeeds, the copy replaces
the volume at once. A failed or killed command leaves the volume as it was. Tasks that run keep the earlier files.")]
pub(in crate::cli) struct FillArguments {
    /// The volume, made if it is missing, and its place inside [default: /volume]
    #[arg(value_name = "NAME[:TARGET]")]
    filled: String,
    #[command(flatten)]
    flags: SettingFlags<ALL>,
    /// The command and its arguments
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

/// Runs the command that fills a volume.
pub(in crate::cli) fn fill(store: &Store, arguments: FillArguments) -> Result<ExitCode> {
    let FillArguments { filled, flags, command } = arguments;
    let mut definition = definition(&flags, command)?;
    let target = brig::task::add_fill(&filled, &mut definition)?;
    definition.sandbox.environment.push(("BRIG_VOLUME".into(), target.into()));
    run(store, definition, &flags)
}

/// Runs a task and returns the exit status that tells how it ended.
pub(super) fn main(store: &Store, arguments: Arguments) -> Result<ExitCode> {
    let Arguments { flags, command } = arguments;
    run(store, definition(&flags, command)?, &flags)
}

fn run(store: &Store, definition: Definition, flags: &SettingFlags<ALL>) -> Result<ExitCode> {
    let (json, detach) = (flags.has("--json"), flags.has("--detach"));
    check_learn(flags)?;
    if let Some(failed) = fetch_image(store, &definition, flags)? {
        return Ok(failed);
    }
    if flags.has("--explain") {
        output::pairs(&brig::task::explain(store, &definition)?, json);
        return Ok(ExitCode::SUCCESS);
    }
    if detach {
        return detached(store, &definition, flags.has("--interactive"), json);
    }
    let receipt = foreground(store, &definition, Screen::new(json, definition.sandbox.terminal))?;
    if flags.has("--learn") {
        print_rules(&receipt);
    }
    if json {
        output::json(&receipt);
    } else {
        tell(&receipt);
    }
    Ok(ExitCode::from(receipt.exit_status))
}

/// Runs a task on our own streams.
pub(in crate::cli) fn foreground(store: &Store, definition: &Definition, mut screen: Screen) -> Result<Receipt> {
    let raw = if definition.sandbox.terminal { Some(console::Raw::enter()?) } else { None };
    let receipt = brig::task::run(store, definition, &mut screen);
    if raw.is_some() {
        console::reset_terminal();
    }
    drop(raw);
    receipt
}

/// Fetches the image of a definition, if it has one; the exit status of a fetch that failed.
pub(in crate::cli) fn fetch_image<const SET: u8>(
    store: &Store,
    definition: &Definition,
    flags: &SettingFlags<SET>,
) -> Result<Option<ExitCode>> {
    let Some(wish) = &definition.image else { return Ok(None) };
    let failed = fetch(store.root(), wish, pull(flags), definition.end_with.as_ref())?;
    if failed.is_some() && flags.has("--json") {
        output::json_error(Kind::Image.code(), "the image was not fetched", Some("standard error has the reason"));
    }
    Ok(failed)
}

/// A program takes what a task in the background reached from the receipt.
pub(in crate::cli) fn check_learn<const SET: u8>(flags: &SettingFlags<SET>) -> Result<()> {
    if !flags.has("--learn") || !flags.has("--detach") || flags.has("--json") {
        return Ok(());
    }
    Err(Error::new(Kind::Usage, "--learn prints rules at the end of the task, and --detach does not wait for it")
        .hint("leave --detach out; or add --json, and read `egress` of `brig task show --json ID` after the end"))
}

/// Starts a task in the background and prints its id, as JSON with the path of its store.
pub(in crate::cli) fn detached(
    store: &Store,
    definition: &Definition,
    is_interactive: bool,
    json: bool,
) -> Result<ExitCode> {
    // Without the id, which is printed last, its caller could not end the task.
    let term = SigSet::from_iter([NixSignal::SIGTERM]);
    sigprocmask(SigmaskHow::SIG_BLOCK, Some(&term), None).failing(Kind::Internal, || "start a task")?;
    let id = brig::task::run_detached(store, definition, is_interactive)?;
    if json {
        output::json(&serde_json::json!({ "id": id, "store": store.root().to_string_lossy() }))
    } else {
        output::lines([id])
    }
    Ok(ExitCode::SUCCESS)
}

/// What a run wanted of the network, as a part of a profile, on standard error.
fn print_rules(receipt: &Receipt) {
    let rules = receipt.egress.as_ref().map(brig::sandbox::Ledger::as_rules).unwrap_or_default();
    tell!("brig: what it wanted of the network, for a profile:\n\n[network]\nmode = \"egress\"\nallow = [");
    rules.iter().for_each(|rule| tell!("    \"{}\",", output::escaped(rule)));
    tell!("]");
}

/// The end in a few words, for a person; a command that simply succeeded needs none.
pub(in crate::cli) fn tell(receipt: &Receipt) {
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
    let unsearched = receipt.changes.iter().flat_map(|changes| &changes.unsearched).take(MOST_TOLD);
    let unsearched = unsearched.map(|path| format!("not searched for secrets: the changed file {path}"));
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
        .chain(unsearched)
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

/// When the task's image is fetched.
fn pull<const SET: u8>(flags: &SettingFlags<SET>) -> Pull {
    let word = flags.get("--pull").and_then(|words| words.last()?.to_str());
    word.and_then(|word| Pull::from_str(word, false).ok()).unwrap_or_default()
}

/// Everything that the command line says, checked; all of it before anything is made.
fn definition(flags: &SettingFlags<ALL>, command: Vec<OsString>) -> Result<Definition> {
    let mut definition = Definition::new(command);
    if let Some(path) = flags.get("--profile").and_then(|words| words.last()) {
        brig::task::read_profile(Path::new(path), &mut definition)?;
    }
    brig::task::set_flags(&flags.0, &mut definition)?;
    if flags.has("--pull") && definition.image.is_none() {
        return Err(Error::new(Kind::Usage, "--pull is about an image, and the task has none")
            .hint("name one with --image, or leave --pull out"));
    }
    if definition.sandbox.command.is_empty() && flags.has("--explain") && definition.image.is_none() {
        definition.sandbox.command = vec!["true".into()];
    }
    definition.sandbox.terminal = has_terminal(flags, definition.sandbox.holds)?;
    Ok(definition)
}

/// Whether the command gets a terminal: if the caller has one, or as the flags say. A sandbox that `holds` gets none by
/// itself.
pub(in crate::cli) fn has_terminal<const SET: u8>(flags: &SettingFlags<SET>, holds: bool) -> Result<bool> {
    let (input, out) = (rustix::stdio::stdin(), rustix::stdio::stdout());
    let (tty, detach) = (flags.has("--tty"), flags.has("--detach"));
    if tty && !detach && !isatty(input) {
        return Err(Error::new(Kind::Usage, "--tty needs a terminal as standard input").hint("leave --tty out"));
    }
    let at_terminal = !flags.has("--json") && !detach && !holds && isatty(input) && isatty(out);
    Ok(tty || (!flags.has("--no-tty") && at_terminal))
}

/// When an image is fetched from its registry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(in crate::cli) enum Pull {
    /// If the store does not have it
    #[default]
    Missing,
    /// Each time; what has not changed is not fetched again
    Always,
    /// Never
    Never,
}

/// Fetches the image unless it is there. In a process of its own: an ordinary user's store is written in a user namespace, which a
/// supervisor must not be in, and nothing of a TLS connection stays in a supervisor's memory. The exit status of a fetch that failed, which
/// has said why, is returned. The fetch ends with `caller`.
pub(in crate::cli) fn fetch(
    store: &Path,
    wish: &ImageWish,
    when: Pull,
    caller: Option<&Caller>,
) -> Result<Option<ExitCode>> {
    let is_there = || match image::Store::existing(store)? {
        Some(store) => match store.find(&wish.reference) {
            Err(error) if error.kind() == Kind::NotFound => Ok(false),
            other => other.map(|_| true),
        },
        None => Ok(false),
    };
    let wanted = match when {
        Pull::Always => true,
        Pull::Never => false,
        Pull::Missing => !is_there()?,
    };
    if !wanted {
        return Ok(None);
    }
    let step = || "start `brig image pull`";
    let mut fetch = Command::new("/proc/self/exe");
    if brig::task::check_registry(&wish.reference)? {
        // The caller's variables name settings of registries and programs that give credentials.
        fetch.env_clear().env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin").env("HOME", "/root");
    }
    let mut child = fetch
        .args(["image", "--store"])
        .arg(store)
        .args(["pull", "--", &wish.reference])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .spawn()
        .failing(Kind::Internal, step)?;
    if let Some(caller) = caller {
        let pid = Pid::from_child(&child);
        let ended = pidfd_open(pid, PidfdFlags::empty()).failing(Kind::Internal, step)?;
        let mut waits = [PollFd::new(&ended, PollFlags::IN), PollFd::new(caller, PollFlags::IN)];
        retry_on_intr(|| poll(&mut waits, None)).failing(Kind::Internal, step)?;
        if waits[0].revents().is_empty() {
            // It may end by itself meanwhile.
            let _ = kill_process(pid, Signal::TERM);
        }
    }
    let fetch = child.wait().failing(Kind::Internal, step)?;
    if fetch.code().is_some_and(|code| code != 0) {
        let reference = output::escaped(&wish.reference);
        tell!("brig: a flag that the hint names is one of `brig image pull {reference}`; then run this again");
    }
    Ok(if fetch.success() { None } else { Some(ExitCode::from(fetch.code().map_or(130, |code| code as u8))) })
}
