//! Sources of a secret's value.

use super::login::LoginFile;
use super::oauth;
use crate::error::{Context, Error, Kind, Result, Step};
use crate::files::{self, Pinned};
use std::ffi::OsString;
use std::io::Read;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The source of a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// A variable of the caller's environment.
    Environment(OsString),
    /// A file; its replacement is followed.
    File(PathBuf),
    /// A shell command's output.
    Command(String),
    /// The access token of an OAuth file outside.
    OAuth(PathBuf),
    /// The access token of a program's own login file, which that program renews.
    Login(LoginFile),
    /// A value that brig generated.
    Made(String),
}

/// Longer than any credential; a longer file was named by mistake.
const LONGEST: u64 = 64 << 10;

/// A state of a file.
pub(super) type Version = (u64, u64, i64, i64, u64);

impl Source {
    /// Parses `env:VARIABLE`, `file:PATH`, `oauth:PATH` or `cmd:COMMAND`.
    pub fn parse(text: &str) -> Result<Source> {
        Source::parse_in(text, None)
    }

    /// A relative path starts at `folder`, or at the working directory.
    pub(crate) fn parse_in(text: &str, folder: Option<&Path>) -> Result<Source> {
        let absolute = |path: &str| {
            std::path::absolute(folder.unwrap_or(Path::new("")).join(path))
                .failing(Kind::Secret, || format!("find `{path}`"))
        };
        match text.split_once(':') {
            Some(("env", name)) if !name.is_empty() && !name.contains('=') => Ok(Source::Environment(name.into())),
            Some(("file", path)) if !path.is_empty() => Ok(Source::File(absolute(path)?)),
            Some(("oauth", path)) if !path.is_empty() => Ok(Source::OAuth(absolute(path)?)),
            Some(("cmd", command)) if !command.trim().is_empty() => Ok(Source::Command(command.to_owned())),
            // The text may be the value itself: never repeat it.
            _ => Err(Error::new(Kind::Secret, "that is not a source of a secret")
                .hint("give env:VARIABLE, file:PATH, cmd:COMMAND or, for the broker, oauth:PATH; a value itself is never an argument, where others can see it")),
        }
    }

    /// An OAuth file gets its pinned folder.
    pub(crate) fn pinned(&self, pinned: &Pinned) -> Source {
        match self {
            Source::File(path) => Source::File(pinned.path(path)),
            Source::Login(login) => Source::Login(LoginFile { path: pinned.path(&login.path), ..login.clone() }),
            Source::OAuth(path) => Source::OAuth(match (path.parent(), path.file_name()) {
                (Some(folder), Some(name)) if pinned.has(folder) => pinned.path(folder).join(name),
                // The file itself is read and replaced: no link is followed later.
                _ => std::fs::canonicalize(path).unwrap_or_else(|_| path.clone()),
            }),
            other => other.clone(),
        }
    }

    pub(super) fn word(&self) -> &'static str {
        match self {
            Source::Environment(_) => "env",
            Source::File(_) => "file",
            Source::Command(_) => "cmd",
            Source::OAuth(_) => "oauth",
            Source::Login(_) => "login",
            Source::Made(_) => "made",
        }
    }

    /// Strips the line break at the end.
    pub(crate) fn read(&self) -> Result<Vec<u8>> {
        let mut value = match self {
            Source::Environment(name) => std::env::var_os(name)
                .map(std::ffi::OsString::into_vec)
                .ok_or_else(|| {
                    Error::new(Kind::Secret, format!("the variable `{}` is not set", name.to_string_lossy()))
                })
                .hint(|| "set it, or name another source: file:PATH or cmd:COMMAND")?,
            Source::File(path) => read_file(path)
                .map_err(|error| error.of_kind(Kind::Secret))
                .hint(|| "name a file that you can read, of at most 64 KiB")?,
            Source::Command(command) => run(command)?,
            Source::OAuth(path) => oauth::access_token(path)?,
            Source::Login(login) => login.read()?,
            Source::Made(value) => value.clone().into_bytes(),
        };
        let end = value.len() - usize::from(value.ends_with(b"\n"));
        let end = end - usize::from(value[..end].ends_with(b"\r"));
        if end == 0 {
            return Err(Error::new(Kind::Secret, "the value is empty").hint("see that its source has one"));
        }
        value.truncate(end);
        Ok(value)
    }

    /// The current value without contacting a server; an error for an expired token.
    pub(super) fn at_hand(&self) -> Result<Vec<u8>> {
        match self {
            Source::OAuth(path) => {
                oauth::current(path, 0).ok_or_else(|| Error::new(Kind::Secret, "the token is at its end"))
            }
            _ => self.read(),
        }
    }

    pub(super) fn is_due(&self) -> bool {
        matches!(self, Source::OAuth(path) if oauth::is_due(path))
    }

    /// `None` if it is not a file.
    pub(super) fn version(&self) -> Option<Version> {
        match self {
            Source::File(path) | Source::OAuth(path) => version(path),
            Source::Login(login) => version(&login.path),
            Source::Environment(_) | Source::Command(_) | Source::Made(_) => None,
        }
    }
}

/// One allocation: a reallocation would leave a copy of the value.
fn read_file(path: &Path) -> Result<Vec<u8>> {
    let step = || format!("read `{}`", path.display());
    let mut value = Vec::with_capacity(LONGEST as usize + 1);
    let read = std::fs::File::open(path).and_then(|file| file.take(LONGEST + 1).read_to_end(&mut value));
    let length = read.map_err(|cause| files::failed(cause, step()))?;
    if length as u64 > LONGEST {
        return Err(Error::new(Kind::Secret, format!("longer than {LONGEST} bytes")).doing(step()));
    }
    Ok(value)
}

fn version(path: &Path) -> Option<Version> {
    let status = std::fs::metadata(path).ok()?;
    Some((status.dev(), status.ino(), status.mtime(), status.mtime_nsec(), status.size()))
}

/// The output is the value; errors go to standard error.
fn run(command: &str) -> Result<Vec<u8>> {
    let step = || "run the command of a secret";
    let mut child = Command::new("/bin/sh")
        .args(["-c", command])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .failing(Kind::Secret, step)?;
    let mut value = Vec::with_capacity(LONGEST as usize + 1);
    let read = match child.stdout.take() {
        Some(out) => out.take(LONGEST + 1).read_to_end(&mut value),
        None => Ok(0),
    };
    let status = child.wait().failing(Kind::Secret, step)?;
    read.failing(Kind::Secret, step)?;
    if value.len() as u64 > LONGEST {
        return Err(Error::new(Kind::Secret, "it printed more than 64 KiB")
            .doing(step())
            .hint("print the value alone"));
    }
    if !status.success() {
        return Err(Error::new(Kind::Secret, format!("it ended with {status}"))
            .doing(step())
            .hint("run it by hand and see what is wrong"));
    }
    Ok(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_read_without_the_line_break_at_its_end() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("token");
        for (content, value) in [("abc\n", "abc"), ("abc\r\n", "abc"), ("a\n\n", "a\n"), ("abc", "abc")] {
            std::fs::write(&path, content).unwrap();
            assert_eq!(Source::File(path.clone()).read().unwrap(), value.as_bytes());
        }
        assert_eq!(Source::Command("printf 'x y\\n'".into()).read().unwrap(), b"x y");
    }

    #[test]
    fn a_source_without_a_value_is_an_error_of_one_line() {
        let directory = tempfile::tempdir().unwrap();
        let empty = directory.path().join("empty");
        std::fs::write(&empty, "\n").unwrap();
        let check = |source: Source, words: &str| {
            let error = source.read().unwrap_err();
            assert!(error.to_string().contains(words) && error.kind() == Kind::Secret, "{error}");
            assert!(error.advice().is_some(), "{error}");
        };
        check(Source::File(empty), "empty");
        check(Source::File(directory.path().join("none")), "No such file");
        check(Source::File("/dev/zero".into()), "longer than");
        check(Source::Environment("BRIG_NO_SUCH_VARIABLE".into()), "is not set");
        check(Source::Command("exit 3".into()), "exit status: 3");
        check(Source::Command("cat /dev/zero".into()), "more than 64 KiB");
    }
}
