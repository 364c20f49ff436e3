//! The pipelines of an array's chunks. Chunks of one shape share a pipeline. The module knows
//! neither keys nor the store.

use std::sync::Arc;
use zarrfs_base::error::Result;
use zarrfs_format::by_shape::ByShape;
use zarrfs_format::metadata::ArrayMetadata;
use zarrfs_format::pipeline::Pipeline;

/// The pipelines of an array.
pub struct Pipelines {
    /// The pipeline of the largest chunk, which is that of every chunk unless chunks differ in
    /// shape.
    largest: Result<Arc<Pipeline>>,
    /// The pipelines of other chunks.
    others: ByShape<Pipeline>,
}

impl Pipelines {
    /// Creates the pipeline of the largest chunk, of `max_size` bytes.
    pub fn new(metadata: &ArrayMetadata, max_size: usize) -> Self {
        Pipelines {
            largest: Pipeline::new(metadata, max_size).map(Arc::new),
            others: ByShape::default(),
        }
    }

    /// Returns the pipeline of the largest chunk.
    ///
    /// # Errors
    ///
    /// The errors of [`Pipeline::new`].
    pub fn largest(&self) -> Result<&Pipeline> {
        self.largest.as_deref().map_err(Clone::clone)
    }

    /// Returns the pipeline of the chunks of a shape, which have `size` bytes.
    ///
    /// # Errors
    ///
    /// The errors of [`Pipeline::new`], and of a chain that cannot encode chunks of this shape.
    pub fn of_shape(
        &self,
        metadata: &ArrayMetadata,
        shape: &[u64],
        size: usize,
    ) -> Result<Arc<Pipeline>> {
        if metadata.edges.is_none() || shape == metadata.chunks {
            return self.largest.clone();
        }
        self.others.get_or_make(shape, || {
            let (filters, _) = metadata.codecs_of_shape(shape)?;
            Pipeline::with_filters(metadata, &filters, size)
        })
    }
}
