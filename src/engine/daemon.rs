//! Docker: a file beside daemon.json keeps the previous bytes, so that `remove` restores them exactly.

use super::configuration::split;
use super::{Access, Edit, RUNTIME, Registered, Setup, read, user_folder};
use crate::error::{Context, Error, Kind, Result};
use crate::files;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use std::path::{Path, PathBuf};

#[derive(Serialize, Deserialize)]
struct Saved {
    /// The previous daemon.json, if it existed.
    before: Option<String>,
    /// The digest of the written text.
    written: String,
}

fn path(for_user: bool) -> Result<PathBuf> {
    Ok(if for_user { user_folder()?.join("docker/daemon.json") } else { "/etc/docker/daemon.json".into() })
}

fn saved_path(path: &Path) -> PathBuf {
    path.with_extension("json.before-brig")
}

fn parse(path: &Path, bytes: &[u8]) -> Result<Map<String, Value>> {
    let step = || format!("read `{}`", path.display());
    let hint = "mend that file, or add the runtime by hand: docs/howto/engines.md";
    if bytes.iter().all(u8::is_ascii_whitespace) {
        return Ok(Map::new());
    }
    serde_json::from_slice(bytes).map_err(|cause| Error::new(Kind::Spec, cause.to_string()).doing(step()).hint(hint))
}

pub(super) fn setup(setup: &Setup) -> Result<Vec<Edit>> {
    let path = path(setup.for_user)?;
    let now = read(&path)?;
    // A repeated setup starts from the file without the first one.
    let before = match saved(&path)? {
        Some(saved) => before(&path, saved, now.as_deref())?,
        None => now.clone(),
    };
    let mut config = parse(&path, before.as_deref().unwrap_or_default())?;
    let arguments: Vec<_> = setup
        .annotations
        .iter()
        .flat_map(|(key, value)| ["--annotation".to_owned(), format!("{key}={value}")])
        .collect();
    let mut runtime = json!({"path": setup.program});
    if !arguments.is_empty() {
        runtime["runtimeArgs"] = json!(arguments);
    }
    let runtimes = config.entry("runtimes").or_insert_with(|| json!({}));
    let runtimes = runtimes
        .as_object_mut()
        .ok_or_else(|| Error::new(Kind::Spec, format!("`runtimes` of `{}` is not an object", path.display())))?;
    if runtimes.contains_key(RUNTIME) {
        let words = format!("`{}` already has a runtime `{RUNTIME}` that brig did not write", path.display());
        return Err(Error::new(Kind::Exists, words).hint("remove that entry first"));
    }
    runtimes.insert(RUNTIME.into(), runtime);
    if setup.is_default {
        config.insert("default-runtime".into(), json!(RUNTIME));
    }
    let after = text(config);
    let keep = Saved {
        before: before.map(String::from_utf8).transpose().map_err(|_| not_text(&path))?,
        written: files::digest(&after),
    };
    let keep = serde_json::to_vec(&keep).map_err(|cause| Error::new(Kind::Internal, cause.to_string()))?;
    let beside = saved_path(&path);
    // Both may have the passwords of a proxy.
    let access = Access::of(&path, 0o644);
    let saved = Edit { before: read(&beside)?, after: Some(keep), path: beside, access };
    let mut edits = vec![saved, Edit { path, before: now, after: Some(after), access }];
    edits.retain(|edit| edit.before != edit.after);
    Ok(edits)
}

pub(super) fn remove(for_user: bool) -> Result<Vec<Edit>> {
    let path = path(for_user)?;
    let now = read(&path)?;
    let Some(saved) = saved(&path)? else {
        let words = format!("`{}` was not changed by `brig engine setup`", path.display());
        return Err(Error::new(Kind::NotFound, words).hint("remove the runtime `brig` from it by hand"));
    };
    let after = before(&path, saved, now.as_deref())?;
    let beside = saved_path(&path);
    let access = Access::of(&path, 0o644);
    let mut edits = vec![Edit { before: now, after, path, access }];
    edits.retain(|edit| edit.before != edit.after);
    edits.push(Edit { before: read(&beside)?, after: None, path: beside, access });
    Ok(edits)
}

/// The file without our entries. What another program wrote after `setup` stays.
fn before(path: &Path, saved: Saved, now: Option<&[u8]>) -> Result<Option<Vec<u8>>> {
    let Some(now) = now else { return Ok(None) };
    let before = saved.before.map(String::into_bytes);
    if files::digest(now) == saved.written {
        return Ok(before);
    }
    let mut config = parse(path, now)?;
    let found = config.clone();
    let before = parse(path, before.as_deref().unwrap_or_default())?;
    if let Some(runtimes) = config.get_mut("runtimes").and_then(Value::as_object_mut) {
        runtimes.remove(RUNTIME);
    }
    if config.get("default-runtime").is_some_and(|name| name == RUNTIME) {
        config.remove("default-runtime");
        config.extend(before.get("default-runtime").map(|earlier| ("default-runtime".to_owned(), earlier.clone())));
    }
    Ok(Some(if config == found { now.to_vec() } else { text(config) }))
}

fn text(config: Map<String, Value>) -> Vec<u8> {
    format!("{:#}\n", Value::Object(config)).into_bytes()
}

pub(super) fn registered(for_user: bool) -> Option<Registered> {
    let path = path(for_user).ok()?;
    let config = parse(&path, &read(&path).ok()??).ok()?;
    let runtime = config.get("runtimes")?.get(RUNTIME)?;
    let words = runtime.get("runtimeArgs").and_then(Value::as_array);
    let words = words.into_iter().flatten().filter_map(Value::as_str).map(|word| word.trim_matches('\''));
    let program = runtime.get("path")?.as_str()?.into();
    Some(Registered { program, annotations: split(words), path })
}

fn saved(path: &Path) -> Result<Option<Saved>> {
    let beside = saved_path(path);
    let Some(bytes) = read(&beside)? else { return Ok(None) };
    let saved = serde_json::from_slice(&bytes).map_err(std::io::Error::from);
    saved.failing(Kind::Record, || format!("read `{}`", beside.display())).map(Some)
}

fn not_text(path: &Path) -> Error {
    Error::new(Kind::Spec, format!("`{}` is not UTF-8", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_another_program_wrote_stays_and_our_entries_go() {
        let saved = |before: Option<&str>| Saved { before: before.map(str::to_owned), written: files::digest(b"ours") };
        let of = |earlier: Option<&str>, now: Option<&str>| {
            let left = before("daemon.json".as_ref(), saved(earlier), now.map(str::as_bytes)).unwrap();
            left.map(|bytes| String::from_utf8(bytes).unwrap())
        };
        assert_eq!(of(Some("{ }"), Some("ours")).as_deref(), Some("{ }"));
        assert_eq!(of(None, Some("ours")), None);
        assert_eq!(of(Some("{}"), None), None, "an absent file stays absent");
        let edited = r#"{"debug": true, "default-runtime": "brig", "runtimes": {"brig": {}, "crun": {}}}"#;
        let parse = |text: Option<String>| serde_json::from_str::<Value>(&text.unwrap()).unwrap();
        let runtimes = json!({"crun": {}});
        assert_eq!(parse(of(None, Some(edited))), json!({"debug": true, "runtimes": runtimes}));
        let earlier = r#"{"default-runtime": "crun", "runtimes": {"crun": {}}}"#;
        assert_eq!(
            parse(of(Some(earlier), Some(edited))),
            json!({"debug": true, "default-runtime": "crun", "runtimes": runtimes})
        );
        let own = r#"{"default-runtime": "other"}"#;
        assert_eq!(of(Some("{}"), Some(own)).as_deref(), Some(own));
    }
}
