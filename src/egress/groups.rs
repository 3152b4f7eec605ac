//! Named groups of rules: registries of packages, and forges.

use super::Rule;
use crate::error::{Error, Kind, Result};

/// By name, without its `@`. No rule covers one of another group.
const GROUPS: [(&str, &[&str]); 8] = [
    ("npm", &["registry.npmjs.org:443"]),
    ("pypi", &["pypi.org:443", "files.pythonhosted.org:443"]),
    ("crates", &["crates.io:443", "index.crates.io:443", "static.crates.io:443"]),
    ("go", &["proxy.golang.org:443", "sum.golang.org:443"]),
    ("debian", &["deb.debian.org:80,443", "security.debian.org:80,443"]),
    ("ubuntu", &["archive.ubuntu.com:80,443", "security.ubuntu.com:80,443", "ports.ubuntu.com:80,443"]),
    (
        "github",
        &[
            "github.com:22,443",
            "api.github.com:443",
            "codeload.github.com:443",
            "uploads.github.com:443",
            "*.githubusercontent.com:443",
        ],
    ),
    ("gitlab", &["gitlab.com:22,443"]),
];

impl Rule {
    /// Reads a rule, or `@NAME` for the rules of a group.
    pub fn parse_all(text: &str) -> Result<Vec<Rule>> {
        let Some(name) = text.strip_prefix('@') else { return Rule::parse(text).map(|rule| vec![rule]) };
        let Some((_, rules)) = GROUPS.iter().find(|(known, _)| *known == name) else {
            let known: Vec<_> = GROUPS.iter().map(|(known, _)| format!("@{known}")).collect();
            return Err(Error::new(Kind::Egress, format!("unknown group `{}`", text.escape_debug()))
                .hint(format!("the groups are {}", known.join(", "))));
        };
        rules.iter().map(|rule| Rule::parse(rule)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::egress::check_rules;

    #[test]
    fn all_groups_together_are_rules_without_a_redundant_one() {
        let all: Vec<_> = GROUPS.iter().flat_map(|(name, _)| Rule::parse_all(&format!("@{name}")).unwrap()).collect();
        check_rules(&all).unwrap();
        assert!(all.iter().all(|rule| rule.range().is_none()), "a group opens no addresses");
    }

    #[test]
    fn a_group_is_its_rules_and_an_unknown_one_is_answered_with_all() {
        let hosts: Vec<_> = Rule::parse_all("@pypi").unwrap().iter().map(ToString::to_string).collect();
        assert_eq!(hosts, ["pypi.org:443", "files.pythonhosted.org:443"]);
        assert_eq!(Rule::parse_all("a.example:443").unwrap().len(), 1);
        for wrong in ["@", "@nmp", "@npm:443", "@ npm"] {
            let error = Rule::parse_all(wrong).unwrap_err();
            assert!(error.advice().is_some_and(|hint| hint.contains("@npm, @pypi")), "{error}");
        }
    }
}
