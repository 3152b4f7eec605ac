//! The table of settings, in the order of the help. Assignment replaces a profile's value, `push` adds to it.

use super::HostedRule::{self, AtMost, Folder, Free, Key};
use super::ValueKind::{
    Addresses, Backend, Codes, Count, Limit, Number, Path as PATH, Pull, Secret as SecretText, Secrets, Size, Switch,
    Table, Text, Texts, Time, Variable as VariableText,
};
use super::values::{Variable, degradable, given_variable, resolver, size};
use super::{Given, Setter, Setting, ValueKind, checked, owned, time};
use crate::error::{Error, Kind, Result};
use crate::files::HiddenMatcher;
use crate::sandbox::{Caller, LimitName, Limits, Mount, MountMode, Rule, Volume, check_volume_name};
use crate::task::definition::image::ImageWish;
use crate::task::definition::receiver::Receiver;
use crate::task::definition::{Definition, Keep, WorkspaceSource};
use crate::task::git::{Elsewhere, PushOptions, absolute_repository};
use crate::task::secrets::{Secret, Source};
use std::path::Component;
use std::time::Duration;

const COMMAND: &str = "Command";
const HEALTH: &str = "Health";
const ISOLATION: &str = "Isolation";
const NETWORK: &str = "Network";
const RESULTS: &str = "Results";
const ROOT: &str = "Root and files";
const TASK: &str = "Task";
const WORKSPACE: &str = "Workspace";

/// Longer than a machine lives, and no overflow in clock arithmetic.
const MOST_HEALTH_TIME: Duration = Limits::NO_TIME_LIMIT;
const LEAST_HEALTH_INTERVAL: Duration = Duration::from_millis(50);

pub(super) static ROWS: &[Setting] = &[
    row("--dir", "PATH", "", PATH, Folder, set_folder).excludes(&["--repo", "--empty"])
        .group(WORKSPACE)
        .help("Work on a folder, copy-on-write: it is never written"),
    row("--at", "PATH", "at", PATH, Free, |it, v| v.inside(&mut it.at))
        .group(WORKSPACE)
        .help("Where the workspace appears inside [default: a folder at its own path, anything else at /workspace]"),
    row("--repo", "PATH|URL", "", Text, Folder, set_repository).excludes(&["--empty"])
        .group(WORKSPACE)
        .help("Work on a clone of a git repository: a path, https://…, ssh://…, user@host:path or file://…"),
    row("--ref", "REF", "", Text, Free, set_reference)
        .needs("--repo")
        .group(WORKSPACE)
        .help("The branch, tag or commit of --repo"),
    row("--depth", "N", "git.depth", Number, Free, |it, v| v.some(&mut it.git.depth, checked))
        .needs("--repo")
        .group(WORKSPACE)
        .help("Fetch only this many commits of history"),
    row("--filter", "FILTER", "git.filter", Text, Free, |it, v| v.some(&mut it.git.filter, owned))
        .needs("--repo")
        .group(WORKSPACE)
        .help("Leave the contents of older commits out: blob:none, or blob:limit=SIZE"),
    row("--submodules", "", "git.submodules", Switch(true), Free, |it, v| v.switch(&mut it.git.submodules))
        .needs("--repo")
        .group(WORKSPACE)
        .help("Fetch the submodules of --repo too: those at its own host, and at the places of --git-from"),
    row("--lfs", "", "git.lfs", Switch(true), Free, |it, v| v.switch(&mut it.git.lfs))
        .needs("--repo")
        .group(WORKSPACE)
        .help("Fetch the contents of large files that git LFS keeps elsewhere"),
    row("--git-from", "HOST|DIR", "git.from", Texts, Folder, add_place)
        .needs("--repo")
        .group(WORKSPACE)
        .help("Where submodules and large files may be besides: a host, host:port, or a folder of this machine for a local --repo (repeat)"),
    row("--git-credential", "SOURCE", "git.credential", SecretText, Folder, |it, v| v.some(&mut it.git.credential, |text| Source::parse_in(text, v.folder)))
        .needs("--repo")
        .group(WORKSPACE)
        .help("user:password or a token for --repo over https, which the agent never has. SOURCE as in --secret"),
    row("--git-ssh-key", "SOURCE", "git.ssh_key", SecretText, Folder, |it, v| v.some(&mut it.git.ssh_key, |text| Source::parse_in(text, v.folder)))
        .needs("--repo")
        .group(WORKSPACE)
        .help("A private key for --repo over ssh, which the agent never has. SOURCE as in --secret"),
    row("--git-known-hosts", "FILE", "git.known_hosts", PATH, Folder, |it, v| v.path(&mut it.git.known_hosts))
        .needs("--repo")
        .group(WORKSPACE)
        .help("The host's key for --repo over ssh [default: ~/.ssh/known_hosts]"),
    row("--git-ca", "FILE", "git.ca", PATH, Folder, |it, v| v.path(&mut it.git.ca))
        .needs("--repo")
        .group(WORKSPACE)
        .help("The authorities that sign the certificate of --repo's host, in PEM form [default: this machine's]"),
    row("--git-address", "ADDRESS", "git.addresses", Addresses, Key("networks"), |it, v| v.push(&mut it.git.addresses, checked))
        .needs("--repo")
        .group(WORKSPACE)
        .help("An address that the name of --repo's host may lead to although it is not public (repeat)"),
    key("git.name", Text, Free, |it, v| v.git_setting(it, "user.name"))
        .help("The name of the author of commits [default: agent]"),
    key("git.email", Text, Free, |it, v| v.git_setting(it, "user.email"))
        .help("The address of the author of commits [default: agent@localhost]"),
    key("git.settings", Table, Free, |it, v| v.git_setting(it, v.name.unwrap_or_default()))
        .help("Settings of git in the sandbox"),
    row("--push-branch", "BRANCH", "push.branch", Text, Free, set_branch)
        .needs("--repo")
        .group(WORKSPACE)
        .help("When the command has succeeded, push its commits to this branch of --repo; fast-forward only"),
    row("--push-default-branch", "", "push.default_branch", Switch(true), Free, set_default_branch).needs("--push-branch")
        .group(WORKSPACE)
        .help("Let the branch be the default one of --repo"),
    row("--empty", "", "", Switch(true), Free, of_command_line)
        .group(WORKSPACE)
        .help("Work in an empty folder (the default)"),
    row("--mount", "SOURCE:TARGET[:ro|cow|rw]", "mounts", Texts, Folder, add_mount)
        .group(ROOT)
        .help("Show a file or folder of this machine inside: ro (read-only, the default), cow (writes end with the task) or rw (writes change it; repeat)"),
    row("--ro", "PATH", "read_only", Texts, Folder, add_read_only)
        .group(ROOT)
        .help("Show a file or folder of this machine at its own path, read-only: ~/.rustup, /opt/node (repeat)"),
    row("--volume", "NAME:TARGET[:ro]", "volumes", Texts, Key("volumes"), |it, v| v.push(&mut it.sandbox.volumes, |text| Volume::parse(text, true)))
        .group(ROOT)
        .help("Show a volume of the store inside. Its files outlive the task; one task at a time writes it, many read it (`brig volume --help`; repeat)"),
    row("--cache", "NAME:TARGET", "caches", Texts, Key("volumes"), |it, v| v.push(&mut it.sandbox.volumes, |text| Volume::parse(text, false)))
        .group(ROOT)
        .help("Show a volume below a private layer: writes end with the task, so that no task can poison it; `brig volume fill` fills it (repeat)"),
    row("--home", "NAME", "home", Text, Key("volumes"), set_home)
        .group(ROOT)
        .help("Use this volume as the home, so that logins and sessions outlive the task"),
    row("--hide", "PATTERN", "hide", Texts, Free, add_hidden)
        .group(WORKSPACE)
        .help("Leave files of --dir out of the sandbox, its changes and `apply`, by a pattern as in .gitignore; .brigignore in the folder lists more (repeat)"),
    row("--rootfs", "DIR", "rootfs", PATH, Folder, set_rootfs)
        .group(ROOT)
        .help("The root file system [default: the host's own system folders, read-only]"),
    row("--image", "REF", "image", Text, Key("registries"), set_image).excludes(&["--rootfs"])
        .group(ROOT)
        .help("Run in an image: its layers are the root, copy-on-write; without a command it runs its own"),
    row("--pull", "WHEN", "", Pull, Key("registries"), of_command_line)
        .group(ROOT)
        .help("When to fetch the image: missing, always or never [default: missing]"),
    row("--entrypoint", "COMMAND", "", Text, Free, |it, v| v.of_image(it, |image| &mut image.entrypoint))
        .needs("--image")
        .group(ROOT)
        .help("Replace the image's Entrypoint ('' for none); its Cmd goes with it"),
    row("--user", "USER[:GROUP]", "", Text, Free, |it, v| v.of_image(it, |image| &mut image.user)).short('u')
        .needs("--image")
        .group(ROOT)
        .help("Run as this user of the image [default: the image's]"),
    row("--root-inside", "", "root_inside", Switch(true), Key("allow_root_inside"), |it, v| v.switch(&mut it.sandbox.root_inside))
        .group(ROOT)
        .help("Be root in the sandbox's own user namespace, which owns nothing on the host: apt-get, su, chown work. Needs --image or --rootfs"),
    row("--workdir", "DIR", "workdir", Text, Free, |it, v| v.inside(&mut it.sandbox.directory)).short('w')
        .group(ROOT)
        .help("Start in this directory, meant from the workspace [default: the workspace; without one the image's WorkingDir]"),
    row("--stop-signal", "SIGNAL", "", Text, Free, |it, v| v.of_image(it, |image| &mut image.stop_signal))
        .needs("--image")
        .group(ROOT)
        .help("How the command is asked to end [default: the image's StopSignal, else SIGTERM]"),
    row("--profile", "FILE|NAME", "", PATH, Folder, of_command_line).group(TASK)
        .help("Read limits and settings from a TOML file, or from NAME.toml in ~/.config/brig; a flag overrides it"),
    row("--name", "NAME", "name", Text, Free, |it, v| it.naming.set_name(v.text()?)).group(TASK)
        .help("A name for `brig task` verbs, which one running task of the store has at a time; it leads to the task after its end too"),
    row("--replace", "", "", Switch(true), Free, |it, v| v.switch(&mut it.naming.replaces)).group(TASK)
        .help("End and remove the task that has the name, before this one begins"),
    row("--label", "KEY=VALUE", "labels", VariableText, Free, add_label).group(TASK)
        .help("A label for `brig task ls --filter` and `prune --label` (repeat)"),
    row("--network", "MODE", "network.mode", Text, Key("allow_network_open"), |it, v| v.put(&mut it.sandbox.network.mode, str::parse))
        .group(NETWORK)
        .help("none, egress (what --allow names), veth or pasta (every public address), or host (no protection at all) [default: none]"),
    row("--allow", "RULE", "network.allow", Texts, Key("networks"), |it, v| v.extend(&mut it.sandbox.network.policy.allowed, Rule::parse_all))
        .group(NETWORK)
        .help("Allow a host: api.example.com:443, *.debian.org:80,443, 10.0.0.0/8:5432 (ports: 80 and 443 if none), or a group: @npm @pypi @crates @go @debian @ubuntu @github @gitlab (repeat)"),
    row("--deny", "RULE", "network.deny", Texts, Free, |it, v| v.extend(&mut it.sandbox.network.policy.denied, Rule::parse_all))
        .group(NETWORK)
        .help("Refuse what a rule covers although another one allows it (every port if none)"),
    row("--resolver", "ADDRESS[:PORT]", "network.resolver", Text, Key("networks"), |it, v| v.some(&mut it.sandbox.network.policy.resolver, resolver))
        .group(NETWORK)
        .help("The server that resolves the allowed names [default: the host's own servers]"),
    row("--learn", "", "", Switch(true), Key("allow_network_open"), |it, v| v.switch(&mut it.sandbox.network.policy.learn))
        .group(NETWORK)
        .help("Let every public name through at ports 22, 80 and 443, and print what was reached as rules at the end"),
    row("--ech", "pass|refuse", "network.ech", Text, Key("ech"), |it, v| v.some(&mut it.sandbox.network.policy.ech, str::parse))
        .group(NETWORK)
        .help("Pass or refuse TLS hellos with an encrypted part (ECH), which browsers send to every server [default: pass]"),
    row("--publish", "ADDRESS:PORT:PORT", "network.publish", Texts, Key("publish"), |it, v| v.push(&mut it.sandbox.network.publish, str::parse))
        .group(NETWORK)
        .help("Lead a port of this host to a port inside: 127.0.0.1:8080:80 (repeat)"),
    row("--network-rate", "SIZE", "network.rate", Size, AtMost("network_rate", "not limited"), |it, v| v.some(&mut it.sandbox.network.rate, size))
        .group(NETWORK)
        .help("Bytes a second that may pass, both directions together"),
    row("--network-bytes", "SIZE", "network.bytes", Size, AtMost("network_bytes", "not limited"), |it, v| v.some(&mut it.sandbox.network.total, size))
        .group(NETWORK)
        .help("Bytes that may pass in all"),
    row("--env", "NAME[=VALUE]", "env", VariableText, Free, add_variable).short('e').group(COMMAND)
        .help("Set a variable, or pass on the caller's own, which is then hidden in all output"),
    row("--secret", "NAME=SOURCE", "secrets.*.source", Secrets, Folder, |it, v| v.push(&mut it.secrets, Secret::parse)).group(COMMAND)
        .help("Give the command a secret as a file /run/secrets/NAME, hidden in all output. SOURCE: env:VARIABLE, file:PATH or cmd:COMMAND"),
    secret("secrets.*.expose", Text, Free)
        .help("How the command gets the secret: file, env or broker [default: file; with a host broker]"),
    secret("secrets.*.host", Texts, Key("networks"))
        .help("With the broker: the hosts that the secret is for; one needs no list"),
    secret("secrets.*.header", Text, Free)
        .help("With the broker: the header, with {} for the value [default: Authorization: Bearer {}]"),
    secret("secrets.*.basic", Text, Free)
        .help("With the broker: the user of basic authentication"),
    secret("secrets.*.methods", Texts, Free)
        .help("With the broker: the methods of requests [default: all]"),
    secret("secrets.*.paths", Texts, Free)
        .help("With the broker: the paths of requests [default: all]"),
    secret("secrets.*.ca", PATH, Folder)
        .help("With the broker: certificates to trust for the host besides the machine's"),
    secret("secrets.*.placeholder", Text, Free)
        .help("With the broker: the content of the variable [default: held-by-the-broker]"),
    limit(LimitName::Cpus, "--cpus", "limits.cpus", "2"),
    limit(LimitName::CpuTime, "--cpu-time", "limits.cpu_time", "4h"),
    limit(LimitName::Memory, "--memory", "limits.memory", "4G"),
    limit(LimitName::Swap, "--swap", "limits.swap", "0"),
    limit(LimitName::Pids, "--pids", "limits.pids", "1024"),
    limit(LimitName::Disk, "--disk", "limits.disk", "10G"),
    limit(LimitName::Inodes, "--inodes", "limits.inodes", "1000000"),
    limit(LimitName::OpenFiles, "--open-files", "limits.open_files", "8192"),
    limit(LimitName::Wall, "--wall", "limits.wall", "2h"),
    limit(LimitName::Idle, "--idle", "limits.idle", "30m"),
    limit(LimitName::OutputBytes, "--output-bytes", "limits.output_bytes", "256M"),
    limit(LimitName::IoBps, "--io-bps", "limits.io_bps", "not limited"),
    limit(LimitName::IoIops, "--io-iops", "limits.io_iops", "not limited"),
    row("--artifact", "PATH", "artifacts", Texts, Free, |it, v| v.push(&mut it.artifacts.patterns, owned))
        .group(RESULTS)
        .help("A file of the workspace that comes out, if the command makes or changes it: result.json, reports/**, *.log (repeat)"),
    row("--artifacts-dir", "DIR", "", PATH, Folder, |it, v| v.path(&mut it.artifacts.directory))
        .group(RESULTS)
        .help("Where to copy artifacts: a folder that is empty or not there yet [default: in the task's record]"),
    row("--artifact-bytes", "SIZE", "artifact_bytes", Size, AtMost("artifact_bytes", "256M"), |it, v| v.put(&mut it.artifacts.bytes, size))
        .group(RESULTS)
        .help("Bytes of all artifacts together [default: 256M]"),
    row("--result", "PATH", "result.path", Text, Free, |it, v| v.put(&mut it.result.path, owned))
        .group(RESULTS)
        .help("Where the command leaves its result, a JSON document that the receipt then has [default: .brig/result.json]"),
    row("--result-schema", "FILE", "result.schema", PATH, Folder, |it, v| v.path(&mut it.result.schema))
        .group(RESULTS)
        .help("A JSON schema for the result: without one that fits, the task has not succeeded (outcome policy)"),
    row("--no-changes", "", "changes", Switch(false), Free, |it, v| v.switch(&mut it.changes)).excludes(&["--keep", "--keep-on-failure", "--push-branch"])
        .group(RESULTS)
        .help("Keep nothing of the workspace but artifacts and the result: no `brig task diff`, `apply`, `export`"),
    row("--ignored", "", "ignored", Switch(true), Free, |it, v| v.switch(&mut it.ignored)).excludes(&["--no-changes"])
        .group(RESULTS)
        .help("Keep what git ignores, such as build output, which is left out and counted otherwise"),
    row("--canary", "", "canary", Switch(true), Free, |it, v| v.switch(&mut it.canary))
        .group(RESULTS)
        .help("Plant a made-up secret, and fail the task (outcome policy) if it shows up in anything that comes out"),
    row("--backend", "BACKEND", "backend", Backend, Key("backends"), |it, v| v.put(&mut it.sandbox.backend, str::parse)).group(ISOLATION)
        .help("The isolation: native, oci:/path/to/runtime (another OCI runtime), or local (none: for development only) [default: native]"),
    row("--grace", "TIME", "grace", Time, AtMost("grace", "10s"), |it, v| v.put(&mut it.sandbox.grace, time)).group(COMMAND)
        .help("How long the command may take to end when it is asked to [default: 10s]"),
    row("--allow-degraded", "LIMIT", "allow_degraded", Texts, Key("allow_degraded"), |it, v| v.push(&mut it.sandbox.may_degrade, degradable)).group(ISOLATION)
        .help("Run although this limit or protection cannot be had on this machine (repeat, or separate by commas)"),
    key("exit_codes.succeeded", Codes, Free, |it, v| v.push(&mut it.sandbox.exit_codes.succeeded, checked))
        .help("Exit codes that mean success, besides 0"),
    key("exit_codes.retryable", Codes, Free, |it, v| v.push(&mut it.sandbox.exit_codes.retryable, checked))
        .help("Exit codes after which another attempt may succeed"),
    key("exit_codes.needs_input", Codes, Free, |it, v| v.push(&mut it.sandbox.exit_codes.needs_input, checked))
        .help("Exit codes that mean that a person is needed"),
    row("--tty", "", "", Switch(true), Free, of_command_line).short('t').group(COMMAND)
        .help("Give the command a terminal [default: if input and output are one]"),
    row("--no-tty", "", "", Switch(true), Free, of_command_line).group(COMMAND)
        .help("Give the command no terminal"),
    row("--keep", "", "", Switch(true), Free, |it, _| keep(it, Keep::Always)).excludes(&["--keep-on-failure"])
        .group(RESULTS)
        .help("Keep the workspace: `brig task resume` and `fork` go on from it"),
    row("--keep-on-failure", "", "", Switch(true), Free, |it, _| keep(it, Keep::OnFailure))
        .group(RESULTS)
        .help("Keep the workspace unless the task succeeds"),
    row("--max-parallel", "NUMBER", "", Count, Free, |it, v| v.some(&mut it.max_parallel, checked)).group(TASK)
        .help("Begin only when fewer tasks of the store run that were begun with this flag; first come, first served"),
    row("--queue-wait", "TIME", "", Time, Free, |it, v| v.some(&mut it.queue_wait, time)).needs("--max-parallel").group(TASK)
        .help("With --max-parallel: how long to wait for the turn [default: for ever]"),
    row("--hold", "", "", Switch(true), Free, hold).excludes(&["command"]).group(COMMAND)
        .help("No command: the sandbox stays for `brig task exec` until it is stopped, which is its success (outcome stopped). In the foreground it reports to a service manager (sd_notify)"),
    row("--end-with", "PID", "", Text, Free, |it, v| v.some(&mut it.end_with, Caller::parse)).group(TASK)
        .help("End the task when this process of the host ends: a program that is killed leaves no sandbox"),
    row("--health", "COMMAND", "health.command", Text, Free, |it, v| v.some(&mut it.sandbox.health.command, health_command))
        .group(HEALTH)
        .help("Check the sandbox by this shell command in it: it is healthy while that exits with 0, and ends (outcome unhealthy) if it never does"),
    row("--health-interval", "TIME", "health.interval", Time, Free, |it, v| v.put(&mut it.sandbox.health.interval, health_interval))
        .needs("--health")
        .group(HEALTH)
        .help("The time between two checks, at least 50ms; at most 2s while they fail [default: 30s]"),
    row("--health-timeout", "TIME", "health.timeout", Time, Free, |it, v| v.put(&mut it.sandbox.health.timeout, health_time))
        .needs("--health")
        .group(HEALTH)
        .help("How long one check may take [default: 30s]"),
    row("--health-start", "TIME", "health.start", Time, Free, |it, v| v.put(&mut it.sandbox.health.start, health_time))
        .needs("--health")
        .group(HEALTH)
        .help("How long it may take until the first check passes [default: 5m]"),
    row("--events", "WHERE", "", Texts, Folder, |it, v| v.push(&mut it.events, Receiver::parse))
        .group(RESULTS)
        .help("Send events elsewhere too: a path, unix:PATH, http://… or https://… (repeat for more)"),
    row("--stream-json", "", "stream_json", Switch(true), Free, |it, v| v.switch(&mut it.stream_json))
        .group(RESULTS)
        .help("Lines of the output that are JSON objects are events of the agent's progress"),
    row("--detach", "", "", Switch(true), Free, of_command_line).short('d').excludes(&["--explain"]).group(COMMAND)
        .help("Run in the background: print the task's id and return. `brig task attach`, `wait`, `stop` go on from there"),
    row("--interactive", "", "", Switch(true), Free, of_command_line).short('i').group(COMMAND)
        .help("Keep the command's input open: with --detach for `brig task attach`, else it always is"),
    row("--json", "", "", Switch(true), Free, of_command_line)
        .group(RESULTS)
        .help("Print the receipt as JSON on standard output, or {\"error\":…} if nothing was started; the command's own output goes to standard error"),
    row("--explain", "", "", Switch(true), Free, of_command_line).group(TASK)
        .help("Print what would be in force and run nothing"),
];

/// `key` may be empty.
const fn row(
    flag: &'static str,
    form: &'static str,
    key: &'static str,
    kind: ValueKind,
    hosted: HostedRule,
    set: Setter,
) -> Setting {
    let (short, group, needs, excludes) = (None, None, None, &[]);
    Setting { flag, short, form, key, kind, group, needs, excludes, hosted, set, words: "" }
}

const fn key(key: &'static str, kind: ValueKind, hosted: HostedRule, set: Setter) -> Setting {
    row("", "", key, kind, hosted, set)
}

/// A key of `[secrets.NAME]`, which the profile reader sets as a whole.
const fn secret(key: &'static str, kind: ValueKind, hosted: HostedRule) -> Setting {
    row("", "", key, kind, hosted, of_command_line)
}

/// The operator's ceiling has the limit's name; `most` is the ceiling without one.
const fn limit(name: LimitName, flag: &'static str, key: &'static str, most: &'static str) -> Setting {
    let hosted = AtMost(name.word(), most);
    row(flag, name.form(), key, Limit(name), hosted, |it, v| v.limit(&mut it.sandbox.limits)).group("Limits")
}

/// For what is not in a definition: the caller uses it.
fn of_command_line(_: &mut Definition, _: &Given<'_>) -> Result<()> {
    Ok(())
}

fn set_folder(it: &mut Definition, v: &Given<'_>) -> Result<()> {
    it.workspace = WorkspaceSource::Directory(v.absolute()?);
    Ok(())
}

fn set_repository(it: &mut Definition, v: &Given<'_>) -> Result<()> {
    it.workspace = WorkspaceSource::Repository { url: absolute_repository(v.text()?), reference: None };
    Ok(())
}

fn add_hidden(it: &mut Definition, v: &Given<'_>) -> Result<()> {
    let pattern = v.text()?.to_owned();
    HiddenMatcher::new(std::slice::from_ref(&pattern), &[])?;
    it.sandbox.hidden.flags.push(pattern);
    Ok(())
}

fn add_mount(it: &mut Definition, v: &Given<'_>) -> Result<()> {
    let mount: Mount = v.text()?.parse()?;
    let source = v.absolute_of(&mount.source)?;
    it.sandbox.mounts.push(Mount { source, ..mount });
    Ok(())
}

fn add_read_only(it: &mut Definition, v: &Given<'_>) -> Result<()> {
    let source = v.absolute_of(v.text()?.as_ref())?;
    let climbs = source.components().any(|part| part == Component::ParentDir);
    // An existing path has a form without `..`; a missing one is refused when it is opened.
    let target = std::fs::canonicalize(&source).ok().filter(|_| climbs).unwrap_or_else(|| source.clone());
    it.sandbox.mounts.push(Mount { source, target, mode: MountMode::ReadOnly });
    Ok(())
}

fn set_home(it: &mut Definition, v: &Given<'_>) -> Result<()> {
    check_volume_name(v.text()?)?;
    v.some(&mut it.sandbox.home, owned)
}

fn health_command(text: &str) -> Result<String> {
    match text.trim() {
        "" => Err(Error::new(Kind::Usage, "an empty health command always passes").hint("leave it out")),
        _ if text.contains('\0') => Err(Error::new(Kind::Usage, "the health command contains a NUL byte")),
        _ => owned(text),
    }
}

fn health_time(text: &str) -> Result<Duration> {
    match time(text)? {
        Duration::ZERO => Err(Error::new(Kind::Usage, "the time is 0").hint("give it like `10s`")),
        time => Ok(time.min(MOST_HEALTH_TIME)),
    }
}

/// A check is work of the supervisor, outside of the task's limits.
fn health_interval(text: &str) -> Result<Duration> {
    match health_time(text)? {
        time if time < LEAST_HEALTH_INTERVAL => {
            Err(Error::new(Kind::Usage, "the time is below 50ms").hint("give it like `10s`"))
        }
        time => Ok(time),
    }
}

fn set_reference(it: &mut Definition, v: &Given<'_>) -> Result<()> {
    match &mut it.workspace {
        WorkspaceSource::Repository { reference, .. } => v.some(reference, owned),
        _ => Ok(()),
    }
}

fn add_place(it: &mut Definition, v: &Given<'_>) -> Result<()> {
    v.push(&mut it.git.elsewhere, |text| match Elsewhere::parse(text)? {
        Elsewhere::Folder(_) => v.absolute().map(Elsewhere::Folder),
        host => Ok(host),
    })
}

fn set_branch(it: &mut Definition, v: &Given<'_>) -> Result<()> {
    it.git.push = Some(PushOptions { branch: v.text()?.to_owned(), default_branch: false });
    Ok(())
}

fn set_default_branch(it: &mut Definition, v: &Given<'_>) -> Result<()> {
    it.git.push.iter_mut().try_for_each(|push| v.switch(&mut push.default_branch))
}

fn keep(it: &mut Definition, keep: Keep) -> Result<()> {
    it.keep = keep;
    Ok(())
}

/// A flag replaces the image of a profile; a profile with both is refused.
fn set_rootfs(it: &mut Definition, v: &Given<'_>) -> Result<()> {
    if v.is_flag() {
        it.image = None;
    }
    it.sandbox.rootfs = Some(v.absolute()?);
    Ok(())
}

fn set_image(it: &mut Definition, v: &Given<'_>) -> Result<()> {
    if v.is_flag() {
        it.sandbox.rootfs = None;
    }
    it.image = Some(ImageWish { reference: v.text()?.to_owned(), ..ImageWish::default() });
    Ok(())
}

fn add_label(it: &mut Definition, v: &Given<'_>) -> Result<()> {
    match v.name {
        Some(key) => it.naming.add(key, v.text()?),
        None => it.naming.add_pair(v.text()?),
    }
}

fn add_variable(it: &mut Definition, v: &Given<'_>) -> Result<()> {
    let Some(name) = v.name else {
        match given_variable(v.word)? {
            Variable::Set(name, value) => it.sandbox.environment.push((name, value)),
            Variable::Passed(secret) => it.secrets.push(secret),
        }
        return Ok(());
    };
    let value = v.text()?;
    if name.is_empty() || name.contains(['=', '\0']) || value.contains('\0') {
        return Err(Error::new(Kind::Profile, format!("`env.{}` is not a variable", name.escape_debug())));
    }
    it.sandbox.environment.push((name.into(), value.into()));
    Ok(())
}

fn hold(it: &mut Definition, _: &Given<'_>) -> Result<()> {
    if !rustix::process::geteuid().is_root() {
        // An ordinary user enters by way of the command, which must be a program: another process cannot look into
        // brig's own.
        return Err(Error::new(
            Kind::Usage,
            "--hold is root's: an ordinary user enters a sandbox by way of its command",
        )
        .hint("give it a command that waits: `brig task run -d … -- sleep infinity`"));
    }
    it.sandbox.holds = true;
    it.sandbox.command = vec!["hold".into()];
    Ok(())
}
