//! The provider's keys: the caller's variables, or the program's login, become secrets at the broker, each for its
//! URL's host.

use super::login::{self, AgentLogin, Login};
use super::{AgentTable, Caller, add_variable, wrong};
use crate::error::{Kind, Result, Step};
use crate::host::is_off;
use crate::sandbox::{Credential, Rule, Wording};
use crate::task::definition::Definition;
use crate::task::definition::KeyTable;
use crate::task::secrets::{Exposure, Secret, Source};

/// The value of a key inside, where the provider needs none.
const PLACEHOLDER: &str = "held-by-the-broker";

pub(super) struct Keys {
    /// Each key's variable and URL, and whether the key is in use.
    urls: Vec<(String, String, bool)>,
    facts: Vec<AgentKey>,
}

/// A key that a task uses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AgentKey {
    /// Its variable.
    pub variable: String,
    /// Its host, with the port.
    pub host: String,
    /// Where its value is.
    pub place: KeyPlace,
    /// The login file with the value, if no variable has it.
    pub login: Option<AgentLogin>,
}

/// Where a key's value is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyPlace {
    /// At the broker, outside of the sandbox.
    Outside,
    /// In the sandbox, as the caller asked by a flag.
    Inside,
    /// Not set: the caller's own URL works without a key.
    Missing,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Url {
    is_tls: bool,
    host: String,
    port: u16,
}

impl Url {
    fn parse(text: &str) -> Option<Url> {
        let (scheme, rest) = text.split_once("://")?;
        let is_tls = match scheme {
            "https" => true,
            "http" => false,
            _ => return None,
        };
        let authority = rest.split(['/', '?', '#']).next()?;
        let (host, port) = match authority.split_once(':') {
            Some((host, port)) => (host, port.parse().ok()?),
            None => (authority, if is_tls { 443 } else { 80 }),
        };
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b".-_".contains(&byte);
        (!host.is_empty() && host.bytes().all(is_plain)).then(|| Url { is_tls, host: host.to_owned(), port })
    }

    fn place(&self) -> String {
        format!("{}:{}", self.host, self.port)
    }
}

impl Keys {
    /// Fills `{url:KEY}` with a key's URL, `{url}` and `{key}` with URL and variable of the first key in use.
    pub(super) fn fill(&self, text: &str) -> Result<String> {
        let first = self.urls.iter().find(|(.., is_used)| *is_used).or(self.urls.first());
        let mut filled = text.to_owned();
        for (variable, url, _) in &self.urls {
            filled = filled.replace(&format!("{{url:{variable}}}"), url);
        }
        if let Some((variable, url, _)) = first {
            filled = filled.replace("{url}", url).replace("{key}", variable);
        }
        match filled.contains("{url") {
            false => Ok(filled),
            true => Err(wrong(
                format!("`{}` names a key that the preset does not have", text.escape_debug()),
                "write `{url:VARIABLE}` with the variable of one of `[[agent.keys]]`",
            )),
        }
    }

    pub(super) fn into_facts(self) -> Vec<AgentKey> {
        self.facts
    }
}

/// Adds the set keys, else the program's login. Without both, a URL of the caller's own is enough.
pub(super) fn add(name: &str, table: &AgentTable, caller: &Caller<'_>, definition: &mut Definition) -> Result<Keys> {
    let text = |variable: &str| (caller.variable)(variable).and_then(|value| value.into_string().ok());
    let mut keys = Keys { urls: Vec::new(), facts: Vec::new() };
    let mut unset = Vec::new();
    // A set key goes first: the others of its host may name the same variable with a URL.
    let is_set = |key: &KeyTable| (caller.variable)(&key.variable).is_some_and(|value| !value.is_empty());
    let is_known = |key: &KeyTable| is_set(key) || is_given(definition, &key.variable);
    let found = if table.keys.iter().any(is_known) { None } else { Login::find(table, caller)? };
    let has_login = |key: &KeyTable| found.as_ref().is_some_and(|login| login.variable == key.variable);
    let mut ordered: Vec<_> = table.keys.iter().collect();
    ordered.sort_by_key(|key| !is_known(key) && !has_login(key));
    for key in ordered {
        let own = key.base_url.iter().find_map(|name| Some((name, text(name).filter(|url| !url.is_empty())?)));
        let url_text = own.as_ref().map_or(&key.url, |(_, url)| url).trim_end_matches('/').to_owned();
        let step = || match &own {
            Some((variable, _)) => format!("use the variable `{variable}`"),
            None => format!("use the key `{}`", key.variable),
        };
        let url = Url::parse(&url_text)
            .ok_or_else(|| {
                wrong("it is not an `https` or `http` URL without a user", "write it like https://llm.example.com/v1")
                    .of_kind(Kind::Usage)
            })
            .doing(step)?;
        let (is_set, is_given) = (is_set(key), is_given(definition, &key.variable));
        // The caller's own server without TLS, such as a local model's, needs no login.
        let login = found.as_ref().filter(|_| has_login(key) && url.is_tls);
        if let Some(login) = login {
            login.check().doing(step)?;
        }
        let is_taken = keys.facts.iter().any(|other| other.host == url.place());
        let is_used = (is_set || login.is_some() || own.is_some() || is_given) && !is_taken;
        keys.urls.push((key.variable.clone(), url_text, is_used));
        if !is_used {
            unset.push(key.variable.as_str());
            continue;
        }
        key.base_url.iter().for_each(|name| add_variable(definition, name, (caller.variable)(name)));
        let source = match login {
            Some(login) => Source::Login(login.file.clone()),
            None => Source::Environment((&key.variable).into()),
        };
        let place = match (is_given, is_set || login.is_some()) {
            (true, _) => KeyPlace::Inside,
            (_, true) if is_off("agent-key") => KeyPlace::Inside,
            (_, true) => KeyPlace::Outside,
            (_, false) => KeyPlace::Missing,
        };
        match place {
            KeyPlace::Outside => definition.secrets.push(brokered(key, &url, source.clone()).doing(step)?),
            _ => allow(definition, &url).doing(step)?,
        }
        if place == KeyPlace::Missing {
            let value = key.placeholder.as_deref().unwrap_or(PLACEHOLDER);
            add_variable(definition, &key.variable, Some(value.into()));
        } else if place == KeyPlace::Inside && !is_given {
            definition.secrets.push(Secret::new(&key.variable, source, Exposure::Environment)?);
        }
        for (name, value) in login.iter().flat_map(|login| &login.variables) {
            add_variable(definition, name, Some(value.into()));
        }
        let login = login.map(Login::describe);
        keys.facts.push(AgentKey { variable: key.variable.clone(), host: url.place(), place, login });
    }
    if keys.facts.is_empty() && !table.keys.is_empty() {
        let all = unset.join(", ");
        let (logins, program) = (login::names(&table.keys), &table.program);
        let (no_login, log_in) = match logins.is_empty() {
            true => (String::new(), String::new()),
            false => (format!(", and {logins} has no login"), format!("; or run `{program}` once outside, and log in")),
        };
        return Err(wrong(
            format!("`{name}` has no key: none of {all} is set{no_login}"),
            format!("set one of them (export {}=…): its value stays outside of the sandbox{log_in}", unset[0]),
        )
        .of_kind(Kind::Secret));
    }
    Ok(keys)
}

/// Whether a flag or a profile gave the variable, as a value or a secret.
fn is_given(definition: &Definition, variable: &str) -> bool {
    let is_secret = definition.secrets.iter().any(|secret| secret.name == variable);
    is_secret || definition.sandbox.environment.iter().any(|(name, _)| name.to_str() == Some(variable))
}

fn brokered(key: &KeyTable, url: &Url, source: Source) -> Result<Secret> {
    if !url.is_tls {
        return Err(wrong(
            format!("the broker needs TLS, and `{}` is reached without it", url.place()),
            format!("use an `https` URL, or give the key to the agent itself: -e {}", key.variable),
        )
        .of_kind(Kind::Secret));
    }
    let mut secret = Secret::new(&key.variable, source, Exposure::Broker)?;
    let words = Wording { host: &url.place(), header: key.header.as_deref(), ..Wording::default() };
    secret.credentials.push(Credential::new(&key.variable, &words)?);
    secret.placeholder.clone_from(&key.placeholder);
    Ok(secret)
}

/// Allows the URL's host, unless a rule does.
fn allow(definition: &mut Definition, url: &Url) -> Result<()> {
    let text = match url.host.parse::<std::net::Ipv4Addr>() {
        Ok(address) if !address.is_loopback() => format!("{address}/32:{}", url.port),
        Ok(_) => format!("localhost:{}", url.port),
        Err(_) => url.place(),
    };
    let rule = Rule::parse(&text)?;
    let allowed = &mut definition.sandbox.network.policy.allowed;
    if !allowed.iter().any(|other| other.to_string() == rule.to_string() || other.shadows(&rule)) {
        allowed.push(rule);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::task::definition::LoginTable;
    use std::ffi::OsString;

    fn table() -> AgentTable {
        let key = |variable: &str, url: &str, base: &str| KeyTable {
            variable: variable.into(),
            url: url.into(),
            base_url: vec![base.into()],
            header: Some("X-Api-Key: {}".into()),
            placeholder: None,
            login: None,
        };
        let keys = vec![key("A_KEY", "https://api.a.test", "A_URL"), key("B_KEY", "https://api.a.test/v2", "B_URL")];
        AgentTable { program: "a".into(), keys, ..AgentTable::default() }
    }

    fn add_with(variables: &[(&str, &str)]) -> Result<(Keys, Definition)> {
        let look =
            |name: &str| variables.iter().find(|(each, _)| *each == name).map(|(_, value)| OsString::from(value));
        let mut definition = Definition::new(Vec::new());
        let keys = add("a", &table(), &Caller { variable: &look, arguments: &[] }, &mut definition)?;
        Ok((keys, definition))
    }

    #[test]
    fn a_key_is_for_the_host_of_its_url() {
        let check = |variables: &[(&str, &str)], expected: &[&str]| {
            let (_, definition) = add_with(variables).unwrap();
            let found: Vec<_> = definition
                .secrets
                .iter()
                .map(|secret| {
                    assert_eq!(secret.exposure, Exposure::Broker);
                    let host = &secret.credentials[0];
                    format!("{} {}:{}", secret.name, host.host(), host.port())
                })
                .collect();
            assert_eq!(found, expected, "{variables:?}");
            let plain =
                |(_, value): &(OsString, OsString)| value.to_str().is_some_and(|value| value.contains("s3cret"));
            assert!(!definition.sandbox.environment.iter().any(plain));
        };
        check(&[("A_KEY", "s3cret")], &["A_KEY api.a.test:443"]);
        check(&[("B_KEY", "s3cret")], &["B_KEY api.a.test:443"]);
        // One host has one key: the first.
        check(&[("A_KEY", "s3cret"), ("B_KEY", "s3cret-2")], &["A_KEY api.a.test:443"]);
        check(&[("A_KEY", "s3cret"), ("A_URL", "https://llm.b.test:8443/x/")], &["A_KEY llm.b.test:8443"]);
        check(
            &[("A_KEY", "s3cret"), ("B_KEY", "s3cret-2"), ("B_URL", "https://b.test")],
            &["A_KEY api.a.test:443", "B_KEY b.test:443"],
        );
    }

    #[test]
    fn a_key_that_is_set_comes_before_one_that_shares_its_url() {
        let (keys, definition) = add_with(&[("B_KEY", "s3cret"), ("A_URL", "https://api.a.test/v2")]).unwrap();
        assert_eq!(keys.facts[0].variable, "B_KEY");
        assert_eq!((definition.secrets.len(), keys.facts.len()), (1, 1));
    }

    #[test]
    fn a_url_of_the_callers_own_needs_no_key_and_is_allowed() {
        for (url, rule) in [
            ("http://localhost:4000/v1", "localhost:4000"),
            ("http://127.0.0.1:4000", "localhost:4000"),
            ("http://10.1.2.3:80", "10.1.2.3/32:80"),
            ("https://llm.test", "llm.test:443"),
        ] {
            let (keys, definition) = add_with(&[("A_URL", url)]).unwrap();
            let rules: Vec<_> = definition.sandbox.network.policy.allowed.iter().map(ToString::to_string).collect();
            assert_eq!(rules, [rule]);
            let variable = |name: &str| definition.sandbox.environment.iter().find(|(each, _)| each == name).cloned();
            assert_eq!(variable("A_KEY").unwrap().1, PLACEHOLDER);
            assert_eq!(variable("A_URL").unwrap().1, url);
            assert_eq!(keys.fill("{url}/x {url:A_KEY}").unwrap(), format!("{url}/x {url}"));
            assert!(keys.fill("{url:C_KEY}").is_err());
        }
    }

    #[test]
    fn a_login_is_the_key_where_no_variable_is_set() {
        let home = tempfile::tempdir().unwrap();
        let file = home.path().join("login.json");
        let write = |end: u64| {
            std::fs::write(&file, format!(r#"{{"token": "s3cret-token", "end": {end}, "id": "me"}}"#)).unwrap();
        };
        let mut table = table();
        table.keys[1].login = Some(LoginTable {
            file: "login.json".into(),
            token: "/token".into(),
            expires: Some("/end".into()),
            variables: [("B_ID".to_owned(), "/id".to_owned())].into(),
            ..LoginTable::default()
        });
        let home = home.path().to_str().unwrap().to_owned();
        let add_with = |variables: &[(&str, &str)]| {
            let given = |name: &str| variables.iter().find(|(each, _)| *each == name).map(|(_, value)| (*value).into());
            let look = |name: &str| if name == "HOME" { Some(OsString::from(&home)) } else { given(name) };
            let mut definition = Definition::new(Vec::new());
            add("a", &table, &Caller { variable: &look, arguments: &[] }, &mut definition)
                .map(|keys| (keys, definition))
        };
        write(u64::MAX / 2000);
        let check = |variables: &[(&str, &str)], expected: &str| {
            let (keys, definition) = add_with(variables).unwrap();
            let words: Vec<_> = definition
                .secrets
                .iter()
                .map(|secret| {
                    assert_eq!(secret.exposure, Exposure::Broker);
                    let is_login = matches!(secret.source, Source::Login(_));
                    format!("{} {} {is_login}", secret.name, secret.credentials[0].host())
                })
                .collect();
            assert_eq!(words, [expected], "{variables:?}");
            assert_eq!(keys.fill("{key}").unwrap(), words[0].split(' ').next().unwrap());
            definition
        };
        let definition = check(&[], "B_KEY api.a.test true");
        assert!(definition.sandbox.environment.contains(&("B_ID".into(), "me".into())));
        check(&[("B_URL", "https://b.test")], "B_KEY b.test true");
        check(&[("A_KEY", "s3cret")], "A_KEY api.a.test false");
        check(&[("B_KEY", "s3cret")], "B_KEY api.a.test false");
        assert!(add_with(&[("B_URL", "http://b.test")]).unwrap().1.secrets.is_empty());
        write(1);
        let error = add_with(&[]).err().unwrap();
        assert!(error.to_string().contains("expired") && !error.to_string().contains("s3cret"), "{error}");
        assert!(error.advice().unwrap().contains("run `a` once outside"), "{error:?}");
        std::fs::remove_file(&file).unwrap();
        let error = add_with(&[]).err().unwrap();
        assert!(error.to_string().contains("and `~/login.json` has no login"), "{error}");
    }

    #[test]
    fn what_would_show_a_key_is_refused() {
        for (variables, words) in [
            (&[("A_KEY", "s3cret"), ("A_URL", "http://llm.test")][..], "needs TLS"),
            (&[("A_KEY", "s3cret"), ("A_URL", "https://user:s3cret@llm.test")], "without a user"),
            (&[("A_KEY", "s3cret"), ("A_URL", "llm.test")], "is not an `https`"),
            (&[("A_KEY", "s3cret"), ("A_URL", "https://10.0.0.1")], "one name with one port"),
            (&[("A_KEY", "")], "none of A_KEY, B_KEY is set"),
            (&[], "none of A_KEY, B_KEY is set"),
        ] {
            let error = add_with(variables).err().unwrap();
            assert!(error.to_string().contains(words) && error.advice().is_some(), "{variables:?}: {error}");
            assert!(!error.to_string().contains("s3cret"), "{error}");
        }
    }
}
