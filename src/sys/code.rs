//! Giving the pages of our own program back to the kernel while we only wait: they are read again from the file when they are needed.

use rustix::fs::{Mode, OFlags, open};
use rustix::io::{Errno, read};
use std::os::fd::OwnedFd;

const MAPS: &str = "/proc/self/smaps";

/// Lets go of every page of the program's read-only parts that is as the file has it. madvise(2), MADV_DONTNEED on private mappings of a file.
pub(crate) fn let_go() -> Result<(), Errno> {
    let maps = std::fs::read_to_string(MAPS).map_err(|cause| Errno::from_io_error(&cause).unwrap_or(Errno::IO))?;
    forget(&unchanged(&maps))
}

/// The same for a process that can open no file any more, maps nothing anew and changes the rights of nothing: where its parts are is read once.
pub(crate) struct Parts {
    maps: Option<OwnedFd>,
    ranges: Vec<(usize, usize)>,
}

impl Parts {
    /// To be called by the process itself (proc(5): the file is of whoever opens it).
    pub(crate) fn open() -> Result<Parts, Errno> {
        let maps = open(MAPS, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
        Ok(Parts { maps: Some(maps), ranges: Vec::new() })
    }

    /// Lets go of them. Only the first call reads a file.
    pub(crate) fn let_go(&mut self) -> Result<(), Errno> {
        if let Some(maps) = self.maps.take() {
            let (mut text, mut chunk) = (Vec::new(), [0_u8; 4096]);
            loop {
                match read(&maps, &mut chunk)? {
                    0 => break,
                    count => text.extend_from_slice(&chunk[..count]),
                }
            }
            self.ranges = unchanged(&String::from_utf8_lossy(&text));
        }
        forget(&self.ranges)
    }
}

/// Nothing but [`unchanged`] ranges.
fn forget(ranges: &[(usize, usize)]) -> Result<(), Errno> {
    ranges.iter().try_for_each(|&(start, end)| {
        // SAFETY: the range is a read-only private mapping of a file without a page of its own, so nothing in it differs from the file, nothing can
        // write to it, and an access after this reads the same bytes again. Nothing is unmapped.
        match unsafe { libc::madvise(start as *mut libc::c_void, end - start, libc::MADV_DONTNEED) } {
            0 => Ok(()),
            _ => Err(super::last_errno()),
        }
    })
}

/// The read-only mappings of proc_pid_smaps(5) of which no page is the process's own. What the loader has relocated is read-only as well, and
/// would be lost.
fn unchanged(maps: &str) -> Vec<(usize, usize)> {
    let mut found = Vec::new();
    let mut is_in = false;
    for line in maps.lines() {
        let mut words = line.split_whitespace();
        match words.next() {
            Some("Anonymous:" | "Swap:") if is_in && words.next() != Some("0") => {
                found.pop();
                is_in = false;
            }
            Some(word) if word.ends_with(':') => {}
            _ => {
                let range = read_only_file(line);
                is_in = range.is_some();
                found.extend(range);
            }
        }
    }
    found
}

/// The range of a line of proc_pid_maps(5), if it is a private mapping of a file that cannot be written.
fn read_only_file(line: &str) -> Option<(usize, usize)> {
    let mut fields = line.split_whitespace();
    let (start, end) = fields.next()?.split_once('-')?;
    let rights = fields.next()?;
    let inode = fields.nth(2)?;
    let is_file = inode != "0" && matches!(rights, "r-xp" | "r--p");
    is_file.then_some(())?;
    Some((usize::from_str_radix(start, 16).ok()?, usize::from_str_radix(end, 16).ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_the_file_itself_is_let_go_and_all_works_afterwards() {
        let check = |line: &str, expected| assert_eq!(read_only_file(line), expected, "{line}");
        check("00400000-00600000 r-xp 00001000 fe:01 1234  /usr/bin/brig", Some((0x40_0000, 0x60_0000)));
        check("00600000-00601000 rw-p 00001000 fe:01 1234  /usr/bin/brig", None);
        check("00600000-00601000 r-xs 00001000 fe:01 1234  /usr/bin/brig", None);
        check("7ffd0000-7ffd2000 r-xp 00000000 00:00 0     [vdso]", None);
        check("rubbish", None);
        let own = "1000-2000 r--p 00000000 fe:01 7 /brig\nAnonymous:             4 kB\n";
        let swapped =
            "2000-3000 r--p 00000000 fe:01 7 /brig\nAnonymous:             0 kB\nSwap:                  4 kB\n";
        let file = "3000-4000 r--p 00000000 fe:01 7 /brig\nRss: 4 kB\nAnonymous:             0 kB\nSwap:        0 kB\nVmFlags: rd mr\n";
        assert_eq!(unchanged(&[file, own, swapped, file].concat()), [(0x3000, 0x4000); 2]);
        let mut parts = Parts::open().unwrap();
        for done in [let_go(), parts.let_go(), parts.let_go()] {
            done.unwrap();
        }
        assert!(!parts.ranges.is_empty());
        let words: Box<dyn std::fmt::Display> = std::hint::black_box(Box::new("by a table of the program"));
        assert_eq!(words.to_string().len(), 25);
        assert_eq!(std::hint::black_box(vec![1, 2, 3]).iter().sum::<i32>(), 6);
    }
}
