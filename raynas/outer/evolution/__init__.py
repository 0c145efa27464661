"""Space evolution (S3): measure a space, move its choices, again and again."""
