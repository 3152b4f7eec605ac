//! The usual command lines of `brig task run`, read without the parser of all of its flags: building that takes a twentieth of a sandbox's whole start
//! (docs/decisions/0005-start-path.md). Whatever is not plain here is left to it, mistakes above all.

use super::run::Arguments;
use brig::sandbox::LimitName;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

/// What was read so far.
#[derive(Default)]
struct Seen {
    store: Option<PathBuf>,
    run: Arguments,
}

/// What follows `brig task run`: the store, if one is named, and the rest. `None` if it is for the parser.
pub(super) fn read(words: &[OsString]) -> Option<(Option<PathBuf>, Arguments)> {
    let mut seen = Seen::default();
    let mut words = words.iter();
    while let Some(word) = words.next() {
        if word == "--" {
            seen.run.command = words.cloned().collect();
            break;
        }
        let (name, attached) = split(word)?;
        if attached.is_none() && seen.switch(name) {
            continue;
        }
        // What begins with a dash is a flag to the parser, so it is no plain value.
        let next = || words.next().map(OsString::as_os_str).filter(|word| !word.as_bytes().starts_with(b"-"));
        let value = attached.or_else(next).filter(|value| !value.is_empty())?;
        seen.value(name, value)?;
    }
    if seen.store.is_none() {
        seen.store = std::env::var_os("BRIG_STORE").map(PathBuf::from);
    }
    let Seen { store, run } = seen;
    let contradicts = run.empty && run.dir.is_some();
    let plain = store.as_ref().is_none_or(|path| !path.as_os_str().is_empty()) && !contradicts;
    plain.then_some((store, run))
}

/// A flag and what is attached to it by `=`.
fn split(word: &OsStr) -> Option<(&str, Option<&OsStr>)> {
    let bytes = word.as_bytes();
    if bytes == b"-e" {
        return Some(("env", None));
    }
    let flag = bytes.strip_prefix(b"--")?;
    let end = flag.iter().position(|byte| *byte == b'=').unwrap_or(flag.len());
    let attached = flag.get(end + 1..).map(OsStr::from_bytes);
    Some((std::str::from_utf8(&flag[..end]).ok()?, attached))
}

impl Seen {
    /// Sets a flag that has no value; `false` if it is none, or there already.
    fn switch(&mut self, name: &str) -> bool {
        let flag = match name {
            "empty" => &mut self.run.empty,
            "json" => &mut self.run.json,
            _ => return false,
        };
        !std::mem::replace(flag, true)
    }

    /// Sets a flag that has one; `None` if it is not known here, or there already.
    fn value(&mut self, name: &str, value: &OsStr) -> Option<()> {
        if let Some(limit) = LimitName::ALL.into_iter().find(|limit| is_flag_of(name, limit.word())) {
            let limits = &mut self.run.limits.0;
            let place = limits.binary_search_by_key(&limit, |(known, _)| *known).err()?;
            limits.insert(place, (limit, value.to_str()?.to_owned()));
            return Some(());
        }
        if name == "env" {
            self.run.environment.push(value.to_owned());
            return Some(());
        }
        let path = match name {
            "store" => &mut self.store,
            "dir" => &mut self.run.dir,
            "rootfs" => &mut self.run.rootfs,
            "profile" => &mut self.run.profile,
            _ => return None,
        };
        path.replace(PathBuf::from(value)).is_none().then_some(())
    }
}

/// Whether a flag is that of a limit, whose word has `_` where the flag has `-`.
fn is_flag_of(flag: &str, word: &str) -> bool {
    flag.len() == word.len() && flag.bytes().zip(word.bytes()).all(|(a, b)| a == b || (a == b'-' && b == b'_'))
}

#[cfg(test)]
mod tests {
    use super::super::Direct;
    use super::*;
    use clap::Parser;

    fn words(line: &str) -> Vec<OsString> {
        line.split(' ').filter(|word| !word.is_empty()).map(|word| word.replace('~', " ").into()).collect()
    }

    fn parsed(words: &[OsString]) -> Result<Direct, clap::Error> {
        Direct::try_parse_from(std::iter::once(&OsString::from("brig task run")).chain(words))
    }

    #[test]
    fn what_is_read_here_is_what_the_parser_reads() {
        let lines = [
            "",
            "--",
            "--empty -- true",
            "--json --empty -- sh -c x~y --json",
            "--dir . --memory 512M --cpus=1.5 -- make -j4 -- x",
            "--dir=/a=b --io-bps 1M --cpu-time=10s --open-files 99 --store /s --profile p.toml --rootfs=/r -- a",
            "-e A=b --env C --env=D=-e -- env",
            "--wall=-1 -- true",
            "--json",
        ];
        for line in lines {
            let words = words(line);
            let Direct { store, run } = parsed(&words).unwrap();
            assert_eq!(read(&words), Some((store, run)), "{line}");
        }
    }

    #[test]
    fn what_is_not_plain_is_left_to_the_parser() {
        let lines = [
            "true",
            "--dir",
            "--dir= -- a",
            "--dir -- a",
            "--dir a --dir b -- c",
            "--dir a --empty -- b",
            "--empty --empty -- a",
            "--empty=x -- a",
            "--memory 1G --memory 2G -- a",
            "--memory -1 -- a",
            "--memor 1G -- a",
            "--cpu_tim 1s -- a",
            "-eA=b -- a",
            "-e -- a",
            "-d --empty -- a",
            "--help",
            "--repo x -- a",
            "---empty -- a",
            "--allow x -- a",
        ];
        for line in lines {
            assert!(read(&words(line)).is_none(), "{line}");
        }
    }
}
