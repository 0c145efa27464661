"""Run directories as typed values: what lies where, read and written."""
