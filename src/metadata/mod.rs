//! stub
mod codec_config;
pub use codec_config::CodecConfig;
