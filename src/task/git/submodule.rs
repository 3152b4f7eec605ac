//! The submodules of a commit, parents first, each with a checked location and folder.
//!
//! The commit's gitlinks and `.gitmodules` are hostile: every name, path and URL is checked as text. Of the settings
//! only `update = none` counts. Git's own submodule commands never run: they obey the repository.

use super::courier::Courier;
use super::elsewhere::{LEAVE, allows_path, is_own, submodule};
use super::remote::Remote;
use super::{GitJob, GitOptions, head::is_id, mirror, remote::local_path};
use crate::error::{Error, Kind, Result, Step};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Levels of nesting.
const DEEPEST: usize = 5;
/// Submodules of a repository, all levels together.
const MOST: usize = 100;
/// Bytes of the list: it is one variable, and Linux takes 128 KiB (`MAX_ARG_STRLEN`).
const LONGEST: usize = 100 << 10;

/// Prints gitlinks and `.gitmodules` as records that end with NUL, with an empty record after both.
const LIST: &str = r#"
export GIT_WORK_TREE=/source
cd /source
links=$(git "$@" ls-tree -r --full-tree "$COMMIT" | grep -c '^160000 ') || [ "$links" = 0 ]
if [ "$links" = 0 ]; then exit 0; fi
git "$@" ls-tree -r -z --full-tree "$COMMIT" | sed -z -n 's/^160000 commit //p'
printf '\0'
case $(git "$@" ls-tree --full-tree "$COMMIT" .gitmodules) in
100644\ *|100755\ *) git "$@" config --blob "$COMMIT:.gitmodules" -z --list --no-includes ;;
'') ;;
*) echo "\`.gitmodules\` is not a file" >&2; exit 1 ;;
esac
printf '\0'
"#;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Module {
    /// From the top of the workspace.
    pub path: String,
    /// In `.gitmodules`.
    pub name: String,
    pub commit: String,
    pub remote: Remote,
    /// Folder of its repository, from the top of the workspace.
    pub directory: String,
    /// The parent's `directory`.
    pub above: String,
    /// The local folder with its objects.
    pub source: PathBuf,
    /// 1 directly below the top repository.
    depth: usize,
}

struct Parent {
    remote: Remote,
    source: PathBuf,
    commit: String,
    /// Empty for the top repository.
    path: String,
    directory: String,
    depth: usize,
}

#[derive(Debug, PartialEq, Eq)]
struct Link {
    path: String,
    name: String,
    url: String,
    commit: String,
}

pub(super) fn modules(errand: &GitJob<'_>, top: &Remote, source: &Path, commit: &str) -> Result<Vec<Module>> {
    let top = match top {
        Remote::Local(_) => Remote::Local(source.to_owned()),
        far => far.clone(),
    };
    let mut found: Vec<Module> = Vec::new();
    let mut parent = Parent {
        remote: top.clone(),
        source: source.to_owned(),
        commit: commit.to_owned(),
        path: String::new(),
        directory: ".git".to_owned(),
        depth: 0,
    };
    for next in 0.. {
        let step = || format!("take the submodules of `{}`", shown(&parent.path));
        for link in links(errand, &parent).doing(step)? {
            let module = place(errand, &top, &parent, link)?;
            add(&mut found, module)?;
        }
        let Some(module) = found.get(next) else { break };
        parent = Parent {
            remote: module.remote.clone(),
            source: module.source.clone(),
            commit: module.commit.clone(),
            path: module.path.clone(),
            directory: module.directory.clone(),
            depth: module.depth,
        };
    }
    Ok(found)
}

fn shown(path: &str) -> String {
    if path.is_empty() { ".".to_owned() } else { path.escape_debug().to_string() }
}

fn links(errand: &GitJob<'_>, parent: &Parent) -> Result<Vec<Link>> {
    let listed = Courier::new(errand, LIST).show(&parent.source, "/source").with("COMMIT", &parent.commit).run(None)?;
    read(&listed)
}

fn place(errand: &GitJob<'_>, top: &Remote, parent: &Parent, link: Link) -> Result<Module> {
    let prefix = if parent.path.is_empty() { String::new() } else { format!("{}/", parent.path) };
    let path = format!("{prefix}{}", link.path);
    let step = || format!("fetch the submodule `{path}`");
    let also = &errand.options.elsewhere;
    let remote = submodule(top, &parent.remote, also, &link.url).doing(step)?;
    let (remote, source) = match (remote, top) {
        (Remote::Local(named), Remote::Local(top)) => {
            let real = local_path(&named).doing(step)?;
            let folders = also.iter().filter_map(|each| std::fs::canonicalize(each.folder()?).ok());
            if !allows_path(&real, top, &folders.collect::<Vec<_>>()) {
                return Err(Error::new(
                    Kind::Workspace,
                    format!("it is at `{}`, which is not an allowed location", real.display()),
                )
                .doing(step())
                .hint(format!("if that is right, allow it by name: --git-from {}", real.display())));
            }
            (Remote::Local(real.clone()), real)
        }
        (Remote::Local(_), Remote::Far(_)) => {
            return Err(Error::new(Kind::Workspace, "a repository from elsewhere names a path of this machine")
                .doing(step())
                .hint(LEAVE));
        }
        (Remote::Far(far), _) => {
            // Credentials go to the user's host only.
            let own = matches!(top, Remote::Far(top) if is_own(&far, top));
            let mut options = GitOptions { filter: None, ..errand.options.clone() };
            if !own {
                (options.credential, options.ssh_key) = (None, None);
            }
            let errand = GitJob { options: &options, ..*errand };
            let remote = Remote::Far(far);
            let source = mirror::fetch(&errand, &remote, &link.commit).doing(step)?.source;
            (remote, source)
        }
    };
    Ok(Module {
        directory: format!("{}/modules/{}", parent.directory, link.name),
        above: parent.directory.clone(),
        name: link.name,
        commit: link.commit,
        depth: parent.depth + 1,
        path,
        remote,
        source,
    })
}

/// Refuses too many, too deep a nesting, and a folder inside another's.
fn add(found: &mut Vec<Module>, module: Module) -> Result<()> {
    let wrong = |why: String| {
        let step = format!("take the submodule `{}`", module.path);
        Err(Error::new(Kind::Workspace, why).doing(step).hint(LEAVE))
    };
    if module.depth > DEEPEST {
        return wrong(format!("submodules are more than {DEEPEST} deep"));
    }
    if found.len() >= MOST {
        return wrong(format!("there are more than {MOST} submodules"));
    }
    for other in found.iter() {
        let is_inside = |inner: &str, outer: &str| {
            inner.strip_prefix(outer).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        let clash = is_inside(&other.directory, &module.directory)
            || is_inside(&module.directory, &other.directory) && !is_inside(&module.above, &other.directory);
        if clash {
            return wrong(format!("its repository would be inside the one of `{}`", other.path));
        }
    }
    found.push(module);
    Ok(())
}

fn read(text: &str) -> Result<Vec<Link>> {
    if text.is_empty() {
        return Ok(Vec::new());
    }
    let wrong = |why: String| Err(Error::new(Kind::Workspace, why).hint(LEAVE));
    let Some((links, settings)) = text.split_once("\0\0") else {
        return wrong("the list of them is too long".to_owned());
    };
    let settings = match settings.strip_suffix('\0') {
        Some(settings) if settings.is_empty() || settings.ends_with('\0') => settings,
        _ => return wrong("`.gitmodules` is too long".to_owned()),
    };
    let known = sections(settings);
    let mut all = Vec::new();
    for link in links.split('\0') {
        let Some((commit, path)) = link.split_once('\t') else { return wrong("git gave no list".to_owned()) };
        let mut named = known.iter().filter(|(_, section)| section.get("path").is_some_and(|found| *found == path));
        let (Some((name, section)), None) = (named.next(), named.next()) else {
            return wrong(format!("`.gitmodules` has not one entry for `{}`", path.escape_debug()));
        };
        if section.get("update").is_some_and(|update| *update == "none") {
            continue;
        }
        let Some(url) = section.get("url") else {
            return wrong(format!("`.gitmodules` has no URL for `{}`", path.escape_debug()));
        };
        if !is_id(commit.as_bytes()) || !is_path(path) {
            return wrong(format!("`{}` is not a submodule path", path.escape_debug()));
        }
        if !is_path(name) {
            return wrong(format!("`{}` is not a submodule name", name.escape_debug()));
        }
        all.push(Link {
            path: path.to_owned(),
            name: (*name).to_owned(),
            url: (*url).to_owned(),
            commit: commit.to_owned(),
        });
    }
    Ok(all)
}

/// The last value of a key counts, as with git.
fn sections(settings: &str) -> BTreeMap<&str, BTreeMap<&str, &str>> {
    let mut all: BTreeMap<&str, BTreeMap<&str, &str>> = BTreeMap::new();
    for record in settings.split('\0') {
        let (key, value) = record.split_once('\n').unwrap_or((record, ""));
        let Some(rest) = key.strip_prefix("submodule.") else { continue };
        let Some((name, key)) = rest.rsplit_once('.') else { continue };
        all.entry(name).or_default().insert(key, value);
    }
    all
}

/// Whether a path stays below its repository and is not in a `.git` folder (CVE-2018-11235, CVE-2019-1387).
fn is_path(text: &str) -> bool {
    let is_part = |part: &str| {
        let folded = part.to_ascii_lowercase();
        !matches!(folded.trim_end_matches([' ', '.']), "" | ".git" | "git~1")
    };
    !text.starts_with('-')
        && !text.contains(['\\', char::REPLACEMENT_CHARACTER])
        && !text.chars().any(char::is_control)
        && text.len() < 1024
        && text.split('/').all(is_part)
}

/// For the layout script: one submodule a line, fields separated by tabs, none empty.
pub(super) fn table(modules: &[Module]) -> Result<String> {
    let mut lines = String::new();
    for (number, module) in modules.iter().enumerate() {
        let up = |path: &str| "../".repeat(path.split('/').count());
        let url = match &module.remote {
            Remote::Far(far) => far.url.clone(),
            Remote::Local(path) => path.to_string_lossy().into_owned(),
        };
        if url.chars().any(char::is_control) {
            return Err(Error::new(Kind::Workspace, "the path has a control character").hint(LEAVE));
        }
        let to_directory = format!("{}{}", up(&module.path), module.directory);
        let to_work = format!("{}{}", up(&module.directory), module.path);
        let fields = [
            &number.to_string(),
            &module.commit,
            &module.path,
            &module.directory,
            &module.above,
            &module.name,
            &to_directory,
            &to_work,
            &url,
        ];
        lines += &fields.map(String::as_str).join("\t");
        lines.push('\n');
    }
    if lines.len() > LONGEST {
        return Err(Error::new(Kind::Workspace, "the names and places of all submodules are too long").hint(LEAVE));
    }
    Ok(lines)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "0123456789012345678901234567890123456789";

    fn module(path: &str, directory: &str, above: &str, depth: usize) -> Module {
        Module {
            path: path.to_owned(),
            name: "x".to_owned(),
            commit: ID.to_owned(),
            remote: Remote::Local("/srv/x".into()),
            directory: directory.to_owned(),
            above: above.to_owned(),
            source: "/srv/x".into(),
            depth,
        }
    }

    #[test]
    fn a_link_is_taken_when_its_name_and_its_path_are_harmless() {
        let check = |path: &str, name: &str, more: &str, expected: std::result::Result<usize, &str>| {
            let text = format!("{ID}\t{path}\0\0submodule.{name}.path\n{path}\0submodule.{name}.url\n../lib\0{more}\0");
            match (read(&text), expected) {
                (Ok(links), Ok(count)) => assert_eq!(links.len(), count, "{text:?}"),
                (Err(error), Err(words)) => assert!(error.to_string().contains(words), "{text:?}: {error}"),
                (links, _) => panic!("{text:?}: {links:?}"),
            }
        };
        check("lib", "lib", "", Ok(1));
        check("a/b c/d", "some.name/x", "", Ok(1));
        check("lib", "lib", "submodule.lib.update\n!touch x\0", Ok(1));
        check("lib", "lib", "submodule.lib.update\nnone\0", Ok(0));
        check("lib", "../../hooks", "", Err("not a submodule name"));
        check("lib", "..", "", Err("not a submodule name"));
        check("lib", "a/../../b", "", Err("not a submodule name"));
        check("lib", "/etc", "", Err("not a submodule name"));
        check("lib", "-x", "", Err("not a submodule name"));
        check("lib", "a\\b", "", Err("not a submodule name"));
        check("../lib", "lib", "", Err("not a submodule path"));
        check(".git/hooks", "lib", "", Err("not a submodule path"));
        check("a/.GIT/x", "lib", "", Err("not a submodule path"));
        check("git~1", "lib", "", Err("not a submodule path"));
        check("-lib", "lib", "", Err("not a submodule path"));
        check("a\tb", "lib", "", Err("not a submodule path"));
        check("lib", "lib", "submodule.other.path\nlib\0", Err("not one entry"));
        for (text, words) in [
            (format!("{ID}\tlib\0\0\0"), "not one entry"),
            (format!("{ID}\tlib\0\0submodule.lib.path\nlib\0\0"), "no URL"),
            (format!("{ID}\tlib\0"), "too long"),
            (format!("{ID}\tlib\0\0submodule.lib.path\nlib\0subm"), "too long"),
            (format!("{ID}\tlib\0\0submodule.lib.path\nlib\0"), "too long"),
        ] {
            assert!(read(&text).unwrap_err().to_string().contains(words), "{text:?}");
        }
        assert_eq!(read("").unwrap(), []);
    }

    #[test]
    fn no_repository_is_inside_anothers_but_its_parents() {
        let check = |second: Module, refused: Option<&str>| {
            let mut found = vec![module("a", ".git/modules/a", ".git", 1)];
            match (add(&mut found, second), refused) {
                (Ok(()), None) => {}
                (Err(error), Some(words)) => assert!(error.to_string().contains(words), "{error}"),
                (added, _) => panic!("{added:?}"),
            }
        };
        check(module("b", ".git/modules/b", ".git", 1), None);
        check(module("ab", ".git/modules/ab", ".git", 1), None);
        check(module("a/c", ".git/modules/a/modules/c", ".git/modules/a", 2), None);
        check(module("b", ".git/modules/a/hooks", ".git", 1), Some("inside the one of `a`"));
        check(module("b", ".git/modules/a/modules/c", ".git", 1), Some("inside the one of `a`"));
        check(module("b", ".git/modules/a", ".git", 1), Some("inside the one of `a`"));
        check(module("b", ".git/modules/b", ".git", 6), Some("more than 5 deep"));
        let mut many: Vec<Module> =
            (0..MOST).map(|n| module(&format!("m{n}"), &format!(".git/modules/m{n}"), ".git", 1)).collect();
        let one_more = add(&mut many, module("b", ".git/modules/b", ".git", 1));
        assert!(one_more.unwrap_err().to_string().contains("more than 100"));
    }

    #[test]
    fn a_line_of_the_table_leads_from_the_work_to_the_repository_and_back() {
        let nested = module("a/b/c", ".git/modules/a/modules/c", ".git/modules/a", 2);
        let line = table(&[nested]).unwrap();
        let fields: Vec<_> = line.trim_end().split('\t').collect();
        assert_eq!(fields[6], "../../../.git/modules/a/modules/c");
        assert_eq!(fields[7], "../../../../../a/b/c");
    }
}
