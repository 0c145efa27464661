"""Hybrids: stages of inverted residuals and of transformer blocks, of elastic width, depth, kernel and resolution."""
