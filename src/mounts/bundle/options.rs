//! The words in a mount's options: those of mount(8), and the recursive ones of the runtime specification. Pure.

use crate::error::{Error, Kind, Result};
use crate::sys::mount as bits;
use rustix::mount::{MountFlags, MountPropagationFlags};

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Options {
    /// `MOUNT_ATTR_*` to set on this mount,
    pub set: u64,
    /// to clear,
    pub clear: u64,
    /// to set on it and all below,
    pub set_below: u64,
    /// and to clear there.
    pub clear_below: u64,
    pub bind: Option<Reach>,
    pub remount: bool,
    pub propagation: Vec<MountPropagationFlags>,
    pub idmap: Option<Reach>,
    pub copy_up: bool,
    /// Flags of the whole file system.
    pub whole: Vec<&'static str>,
    /// For the file system itself.
    pub data: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reach {
    One,
    /// And all below it.
    Below,
}

#[derive(Clone, Copy)]
enum Effect {
    Nothing,
    Set(u64),
    Clear(u64),
    SetBelow(u64),
    ClearBelow(u64),
    /// The largest value of the atime field counts.
    Time(u64),
    TimeBelow(u64),
    /// The default is relatime.
    NoTime(u64),
    NoTimeBelow(u64),
    Bind(Reach),
    Remount,
    Propagate(MountPropagationFlags),
    IdMap(Reach),
    CopyUp,
    Whole,
}

/// In alphabetical order; `features` prints it.
const WORDS: [(&str, Effect); 79] = {
    use Effect::{
        Bind, Clear, ClearBelow, CopyUp, IdMap, NoTime, NoTimeBelow, Nothing, Propagate, Remount, Set, SetBelow, Time,
        TimeBelow, Whole,
    };
    use MountPropagationFlags as P;
    [
        ("async", Nothing),
        ("atime", NoTime(bits::NOATIME)),
        ("bind", Bind(Reach::One)),
        ("defaults", Nothing),
        ("dev", Clear(bits::NODEV)),
        ("diratime", Clear(bits::NODIRATIME)),
        ("dirsync", Whole),
        ("exec", Clear(bits::NOEXEC)),
        ("idmap", IdMap(Reach::One)),
        ("iversion", Whole),
        ("lazytime", Whole),
        ("loud", Nothing),
        ("mand", Whole),
        ("noatime", Time(bits::NOATIME)),
        ("nodev", Set(bits::NODEV)),
        ("nodiratime", Set(bits::NODIRATIME)),
        ("noexec", Set(bits::NOEXEC)),
        ("noiversion", Nothing),
        ("nolazytime", Nothing),
        ("nomand", Nothing),
        ("norelatime", Nothing),
        ("nostrictatime", NoTime(bits::STRICTATIME)),
        ("nosuid", Set(bits::NOSUID)),
        ("nosymfollow", Set(bits::NOSYMFOLLOW)),
        ("private", Propagate(P::PRIVATE)),
        ("ratime", NoTimeBelow(bits::NOATIME)),
        ("rbind", Bind(Reach::Below)),
        ("rdev", ClearBelow(bits::NODEV)),
        ("rdiratime", ClearBelow(bits::NODIRATIME)),
        ("relatime", Time(bits::RELATIME)),
        ("remount", Remount),
        ("rexec", ClearBelow(bits::NOEXEC)),
        ("ridmap", IdMap(Reach::Below)),
        ("rnoatime", TimeBelow(bits::NOATIME)),
        ("rnodev", SetBelow(bits::NODEV)),
        ("rnodiratime", SetBelow(bits::NODIRATIME)),
        ("rnoexec", SetBelow(bits::NOEXEC)),
        ("rnorelatime", Nothing),
        ("rnostrictatime", NoTimeBelow(bits::STRICTATIME)),
        ("rnosuid", SetBelow(bits::NOSUID)),
        ("rnosymfollow", SetBelow(bits::NOSYMFOLLOW)),
        ("ro", Set(bits::RDONLY)),
        ("rprivate", Propagate(P::PRIVATE.union(P::REC))),
        ("rrelatime", TimeBelow(bits::RELATIME)),
        ("rro", SetBelow(bits::RDONLY)),
        ("rrw", ClearBelow(bits::RDONLY)),
        ("rshared", Propagate(P::SHARED.union(P::REC))),
        ("rslave", Propagate(P::DOWNSTREAM.union(P::REC))),
        ("rstrictatime", TimeBelow(bits::STRICTATIME)),
        ("rsuid", ClearBelow(bits::NOSUID)),
        ("rsymfollow", ClearBelow(bits::NOSYMFOLLOW)),
        ("runbindable", Propagate(P::UNBINDABLE.union(P::REC))),
        ("rw", Clear(bits::RDONLY)),
        ("shared", Propagate(P::SHARED)),
        ("silent", Whole),
        ("slave", Propagate(P::DOWNSTREAM)),
        ("strictatime", Time(bits::STRICTATIME)),
        ("suid", Clear(bits::NOSUID)),
        ("symfollow", Clear(bits::NOSYMFOLLOW)),
        ("sync", Whole),
        ("tmpcopyup", CopyUp),
        ("unbindable", Propagate(P::UNBINDABLE)),
        // Words of mount(8) for /etc/fstab, without effect on a mount.
        ("_netdev", Nothing),
        ("auto", Nothing),
        ("noauto", Nothing),
        ("nofail", Nothing),
        ("nouser", Nothing),
        ("nousers", Nothing),
        ("user", Nothing),
        ("users", Nothing),
        ("owner", Nothing),
        ("noowner", Nothing),
        ("group", Nothing),
        ("nogroup", Nothing),
        ("x-mount.mkdir", Nothing),
        ("x-gvfs-hide", Nothing),
        ("x-gvfs-show", Nothing),
        ("comment", Nothing),
        ("x-initrd.mount", Nothing),
    ]
};

/// The leading [`WORDS`] that are in the specification.
const SPECIFIED: usize = 62;

pub(crate) fn known() -> impl Iterator<Item = &'static str> {
    WORDS.iter().take(SPECIFIED).map(|(word, _)| *word)
}

/// A later word overrides an earlier one.
pub(crate) fn parse(place: &str, options: &[String]) -> Result<Options> {
    let mut found = Options::default();
    for option in options {
        match WORDS.iter().find(|(word, _)| word == option) {
            Some((word, effect)) => apply(&mut found, word, *effect),
            None if option.contains('\0') => return Err(refused(place, "an option holds a NUL")),
            None if option.is_empty() => {}
            None => found.data.push(option.clone()),
        }
    }
    if found.bind.is_some() && !found.data.is_empty() {
        return Err(refused(
            place,
            &format!("bind mounts cannot have any filesystem-specific options applied: `{}`", found.data.join(",")),
        ));
    }
    Ok(found)
}

fn refused(place: &str, words: &str) -> Error {
    Error::new(Kind::Spec, words).doing(format!("read the options of the mount `{place}`"))
}

fn apply(found: &mut Options, word: &'static str, effect: Effect) {
    let put = |set: &mut u64, clear: &mut u64, on: u64, off: u64| {
        *set = *set & !off | on;
        *clear = *clear & !on | off;
    };
    let back = |set: &mut u64, value: u64| {
        if *set & bits::ATIME == value {
            *set = *set & !bits::ATIME | bits::RELATIME;
        }
    };
    match effect {
        Effect::Nothing => {}
        Effect::Set(bit) => put(&mut found.set, &mut found.clear, bit, 0),
        Effect::Clear(bit) => put(&mut found.set, &mut found.clear, 0, bit),
        Effect::SetBelow(bit) => put(&mut found.set_below, &mut found.clear_below, bit, 0),
        Effect::ClearBelow(bit) => put(&mut found.set_below, &mut found.clear_below, 0, bit),
        Effect::Time(value) => {
            // As in mount(2): strictatime wins over noatime, and noatime over relatime, in any order.
            found.set = found.set & !bits::ATIME | value.max(found.set & bits::ATIME);
            found.clear |= bits::ATIME;
        }
        Effect::TimeBelow(value) => {
            found.set_below = found.set_below & !bits::ATIME | value;
            found.clear_below |= bits::ATIME;
        }
        Effect::NoTime(value) => back(&mut found.set, value),
        Effect::NoTimeBelow(value) => back(&mut found.set_below, value),
        // As in mount(2): `rbind` and `bind` together are recursive.
        Effect::Bind(reach) => found.bind = if found.bind == Some(Reach::Below) { found.bind } else { Some(reach) },
        Effect::Remount => found.remount = true,
        Effect::Propagate(flags) => found.propagation.push(flags),
        Effect::IdMap(reach) => found.idmap = Some(reach),
        Effect::CopyUp => found.copy_up = true,
        Effect::Whole => found.whole.push(word),
    }
}

impl Options {
    pub(super) fn flags(&self) -> MountFlags {
        const TABLE: [(u64, MountFlags); 8] = [
            (bits::RDONLY, MountFlags::RDONLY),
            (bits::NOSUID, MountFlags::NOSUID),
            (bits::NODEV, MountFlags::NODEV),
            (bits::NOEXEC, MountFlags::NOEXEC),
            (bits::NOATIME, MountFlags::NOATIME),
            (bits::STRICTATIME, MountFlags::STRICTATIME),
            (bits::NODIRATIME, MountFlags::NODIRATIME),
            (bits::NOSYMFOLLOW, MountFlags::from_bits_retain(256)), // MS_NOSYMFOLLOW
        ];
        let flags = TABLE.iter().filter(|(bit, _)| self.set & bit != 0).map(|(_, flag)| *flag);
        let whole = self.whole.iter().map(|word| match *word {
            "sync" => MountFlags::SYNCHRONOUS,
            "dirsync" => MountFlags::DIRSYNC,
            "mand" => MountFlags::PERMIT_MANDATORY_FILE_LOCKING,
            "lazytime" => MountFlags::LAZYTIME,
            "silent" => MountFlags::SILENT,
            _ => MountFlags::from_bits_retain(1 << 23), // MS_I_VERSION
        });
        flags.chain(whole).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(words: &[&str]) -> Options {
        parse("/x", &words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>()).unwrap()
    }

    #[test]
    fn every_word_is_there_once() {
        let mut words: Vec<_> = WORDS.iter().map(|(word, _)| *word).collect();
        words.sort_unstable();
        words.dedup();
        assert_eq!(words.len(), WORDS.len());
        assert!(known().eq(WORDS.iter().map(|(word, _)| *word).take_while(|word| *word != "_netdev")));
    }

    #[test]
    fn a_later_word_overrides_an_earlier_one() {
        assert_eq!(options(&["ro", "rw"]), Options { clear: bits::RDONLY, ..Options::default() });
        assert_eq!(options(&["rw", "ro"]), Options { set: bits::RDONLY, ..Options::default() });
        let times = options(&["noatime", "strictatime"]);
        assert_eq!((times.set, times.clear), (bits::STRICTATIME, bits::ATIME));
        assert_eq!(options(&["noatime", "relatime"]).set, bits::NOATIME);
    }

    #[test]
    fn what_is_no_word_is_the_file_systems() {
        assert_eq!(options(&["mode=755", "acl", "nosuid"]).data, ["mode=755", "acl"]);
        assert!(parse("/x", &["bind".into(), "mode=755".into()]).is_err());
    }
}
