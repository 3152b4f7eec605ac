//! Turns a task's container into a cell around another runtime, with that container as the runtime's bundle. Pure.
//!
//! The cell mounts the task's mounts below `/bundle/mounts`, with the same attributes and owners. The bundle binds them
//! into its root. So the runtime gets finished trees, and init resolves paths in a hostile root without leaving it.

use crate::container;
use crate::error::{Error, Kind, Result};
use crate::sandbox::profile::{self, SEARCH_PATH};
use crate::sandbox::system::System;
use crate::sandbox::visitor;
use crate::spec::landlock::{self, Landlock};
use crate::spec::process::{Command, RLIMITS, places};
use crate::spec::root::{Attributes, FileSystem, MOST_TERMINALS, Owner, Program, Root, Shown, Source, Step};
use crate::spec::{Confinement, Container};
use rustix::process::Resource;
use serde_json::{Value, json};
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

/// The path of a runtime from outside of the system's folders.
pub(super) const RUNTIME: &str = "/run/runtime";
pub(super) const STATE: &str = "/run/oci";
const BUNDLE: &str = "/bundle";
const ROOT: &str = "/bundle/rootfs";
const MOUNTS: &str = "/bundle/mounts";
const NAME: &str = "task";
/// Bytes of the runtime's state, and of its `/tmp`.
const STATE_BYTES: u64 = 64 << 20;
const STATE_INODES: u64 = 4096;

pub(super) struct Tool {
    /// The command line up to the verb.
    pub words: Vec<OsString>,
    pub passes_signals: bool,
}

/// For a runtime whose `run` dies by a signal and leaves the container: a shell traps the signal and calls `kill`. The
/// runtime gets a separate process group, since signals go to all of the shell's. Its input has another number: a shell
/// gives /dev/null to background processes.
const PASS_SIGNALS: &str = r#"
exec 3<&0
setsid "$@" run --bundle /bundle task <&3 3<&- &
exec 3<&-
for name in HUP INT QUIT USR1 USR2 TERM; do trap "\"\$@\" kill task $name" "$name"; done
while :; do
    wait $!
    status=$?
    kill -0 $! 2>/dev/null || exit $status
done
"#;

pub(super) fn around(
    asked: Container,
    system: &System,
    runtime: Option<PathBuf>,
    is_terminal: bool,
    tool: &Tool,
) -> Result<Container> {
    let mut steps = asked.file_system.steps;
    let own =
        std::env::current_exe().map_err(|cause| Error::os(Kind::Backend, cause).doing("find the program of brig"))?;
    steps.push(Step::Bind {
        source: Source::Host(own),
        at: visitor::PROGRAM.into(),
        attributes: Attributes::READ_ONLY,
        shown: Shown::Inside,
    });
    let (mut bundle, steps) = Bundle::from(steps);
    bundle.masked = asked.file_system.masked;
    bundle.read_only = asked.file_system.read_only;
    let mut inner = asked.command.clone();
    if inner.holds {
        inner.arguments = vec![visitor::PROGRAM.into(), visitor::HOLD.into()];
    }
    let config = bundle.config(&asked.hostname, &inner, &asked.landlock, is_terminal)?;
    let memory = |at: &str, mode: u32| Step::Tmpfs {
        at: at.into(),
        bytes: STATE_BYTES,
        inodes: STATE_INODES,
        mode,
        owner: Owner::Administrator,
        attributes: Attributes::KERNEL,
    };
    let mut all = profile::system_steps(system);
    all.extend(profile::kernel_steps());
    // Runtimes look there for cgroups, and must not see the host's.
    all.push(Step::Tmpfs {
        at: "/sys/fs/cgroup".into(),
        bytes: 4096,
        inodes: 2,
        mode: 0o555,
        owner: Owner::Administrator,
        attributes: Attributes::KERNEL.read_only(),
    });
    all.extend([memory(STATE, 0o700), memory("/tmp", 0o1777)]);
    all.extend(runtime.map(|path| Step::Bind {
        source: Source::Host(path),
        at: RUNTIME.into(),
        attributes: Attributes::READ_ONLY,
        shown: Shown::Inside,
    }));
    all.extend(steps);
    all.push(Step::Nest {
        at: ROOT.into(),
        root: asked.file_system.root,
        steps: bundle.inside,
        points: bundle.points,
        program: program(&inner),
    });
    // Only the runtime may read it: it has the values of variables.
    let content = serde_json::to_vec(&config).map_err(|cause| Error::new(Kind::Internal, cause.to_string()))?;
    all.push(Step::File { at: Path::new(BUNDLE).join("config.json"), content, mode: 0o600 });
    all.push(Step::Freeze { at: "/".into(), attributes: Attributes::READ_ONLY });
    // At a terminal the runtime passes keys on; a shell between would take the terminal from it.
    let arguments: Vec<OsString> = if tool.passes_signals || is_terminal {
        tool.words.iter().cloned().chain(["run", "--bundle", BUNDLE, NAME].map(OsString::from)).collect()
    } else {
        ["/bin/sh", "-c", PASS_SIGNALS, "sh"]
            .map(OsString::from)
            .into_iter()
            .chain(tool.words.iter().cloned())
            .collect()
    };
    let mut exec = tool.words.clone();
    exec.extend([
        "exec".into(),
        "--user".into(),
        format!("{}:{}", asked.command.uid, asked.command.gid).into(),
        NAME.into(),
    ]);
    let mut rlimits = asked.command.rlimits;
    rlimits.retain(|(name, _)| !matches!(name, Resource::Nofile | Resource::Nproc)); // the container's, by the bundle
    Ok(Container {
        file_system: FileSystem {
            root: Root::Empty,
            attributes: asked.file_system.attributes,
            scratch: asked.file_system.scratch,
            steps: all,
            masked: Vec::new(), // with a covered part of /proc, the kernel refuses a user namespace a new one
            read_only: Vec::new(),
        },
        command: Command {
            arguments,
            environment: [("PATH", SEARCH_PATH), ("HOME", "/root")]
                .map(|(name, value)| (name.into(), value.into()))
                .into(),
            directory: BUNDLE.into(),
            rlimits,
            holds: false, // the container's command does
            ..asked.command
        },
        confinement: Confinement::Cell {
            exec,
            directory: asked.command.directory,
            process: config["process"].to_string(),
            files: visitor::PROGRAM.into(),
        },
        ..asked
    })
}

/// Checked before the runtime starts: runtimes differ in messages and exit statuses for a missing command. Some
/// statuses could be the command's own.
fn program(command: &Command) -> Program {
    let path = command.environment.iter().find(|(name, _)| name == "PATH").map(|(_, value)| value.as_os_str());
    let name = command.arguments.first().map(OsString::as_os_str).unwrap_or_default();
    let places = places(name, path).into_iter().map(|place| command.directory.join(place)).collect();
    Program { name: name.to_string_lossy().into_owned(), places }
}

#[derive(Clone, Copy)]
enum Place {
    /// A tree of the cell.
    Bound,
    /// A new file system of the runtime.
    Made,
}

#[derive(Default)]
struct Bundle {
    mounts: Vec<Value>,
    places: Vec<(PathBuf, Place, usize)>,
    inside: Vec<Step>,
    points: Vec<(PathBuf, PathBuf)>,
    is_read_only: bool,
    masked: Vec<PathBuf>,
    read_only: Vec<PathBuf>,
}

impl Bundle {
    /// Returns also the steps of the cell.
    fn from(steps: Vec<Step>) -> (Bundle, Vec<Step>) {
        let mut bundle = Bundle::default();
        let mut of_cell = Vec::new();
        for step in steps {
            match step {
                Step::Bind { source, at, attributes, shown } => {
                    let at = bundle.bind(at, attributes);
                    of_cell.push(Step::Bind { source, at, attributes, shown });
                }
                Step::Overlay { lower, changes, at, attributes, shown, hidden } => {
                    let at = bundle.bind(at, attributes);
                    of_cell.push(Step::Overlay { lower, changes, at, attributes, shown, hidden });
                }
                Step::Volume { number, at, attributes, changes, points } => {
                    let at = bundle.bind(at, attributes);
                    of_cell.push(Step::Volume { number, at, attributes, changes, points });
                }
                Step::Secrets { at, files } => {
                    let at = bundle.bind(at, Attributes::KERNEL.read_only());
                    of_cell.push(Step::Secrets { at, files });
                }
                Step::Tmpfs { at, bytes, inodes, mode, owner: _, attributes } => {
                    let own = [format!("size={bytes}"), format!("nr_inodes={inodes}"), format!("mode={mode:o}")];
                    bundle.make(at, "tmpfs", attributes, &own);
                }
                Step::Proc { at } => bundle.make(at, "proc", Attributes::KERNEL, &[]),
                Step::Pts { at } => {
                    let most = format!("max={MOST_TERMINALS}");
                    let own = ["newinstance", "ptmxmode=0666", "mode=0620", &most].map(str::to_owned);
                    bundle.make(at, "devpts", Attributes::DEVICES, &own);
                }
                Step::Devices => {} // every runtime makes the same (runtime-spec, "Default Devices")
                Step::Freeze { at, .. } if at == Path::new("/") => bundle.is_read_only = true,
                Step::Freeze { at, attributes } => match bundle.place(&at) {
                    Some((Place::Bound, mount, _)) => {
                        let at = Path::new(MOUNTS).join(mount.to_string());
                        if let Some(options) = bundle.mounts[mount]["options"].as_array_mut() {
                            options.push("ro".into());
                        }
                        of_cell.push(Step::Freeze { at, attributes });
                    }
                    Some((Place::Made, ..)) | None => {}
                },
                Step::Directory { at, mode, owner } => {
                    let made = |at| Step::Directory { at, mode, owner };
                    bundle.put(at, made, &mut of_cell);
                }
                Step::Symlink { at, target } => bundle.put(at, |at| Step::Symlink { at, target }, &mut of_cell),
                Step::File { at, content, mode } => {
                    bundle.put(at, |at| Step::File { at, content, mode }, &mut of_cell);
                }
                Step::Copy { from, version, at, mode } => {
                    bundle.put(at, |at| Step::Copy { from, version, at, mode }, &mut of_cell);
                }
                Step::Amend { at, change, missing, mode } => {
                    bundle.put(at, |at| Step::Amend { at, change, missing, mode }, &mut of_cell);
                }
                nest @ Step::Nest { .. } => bundle.inside.push(nest),
            }
        }
        (bundle, of_cell)
    }

    /// The mount that contains a path, and the rest of the path.
    fn place(&self, at: &Path) -> Option<(Place, usize, PathBuf)> {
        let (place, kind, mount) = self.places.iter().rev().find(|(place, ..)| at.starts_with(place))?;
        let rest = at.strip_prefix(place).unwrap_or(Path::new("")).to_owned();
        Some((*kind, *mount, rest))
    }

    fn put(&mut self, at: PathBuf, step: impl FnOnce(PathBuf) -> Step, of_cell: &mut Vec<Step>) {
        match self.place(&at) {
            None => self.inside.push(step(at)),
            Some((Place::Bound, mount, rest)) => {
                of_cell.push(step(Path::new(MOUNTS).join(mount.to_string()).join(rest)));
            }
            Some((Place::Made, ..)) => {} // the links of /dev, which every runtime makes
        }
    }

    fn bind(&mut self, at: PathBuf, attributes: Attributes) -> PathBuf {
        let number = self.mounts.len();
        let source = Path::new(MOUNTS).join(number.to_string());
        let mut options = vec![json!("bind")];
        options.extend(attributes.words().map(Value::from));
        self.mounts.push(json!({ "destination": at, "type": "bind", "source": source, "options": options }));
        self.points.push((at.clone(), source.clone()));
        self.places.push((at, Place::Bound, number));
        source
    }

    fn make(&mut self, at: PathBuf, kind: &str, attributes: Attributes, own: &[String]) {
        let mut options: Vec<Value> = attributes.words().map(Value::from).collect();
        options.extend(own.iter().map(|word| Value::from(word.as_str())));
        if !at.starts_with("/dev/") {
            self.points.push((at.clone(), "/".into())); // mounts below /dev come with it
        }
        self.places.push((at.clone(), Place::Made, self.mounts.len()));
        self.mounts.push(json!({ "destination": at, "type": kind, "source": kind, "options": options }));
    }

    fn config(&self, hostname: &str, command: &Command, rules: &Landlock, is_terminal: bool) -> Result<Value> {
        let arguments = command.arguments.iter().map(|word| text(word)).collect::<Result<Vec<_>>>()?;
        let environment = command
            .environment
            .iter()
            .map(|(name, value)| Ok(format!("{}={}", text(name)?, text(value)?)))
            .collect::<Result<Vec<_>>>()?;
        let rlimits: Vec<_> = command
            .rlimits
            .iter()
            .filter_map(|(resource, limit)| {
                let (name, _) = RLIMITS.iter().find(|(_, each)| each == resource)?;
                Some(json!({ "type": name, "soft": limit.current, "hard": limit.maximum }))
            })
            .collect();
        let rules = serde_json::to_string(rules).map_err(|cause| Error::new(Kind::Internal, cause.to_string()))?;
        let namespaces: Vec<_> = ["pid", "ipc", "uts", "mount"].map(|kind| json!({ "type": kind })).into();
        Ok(json!({
            "ociVersion": "1.0.2",
            "process": {
                "terminal": is_terminal,
                "user": { "uid": command.uid, "gid": command.gid, "additionalGids": command.groups },
                "args": arguments,
                "env": environment,
                "cwd": command.directory,
                "capabilities":
                    { "bounding": [], "effective": [], "permitted": [], "inheritable": [], "ambient": [] },
                "rlimits": rlimits,
                "noNewPrivileges": true,
            },
            "root": { "path": "rootfs", "readonly": self.is_read_only },
            "hostname": hostname,
            "mounts": self.mounts,
            "annotations": { landlock::ANNOTATION: rules },
            "linux": {
                // No network namespace: it stays in the cell's, which is the task's.
                "namespaces": namespaces,
                "maskedPaths": self.masked,
                "readonlyPaths": self.read_only,
                "seccomp": container::agent_filter()?,
            },
        }))
    }
}

fn text(word: &OsStr) -> Result<&str> {
    word.to_str().ok_or_else(|| {
        Error::new(Kind::Backend, format!("`{}` is not UTF-8, as a config.json requires", word.to_string_lossy()))
            .hint("use the backend native, or other words")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_task_mounts_is_bound_from_the_cell_and_what_it_makes_goes_to_where_its_path_leads() {
        let bind = |at: &str, attributes| Step::Bind {
            source: Source::Host("/host".into()),
            at: at.into(),
            attributes,
            shown: Shown::Inside,
        };
        let file = |at: &str| Step::File { at: at.into(), content: Vec::new(), mode: 0o644 };
        let (bundle, of_cell) = Bundle::from(vec![
            bind("/usr", Attributes::READ_ONLY),
            file("/etc/passwd"),
            bind("/etc/ssl/certs", Attributes::WRITABLE),
            file("/etc/ssl/certs/brig.pem"),
            Step::Freeze { at: "/etc/ssl/certs".into(), attributes: Attributes::READ_ONLY },
            Step::Proc { at: "/proc".into() },
            Step::Secrets { at: "/run/secrets".into(), files: Vec::new() },
            Step::Freeze { at: "/".into(), attributes: Attributes::READ_ONLY },
        ]);
        assert!(bundle.is_read_only);
        assert_eq!(bundle.inside, [file("/etc/passwd")]);
        let kinds: Vec<_> = bundle.mounts.iter().map(|mount| mount["options"].to_string()).collect();
        assert_eq!(kinds[0], r#"["bind","ro","nosuid","nodev"]"#);
        assert_eq!(kinds[1], r#"["bind","nosuid","nodev","ro"]"#);
        assert_eq!(bundle.mounts[2]["type"], "proc");
        assert_eq!(bundle.mounts[3]["source"], "/bundle/mounts/3");
        assert!(of_cell.contains(&file("/bundle/mounts/1/brig.pem")), "{of_cell:?}");
        assert!(of_cell.contains(&Step::Secrets { at: "/bundle/mounts/3".into(), files: Vec::new() }));
    }
}
