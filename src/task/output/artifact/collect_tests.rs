use super::*;
use std::os::fd::AsFd;
use std::os::unix::fs::symlink;

fn taken(upper: &Path, into: &Path) -> Vec<String> {
    let options = ArtifactOptions { patterns: vec!["**".to_owned()], ..ArtifactOptions::default() };
    let upper = File::open(upper).unwrap();
    let source = Source { upper: upper.as_fd(), form: Form::Plain };
    let found = collect(Some(source), (&options, &Pinned::default()), into, u64::MAX, &Redactor::new()).unwrap();
    found.files.into_iter().map(|file| file.path).collect()
}

#[test]
fn a_file_that_is_called_by_a_secret_stays_and_is_not_named() {
    let lab = tempfile::tempdir().unwrap();
    let at = |name: &str| lab.path().join(name);
    std::fs::create_dir_all(at("upper/correct-horse-battery")).unwrap();
    for name in ["upper/plain", "upper/x-correct-horse-battery", "upper/correct-horse-battery/below"] {
        std::fs::write(at(name), "text").unwrap();
    }
    let redactor = Redactor::new();
    assert!(redactor.add("KEY", b"correct-horse-battery"));
    let options = ArtifactOptions { patterns: vec!["**".to_owned()], ..ArtifactOptions::default() };
    let upper = File::open(at("upper")).unwrap();
    let source = Source { upper: upper.as_fd(), form: Form::Plain };
    let found = collect(Some(source), (&options, &Pinned::default()), &at("into"), u64::MAX, &redactor).unwrap();
    assert_eq!(found.files.iter().map(|file| file.path.as_str()).collect::<Vec<_>>(), ["plain"]);
    let mut refused: Vec<_> = found.refused.iter().map(|each| (each.path.as_str(), each.why)).collect();
    refused.sort_unstable_by_key(|(path, _)| *path);
    let secret = RefusedBecause::Secret;
    assert_eq!(refused, [("[redacted:KEY]/below", secret), ("x-[redacted:KEY]", secret)]);
    assert!(redactor.take_seen("KEY"));
}

#[test]
fn copies_take_no_more_than_the_disk_limit() {
    let lab = tempfile::tempdir().unwrap();
    let upper = lab.path().join("upper");
    std::fs::create_dir(&upper).unwrap();
    std::fs::write(upper.join("first"), vec![0; 600_000]).unwrap();
    // Each name is a copy, so names would multiply bytes.
    std::fs::hard_link(upper.join("first"), upper.join("second")).unwrap();
    std::fs::write(upper.join("text"), "a".repeat(600_000)).unwrap();
    File::create(upper.join("hole")).unwrap().set_len(100 << 20).unwrap();
    let options = ArtifactOptions { patterns: vec!["**".to_owned()], ..ArtifactOptions::default() };
    let open = File::open(&upper).unwrap();
    let source = Some(Source { upper: open.as_fd(), form: Form::Plain });
    let of = (&options, &Pinned::default());
    let found = collect(source, of, &lab.path().join("out"), 1 << 20, &Redactor::new()).unwrap();
    assert_eq!(found.files.len(), 2, "{found:?}");
    let refused: Vec<_> = found.refused.iter().map(|each| each.why).collect();
    assert_eq!(refused, [RefusedBecause::TooLarge; 2]);
}

#[test]
fn names_of_one_refused_file_are_read_once_and_the_walk_has_an_end() {
    let lab = tempfile::tempdir().unwrap();
    let upper = lab.path().join("upper");
    std::fs::create_dir(&upper).unwrap();
    let mut content = vec![0; 1 << 20];
    content.extend_from_slice(b"correct-horse-battery");
    std::fs::write(upper.join("first"), content).unwrap();
    let redactor = Redactor::new();
    assert!(redactor.add("KEY", b"correct-horse-battery"));
    let options = ArtifactOptions { patterns: vec!["**".to_owned()], ..ArtifactOptions::default() };
    let collected = |time| {
        let (open, began) = (File::open(&upper).unwrap(), Instant::now());
        let source = Some(Source { upper: open.as_fd(), form: Form::Plain });
        let of = (&options, &Pinned::default());
        let found = collect_until(began + time, source, of, &lab.path().join("out"), u64::MAX, &redactor).unwrap();
        (found.refused.len(), found.refused[0].why, began.elapsed())
    };
    let (count, why, once) = collected(MOST_TIME);
    assert_eq!((count, why), (1, RefusedBecause::Secret));
    for number in 0..500 {
        std::fs::hard_link(upper.join("first"), upper.join(number.to_string())).unwrap();
    }
    let (count, why, all) = collected(MOST_TIME);
    assert_eq!((count, why), (501, RefusedBecause::Secret));
    assert!(all < once * 100, "{once:?} for one name, {all:?} for 501");
    assert_eq!(collected(Duration::ZERO).1, RefusedBecause::OutOfTime);
}

#[test]
fn a_folder_that_becomes_a_link_under_the_walk_is_not_followed() {
    let lab = tempfile::tempdir().unwrap();
    let at = |name: &str| lab.path().join(name);
    for folder in ["secrets", "upper/d"] {
        std::fs::create_dir_all(at(folder)).unwrap();
    }
    for number in 0..50 {
        std::fs::write(at("secrets").join(number.to_string()), "host").unwrap();
    }
    std::fs::write(at("upper/d/mine"), "a").unwrap();
    symlink("../secrets", at("link")).unwrap();
    let stop = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let swapper = std::thread::spawn({
        let (stop, here, there) = (stop.clone(), at("upper/d"), at("link"));
        move || {
            use rustix::fs::{CWD, RenameFlags, renameat_with};
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                renameat_with(CWD, &here, CWD, &there, RenameFlags::EXCHANGE).unwrap();
            }
        }
    });
    let mut leaked = Vec::new();
    for _ in 0..400 {
        let into = at("out");
        leaked.extend(taken(&at("upper"), &into).into_iter().filter(|path| path != "d/mine"));
        let _ = crate::files::remove_directory(&into);
    }
    stop.store(true, std::sync::atomic::Ordering::Relaxed);
    swapper.join().unwrap();
    assert!(leaked.is_empty(), "files of the host were taken: {leaked:?}");
}

#[test]
fn a_tree_that_is_too_deep_or_too_wide_comes_to_an_end() {
    let lab = tempfile::tempdir().unwrap();
    let upper = lab.path().join("upper");
    let mut deep = upper.join("deep");
    (0..DEEPEST + 5).for_each(|_| deep = deep.join("d"));
    std::fs::create_dir_all(&deep).unwrap();
    std::fs::create_dir(upper.join("wide")).unwrap();
    for number in 0..MOST_FILES + 3 {
        File::create(upper.join("wide").join(number.to_string())).unwrap();
    }
    let options = ArtifactOptions { patterns: vec!["**".to_owned()], ..ArtifactOptions::default() };
    let open = File::open(&upper).unwrap();
    let source = Source { upper: open.as_fd(), form: Form::Plain };
    let found =
        collect(Some(source), (&options, &Pinned::default()), &lab.path().join("out"), u64::MAX, &Redactor::new())
            .unwrap();
    let count = |why| found.refused.iter().filter(|each| each.why == why).count();
    assert_eq!((found.files.len(), count(RefusedBecause::TooDeep), count(RefusedBecause::TooMany)), (MOST_FILES, 1, 3));
}
