//! Options of `pagetide dump`.

use super::section::help;

/// Options of `pagetide dump`.
#[derive(clap::Args, Debug)]
#[command(override_usage = "pagetide dump [PID] [--page ADDR] [--json]", after_help = help(super::manual::DUMP))]
pub struct DumpArgs {
    /// Launcher of the run, or a process of it
    #[arg(value_name = "PID")]
    pub pid: Option<u32>,
    /// Tell all that is known of the page at ADDR (hexadecimal)
    #[arg(long, value_name = "ADDR", value_parser = parse_address)]
    pub page: Option<u64>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

fn parse_address(text: &str) -> Result<u64, String> {
    let digits = text.strip_prefix("0x").unwrap_or(text);
    match u64::from_str_radix(digits, 16) {
        Ok(address) if address < 1 << 47 => Ok(address),
        Ok(_) => Err("no program has memory there: addresses have 47 bits".to_owned()),
        Err(error) => Err(format!("it is a hexadecimal number, as 0x7f0012345000 ({error})")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_hexadecimal_and_have_47_bits() {
        assert_eq!(parse_address("0x7f0012345678"), Ok(0x7f00_1234_5678));
        assert_eq!(parse_address("1000"), Ok(4096));
        for wrong in ["", "0x", "page", "-1", "0x800000000000", "ffffffffffffffffff"] {
            assert!(parse_address(wrong).is_err(), "{wrong}");
        }
    }
}
