// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! Closed sets of words, see [`words!`](crate::words!).

/// Defines an enum whose values are words: the same for people and, with the feature `serde`, in JSON.
#[macro_export]
macro_rules! words {
    (
        $(#[$doc:meta])*
        $name:ident { $($(#[$of_value:meta])* $value:ident = $word:literal,)+ }
    ) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
        pub enum $name {
            $($(#[$of_value])* $value,)+
        }

        impl $name {
            /// Every value, in the order of the definition.
            pub const ALL: [Self; [$($word),+].len()] = [$(Self::$value),+];
        }

        impl ::core::fmt::Display for $name {
            fn fmt(&self, f: &mut ::core::fmt::Formatter<'_>) -> ::core::fmt::Result {
                f.write_str(match self {
                    $(Self::$value => $word,)+
                })
            }
        }

        $crate::serde_of_words!($name { $($value = $word,)+ });
    };
}

/// Defines an enum whose values may have fields, and the [`words!`](crate::words!) of these values without fields, with
/// further ones.
#[macro_export]
macro_rules! outcomes {
    (
        $(#[$doc:meta])*
        $name:ident {
            $($(#[$of_value:meta])* $value:ident $({ $($named:tt)* })? $(($unnamed:ty))? = $word:literal,)+
        }
        $(#[$of_words:meta])*
        $words:ident { $($(#[$of_further:meta])* $further:ident = $further_word:literal,)* }
    ) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Eq, PartialEq)]
        pub enum $name {
            $($(#[$of_value])* $value $({ $($named)* })? $(($unnamed))?,)+
        }

        impl From<$name> for $words {
            fn from(outcome: $name) -> Self {
                match outcome {
                    $($name::$value { .. } => Self::$value,)+
                }
            }
        }

        $crate::words! {
            $(#[$of_words])*
            $words {
                $(
                    #[doc = concat!("[`", stringify!($name), "::", stringify!($value), "`].")]
                    $value = $word,
                )+
                $($(#[$of_further])* $further = $further_word,)*
            }
        }
    };
}

/// The part of [`words!`](crate::words!) that needs the feature `serde` of this crate.
#[cfg(not(feature = "serde"))]
#[doc(hidden)]
#[macro_export]
macro_rules! serde_of_words {
    ($($definition:tt)+) => {};
}

/// The part of [`words!`](crate::words!) that needs the feature `serde` of this crate.
#[cfg(feature = "serde")]
#[doc(hidden)]
#[macro_export]
macro_rules! serde_of_words {
    ($name:ident { $($value:ident = $word:literal,)+ }) => {
        impl $crate::serde_core::Serialize for $name {
            fn serialize<S: $crate::serde_core::Serializer>(
                &self,
                serializer: S,
            ) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> $crate::serde_core::Deserialize<'de> for $name {
            fn deserialize<D: $crate::serde_core::Deserializer<'de>>(
                deserializer: D,
            ) -> Result<Self, D::Error> {
                deserializer.deserialize_str($crate::Parse(|word: &str| match word {
                    $($word => Ok(Self::$value),)+
                    _ => Err(concat!("not one of" $(, " \"", $word, "\"")+)),
                }))
            }
        }
    };
}

/// Gives types with a text that can be read back this form in JSON, with the feature `serde` of this crate.
#[cfg(not(feature = "serde"))]
#[macro_export]
macro_rules! serde_as_text {
    ($($type:ty),+) => {};
}

/// Gives types with a text that can be read back this form in JSON, with the feature `serde` of this crate.
#[cfg(feature = "serde")]
#[macro_export]
macro_rules! serde_as_text {
    ($($type:ty),+) => {$(
        impl $crate::serde_core::Serialize for $type {
            fn serialize<S: $crate::serde_core::Serializer>(
                &self,
                serializer: S,
            ) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> $crate::serde_core::Deserialize<'de> for $type {
            fn deserialize<D: $crate::serde_core::Deserializer<'de>>(
                deserializer: D,
            ) -> Result<Self, D::Error> {
                deserializer.deserialize_str($crate::Parse(<Self as ::core::str::FromStr>::from_str))
            }
        }
    )+};
}

/// Gives types with a number that can be read back this form in JSON, with the feature `serde` of this crate.
#[cfg(not(feature = "serde"))]
#[macro_export]
macro_rules! serde_as_number {
    ($($definition:tt)+) => {};
}

/// Gives types with a number that can be read back this form in JSON, with the feature `serde` of this crate.
#[cfg(feature = "serde")]
#[macro_export]
macro_rules! serde_as_number {
    ($($type:ident, $raw:ty: $new:expr, $get:expr;)+) => {$(
        impl $crate::serde_core::Serialize for $type {
            fn serialize<S: $crate::serde_core::Serializer>(
                &self,
                serializer: S,
            ) -> Result<S::Ok, S::Error> {
                $crate::serde_core::Serialize::serialize(&$get(*self), serializer)
            }
        }

        impl<'de> $crate::serde_core::Deserialize<'de> for $type {
            fn deserialize<D: $crate::serde_core::Deserializer<'de>>(
                deserializer: D,
            ) -> Result<Self, D::Error> {
                let raw = <$raw as $crate::serde_core::Deserialize>::deserialize(deserializer)?;
                let illegal = format_args!("{raw} is not a {}", stringify!($type));
                $new(raw).ok_or_else(|| $crate::serde_core::de::Error::custom(illegal))
            }
        }
    )+};
}

/// Reads a text by its function.
#[cfg(feature = "serde")]
#[doc(hidden)]
#[derive(Debug)]
pub struct Parse<F>(pub F);

#[cfg(feature = "serde")]
impl<T, X: core::fmt::Display, F: Fn(&str) -> Result<T, X>> serde_core::de::Visitor<'_>
    for Parse<F>
{
    type Value = T;

    fn expecting(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("a text")
    }

    fn visit_str<E: serde_core::de::Error>(self, text: &str) -> Result<T, E> {
        (self.0)(text).map_err(|error| E::custom(format_args!("{text}: {error}")))
    }
}
