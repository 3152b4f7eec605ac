//! Finds a command's file inside the container at `create`, and the home of its user.

use super::plan::{Gate, Vectors};
use crate::error::{Error, Kind, Result, wire};
use rustix::fs::{CWD, FileType, Mode, OFlags};
use rustix::io::Errno;
use std::ffi::{CStr, CString};
use std::fs::File;
use std::io::{BufRead, BufReader, Read};

/// In bytes; the image chose the file (containerd's CVE-2026-47262).
const LARGEST_PASSWD: u64 = 10 << 20;

/// Engines derive the exit status (126 or 127) from these words of Go's exec.LookPath, as in runc.
pub(super) fn find(vectors: &mut Vectors) -> Result<()> {
    let absolute = vectors.name.contains('/');
    for candidate in &vectors.candidates {
        match check(candidate) {
            Ok(()) => {
                vectors.candidates = vec![candidate.clone()];
                return Ok(());
            }
            Err(errno) if absolute => return Err(refused(&vectors.name, errno)),
            Err(_) => {}
        }
    }
    Err(Error::new(Kind::CommandNotFound, "executable file not found in $PATH")
        .doing(format!("exec: \"{}\"", vectors.name)))
}

fn check(path: &CStr) -> Result<(), Errno> {
    let status = rustix::fs::stat(path)?;
    if FileType::from_raw_mode(status.st_mode) == FileType::Directory {
        return Err(Errno::ISDIR);
    }
    // Not faccessat2(2): filters from before 2021 refuse it. execve decides where the mode does not.
    if status.st_mode & 0o111 == 0 { Err(Errno::ACCESS) } else { Ok(()) }
}

fn refused(name: &str, errno: Errno) -> Error {
    match errno {
        Errno::NOENT => Error::new(Kind::CommandNotFound, "no such file or directory").doing(format!("stat {name}")),
        Errno::NOTDIR => Error::new(Kind::CommandNotFound, "not a directory").doing(format!("stat {name}")),
        // Docker 20.10 and its client search for execve's words only, newer ones for either.
        Errno::ISDIR => Error::new(Kind::CommandNotExecutable, "permission denied").doing("is a directory"),
        Errno::ACCESS => Error::new(Kind::CommandNotExecutable, "permission denied"),
        other => Error::os(Kind::CommandNotExecutable, other),
    }
    .doing(format!("exec: \"{name}\""))
}

/// `/` without a line for the user in the container's passwd.
pub(super) fn add_home(vectors: &mut Vectors, uid: u32) {
    let home = home(uid).unwrap_or_else(|| b"/".to_vec());
    if let Ok(variable) = CString::new([b"HOME=", home.as_slice()].concat()) {
        vectors.environment.push(variable);
    }
}

fn home(uid: u32) -> Option<Vec<u8>> {
    // Non-blocking: an open or a read of a FIFO or device would wait forever.
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    // A filter may allow openat(2) and fstat(2), and neither open(2) nor statx(2).
    let file = rustix::fs::openat(CWD, "/etc/passwd", flags, Mode::empty()).ok()?;
    if FileType::from_raw_mode(rustix::fs::fstat(&file).ok()?.st_mode) != FileType::RegularFile {
        return None;
    }
    BufReader::new(File::from(file).take(LARGEST_PASSWD))
        .split(b'\n')
        .map_while(std::io::Result::ok)
        .find_map(|line| home_in(&line, uid))
}

fn home_in(line: &[u8], uid: u32) -> Option<Vec<u8>> {
    let mut fields = line.split(|byte| *byte == b':');
    let number = std::str::from_utf8(fields.nth(2)?).ok()?.parse::<u32>().ok()?;
    let home = fields.nth(2)?;
    (number == uid && !home.is_empty()).then(|| home.to_vec())
}

impl Gate {
    pub(super) fn report(&self, error: &Error) {
        // Without it `start` only reports that the container ended.
        let _ = rustix::io::write(&self.report, &wire::to_bytes(error));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_home_is_the_sixth_field_of_the_users_line() {
        assert_eq!(home_in(b"a:x:7:8:n:/home/a:/bin/sh", 7).unwrap(), b"/home/a");
        for line in [&b"a:x:7:8:n::/bin/sh"[..], b"a:x:70:8:n:/home/a:", b"", b"a:x", b"a:x:-7:8:n:/h:"] {
            assert!(home_in(line, 7).is_none());
        }
    }
}
