//! Characters by which text looks like other text: for everything that shows a person what a sandbox wrote.

/// Whether a character turns the direction of the text around it, or begins a line where no line ends.
pub fn reorders_text(character: char) -> bool {
    matches!(character, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// Whether a character reorders text, or cannot be seen: format characters, fillers, variation selectors, tags.
/// (Unicode's `Default_Ignorable_Code_Point`, and U+2800, a blank that is no space.)
pub fn is_deceptive(character: char) -> bool {
    reorders_text(character)
        || matches!(
            character,
            '\u{ad}'
                | '\u{34f}'
                | '\u{115f}'..='\u{1160}'
                | '\u{17b4}'..='\u{17b5}'
                | '\u{180b}'..='\u{180f}'
                | '\u{200b}'..='\u{200d}'
                | '\u{2060}'..='\u{206f}'
                | '\u{2800}'
                | '\u{3164}'
                | '\u{fe00}'..='\u{fe0f}'
                | '\u{feff}'
                | '\u{ffa0}'
                | '\u{fff0}'..='\u{fffb}'
                | '\u{1bca0}'..='\u{1bca3}'
                | '\u{1d173}'..='\u{1d17a}'
                | '\u{e0000}'..='\u{e0fff}'
        )
}
