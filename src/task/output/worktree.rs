//! The repository of a git worktree (git-worktree(1)), or of a folder below the top of one.
//!
//! A worktree has a file `.git` that names a folder of the repository. The file may be an agent's, and would show any
//! folder of the host. So the repository must name the worktree too, and must have the same owner.

use super::changes::Above;
use crate::files;
use crate::host::is_off;
use rustix::fs::{AtFlags, FileType, Mode, OFlags, Stat, fstat, openat, statat};
use rustix::io::Errno;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Each of these files has one path.
const LONGEST: u64 = 8 << 10;

/// `folder` and the common folder of its repository (`.git` of the main tree).
pub(crate) fn repository(folder: &Path) -> Option<(PathBuf, PathBuf)> {
    directories(folder).map(|(_, repository)| (folder.to_owned(), repository))
}

/// The worktree's folder in its repository, which has the index, and the common folder.
pub(crate) fn directories(folder: &Path) -> Option<(PathBuf, PathBuf)> {
    let file = folder.join(".git");
    let own = one_line(&file)?;
    let place = std::fs::canonicalize(folder.join(own.strip_prefix("gitdir:")?.trim_start())).ok()?;
    let worktrees = place.parent().filter(|above| above.file_name().is_some_and(|name| name == "worktrees"))?;
    let repository = worktrees.parent()?;
    let back = one_line(&place.join("gitdir")).and_then(|back| std::fs::canonicalize(place.join(back)).ok());
    let owner = |path: &Path| std::fs::metadata(path).ok().map(|status| status.uid());
    let is_repository = repository.join("HEAD").is_file() && repository.join("objects").is_dir();
    let is_mutual = back.is_some_and(|back| back == file) && owner(repository)? == owner(folder)?;
    let repository = repository.to_owned();
    (is_repository && (is_mutual || is_off("worktree-mutual"))).then_some((place, repository))
}

/// The branch or commit of a worktree, by its folder in the repository.
pub(crate) fn head(own: &Path) -> Option<String> {
    let line = one_line(&own.join("HEAD"))?;
    Some(line.strip_prefix("ref: ").unwrap_or(&line).to_owned())
}

/// More folders inside each other are not climbed.
const HIGHEST: usize = 64;

/// `path` is the real path of `folder`. `None` if the folder is the top of a repository, or none is above it on its
/// file system. As for git (`safe.directory`), a repository of another owner does not count: its rules would hide an
/// agent's changes.
pub(crate) fn above(folder: BorrowedFd<'_>, path: &Path) -> Option<Above> {
    if repository_in(folder).ok()?.is_some() {
        return None;
    }
    let mut folders: Vec<OwnedFd> = Vec::new();
    let mut names = path.ancestors().map_while(Path::file_name).take(HIGHEST);
    let mut below = fstat(folder).ok()?;
    let (owner, device) = (below.st_uid, below.st_dev);
    loop {
        // By descriptors, because another folder may have come to the path.
        let name = names.next()?;
        let from = folders.last().map_or(folder, AsFd::as_fd);
        let parent = openat(from, "..", OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()).ok()?;
        let named = statat(&parent, name, AtFlags::SYMLINK_NOFOLLOW).ok()?;
        let status = fstat(&parent).ok()?;
        if (named.st_dev, named.st_ino) != (below.st_dev, below.st_ino) || status.st_dev != device {
            return None;
        }
        let repository = repository_in(parent.as_fd()).ok()?;
        folders.push(parent);
        if let Some(repository) = repository {
            let is_own = [repository.st_uid, status.st_uid] == [owner; 2] || is_off("above-owner");
            is_own.then_some(())?;
            break;
        }
        below = status;
    }
    folders.reverse();
    let top = path.ancestors().nth(folders.len())?;
    let mut prefix = path.strip_prefix(top).ok()?.as_os_str().as_bytes().to_vec();
    prefix.push(b'/');
    Some(Above { folders, prefix })
}

/// The status of `.git`, if that makes a repository: a file, or a folder with what git needs.
fn repository_in(folder: BorrowedFd<'_>) -> Result<Option<Stat>, Errno> {
    let status = |name: &str| statat(folder, name, AtFlags::SYMLINK_NOFOLLOW);
    match status(".git") {
        Ok(git) => {
            let is_file = FileType::from_raw_mode(git.st_mode) == FileType::RegularFile;
            let is_top = is_file || [".git/HEAD", ".git/objects"].iter().all(|name| status(name).is_ok());
            Ok(is_top.then_some(git))
        }
        Err(Errno::NOENT) => Ok(None),
        Err(errno) => Err(errno),
    }
}

fn one_line(path: &Path) -> Option<String> {
    if !std::fs::symlink_metadata(path).ok()?.is_file() {
        return None;
    }
    let text = String::from_utf8(files::read_bounded(path, LONGEST).ok()?).ok()?;
    Some(text.trim_end_matches('\n').to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn make(root: &Path) -> (PathBuf, PathBuf) {
        let (git, tree) = (root.join("main/.git"), root.join("tree"));
        fs::create_dir_all(git.join("worktrees/tree")).unwrap();
        fs::create_dir_all(git.join("objects")).unwrap();
        fs::create_dir_all(&tree).unwrap();
        fs::write(git.join("HEAD"), "ref: refs/heads/main\n").unwrap();
        fs::write(tree.join(".git"), format!("gitdir: {}/worktrees/tree\n", git.display())).unwrap();
        fs::write(git.join("worktrees/tree/gitdir"), format!("{}/.git\n", tree.display())).unwrap();
        (git, tree)
    }

    #[test]
    fn a_worktree_and_its_repository_name_each_other() {
        let root = tempfile::tempdir().unwrap();
        let (git, tree) = make(&fs::canonicalize(root.path()).unwrap());
        assert_eq!(repository(&tree), Some((tree.clone(), git.clone())));
        assert_eq!(repository(&git), None);
        // Relative paths (git 2.48, `worktree.useRelativePaths`).
        fs::write(tree.join(".git"), "gitdir: ../main/.git/worktrees/tree\n").unwrap();
        fs::write(git.join("worktrees/tree/gitdir"), "../../../../tree/.git\n").unwrap();
        assert_eq!(repository(&tree), Some((tree.clone(), git.clone())));
    }

    #[test]
    fn a_file_that_names_a_folder_which_does_not_name_it_shows_nothing() {
        let root = tempfile::tempdir().unwrap();
        let root = fs::canonicalize(root.path()).unwrap();
        let (git, tree) = make(&root);
        let victim = root.join("victim");
        fs::create_dir_all(victim.join("worktrees/x")).unwrap();
        fs::create_dir_all(victim.join("objects")).unwrap();
        fs::write(victim.join("HEAD"), "").unwrap();
        for place in ["worktrees/x", "worktrees", ".", "objects"] {
            fs::write(tree.join(".git"), format!("gitdir: {}/{place}\n", victim.display())).unwrap();
            assert_eq!(repository(&tree), None, "{place}");
        }
        // A link in the worktree to a folder that names another worktree.
        let other = root.join("other");
        fs::create_dir(&other).unwrap();
        fs::write(other.join(".git"), format!("gitdir: {}/worktrees/tree\n", git.display())).unwrap();
        assert_eq!(repository(&other), None);
    }
}
