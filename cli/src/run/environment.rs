//! Test switches from the environment.

use pagetide::injection::{self, Plan};
use pagetide::mask::Mask;

/// Reads `PAGETIDE_MASK`.
pub(crate) fn mask_from_environment() -> Result<Mask, String> {
    let list = std::env::var_os("PAGETIDE_MASK").unwrap_or_default();
    let list = list.to_string_lossy();
    Mask::parse(&list).map_err(|name| {
        let known: Vec<_> = Mask::NAMES.iter().map(|(name, _)| *name).collect();
        format!("PAGETIDE_MASK: there is no way {name:?}; there are {}", known.join(", "))
    })
}

/// Reads `PAGETIDE_FAIL`.
pub(crate) fn injection() -> Result<Plan, String> {
    let text = std::env::var_os("PAGETIDE_FAIL").unwrap_or_default();
    Plan::parse(&text.to_string_lossy()).ok_or_else(|| {
        let known: Vec<_> = injection::NAMES.iter().map(|(name, _)| *name).collect();
        format!("PAGETIDE_FAIL: {text:?} is not NAME:N, with a NAME of {}", known.join(", "))
    })
}
