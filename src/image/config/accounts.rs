//! Resolves Docker's `user[:group]` in the image's /etc/passwd and /etc/group. Pure.
//!
//! A number is never a name, and must be in range. `4294967296` once wrapped to root (CVE-2024-40635), and once matched
//! a passwd entry of that name with uid 0 (CVE-2026-46680).

use crate::error::{Error, Kind, Result};
use crate::image::union::Stack;
use crate::sys::weaken;

/// A larger account file is an attack on its reader (CVE-2026-47262).
pub(crate) const LARGEST_FILE: u64 = 10 << 20;

/// Above this id some programs read a negative number.
const LARGEST_ID: u64 = i32::MAX as u64;
const LONGEST_LINE: usize = 64 << 10;

/// The account files of an image; an absent file is empty.
#[derive(Clone, Debug, Default)]
pub struct Accounts {
    /// /etc/passwd.
    pub passwd: Vec<u8>,
    /// /etc/group.
    pub group: Vec<u8>,
}

/// Ids of a process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct User {
    /// User id.
    pub uid: u32,
    /// Primary group id.
    pub gid: u32,
    /// The primary group is the first: else an ACL that denies it would not apply (CVE-2022-36109).
    pub additional_gids: Vec<u32>,
    /// The home directory, if the image names one.
    pub home: Option<String>,
}

struct PasswdLine<'a> {
    name: &'a str,
    uid: u32,
    gid: u32,
    home: &'a str,
}

struct GroupLine<'a> {
    name: &'a str,
    gid: u32,
    members: &'a str,
}

enum Part<'a> {
    Number(u32),
    Name(&'a str),
}

impl Accounts {
    pub(crate) fn of(stack: &Stack) -> Result<Accounts> {
        let read = |path| {
            stack
                .read(path, LARGEST_FILE)
                .map_err(|error| error.hint("use another image: a sound one has a small file there"))
        };
        let passwd = read("/etc/passwd")?.unwrap_or_default();
        Ok(Accounts { passwd, group: read("/etc/group")?.unwrap_or_default() })
    }

    /// Resolves `user[:group]`. Empty means root.
    pub fn user(&self, text: &str) -> Result<User> {
        self.look_up(text).map_err(|error| {
            error
                .doing(format!("find the user `{}`", text.escape_debug()))
                .hint("name a user of the image, or give numbers as UID:GID")
        })
    }

    fn look_up(&self, text: &str) -> Result<User> {
        let user = self.found(text)?;
        // The image's files contain numbers, too.
        let odd = [user.uid, user.gid].into_iter().chain(user.additional_gids.iter().copied());
        match odd.into_iter().find(|id| u64::from(*id) > LARGEST_ID) {
            Some(id) if !weaken::is_off("image-user-range") => Err(out_of_range(&id.to_string())),
            _ => Ok(user),
        }
    }

    fn found(&self, text: &str) -> Result<User> {
        let (user, group) = match text.split_once(':') {
            Some((user, group)) => (user, Some(group)),
            None => (text, None),
        };
        let user = if user.is_empty() { "0" } else { user };
        let found = match part(user)? {
            Part::Number(uid) => self.passwd_lines().find(|line| line.uid == uid).ok_or(uid),
            Part::Name(name) => Ok(self.passwd_lines().find(|line| line.name == name).ok_or_else(|| {
                Error::new(Kind::Identity, format!("unable to find user {name}: no matching entries in passwd file"))
            })?),
        };
        let (uid, gid, name, home) = match found {
            Ok(line) => (line.uid, line.gid, Some(line.name), Some(line.home)),
            Err(uid) => (uid, 0, None, None),
        };
        let home = home.filter(|home| home.starts_with('/')).map(str::to_owned);
        if let Some(group) = group.filter(|group| !group.is_empty()) {
            let gid = match part(group)? {
                Part::Number(gid) => gid,
                Part::Name(name) => {
                    self.group_lines().find(|line| line.name == name).map(|line| line.gid).ok_or_else(|| {
                        Error::new(
                            Kind::Identity,
                            format!("unable to find group {name}: no matching entries in group file"),
                        )
                    })?
                }
            };
            return Ok(User { uid, gid, additional_gids: vec![gid], home });
        }
        let mut additional_gids = vec![gid];
        if let Some(name) = name {
            for line in self.group_lines().filter(|line| line.members.split(',').any(|member| member == name)) {
                if !additional_gids.contains(&line.gid) {
                    additional_gids.push(line.gid);
                }
            }
        }
        if weaken::is_off("image-primary-group") {
            additional_gids.retain(|other| *other != gid);
        }
        Ok(User { uid, gid, additional_gids, home })
    }

    fn passwd_lines(&self) -> impl Iterator<Item = PasswdLine<'_>> {
        lines(&self.passwd).filter_map(|fields| {
            let [name, _, uid, gid, rest @ ..] = fields.as_slice() else { return None };
            let home = rest.get(1).copied().unwrap_or_default();
            Some(PasswdLine { name, uid: uid.parse().ok()?, gid: gid.parse().ok()?, home })
        })
    }

    fn group_lines(&self) -> impl Iterator<Item = GroupLine<'_>> {
        lines(&self.group).filter_map(|fields| {
            let [name, _, gid, rest @ ..] = fields.as_slice() else { return None };
            Some(GroupLine { name, gid: gid.parse().ok()?, members: rest.first().copied().unwrap_or_default() })
        })
    }
}

/// Skips comments, too long lines and what does not parse.
fn lines(bytes: &[u8]) -> impl Iterator<Item = Vec<&str>> {
    bytes
        .split(|byte| *byte == b'\n')
        .filter(|line| line.len() <= LONGEST_LINE)
        .filter_map(|line| std::str::from_utf8(line).ok())
        .map(|line| line.trim_end_matches('\r'))
        .filter(|line| !line.is_empty() && !line.starts_with('#'))
        .map(|line| line.split(':').collect())
}

/// A number, also with a sign, must be in range.
fn part(text: &str) -> Result<Part<'_>> {
    let digits = text.strip_prefix(['-', '+']).unwrap_or(text);
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return Ok(Part::Name(text));
    }
    if weaken::is_off("image-user-range") {
        return Ok(Part::Number(text.parse::<i64>().unwrap_or(0) as u32));
    }
    match text.parse::<u64>() {
        Ok(number) if number <= LARGEST_ID && digits == text => {
            Ok(Part::Number(u32::try_from(number).unwrap_or(u32::MAX)))
        }
        _ if weaken::is_off("image-user-name") => Ok(Part::Name(text)),
        _ => Err(out_of_range(text)),
    }
}

fn out_of_range(number: &str) -> Error {
    Error::new(Kind::Identity, format!("`{}` is not between 0 and {LARGEST_ID}", number.escape_debug()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn accounts() -> Accounts {
        Accounts {
            passwd: b"# c\nroot:x:0:0:root:/root:/bin/sh\nbroken\nme:x:1000:100:Me:/home/me:/bin/sh\n\
                4294967296:x:0:0::/:/bin/sh\n2147483648:x:0:0::/:/bin/sh\nme:x:7:7::/:\n"
                .to_vec(),
            group: b"root:x:0:\nusers:x:100:me\nsudo:x:27:you,me\nwheel:x:10:meagain\nbad:x:y:me\n".to_vec(),
        }
    }

    fn check(text: &str, uid: u32, gid: u32, additional: &[u32]) {
        let user = accounts().user(text).unwrap();
        assert_eq!((user.uid, user.gid, user.additional_gids.as_slice()), (uid, gid, additional), "{text}");
    }

    /// T-37.
    #[test]
    fn users_and_groups_are_found_as_docker_finds_them() {
        check("", 0, 0, &[0]);
        check("me", 1000, 100, &[100, 27]);
        check("1000", 1000, 100, &[100, 27]);
        check("4000", 4000, 0, &[0]);
        check("me:sudo", 1000, 27, &[27]);
        check("1000:4000", 1000, 4000, &[4000]);
        check("me:", 1000, 100, &[100, 27]);
        assert_eq!(accounts().user("me").unwrap().home.as_deref(), Some("/home/me"));
    }

    /// T-38, CVE-2024-40635, CVE-2026-46680.
    #[test]
    fn a_number_out_of_range_is_refused_and_never_a_name() {
        for text in ["2147483648", "4294967295", "4294967296", "-1", "+1", "0:4294967296", "99999999999999999999999"] {
            let error = accounts().user(text).unwrap_err();
            assert!(error.to_string().contains("is not between"), "{text}: {error}");
        }
    }

    #[test]
    fn a_number_out_of_range_in_an_account_file_is_refused() {
        let accounts = Accounts {
            passwd: b"evil:x:4294967295:0::/:\ngroup:x:5:2147483648::/:\nme:x:1000:1000::/:\nlast:x:2147483647:0::/:\n"
                .to_vec(),
            group: b"wide:x:4294967295:me\n".to_vec(),
        };
        for text in ["evil", "evil:5", "group", "5", "me", "1000", "last:wide", "0:wide"] {
            let error = accounts.user(text).unwrap_err();
            assert!(error.to_string().contains("is not between 0 and"), "{text}: {error}");
        }
        assert_eq!(accounts.user("last").unwrap().uid, i32::MAX as u32);
        assert_eq!(accounts.user("me:7").unwrap().gid, 7);
    }

    #[test]
    fn a_missing_name_says_what_docker_says() {
        let error = accounts().user("nobody").unwrap_err();
        assert!(
            error.to_string().ends_with("unable to find user nobody: no matching entries in passwd file"),
            "{error}"
        );
        assert!(accounts().user("me:none").unwrap_err().to_string().contains("group file"));
    }

    proptest! {
        #[test]
        fn hostile_account_files_are_read_or_skipped(passwd in proptest::collection::vec(any::<u8>(), 0..300), text in "\\PC{0,20}") {
            let accounts = Accounts { group: passwd.clone(), passwd };
            if let Ok(user) = accounts.user(&text) {
                prop_assert_eq!(user.additional_gids[0], user.gid);
            }
        }
    }
}
