"""Hybrids: stages of inverted residuals and transformer blocks of elastic width, depth, kernel and resolution."""
