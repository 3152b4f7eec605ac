//! Patterns of artifacts: `result.json`, `reports/**`, `*.log`. Pure.
//!
//! A pattern is a path from the workspace's root. `*` is any run of bytes in a component, the component `**` any run of
//! components. A match includes all paths below. Names are bytes: the agent chose them, and they may not be text.

use crate::error::{Error, Kind, Result};

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Pattern {
    components: Vec<Vec<u8>>,
}

/// For each pattern, the components still to match below a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Progress(Vec<(usize, usize)>);

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Patterns(Vec<Pattern>);

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Look {
    /// Indexes of the patterns that match the name, with all below it.
    pub(super) matches: Vec<usize>,
    pub(super) below: Progress,
}

impl Pattern {
    fn parse(text: &str) -> Result<Pattern> {
        let wrong = |why: &str| {
            Err(Error::new(Kind::Usage, format!("invalid artifact pattern `{}`: {why}", text.escape_debug()))
                .hint("name a path from the workspace's root, like result.json, reports/** or *.log"))
        };
        if text.is_empty() || text.contains('\0') {
            return wrong("it names nothing");
        }
        if text.starts_with('/') {
            return wrong("the path is absolute");
        }
        let components: Vec<_> = text.split('/').filter(|name| !name.is_empty() && *name != ".").collect();
        if components.is_empty() {
            return wrong("it names the whole workspace (say `**` for that)");
        }
        if components.contains(&"..") {
            return wrong("it leads out of the workspace");
        }
        if components.iter().any(|name| name.eq_ignore_ascii_case(".git")) {
            return wrong("what is in `.git` never comes out as it is (`brig task export` takes commits)");
        }
        Ok(Pattern { components: components.into_iter().map(|name| name.as_bytes().to_vec()).collect() })
    }

    /// Adds `at`, and the places after a `**` that matches nothing.
    fn reach(&self, index: usize, mut at: usize, into: &mut Vec<(usize, usize)>) {
        loop {
            if !into.contains(&(index, at)) {
                into.push((index, at));
            }
            if self.components.get(at).is_none_or(|each| each != b"**") {
                return;
            }
            at += 1;
        }
    }
}

impl Patterns {
    pub(super) fn parse(texts: &[String]) -> Result<Patterns> {
        texts.iter().map(|text| Pattern::parse(text)).collect::<Result<_>>().map(Patterns)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn root(&self) -> Progress {
        let mut reached = Vec::new();
        for (index, pattern) in self.0.iter().enumerate() {
            pattern.reach(index, 0, &mut reached);
        }
        Progress(reached)
    }

    pub(super) fn match_name(&self, above: &Progress, name: &[u8]) -> Look {
        let mut reached = Vec::new();
        for &(index, at) in &above.0 {
            let pattern = &self.0[index];
            match pattern.components.get(at) {
                Some(component) if component == b"**" => pattern.reach(index, at, &mut reached),
                Some(component) if fits(component, name) => pattern.reach(index, at + 1, &mut reached),
                _ => {}
            }
        }
        let is_whole = |&(index, at): &(usize, usize)| at >= self.0[index].components.len();
        let matches = reached.iter().filter(|each| is_whole(each)).map(|(index, _)| *index).collect();
        reached.retain(|each| !is_whole(each));
        Look { matches, below: Progress(reached) }
    }
}

impl Progress {
    pub(super) fn is_over(&self) -> bool {
        self.0.is_empty()
    }
}

/// Backtracks to the last `*` only: linear work for each name.
fn fits(component: &[u8], name: &[u8]) -> bool {
    let (mut at, mut of_name) = (0, 0);
    let mut star: Option<(usize, usize)> = None;
    while of_name < name.len() {
        match component.get(at) {
            Some(b'*') => {
                star = Some((at, of_name));
                at += 1;
            }
            Some(&byte) if byte == name[of_name] => {
                at += 1;
                of_name += 1;
            }
            _ => match &mut star {
                Some((place, taken)) => {
                    *taken += 1;
                    (at, of_name) = (*place + 1, *taken);
                }
                None => return false,
            },
        }
    }
    component[at..].iter().all(|&byte| byte == b'*')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_artifact(patterns: &[&str], path: &[u8]) -> bool {
        let patterns = Patterns::parse(&patterns.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>()).unwrap();
        let mut progress = patterns.root();
        for name in path.split(|byte| *byte == b'/') {
            let look = patterns.match_name(&progress, name);
            if !look.matches.is_empty() {
                return true;
            }
            progress = look.below;
        }
        false
    }

    #[test]
    fn a_pattern_is_a_path_with_stars() {
        let check = |pattern: &str, path: &str, expected| {
            assert_eq!(is_artifact(&[pattern], path.as_bytes()), expected, "{pattern} {path}");
        };
        check("result.json", "result.json", true);
        check("result.json", "a/result.json", false);
        check("./result.json", "result.json", true);
        check("reports/**", "reports/a/b.txt", true);
        check("reports/**", "reports", true);
        check("reports/**", "report/a", false);
        check("reports", "reports/a/b", true);
        check("reports/", "reports/a", true);
        check("*.log", "x.log", true);
        check("*.log", "a/x.log", false);
        check("**/*.log", "x.log", true);
        check("**/*.log", "a/b/x.log", true);
        check("**/*.log", "a/b/x.logs", false);
        check("a/**/z", "a/z", true);
        check("a/**/z", "a/b/c/z", true);
        check("a/**/z", "a/b/c/y", false);
        check("**", "anything/at/all", true);
        check("a*b*c", "aXbYc", true);
        check("a*b*c", "abcb", false);
        check("*", "x", true);
        check("[ab]", "a", false);
        assert!(is_artifact(&["out/*"], b"out/\xff\xfe"), "names are bytes");
        assert!(is_artifact(&["x", "y/*"], b"y/z"));
        assert!(!is_artifact(&[], b"x"));
    }

    #[test]
    fn no_name_makes_a_pattern_slow() {
        let name = vec![b'a'; 255];
        let text = format!("{}b", "*a".repeat(100));
        assert!(!is_artifact(&[&text], &name));
        let deep = vec![b"a".as_slice(); 2000].join(&b'/');
        assert!(!is_artifact(&[&format!("{}b", "**/".repeat(50))], &deep));
    }

    #[test]
    fn what_leads_out_of_the_workspace_or_into_git_is_no_pattern() {
        let check = |text: &str, words: &str| {
            let error = Patterns::parse(&[text.to_owned()]).unwrap_err();
            assert!(error.to_string().contains(words) && error.advice().is_some(), "{text}: {error}");
        };
        check("", "names nothing");
        check("/etc/passwd", "absolute");
        check("../x", "leads out");
        check("a/../../x", "leads out");
        check(".", "whole workspace");
        check(".git/config", "`.git`");
        check("sub/.GIT/x", "`.git`");
    }
}
