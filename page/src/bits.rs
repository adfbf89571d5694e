//! Enums whose variants have fixed numbers, by which other processes read them.

/// Declares an enum whose variants have numbers of one type, and gives it `ALL`, `from_bits` and `to_bits`.
///
/// The numbers are literals, and two variants of the same number do not compile. Other derives, and a default, may
/// stand before the enum and its variants as usual.
///
/// ```
/// pagetide_page::numbered_enum! {
///     /// What a door may be.
///     #[derive(Default)]
///     pub enum Door: u8 {
///         /// Nobody gets in.
///         #[default]
///         Shut = 0,
///         /// Everybody does.
///         Open = 4,
///     }
/// }
/// assert_eq!(Door::from_bits(4), Some(Door::Open));
/// assert_eq!(Door::from_bits(1), None);
/// assert_eq!(Door::default().to_bits(), 0);
/// assert!(Door::ALL.iter().all(|&door| Door::from_bits(door.to_bits()) == Some(door)));
/// ```
#[macro_export]
macro_rules! numbered_enum {
    (
        $(#[$attribute:meta])*
        $visibility:vis enum $name:ident: $number:ident {
            $($(#[$of_variant:meta])* $variant:ident = $value:literal),+ $(,)?
        }
    ) => {
        $(#[$attribute])*
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        #[repr($number)]
        $visibility enum $name {
            $($(#[$of_variant])* $variant = $value),+
        }

        // Not every enum is read back, or gone through.
        #[allow(dead_code)]
        impl $name {
            /// All variants, in the order in which they are declared.
            $visibility const ALL: &'static [Self] = &[$(Self::$variant),+];

            /// Returns the variant with this number; `None` if no variant has it.
            $visibility const fn from_bits(bits: $number) -> Option<Self> {
                match bits {
                    $($value => Some(Self::$variant),)+
                    _ => None,
                }
            }

            /// Returns the variant's number.
            $visibility const fn to_bits(self) -> $number {
                self as $number
            }
        }
    };
}
