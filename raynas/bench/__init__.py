"""Measurements of raynas itself on the machine at hand."""
