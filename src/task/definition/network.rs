//! The `[network]` table of a profile, and a network as it is written down.

use super::options::line_at;
use crate::error::{Error, Kind, Result};
use crate::sandbox::{Ech, Network, NetworkMode, Policy, Publish, Rule};
use serde::{Deserialize, Serialize};
use std::net::SocketAddr;
use toml::Spanned;

/// What it may say.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Section {
    mode: Option<String>,
    allow: Vec<Spanned<String>>,
    deny: Vec<Spanned<String>>,
    resolver: Option<String>,
    publish: Vec<String>,
    rate: Option<String>,
    bytes: Option<String>,
    ech: Option<String>,
}

impl Section {
    /// Puts it into a definition; `text` is the whole profile, for the numbers of lines.
    pub(crate) fn apply(self, text: &str, network: &mut Network) -> Result<()> {
        if let Some(mode) = &self.mode {
            network.mode = mode.parse::<NetworkMode>().map_err(|error| error.doing("read `network.mode`"))?;
        }
        let read = |rules: &[Spanned<String>]| rules.iter().map(|rule| read(rule, text)).collect::<Result<Vec<_>>>();
        let (allow, deny) = (read(&self.allow)?, read(&self.deny)?);
        check_lines(&allow, &deny)?;
        network.policy.allowed.extend(allow.into_iter().map(|(rule, _)| rule));
        network.policy.denied.extend(deny.into_iter().map(|(rule, _)| rule));
        if let Some(address) = &self.resolver {
            network.policy.resolver = Some(resolver(address)?);
        }
        network.policy.ech = self.ech.as_deref().map(str::parse).transpose()?.or(network.policy.ech);
        for each in &self.publish {
            network.publish.push(each.parse()?);
        }
        network.rate = self.rate.as_deref().map(size).transpose()?.or(network.rate);
        network.total = self.bytes.as_deref().map(size).transpose()?.or(network.total);
        Ok(())
    }
}

/// A rule and the line that it is in.
fn read(rule: &Spanned<String>, text: &str) -> Result<(Rule, usize)> {
    let line = line_at(text, rule.span().start);
    Ok((Rule::parse(rule.get_ref()).map_err(|error| error.doing(format!("line {line}")))?, line))
}

/// Rules that another one of the same file makes pointless are a mistake of whoever wrote both. (A caller may take back what a profile allows.)
fn check_lines(allow: &[(Rule, usize)], deny: &[(Rule, usize)]) -> Result<()> {
    let says_nothing = "says nothing that the other does not say";
    for (rules, others, words) in
        [(allow, allow, says_nothing), (deny, deny, says_nothing), (allow, deny, "allows nothing: the other denies it")]
    {
        for (rule, line) in rules {
            let shadows = |(other, _): &&(Rule, usize)| !std::ptr::eq(other, rule) && other.shadows(rule);
            if let Some((other, at)) = others.iter().find(shadows) {
                return Err(Error::new(Kind::Egress, format!("`{rule}` beside `{other}` of line {at} {words}"))
                    .doing(format!("line {line}"))
                    .hint("leave one of the two out"));
            }
        }
    }
    Ok(())
}

/// A network in a file of the store.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Written {
    mode: String,
    allow: Vec<String>,
    deny: Vec<String>,
    resolver: Option<SocketAddr>,
    learn: bool,
    #[serde(default)]
    ech: Option<Ech>,
    publish: Vec<(SocketAddr, u16)>,
    rate: Option<u64>,
    bytes: Option<u64>,
}

impl Written {
    /// Writes it down.
    pub(crate) fn of(network: &Network) -> Written {
        let words = |rules: &[Rule]| rules.iter().map(Rule::to_string).collect();
        let policy = &network.policy;
        Written {
            mode: network.mode.word().to_owned(),
            allow: words(&policy.allowed),
            deny: words(&policy.denied),
            resolver: policy.resolver,
            learn: policy.learn,
            ech: policy.ech,
            publish: network.publish.iter().map(|each| (each.outside, each.inside)).collect(),
            rate: network.rate,
            bytes: network.total,
        }
    }

    /// Reads it again.
    pub(crate) fn network(&self) -> Result<Network> {
        let rules = |words: &[String]| words.iter().map(|word| Rule::parse(word)).collect::<Result<Vec<_>>>();
        let policy = Policy {
            allowed: rules(&self.allow)?,
            denied: rules(&self.deny)?,
            resolver: self.resolver,
            learn: self.learn,
            ech: self.ech,
        };
        let publish = self.publish.iter().map(|&(outside, inside)| Publish { outside, inside }).collect();
        Ok(Network { mode: self.mode.parse()?, policy, rate: self.rate, total: self.bytes, publish })
    }
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
        Error::new(Kind::Usage, format!("`{}` is not a size: {cause}", text.escape_debug())).hint("write it like `10M`")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_network_that_is_written_down_is_the_same_when_it_is_read() {
        let policy = Policy {
            allowed: vec![Rule::parse("*.debian.org:80,443").unwrap(), Rule::parse("10.0.0.0/8:5432").unwrap()],
            denied: vec![Rule::parse("ftp.debian.org").unwrap()],
            resolver: Some(resolver("9.9.9.9").unwrap()),
            learn: true,
            ech: Some(Ech::Refuse),
        };
        let publish = vec!["127.0.0.1:8080:80".parse().unwrap()];
        let network = Network { mode: NetworkMode::Egress, policy, rate: Some(4096), total: Some(1 << 20), publish };
        let text = serde_json::to_string(&Written::of(&network)).unwrap();
        let read: Written = serde_json::from_str(&text).unwrap();
        assert_eq!(format!("{:?}", read.network().unwrap()), format!("{network:?}"));
        assert!(Written { mode: "bridge".into(), ..read }.network().is_err());
    }
}
