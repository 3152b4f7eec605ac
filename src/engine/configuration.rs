//! Podman, containerd and CRI-O: brig's own configuration file, or a block at the end of one.

use super::{Access, Annotations, Edit, Engine, RUNTIME, Registered, Setup, read, user_folder};
use crate::error::{Error, Kind, Result};
use std::fmt::Write as _;
use std::path::PathBuf;
use toml::Table;

const BEGIN: &str = "# BEGIN brig: made by `brig engine setup`, removed by `brig engine setup --remove`";
const END: &str = "# END brig";
/// The block's second line, if the file before it did not end with a newline.
const JOINED: &str = "# The line above had no newline.";
/// Adds annotations: containerd gives its runtime no arguments.
const WRAPPER: &str = "/usr/local/libexec/brig-containerd";
/// What `disabled_plugins` may call it.
const CRI: [&str; 3] = ["cri", "io.containerd.grpc.v1.cri", "io.containerd.cri.v1.runtime"];
const EXECUTABLE: Access = Access { mode: 0o755, owner: None };
const PODMAN_RUNTIMES: &str = "\"brig\", \"crun\", \"runc\", \"kata\", \"krun\", \"runsc\", \"youki\"";

fn path(engine: Engine, for_user: bool) -> Result<PathBuf> {
    match (engine, for_user) {
        (Engine::Podman, false) => Ok("/etc/containers/containers.conf.d/50-brig.conf".into()),
        (Engine::Podman, true) => Ok(user_folder()?.join("containers/containers.conf.d/50-brig.conf")),
        (Engine::Containerd, false) => Ok("/etc/containerd/config.toml".into()),
        (Engine::Crio, false) => Ok("/etc/crio/crio.conf.d/50-brig.conf".into()),
        (other, _) => Err(Error::new(Kind::Usage, format!("{} has no configuration of a user", other.word()))
            .hint("leave --user out, as root")),
    }
}

pub(super) fn setup(setup: &Setup) -> Result<Vec<Edit>> {
    let path = path(setup.engine, setup.for_user)?;
    let before = read(&path)?;
    let text = String::from_utf8(before.clone().unwrap_or_default())
        .map_err(|_| Error::new(Kind::Spec, format!("`{}` is not text", path.display())))?;
    let rest = without_block(&text);
    let rest = rest.as_str();
    if setup.engine != Engine::Containerd && !rest.trim().is_empty() {
        let words = format!("`{}` exists and was not made by brig", path.display());
        return Err(Error::new(Kind::Exists, words).hint("rename or remove that file"));
    }
    let program = match setup.engine {
        Engine::Containerd if !setup.annotations.is_empty() => PathBuf::from(WRAPPER),
        _ => setup.program.clone(),
    };
    if rest.is_empty() && setup.engine == Engine::Containerd {
        return Err(Error::new(Kind::NotFound, format!("`{}` does not exist", path.display()))
            .hint("make it first: containerd config default > /etc/containerd/config.toml"));
    }
    let block = match setup.engine {
        Engine::Podman => podman(setup),
        Engine::Crio => crio(setup),
        _ => containerd(rest, setup, &program)?,
    };
    let after = with_block(rest, &block);
    after.parse::<Table>().map_err(|cause| {
        Error::new(Kind::Spec, cause.to_string().trim().to_owned())
            .doing(format!("add brig to `{}`", path.display()))
            .hint("remove the runtime `brig` from the file first")
    })?;
    let access = Access::of(&path, 0o644);
    let mut edits = vec![Edit { path, before, after: Some(after.into_bytes()), access }];
    if setup.engine == Engine::Containerd {
        let script = (!setup.annotations.is_empty()).then(|| wrapper(setup).into_bytes());
        edits.push(Edit { path: WRAPPER.into(), before: read(WRAPPER.as_ref())?, after: script, access: EXECUTABLE });
    }
    edits.retain(|edit| edit.before != edit.after);
    Ok(edits)
}

pub(super) fn remove(engine: Engine, for_user: bool) -> Result<Vec<Edit>> {
    let path = path(engine, for_user)?;
    let before = read(&path)?;
    let text = String::from_utf8_lossy(before.as_deref().unwrap_or_default()).into_owned();
    if around_block(&text).is_none() {
        return Err(Error::new(Kind::NotFound, format!("`{}` has no whole block of brig", path.display())));
    }
    let rest = without_block(&text);
    // Another program may have added lines to our file.
    let after = (engine == Engine::Containerd || !rest.is_empty()).then(|| rest.into_bytes());
    let access = Access::of(&path, 0o644);
    let mut edits = vec![Edit { path, before, after, access }];
    if engine == Engine::Containerd {
        let script = read(WRAPPER.as_ref())?;
        edits.extend(script.map(|text| Edit {
            path: WRAPPER.into(),
            before: Some(text),
            after: None,
            access: EXECUTABLE,
        }));
    }
    Ok(edits)
}

pub(super) fn registered(engine: Engine, for_user: bool) -> Option<Registered> {
    let path = path(engine, for_user).ok()?;
    let text = String::from_utf8(read(&path).ok()??).ok()?;
    let table: Table = text.parse().ok()?;
    let get = |keys: &[&str]| {
        let (first, rest) = keys.split_first()?;
        rest.iter().try_fold(table.get(*first)?, |at, key| at.get(key)).cloned()
    };
    let (program, annotations) = match engine {
        Engine::Podman => {
            let list = get(&["containers", "annotations"]);
            let pairs = list.iter().filter_map(|list| list.as_array()).flatten().filter_map(|each| each.as_str());
            (get(&["engine", "runtimes", RUNTIME])?.get(0)?.as_str()?.to_owned(), split(pairs))
        }
        Engine::Crio => {
            let runtime = get(&["crio", "runtime", "runtimes", RUNTIME])?;
            let table = runtime.get("default_annotations").and_then(|table| table.as_table());
            let text = |value: &toml::Value| value.as_str().unwrap_or_default().to_owned();
            let pairs = table.into_iter().flatten().map(|(key, value)| (key.clone(), text(value)));
            (runtime.get("runtime_path")?.as_str()?.to_owned(), pairs.collect())
        }
        _ => {
            let plugin = plugin(&table);
            let runtime = get(&["plugins", plugin, "containerd", "runtimes", RUNTIME, "options"])?;
            let program = runtime.get("BinaryName")?.as_str()?.to_owned();
            let script = if program == WRAPPER { read(WRAPPER.as_ref()).ok()?? } else { Vec::new() };
            let script = String::from_utf8(script).ok()?;
            let words = script.split_whitespace().filter_map(|word| word.strip_prefix('\'')?.strip_suffix('\''));
            (program, split(words))
        }
    };
    Some(Registered { path, program: program.into(), annotations })
}

pub(super) fn split<'a>(words: impl Iterator<Item = &'a str>) -> Annotations {
    let pair = |word: &str| word.split_once('=').map(|(key, value)| (key.to_owned(), value.to_owned()));
    words.filter_map(pair).filter(|(key, _)| key.starts_with("dev.brig.")).collect()
}

/// The text around our block, as it was without the block.
fn around_block(text: &str) -> Option<(&str, &str)> {
    let (before, rest) = text.split_once(BEGIN)?;
    let (block, after) = rest.split_once(END)?;
    let is_joined = block.trim_start().starts_with(JOINED);
    let before = before.strip_suffix('\n').filter(|_| is_joined).unwrap_or(before);
    Some((before, after.strip_prefix('\n').unwrap_or(after)))
}

fn without_block(text: &str) -> String {
    around_block(text).map_or_else(|| text.to_owned(), |(before, after)| [before, after].concat())
}

fn with_block(text: &str, block: &str) -> String {
    let is_joined = !text.is_empty() && !text.ends_with('\n');
    let (newline, note) = if is_joined { ("\n", format!("{JOINED}\n")) } else { ("", String::new()) };
    format!("{text}{newline}{BEGIN}\n{note}{block}{END}\n")
}

fn podman(setup: &Setup) -> String {
    let mut text = String::new();
    if !setup.annotations.is_empty() {
        let all: Vec<_> = setup.annotations.iter().map(|(key, value)| quoted(&format!("{key}={value}"))).collect();
        let _ = write!(text, "[containers]\nannotations = [\n    {},\n]\n", all.join(",\n    "));
    }
    text.push_str("[engine]\n");
    if setup.is_default {
        let _ = writeln!(text, "runtime = \"{RUNTIME}\"");
    }
    let program = quoted(&setup.program.to_string_lossy());
    let _ = write!(
        text,
        "runtime_supports_json = [{PODMAN_RUNTIMES}]\nruntime_supports_nocgroup = [\"brig\", \"crun\", \"krun\"]\n\
         [engine.runtimes]\n{RUNTIME} = [{program}]\n"
    );
    text
}

fn crio(setup: &Setup) -> String {
    let mut text = String::new();
    if setup.is_default {
        let _ = write!(text, "[crio.runtime]\ndefault_runtime = \"{RUNTIME}\"\n");
    }
    let program = quoted(&setup.program.to_string_lossy());
    let _ = write!(text, "[crio.runtime.runtimes.{RUNTIME}]\nruntime_path = {program}\nruntime_type = \"oci\"\n");
    if !setup.annotations.is_empty() {
        let _ = writeln!(text, "[crio.runtime.runtimes.{RUNTIME}.default_annotations]");
        for (key, value) in &setup.annotations {
            let _ = writeln!(text, "{} = {}", quoted(key), quoted(value));
        }
    }
    text
}

/// The CRI's plugin has another name since version 3 of the configuration (containerd 2).
fn plugin(config: &Table) -> &'static str {
    if config.get("version").and_then(toml::Value::as_integer).is_some_and(|version| version >= 3) {
        "io.containerd.cri.v1.runtime"
    } else {
        "io.containerd.grpc.v1.cri"
    }
}

fn containerd(rest: &str, setup: &Setup, program: &std::path::Path) -> Result<String> {
    if setup.is_default {
        return Err(Error::new(
            Kind::Usage,
            "the default runtime of containerd is set beside the other options of CRI",
        )
        .hint("leave --default out, and write default_runtime_name = \"brig\" into that table of config.toml"));
    }
    let config: Table = rest.parse().map_err(|cause: toml::de::Error| {
        Error::new(Kind::Spec, cause.to_string().trim().to_owned())
            .doing("read the configuration of containerd")
            .hint("mend the file first: `containerd config dump` shows how containerd reads it")
    })?;
    if config.get("version").and_then(toml::Value::as_integer).unwrap_or(1) < 2 {
        let words = "the configuration of containerd has no `version`, or 1: CRI would not read brig's runtime there";
        return Err(Error::new(Kind::Spec, words).hint("migrate it: `containerd config migrate` prints the new file"));
    }
    let disabled = config.get("disabled_plugins").and_then(toml::Value::as_array).into_iter().flatten();
    if let Some(name) = disabled.filter_map(toml::Value::as_str).find(|name| CRI.contains(name)) {
        let words = format!("`disabled_plugins` of containerd's configuration has `{name}`, which reads the runtimes");
        return Err(Error::new(Kind::Spec, words)
            .hint("remove it from that list, or use `ctr run --runc-binary`: docs/howto/engines.md"));
    }
    let plugin = plugin(&config);
    let runc = ["plugins", plugin, "containerd", "runtimes", "runc", "options", "SystemdCgroup"];
    let (first, keys) = (config.get(runc[0]), &runc[1..]);
    let of_systemd = first.and_then(|plugins| keys.iter().try_fold(plugins, |at, key| at.get(key)));
    // The kubelet and every runtime of the node must agree on it.
    let driver = of_systemd.filter(|value| value.as_bool() == Some(true)).map_or("", |_| "SystemdCgroup = true\n");
    let table = format!("plugins.\"{plugin}\".containerd.runtimes.{RUNTIME}");
    let program = quoted(&program.to_string_lossy());
    Ok(format!(
        "[{table}]\nruntime_type = \"io.containerd.runc.v2\"\npod_annotations = [\"dev.brig.*\"]\n\
         [{table}.options]\nBinaryName = {program}\n{driver}"
    ))
}

fn wrapper(setup: &Setup) -> String {
    let words: String = setup.annotations.iter().map(|(key, value)| format!(" --annotation '{key}={value}'")).collect();
    format!("#!/bin/sh\n# Made by `brig engine setup containerd`.\nexec '{}'{words} \"$@\"\n", setup.program.display())
}

fn quoted(text: &str) -> String {
    toml::Value::from(text).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(engine: Engine) -> Setup {
        let annotations = [("dev.brig.disk", "1G"), ("dev.brig.egress.allow", "*.a.example:443")];
        Setup {
            engine,
            for_user: false,
            program: "/opt/a b/brig".into(),
            annotations: annotations.map(|(key, value)| (key.into(), value.into())).into(),
            is_default: engine != Engine::Containerd,
        }
    }

    #[test]
    fn blocks_are_toml_and_name_program_and_annotations() {
        let podman: Table = podman(&all(Engine::Podman)).parse().unwrap();
        assert_eq!(podman["engine"]["runtimes"]["brig"][0].as_str(), Some("/opt/a b/brig"));
        assert_eq!(podman["containers"]["annotations"][1].as_str(), Some("dev.brig.egress.allow=*.a.example:443"));
        let crio: Table = crio(&all(Engine::Crio)).parse().unwrap();
        let runtime = &crio["crio"]["runtime"]["runtimes"]["brig"];
        assert_eq!(runtime["default_annotations"]["dev.brig.disk"].as_str(), Some("1G"));
        assert_eq!(crio["crio"]["runtime"]["default_runtime"].as_str(), Some("brig"));
        for (version, plugin) in [(3, "io.containerd.cri.v1.runtime"), (2, "io.containerd.grpc.v1.cri")] {
            for driver in [None, Some(true), Some(false)] {
                let runc = format!("plugins.\"{plugin}\".containerd.runtimes.runc.options.SystemdCgroup");
                let runc = driver.map_or(String::new(), |driver| format!("{runc} = {driver}"));
                let text = containerd(&format!("version = {version}\n{runc}"), &all(Engine::Containerd), "/x".as_ref());
                let table: Table = text.unwrap().parse().unwrap();
                let options = &table["plugins"][plugin]["containerd"]["runtimes"]["brig"]["options"];
                assert_eq!(options["BinaryName"].as_str(), Some("/x"));
                let copied = options.get("SystemdCgroup").and_then(toml::Value::as_bool);
                assert_eq!(copied, driver.filter(|is_systemd| *is_systemd));
            }
        }
    }

    #[test]
    fn a_configuration_whose_runtimes_cri_does_not_read_is_refused() {
        for (text, words) in [
            ("root = \"/x\"", "no `version`"),
            ("version = 1", "no `version`"),
            ("version = 2\ndisabled_plugins = [\"cri\"]", "`cri`"),
            ("version = 2\ndisabled_plugins = [\"io.containerd.grpc.v1.cri\"]", "`disabled_plugins`"),
            ("version = 3\ndisabled_plugins = [\"io.containerd.cri.v1.runtime\"]", "`disabled_plugins`"),
            ("oops", "configuration of containerd"),
        ] {
            let error = containerd(text, &all(Engine::Containerd), "/x".as_ref()).unwrap_err();
            assert!(error.to_string().contains(words) && error.advice().is_some(), "{text}: {error}");
        }
    }

    #[test]
    fn a_file_without_the_block_is_as_it_was() {
        for own in ["", "version = 2\n# a comment\n", "version = 2"] {
            assert_eq!(without_block(&with_block(own, "x = 1\n")), own);
            assert_eq!(without_block(own), own);
        }
        let longer = with_block("version = 2\n", "x = 1\n") + "[more]\n";
        assert_eq!(without_block(&longer), "version = 2\n[more]\n");
        assert_eq!(around_block(&format!("a = 1\n{BEGIN}\nb = 2\n")), None);
    }

    #[test]
    fn annotations_of_a_wrapper_are_read_again() {
        let text = wrapper(&all(Engine::Containerd));
        let words = text.split_whitespace().filter_map(|word| word.strip_prefix('\'')?.strip_suffix('\''));
        assert_eq!(split(words), all(Engine::Containerd).annotations);
    }
}
