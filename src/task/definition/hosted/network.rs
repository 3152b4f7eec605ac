//! The network in hosted mode. Public names are free; the operator must list addresses.
//!
//! An address can be the host, its own network or a cloud's metadata. A name leads only to public addresses of other
//! hosts, which the gateway checks (`egress`, guard.rs).

use super::Rules;
use crate::error::{Error, Kind, Result};
use crate::sandbox::{Ech, NetworkMode, Publish, Rule};
use crate::task::definition::{Definition, WorkspaceSource};
use crate::task::git::{Elsewhere, Remote};
use serde::Deserialize;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;

/// Ports of one host address, such as `127.0.0.1:8000-8999`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub(super) struct Ports {
    address: IpAddr,
    first: u16,
    last: u16,
}

impl TryFrom<String> for Ports {
    type Error = String;

    fn try_from(text: String) -> Result<Ports, String> {
        let wrong = || format!("`{text}` is not an address with ports, such as `127.0.0.1:8000-8999`");
        let (first, last) = match text.rsplit_once('-') {
            Some((first, last)) => (first, Some(last)),
            None => (text.as_str(), None),
        };
        let first: SocketAddr = first.parse().map_err(|_| wrong())?;
        let last = last.map_or(Ok(first.port()), u16::from_str).map_err(|_| wrong())?;
        Ok(Ports { address: first.ip(), first: first.port(), last })
    }
}

impl Ports {
    fn has(&self, publish: &Publish) -> bool {
        let outside = publish.outside;
        // Port 0 is any free port.
        outside.ip() == self.address && outside.port() > 0 && (self.first..=self.last).contains(&outside.port())
    }
}

impl Rules {
    pub(super) fn check_network(&self, definition: &Definition) -> Result<()> {
        let network = &definition.sandbox.network;
        let mode = network.mode;
        if mode == NetworkMode::Host && !self.allow_network_host {
            return super::refuse("`network = \"host\"` is not allowed", "use `egress`", "allow_network_host = true");
        }
        let what = match mode.is_open() {
            true => Some(format!("`network = \"{}\"`", mode.word())),
            false => network.policy.learn.then(|| "`--learn`".to_owned()),
        };
        if let Some(what) = what.filter(|_| !self.allow_network_open) {
            let words = format!("{what} is not allowed: it leads to every public name");
            return super::refuse(&words, "use `egress` and name what is needed", "allow_network_open = true");
        }
        if network.policy.ech == Some(Ech::Pass) && self.ech == Ech::Refuse {
            return super::refuse("`ech = \"pass\"` is not allowed", "leave it out", "ech = \"pass\"");
        }
        if let Some(publish) = network.publish.iter().find(|each| !self.publish.iter().any(|ports| ports.has(each))) {
            let words = format!("the port `{}` of the host is not one that a task may have", publish.outside);
            let key = format!("publish = [\"{}\"]", publish.outside);
            return super::refuse(&words, "leave `--publish` out", &key);
        }
        let mut all = network.clone();
        for secret in &definition.secrets {
            all.admit(&secret.credentials)?;
        }
        all.policy.allowed.iter().try_for_each(|rule| self.check_rule(rule))?;
        if let Some(address) = network.policy.resolver {
            self.check_rule(&rule_of(&address.ip().to_string(), address.port())?)?;
        }
        self.check_remote(definition)
    }

    pub(super) fn check_rule(&self, rule: &Rule) -> Result<()> {
        if rule.range().is_none() || self.networks.iter().any(|allowed| allowed.0.shadows(rule)) {
            return Ok(());
        }
        let words = format!("the address `{rule}` is not one that a task may reach");
        super::refuse(&words, "name a public host", &format!("networks = [\"{rule}\"]"))
    }

    fn check_remote(&self, definition: &Definition) -> Result<()> {
        let git = &definition.git;
        if let WorkspaceSource::Repository { url, .. } = &definition.workspace
            && let Remote::Far(far) = Remote::parse(url)?
        {
            far.rules(&git.addresses)?.iter().try_for_each(|rule| self.check_rule(rule))?;
        }
        for place in &git.elsewhere {
            if let Elsewhere::Host(host, port) = place {
                self.check_rule(&rule_of(host, port.unwrap_or(443))?)?;
            }
        }
        Ok(())
    }
}

fn rule_of(host: &str, port: u16) -> Result<Rule> {
    Rule::parse(&if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") })
}

#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub(super) struct Addresses(Rule);

impl TryFrom<String> for Addresses {
    type Error = Error;

    fn try_from(text: String) -> Result<Addresses> {
        let rule = Rule::parse(&text)?;
        match rule.range() {
            Some(_) => Ok(Addresses(rule)),
            None => Err(Error::new(Kind::Policy, format!("`{text}` is a name, and names are free"))),
        }
    }
}
