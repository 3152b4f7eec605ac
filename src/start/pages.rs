//! Releases the program's own pages while a process waits. The kernel reads them from the file again when needed.

use rustix::fs::{Mode, OFlags, open};
use rustix::io::{Errno, read};
use rustix::mm::{Advice, madvise};
use std::os::fd::OwnedFd;

const MAPS: &str = "/proc/self/smaps";

/// MADV_DONTNEED (madvise(2)) on read-only private mappings that are as in their file.
pub(crate) fn release() -> Result<(), Errno> {
    ProgramPages::open()?.release()
}

/// Reads its mappings once: for a process that will open no file, map nothing and change no protection.
pub(crate) struct ProgramPages {
    maps: Option<OwnedFd>,
    ranges: Vec<(usize, usize)>,
}

impl ProgramPages {
    /// The process itself must call this: the file is about the process that opens it (proc(5)).
    pub(crate) fn open() -> Result<ProgramPages, Errno> {
        let maps = open(MAPS, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
        Ok(ProgramPages { maps: Some(maps), ranges: Vec::new() })
    }

    /// Only the first call reads a file.
    pub(crate) fn release(&mut self) -> Result<(), Errno> {
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
        self.ranges.iter().try_for_each(|&(start, end)| {
            // SAFETY: the range is a read-only private mapping of a file, and none of its pages differs from the file.
            // No code can write to it, and a later access reads the same bytes again. Nothing is unmapped.
            unsafe { madvise(start as *mut _, end - start, Advice::LinuxDontNeed) }
        })
    }
}

/// The read-only mappings without an anonymous or swapped page (proc_pid_smaps(5)). Data that was relocated at the
/// start is read-only too, and would be lost.
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

/// For a read-only private mapping of a file: its range in a line of proc_pid_maps(5).
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
    fn only_unchanged_pages_are_released_and_the_program_works_afterwards() {
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
        let mut parts = ProgramPages::open().unwrap();
        for done in [release(), parts.release(), parts.release()] {
            done.unwrap();
        }
        assert!(!parts.ranges.is_empty());
        let words: Box<dyn std::fmt::Display> = std::hint::black_box(Box::new("by a table of the program"));
        assert_eq!(words.to_string().len(), 25);
        assert_eq!(std::hint::black_box(vec![1, 2, 3]).iter().sum::<i32>(), 6);
    }
}
