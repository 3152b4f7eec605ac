//! Works with files inside a running sandbox, as a process of the sandbox: its user, root, filter and Landlock rules. A
//! path, through any link, leads to the sandbox's files only.
//!
//! Standard input: one line of JSON, [`FileRequest`], then data. Data goes to standard output, an error to standard
//! error.

use super::signals::Signals;
use crate::container::archive;
use crate::error::{Context, Error, Kind, Result, wire};
use crate::files::Patterns;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use std::ffi::OsString;
use std::fs::File;
use std::io::{BufRead, Read, Write};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum FileRequest {
    Read(PathBuf),
    /// Writes the following bytes.
    Write {
        path: PathBuf,
        /// Permissions of a new file.
        mode: u32,
    },
    /// The entries, as a JSON array.
    List(PathBuf),
    /// At most so many entries, and the number of all, as a JSON array of two.
    ListFirst(PathBuf, usize),
    /// A tree as a tar stream under this name, without what these patterns match.
    Pack(PathBuf, PathBuf, Vec<String>),
    /// Unpacks the following tar stream: into an existing folder under its name, else as this path. The name is its top
    /// one.
    Unpack(PathBuf, PathBuf),
    /// The status, as one JSON object.
    Look(PathBuf),
    /// Stay until the sandbox or a signal ends the process.
    Hold,
}

/// One entry of a folder in a sandbox.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileEntry {
    /// Its name; invalid UTF-8 is replaced.
    pub name: String,
    /// Its type: `file`, `directory`, `symlink` or `other`.
    pub kind: String,
    /// Bytes.
    pub size: u64,
    /// The twelve permission bits.
    pub mode: u32,
    /// Seconds since 1970.
    pub modified: i64,
}

/// Longer than any path.
const LONGEST_LINE: u64 = 64 << 10;

/// The path of brig itself in another runtime's container.
pub(crate) const PROGRAM: &str = "/run/brig-files";
/// The argument for a sandbox without a command.
pub(crate) const HOLD: &str = "hold";

/// Runs as `PROGRAM`, started by another runtime's `exec` or `run`; `None` under any other name.
pub fn as_visitor(words: &[OsString]) -> Option<i32> {
    let [name, rest @ ..] = words else { return None };
    if name != PROGRAM {
        return None;
    }
    let holds = rest.first().is_some_and(|word| word == HOLD);
    Some(if holds { hold().map_or(1, |()| 0) } else { serve() })
}

/// Waits until a signal asks for the end. The first process of a container must take the signal itself
/// (pid_namespaces(7)).
fn hold() -> Result<()> {
    let signals = Signals::take()?;
    while !signals.wants_end() {
        let mut fds = [PollFd::new(&signals, PollFlags::IN)];
        match poll(&mut fds, None) {
            Err(Errno::INTR) | Ok(_) => {}
            Err(cause) => return Err(cause).failing(Kind::Internal, || "wait for a signal"),
        }
    }
    Ok(())
}

/// Returns the exit status.
pub(super) fn serve() -> i32 {
    match work() {
        Ok(()) => 0,
        Err(error) => {
            // If the caller is gone, the error is lost.
            let _ = std::io::stderr().write_all(&wire::to_bytes(&error));
            1
        }
    }
}

fn work() -> Result<()> {
    let mut input = std::io::stdin().lock();
    let mut line = Vec::new();
    input.by_ref().take(LONGEST_LINE).read_until(b'\n', &mut line).failing(Kind::Lost, || "read what is to be done")?;
    let request = serde_json::from_slice(&line).map_err(|cause| Error::new(Kind::Lost, cause.to_string()))?;
    let mut out = std::io::stdout().lock();
    let said = |done: std::io::Result<u64>, path: &Path| done.map(|_| ()).failing(Kind::Store, || words("copy", path));
    match request {
        FileRequest::Read(path) => {
            let copied = std::io::copy(&mut open(&path)?, &mut out);
            // Standard output keeps what follows the last newline, and this process ends without its destructor.
            said(copied.and_then(|count| out.flush().map(|()| count)), &path)
        }
        FileRequest::Write { path, mode } => {
            let mut options = File::options();
            options.write(true).create(true).truncate(true).mode(mode).custom_flags(libc::O_NONBLOCK);
            let mut file = options.open(&path).failing(Kind::NotFound, || words("write", &path))?;
            must_be_file(&file, &path)?;
            said(std::io::copy(&mut input, &mut file), &path)
        }
        FileRequest::List(path) => write_json(&mut out, &list(&path)?, &path),
        FileRequest::ListFirst(path, most) => {
            let mut entries = list(&path)?;
            let count = entries.len();
            entries.truncate(most);
            write_json(&mut out, &(entries, count), &path)
        }
        FileRequest::Look(path) => {
            let status = std::fs::metadata(&path).failing(Kind::NotFound, || words("look at", &path))?;
            write_json(&mut out, &describe(String::new(), &status), &path)
        }
        FileRequest::Pack(path, name, exclude) => {
            let exclude = Patterns::of_flag("--exclude", &exclude)?;
            archive::pack(&path, &name, &exclude, &mut out).map(|_| ())
        }
        FileRequest::Unpack(target, name) => archive::unpack_at(input, &target, &name, archive::Bounds::NONE),
        FileRequest::Hold => loop {
            std::thread::park(); // a signal or pid 1's end ends this process
        },
    }
}

fn words(verb: &str, path: &Path) -> String {
    format!("{verb} `{}` in the sandbox", path.display())
}

fn open(path: &Path) -> Result<File> {
    let opened = File::options().read(true).custom_flags(libc::O_NONBLOCK).open(path);
    let file = opened.failing(Kind::NotFound, || words("read", path))?;
    must_be_file(&file, path)?;
    Ok(file)
}

fn must_be_file(file: &File, path: &Path) -> Result<()> {
    let kind = file.metadata().failing(Kind::NotFound, || words("look at", path))?.file_type();
    if kind.is_file() || (kind.is_char_device() && path.starts_with("/dev")) {
        return Ok(());
    }
    Err(Error::new(Kind::Workspace, "it is not a file")
        .doing(words("open", path))
        .hint("name a file; `cp` takes folders too"))
}

fn list(path: &Path) -> Result<Vec<FileEntry>> {
    let step = || words("list", path);
    let mut entries = Vec::new();
    for entry in std::fs::read_dir(path).failing(Kind::NotFound, step)? {
        let entry = entry.failing(Kind::NotFound, step)?;
        // Skip an entry removed meanwhile.
        let Ok(status) = entry.metadata() else { continue };
        entries.push(describe(entry.file_name().to_string_lossy().into_owned(), &status));
    }
    entries.sort_by(|one, other| one.name.cmp(&other.name));
    Ok(entries)
}

fn describe(name: String, status: &std::fs::Metadata) -> FileEntry {
    let kind = status.file_type();
    let word = match () {
        () if kind.is_dir() => "directory",
        () if kind.is_symlink() => "symlink",
        () if kind.is_file() => "file",
        () => "other",
    };
    FileEntry { name, kind: word.into(), size: status.len(), mode: status.mode() & 0o7777, modified: status.mtime() }
}

fn write_json<T: Serialize>(out: &mut impl Write, value: &T, path: &Path) -> Result<()> {
    let bytes = serde_json::to_vec(value).map_err(|cause| Error::new(Kind::Internal, cause.to_string()))?;
    out.write_all(&bytes).and_then(|()| out.flush()).failing(Kind::Lost, || words("tell of", path))
}
