//! Parsers of values for flags, profiles and rules of hosted mode.

use crate::error::{Error, Kind, Result};
use crate::sandbox::{LimitName, parse_size};
use crate::task::secrets::Secret;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;

pub(crate) fn line_at(text: &str, offset: usize) -> usize {
    text.get(..offset).unwrap_or(text).matches('\n').count() + 1
}

pub(crate) fn place(text: &str, cause: &toml::de::Error) -> String {
    place_at(text, cause.span().map_or(0, |span| span.start), cause.message())
}

pub(crate) fn place_at(text: &str, offset: usize, words: &str) -> String {
    let number = line_at(text, offset);
    let line = text.lines().nth(number - 1).unwrap_or_default().trim();
    let line: String = line.chars().take(60).collect();
    format!("line {number} (`{line}`): {}", words.replace('\n', " "))
}

pub(crate) fn limit(key: &str) -> Result<LimitName> {
    LimitName::of_word(key).ok_or_else(|| {
        let all: Vec<_> = LimitName::ALL.iter().map(|name| name.word()).collect();
        Error::new(Kind::Profile, format!("there is no limit `{key}`"))
            .hint(format!("the limits are {}", all.join(", ")))
    })
}

/// Returns the name as receipts have it: `cpu-time` and `cpu_time` are one.
pub fn degradable(name: &str) -> Result<String> {
    let word = name.replace('-', "_");
    let limits = [
        LimitName::Cpus,
        LimitName::CpuTime,
        LimitName::Memory,
        LimitName::Swap,
        LimitName::Pids,
        LimitName::Disk,
        LimitName::Inodes,
        LimitName::IoBps,
        LimitName::IoIops,
    ];
    let mut all: Vec<_> = limits.iter().map(|limit| limit.word()).collect();
    all.extend(["landlock", "network", "isolation"]);
    if all.contains(&word.as_str()) {
        return Ok(word);
    }
    Err(Error::new(Kind::Usage, format!("`{name}` is nothing that may be missing"))
        .hint(format!("these may: {}", all.join(", "))))
}

/// A variable of the command line.
pub enum Variable {
    /// `NAME=VALUE`
    Set(OsString, OsString),
    /// `NAME`: the caller's own value, which is a secret.
    Passed(Secret),
}

/// `NAME=VALUE`, or `NAME` for the caller's own value.
pub fn variable(text: &OsStr) -> Result<(OsString, OsString)> {
    match given_variable(text)? {
        Variable::Set(name, value) => Ok((name, value)),
        Variable::Passed(secret) => {
            let name = OsString::from(secret.name);
            let value = std::env::var_os(&name).unwrap_or_default();
            Ok((name, value))
        }
    }
}

/// Like [`variable`], but the caller's own value is hidden in all output of the task.
pub fn given_variable(text: &OsStr) -> Result<Variable> {
    let bytes = text.as_bytes();
    let (name, value) = match bytes.iter().position(|&byte| byte == b'=') {
        Some(at) => (OsStr::from_bytes(&bytes[..at]), Some(OsStr::from_bytes(&bytes[at + 1..]).to_owned())),
        None => (text, None),
    };
    if name.is_empty() {
        return Err(Error::new(Kind::Usage, format!("`{}` has no name", text.to_string_lossy()))
            .hint("give it like `-e NAME=VALUE`"));
    }
    match value {
        Some(value) => Ok(Variable::Set(name.to_owned(), value)),
        None if std::env::var_os(name).is_some() => Ok(Variable::Passed(Secret::of_caller(&name.to_owned())?)),
        None => Err(Error::new(Kind::Usage, format!("the variable `{}` is not set", name.to_string_lossy()))
            .hint("set it, or give the value: -e NAME=VALUE")),
    }
}

/// An address, with port 53 if it has none.
pub fn resolver(text: &str) -> Result<std::net::SocketAddr> {
    const DNS: u16 = 53;
    let address = text.parse().or_else(|_| text.parse::<std::net::IpAddr>().map(|address| (address, DNS).into()));
    address.map_err(|_| {
        Error::new(Kind::Network, format!("`{}` is not the address of a resolver", text.escape_debug()))
            .hint("write it like `9.9.9.9` or `127.0.0.1:5353`")
    })
}

/// Bytes, with `K M G T` as powers of 1024.
pub fn size(text: &str) -> Result<u64> {
    parse_size(text).map_err(|cause| {
        Error::new(Kind::Usage, format!("`{}` is not a size: {cause}", text.escape_debug())).hint("write it like `10M`")
    })
}
