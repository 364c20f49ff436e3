//! The data types of v3: names and extension objects become dtypes.

use crate::util::json::Value;
use crate::zarr::dtype::DType;

/// A parsed data type.
#[derive(Clone, Debug, PartialEq)]
pub struct DataType {
    /// The items as a mount shows them. Types that NumPy lacks are opaque bytes.
    pub dtype: DType,
    /// The NumPy spelling as `.zarray` has it; `None` if NumPy lacks the type.
    pub numpy: Option<Value>,
    /// The type of single numbers in codec configurations, such as `<f4` or `float8_e4m3`; `None` for other items.
    pub element: Option<String>,
}
