//! Finds the prose of a file: comments, messages, names, paragraphs and cells.
//!
//! Rust, scripts and Markdown are read. Code, code fences and code spans are not prose.

/// What a passage is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Form {
    /// A paragraph or a list item in a comment.
    Comment,
    /// A string of three words or more in code that is not a test.
    Message,
    /// The name of a function.
    Function,
    /// The name of a type.
    Type,
    /// A heading, a paragraph or a list item of a page.
    Page,
    /// A cell of a table.
    Cell,
    /// A line of a page that could be wrapped.
    Line,
}

/// One piece of prose, with the line on which it begins.
#[derive(Debug)]
pub struct Passage {
    pub line: usize,
    pub form: Form,
    pub text: String,
}

/// The prose of a file. Other kinds of files have none.
pub fn passages(path: &str, text: &str) -> Vec<Passage> {
    let name = path.rsplit('/').next().unwrap_or(path);
    let kind = name.rsplit_once('.').map_or("", |(_, kind)| kind);
    match kind {
        "rs" => rust(text, path.starts_with("src/") && name != "tests.rs"),
        "c" => rust(text, false),
        "md" => {
            let mut fenced = false;
            let mut found = markdown(text.lines().enumerate().map(|(at, line)| (at + 1, line.to_owned())), Form::Page);
            for (at, line) in text.lines().enumerate() {
                fenced ^= line.trim_start().starts_with("```");
                // A row of a table, a picture and an address cannot be wrapped.
                let long = line.split(' ').map(|word| word.chars().count()).max().unwrap_or_default();
                if (fenced || !line.starts_with('|')) && long < 100 {
                    found.push(Passage { line: at + 1, form: Form::Line, text: line.to_owned() });
                }
            }
            found
        }
        "py" | "sh" => script(text),
        "" if text.starts_with("#!") => script(text),
        _ => Vec::new(),
    }
}

/// The sentences of a passage. Neighbouring code spans, which are the word `X`, and addresses are one word.
pub fn sentences(text: &str) -> Vec<String> {
    let mut text = text.to_owned();
    for pattern in ["X, X", "X and X", "X or X", "X X", "X/X", "X, and X", "X, or X"] {
        while text.contains(pattern) {
            text = text.replace(pattern, "X");
        }
    }
    let mut sentences = Vec::new();
    let mut sentence = Vec::new();
    for word in text.split_whitespace() {
        let bare = word.trim_end_matches([')', '"', '*', '”']);
        sentence.push(if word.contains("://") { "X" } else { word });
        if bare.ends_with(['.', '?', '!']) && !["e.g.", "i.e.", "etc."].contains(&bare) {
            sentences.push(sentence.join(" "));
            sentence.clear();
        }
    }
    if !sentence.is_empty() {
        sentences.push(sentence.join(" "));
    }
    sentences
}

/// A text without code spans and the targets of links.
fn plain(text: &str) -> String {
    let mut out = String::new();
    for (at, piece) in text.split('`').enumerate() {
        if at % 2 == 1 {
            out.push('X');
            continue;
        }
        let mut rest = piece;
        while let Some((before, after)) = rest.split_once("](") {
            out.push_str(before);
            rest = after.split_once(')').map_or("", |(_, rest)| rest);
        }
        out.push_str(rest);
    }
    out.replace(['[', ']'], "").replace("**", "")
}

/// Paragraphs, list items and cells of Markdown lines. `form` is that of paragraphs.
fn markdown(lines: impl Iterator<Item = (usize, String)>, form: Form) -> Vec<Passage> {
    let mut found: Vec<Passage> = Vec::new();
    let mut fenced = false;
    let mut open = false; // the last passage goes on
    for (at, line) in lines {
        let text = line.trim();
        if text.starts_with("```") {
            (fenced, open) = (!fenced, false);
            continue;
        }
        if fenced || text.is_empty() || text.starts_with("![") || text.starts_with('<') {
            open &= fenced;
            continue;
        }
        if text.starts_with('|') {
            let cells = plain(text.trim_matches('|'));
            let cells = cells.split('|').map(str::trim).filter(|cell| cell.contains(char::is_alphanumeric));
            found.extend(cells.map(|cell| Passage { line: at, form: Form::Cell, text: cell.to_owned() }));
            open = false;
            continue;
        }
        let number = text.trim_start_matches(|each: char| each.is_ascii_digit());
        let item = if number.len() < text.len() { number.strip_prefix(". ") } else { text.strip_prefix("- ") };
        let item = item.or_else(|| text.strip_prefix("* ")).or_else(|| text.strip_prefix("> "));
        let heading = text.starts_with('#');
        let body = item.unwrap_or(text).trim_start_matches(['#', ' ']);
        match found.last_mut() {
            Some(last) if open && item.is_none() && !heading => {
                last.text.push(' ');
                last.text.push_str(body);
            }
            _ => found.push(Passage { line: at, form, text: body.to_owned() }),
        }
        open = !heading;
    }
    for passage in found.iter_mut().filter(|passage| passage.form == form) {
        passage.text = plain(&passage.text);
    }
    found.retain(|passage| passage.text.contains(char::is_alphanumeric));
    found
}

/// Groups the comments of neighbouring lines, and reads each group as Markdown. A comment behind code, marked by `true`,
/// is its own group.
fn comments(lines: Vec<(usize, String, bool)>) -> Vec<Passage> {
    let mut found = Vec::new();
    let mut group: Vec<(usize, String)> = Vec::new();
    let mut behind_code = false;
    for (at, line, behind) in lines {
        if behind || behind_code || group.last().is_some_and(|(last, _)| last + 1 != at) {
            found.extend(markdown(std::mem::take(&mut group).into_iter(), Form::Comment));
        }
        group.push((at, line));
        behind_code = behind;
    }
    found.extend(markdown(group.into_iter(), Form::Comment));
    for cell in found.iter_mut().filter(|passage| passage.form == Form::Cell) {
        cell.form = Form::Comment;
    }
    found
}

fn script(text: &str) -> Vec<Passage> {
    let mut lines = Vec::new();
    for (at, line) in text.lines().enumerate() {
        let comment = match line.trim_start().strip_prefix('#') {
            Some(rest) if !rest.starts_with('!') => Some(rest),
            Some(_) => None,
            // A `#` in a string or an expansion is code.
            None => line.split_once(" # ").map(|(_, rest)| rest),
        };
        let comment = comment.filter(|rest| !rest.contains("shellcheck "));
        let behind = !line.trim_start().starts_with('#');
        lines.extend(comment.map(|rest| (at + 1, rest.trim().to_owned(), behind)));
    }
    comments(lines)
}

/// Comments, strings and names of Rust (or C). Strings count as messages only if `messages`, and never after `#[cfg(test)] mod`.
fn rust(text: &str, messages: bool) -> Vec<Passage> {
    let (mut code, mut lines, mut found) = (String::new(), Vec::new(), Vec::new());
    let mut line = 1;
    let mut rest = text;
    let strings_end = text.find("#[cfg(test)]\nmod ").unwrap_or(text.len());
    while let Some(first) = rest.chars().next() {
        let here = text.len() - rest.len();
        let length = if rest.starts_with("//") {
            let end = rest.find('\n').unwrap_or(rest.len());
            let comment = rest[..end].trim_start_matches(['/', '!']);
            let behind = code.rsplit('\n').next().is_some_and(|before| !before.trim().is_empty());
            lines.push((line, comment.strip_prefix(' ').unwrap_or(comment).to_owned(), behind));
            end
        } else if rest.starts_with("/*") {
            let end = rest.find("*/").map_or(rest.len(), |end| end + 2);
            let body = rest[..end].trim_start_matches(['/', '*']).trim_end_matches(['/', '*']).lines();
            let bare = |text: &str| text.trim_start_matches([' ', '*']).to_owned();
            lines.extend(body.enumerate().map(|(at, text)| (line + at, bare(text), false)));
            end
        } else if first == '"' {
            let (length, inner) = string(rest);
            if messages && here < strings_end && inner.split_whitespace().count() > 2 {
                let text = inner.replace("\\n", " ").replace('`', "");
                let text = text.split_whitespace().filter(|word| *word != "\\").collect::<Vec<_>>().join(" ");
                found.push(Passage { line, form: Form::Message, text });
            }
            length
        } else if let Some(length) =
            raw_string(rest, code.ends_with(|each: char| each.is_alphanumeric() || each == '_'))
        {
            length
        } else if first == '\'' {
            character(rest)
        } else {
            code.push(first);
            first.len_utf8()
        };
        let newlines = rest[..length].matches('\n').count();
        if first != '\n' {
            code.extend(std::iter::repeat_n('\n', newlines));
        }
        line += newlines;
        rest = &rest[length..];
    }
    found.extend(comments(lines));
    found.extend(names(&code));
    found.sort_by_key(|passage| passage.line);
    found
}

/// The length of a string literal, quotes included, and what is in it.
fn string(text: &str) -> (usize, &str) {
    let mut escaped = false;
    for (at, each) in text.char_indices().skip(1) {
        match each {
            '"' if !escaped => return (at + 1, &text[1..at]),
            _ => escaped = each == '\\' && !escaped,
        }
    }
    (text.len(), &text[1..])
}

fn raw_string(text: &str, in_word: bool) -> Option<usize> {
    let body = text.strip_prefix("br").or_else(|| text.strip_prefix('r')).filter(|_| !in_word)?;
    let hashes = body.len() - body.trim_start_matches('#').len();
    let inner = body[hashes..].strip_prefix('"')?;
    let end = format!("\"{}", "#".repeat(hashes));
    Some(text.len() - inner.len() + inner.find(&end).map_or(inner.len(), |at| at + end.len()))
}

/// The length of a character literal, or of the quote of a lifetime.
fn character(text: &str) -> usize {
    let mut characters = text.char_indices().skip(1);
    match (characters.next(), characters.next()) {
        (Some((_, '\\')), _) => {
            text[2..].find('\'').map_or(1, |at| if text[2..].starts_with('\'') { 4 } else { at + 3 })
        }
        (Some(_), Some((at, '\''))) => at + 1,
        _ => 1,
    }
}

/// The names that code without comments and strings defines.
fn names(code: &str) -> Vec<Passage> {
    let mut found = Vec::new();
    for (at, line) in code.lines().enumerate() {
        let words: Vec<_> = line.split(|each: char| !each.is_alphanumeric() && each != '_').collect();
        for pair in words.windows(2).filter(|pair| !pair[1].is_empty()) {
            let form = match pair[0] {
                "fn" => Form::Function,
                "struct" | "enum" | "trait" | "union" | "type" => Form::Type,
                _ => continue,
            };
            found.push(Passage { line: at + 1, form, text: pair[1].to_owned() });
        }
    }
    found
}
