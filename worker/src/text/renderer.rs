//! The loop of a renderer: one question after another through the model's own template and tokenizer.

use std::io::{self, Write};
use std::os::unix::net::UnixStream;
use std::panic::{AssertUnwindSafe, catch_unwind};

use model_boss_engine::constraint::GrammarChecker;
use model_boss_engine::text::{Prompt, TemplateError, Text};

use super::frame::{Frame, LARGEST_QUESTION, LARGEST_TAIL, frame};
use super::message::{AddSpecials, RendererReply, TextAnswer, TextQuestion};

/// Hooks of a renderer around a question.
pub(super) trait RendererWatch {
    /// Called when a question has arrived.
    fn begin(&mut self) {}

    /// Reports that the answer is ready. Returns whether the renderer should end after it.
    fn end(&mut self) -> bool {
        false
    }
}

/// Answers until the stream ends.
pub(super) fn serve(mut stream: UnixStream, text: &Text, watch: &mut impl RendererWatch) -> io::Result<()> {
    while let Some(question) = Frame::read(&mut stream, LARGEST_QUESTION)? {
        watch.begin();
        // A panic inside a library leaves a tokenizer and a template as they were: answering changes neither.
        let answered = catch_unwind(AssertUnwindSafe(|| match question.head::<TextQuestion>() {
            Ok(question) => answer(text, question),
            Err(error) => {
                (TextAnswer::Refused(format!("the conversation cannot be passed to the template: {error}")), Vec::new())
            }
        }));
        let failed = || (TextAnswer::Limit("failed in a way that was not foreseen".to_owned()), Vec::new());
        let (mut answer, mut tail) = answered.unwrap_or_else(|_| failed());
        if tail.len() > LARGEST_TAIL {
            (answer, tail) = (TextAnswer::Limit(format!("makes more than {} MiB", LARGEST_TAIL >> 20)), Vec::new());
        }
        let worn = watch.end();
        stream.write_all(&frame(&RendererReply { answer, worn }, &tail)?)?;
        if worn {
            return Ok(());
        }
    }
    Ok(())
}

/// The answer to a question, with its tail.
pub(super) fn answer(text: &Text, question: TextQuestion) -> (TextAnswer, Vec<u8>) {
    let nothing = |answer| (answer, Vec::new());
    match question {
        TextQuestion::Render { conversation } => match text.prompt(&conversation) {
            Ok(Prompt::Rendered(prompt) | Prompt::Transcript(prompt)) => (TextAnswer::Text, prompt.into_bytes()),
            Err(error) => nothing(refused(&error)),
        },
        TextQuestion::Check { grammar } => {
            nothing(match GrammarChecker::new(&text.vocabulary).and_then(|checker| checker.check(&grammar)) {
                Ok(()) => TextAnswer::Usable,
                Err(error) => TextAnswer::Refused(error.to_string()),
            })
        }
        TextQuestion::Chat { conversation, most_tokens, images } => {
            let prompt = match text.prompt(&conversation) {
                Ok(prompt) => prompt,
                Err(error) => return nothing(refused(&error)),
            };
            let prompt = match images.map(|images| images.in_place(prompt.as_str())) {
                None => prompt,
                Some(Ok(with)) => prompt.with_text(with),
                Some(Err(wrong)) => return nothing(TextAnswer::Refused(wrong)),
            };
            // Tokenising takes time and memory in proportion to the text; one that cannot fit is refused before.
            let tokens = text.vocabulary.at_least(prompt.as_str());
            if tokens > most_tokens {
                return nothing(TextAnswer::TooLong { tokens });
            }
            let transcript = matches!(prompt, Prompt::Transcript(_));
            match text.tokens(&prompt) {
                Ok(tokens) if tokens.len() > most_tokens => nothing(TextAnswer::TooLong { tokens: tokens.len() }),
                Ok(tokens) => (TextAnswer::Tokens { lengths: vec![tokens.len()], transcript }, bytes(&tokens)),
                Err(error) => nothing(TextAnswer::Refused(words(&error))),
            }
        }
        TextQuestion::Encode { texts, specials, most_tokens } => {
            let (mut lengths, mut tail) = (Vec::with_capacity(texts.len()), Vec::new());
            for plain in texts {
                let tokens = match specials {
                    AddSpecials::Yes => text.tokenizer.encode_prompt(&plain),
                    AddSpecials::No => text.tokenizer.encode_rendered(&plain),
                };
                match tokens {
                    Ok(tokens) if most_tokens.is_some_and(|most| tokens.len() > most) => {
                        return nothing(TextAnswer::TooLong { tokens: tokens.len() });
                    }
                    Ok(tokens) => {
                        lengths.push(tokens.len());
                        tail.append(&mut bytes(&tokens));
                    }
                    Err(error) => return nothing(TextAnswer::Refused(words(&error))),
                }
            }
            (TextAnswer::Tokens { lengths, transcript: false }, tail)
        }
        TextQuestion::EncodePairs { pairs, most_tokens } => {
            let (mut lengths, mut seconds, mut tail) = (Vec::new(), Vec::new(), Vec::new());
            for [one, other] in &pairs {
                match text.tokenizer.encode_pair([one, other], most_tokens) {
                    Ok((tokens, second_from)) => {
                        lengths.push(tokens.len());
                        seconds.push(second_from);
                        tail.append(&mut bytes(&tokens));
                    }
                    Err(error) => return nothing(TextAnswer::Refused(words(&error))),
                }
            }
            (TextAnswer::Pairs { lengths, seconds }, tail)
        }
    }
}

fn refused(error: &TemplateError) -> TextAnswer {
    match error {
        TemplateError::Limit(what) => TextAnswer::Limit((*what).to_owned()),
        other => TextAnswer::Refused(words(other)),
    }
}

fn bytes(tokens: &[u32]) -> Vec<u8> {
    tokens.iter().flat_map(|token| token.to_le_bytes()).collect()
}

/// An error with its cause.
fn words(error: &dyn std::error::Error) -> String {
    let cause = error.source().map(|cause| format!(": {cause}")).unwrap_or_default();
    format!("{error}{cause}")
}
