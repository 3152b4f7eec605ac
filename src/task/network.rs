//! The `[network]` table of a profile.

use crate::error::{Error, Kind, Result};
use crate::sandbox::{Network, NetworkMode, Rule};
use serde::Deserialize;
use toml::Spanned;

/// What it may say.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Section {
    mode: Option<String>,
    allow: Vec<Spanned<String>>,
    deny: Vec<Spanned<String>>,
    resolver: Option<String>,
    publish: Vec<String>,
    rate: Option<String>,
    bytes: Option<String>,
}

impl Section {
    /// Puts it into a definition; `text` is the whole profile, for the numbers of lines.
    pub(super) fn apply(self, text: &str, network: &mut Network) -> Result<()> {
        if let Some(mode) = &self.mode {
            network.mode = mode.parse::<NetworkMode>().map_err(|error| error.doing("read `network.mode`"))?;
        }
        for rule in &self.allow {
            network.policy.allowed.push(read(rule, text)?);
        }
        for rule in &self.deny {
            network.policy.denied.push(read(rule, text)?);
        }
        if let Some(address) = &self.resolver {
            network.policy.resolver = Some(resolver(address)?);
        }
        for each in &self.publish {
            network.publish.push(each.parse()?);
        }
        network.rate = self.rate.as_deref().map(size).transpose()?.or(network.rate);
        network.total = self.bytes.as_deref().map(size).transpose()?.or(network.total);
        Ok(())
    }
}

fn read(rule: &Spanned<String>, text: &str) -> Result<Rule> {
    let line = text.get(..rule.span().start).unwrap_or_default().matches('\n').count() + 1;
    Rule::parse(rule.get_ref()).map_err(|error| error.doing(format!("line {line}")))
}

/// A resolver's address, with or without its port.
pub fn resolver(text: &str) -> Result<std::net::SocketAddr> {
    const DNS: u16 = 53;
    let address = text.parse().or_else(|_| text.parse::<std::net::IpAddr>().map(|address| (address, DNS).into()));
    address.map_err(|_| {
        Error::new(Kind::Network, format!("`{}` is no address of a resolver", text.escape_debug()))
            .hint("write it like `9.9.9.9` or `127.0.0.1:5353`")
    })
}

/// Bytes, with `K M G T` as powers of 1024.
pub fn size(text: &str) -> Result<u64> {
    parse_size::Config::new().with_binary().parse_size(text).map_err(|cause| {
        Error::new(Kind::Network, format!("`{}` is no size: {cause}", text.escape_debug())).hint("write it like `10M`")
    })
}
