//! Searches the memory and the files of a sandbox for words that must not be there. Needs root.

use super::Started;
use std::collections::BTreeSet;
use std::fs;
use std::io::{Read, Seek, SeekFrom};
use std::path::PathBuf;

/// Every process inside the sandbox of a task, its first one among them.
pub fn inside(task: &Started) -> Vec<i32> {
    let mut all = vec![task.pid_1()];
    let mut next = 0;
    while let Some(pid) = all.get(next).copied() {
        next += 1;
        let Ok(threads) = fs::read_dir(format!("/proc/{pid}/task")) else { continue };
        for thread in threads.flatten() {
            let children = fs::read_to_string(thread.path().join("children")).unwrap_or_default();
            all.extend(children.split_whitespace().filter_map(|word| word.parse::<i32>().ok()));
        }
    }
    all
}

/// Horspool's search: tests are not optimised, and there are many megabytes.
fn holds(haystack: &[u8], needle: &[u8]) -> bool {
    let last = needle.len() - 1;
    let mut skip = [needle.len(); 256];
    needle[..last].iter().enumerate().for_each(|(at, byte)| skip[usize::from(*byte)] = last - at);
    let mut at = last;
    while let Some(byte) = haystack.get(at) {
        if haystack[at - last..=at] == *needle {
            return true;
        }
        at += skip[usize::from(*byte)];
    }
    false
}

/// The places of the words in a process: memory, environment, arguments.
pub fn memory_with(pid: i32, words: &[&[u8]]) -> BTreeSet<(usize, String)> {
    let mut found = BTreeSet::new();
    let mut note = |bytes: &[u8], place: &str| {
        for (index, word) in words.iter().enumerate() {
            if holds(bytes, word) {
                found.insert((index, format!("{pid}: {place}")));
            }
        }
    };
    for name in ["environ", "cmdline"] {
        note(&fs::read(format!("/proc/{pid}/{name}")).unwrap_or_default(), name);
    }
    let Ok(mut memory) = fs::File::open(format!("/proc/{pid}/mem")) else { return found };
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default();
    for line in maps.lines().filter(|line| line.split(' ').nth(1).is_some_and(|rights| rights.starts_with('r'))) {
        let (from, to) = line.split(' ').next().unwrap().split_once('-').unwrap();
        let (from, to) = (u64::from_str_radix(from, 16).unwrap(), u64::from_str_radix(to, 16).unwrap());
        let mut bytes = vec![0; (to - from) as usize];
        // The kernel's own pages cannot be read.
        if memory.seek(SeekFrom::Start(from)).and_then(|_| memory.read_exact(&mut bytes)).is_ok() {
            note(&bytes, line);
        }
    }
    found
}

/// The sandbox's files, and descriptors of memory files, that contain one of the words.
pub fn files_with(pid: i32, words: &[&[u8]]) -> Vec<(usize, String)> {
    let root = PathBuf::from(format!("/proc/{pid}/root"));
    let mut open: Vec<PathBuf> = ["etc", "home", "tmp", "var", "run", "root", "workspace", "dev/shm", "mnt", "srv"]
        .map(|name| root.join(name))
        .into();
    let mut found = Vec::new();
    while let Some(path) = open.pop() {
        let Ok(status) = fs::symlink_metadata(&path) else { continue };
        if status.is_dir() {
            open.extend(fs::read_dir(&path).into_iter().flatten().flatten().map(|entry| entry.path()));
        } else if status.is_file() {
            let content = fs::read(&path).unwrap_or_default();
            let hits = words.iter().enumerate().filter(|(_, word)| holds(&content, word));
            found.extend(hits.map(|(index, _)| (index, path.display().to_string())));
        }
    }
    for descriptor in fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten() {
        let target = fs::read_link(descriptor.path()).unwrap_or_default().display().to_string();
        assert!(!target.contains("memfd"), "{pid} has {target}");
    }
    found
}
