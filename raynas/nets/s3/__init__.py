"""S3: stages of transformer blocks with shifted windows, joined by merging of tokens."""
