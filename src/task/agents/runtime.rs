//! The files that an installed program needs: its package, its interpreter, and the links between them.
//!
//! They are shown read-only at their own paths, in the smallest folders possible. These are a virtual environment, a
//! `node_modules`, the prefix of one Python or Node; else single files. Never: a home folder, or a prefix such as
//! `~/.local` with more than one program's files.

use super::search::SearchPath;
use super::wrong;
use crate::error::{Context, Kind, Result, Step};
use crate::files::clean_path;
use crate::sandbox::{Mount, MountMode};
use crate::task::definition::Definition;
use std::ffi::{OsStr, OsString};
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Folders that the default root shows anyway.
const SYSTEM: [&str; 7] = ["/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32"];
/// Links and interpreters on the way to a program.
const MOST_HOPS: usize = 16;
/// The bytes of a script that name its interpreter.
const HEAD: u64 = 4096;

pub(super) struct Runtime<'a> {
    search: &'a SearchPath,
    home: Option<PathBuf>,
    shown: Vec<PathBuf>,
    folders: Vec<PathBuf>,
    variables: Vec<(OsString, OsString)>,
}

impl Runtime<'_> {
    pub(super) fn new(search: &SearchPath, home: Option<PathBuf>) -> Runtime<'_> {
        let home = home.map(|home| std::fs::canonicalize(&home).unwrap_or(home));
        Runtime { search, home, shown: Vec::new(), folders: Vec::new(), variables: Vec::new() }
    }

    /// Returns the program's real path, where it runs inside.
    pub(super) fn add_program(&mut self, path: &Path) -> Result<PathBuf> {
        let step = || format!("show the program `{}`", path.display());
        let real = std::fs::canonicalize(path).failing(Kind::NotFound, step)?;
        if real.parent().is_some_and(|folder| folder.ends_with("shims")) {
            return Err(wrong(
                "it is a shim, which asks a version manager for the program",
                "put the folder of the program itself first on the PATH (`mise which`, `pyenv which` and `asdf which` print it)",
            )
            .of_kind(Kind::CommandNotFound)
            .doing(step()));
        }
        self.add_file(&real);
        self.add_interpreter(&real, 0).doing(step)?;
        Ok(real)
    }

    fn add_interpreter(&mut self, script: &Path, depth: usize) -> Result<()> {
        let Some(interpreter) = interpreter(script)? else { return Ok(()) };
        if depth > MOST_HOPS {
            return Err(wrong("its interpreter is a script of a script", "install the program anew"));
        }
        let found = match &interpreter {
            Interpreter::Path(path) => path.clone(),
            Interpreter::Name(name) => self.search.find(name).ok_or_else(|| {
                wrong(format!("its interpreter `{name}` is not on the PATH"), format!("install `{name}`"))
                    .of_kind(Kind::CommandNotFound)
            })?,
        };
        if let (Interpreter::Name(_), Some(folder)) = (&interpreter, found.parent()) {
            self.folders.push(folder.to_owned());
        }
        self.add_site(script, &found);
        let real = self.add_links(&found)?;
        self.add_interpreter(&real, depth + 1)
    }

    /// Adds each link on the way too; returns the real path.
    fn add_links(&mut self, path: &Path) -> Result<PathBuf> {
        let mut at = clean_path(path);
        for _ in 0..MOST_HOPS {
            self.add_file(&at);
            let Ok(target) = std::fs::read_link(&at) else {
                let real = std::fs::canonicalize(&at).failing(Kind::NotFound, || format!("find `{}`", at.display()))?;
                self.add_file(&real);
                return Ok(real);
            };
            // `..` is relative to the folder that the link is really in.
            let folder = at.parent().map(|folder| std::fs::canonicalize(folder).unwrap_or_else(|_| folder.to_owned()));
            at = clean_path(&folder.unwrap_or_default().join(target));
        }
        Err(wrong(format!("`{}` is a loop of links", path.display()), "install the program anew"))
    }

    /// Adds what `pip install --user` puts beside a script of the system's Python.
    fn add_site(&mut self, script: &Path, python: &Path) {
        let is_python = python.file_name().is_some_and(|name| name.as_bytes().starts_with(b"python"));
        let Some(prefix) = script.parent().filter(|folder| folder.ends_with("bin")).and_then(Path::parent) else {
            return;
        };
        if !is_python || python.starts_with(prefix) || is_system(prefix) {
            return;
        }
        let libraries = std::fs::read_dir(prefix.join("lib")).into_iter().flatten().flatten();
        let sites: Vec<_> =
            libraries.map(|entry| entry.path()).filter(|path| path.join("site-packages").is_dir()).collect();
        if !sites.is_empty() {
            self.variables.push(("PYTHONUSERBASE".into(), prefix.into()));
        }
        self.shown.extend(sites);
    }

    fn add_file(&mut self, path: &Path) {
        if is_system(path) && std::fs::canonicalize(path).is_ok_and(|real| is_system(&real)) {
            return;
        }
        let unit = self.unit(path);
        if !is_system(&unit) {
            self.shown.push(unit);
        }
    }

    /// The smallest folder with a file's package or runtime; else the file.
    fn unit(&self, path: &Path) -> PathBuf {
        let above = || path.ancestors().skip(1);
        if let Some(environment) = above().find(|folder| folder.join("pyvenv.cfg").is_file()) {
            return environment.to_owned();
        }
        if let Some(modules) = above().filter(|folder| folder.ends_with("node_modules")).last() {
            return modules.to_owned();
        }
        let prefix = above().find(|folder| folder.ends_with("bin")).and_then(Path::parent);
        let is_runtime = |prefix: &Path| {
            let has = |name: &str| prefix.join(name).exists();
            let name = path.file_name().unwrap_or_default().as_bytes();
            let is_of_python = || {
                let libraries = std::fs::read_dir(prefix.join("lib")).into_iter().flatten().flatten();
                libraries.into_iter().any(|entry| entry.path().join("os.py").is_file())
            };
            name.starts_with(b"node") && has("include/node/node.h") || name.starts_with(b"python") && is_of_python()
        };
        match prefix {
            Some(prefix) if is_runtime(prefix) && !self.is_broad(prefix) => prefix.to_owned(),
            _ => path.to_owned(),
        }
    }

    /// Whether a prefix has more than one runtime's files, such as a home or `~/.local`.
    fn is_broad(&self, prefix: &Path) -> bool {
        let real = std::fs::canonicalize(prefix).unwrap_or_else(|_| prefix.to_owned());
        let of_home = |home: &PathBuf| home.starts_with(&real) || real == home.join(".local");
        real.ends_with(".local") || real.components().count() < 3 || self.home.as_ref().is_some_and(of_home)
    }

    /// Skips files below the caller's own mounts.
    pub(super) fn show(mut self, definition: &mut Definition, search_path: &str) {
        self.shown.sort();
        let mut tops: Vec<PathBuf> = Vec::new();
        for path in self.shown {
            if !tops.iter().any(|top| path.starts_with(top)) {
                tops.push(path);
            }
        }
        let sandbox = &mut definition.sandbox;
        tops.retain(|top| !sandbox.mounts.iter().any(|mount| top.starts_with(&mount.target)));
        sandbox.mounts.extend(tops.into_iter().map(|path| Mount {
            source: path.clone(),
            target: path,
            mode: MountMode::ReadOnly,
        }));
        let is_given = |name: &OsStr| sandbox.environment.iter().any(|(given, _)| given == name);
        let folders = self.folders.iter().filter(|folder| !is_system(folder)).map(|folder| folder.as_os_str());
        let path: Vec<_> = folders.chain([OsStr::new(search_path)]).collect();
        let path = [(OsString::from("PATH"), path.join(OsStr::new(":")))];
        let more: Vec<_> = path.into_iter().chain(self.variables).filter(|(name, _)| !is_given(name)).collect();
        sandbox.environment.extend(more);
    }
}

fn is_system(path: &Path) -> bool {
    SYSTEM.iter().any(|folder| path.starts_with(folder))
}

#[derive(Debug, PartialEq, Eq)]
enum Interpreter {
    Path(PathBuf),
    /// A name that `env` finds on the PATH.
    Name(String),
}

fn interpreter(program: &Path) -> Result<Option<Interpreter>> {
    let mut head = Vec::new();
    let read = std::fs::File::open(program).and_then(|file| file.take(HEAD).read_to_end(&mut head));
    read.failing(Kind::NotFound, || format!("read `{}`", program.display()))?;
    Ok(parse_interpreter(&head))
}

/// Installers of Python packages write a long path into the second line.
fn parse_interpreter(head: &[u8]) -> Option<Interpreter> {
    let text = String::from_utf8_lossy(head.strip_prefix(b"#!")?).into_owned();
    let mut lines = text.lines();
    let mut words = lines.next()?.split_whitespace();
    let program = words.next()?;
    if program.ends_with("/env") {
        return words
            .find(|word| !word.starts_with('-') && !word.contains('='))
            .map(|name| Interpreter::Name(name.into()));
    }
    if let Some(rest) = lines.next().and_then(|line| line.strip_prefix("'''exec' ")) {
        let path = match rest.strip_prefix('"') {
            Some(quoted) => quoted.split('"').next()?,
            None => rest.split_whitespace().next()?,
        };
        return Some(Interpreter::Path(path.into()));
    }
    Some(Interpreter::Path(program.into()))
}

#[cfg(test)]
#[path = "runtime_tests.rs"]
mod tests;
