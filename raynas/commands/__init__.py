"""The `raynas` command."""
