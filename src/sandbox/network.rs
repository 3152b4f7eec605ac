//! What of the network a sandbox has: the wish, what is wrong with it, and what it means inside. Pure, but for the host's own settings.

use crate::container::Wish;
use crate::egress::{Broker, Credential, LEARNED_PORTS, Policy, check_rules, ports};
use crate::error::{Error, Kind, Result};
use crate::spec::network::{self as spec, GATEWAY, Served};
use std::net::SocketAddr;
use std::str::FromStr;

/// Sockets that are made inside for rules that come while it runs,
const SPARES: usize = 8;
/// and for each connection into it at once, where a port is published.
const SPARES_TO_PUBLISH: usize = 64;

/// The kind of network.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NetworkMode {
    /// A loopback interface of its own and nothing else.
    #[default]
    None,
    /// What the rules allow, through the gateway.
    Egress,
    /// The host's own: no protection at all.
    Host,
}

impl NetworkMode {
    /// Every mode.
    pub const ALL: [NetworkMode; 3] = [NetworkMode::None, NetworkMode::Egress, NetworkMode::Host];

    /// The word for it.
    pub fn word(self) -> &'static str {
        match self {
            NetworkMode::None => "none",
            NetworkMode::Egress => "egress",
            NetworkMode::Host => "host",
        }
    }
}

impl FromStr for NetworkMode {
    type Err = Error;

    fn from_str(text: &str) -> Result<NetworkMode> {
        NetworkMode::ALL.into_iter().find(|mode| mode.word() == text).ok_or_else(|| {
            Error::new(Kind::Network, format!("there is no network `{}`", text.escape_debug()))
                .hint("the networks are none, egress, host")
        })
    }
}

/// A port inside that is reached from an address outside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Publish {
    /// Where it listens on the host.
    pub outside: SocketAddr,
    /// The port inside, at any address.
    pub inside: u16,
}

impl FromStr for Publish {
    type Err = Error;

    /// `ADDRESS:PORT:PORT_INSIDE`. The address is never guessed: all addresses of a host are not what one means by a port.
    fn from_str(text: &str) -> Result<Publish> {
        let wrong = |cause: &str| {
            Error::new(Kind::Network, cause.to_owned())
                .doing(format!("read the published port `{}`", text.escape_debug()))
                .hint("write it like `127.0.0.1:8080:80`")
        };
        let (outside, inside) = text.rsplit_once(':').ok_or_else(|| wrong("it has no `:`"))?;
        let inside = inside.parse().ok().filter(|&port| port > 0).ok_or_else(|| wrong("the port inside is none"))?;
        let outside = outside.parse().map_err(|_| wrong("it begins with no address and port of the host"))?;
        Ok(Publish { outside, inside })
    }
}

/// All of it.
#[derive(Clone, Debug, Default)]
pub struct Network {
    /// The kind.
    pub mode: NetworkMode,
    /// With `egress`: what may be reached.
    pub policy: Policy,
    /// With `egress`: bytes a second, both directions together.
    pub rate: Option<u64>,
    /// With `egress`: bytes in all.
    pub total: Option<u64>,
    /// Ports that are reached from outside.
    pub publish: Vec<Publish>,
}

impl Network {
    /// Says the first thing that is wrong.
    pub(super) fn check(&self) -> Result<()> {
        let refuse = |words: &str, hint: &str| Err(Error::new(Kind::Network, words.to_owned()).hint(hint.to_owned()));
        let policy = &self.policy;
        if self.mode != NetworkMode::Egress && (!policy.allowed.is_empty() || !policy.denied.is_empty() || policy.learn)
        {
            return refuse("there are egress rules, but the network is not `egress`", "add --network egress");
        }
        if self.mode != NetworkMode::Egress
            && (policy.resolver.is_some() || self.rate.is_some() || self.total.is_some())
        {
            return refuse("a resolver or a limit of the network needs `egress`", "add --network egress");
        }
        if self.mode == NetworkMode::Host && !self.publish.is_empty() {
            return refuse("with the host's network every port is the host's already", "leave --publish out");
        }
        if self.rate.is_some_and(|rate| rate < 1024) {
            return refuse("a rate below 1 KiB a second is no network", "give at least 1K");
        }
        check_rules(&policy.allowed)?;
        check_rules(&policy.denied)
    }

    /// Lets the hosts of a broker be reached, each at its one port, if no rule does.
    pub(crate) fn admit(&mut self, credentials: &[Credential]) -> Result<()> {
        for credential in credentials {
            if self.mode == NetworkMode::Host {
                return Err(Error::new(Kind::Network, "with the host's network there is no broker")
                    .hint("leave --network host out"));
            }
            self.mode = NetworkMode::Egress;
            let rule = credential.rule()?;
            if !self.policy.allowed.iter().any(|each| each.covers(&credential.target(), credential.port())) {
                self.policy.allowed.push(rule);
            }
        }
        Ok(())
    }

    /// What is made inside.
    pub(super) fn spec(&self) -> spec::Network {
        if self.mode == NetworkMode::Host {
            return spec::Network::Host;
        }
        let names = self.mode == NetworkMode::Egress;
        if !names && self.publish.is_empty() {
            return spec::Network::Closed;
        }
        let mut served = Served { names, ..Served::default() };
        if names {
            served.ports = ports(&self.policy.allowed);
            if self.policy.learn {
                served.ports.extend(LEARNED_PORTS);
                served.ports.sort_unstable();
                served.ports.dedup();
            }
            served.routes = self.policy.allowed.iter().filter_map(|rule| rule.range()).collect();
            served.spares = SPARES;
        }
        if !self.publish.is_empty() {
            served.spares += SPARES_TO_PUBLISH;
        }
        spec::Network::Served(served)
    }

    /// What the gateway is asked for, where there is to be one.
    pub(super) fn gateway(&self, broker: Option<&Broker>) -> Option<Wish> {
        matches!(self.spec(), spec::Network::Served(_)).then(|| Wish {
            policy: self.policy.clone(),
            rate: self.rate,
            total: self.total,
            published: self.publish.iter().map(|each| (each.outside, each.inside)).collect(),
            broker: broker.cloned(),
        })
    }

    /// The content of /etc/resolv.conf inside; `None` leaves what is there.
    pub(super) fn resolver_file(&self) -> Option<String> {
        match self.mode {
            NetworkMode::None => None,
            NetworkMode::Egress => Some(format!("nameserver {GATEWAY}\n")),
            // What cannot be read is as empty as without.
            NetworkMode::Host => Some(std::fs::read_to_string("/etc/resolv.conf").unwrap_or_default()),
        }
    }

    /// In words.
    pub(super) fn explain(&self) -> String {
        let mut words = match self.mode {
            NetworkMode::None => "none".to_owned(),
            NetworkMode::Host => "host: nothing of the host's network is out of reach".to_owned(),
            NetworkMode::Egress => {
                let rules: Vec<_> = self.policy.allowed.iter().map(ToString::to_string).collect();
                let learn = if self.policy.learn { "; learning: every public name at ports 22, 80, 443" } else { "" };
                format!("egress to {}{learn}", if rules.is_empty() { "nothing".to_owned() } else { rules.join(" ") })
            }
        };
        for each in &self.publish {
            words += &format!("; {} leads to port {} inside", each.outside, each.inside);
        }
        words
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::egress::Rule;

    #[test]
    fn published_ports_are_written_with_their_address() {
        let check = |text: &str, expected: Option<(&str, u16)>| {
            let read = text.parse::<Publish>().ok().map(|publish| (publish.outside.to_string(), publish.inside));
            assert_eq!(read, expected.map(|(outside, inside)| (outside.to_owned(), inside)), "{text}");
        };
        check("127.0.0.1:8080:80", Some(("127.0.0.1:8080", 80)));
        check("[::1]:8080:80", Some(("[::1]:8080", 80)));
        for text in ["8080:80", "80", "127.0.0.1:80", "127.0.0.1:8080:0", "127.0.0.1:8080:x", "host:8080:80"] {
            check(text, None);
        }
    }

    #[test]
    fn what_is_made_inside_is_what_the_rules_need_and_nothing_without_any() {
        let mut network = Network::default();
        assert_eq!(network.spec(), spec::Network::Closed);
        network.policy.allowed =
            vec![Rule::parse("10.0.0.0/8:5432").unwrap(), Rule::parse("a.example:22,443").unwrap()];
        assert!(network.check().is_err());
        network.mode = NetworkMode::Egress;
        network.check().unwrap();
        let spec::Network::Served(served) = network.spec() else { panic!("not served") };
        assert_eq!((served.names, served.ports.as_slice(), served.routes.len()), (true, &[22, 443, 5432][..], 1));
        network.mode = NetworkMode::Host;
        assert!(network.check().is_err());
    }
}
