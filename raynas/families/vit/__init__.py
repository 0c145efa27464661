"""Isotropic vision transformers: AutoFormer, and DeiT-shaped spaces."""
