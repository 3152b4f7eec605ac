//! A network as records of the store have it.

use crate::error::Result;
use crate::sandbox::{Ech, Network, Policy, Publish, Rule};
use serde::{Deserialize, Serialize};
use std::net::SocketAddr;

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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sandbox::NetworkMode;
    use crate::task::definition::settings::values::resolver;

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
