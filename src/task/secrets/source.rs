//! Sources of a secret's value.

use super::login::LoginFile;
use super::oauth;
use crate::error::{Context, Error, Kind, Result, Step};
use crate::files::{self, Pinned};
use rustix::fs::{CWD, FileType, Mode, OFlags, ResolveFlags, fstat, openat, openat2};
use std::ffi::OsString;
use std::io::Read;
use std::os::fd::{AsRawFd, OwnedFd};
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
            Source::File(path) if pinned.has(path) => Source::File(pinned.path(path)),
            Source::File(path) => Source::File(resolve_links(path)),
            Source::Login(login) => {
                let path = if pinned.has(&login.path) { pinned.path(&login.path) } else { resolve_folder(&login.path) };
                Source::Login(LoginFile { path, ..login.clone() })
            }
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
        trimmed(match self {
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
        })
    }

    /// The current value without waiting for a server or for another process; an error for an expired token.
    pub(super) fn at_hand(&self) -> Result<Vec<u8>> {
        match self {
            Source::OAuth(path) => {
                oauth::current(path, 0).ok_or_else(|| Error::new(Kind::Secret, "the token is at its end"))
            }
            // The descriptor that was checked.
            Source::File(path) => match find_file(path) {
                Some(file) => read_file(Path::new(&format!("/proc/self/fd/{}", file.as_raw_fd()))).and_then(trimmed),
                None => Err(Error::new(Kind::Secret, "it is not a regular file any more")),
            },
            _ => self.read(),
        }
    }

    pub(super) fn is_due(&self) -> bool {
        matches!(self, Source::OAuth(path) if oauth::is_due(path))
    }

    /// `None` if it is not a regular file: a read of a FIFO could wait for ever.
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
    let status = std::fs::File::from(find_file(path)?).metadata().ok()?;
    Some((status.dev(), status.ino(), status.mtime(), status.mtime_nsec(), status.size()))
}

fn resolve_folder(path: &Path) -> PathBuf {
    let folder = path.parent().and_then(|folder| std::fs::canonicalize(folder).ok());
    folder.zip(path.file_name()).map_or_else(|| path.to_owned(), |(folder, name)| folder.join(name))
}

/// Links count as they are at the start. Only a name that leads to a file of its folder may change its links.
fn resolve_links(path: &Path) -> PathBuf {
    let named = resolve_folder(path);
    match std::fs::canonicalize(path) {
        Ok(real) if named.parent().is_some_and(|folder| real.starts_with(folder)) => named,
        Ok(real) => real,
        Err(_) => path.to_owned(), // such as /dev/fd/N of a pipe
    }
}

/// A regular file, opened by O_PATH, which a FIFO's writer does not notice. Follows no link above the file, and none out
/// of its folder. A task with a writable mount there could lead such a link to a file of the host. Kubernetes replaces a
/// secret by a link inside the folder.
fn find_file(path: &Path) -> Option<OwnedFd> {
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let file = if path.starts_with("/proc/self/fd") {
        openat(CWD, path, flags, Mode::empty()).ok()? // pinned
    } else {
        let strict = ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
        let folder = openat2(CWD, path.parent()?, flags | OFlags::DIRECTORY, Mode::empty(), strict).ok()?;
        let within = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
        openat2(folder, path.file_name()?, flags, Mode::empty(), within).ok()?
    };
    let is_regular = FileType::from_raw_mode(fstat(&file).ok()?.st_mode) == FileType::RegularFile;
    is_regular.then_some(file)
}

fn trimmed(mut value: Vec<u8>) -> Result<Vec<u8>> {
    let end = value.len() - usize::from(value.ends_with(b"\n"));
    let end = end - usize::from(value[..end].ends_with(b"\r"));
    if end == 0 {
        return Err(Error::new(Kind::Secret, "the value is empty").hint("see that its source has one"));
    }
    value.truncate(end);
    Ok(value)
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
    fn a_file_is_followed_by_its_name_and_by_no_link_that_leads_out_of_its_folder() {
        use std::os::unix::fs::symlink;
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        let follow = |path: PathBuf| Source::File(path).pinned(&Pinned::default());
        std::fs::create_dir_all(at("volume/..1")).unwrap();
        std::fs::create_dir_all(at("volume/..2")).unwrap();
        std::fs::write(at("victim"), "of the host").unwrap();
        std::fs::write(at("volume/..1/token"), "one").unwrap();
        std::fs::write(at("volume/..2/token"), "two").unwrap();
        // As Kubernetes mounts a secret, and replaces it.
        symlink("..1", at("volume/..data")).unwrap();
        symlink("..data/token", at("volume/token")).unwrap();
        symlink("volume", at("link")).unwrap();
        let source = follow(at("link/token"));
        let before = source.version();
        let login = LoginFile { path: at("link/token"), token: String::new(), expires: None, program: String::new() };
        assert_eq!(Source::Login(login).pinned(&Pinned::default()).version(), before);
        assert_eq!((source.at_hand().unwrap(), before.is_some()), (b"one".to_vec(), true));
        symlink("..2", at("volume/..new")).unwrap();
        std::fs::rename(at("volume/..new"), at("volume/..data")).unwrap();
        assert_eq!(source.at_hand().unwrap(), b"two");
        assert!(source.version().is_some() && source.version() != before);
        let check = |target: &str| {
            std::fs::remove_file(at("volume/token")).unwrap();
            symlink(target, at("volume/token")).unwrap();
            assert!(source.version().is_none() && source.at_hand().is_err(), "{target}");
        };
        check("../victim");
        check(at("victim").to_str().unwrap());
        // A folder that became a link.
        std::fs::rename(at("volume"), at("moved")).unwrap();
        symlink(directory.path(), at("volume")).unwrap();
        std::fs::write(at("token"), "of the host").unwrap();
        assert!(source.version().is_none() && source.at_hand().is_err());
        // A link out of its folder at the start names the file that it leads to.
        symlink("../victim", at("moved/out")).unwrap();
        let source = follow(at("moved/out"));
        std::fs::write(at("new"), "the next").unwrap();
        std::fs::rename(at("new"), at("victim")).unwrap();
        assert_eq!(source.at_hand().unwrap(), b"the next");
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
