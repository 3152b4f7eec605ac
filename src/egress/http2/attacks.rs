//! What a client, or a server, may try with frames.

use super::hpack::{Decoder, Field};
use super::*;
use std::cell::RefCell;

/// Adds a secret to what is for /ok, refuses the rest.
struct Test(RefCell<Needles>);

impl Rules for Test {
    fn admit(&mut self, head: &Head) -> Result<Vec<(String, Vec<u8>)>, String> {
        if head.target != "/ok" {
            return Err(format!("not {}", head.target));
        }
        let kept = head.fields.iter().filter(|(name, _)| name != "authorization");
        let mut all: Vec<_> = kept.map(|(name, value)| (name.clone(), value.clone().into_bytes())).collect();
        all.push(("Authorization".into(), b"Bearer hunter2".to_vec()));
        Ok(all)
    }

    fn needles(&self) -> Ref<'_, Needles> {
        self.0.borrow()
    }
}

struct Pair {
    relay: Relay,
    rules: Test,
    up: Vec<u8>,
    down: Vec<u8>,
}

impl Pair {
    /// Both ends have said hello.
    fn new() -> Pair {
        let mut needles = Needles::default();
        needles.add(vec![b"hunter2".to_vec()]);
        let mut pair =
            Pair { relay: Relay::new(), rules: Test(RefCell::new(needles)), up: Vec::new(), down: Vec::new() };
        pair.client_bytes(PREFACE).unwrap();
        pair.client(SETTINGS, 0, 0, b"").unwrap();
        pair.server(SETTINGS, 0, 0, b"").unwrap();
        (pair.up, pair.down) = (Vec::new(), Vec::new());
        pair
    }

    fn client_bytes(&mut self, bytes: &[u8]) -> Result<usize, Broken> {
        self.relay.client_says(bytes, &mut self.rules, (&mut self.up, &mut self.down))
    }

    fn client(&mut self, kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Result<usize, Broken> {
        let mut bytes = Vec::new();
        put(&mut bytes, kind, flags, stream, payload);
        self.client_bytes(&bytes)
    }

    fn server(&mut self, kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Result<usize, Broken> {
        let mut bytes = Vec::new();
        put(&mut bytes, kind, flags, stream, payload);
        self.relay.server_says(&bytes, &mut self.rules, (&mut self.up, &mut self.down))
    }

    fn ask(&mut self, stream: u32, path: &str, flags: u8, extra: &[(&[u8], &[u8])]) -> Result<usize, Broken> {
        let own: [(&[u8], &[u8]); 4] =
            [(b":method", b"POST"), (b":scheme", b"https"), (b":path", path.as_bytes()), (b":authority", b"a.test")];
        let block = hpack::write(&[&own[..], extra].concat(), false);
        self.client(HEADERS, END_HEADERS | flags, stream, &block)
    }

    /// The frames that one side was told: kind, stream, and headers as text or the payload.
    fn told(bytes: &mut Vec<u8>, decoder: &mut Decoder) -> Vec<(u8, u32, String)> {
        let all = std::mem::take(bytes);
        let (mut rest, mut frames) = (&all[..], Vec::new());
        while let Some(frame) = Frame::first(rest).unwrap() {
            let text = if frame.kind == HEADERS {
                let fields = decoder.read(frame.payload).unwrap();
                let line = |(name, value): &Field| {
                    format!("{}={} ", String::from_utf8_lossy(name), String::from_utf8_lossy(value))
                };
                fields.iter().map(line).collect()
            } else {
                String::from_utf8_lossy(frame.payload).into_owned()
            };
            frames.push((frame.kind, frame.stream, text));
            rest = &rest[HEAD + frame.payload.len()..];
        }
        assert!(rest.is_empty());
        frames
    }
}

#[test]
fn a_request_gets_the_secret_and_what_the_answer_repeats_of_it_is_hidden_on_its_own_stream() {
    let (mut pair, mut up, mut down) = (Pair::new(), Decoder::new(), Decoder::new());
    pair.ask(1, "/ok", END_STREAM, &[(b"authorization", b"mine")]).unwrap();
    pair.ask(3, "/ok", END_STREAM, &[]).unwrap();
    let told = Pair::told(&mut pair.up, &mut up);
    assert_eq!(told.len(), 2);
    assert!(told[0].2.contains("authorization=Bearer hunter2") && !told[0].2.contains("mine"), "{told:?}");
    let head = hpack::write(&[(b":status", b"200"), (b"x-echo", b"it is hunter2")], true);
    pair.server(HEADERS, END_HEADERS, 1, &head).unwrap();
    pair.server(DATA, 0, 1, b"a hunt").unwrap();
    pair.server(HEADERS, END_HEADERS, 3, &hpack::write(&[(b":status", b"200")], false)).unwrap();
    pair.server(DATA, 0, 3, b"er2 is no secret of this stream").unwrap();
    pair.server(DATA, END_STREAM, 1, b"er2 b").unwrap();
    let told = Pair::told(&mut pair.down, &mut down);
    assert!(told[0].2.contains("x-echo=it is *******"), "{told:?}");
    let of_one: String =
        told.iter().filter(|(kind, stream, _)| (*kind, *stream) == (DATA, 1)).map(|each| each.2.as_str()).collect();
    assert_eq!(of_one, "a ******* b");
    assert!(told.iter().any(|each| each.2 == "er2 is no secret of this stream"));
}

#[test]
fn a_window_that_ends_within_the_secret_does_not_bring_it_out() {
    for cut in 1..7 {
        let (mut pair, mut down) = (Pair::new(), Decoder::new());
        pair.ask(1, "/ok", END_STREAM, &[]).unwrap();
        pair.server(HEADERS, END_HEADERS, 1, &hpack::write(&[(b":status", b"200")], true)).unwrap();
        pair.server(DATA, 0, 1, &b"hunter2"[..cut]).unwrap();
        pair.relay.release(&pair.rules, &mut pair.down);
        assert_eq!(pair.relay.waiting(), 0);
        pair.server(DATA, END_STREAM, 1, &b"hunter2"[cut..]).unwrap();
        let told = Pair::told(&mut pair.down, &mut down);
        let content: String = told.iter().filter(|each| each.0 == DATA).map(|each| each.2.as_str()).collect();
        assert!(content.len() == 7 && content.ends_with("*****"), "{cut}: {content}");
    }
}

#[test]
fn a_refused_request_never_reaches_the_server_and_the_others_go_on() {
    let (mut pair, mut down) = (Pair::new(), Decoder::new());
    pair.ask(1, "/no", 0, &[]).unwrap();
    pair.client(DATA, END_STREAM, 1, b"12345").unwrap();
    assert_eq!(pair.up, b"");
    let told = Pair::told(&mut pair.down, &mut down);
    assert!(told[0].2.contains(":status=403") && told[0].2.contains("brig=not /no"), "{told:?}");
    assert_eq!((told[1].0, told[1].1, told.len()), (WINDOW, 0, 2)); // the room that the content took is given back
    assert_eq!(pair.relay.take_notes(), ["not /no"]);
    pair.ask(3, "/ok", END_STREAM, &[]).unwrap();
    assert!(!pair.up.is_empty());
}

#[test]
fn content_that_is_longer_or_shorter_than_was_said_is_no_second_request() {
    for (said, flags, content) in [(&b"3"[..], 0, &b"GET / HTTP/1.1"[..]), (b"9", END_STREAM, b"abc")] {
        let (mut pair, mut up) = (Pair::new(), Decoder::new());
        pair.ask(1, "/ok", 0, &[(b"content-length", said)]).unwrap();
        pair.client(DATA, flags, 1, content).unwrap();
        let told = Pair::told(&mut pair.up, &mut up);
        assert_eq!(told.iter().map(|each| each.0).collect::<Vec<_>>(), [HEADERS, RESET]);
        pair.client(DATA, 0, 1, b"more").unwrap();
        assert_eq!(pair.up, b"");
    }
    let mut pair = Pair::new();
    pair.ask(1, "/ok", 0, &[]).unwrap();
    pair.up.clear();
    let trailer = hpack::write(&[(b"host", b"b.test")], false);
    pair.client(HEADERS, END_HEADERS | END_STREAM, 1, &trailer).unwrap();
    assert_eq!(Frame::first(&pair.up).unwrap().unwrap().kind, RESET);
}

#[test]
fn the_reason_is_said_in_room_that_the_server_does_not_count_on() {
    let (mut pair, mut up, mut down) = (Pair::new(), Decoder::new(), Decoder::new());
    pair.client(WINDOW, 0, 0, &5000_u32.to_be_bytes()).unwrap();
    assert_eq!(Pair::told(&mut pair.up, &mut up), [(WINDOW, 0, "\0\0\u{3}\u{88}".replace('\u{88}', "\u{fffd}"))]);
    pair.ask(1, "/no", END_STREAM, &[]).unwrap();
    let told = Pair::told(&mut pair.down, &mut down);
    assert_eq!(told[1], (DATA, 1, "brig: not /no\n".into()));
    // What it took is taken from the next room, before the server hears of that.
    pair.client(WINDOW, 0, 0, &14_u32.to_be_bytes()).unwrap();
    assert_eq!(pair.up, b"");
}

#[track_caller]
fn breaks(why: &str, mut attack: impl FnMut(&mut Pair) -> Result<usize, Broken>) {
    let mut pair = Pair::new();
    let Err(Broken(found)) = attack(&mut pair) else { panic!("nobody minds: {why}") };
    assert!(found.contains(why), "{found}");
}

#[test]
fn a_flood_ends_the_connection() {
    breaks("headers are too long", |pair| {
        pair.client(HEADERS, 0, 1, b"")?;
        (0..100).try_fold(0, |_, _| pair.client(CONTINUATION, 0, 1, b""))
    });
    breaks("headers are too long", |pair| {
        pair.client(HEADERS, 0, 1, &[0; LONGEST])?;
        (0..5).try_fold(0, |_, _| pair.client(CONTINUATION, 0, 1, &[0; LONGEST]))
    });
    breaks("given up at once", |pair| {
        (0..1000).try_fold(0, |_, number| {
            pair.ask(number * 2 + 1, "/ok", END_STREAM, &[])?;
            pair.client(RESET, 0, number * 2 + 1, &8_u32.to_be_bytes())
        })
    });
    breaks("say nothing", |pair| (0..2000).try_fold(0, |_, _| pair.client(PING, 0, 0, &[0; 8])));
    breaks("say nothing", |pair| (0..2000).try_fold(0, |_, _| pair.client(SETTINGS, 0, 0, b"")));
    breaks("say nothing", |pair| {
        pair.ask(1, "/ok", 0, &[])?;
        (0..2000).try_fold(0, |_, _| pair.client(DATA, 0, 1, b""))
    });
}

#[test]
fn requests_that_come_to_an_end_are_no_flood_and_more_than_there_is_room_for_wait() {
    let mut pair = Pair::new();
    for number in 0..5000 {
        let stream = number * 2 + 1;
        pair.ask(stream, "/ok", END_STREAM, &[]).unwrap();
        pair.server(HEADERS, END_HEADERS | END_STREAM, stream, &hpack::write(&[(b":status", b"200")], false)).unwrap();
    }
    assert!(pair.relay.streams.is_empty());
    for number in 5000..5300 {
        pair.ask(number * 2 + 1, "/ok", END_STREAM, &[]).unwrap();
    }
    assert_eq!(pair.relay.streams.len(), MOST_STREAMS);
}

#[test]
fn what_two_programs_could_read_in_two_ways_ends_the_connection() {
    breaks("begins otherwise", |pair| {
        pair.relay = Relay::new();
        pair.client_bytes(b"GET / HTTP/1.1\r\n")
    });
    breaks("no settings", |pair| {
        pair.relay = Relay::new();
        pair.client_bytes(PREFACE)?;
        pair.client(PING, 0, 0, &[0; 8])
    });
    breaks("mixed", |pair| {
        pair.client(HEADERS, 0, 1, b"")?;
        pair.client(PING, 0, 0, &[0; 8])
    });
    breaks("mixed", |pair| {
        pair.client(HEADERS, 0, 1, b"")?;
        pair.ask(3, "/ok", 0, &[])
    });
    breaks("did not begin", |pair| {
        pair.client(HEADERS, 0, 1, b"")?;
        pair.client(CONTINUATION, 0, 3, b"")
    });
    breaks("mixed", |pair| pair.client(CONTINUATION, END_HEADERS, 1, b""));
    breaks("wrong stream", |pair| pair.client(DATA, 0, 0, b"x"));
    breaks("wrong stream", |pair| pair.client(SETTINGS, 0, 1, b""));
    breaks("wrong length", |pair| pair.client(SETTINGS, 0, 0, b"12345"));
    breaks("wrong length", |pair| pair.client(WINDOW, 0, 0, b"123"));
    breaks("too long", |pair| pair.client_bytes(&[1, 0, 0, 0, 0, 0, 0, 0, 1]));
    breaks("more padding", |pair| {
        pair.ask(1, "/ok", 0, &[])?;
        pair.client(DATA, PADDED, 1, &[9, 0, 0])
    });
    breaks("even number", |pair| pair.ask(2, "/ok", 0, &[]));
    breaks("without a request", |pair| pair.client(DATA, 0, 1, b"x"));
    breaks("did not begin", |pair| pair.client(RESET, 0, 1, &[0; 4]));
    breaks("a client pushes", |pair| pair.client(PUSH, 0, 1, &[0; 4]));
    breaks("the server pushes", |pair| pair.server(PUSH, 0, 1, &[0; 4]));
    breaks("not an answer's", |pair| {
        pair.ask(1, "/ok", END_STREAM, &[])?;
        pair.server(HEADERS, END_HEADERS, 1, &hpack::write(&[(b"x", b"1")], false))
    });
    breaks("nobody gave", |pair| pair.client(HEADERS, END_HEADERS, 1, &[0xff, 0]));
}

#[test]
fn padding_is_left_out_and_its_room_given_back_to_whoever_sent_it() {
    let (mut pair, mut up, mut down) = (Pair::new(), Decoder::new(), Decoder::new());
    pair.ask(1, "/ok", 0, &[]).unwrap();
    pair.client(DATA, PADDED, 1, &[2, b'a', b'b', 0, 0]).unwrap();
    let told = Pair::told(&mut pair.up, &mut up);
    assert_eq!(told[1], (DATA, 1, "ab".into()));
    let back = Pair::told(&mut pair.down, &mut down);
    assert_eq!(back, [(WINDOW, 0, "\0\0\0\u{3}".into()), (WINDOW, 1, "\0\0\0\u{3}".into())]);
}

#[test]
fn only_settings_between_the_two_ends_pass() {
    let mut pair = Pair::new();
    let all: Vec<u8> = (1..=9_u16).flat_map(|id| [&id.to_be_bytes()[..], &1_u32.to_be_bytes()].concat()).collect();
    pair.client(SETTINGS, 0, 0, &all).unwrap();
    let frame = Frame::first(&pair.up).unwrap().unwrap();
    let ids: Vec<_> = frame.payload.chunks(6).map(|each| (each[1], each[5])).collect();
    assert_eq!(ids, [(3, 1), (4, 1), (6, 1), (2, 0)]);
}

#[test]
fn random_bytes_break_nothing_but_their_connection() {
    let mut random = crate::egress::random();
    for _ in 0..20_000 {
        let mut pair = Pair::new();
        for _ in 0..6 {
            let payload: Vec<u8> = (0..random() % 40).map(|_| random() as u8).collect();
            let (kind, flags, stream) = (random() as u8 % 12, random() as u8, random() % 6);
            let said = if random().is_multiple_of(2) {
                pair.client(kind, flags, stream, &payload)
            } else {
                pair.server(kind, flags, stream, &payload)
            };
            if said.is_err() {
                break;
            }
        }
    }
}
