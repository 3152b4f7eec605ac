//! Walks trees that another user or an agent wrote: any width, any depth, any names.
//!
//! A walk visits one tree, or several in step: a source and its copy, the two sides of an overlay. It goes depth first,
//! without recursion.
//!
//! A walk has at most [`HELD`] descriptors for each side; the usual limit is 1,024 (getrlimit(2), `RLIMIT_NOFILE`).
//! [`Bounds`] limits entries, depth and time; the callers count bytes. A walk never uses a whole path, which may exceed
//! the kernel's limit. It follows no link, and goes up into no exchanged directory.

use super::names::Names;
use rustix::fs::{FileType, Mode, OFlags, fstat, openat};
use rustix::io::Errno;
use std::collections::VecDeque;
use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Instant;

/// Never opens a link to a directory.
pub(crate) const DIRECTORY: OFlags =
    OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// Open directories of one side. Shallower trees need no second open on the way up.
const HELD: usize = 16;

pub(crate) fn open_directory(at: BorrowedFd<'_>, name: &CStr) -> Result<OwnedFd, Errno> {
    openat(at, name, DIRECTORY, Mode::empty())
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    pub(crate) entries: usize,
    /// The first directory counts, too.
    pub(crate) depth: usize,
    pub(crate) end: Option<Instant>,
}

impl Bounds {
    /// For a tree whose size is bounded already.
    pub(crate) const NONE: Bounds = Bounds { entries: usize::MAX, depth: usize::MAX, end: None };
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stop {
    System(Errno),
    /// A directory was moved while the walk was below it.
    Moved,
    Entries,
    Depth,
    Time,
}

impl From<Errno> for Stop {
    fn from(errno: Errno) -> Stop {
        Stop::System(errno)
    }
}

impl From<Stop> for io::Error {
    fn from(stop: Stop) -> io::Error {
        match stop {
            Stop::System(errno) => errno.into(),
            Stop::Moved => io::Error::other("a directory was moved while it was read"),
            Stop::Entries => io::Error::other("there are more entries than the limit"),
            Stop::Depth => io::Error::other("directories are nested deeper than the limit"),
            Stop::Time => io::Error::other("the time limit is over"),
        }
    }
}

/// The open directories of one tree, from the top to the walk's position.
struct Trail {
    /// The deepest ones, at most [`HELD`].
    held: VecDeque<OwnedFd>,
    /// Device and inode of those above.
    above: Vec<(u64, u64)>,
}

impl Trail {
    fn here(&self) -> Option<BorrowedFd<'_>> {
        self.held.back().map(AsFd::as_fd)
    }

    fn push(&mut self, directory: OwnedFd) -> Result<(), Errno> {
        if self.held.len() == HELD
            && let Some(highest) = self.held.pop_front()
        {
            self.above.push(identity(&highest)?);
        }
        self.held.push_back(directory);
        Ok(())
    }

    fn pop(&mut self) -> Result<Option<OwnedFd>, Stop> {
        let left = self.held.pop_back();
        if let Some(left) = left.as_ref().filter(|_| self.held.is_empty())
            && let Some(expected) = self.above.pop()
        {
            let directory = open_directory(left.as_fd(), c"..")?;
            // `..` leads elsewhere if another process moved the directory.
            if identity(&directory)? != expected {
                return Err(Stop::Moved);
            }
            self.held.push_back(directory);
        }
        Ok(left)
    }
}

fn identity(directory: &OwnedFd) -> Result<(u64, u64), Errno> {
    fstat(directory).map(|status| (status.st_dev, status.st_ino))
}

struct Level<const SIDES: usize, State> {
    has: [bool; SIDES],
    names: Names,
    next: usize,
    is_ended: bool,
    state: State,
}

pub(crate) struct LeftDirectory<const SIDES: usize, State> {
    pub(crate) directories: [Option<OwnedFd>; SIDES],
    pub(crate) state: State,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// [`Walk::name`], with its type when the directory was listed.
    Entry(FileType),
    /// The walk is still in the directory. The first directory has no such step.
    End,
}

/// Walks through `SIDES` trees in step, with a `State` of the caller for each open directory.
pub(crate) struct Walk<const SIDES: usize, State> {
    sides: [Trail; SIDES],
    levels: Vec<Level<SIDES, State>>,
    bounds: Bounds,
    listed: usize,
}

impl<const SIDES: usize, State> Walk<SIDES, State> {
    pub(crate) fn new(bounds: Bounds) -> Walk<SIDES, State> {
        let sides = std::array::from_fn(|_| Trail { held: VecDeque::new(), above: Vec::new() });
        Walk { sides, levels: Vec::new(), bounds, listed: 0 }
    }

    /// Adds names within the bound of entries. Returns whether the directory has more.
    pub(crate) fn list(&mut self, directory: impl AsFd, names: &mut Names) -> Result<bool, Errno> {
        let before = names.len();
        let has_more = names.read(directory, self.bounds.entries - self.listed.min(self.bounds.entries))?;
        self.listed += names.len() - before;
        Ok(has_more)
    }

    /// Enters the first directory, or that of the last name. A side without it is `None`, also below it.
    pub(crate) fn enter(
        &mut self,
        directories: [Option<OwnedFd>; SIDES],
        names: Names,
        state: State,
    ) -> Result<(), Stop> {
        if self.is_deepest() {
            return Err(Stop::Depth);
        }
        let has = std::array::from_fn(|side| directories[side].is_some());
        for (trail, directory) in self.sides.iter_mut().zip(directories) {
            directory.map_or(Ok(()), |directory| trail.push(directory))?;
        }
        self.levels.push(Level { has, names, next: 0, is_ended: false, state });
        Ok(())
    }

    pub(crate) fn is_deepest(&self) -> bool {
        self.levels.len() >= self.bounds.depth
    }

    /// `None` at the end of the first directory, in which the walk stays.
    pub(crate) fn next(&mut self) -> Result<Option<Step>, Stop> {
        loop {
            let is_first = self.levels.len() == 1;
            let Some(level) = self.levels.last_mut() else { return Ok(None) };
            if let Some((_, kind)) = level.names.get(level.next) {
                if self.bounds.end.is_some_and(|end| Instant::now() >= end) {
                    return Err(Stop::Time);
                }
                level.next += 1;
                return Ok(Some(Step::Entry(kind)));
            }
            if is_first {
                return Ok(None);
            }
            if !level.is_ended {
                level.is_ended = true;
                return Ok(Some(Step::End));
            }
            self.leave()?;
        }
    }

    /// The last name is then that of the left directory.
    pub(crate) fn leave(&mut self) -> Result<Option<LeftDirectory<SIDES, State>>, Stop> {
        let Some(level) = self.levels.pop() else { return Ok(None) };
        let mut directories = std::array::from_fn(|_| None);
        for (side, trail) in self.sides.iter_mut().enumerate().filter(|(side, _)| level.has[*side]) {
            directories[side] = trail.pop()?;
        }
        Ok(Some(LeftDirectory { directories, state: level.state }))
    }

    pub(crate) fn name(&self) -> &CStr {
        let last = self.levels.last().and_then(|level| level.names.get(level.next.checked_sub(1)?));
        last.map_or(c"", |(name, _)| name)
    }

    /// `None` if that side lacks the directory.
    pub(crate) fn get(&self, side: usize) -> Option<BorrowedFd<'_>> {
        self.levels.last().filter(|level| level.has[side]).and_then(|_| self.sides[side].here())
    }

    pub(crate) fn side(&self, side: usize) -> Result<BorrowedFd<'_>, Errno> {
        self.get(side).ok_or(Errno::NOENT)
    }

    /// `None` before the first directory is entered.
    pub(crate) fn state(&self) -> Option<&State> {
        self.levels.last().map(|level| &level.state)
    }

    pub(crate) fn depth(&self) -> usize {
        self.levels.len()
    }
}

impl<State> Walk<1, State> {
    /// More entries than the bound are an error.
    pub(crate) fn through(top: OwnedFd, bounds: Bounds, state: State) -> Result<Walk<1, State>, Stop> {
        let mut walk = Walk::new(bounds);
        walk.enter_directory(top, state)?;
        Ok(walk)
    }

    pub(crate) fn descend(&mut self, state: State) -> Result<(), Stop> {
        let directory = open_directory(self.side(0)?, self.name())?;
        self.enter_directory(directory, state)
    }

    fn enter_directory(&mut self, directory: OwnedFd, state: State) -> Result<(), Stop> {
        let mut names = Names::default();
        if self.list(&directory, &mut names)? {
            return Err(Stop::Entries);
        }
        self.enter([Some(directory)], names, state)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{CWD, RenameFlags, mkdirat, renameat_with};
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    use std::os::unix::fs::symlink;
    use std::path::Path;

    fn open(path: &Path) -> OwnedFd {
        openat(CWD, path, DIRECTORY, Mode::empty()).unwrap()
    }

    /// The number of entries and of nested directories.
    fn visit(top: &Path, bounds: Bounds) -> Result<(usize, usize), Stop> {
        let (mut entries, mut depth) = (0, 0);
        let mut walk = Walk::through(open(top), bounds, ())?;
        while let Some(step) = walk.next()? {
            if let Step::Entry(kind) = step {
                entries += 1;
                depth = depth.max(walk.depth());
                if kind == FileType::Directory {
                    walk.descend(())?;
                }
            }
        }
        Ok((entries, depth))
    }

    /// Far longer than a path can be.
    fn make_chain(top: &Path, depth: usize) {
        let mut here = open(top);
        for _ in 0..depth {
            mkdirat(&here, "directory", Mode::RWXU).unwrap();
            here = open_directory(here.as_fd(), c"directory").unwrap();
        }
        rustix::fs::symlinkat("/etc", &here, "link").unwrap();
    }

    /// The limit holds for a whole process.
    fn has_few_descriptors(test: &str) -> bool {
        let is_alone = crate::sys::is_alone(test);
        if is_alone {
            setrlimit(Resource::Nofile, Rlimit { current: Some(64), ..getrlimit(Resource::Nofile) }).unwrap();
        }
        is_alone
    }

    #[test]
    fn a_tree_of_depth_2000_is_walked_and_removed_with_64_descriptors() {
        if !has_few_descriptors("files::walk::tests::a_tree_of_depth_2000_is_walked_and_removed_with_64_descriptors") {
            return;
        }
        let directory = tempfile::tempdir().unwrap();
        let top = directory.path().join("top");
        std::fs::create_dir(&top).unwrap();
        make_chain(&top, 2000);
        assert_eq!(visit(&top, Bounds::NONE), Ok((2001, 2001)));
        assert_eq!(visit(&top, Bounds { depth: 1000, ..Bounds::NONE }), Err(Stop::Depth));
        assert!(crate::files::remove_directory(&top).unwrap() && !top.exists());
    }

    #[test]
    fn siblings_by_the_hundred_are_walked_and_removed_with_64_descriptors() {
        if !has_few_descriptors(
            "files::walk::tests::siblings_by_the_hundred_are_walked_and_removed_with_64_descriptors",
        ) {
            return;
        }
        let directory = tempfile::tempdir().unwrap();
        let top = directory.path().join("top");
        for number in 0..600 {
            std::fs::create_dir_all(top.join(format!("{number}/inner"))).unwrap();
            std::fs::write(top.join(format!("{number}/inner/file")), "x").unwrap();
        }
        assert_eq!(visit(&top, Bounds::NONE), Ok((3 * 600, 3)));
        assert!(crate::files::remove_directory(&top).unwrap() && !top.exists());
    }

    #[test]
    fn a_directory_that_becomes_a_link_is_not_entered() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        std::fs::create_dir_all(at("tree/inner")).unwrap();
        std::fs::create_dir(at("outside")).unwrap();
        symlink(at("outside"), at("link")).unwrap();
        let mut walk = Walk::through(open(&at("tree")), Bounds::NONE, ()).unwrap();
        assert_eq!(walk.next(), Ok(Some(Step::Entry(FileType::Directory))));
        renameat_with(CWD, at("tree/inner"), CWD, at("link"), RenameFlags::EXCHANGE).unwrap();
        assert_eq!(walk.descend(()), Err(Stop::System(Errno::NOTDIR)));
    }

    #[test]
    fn a_walk_does_not_go_up_into_another_directory() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        std::fs::create_dir_all(at("tree")).unwrap();
        std::fs::create_dir_all(at("outside")).unwrap();
        make_chain(&at("tree"), HELD + 2);
        let mut walk = Walk::through(open(&at("tree")), Bounds::NONE, ()).unwrap();
        while walk.next() == Ok(Some(Step::Entry(FileType::Directory))) {
            walk.descend(()).unwrap();
        }
        // The walk has no descriptor of the levels above.
        std::fs::rename(at("tree/directory/directory/directory"), at("outside/moved")).unwrap();
        let stop = loop {
            match walk.next() {
                Ok(Some(step)) => assert!(step != Step::Entry(FileType::Directory)),
                Ok(None) => panic!("the walk came to its end"),
                Err(stop) => break stop,
            }
        };
        assert_eq!(stop, Stop::Moved);
    }

    #[test]
    fn entries_depth_and_time_have_a_bound() {
        let directory = tempfile::tempdir().unwrap();
        for name in ["a", "b", "c/d"] {
            std::fs::create_dir_all(directory.path().join(name)).unwrap();
        }
        let check = |bounds, expected| assert_eq!(visit(directory.path(), bounds), expected);
        check(Bounds { entries: 4, ..Bounds::NONE }, Ok((4, 2)));
        check(Bounds { entries: 3, ..Bounds::NONE }, Err(Stop::Entries));
        check(Bounds { entries: 2, ..Bounds::NONE }, Err(Stop::Entries));
        check(Bounds { depth: 2, ..Bounds::NONE }, Err(Stop::Depth));
        check(Bounds { end: Some(Instant::now()), ..Bounds::NONE }, Err(Stop::Time));
    }

    #[test]
    fn two_trees_are_walked_in_step_and_a_side_may_end() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        for (name, depth) in [("one", 3 * HELD), ("other", HELD / 2)] {
            std::fs::create_dir(at(name)).unwrap();
            make_chain(&at(name), depth);
        }
        let mut walk = Walk::<2, usize>::new(Bounds::NONE);
        let enter = |walk: &mut Walk<2, usize>, sides: [Option<OwnedFd>; 2], level| {
            let mut names = Names::default();
            sides.iter().flatten().for_each(|side| {
                names.read(side, usize::MAX).unwrap();
            });
            names.sort();
            walk.enter(sides, names, level).unwrap();
        };
        enter(&mut walk, [Some(open(&at("one"))), Some(open(&at("other")))], 0);
        let mut links = Vec::new();
        while let Some(step) = walk.next().unwrap() {
            let level = *walk.state().unwrap();
            if step == Step::Entry(FileType::Directory) {
                let inner = |side| walk.get(side).and_then(|at| open_directory(at, walk.name()).ok());
                let sides = [inner(0), inner(1)];
                enter(&mut walk, sides, level + 1);
            } else if step != Step::End {
                links.push((level, walk.get(1).is_some()));
            }
            assert_eq!(walk.get(1).is_some(), walk.state().unwrap() <= &(HELD / 2));
        }
        links.sort();
        assert_eq!(links, [(HELD / 2, true), (3 * HELD, false)]);
    }
}
