"""S3: stages of transformer blocks with shifted windows, joined by token merging."""
