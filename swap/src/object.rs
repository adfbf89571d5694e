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
    /// Returns an object no page of which was ever touched.
    pub fn new(id: ObjectId) -> Self {
        Self { id, table: Arc::default() }
    }

    /// Returns the object's number.
    pub fn id(&self) -> ObjectId {
        self.id
    }

    /// Returns the words of its pages.
    pub fn table(&self) -> &Table {
        &self.table
    }
}
