//! The network of a sandbox: options, their check, and their meaning inside. Pure, except for the host's resolvers.

use crate::container::{self, Wish};
use crate::egress::{Broker, Credential, Ech, Policy, Rule, check_rules, special};
use crate::error::{Error, Kind, Result, words};
use crate::spec::network::{self as spec, DNS_PORT, Fence, GATEWAY, Open, Prefix, Reach, Served, Way};
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;

/// Spare sockets for rules added while it runs.
const SPARES: usize = 8;
/// Spare sockets for concurrent connections to a published port.
const SPARES_TO_PUBLISH: usize = 64;
/// The second is for a host with its own resolver in front.
const RESOLVER_FILES: [&str; 2] = ["/etc/resolv.conf", "/run/systemd/resolve/resolv.conf"];

words! {
    /// The kind of network.
    #[derive(Default)]
    pub enum NetworkMode {
        /// Only a loopback interface.
        #[default]
        None = "none",
        /// Hosts that the rules allow, through the gateway.
        Egress = "egress",
        /// Every public address, by a pair of devices and the host's forwarding. For the machine's root.
        Veth = "veth",
        /// Every public address, by the program pasta.
        Pasta = "pasta",
        /// The host's network, without protection.
        Host = "host",
    }
}

impl NetworkMode {
    fn way(self) -> Option<Way> {
        match self {
            NetworkMode::Veth => Some(Way::Veth),
            NetworkMode::Pasta => Some(Way::Pasta),
            _ => None,
        }
    }

    pub(crate) fn is_open(self) -> bool {
        self.way().is_some()
    }
}

impl FromStr for NetworkMode {
    type Err = Error;

    fn from_str(text: &str) -> Result<NetworkMode> {
        NetworkMode::of_word(text).ok_or_else(|| {
            Error::new(Kind::Network, format!("unknown network `{}`", text.escape_debug()))
                .hint("use none, egress, veth, pasta or host")
        })
    }
}

/// A published port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Publish {
    /// The address on the host.
    pub outside: SocketAddr,
    /// The port inside, at any address.
    pub inside: u16,
}

impl FromStr for Publish {
    type Err = Error;

    /// Parses `ADDRESS:PORT:PORT_INSIDE`. The address is required: publishing on all addresses must be a decision.
    fn from_str(text: &str) -> Result<Publish> {
        let wrong = |cause: &str| {
            Error::new(Kind::Network, cause.to_owned())
                .doing(format!("read the published port `{}`", text.escape_debug()))
                .hint("write it like `127.0.0.1:8080:80`")
        };
        let (outside, inside) = text.rsplit_once(':').ok_or_else(|| wrong("it has no `:`"))?;
        let inside =
            inside.parse().ok().filter(|&port| port > 0).ok_or_else(|| wrong("the port inside is not a port"))?;
        let outside = outside.parse().map_err(|_| wrong("it begins with no address and port of the host"))?;
        Ok(Publish { outside, inside })
    }
}

/// The network options.
#[derive(Clone, Debug, Default)]
pub struct Network {
    /// The kind.
    pub mode: NetworkMode,
    /// With `egress`: the rules.
    pub policy: Policy,
    /// With `egress`: bytes a second, both directions together.
    pub rate: Option<u64>,
    /// With `egress`: bytes in total.
    pub total: Option<u64>,
    /// Published ports.
    pub publish: Vec<Publish>,
}

impl Network {
    pub(super) fn check(&self) -> Result<()> {
        let refuse = |words: &str, hint: &str| Err(Error::new(Kind::Network, words.to_owned()).hint(hint.to_owned()));
        let policy = &self.policy;
        if let Some(way) = self.mode.way() {
            return self.check_open(way);
        }
        if self.mode != NetworkMode::Egress && (!policy.allowed.is_empty() || !policy.denied.is_empty() || policy.learn)
        {
            return refuse("there are egress rules, but the network is not `egress`", "add --network egress");
        }
        if self.mode != NetworkMode::Egress
            && (policy.resolver.is_some() || self.rate.is_some() || self.total.is_some() || policy.ech.is_some())
        {
            return refuse("a resolver, `ech` or a limit of the network needs `egress`", "add --network egress");
        }
        if self.mode == NetworkMode::Host && !self.publish.is_empty() {
            return refuse("with the host's network every port is the host's already", "leave --publish out");
        }
        if self.rate.is_some_and(|rate| rate < 1024) {
            return refuse("a rate below 1 KiB a second is too low", "give at least 1K");
        }
        check_rules(&policy.allowed)?;
        check_rules(&policy.denied)
    }

    fn check_open(&self, way: Way) -> Result<()> {
        let refuse = |words: String, hint: &str| Err(Error::new(Kind::Network, words).hint(hint.to_owned()));
        let (policy, word) = (&self.policy, self.mode.word());
        let named = policy.allowed.iter().chain(&policy.denied).find(|rule| rule.range().is_none());
        if let Some(rule) = named {
            return refuse(
                format!("`{word}` leads to every public name, and `{rule}` is about one"),
                "use --network egress",
            );
        }
        if policy.learn || self.rate.is_some() || self.total.is_some() || policy.ech.is_some() {
            return refuse(
                format!("`{word}` learns no names, reads no TLS hello and has no limit of bytes"),
                "use --network egress",
            );
        }
        if policy.resolver.is_some_and(|address| address.port() != DNS_PORT) {
            return refuse(format!("with `{word}` a resolver answers at port {DNS_PORT}"), "leave the port out");
        }
        match way {
            Way::Veth if !container::privileged() => {
                return refuse(
                    "a network of `veth` needs the machine's root".to_owned(),
                    "use --network egress, or pasta",
                );
            }
            Way::Veth => {}
            Way::Pasta => container::check_pasta()?,
        }
        if self.resolvers().is_empty() {
            return refuse(
                "the host's resolver is at an address that is the host's alone".to_owned(),
                "name another: --resolver 9.9.9.9",
            );
        }
        check_rules(&policy.allowed)?;
        check_rules(&policy.denied)
    }

    /// Returns the caller's choice, or those of the host's that a sandbox can reach.
    fn resolvers(&self) -> Vec<IpAddr> {
        if let Some(address) = self.policy.resolver {
            return vec![address.ip()];
        }
        let read = |path: &&str| {
            let text = std::fs::read_to_string(path).unwrap_or_default(); // a missing file has no server
            text.lines()
                .filter_map(|line| line.trim().strip_prefix("nameserver")?.trim().parse::<IpAddr>().ok())
                .filter(|address| !address.is_loopback() && (address.is_ipv4() || self.mode == NetworkMode::Pasta))
                .collect::<Vec<_>>()
        };
        RESOLVER_FILES.iter().map(read).find(|servers| !servers.is_empty()).unwrap_or_default()
    }

    fn fence(&self) -> Fence {
        let reach = |rule: &Rule, ports: &[u16]| Some(Reach { range: rule.range()?, ports: ports.to_vec() });
        let denied = self.policy.denied.iter().filter_map(|rule| reach(rule, rule.denied_ports())).collect();
        let mut allowed: Vec<_> = self.policy.allowed.iter().filter_map(|rule| reach(rule, rule.ports())).collect();
        allowed.extend(
            self.resolvers().into_iter().map(|address| Reach { range: Prefix::of_one(address), ports: vec![DNS_PORT] }),
        );
        Fence { denied, allowed, closed: special().collect() }
    }

    /// Allows the broker's hosts, each at its port, if no rule does.
    pub(crate) fn admit(&mut self, credentials: &[Credential]) -> Result<()> {
        for credential in credentials {
            if self.mode == NetworkMode::Host || self.mode.is_open() {
                let word = self.mode.word();
                return Err(Error::new(Kind::Network, format!("the network `{word}` has no broker"))
                    .hint(format!("leave --network {word} out")));
            }
            self.mode = NetworkMode::Egress;
            self.policy.admit(credential)?;
        }
        Ok(())
    }

    fn is_served(&self) -> bool {
        self.mode == NetworkMode::Egress || self.mode != NetworkMode::Host && !self.publish.is_empty()
    }

    pub(super) fn spec(&self) -> spec::Network {
        if self.mode == NetworkMode::Host {
            return spec::Network::Host;
        }
        let (names, is_served) = (self.mode == NetworkMode::Egress, self.is_served());
        if !is_served && !self.mode.is_open() {
            return spec::Network::Closed;
        }
        let mut served = if names { self.policy.served(SPARES) } else { Served::default() };
        if !self.publish.is_empty() {
            served.spares += SPARES_TO_PUBLISH;
        }
        match self.mode.way() {
            Some(way) => spec::Network::Open(Open { way, fence: self.fence(), served: is_served.then_some(served) }),
            None => spec::Network::Served(served),
        }
    }

    pub(super) fn gateway(&self, broker: Option<&Broker>) -> Option<Wish> {
        self.is_served().then(|| Wish {
            policy: self.policy.clone(),
            rate: self.rate,
            total: self.total,
            published: self.publish.iter().map(|each| (each.outside, each.inside)).collect(),
            broker: broker.cloned(),
        })
    }

    /// The content of /etc/resolv.conf; `None` leaves the root's.
    pub(super) fn resolver_file(&self) -> Option<String> {
        match self.mode {
            NetworkMode::None => None,
            NetworkMode::Egress => Some(format!("nameserver {GATEWAY}\n")),
            NetworkMode::Veth | NetworkMode::Pasta => {
                Some(self.resolvers().iter().map(|address| format!("nameserver {address}\n")).collect())
            }
            // An unreadable file counts as empty.
            NetworkMode::Host => Some(std::fs::read_to_string("/etc/resolv.conf").unwrap_or_default()),
        }
    }

    fn explain_open(&self) -> String {
        let list = |rules: &[Rule]| rules.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ");
        let families = if self.mode == NetworkMode::Veth { "IPv4" } else { "IPv4 and IPv6" };
        let mut words = format!(
            "{}: every public address ({families}); not private ones, metadata, the host's own",
            self.mode.word()
        );
        if !self.policy.allowed.is_empty() {
            words += &format!(", but for {}", list(&self.policy.allowed));
        }
        if !self.policy.denied.is_empty() {
            words += &format!("; not {}", list(&self.policy.denied));
        }
        let servers: Vec<_> = self.resolvers().iter().map(ToString::to_string).collect();
        format!("{words}; names from {}", servers.join(" "))
    }

    pub(super) fn explain(&self) -> String {
        let mut words = match self.mode {
            NetworkMode::None => "none".to_owned(),
            NetworkMode::Veth | NetworkMode::Pasta => self.explain_open(),
            NetworkMode::Host => "host: nothing of the host's network is out of reach".to_owned(),
            NetworkMode::Egress => {
                let rules: Vec<_> = self.policy.allowed.iter().map(ToString::to_string).collect();
                let learn = if self.policy.learn { "; learning: every public name at ports 22, 80, 443" } else { "" };
                let ech = if self.policy.ech == Some(Ech::Refuse) { "; no encrypted TLS hellos" } else { "" };
                format!(
                    "egress to {}{learn}{ech}",
                    if rules.is_empty() { "nothing".to_owned() } else { rules.join(" ") }
                )
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
