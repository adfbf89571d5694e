//! Objects: ranges of memory, each with an index and a table of its own.

use crate::table::Table;
use pagetide_page::ObjectId;
use std::sync::Arc;

/// A range of memory whose pages are named by their index.
#[derive(Clone, Debug)]
pub struct Object {
    id: ObjectId,
    table: Arc<Table>,
}

impl Object {
    /// Returns the object of this number, in which no page was ever touched.
    pub fn new(id: ObjectId) -> Self {
        Self { id, table: Arc::default() }
    }

    /// Returns the object's number.
    pub fn id(&self) -> ObjectId {
        self.id
    }

    /// Returns the table with the words of the object's pages.
    pub fn table(&self) -> &Table {
        &self.table
    }
}
