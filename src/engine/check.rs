//! A container of an engine that shows which protections are in force.

use super::{Engine, Inside, RUNTIME, Registered, registered};
use crate::error::{Context, Error, Kind, Result, Step};
use crate::host::landlock_lacks;
use crate::image::one_file_archive;
use crate::spec::landlock::ANNOTATION as LANDLOCK;
use crate::spec::network::GATEWAY;
use crate::spec::protections::{DISK, DISK_INODES, EGRESS, RECEIPT, SECCOMP};
use serde::Serialize;
use std::path::Path;
use std::process::{Command, Output, Stdio};

const IMAGE: &str = "localhost/brig-engine-check:latest";
const PROBE: [&str; 4] = ["/brig", "engine", "probe", "--json"];

/// One protection.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// The annotation's key.
    pub annotation: String,
    /// In the engine's configuration.
    pub wanted: Option<String>,
    /// Whether it was in force.
    pub in_force: bool,
    /// What the container saw.
    pub found: String,
}

/// Compares what a container of the engine sees with the configured annotations.
///
/// # Errors
/// brig is not registered, or the engine could not run the container; its last line is in the error.
pub fn check(engine: Engine) -> Result<Vec<Finding>> {
    let (for_user, flag) = match engine {
        Engine::Docker if is_rootless_docker() => (true, " --user"),
        Engine::Podman if !rustix::process::geteuid().is_root() => (true, " --user"),
        Engine::Crio => {
            return Err(Error::new(Kind::Usage, "CRI-O has no command that runs a container")
                .hint("run `/brig engine probe` in a pod with the RuntimeClass of brig"));
        }
        _ => (false, ""),
    };
    let registered = registered(engine, for_user).ok_or_else(|| {
        Error::new(Kind::NotFound, format!("brig is not a runtime of {}", engine.word()))
            .hint(format!("run `brig engine setup {}{flag}`", engine.word()))
    })?;
    let receipts = registered.annotations.get(RECEIPT);
    let before = receipts.map_or(0, |folder| count(folder.as_ref()));
    let output = match engine {
        Engine::Podman => by_cli("podman", &["--runtime", RUNTIME, "run"]),
        Engine::Docker => by_cli("docker", &["run", "--runtime", RUNTIME]),
        _ => by_ctr(&registered),
    };
    let inside: Inside = serde_json::from_slice(&output?)
        .map_err(|cause| Error::new(Kind::Lost, cause.to_string()).doing("read what the container found"))?;
    let is_written = receipts.is_some_and(|folder| count(folder.as_ref()) > before);
    Ok(findings(&registered, &inside, is_written))
}

fn findings(registered: &Registered, inside: &Inside, is_written: bool) -> Vec<Finding> {
    let wanted = |key: &str| registered.annotations.get(key).cloned();
    let finding = |key: &str, in_force: bool, found: String| Finding {
        annotation: key.to_owned(),
        wanted: wanted(key),
        in_force,
        found,
    };
    let most = |key: &str| wanted(key).and_then(|text| crate::spec::parse_size(&text).ok());
    // A file system rounds up to its blocks and groups.
    let is_within = |key: &str, amount: u64| most(key).is_some_and(|most| (1..=most + most / 4).contains(&amount));
    let lack = landlock_lacks();
    let is_gateway = inside.resolver == GATEWAY.to_string() && !matches!(inside.outside.as_str(), "sent" | "answered");
    vec![
        finding(SECCOMP, inside.filters >= 2, format!("{} filters of system calls", inside.filters)),
        finding(
            LANDLOCK,
            inside.landlock > 0 && lack.is_none(),
            format!("{} Landlock domains{}", inside.landlock, lack.map_or(String::new(), |lack| format!(", {lack}"))),
        ),
        finding(DISK, is_within(DISK, inside.disk_bytes), format!("a root of {} bytes", inside.disk_bytes)),
        finding(
            DISK_INODES,
            is_within(DISK_INODES, inside.disk_inodes),
            format!("a root of {} files", inside.disk_inodes),
        ),
        finding(
            EGRESS,
            is_gateway,
            format!("name server {}; a host without a rule: {}", inside.resolver, inside.outside),
        ),
        finding(
            RECEIPT,
            is_written,
            if is_written { "a receipt was written" } else { "no receipt was written" }.to_owned(),
        ),
    ]
}

/// The daemon that answers, by DOCKER_HOST or a context, reads the user's file.
fn is_rootless_docker() -> bool {
    let done = output(Command::new("docker").args(["info", "--format", "{{.SecurityOptions}}"]), "docker");
    done.is_ok_and(|done| String::from_utf8_lossy(&done.stdout).contains("name=rootless"))
}

/// The image contains this program alone.
fn by_cli(program: &str, run: &[&str]) -> Result<Vec<u8>> {
    let own = std::env::current_exe().failing(Kind::NotFound, || "find this program")?;
    let archive = one_file_archive(&own, "brig")?;
    let mut import = Command::new(program);
    let import = import.args(["import", "-", IMAGE]).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = start(import, program)?;
    let sent = child.stdin.take().map(|mut pipe| std::io::Write::write_all(&mut pipe, &archive));
    let done = child.wait_with_output().failing(Kind::Lost, || format!("wait for `{program} import`"))?;
    succeeded(&done, &format!("{program} import"))?;
    sent.transpose().failing(Kind::Lost, || format!("send the image to `{program}`"))?;
    let mut command = Command::new(program);
    let done = output(command.args(run).args(["--rm", IMAGE]).args(PROBE), program);
    let _ = output(Command::new(program).args(["rmi", IMAGE]), program); // the check's result counts
    let done = done?;
    succeeded(&done, &format!("{program} run")).map(|()| done.stdout)
}

/// containerd's client runs a folder as the root.
fn by_ctr(registered: &Registered) -> Result<Vec<u8>> {
    let own = std::env::current_exe().failing(Kind::NotFound, || "find this program")?;
    let name = format!("brig-engine-check-{}", std::process::id());
    let folder = std::env::temp_dir().join(&name);
    std::fs::create_dir(&folder).failing(Kind::Disk, || format!("make `{}`", folder.display()))?;
    let copied = std::fs::copy(&own, folder.join("brig")).failing(Kind::Disk, || "copy this program");
    let done = copied.and_then(|_| {
        let mut command = Command::new("ctr");
        let program = registered.program.to_string_lossy();
        command.args(["run", "--rm", "--runc-binary", &program, "--rootfs"]).arg(&folder).arg(&name).args(PROBE);
        output(&mut command, "ctr")
    });
    let _ = std::fs::remove_dir_all(&folder); // the check's result counts
    let done = done?;
    succeeded(&done, "ctr run").map(|()| done.stdout)
}

fn start(command: &mut Command, program: &str) -> Result<std::process::Child> {
    command
        .spawn()
        .failing(Kind::NotFound, || format!("run `{program}`"))
        .hint(|| format!("install the command `{program}` of the engine"))
}

fn output(command: &mut Command, program: &str) -> Result<Output> {
    let child = start(command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()), program)?;
    child.wait_with_output().failing(Kind::Lost, || format!("wait for `{program}`"))
}

fn succeeded(done: &Output, words: &str) -> Result<()> {
    if done.status.success() {
        return Ok(());
    }
    let text = String::from_utf8_lossy(&done.stderr);
    let last = text.lines().rfind(|line| !line.trim().is_empty()).unwrap_or("it printed no error").to_owned();
    Err(Error::new(Kind::Lost, last)
        .doing(format!("run `{words}`"))
        .hint("run the engine's command by hand, and see `brig doctor`"))
}

fn count(folder: &Path) -> usize {
    std::fs::read_dir(folder).map_or(0, Iterator::count)
}
