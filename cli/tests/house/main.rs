//! What is read and not run: documents, options, the structure of the code, units. One binary, for each takes seconds to
//! link; one theme a file.

mod docs;
mod one_page;
mod options;
mod rooms;
mod symbols;
mod tidy;
mod units;
