use super::super::http::{Requests, Step};
use super::*;

const SECRET: &str = "correct-horse-battery-staple";

fn request(text: &str) -> Head {
    match Requests::new().step(format!("{text}\r\nHost: a\r\n\r\n").as_bytes()) {
        Step::Head(head, _) => *head,
        other => panic!("{other:?}"),
    }
}

fn told_in_parts(requests: &[&str], said: &[u8], size: usize) -> Result<String, &'static str> {
    let mut needles = Needles::default();
    needles.add(vec![SECRET.as_bytes().to_vec()]);
    let mut answers = Answers::new();
    requests.iter().for_each(|text| answers.expect(&request(text)));
    let (mut held, mut out) = (Vec::new(), Vec::new());
    for part in said.chunks(size) {
        held.extend_from_slice(part);
        loop {
            match answers.read_server(&held, &needles, &mut out)? {
                0 => break,
                count => drop(held.drain(..count)),
            }
        }
    }
    answers.end(&needles, &mut out);
    Ok(String::from_utf8_lossy(&out).into_owned())
}

const GET: &str = "GET / HTTP/1.1";

/// Requires the same result for parts of all sizes.
#[track_caller]
fn told(requests: &[&str], said: &str) -> String {
    let all = told_in_parts(requests, said.as_bytes(), usize::MAX).unwrap();
    for size in [1, 2, 3, 7, 30] {
        let parts = told_in_parts(requests, said.as_bytes(), size).unwrap();
        assert_eq!(without_chunks(&parts), without_chunks(&all), "in parts of {size}");
    }
    all
}

fn without_chunks(text: &str) -> String {
    let Some((head, mut rest)) = text.split_once("chunked\r\n\r\n") else { return text.to_owned() };
    let mut out = head.to_owned();
    loop {
        let (size, after) = rest.split_once("\r\n").unwrap();
        let size = usize::from_str_radix(size, 16).unwrap();
        if size == 0 {
            return out + after;
        }
        out += &after[..size];
        rest = after[size..].strip_prefix("\r\n").unwrap();
    }
}

#[test]
fn a_secret_across_chunks_is_hidden_wherever_they_are_cut() {
    let content = format!("you said Bearer {SECRET}, or not");
    let expected = content.replace(SECRET, &"*".repeat(SECRET.len()));
    for first in 0..content.len() {
        for second in [1, 2, 5, 20] {
            let (one, rest) = content.split_at(first);
            let (two, three) = rest.split_at(second.min(rest.len()));
            let chunks: String = [one, two, three]
                .iter()
                .filter(|part| !part.is_empty())
                .map(|part| format!("{:X};by=us\r\n{part}\r\n", part.len()))
                .collect();
            let said = format!("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n{chunks}0\r\nX-Sum: 1\r\n\r\n");
            let seen = without_chunks(&told(&[GET], &said));
            assert!(seen.ends_with(&format!("{expected}X-Sum: 1\r\n\r\n")), "{first} {second}: {seen}");
        }
    }
}

#[test]
fn chunks_that_have_nothing_to_hide_stay_as_they_are() {
    let said = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n7\r\ndata: x\r\n2\r\n\n\n\r\n0\r\n\r\n";
    assert_eq!(told(&[GET], said), said);
}

#[test]
fn heads_and_trailers_are_looked_through() {
    let stars = "*".repeat(SECRET.len());
    let said = format!(
        "HTTP/1.1 103 Early {SECRET}\r\nX-A: {SECRET}\r\n\r\nHTTP/1.1 200 {SECRET}\r\nX-B: Bearer {SECRET}\r\nTransfer-Encoding: chunked\r\n\r\n\
         1;{SECRET}\r\nx\r\n0\r\nX-C: {SECRET}\r\n\r\n"
    );
    let seen = told(&[GET], &said);
    assert_eq!((seen.matches(&stars).count(), seen.contains(SECRET)), (5, false), "{seen}");
    assert!(seen.contains("\r\n\r\n1\r\nx\r\n0\r\n"), "{seen}");
}

#[test]
fn where_an_answer_ends_is_known_from_its_head_and_its_request() {
    let ok = "HTTP/1.1 200 OK\r\n";
    for (requests, said) in [
        (&[GET, GET][..], format!("{ok}Content-Length: 3\r\n\r\nabc{ok}Content-Length: 0\r\n\r\n")),
        (&["HEAD / HTTP/1.1", GET], format!("{ok}Content-Length: 300\r\n\r\n{ok}Content-Length: 1\r\n\r\nx")),
        (&["HEAD / HTTP/1.1", GET], format!("{ok}Transfer-Encoding: chunked\r\n\r\n{ok}\r\nto the end")),
        (&[GET, GET], format!("HTTP/1.1 304 Not\r\nContent-Length: 5\r\n\r\n{ok}\r\nto the end")),
        (&[GET, GET], format!("HTTP/1.1 204\r\n\r\n{ok}\r\n")),
        (&[GET], format!("HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 102 x\r\n\r\n{ok}\r\nto the end\r\n\r\n{ok}")),
        (&[GET], "HTTP/1.0 200 OK\r\nX: \u{fc}\r\n\r\nold".into()),
    ] {
        for size in [1, 2, 5, 1000] {
            assert_eq!(told_in_parts(requests, said.as_bytes(), size).as_deref(), Ok(said.as_str()));
        }
    }
    // No byte of a head has to be UTF-8.
    let said = b"HTTP/1.1 200 \xfc\r\nX: \xe4\r\nContent-Length: 0\r\n\r\n";
    told_in_parts(&[GET], said, 1).unwrap();
}

#[test]
fn content_of_which_the_rest_never_comes_is_told_as_far_as_it_came() {
    let length = format!("HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\nit is {}", &SECRET[..12]);
    assert!(told(&[GET], &length).ends_with("it is ************"));
    let chunked = format!("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nFF\r\nit is {}", &SECRET[..4]);
    let seen = told_in_parts(&[GET], chunked.as_bytes(), 1000).unwrap();
    assert!(seen.ends_with("\r\n\r\n6\r\nit is \r\n4\r\ncorr\r\n"), "{seen}");
}

#[test]
fn what_takes_long_is_told_where_it_belongs() {
    let mut needles = Needles::default();
    needles.add(vec![SECRET.as_bytes().to_vec()]);
    let (mut answers, mut out) = (Answers::new(), Vec::new());
    answers.expect(&request(GET));
    let said = format!("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n18\r\nit is {}\r\n", &SECRET[..18]);
    let mut held = said.as_bytes();
    while !held.is_empty() {
        let taken = answers.read_server(held, &needles, &mut out).unwrap();
        held = &held[taken..];
    }
    assert_eq!(answers.waiting(), 18);
    answers.release(&needles, &mut out);
    let mut held = format!("a\r\n{}\r\n", &SECRET[18..]).into_bytes();
    while !held.is_empty() {
        let taken = answers.read_server(&held, &needles, &mut out).unwrap();
        held.drain(..taken);
    }
    let seen = String::from_utf8(out).unwrap();
    assert!(seen.ends_with("6\r\nit is \r\n12\r\n******************\r\na\r\n**********\r\n"), "{seen}");
}

#[test]
fn another_protocol_begins_only_where_one_was_asked_for() {
    const ASK: &str = "GET / HTTP/1.1\r\nConnection: upgrade\r\nUpgrade: websocket";
    let said = format!("HTTP/1.1 101 Switching\r\nUpgrade: websocket\r\n\r\n\u{1}\n\n HTTP {SECRET}");
    let seen = told(&[ASK], &said);
    assert!(seen.contains("\u{1}\n\n HTTP ***") && !seen.contains(SECRET), "{seen}");
    let refused = told_in_parts(&[GET], said.as_bytes(), 1000).unwrap_err();
    assert!(refused.contains("a change of protocol without a request"), "{refused}");
    let mut answers = Answers::new();
    answers.expect(&request(ASK));
    assert!(answers.are_full() && !answers.are_over());
    let not = b"HTTP/1.1 404 Not\r\nContent-Length: 0\r\n\r\n";
    answers.read_server(not, &Needles::default(), &mut Vec::new()).unwrap();
    assert!(!answers.are_full() && !answers.are_over());
}

#[test]
fn many_requests_wait_for_their_answers() {
    let mut answers = Answers::new();
    (0..MOST_ASKED).for_each(|_| {
        assert!(!answers.are_full());
        answers.expect(&request(GET));
    });
    assert!(answers.are_full());
}

#[test]
fn what_two_programs_could_understand_in_two_ways_ends_the_connection() {
    let answer = |rest: &str| format!("HTTP/1.1 200 OK\r\n{rest}");
    let chunked = |rest: &str| answer(&format!("Transfer-Encoding: chunked\r\n\r\n{rest}"));
    for (said, words) in [
        (answer("Content-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n"), "together"),
        (answer("Content-Length: 1\r\nContent-Length: 2\r\n\r\n"), "not one number"),
        (answer("Content-Length: 1, 1\r\n\r\n"), "not one number"),
        (answer("Content-Length: +1\r\n\r\n"), "not one number"),
        (answer("Transfer-Encoding: gzip, chunked\r\n\r\n"), "not chunked"),
        (answer("Transfer-Encoding: identity\r\n\r\n"), "not chunked"),
        (answer("Transfer-Encoding: chunked\r\n\r\n").replace("1.1", "1.0"), "not chunked"),
        (answer("Transfer-Encoding : chunked\r\n\r\n"), "header's name"),
        (answer("X: 1\r\n Transfer-Encoding: chunked\r\n\r\n"), "header"),
        (answer("Transfer-Encoding: chunked\n\r\n"), "without CR"),
        (answer("X: 1\rTransfer-Encoding: chunked\r\n\r\n"), "control character"),
        (answer("X\r\n\r\n"), "without a colon"),
        (chunked("0x1\r\na\r\n"), "not a number"),
        (chunked("-1\r\na\r\n"), "not a number"),
        (chunked("\r\na\r\n"), "not a number"),
        (chunked("1\r\nab\r\n"), "does not end"),
        (chunked("1\r\na\n"), "does not end"),
        (chunked("1\na\r\n"), "without CR"),
        (chunked("1234567890abcdef0\r\n"), "not a number"),
        (chunked(&format!("1;{}", "x".repeat(2000))), "too long"),
        (chunked("0\r\nX 1\r\n\r\n"), "without a colon"),
        (answer(&format!("X: {}\r\n\r\n", "x".repeat(70_000))), "too long"),
        (answer(&"X: 1\r\n".repeat(12_000)), "too long"),
        (answer("Content-Length: 0\r\n\r\n") + &answer("Content-Length: 0\r\n\r\n"), "an answer without a request"),
        (answer("Content-Length: 0\r\n\r\nrest\r\n\r\n"), "begins otherwise"),
        ("HTTP/2 200 OK\r\n\r\n".into(), "begins otherwise"),
        ("<html>\r\n\r\n".into(), "begins otherwise"),
        ("\0\0\0\x04\0\0\0\0\0".into(), "it is HTTP/2"),
        ("HTTP/1.1 2000 OK\r\n\r\n".into(), "not a number"),
        ("HTTP/1.1 099 OK\r\n\r\n".into(), "not a number"),
        ("HTTP/1.1  200 OK\r\n\r\n".into(), "not a number"),
        ("\r\n\r\n".into(), "empty line"),
    ] {
        // Long answers take long in small parts.
        for size in if said.len() > 5000 { [1000, 100_000] } else { [1, 100_000] } {
            let refused = told_in_parts(&[GET], said.as_bytes(), size).unwrap_err();
            assert!(refused.contains(words), "{said:?}: {refused}");
        }
    }
    let unasked = told_in_parts(&[], answer("\r\n").as_bytes(), 1000).unwrap_err();
    assert!(unasked.contains("without a request"), "{unasked}");
}

#[test]
fn random_bytes_break_nothing() {
    let mut random = crate::egress::random();
    let words = [
        "HTTP/1.1 200 OK\r\n",
        "Content-Length: 5\r\n",
        "Transfer-Encoding: chunked\r\n",
        "\r\n",
        "5\r\n",
        "hello",
        "0\r\n",
        "\n",
        "x",
        SECRET,
    ];
    for _ in 0..5000 {
        let said: String = (0..random() % 12).map(|_| words[random() as usize % words.len()]).collect();
        let _ = told_in_parts(&[GET, GET], said.as_bytes(), 1 + random() as usize % 20);
    }
}
