// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause

//! `ibarr top` on a terminal. One thread reads keys, a second one asks the daemon, which may hang,
//! and this one draws.

use std::io;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use ibarr_proto::health;
use nix::sys::signal::{SigSet, Signal};
use ratatui::Frame;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
use ratatui::layout::{Constraint, Layout};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::Line;
use ratatui::widgets::Paragraph;

use super::rates::{self, Sample};
use super::text::{self, Kind};
use super::{TopArgs, look, unanswered};
use crate::cli::{Exit, ask};
use crate::control::messages::{Failure, FailureKind};

/// What the other threads have to say.
enum News {
    Looked(Box<Result<Sample, Failure>>),
    Terminal(Event),
    /// The terminal cannot be read, or a thread has ended by a panic, which has restored the terminal.
    Broken(io::Error),
    /// A signal ends the program.
    End,
}

/// Messages that wait to be drawn. A thread that finds no room waits.
const NEWS: usize = 16;

/// Draws until a key or a signal ends it. The terminal is then as it was, also after a panic.
pub(super) fn show(args: &TopArgs) -> Exit {
    let signals = SigSet::from_iter([Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP]);
    // Blocked before there is another thread, so that only the one that waits gets them.
    let blocked = signals.thread_block().map_err(io::Error::from);
    let mut terminal = match blocked.and_then(|()| ratatui::try_init()) {
        Ok(terminal) => terminal,
        Err(error) => return cannot(&error),
    };
    let (to, news) = sync_channel(NEWS);
    watch(args.clone(), signals, &to);
    let mut state = State::new(args.interval);
    let ended = loop {
        if let Err(error) = terminal.draw(|frame| state.draw(frame)) {
            break Err(error);
        }
        match state.next(&news) {
            Ok(true) => {}
            Ok(false) => break Ok(()),
            Err(error) => break Err(error),
        }
    };
    ratatui::restore();
    match ended {
        Ok(()) => Exit::Ok,
        Err(error) => cannot(&error),
    }
}

fn cannot(error: &io::Error) -> Exit {
    let message = format!("the terminal cannot be used: {error}; ibarr top --once needs none");
    ask::fail(Failure { kind: FailureKind::Internal, message }, false)
}

/// Starts the other threads, which end with the process.
fn watch(args: TopArgs, signals: SigSet, to: &SyncSender<News>) {
    let (keys, looks, ends) = (to.clone(), to.clone(), to.clone());
    let [of_keys, of_looks] = [(); 2].map(|()| LastWords(to.clone()));
    thread::spawn(move || {
        let _last_words = of_keys;
        while let Ok(event) = event::read().map_err(|error| keys.send(News::Broken(error))) {
            if keys.send(News::Terminal(event)).is_err() {
                return;
            }
        }
    });
    thread::spawn(move || {
        let _last_words = of_looks;
        let begun = Instant::now();
        loop {
            let looked = News::Looked(Box::new(look(&args.daemon, begun)));
            if looks.send(looked).is_err() {
                return;
            }
            thread::sleep(args.interval);
        }
    });
    thread::spawn(move || {
        if signals.wait().is_ok() {
            drop(ends.send(News::End));
        }
    });
}

/// Says that a thread has ended, however it has.
struct LastWords(SyncSender<News>);

impl Drop for LastWords {
    fn drop(&mut self) {
        drop(self.0.send(News::Broken(io::Error::other("a thread has ended"))));
    }
}

struct State {
    interval: Duration,
    /// The last two looks.
    before: Option<Sample>,
    after: Option<Sample>,
    failure: Option<Failure>,
    /// When the daemon was last heard.
    heard_at: Instant,
    /// Lines above the first one that is shown.
    scrolled: u16,
}

impl State {
    fn new(interval: Duration) -> Self {
        let heard_at = Instant::now();
        Self { interval, before: None, after: None, failure: None, heard_at, scrolled: 0 }
    }

    /// Waits for news. Returns whether to go on.
    fn next(&mut self, news: &Receiver<News>) -> io::Result<bool> {
        match news.recv_timeout(Duration::from_secs(1)) {
            // A daemon that hangs is said to be silent.
            Err(RecvTimeoutError::Timeout) => Ok(true),
            Err(RecvTimeoutError::Disconnected) | Ok(News::End) => Ok(false),
            Ok(News::Broken(error)) => Err(error),
            Ok(News::Looked(looked)) => {
                self.note(*looked);
                Ok(true)
            }
            Ok(News::Terminal(event)) => Ok(self.handle(&event)),
        }
    }

    fn note(&mut self, looked: Result<Sample, Failure>) {
        self.heard_at = Instant::now();
        match looked {
            Ok(sample) => {
                self.before = self.after.replace(sample);
                self.failure = None;
            }
            Err(failure) => self.failure = Some(failure),
        }
    }

    fn handle(&mut self, event: &Event) -> bool {
        let Event::Key(key) = event else { return true };
        if key.kind == KeyEventKind::Release {
            return true;
        }
        match key.code {
            KeyCode::Char('q') => return false,
            KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => return false,
            KeyCode::Up => self.scrolled = self.scrolled.saturating_sub(1),
            KeyCode::Down => self.scrolled = self.scrolled.saturating_add(1),
            KeyCode::Home => self.scrolled = 0,
            _ => {}
        }
        true
    }

    fn draw(&mut self, frame: &mut Frame<'_>) {
        let lines = self.lines();
        let [page, foot] =
            Layout::vertical([Constraint::Min(0), Constraint::Length(1)]).areas(frame.area());
        let hidden = u16::try_from(lines.len()).unwrap_or(u16::MAX).saturating_sub(page.height);
        self.scrolled = self.scrolled.min(hidden);
        let more = if hidden > self.scrolled { ", down more" } else { "" };
        let foot_line = Line::styled(format!("q ends{more}"), Modifier::DIM);
        frame.render_widget(Paragraph::new(lines).scroll((self.scrolled, 0)), page);
        frame.render_widget(foot_line, foot);
    }

    fn lines(&self) -> Vec<Line<'static>> {
        let bad = Style::from(Color::Red).add_modifier(Modifier::BOLD);
        let silent = self.heard_at.elapsed();
        let is_silent = silent > self.interval + Duration::from_secs(2);
        let trouble = match &self.failure {
            Some(failure) => Some(unanswered(failure)),
            None if is_silent => {
                Some(format!("no answer from the daemon for {} s", silent.as_secs()))
            }
            None => None,
        };
        let mut lines: Vec<_> = trouble.map(|text| Line::styled(text, bad)).into_iter().collect();
        if let Some(after) = &self.after {
            let top = rates::top(self.before.as_ref(), after);
            lines.extend(text::lines(&top).into_iter().map(|line| {
                let style = match line.kind {
                    Kind::State(Some(health::State::Ok)) => Color::Green.into(),
                    Kind::State(Some(health::State::Degraded) | None) => Color::Yellow.into(),
                    Kind::State(Some(health::State::Failed)) => bad,
                    Kind::Head => Modifier::REVERSED.into(),
                    Kind::Row => Style::default(),
                };
                Line::styled(line.text, style)
            }));
        }
        lines
    }
}
