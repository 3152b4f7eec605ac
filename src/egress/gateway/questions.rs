//! DNS questions by TCP (RFC 1035, 4.2.2). No further questions are read while a client does not read its answers.

use super::Gateway;
use super::connection::{Connection, HELD, Need};
use rustix::io::Errno;

impl Connection {
    /// Answers while there is room for answers. `None` from `reply` ends the connection.
    fn answer(&mut self, mut reply: impl FnMut(&[u8]) -> Option<Vec<u8>>) -> Result<Need, Errno> {
        let mut at = 0;
        let need = loop {
            if self.down.waiting() >= HELD {
                self.down.flush(&mut self.client)?;
                if self.down.waiting() >= HELD {
                    break Need::Nothing; // until the client reads
                }
            }
            let question = match &self.held[at..] {
                [high, low, rest @ ..] => rest.get(..usize::from(u16::from_be_bytes([*high, *low]))),
                _ => None,
            };
            let Some(question) = question else { break self.ask_on()? };
            at += 2 + question.len();
            let Some(answer) = reply(question) else { break Need::End(true) };
            self.down.push(&(answer.len() as u16).to_be_bytes());
            self.down.push(&answer);
        };
        self.held.drain(..at);
        Ok(need)
    }

    /// Also reads again: an edge-triggered epoll would not report bytes that are there already.
    pub(super) fn ask_on(&mut self) -> Result<Need, Errno> {
        self.down.flush(&mut self.client)?;
        Ok(match (self.client_ended, self.down.waiting()) {
            (true, 0) => Need::End(false),
            (false, waiting) if self.client.readable && waiting < HELD => Need::Again,
            _ => Need::Nothing,
        })
    }
}

impl Gateway {
    pub(super) fn answer_stream(&mut self, number: u32) -> Need {
        let Some(mut connection) = self.connections.remove(&number) else { return Need::Nothing };
        let need = connection.answer(|question| self.reply(question)).unwrap_or(Need::End(true));
        self.connections.insert(number, connection);
        need
    }
}

#[cfg(test)]
mod tests {
    use super::super::connection::Front;
    use super::super::flow::{Budget, Pipes};
    use super::*;
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;

    const QUESTION: usize = 100;
    const ANSWER: usize = 200;

    /// Returns the most bytes of waiting questions and answers.
    fn drive(connection: &mut Connection) -> (usize, usize, Need) {
        let (mut held, mut waiting) = (0, 0);
        for _ in 0..10_000 {
            let mut need = connection.pass(&mut Pipes::default(), &mut Budget::new(None, None));
            if need == Need::Answers {
                need = connection.answer(|_| Some(vec![7; ANSWER])).unwrap();
            }
            (held, waiting) = (held.max(connection.held.len()), waiting.max(connection.down.waiting()));
            if need != Need::Again {
                return (held, waiting, need);
            }
        }
        panic!("it never ends");
    }

    fn flood(client: &mut UnixStream, bytes: &[u8]) -> usize {
        let mut sent = 0;
        while let Ok(count) = client.write(&bytes[sent..]) {
            sent += count;
            if sent == bytes.len() {
                break;
            }
        }
        sent
    }

    #[test]
    fn client_that_does_not_read_waits_and_then_gets_every_answer() {
        let (mut client, server) = UnixStream::pair().unwrap();
        client.set_nonblocking(true).unwrap();
        server.set_nonblocking(true).unwrap();
        let mut connection = Connection::new(server.into(), Front::Questions);
        let question = [&(QUESTION as u16).to_be_bytes()[..], &[1; QUESTION]].concat();
        let (count, mut sent, mut received) = (40_000, 0, 0);
        let all = question.repeat(count);
        // As edges come: each readiness is reported once.
        loop {
            let before = (sent, received);
            sent += flood(&mut client, &all[sent..]);
            (connection.client.readable, connection.client.writable) = (true, true);
            let (held, waiting, need) = drive(&mut connection);
            assert!(held < HELD + (16 << 10), "{held} bytes of questions");
            assert!(waiting <= HELD + ANSWER + 2, "{waiting} bytes of answers");
            assert_eq!(need, Need::Nothing);
            if (sent, received) != before {
                continue; // it accepts more without reading an answer
            }
            let mut buffer = vec![0; 64 << 10];
            while let Ok(length) = client.read(&mut buffer) {
                received += length;
            }
            if received == count * (ANSWER + 2) {
                break;
            }
            assert_ne!((sent, received), before, "it stands still");
        }
        assert_eq!(sent, all.len());
        client.shutdown(std::net::Shutdown::Write).unwrap();
        connection.client.readable = true;
        assert_eq!(drive(&mut connection).2, Need::End(false));
    }

    #[test]
    fn questions_that_came_all_at_once_are_all_read() {
        let (mut client, server) = UnixStream::pair().unwrap();
        client.set_nonblocking(true).unwrap();
        server.set_nonblocking(true).unwrap();
        let question = [&(QUESTION as u16).to_be_bytes()[..], &[1; QUESTION]].concat();
        // More than the buffer holds, and one edge for all of it.
        let sent = flood(&mut client, &question.repeat(1_500));
        assert!(sent > HELD);
        let mut connection = Connection::new(server.into(), Front::Questions);
        (connection.client.readable, connection.client.writable) = (true, true);
        let mut answered = 0;
        let need = loop {
            match connection.pass(&mut Pipes::default(), &mut Budget::new(None, None)) {
                Need::Answers => {
                    let need = connection.answer(|_| {
                        answered += 1;
                        Some(vec![7; 1])
                    });
                    match need.unwrap() {
                        Need::Again => {}
                        need => break need,
                    }
                }
                Need::Again => {}
                need => break need,
            }
        };
        assert_eq!((need, answered), (Need::Nothing, sent / question.len()));
    }
}
