//! Converts an image's config and the caller's options to a process. Pure. Follows image-spec, conversion.md, and
//! Docker where it differs, as with the supplementary groups of a numeric user.

use super::{Accounts, ImageConfig, User};
use crate::error::{Error, Kind, Result};
use crate::sys::weaken;
use std::collections::BTreeMap;

/// Docker's PATH of an image without one.
pub const DEFAULT_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// The caller's overrides of the image's config.
#[derive(Clone, Debug, Default)]
pub struct Overrides {
    /// Replaces the entrypoint and drops the image's Cmd.
    pub entrypoint: Option<Vec<String>>,
    /// Replaces Cmd.
    pub args: Option<Vec<String>>,
    /// `NAME=value`. The last one of a name wins, also over the image's.
    pub env: Vec<String>,
    /// `user[:group]`.
    pub user: Option<String>,
    /// The working directory.
    pub working_dir: Option<String>,
}

/// A process for a runtime.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Process {
    /// The command and its arguments; never empty.
    pub args: Vec<String>,
    /// `NAME=value`, each name once.
    pub env: Vec<String>,
    /// Absolute. Created inside the root if it is missing.
    pub cwd: String,
    /// Ids.
    pub user: User,
    /// Paths of volumes: absolute, without `..`.
    pub volumes: Vec<String>,
    /// The stop signal; `None` means the runtime's default.
    pub stop_signal: Option<String>,
    /// The image's labels, except those that a runtime would obey.
    pub annotations: BTreeMap<String, String>,
}

/// Converts a config. `accounts` are the image's.
pub fn to_process(config: &ImageConfig, accounts: &Accounts, overrides: &Overrides) -> Result<Process> {
    let entrypoint = overrides.entrypoint.as_ref().unwrap_or(&config.entrypoint);
    let cmd = match (&overrides.args, &overrides.entrypoint) {
        (Some(args), _) => args.as_slice(),
        (None, Some(_)) => &[],
        (None, None) => config.cmd.as_slice(),
    };
    let args: Vec<String> = entrypoint.iter().chain(cmd).cloned().collect();
    if args.is_empty() {
        return Err(Error::new(Kind::Spec, "the image has neither Entrypoint nor Cmd").hint("say which command to run"));
    }
    let user = accounts.user(overrides.user.as_deref().unwrap_or(&config.user))?;
    let cwd = absolute(overrides.working_dir.as_deref().unwrap_or(&config.working_dir), "the working directory")?;
    let volumes = config.volumes.iter().map(|path| absolute(path, "a volume")).collect::<Result<Vec<_>>>()?;
    if let Some(volume) = volumes.iter().find(|path| *path == "/") {
        return Err(Error::new(Kind::Image, format!("the volume `{volume}` is the root")));
    }
    Ok(Process {
        args,
        env: environment(&config.env, &overrides.env),
        cwd,
        user,
        volumes,
        stop_signal: config.stop_signal.clone(),
        annotations: harmless(config.annotations()),
    })
}

/// Each name once, at its first place and with its last value.
fn environment(image: &[String], caller: &[String]) -> Vec<String> {
    let name = |line: &str| line.split('=').next().unwrap_or_default().to_owned();
    let mut all: Vec<String> = Vec::new();
    for line in image.iter().chain(caller).filter(|line| !line.is_empty() && !line.starts_with('=')) {
        let wanted = name(line);
        match all.iter_mut().find(|other| name(other) == wanted) {
            Some(other) => other.clone_from(line),
            None => all.push(line.clone()),
        }
    }
    if !all.iter().any(|line| name(line) == "PATH") {
        all.insert(0, format!("PATH={DEFAULT_PATH}"));
    }
    all
}

/// Refuses `..`: an image would use it to leave the root (CVE-2022-23648).
fn absolute(path: &str, what: &str) -> Result<String> {
    let refused = |why: &str| {
        Err(Error::new(Kind::Image, format!("{what} `{}` {why}", path.escape_debug()))
            .hint("use another image: this path is an attempt to leave the root"))
    };
    if path.split('/').any(|part| part == "..") && !weaken::is_off("image-volume-path") {
        return refused("leads upwards");
    }
    if path.contains('\0') {
        return refused("has a NUL in it");
    }
    let parts: Vec<&str> = path.split('/').filter(|part| !part.is_empty() && *part != ".").collect();
    Ok(format!("/{}", parts.join("/")))
}

/// The runtimes that obey each name, or prefix with a dot or a slash at the end.
const OBEYED: [(&str, &str); 13] = [
    ("bundle", "runc: where the bundle is, as in `state`"),
    ("cdi.k8s.io/", "containerd, CRI-O: devices of the host"),
    ("dev.brig.", "brig: protections, and a directory of the host for receipts"),
    ("dev.gvisor.", "gVisor: flags, and how mounts are shared"),
    ("io.containers.", "hooks that trace system calls: files of the host that they write"),
    ("io.katacontainers.", "Kata: hypervisor, kernel and their paths on the host"),
    ("io.kubernetes.cri-o.", "CRI-O and what it runs: to which pod a container belongs, its devices and mounts"),
    ("io.kubernetes.cri.", "containerd and what it runs: to which pod a container belongs"),
    ("krun.", "crun: the virtual machine of a container"),
    ("module.wasm.image/", "crun: another handler than the kernel"),
    ("org.criu.config", "runc, crun: a configuration of CRIU, which names files of the host"),
    ("org.systemd.property.", "brig, runc, crun: properties of the systemd unit"),
    ("run.oci.", "crun: files of the host for the output of hooks, handlers, sockets, mounts"),
];

/// Selects the labels that may become annotations. Annotations control runtimes on the host, but the image's author
/// writes the labels (runtime-spec, features.md, "potentiallyUnsafeConfigAnnotations").
fn harmless(mut annotations: BTreeMap<String, String>) -> BTreeMap<String, String> {
    annotations.retain(|name, _| !is_obeyed(name));
    annotations
}

fn is_obeyed(name: &str) -> bool {
    OBEYED.iter().any(|(obeyed, _)| match obeyed.ends_with(['.', '/']) {
        true => name.starts_with(obeyed),
        false => name == *obeyed,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<String> {
        text.split_whitespace().map(str::to_owned).collect()
    }

    fn args(entrypoint: &str, cmd: &str, other_entrypoint: Option<&str>, other_args: Option<&str>) -> String {
        let config = ImageConfig { entrypoint: words(entrypoint), cmd: words(cmd), ..ImageConfig::default() };
        let overrides =
            Overrides { entrypoint: other_entrypoint.map(words), args: other_args.map(words), ..Overrides::default() };
        to_process(&config, &Accounts::default(), &overrides)
            .map_or_else(|error| error.to_string(), |process| process.args.join(" "))
    }

    #[test]
    fn entrypoint_and_cmd_are_joined_and_overridden_as_docker_does() {
        assert_eq!(args("e", "a b", None, None), "e a b");
        assert_eq!(args("e", "a b", None, Some("x")), "e x");
        assert_eq!(args("e", "a b", Some("f"), None), "f");
        assert_eq!(args("e", "a b", Some("f"), Some("x")), "f x");
        assert_eq!(args("", "sh", None, None), "sh");
        assert_eq!(args("", "", None, None), "the image has neither Entrypoint nor Cmd");
    }

    #[test]
    fn the_environment_has_each_name_once_and_a_path() {
        let image = words("A=1 B=2 A=3");
        assert_eq!(environment(&image, &words("B=4 C")), [&format!("PATH={DEFAULT_PATH}"), "A=3", "B=4", "C"]);
        assert_eq!(environment(&words("PATH=/x"), &[]), ["PATH=/x"]);
    }

    /// T-36, CVE-2022-23648.
    #[test]
    fn a_volume_or_working_directory_that_climbs_is_refused() {
        for path in ["/../../../etc", "a/../../etc", "/a/.."] {
            let config = ImageConfig { cmd: words("sh"), volumes: vec![path.to_owned()], ..ImageConfig::default() };
            let error = to_process(&config, &Accounts::default(), &Overrides::default()).unwrap_err();
            assert!(error.to_string().contains("leads upwards"), "{path}: {error}");
            let config = ImageConfig { cmd: words("sh"), working_dir: path.to_owned(), ..ImageConfig::default() };
            assert!(to_process(&config, &Accounts::default(), &Overrides::default()).is_err());
        }
    }

    #[test]
    fn an_empty_working_directory_is_the_root() {
        let config = ImageConfig { cmd: words("sh"), ..ImageConfig::default() };
        assert_eq!(to_process(&config, &Accounts::default(), &Overrides::default()).unwrap().cwd, "/");
    }

    /// T-25.
    #[test]
    fn labels_that_a_runtime_would_obey_are_left_out() {
        let all = [
            "org.systemd.property.ExecStopPost",
            "org.criu.config",
            "run.oci.hooks.stdout",
            "bundle",
            "dev.brig.landlock",
            "io.katacontainers.config.hypervisor.path",
            "org.opencontainers.image.title",
            "maintainer",
            "bundle.size",
            "running.oci",
        ];
        let annotations = all.iter().map(|name| ((*name).to_owned(), "x".to_owned())).collect();
        let kept: Vec<String> = harmless(annotations).into_keys().collect();
        assert_eq!(kept, ["bundle.size", "maintainer", "org.opencontainers.image.title", "running.oci"]);
    }

    #[test]
    fn the_documentation_names_each() {
        let page = include_str!("../../../docs/images.md");
        for (name, _) in OBEYED {
            assert!(page.contains(&format!("`{name}`")) || page.contains(&format!("`{name}*`")), "{name}");
        }
    }
}
