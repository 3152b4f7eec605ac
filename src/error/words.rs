//! Enums whose variants have words, on the command line and in JSON.

/// Makes an enum with a word for each variant: in code, in JSON, and back.
macro_rules! words {
    ($(#[$doc:meta])* $vis:vis enum $name:ident { $($(#[$each:meta])* $variant:ident = $word:literal,)* }) => {
        $(#[$doc])*
        #[derive(
            Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize, serde::Deserialize
        )]
        $vis enum $name { $($(#[$each])* #[doc = concat!("`", $word, "`")] #[serde(rename = $word)] $variant,)* }

        #[allow(dead_code, reason = "not every enum is listed and parsed")]
        impl $name {
            /// Every variant, in order.
            pub const ALL: &'static [$name] = &[$($name::$variant,)*];

            /// Its word on the command line and in JSON.
            pub const fn word(self) -> &'static str { match self { $($name::$variant => $word,)* } }

            /// The variant of a word.
            pub fn of_word(word: &str) -> Option<$name> { $name::ALL.iter().copied().find(|each| each.word() == word) }
        }
    };
}

pub(crate) use words;
