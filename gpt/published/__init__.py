"""Published weights and tokenizers: downloaded, read and written."""
