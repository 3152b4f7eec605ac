//! Looks up paths in a stack of layers without mounting it, with overlayfs's semantics. No lookup follows a symlink out
//! of the stack.

use super::form::{Form, open_below};
use crate::error::{Context, Error, Kind, Result};
use crate::files::Names;
use crate::sys::weaken;
use rustix::fs::{AtFlags, FileType, Mode, OFlags, Stat, openat, readlinkat, statat};
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

const MOST_HOPS: usize = 40;

/// Topmost first.
pub(crate) struct Stack {
    layers: Vec<OwnedFd>,
    form: Form,
}

pub(crate) struct Hit {
    pub(crate) directory: OwnedFd,
    pub(crate) name: Vec<u8>,
    pub(crate) stat: Stat,
}

impl Hit {
    pub(crate) fn kind(&self) -> FileType {
        FileType::from_raw_mode(self.stat.st_mode)
    }
}

impl Stack {
    pub(crate) fn open<P: AsRef<Path>>(layers: &[P], form: Form) -> Result<Stack> {
        let open = |path: &P| {
            let path = path.as_ref();
            let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
            rustix::fs::open(path, flags, Mode::empty())
                .failing(Kind::Store, || format!("open the layer `{}`", path.display()))
        };
        Ok(Stack { layers: layers.iter().map(open).collect::<Result<Vec<_>>>()?, form })
    }

    /// The parents of `path` must be real directories; the last component may be anything.
    pub(crate) fn find(&self, path: &[u8]) -> Result<Option<Hit>> {
        let parts: Vec<&[u8]> = path.split(|byte| *byte == b'/').collect();
        'layers: for root in &self.layers {
            let mut hides_below = false;
            // A layer without the path costs one look-up: there may be a hundred layers.
            let mut opened: Option<OwnedFd> = None;
            for (index, part) in parts.iter().enumerate() {
                let last = index + 1 == parts.len();
                let directory = opened.as_ref().unwrap_or(root).as_fd();
                let stat = match statat(directory, *part, AtFlags::SYMLINK_NOFOLLOW) {
                    Ok(stat) => stat,
                    Err(Errno::NOENT) if hides_below => return Ok(None),
                    Err(Errno::NOENT) => continue 'layers,
                    Err(errno) => return Err(errno).failing(Kind::Store, || "look into a layer"),
                };
                let kind = FileType::from_raw_mode(stat.st_mode);
                if kind != FileType::Directory && self.form.is_whiteout(directory, part)? {
                    return Ok(None);
                }
                if last {
                    let directory = match opened {
                        Some(directory) => directory,
                        None => open_below(root.as_fd(), b"").failing(Kind::Store, || "open a layer")?,
                    };
                    return Ok(Some(Hit { directory, name: part.to_vec(), stat }));
                }
                if kind != FileType::Directory {
                    return Ok(None);
                }
                let below = open_below(directory, part).failing(Kind::Store, || "look into a layer")?;
                hides_below |= self.form.is_opaque(below.as_fd())?;
                opened = Some(below);
            }
        }
        Ok(None)
    }

    /// The root of the topmost layer, which an overlay shows as its root.
    pub(crate) fn top(&self) -> Result<Option<Hit>> {
        let Some(root) = self.layers.first() else { return Ok(None) };
        let directory = open_below(root.as_fd(), b"").failing(Kind::Store, || "open a layer")?;
        let stat = rustix::fs::fstat(&directory).failing(Kind::Store, || "look at a layer")?;
        Ok(Some(Hit { directory, name: b".".to_vec(), stat }))
    }

    pub(crate) fn root_names(&self) -> Result<BTreeMap<Vec<u8>, bool>> {
        let mut topmost = BTreeMap::new();
        for root in &self.layers {
            let directory = open_below(root.as_fd(), b"").failing(Kind::Store, || "open a layer")?;
            for (name, kind) in Names::of(&directory).failing(Kind::Store, || "list a directory")?.iter() {
                let Entry::Vacant(vacant) = topmost.entry(name.to_bytes().to_vec()) else { continue };
                let is_directory = kind == FileType::Directory;
                let is_shown = is_directory || !self.form.is_whiteout(directory.as_fd(), vacant.key())?;
                vacant.insert(is_shown.then_some(is_directory));
            }
        }
        Ok(topmost.into_iter().filter_map(|(name, shown)| Some((name, shown?))).collect())
    }

    /// Resolves symlinks inside the stack, the last component only if `last`. Missing components stay.
    pub(crate) fn real_path(&self, path: &[u8], last: bool) -> Result<Vec<u8>> {
        let part = |path: &[u8]| -> Vec<Vec<u8>> {
            path.split(|byte| *byte == b'/')
                .filter(|part| !part.is_empty() && *part != b".")
                .map(<[u8]>::to_vec)
                .rev()
                .collect()
        };
        let mut pending = part(path);
        let mut real: Vec<Vec<u8>> = Vec::new();
        let mut hops = 0;
        while let Some(component) = pending.pop() {
            if component == b".." {
                real.pop();
                continue;
            }
            real.push(component);
            if pending.is_empty() && !last {
                break;
            }
            let Some(hit) = self.find(&real.join(&b'/'))? else { continue };
            if hit.kind() == FileType::Symlink {
                hops += 1;
                if hops > MOST_HOPS {
                    return Err(Error::new(Kind::Image, "the path goes through too many symlinks"));
                }
                let target = readlinkat(&hit.directory, hit.name.as_slice(), Vec::new());
                let target = target.failing(Kind::Store, || "read a layer's symlink")?.into_bytes();
                real.pop();
                if target.first() == Some(&b'/') {
                    real.clear();
                }
                pending.extend(part(&target));
            }
        }
        Ok(real.join(&b'/'))
    }

    /// Follows symlinks; `None` if the file is missing. An image may contain a FIFO or a hole of a terabyte
    /// (CVE-2026-47262).
    pub(crate) fn read(&self, path: &str, limit: u64) -> Result<Option<Vec<u8>>> {
        let real = self.real_path(path.trim_start_matches('/').as_bytes(), true)?;
        if real.is_empty() {
            return Ok(None);
        }
        let Some(hit) = self.find(&real)? else { return Ok(None) };
        read_regular(hit.directory.as_fd(), &hit.name, limit)
            .map(Some)
            .map_err(|error| error.doing(format!("read the image's `{path}`")))
    }
}

/// Opens without blocking and follows no link.
pub(crate) fn read_regular(directory: BorrowedFd<'_>, name: &[u8], limit: u64) -> Result<Vec<u8>> {
    use std::io::Read;
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC | OFlags::NOCTTY;
    let before = statat(directory, name, AtFlags::SYMLINK_NOFOLLOW).failing(Kind::Image, || "look at it")?;
    // Opening a device can have effects.
    if FileType::from_raw_mode(before.st_mode) != FileType::RegularFile {
        return Err(Error::new(Kind::Image, "it is not a regular file"));
    }
    let file = openat(directory, name, flags, Mode::empty()).failing(Kind::Image, || "open it")?;
    let limit = if weaken::is_off("image-document-size") { u64::MAX - 1 } else { limit };
    let stat = rustix::fs::fstat(&file).failing(Kind::Image, || "look at it")?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return Err(Error::new(Kind::Image, "it is not a regular file"));
    }
    let mut bytes = Vec::new();
    let read = std::fs::File::from(file).take(limit + 1).read_to_end(&mut bytes);
    read.map_err(|cause| Error::os(Kind::Image, cause))?;
    if bytes.len() as u64 > limit {
        return Err(Error::new(Kind::Image, format!("it is longer than {limit} bytes")));
    }
    Ok(bytes)
}
