//! The flags of limits and of the network.

use brig::error::{Error, Kind, Result, Step};
use brig::sandbox::{LimitName, Limits, Network, NetworkMode, Rule};
use clap::{ArgMatches, Args, FromArgMatches};

#[derive(Args)]
#[cfg_attr(test, derive(Debug, PartialEq))]
#[command(next_help_heading = "Network")]
pub(super) struct NetworkFlags {
    /// none, egress (what --allow names), veth or pasta (every public address), or host (no protection at all) [default: none]
    #[arg(long, value_name = "MODE")]
    network: Option<String>,
    /// Allow a host: api.example.com:443, *.debian.org:80,443, 10.0.0.0/8:5432 (ports: 80 and 443 if none; repeat)
    #[arg(long, value_name = "RULE")]
    allow: Vec<String>,
    /// Refuse what a rule covers although another one allows it
    #[arg(long, value_name = "RULE")]
    deny: Vec<String>,
    /// Who resolves the allowed names [default: the host's own servers]
    #[arg(long, value_name = "ADDRESS[:PORT]")]
    resolver: Option<String>,
    /// Let every public name through at ports 22, 80 and 443, and print what was reached as rules at the end
    #[arg(long)]
    pub(super) learn: bool,
    /// Pass or refuse TLS hellos with an encrypted part (ECH), which browsers send to every server [default: pass]
    #[arg(long, value_name = "pass|refuse")]
    ech: Option<String>,
    /// Lead a port of this host to a port inside: 127.0.0.1:8080:80 (repeat)
    #[arg(long, value_name = "ADDRESS:PORT:PORT")]
    publish: Vec<String>,
    /// Bytes a second that may pass, both directions together
    #[arg(long, value_name = "SIZE")]
    network_rate: Option<String>,
    /// Bytes that may pass in all
    #[arg(long, value_name = "SIZE")]
    network_bytes: Option<String>,
}

impl NetworkFlags {
    /// Adds what they say. Rules ask for `egress` where nothing else is asked for.
    pub(super) fn apply(self, network: &mut Network) -> Result<()> {
        let rules = |flag: &str, list: &[String]| {
            list.iter().map(|text| of_flag(flag, Some(text), Rule::parse(text))).collect::<Result<Vec<_>>>()
        };
        let size = |flag: &str, text: &Option<String>| {
            text.as_deref().map(|text| of_flag(flag, Some(text), brig::task::size(text))).transpose()
        };
        match &self.network {
            Some(mode) => network.mode = of_flag("--network", Some(mode), mode.parse())?,
            None if !self.allow.is_empty() || self.learn => network.mode = NetworkMode::Egress,
            None => {}
        }
        network.policy.allowed.extend(rules("--allow", &self.allow)?);
        network.policy.denied.extend(rules("--deny", &self.deny)?);
        if let Some(address) = &self.resolver {
            network.policy.resolver = Some(of_flag("--resolver", Some(address), brig::task::resolver(address))?);
        }
        network.policy.learn |= self.learn;
        network.policy.ech = self.ech.as_deref().map(str::parse).transpose()?.or(network.policy.ech);
        for each in &self.publish {
            network.publish.push(of_flag("--publish", Some(each), each.parse())?);
        }
        network.rate = size("--network-rate", &self.network_rate)?.or(network.rate);
        network.total = size("--network-bytes", &self.network_bytes)?.or(network.total);
        Ok(())
    }
}

/// One flag for each limit, made from the table of limits, in its order.
#[cfg_attr(test, derive(Debug, PartialEq))]
pub(super) struct LimitFlags(pub(super) Vec<(LimitName, String)>);

impl Args for LimitFlags {
    fn augment_args(command: clap::Command) -> clap::Command {
        let defaults = Limits::default().rows();
        let all = LimitName::ALL.into_iter().fold(command.next_help_heading("Limits"), |command, name| {
            let default = defaults.iter().find(|row| row.0 == name).map_or("", |row| row.1.as_str());
            command.arg(
                clap::Arg::new(name.word())
                    .long(name.word().replace('_', "-"))
                    .value_name(name.form())
                    .allow_hyphen_values(true)
                    .help(format!("{} [default: {default}]", name.meaning())),
            )
        });
        all.next_help_heading(None) // the flags that follow are about something else
    }

    fn augment_args_for_update(command: clap::Command) -> clap::Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for LimitFlags {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let given = |name: LimitName| matches.get_one::<String>(name.word()).map(|text| (name, text.clone()));
        Ok(LimitFlags(LimitName::ALL.into_iter().filter_map(given).collect()))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

/// Makes the error of a flag's value a mistake on the command line that names the flag and shows the value. A value that may be a secret is `None`.
pub(super) fn of_flag<T>(flag: &str, value: Option<&str>, read: Result<T>) -> Result<T> {
    read.map_err(|error| error.of_kind(Kind::Usage)).doing(|| match value {
        Some(value) => format!("invalid value `{}` for `{flag}`", value.escape_debug()),
        None => format!("invalid value for `{flag}`"),
    })
}

/// Sets limits from the values of their flags.
pub(super) fn set_limits(limits: &mut Limits, given: &[(LimitName, String)]) -> Result<()> {
    given.iter().try_for_each(|(name, text)| {
        of_flag(&format!("--{}", name.word().replace('_', "-")), Some(text), limits.set(*name, text))
    })
}

/// Refuses the first flag that was given although what it is about is not there; `name` is the flag for that. The parser does not, where a flag is given that excludes what the
/// other requires.
pub(super) fn refuse_idle(flags: &[(&str, bool)], about: &str, name: &str) -> Result<()> {
    let Some((flag, _)) = flags.iter().find(|(_, given)| *given) else { return Ok(()) };
    Err(Error::new(Kind::Usage, format!("{flag} is about {about}"))
        .hint(format!("name one with {name}, or leave {flag} out")))
}
