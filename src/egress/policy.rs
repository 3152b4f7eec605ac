//! What a sandbox may reach. Pure.

use super::broker::Credential;
use super::guard;
use super::rule::{Host, LOOPBACK, Rule, ports};
use crate::error::{Error, Kind, Result, words};
use crate::spec::network::Served;
use crate::sys::weaken;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;

/// Labels and bytes of a name below a `*.suffix`: names of services fit, encoded data seldom does.
const MOST_LABELS: usize = 5;
const MOST_BYTES: usize = 100;
/// Served while a run is recorded.
const LEARNED_PORTS: [u16; 3] = [22, 80, 443];

words! {
    /// What to do with an encrypted TLS hello (ECH): the server may take another name from it than the gateway sees.
    pub enum Ech {
        /// Pass it if a rule allows the visible name.
        Pass = "pass",
        /// Reset the connection.
        Refuse = "refuse",
    }
}

impl FromStr for Ech {
    type Err = Error;

    fn from_str(text: &str) -> Result<Ech> {
        Ech::of_word(text).ok_or_else(|| {
            Error::new(Kind::Network, format!("`{}` is neither `pass` nor `refuse`", text.escape_debug()))
                .doing("read what becomes of encrypted TLS hellos (`ech`)")
                .hint("write `refuse`, or leave it out")
        })
    }
}

/// The configuration of the gateway.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Policy {
    /// What is allowed.
    pub allowed: Vec<Rule>,
    /// What is refused even if a rule allows it.
    pub denied: Vec<Rule>,
    /// Resolves dialled names; by default the host's.
    pub resolver: Option<SocketAddr>,
    /// Allow and record every public name.
    pub learn: bool,
    /// Encrypted TLS hellos; refused by default.
    pub ech: Option<Ech>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Allowed(String),
    Denied(String),
}

impl Policy {
    /// Allows the credential's host and port, if no rule does.
    pub(crate) fn admit(&mut self, credential: &Credential) -> Result<()> {
        let rule = credential.rule()?;
        if !self.allowed.iter().any(|each| each.covers(&credential.target(), credential.port())) {
            self.allowed.push(rule);
        }
        Ok(())
    }

    /// `spares`: sockets for later rules.
    pub(crate) fn served(&self, spares: usize) -> Served {
        let mut served = Served { names: true, ports: ports(&self.allowed), routes: Vec::new(), spares };
        if self.learn {
            served.ports.extend(LEARNED_PORTS);
            served.ports.sort_unstable();
            served.ports.dedup();
        }
        served.routes = self.allowed.iter().filter_map(|rule| rule.range()).collect();
        served
    }

    pub(crate) fn answers(&self, name: &str) -> bool {
        let host = Host::Name(name.to_owned());
        if name.is_empty() || self.denied.iter().any(|rule| rule.names(&host)) && !self.reachable(&host) {
            return false;
        }
        self.learn || self.allowed.iter().any(|rule| rule.names(&host) && (!rule.is_wild() || is_modest(name)))
    }

    fn reachable(&self, host: &Host) -> bool {
        let ports = self.allowed.iter().filter(|rule| rule.names(host)).flat_map(|rule| rule.ports());
        ports.into_iter().any(|&port| matches!(self.verdict(host, port), Verdict::Allowed(_)))
    }

    pub(crate) fn verdict(&self, host: &Host, port: u16) -> Verdict {
        if let Some(rule) = self.denied.iter().find(|rule| rule.denies(host, port)) {
            return Verdict::Denied(format!("denied by `{rule}`"));
        }
        let allows = |rule: &&Rule| match host {
            Host::Name(name) if rule.is_wild() && !is_modest(name) => false,
            _ => rule.covers(host, port),
        };
        if let Some(rule) = self.allowed.iter().find(allows) {
            let closed = match host {
                Host::Address(address) if !rule.is_loopback() => self.check_address(*address, port, |_| false),
                _ => None,
            };
            return match closed {
                Some(what) => Verdict::Denied(format!("{what}: `{rule}` also covers other addresses")),
                None => Verdict::Allowed(rule.to_string()),
            };
        }
        if self.learn && matches!(host, Host::Name(_)) && LEARNED_PORTS.contains(&port) {
            return Verdict::Allowed("--learn".into());
        }
        match self.allowed.iter().find(|rule| rule.names(host)) {
            Some(rule) => Verdict::Denied(format!("`{rule}` does not allow port {port}")),
            None => Verdict::Denied(format!("no rule allows `{host}:{port}`")),
        }
    }

    /// The rule that denies an address, whatever name leads there.
    pub(crate) fn denial(&self, address: &Host, port: u16) -> Option<&Rule> {
        self.denied.iter().find(|rule| rule.denies(address, port)).filter(|_| !weaken::is_off("egress-rules"))
    }

    pub(crate) fn check_address(
        &self,
        address: IpAddr,
        port: u16,
        is_own: impl FnOnce(IpAddr) -> bool,
    ) -> Option<&'static str> {
        if weaken::is_off("egress-rebinding") {
            None
        } else {
            guard::check_address(address, port, &self.allowed, is_own)
        }
    }

    /// A rule for `localhost` covers both loopback addresses of the host.
    pub(crate) fn dialled(&self, address: IpAddr, port: u16) -> Vec<IpAddr> {
        let is_loopback = |rule: &Rule| rule.is_loopback() && rule.covers(&Host::Address(address), port);
        let mut all = vec![address];
        if self.allowed.iter().any(is_loopback) {
            all.extend(LOOPBACK.into_iter().filter(|each| *each != address));
        }
        all
    }

    /// Also removes contradicting denials.
    pub(crate) fn allow(&mut self, rule: Rule) {
        self.denied.retain(|each| each.to_string() != rule.to_string());
        if !self.allowed.contains(&rule) {
            self.allowed.push(rule);
        }
    }

    pub(crate) fn deny(&mut self, rule: Rule) {
        self.allowed.retain(|each| each.to_string() != rule.to_string());
        if !self.denied.contains(&rule) {
            self.denied.push(rule);
        }
    }
}

/// Data that leaves in names is long.
fn is_modest(name: &str) -> bool {
    name.len() <= MOST_BYTES && name.split('.').count() <= MOST_LABELS + 2 || weaken::is_off("egress-wild")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy(allowed: &[&str], denied: &[&str]) -> Policy {
        let rules = |list: &[&str]| list.iter().map(|each| Rule::parse(each).unwrap()).collect();
        Policy { allowed: rules(allowed), denied: rules(denied), ..Policy::default() }
    }

    fn host(text: &str) -> Host {
        text.parse().map_or_else(|_| Host::Name(text.into()), Host::Address)
    }

    #[test]
    fn a_verdict_names_its_rule() {
        let allowed = ["a.example:443", "*.b.example:80,22", "10.0.0.0/8:5432"];
        let policy = policy(&allowed, &["bad.b.example:80", "worse.b.example"]);
        let check = |asked: &str, port, expected: Verdict| assert_eq!(policy.verdict(&host(asked), port), expected);
        let denied = |words: &str| Verdict::Denied(words.to_owned());
        check("a.example", 443, Verdict::Allowed("a.example:443".into()));
        check("a.example", 80, denied("`a.example:443` does not allow port 80"));
        check("x.b.example", 80, Verdict::Allowed("*.b.example:80,22".into()));
        check("bad.b.example", 80, denied("denied by `bad.b.example:80`"));
        check("bad.b.example", 22, Verdict::Allowed("*.b.example:80,22".into()));
        check("worse.b.example", 22, denied("denied by `worse.b.example`"));
        check("c.example", 80, denied("no rule allows `c.example:80`"));
        check("10.1.1.1", 5432, Verdict::Allowed("10.0.0.0/8:5432".into()));
        check("93.184.216.34", 443, denied("no rule allows `93.184.216.34:443`"));
    }

    #[test]
    fn a_wide_rule_opens_no_special_address_within_it() {
        let check = |allowed: &[&str], asked: &str, expected: bool| {
            let verdict = policy(allowed, &[]).verdict(&host(asked), 80);
            assert_eq!(matches!(verdict, Verdict::Allowed(_)), expected, "{allowed:?} {asked}: {verdict:?}");
        };
        for special in ["127.0.0.1", "100.100.100.200"] {
            check(&["64.0.0.0/2:80"], special, false);
        }
        check(&["64.0.0.0/2:80"], "93.184.216.34", true);
        check(&["128.0.0.0/2:80"], "169.254.169.254", false);
        check(&["[fe00::/7]:80"], "fe80::1", false);
        check(&["127.0.0.0/8:80"], "127.0.0.1", true);
        check(&["64.0.0.0/2:80", "127.0.0.1:80"], "127.0.0.1", true);
        check(&["64.0.0.0/2:80", "localhost:80"], "127.0.0.1", true);
        check(&["localhost:80"], "::1", true);
    }

    #[test]
    fn only_names_that_can_be_reached_are_answered() {
        let policy = policy(&["a.example:443", "*.b.example:80"], &["a.example:443"]);
        assert!(!policy.answers("a.example"));
        assert!(!policy.answers("c.example"));
        assert!(!policy.answers(""));
        assert!(policy.answers("x.b.example"));
        assert!(!policy.answers(&format!("{}.b.example", "a".repeat(60) + "." + &"b".repeat(60))));
        assert!(!policy.answers("1.2.3.4.5.6.7.b.example"));
    }

    #[test]
    fn rules_come_and_go_while_it_runs() {
        let mut policy = policy(&["a.example:443"], &[]);
        policy.deny(Rule::parse("a.example:443").unwrap());
        assert!(matches!(policy.verdict(&host("a.example"), 443), Verdict::Denied(_)));
        policy.allow(Rule::parse("a.example:443").unwrap());
        assert!(matches!(policy.verdict(&host("a.example"), 443), Verdict::Allowed(_)));
    }
}
