//! Keys: leaving, help, and changing a setting, which is confirmed first.

use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

/// What is to be done after a key.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Action {
    /// Nothing.
    Stay,
    /// Leave.
    Leave,
    /// Make a change that was confirmed: `NAME=VALUE`.
    Change(String),
}

/// What the last line asks for.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Mode {
    Watch,
    Help,
    /// A setting is typed: all of them as they are now, which one, and the value so far.
    Edit {
        settings: Vec<(String, String)>,
        chosen: usize,
        value: String,
    },
    /// It is to be confirmed.
    Confirm(String),
}

/// The state of the keyboard.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Keys {
    mode: Mode,
    told: Option<String>,
}

impl Keys {
    pub(super) fn new() -> Self {
        Self { mode: Mode::Watch, told: None }
    }

    /// Takes a key. `settings` are the lines `NAME=VALUE` of the run as it is.
    pub(super) fn press(&mut self, key: KeyEvent, settings: &str) -> Action {
        self.told = None;
        if key.modifiers.contains(KeyModifiers::CONTROL) && key.code == KeyCode::Char('c') {
            return Action::Leave;
        }
        match &mut self.mode {
            Mode::Watch | Mode::Help => return self.watch(key.code, settings),
            Mode::Edit { settings, chosen, value } => match key.code {
                KeyCode::Esc => self.mode = Mode::Watch,
                KeyCode::Tab | KeyCode::Down => {
                    *chosen = (*chosen + 1) % settings.len();
                    *value = settings[*chosen].1.clone();
                }
                KeyCode::BackTab | KeyCode::Up => {
                    *chosen = (*chosen + settings.len() - 1) % settings.len();
                    *value = settings[*chosen].1.clone();
                }
                KeyCode::Backspace => drop(value.pop()),
                KeyCode::Enter if *value == settings[*chosen].1 => self.mode = Mode::Watch,
                KeyCode::Enter => self.mode = Mode::Confirm(format!("{}={value}", settings[*chosen].0)),
                KeyCode::Char(letter) => value.push(letter),
                _ => {}
            },
            Mode::Confirm(setting) => {
                let setting = std::mem::take(setting);
                self.mode = Mode::Watch;
                if matches!(key.code, KeyCode::Char('y' | 'Y')) {
                    return Action::Change(setting);
                }
                self.told = Some("nothing was changed".to_owned());
            }
        }
        Action::Stay
    }

    fn watch(&mut self, code: KeyCode, settings: &str) -> Action {
        let is_help = self.mode == Mode::Help;
        self.mode = Mode::Watch;
        match code {
            KeyCode::Char('q') => return Action::Leave,
            KeyCode::Esc if !is_help => return Action::Leave,
            KeyCode::Char('?' | 'h') if !is_help => self.mode = Mode::Help,
            KeyCode::Char('s' | 'm') => {
                let pairs = settings.lines().filter_map(|line| line.split_once('='));
                let settings: Vec<_> =
                    pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
                // The cap is the first, and what is changed most.
                if let Some((_, value)) = settings.first() {
                    let value = value.clone();
                    self.mode = Mode::Edit { settings, chosen: 0, value };
                }
            }
            _ => {}
        }
        Action::Stay
    }

    /// Shows what came of a change until the next key.
    pub(super) fn tell(&mut self, result: Result<String, String>) {
        self.told = Some(match result {
            Ok(said) => said,
            Err(problem) => format!("not changed: {problem}"),
        });
    }

    /// Returns whether help is asked for.
    pub(super) fn is_help(&self) -> bool {
        self.mode == Mode::Help
    }

    /// Returns the last line.
    pub(super) fn line(&self) -> String {
        match (&self.told, &self.mode) {
            (Some(told), _) => told.clone(),
            (None, Mode::Watch) => "q leave   m cap   s settings   ? help".to_owned(),
            (None, Mode::Help) => "any key: back".to_owned(),
            (None, Mode::Edit { settings, chosen, value }) => {
                format!("set {}={value}▏  Tab other setting   Enter change   Esc back", settings[*chosen].0)
            }
            (None, Mode::Confirm(setting)) => format!("{setting}: change it while the run goes on? [y/N]"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SETTINGS: &str = "memory=512M\nenabled=on\n";

    fn press(keys: &mut Keys, typed: &[KeyCode]) -> Action {
        typed.iter().fold(Action::Stay, |_, &code| keys.press(code.into(), SETTINGS))
    }

    fn letters(text: &str) -> Vec<KeyCode> {
        text.chars().map(KeyCode::Char).collect()
    }

    #[test]
    fn a_change_is_made_when_it_is_confirmed_only() {
        let mut keys = Keys::new();
        let back = [KeyCode::Backspace; 4];
        let typed = [&letters("m")[..], &back, &letters("600M"), &[KeyCode::Enter]].concat();
        assert_eq!(press(&mut keys, &typed), Action::Stay);
        assert!(keys.line().starts_with("memory=600M: change it"), "{}", keys.line());
        assert_eq!(press(&mut keys, &letters("n")), Action::Stay);
        assert_eq!(keys.line(), "nothing was changed");
        press(&mut keys, &typed);
        assert_eq!(press(&mut keys, &letters("y")), Action::Change("memory=600M".to_owned()));
        keys.tell(Err("too little".to_owned()));
        assert_eq!(keys.line(), "not changed: too little");
        assert_eq!(press(&mut keys, &letters("q")), Action::Leave);
    }

    #[test]
    fn q_is_a_letter_where_a_value_is_typed_and_control_c_leaves_anywhere() {
        let mut keys = Keys::new();
        assert_eq!(press(&mut keys, &[KeyCode::Char('s'), KeyCode::Tab, KeyCode::Char('q')]), Action::Stay);
        assert!(keys.line().starts_with("set enabled=onq"), "{}", keys.line());
        assert_eq!(press(&mut keys, &[KeyCode::BackTab]), Action::Stay);
        assert!(keys.line().starts_with("set memory=512M"), "{}", keys.line());
        // Without a change there is nothing to confirm.
        assert_eq!(press(&mut keys, &[KeyCode::Enter]), Action::Stay);
        assert_eq!(keys, Keys::new());
        press(&mut keys, &[KeyCode::Char('s')]);
        let interrupt = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
        assert_eq!(keys.press(interrupt, SETTINGS), Action::Leave);
    }
}
