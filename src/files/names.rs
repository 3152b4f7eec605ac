//! The names of one directory of a hostile tree.

use rustix::fs::{AtFlags, FileType, RawDir, SeekFrom, seek, statat};
use rustix::io::Errno;
use std::ffi::CStr;
use std::os::fd::AsFd;

/// Bytes of one getdents64(2), as in glibc.
const LISTING: usize = 32 << 10;

/// All but `.` and `..`.
#[derive(Debug, Default)]
pub(crate) struct Names {
    /// Each name ends with a NUL.
    bytes: Vec<u8>,
    spans: Vec<NameSpan>,
}

#[derive(Clone, Copy, Debug)]
struct NameSpan {
    start: u32,
    /// Without the NUL.
    length: u16,
    kind: FileType,
}

impl Names {
    /// Adds at most `limit` names. Returns whether the directory has more.
    pub(crate) fn read(&mut self, directory: impl AsFd, limit: usize) -> Result<bool, Errno> {
        let most = self.spans.len().saturating_add(limit);
        seek(&directory, SeekFrom::Start(0))?;
        let mut buffer = Vec::with_capacity(LISTING);
        let mut entries = RawDir::new(directory.as_fd(), buffer.spare_capacity_mut());
        while let Some(entry) = entries.next() {
            let entry = entry?;
            let name = entry.file_name();
            if matches!(name.to_bytes(), b"." | b"..") {
                continue;
            }
            if self.spans.len() == most {
                return Ok(true);
            }
            let kind = match entry.file_type() {
                FileType::Unknown => match statat(&directory, name, AtFlags::SYMLINK_NOFOLLOW) {
                    Ok(status) => FileType::from_raw_mode(status.st_mode),
                    Err(Errno::NOENT) => continue,
                    Err(errno) => return Err(errno),
                },
                known => known,
            };
            let start = u32::try_from(self.bytes.len()).map_err(|_| Errno::OVERFLOW)?;
            let length = u16::try_from(name.to_bytes().len()).map_err(|_| Errno::NAMETOOLONG)?;
            self.bytes.extend_from_slice(name.to_bytes_with_nul());
            self.spans.push(NameSpan { start, length, kind });
        }
        Ok(false)
    }

    pub(crate) fn of(directory: impl AsFd) -> Result<Names, Errno> {
        let mut names = Names::default();
        names.read(directory, usize::MAX)?;
        Ok(names)
    }

    /// By bytes, without duplicates.
    pub(crate) fn sort(&mut self) {
        let bytes = &self.bytes;
        let name = |span: &NameSpan| &bytes[span.start as usize..][..usize::from(span.length)];
        self.spans.sort_unstable_by(|one, other| name(one).cmp(name(other)));
        self.spans.dedup_by(|one, other| name(one) == name(other));
    }

    pub(crate) fn len(&self) -> usize {
        self.spans.len()
    }

    fn name(&self, span: NameSpan) -> &CStr {
        let bytes = &self.bytes[span.start as usize..][..=usize::from(span.length)];
        CStr::from_bytes_with_nul(bytes).unwrap_or_default()
    }

    pub(super) fn get(&self, index: usize) -> Option<(&CStr, FileType)> {
        self.spans.get(index).map(|span| (self.name(*span), span.kind))
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&CStr, FileType)> {
        self.spans.iter().map(|span| (self.name(*span), span.kind))
    }
}

pub(crate) fn has_entries(directory: impl AsFd) -> Result<bool, Errno> {
    Names::default().read(directory, 0)
}
